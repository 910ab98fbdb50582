//! Between the two text files of a VM and `VmState`.
//!
//! What VMware has no word for is kept under keys that begin with `unstun.`, which it ignores: in the .vmx the VM's id and the
//! numbers of its disks, in the .vmsd the snapshots' ids and the commits under way.

use std::collections::BTreeMap;

use blk::Result;
use blk::manifest::{Change, DiskMode, DiskState, FoldState, SnapshotState, VmState};

use crate::keyvalue::KeyValues;
use crate::text::{decimal, shown, wrong};
use crate::vmsd::{Snapshot, SnapshotDisk, SnapshotList, Vmsd};
use crate::vmx::{Slot, Vmx, VmxDisk};

const VM_ID: &str = "unstun.id";
const DISK_COUNT: &str = "unstun.diskCount";
const SNAPSHOT_ID: &str = "unstun.id";
const LAST_JOB: &str = "unstun.lastJob";

/// The two files, parsed.
pub(super) struct Texts {
    pub vmx: Vmx,
    pub vmsd: Vmsd,
}

/// What had to be given an identity when the texts were read, and so must be written back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Assigned {
    pub in_vmx: bool,
    pub in_vmsd: bool,
}

impl Texts {
    /// `local` gives the name in the home for a path in one of the files, or an error when it lies elsewhere.
    /// `size_bytes` are the disks' sizes by slot. `random` draws ids for what has none yet.
    pub fn read(
        &mut self,
        fallback_name: &str,
        local: impl Fn(&str) -> Result<String>,
        size_bytes: &BTreeMap<Slot, u64>,
        mut random: impl FnMut() -> u128,
    ) -> Result<(VmState, Assigned)> {
        let mut assigned = self.assign(&mut random)?;
        let disks = self.vmx.disks()?;
        let numbers = self.number_disks(&disks, &mut assigned)?;
        let display_name = self.vmx.values().get("displayName")?.filter(|name| !name.is_empty());
        let mut state = VmState {
            name: display_name.unwrap_or(fallback_name).into(),
            id: required_id(self.vmx.values(), VM_ID)?,
            last_uid: self.vmsd.list().last_uid,
            ..VmState::default()
        };
        for disk in &disks {
            state.disks.push(DiskState {
                number: numbers[&disk.slot],
                slot: disk.slot.to_string(),
                mode: disk.mode,
                size_bytes: size_bytes.get(&disk.slot).copied().unwrap_or(0),
                top: local(&disk.file_name)?,
                reset_to: None,
            });
        }
        self.read_snapshots(&mut state, &numbers, local)?;
        read_folds(self.vmsd.values(), &mut state)?;
        Ok((state, assigned))
    }

    /// Gives the VM and every snapshot an id.
    fn assign(&mut self, random: &mut impl FnMut() -> u128) -> Result<Assigned> {
        let mut assigned = Assigned::default();
        if id(self.vmx.values(), VM_ID)?.is_none() {
            self.vmx.values_mut().set(VM_ID, &format!("{:032x}", random()));
            assigned.in_vmx = true;
        }
        let mut list = self.vmsd.list().clone();
        for snapshot in &mut list.snapshots {
            if other(snapshot, SNAPSHOT_ID).is_none() {
                snapshot.other.push((SNAPSHOT_ID.into(), format!("{:032x}", random())));
                assigned.in_vmsd = true;
            }
        }
        self.vmsd.set_list(list);
        Ok(assigned)
    }

    /// The number of each disk: the one it has, or the next that was never used, in slot order.
    fn number_disks(&mut self, disks: &[VmxDisk], assigned: &mut Assigned) -> Result<BTreeMap<Slot, u32>> {
        let values = self.vmx.values();
        let mut numbers = BTreeMap::new();
        for disk in disks {
            if let Some(number) = number::<u32>(values, &number_key(disk.slot))? {
                numbers.insert(disk.slot, number);
            }
        }
        let highest = numbers.values().map(|number| number.saturating_add(1)).max().unwrap_or(0);
        let mut next = number::<u32>(values, DISK_COUNT)?.unwrap_or(0).max(highest);
        for disk in disks.iter().filter(|disk| !numbers.contains_key(&disk.slot)).collect::<Vec<_>>() {
            self.vmx.values_mut().set(&number_key(disk.slot), &next.to_string());
            numbers.insert(disk.slot, next);
            next = next.saturating_add(1);
            assigned.in_vmx = true;
        }
        if assigned.in_vmx {
            self.vmx.values_mut().set(DISK_COUNT, &next.to_string());
        }
        Ok(numbers)
    }

    fn read_snapshots(
        &self,
        state: &mut VmState,
        numbers: &BTreeMap<Slot, u32>,
        local: impl Fn(&str) -> Result<String>,
    ) -> Result<()> {
        let list = self.vmsd.list();
        let file = self.vmsd.values().file();
        let mut ids = BTreeMap::new();
        for snapshot in &list.snapshots {
            ids.insert(
                snapshot.uid,
                parse_id(file, SNAPSHOT_ID, other(snapshot, SNAPSHOT_ID).unwrap_or_default())?,
            );
        }
        for snapshot in &list.snapshots {
            let mut disks = Vec::new();
            for disk in &snapshot.disks {
                // A disk the VM no longer has stays in the file, and is none of ours.
                if let Some(number) = Slot::parse(&disk.node).and_then(|slot| numbers.get(&slot)) {
                    disks.push((*number, local(&disk.file_name)?));
                }
            }
            state.snapshots.push(SnapshotState {
                id: ids[&snapshot.uid],
                uid: snapshot.uid,
                parent: snapshot.parent.and_then(|parent| ids.get(&parent).copied()),
                name: snapshot.name.clone(),
                description: snapshot.description.clone().unwrap_or_default(),
                created_unix_us: snapshot.created_us.unwrap_or(0),
                disks,
            });
        }
        state.current = list.current.and_then(|uid| ids.get(&uid).copied());
        Ok(())
    }

    /// Makes the texts say what `change` says. Lines it does not touch stay as they are.
    pub fn write(&mut self, change: &Change, local: impl Fn(&str) -> Result<String>) -> Result<()> {
        let next = &change.next;
        self.write_disks(next, &local)?;
        if self.vmx.values().get("displayName")? != Some(&next.name) {
            self.vmx.values_mut().set("displayName", &next.name);
        }
        let had_folds = self.vmsd.values().keys().any(is_fold_key);
        let mut list = self.snapshot_list(next, &local);
        list.needs_consolidation = match (next.folds.is_empty(), had_folds) {
            (false, _) => true,
            (true, true) => false,
            (true, false) => self.vmsd.list().needs_consolidation,
        };
        self.vmsd.set_list(list);
        self.write_folds(next);
        Ok(())
    }

    fn write_disks(&mut self, next: &VmState, local: impl Fn(&str) -> Result<String>) -> Result<()> {
        let file = self.vmx.values().file().to_owned();
        let present = self.vmx.disks()?;
        for disk in &next.disks {
            let slot = Slot::parse(&disk.slot);
            let old = present.iter().find(|old| Some(old.slot) == slot);
            let Some(old) = old else {
                return Err(wrong(&file, &format!("{}.fileName", disk.slot), "absent", "a disk of this VM"));
            };
            if local(&old.file_name).ok().as_deref() != Some(&disk.top) {
                self.vmx.set_disk_file(old.slot, &disk.top);
            }
            if old.mode != disk.mode {
                self.vmx.values_mut().set(&format!("{}.mode", old.slot), mode_word(disk.mode));
            }
        }
        Ok(())
    }

    fn snapshot_list(&self, next: &VmState, local: impl Fn(&str) -> Result<String>) -> SnapshotList {
        let uid_of =
            |id: u128| next.snapshots.iter().find(|snapshot| snapshot.id == id).map(|found| found.uid);
        let snapshots = next.snapshots.iter().map(|wanted| {
            let old = self.vmsd.list().snapshots.iter().find(|old| old.uid == wanted.uid);
            let mut snapshot = old.cloned().unwrap_or_default();
            snapshot.uid = wanted.uid;
            snapshot.parent = wanted.parent.and_then(uid_of);
            snapshot.name = wanted.name.clone();
            if !wanted.description.is_empty() || snapshot.description.is_some() {
                snapshot.description = Some(wanted.description.clone());
            }
            if wanted.created_unix_us != 0 {
                snapshot.created_us = Some(wanted.created_unix_us);
            }
            snapshot.other.retain(|(key, _)| !key.eq_ignore_ascii_case(SNAPSHOT_ID));
            snapshot.other.push((SNAPSHOT_ID.into(), format!("{:032x}", wanted.id)));
            snapshot.disks = merge_disks(&snapshot.disks, wanted, next, &local);
            snapshot
        });
        SnapshotList {
            snapshots: snapshots.collect(),
            current: next.current.and_then(uid_of),
            last_uid: next.last_uid,
            needs_consolidation: false,
        }
    }

    fn write_folds(&mut self, next: &VmState) {
        let values = self.vmsd.values_mut();
        let entries = next.folds.iter().enumerate().flat_map(|(index, fold)| {
            let held = if fold.held { "TRUE" } else { "FALSE" };
            [
                ("disk", fold.disk.to_string()),
                ("layer", fold.layer.clone()),
                ("job", fold.job.to_string()),
                ("held", held.into()),
            ]
            .map(|(key, value)| (format!("unstun.fold{index}.{key}"), value))
        });
        let entries: Vec<(String, String)> = entries.collect();
        values.replace(is_fold_key, entries);
        if next.last_job != 0 {
            values.set(LAST_JOB, &next.last_job.to_string());
        }
    }
}

/// The disks of a snapshot as its file names them: a path that still means the same layer stays as written, and disks the
/// VM no longer has stay too.
fn merge_disks(
    old: &[SnapshotDisk],
    wanted: &SnapshotState,
    next: &VmState,
    local: impl Fn(&str) -> Result<String>,
) -> Vec<SnapshotDisk> {
    let wanted = wanted.disks.iter().filter_map(|(number, layer)| {
        let disk = next.disks.iter().find(|disk| disk.number == *number)?;
        Some((disk.slot.clone(), layer.clone()))
    });
    let mut wanted: BTreeMap<String, String> = wanted.collect();
    let mut disks = Vec::new();
    for disk in old {
        match wanted.remove(&disk.node) {
            Some(layer) if local(&disk.file_name).ok().as_ref() != Some(&layer) => {
                disks.push(SnapshotDisk { node: disk.node.clone(), file_name: layer });
            }
            Some(_) => disks.push(disk.clone()),
            None if next.disks.iter().any(|known| known.slot == disk.node) => {}
            None => disks.push(disk.clone()),
        }
    }
    disks.extend(wanted.into_iter().map(|(node, file_name)| SnapshotDisk { node, file_name }));
    disks
}

fn read_folds(values: &KeyValues, state: &mut VmState) -> Result<()> {
    state.last_job = number(values, LAST_JOB)?.unwrap_or(0);
    for index in 0usize.. {
        let key = |field: &str| format!("unstun.fold{index}.{field}");
        let Some(layer) = values.get(&key("layer"))? else { break };
        let missing = |field: &str| wrong(values.file(), &key(field), "absent", "a number");
        state.folds.push(FoldState {
            disk: number(values, &key("disk"))?.ok_or_else(|| missing("disk"))?,
            layer: layer.into(),
            job: number(values, &key("job"))?.ok_or_else(|| missing("job"))?,
            held: values.get_bool(&key("held"), false)?,
        });
    }
    Ok(())
}

fn is_fold_key(key: &str) -> bool {
    key.to_ascii_lowercase().starts_with("unstun.fold")
}

fn number_key(slot: Slot) -> String {
    format!("unstun.number.{slot}")
}

fn mode_word(mode: DiskMode) -> &'static str {
    match mode {
        DiskMode::Persistent => "persistent",
        DiskMode::IndependentPersistent => "independent-persistent",
        DiskMode::IndependentNonpersistent => "independent-nonpersistent",
    }
}

fn other<'a>(snapshot: &'a Snapshot, key: &str) -> Option<&'a str> {
    let found = snapshot.other.iter().find(|(own, _)| own.eq_ignore_ascii_case(key));
    found.map(|(_, value)| value.as_str())
}

fn number<N: std::str::FromStr>(values: &KeyValues, key: &str) -> Result<Option<N>> {
    let Some(value) = values.get(key)? else { return Ok(None) };
    decimal(values.file(), key, value, "a number").map(Some)
}

fn id(values: &KeyValues, key: &str) -> Result<Option<u128>> {
    values.get(key)?.map(|value| parse_id(values.file(), key, value)).transpose()
}

fn required_id(values: &KeyValues, key: &str) -> Result<u128> {
    id(values, key)?.ok_or_else(|| wrong(values.file(), key, "absent", "32 hexadecimal digits"))
}

fn parse_id(file: &str, key: &str, value: &str) -> Result<u128> {
    let plain = value.len() == 32 && value.bytes().all(|b| b.is_ascii_hexdigit());
    let parsed = plain.then(|| u128::from_str_radix(value, 16).ok()).flatten();
    parsed.ok_or_else(|| wrong(file, key, shown(value), "32 hexadecimal digits"))
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
