//! Conversion of a VM's two text files to `VmState`; `write` has the reverse.
//!
//! Facts without a key in VMware's format have keys that begin with `unstun.`, which VMware ignores. In the .vmx these
//! are the VM's ID, the numbers of its disks and the generation of their content; in the .vmsd the IDs of snapshots,
//! the numbers of their disks, and the commits under way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::rc::Rc;
use std::str::FromStr;

use blk::Result;
use blk::manifest::{
    ContentGeneration, DISK_NUMBER_MAX, DiskState, FoldState, JOB_NUMBER_MAX, NAME_BYTES_MAX, SnapshotState,
    VmState, new_disk_number,
};

use super::bin::Binned;
use super::survey::Located;
use crate::keyvalue::KeyValues;
use crate::text::{check_bytes, decimal_up_to, shown, wrong};
use crate::vmsd::{Snapshot, SnapshotDisk, Vmsd};
use crate::vmx::{Slot, Vmx, VmxDisk};

pub(crate) const VM_ID: &str = "unstun.id";
/// The next number of a disk that was never used.
pub(super) const DISK_COUNT: &str = "unstun.diskCount";
/// Maximum of `DISK_COUNT`, which follows the highest number.
pub(super) const DISK_COUNT_MAX: u32 = DISK_NUMBER_MAX + 1;
pub(super) const SNAPSHOT_ID: &str = "unstun.id";
pub(super) const LAST_JOB: &str = "unstun.lastJob";
/// Keys in the .vmx; see `ContentGeneration`. A revert to a snapshot's kept .vmx does not change these lines.
pub(super) const GENERATION: &str = "unstun.generation";
pub(super) const OPENED_GENERATION: &str = "unstun.openedGeneration";

/// The two files and the bin, parsed.
#[derive(Clone)]
pub(super) struct Texts {
    pub vmx: Vmx,
    pub vmsd: Vmsd,
    pub bin: Rc<Vec<Binned>>,
}

/// Objects that got an identity when the texts were read, which must be written back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AssignedIds {
    pub in_vmx: bool,
    pub in_vmsd: bool,
}

/// Facts from outside of the texts that their conversion needs.
pub(super) struct ReadContext<'a> {
    /// The VM's name if the .vmx has none.
    pub fallback_name: &'a str,
    /// ID for the VM if the .vmx has none; otherwise one is drawn.
    pub id: Option<u128>,
    /// Resolves a path in one of the files, or returns why that is not possible.
    pub local: &'a dyn Fn(&str) -> Result<Located>,
    /// Sizes of the disks by slot.
    pub size_bytes: &'a BTreeMap<Slot, u64>,
}

impl Texts {
    /// Returns the lines of all snapshots, in the tree and in the bin.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.vmsd.list().snapshots.iter().chain(self.bin.iter().flat_map(Binned::snapshots))
    }

    pub(super) fn snapshot(&self, uid: u32) -> Option<&Snapshot> {
        self.snapshots().find(|snapshot| snapshot.uid == uid)
    }

    /// Returns every path in the two files that `Surroundings::local` must resolve.
    pub(super) fn paths(&self) -> Result<Vec<String>> {
        let mut paths = disk_paths(&self.vmx)?;
        let snapshots = self.vmsd.list().snapshots.iter();
        paths.extend(snapshots.flat_map(|snapshot| &snapshot.disks).map(|disk| disk.file_name.clone()));
        Ok(paths)
    }

    /// Converts the texts. `random` draws IDs for objects without one.
    pub(super) fn read(
        &mut self,
        at: &ReadContext<'_>,
        mut random: impl FnMut() -> u128,
    ) -> Result<(VmState, AssignedIds)> {
        let mut assigned = self.assign(at.id, &mut random)?;
        let disks = self.vmx.disks()?;
        let numbers = self.number_disks(&disks, &mut assigned)?;
        self.number_snapshot_disks(&numbers, at, &mut assigned)?;
        let display_name = self.vmx.values().get("displayName")?.filter(|name| !name.is_empty());
        let file = self.vmx.values().file();
        check_bytes(file, "displayName", display_name.unwrap_or_default(), NAME_BYTES_MAX)?;
        let mut state = VmState {
            name: display_name.unwrap_or(at.fallback_name).into(),
            id: required_id(self.vmx.values(), VM_ID)?,
            last_uid: self.vmsd.list().last_uid,
            disks: read_disks(&disks, &numbers, at)?,
            generation: read_generation(self.vmx.values())?,
            ..VmState::default()
        };
        self.read_snapshots(&mut state, at)?;
        read_folds(self.vmsd.values(), &mut state)?;
        Ok((state, assigned))
    }

    /// Assigns an ID and a generation to the VM, and an ID to every snapshot.
    fn assign(&mut self, id_known: Option<u128>, random: &mut impl FnMut() -> u128) -> Result<AssignedIds> {
        let mut assigned = AssignedIds::default();
        if id(self.vmx.values(), VM_ID)?.is_none() {
            let new = id_known.unwrap_or_else(&mut *random);
            self.vmx.values_mut().set(VM_ID, &format!("{new:032x}"));
            assigned.in_vmx = true;
        }
        let mut list = self.vmsd.list().clone();
        for snapshot in &mut list.snapshots {
            if snapshot.other(SNAPSHOT_ID).is_none() {
                snapshot.set_other(SNAPSHOT_ID, Some(&format!("{:032x}", random())));
                assigned.in_vmsd = true;
            }
        }
        self.vmsd.set_list(list);
        if self.vmx.values().get(GENERATION)?.is_none() {
            write_generation(&mut self.vmx, ContentGeneration::begin(random() as u64))?;
            assigned.in_vmx = true;
        }
        Ok(assigned)
    }

    /// Assigns the number of each disk: its present one, or the next that was never used, in slot order.
    fn number_disks(&mut self, disks: &[VmxDisk], assigned: &mut AssignedIds) -> Result<BTreeMap<Slot, u32>> {
        let mut numbers = disk_numbers(&self.vmx, disks)?;
        let mut next = self.next_number(&numbers)?;
        for disk in disks.iter().filter(|disk| !numbers.contains_key(&disk.slot)).collect::<Vec<_>>() {
            let number = self.give_number(&mut next)?;
            self.vmx.values_mut().set(&number_key(disk.slot), &number.to_string());
            numbers.insert(disk.slot, number);
            assigned.in_vmx = true;
        }
        if assigned.in_vmx {
            self.vmx.values_mut().set(DISK_COUNT, &next.to_string());
        }
        Ok(numbers)
    }

    fn next_number(&self, numbers: &BTreeMap<Slot, u32>) -> Result<u32> {
        let file = self.vmsd.values().file();
        let mut used: Vec<u32> = numbers.values().copied().collect();
        for snapshot in &self.vmsd.list().snapshots {
            let own = snapshot.other.iter().filter(|(key, _)| slot_of_number_key(key).is_some());
            for (key, value) in own {
                let field = format!("{key} of snapshot {}", snapshot.uid);
                used.push(decimal_up_to(file, &field, value, DISK_NUMBER_MAX)?);
            }
        }
        let count = number(self.vmx.values(), DISK_COUNT, DISK_COUNT_MAX)?.unwrap_or(0);
        Ok(used.into_iter().map(|number| number + 1).max().unwrap_or(0).max(count))
    }

    fn give_number(&self, next: &mut u32) -> Result<u32> {
        let number = new_disk_number(self.vmx.values().file(), *next)?;
        *next += 1;
        Ok(number)
    }

    /// Assigns the disks of snapshots. A snapshot outlives the disks of its VM, and another disk may take their slots,
    /// so each snapshot records the disk of each layer. In a snapshot from VMware it is the disk that is in the slot
    /// now; without one, it is a separate disk if its file exists.
    fn number_snapshot_disks(
        &mut self,
        numbers: &BTreeMap<Slot, u32>,
        at: &ReadContext<'_>,
        assigned: &mut AssignedIds,
    ) -> Result<()> {
        let mut known = numbers.clone();
        let mut next = self.next_number(numbers)?;
        let first = next;
        let mut list = self.vmsd.list().clone();
        for snapshot in &mut list.snapshots {
            for disk in snapshot.disks.clone() {
                let Some(slot) = Slot::parse(&disk.node) else { continue };
                if snapshot.other(&number_key(slot)).is_some() {
                    continue;
                }
                let gone = !known.contains_key(&slot);
                if gone && !(at.local)(&disk.file_name).is_ok_and(|located| located.exists) {
                    continue;
                }
                let number = match known.get(&slot) {
                    Some(number) => *number,
                    None => {
                        let new = self.give_number(&mut next)?;
                        known.insert(slot, new);
                        new
                    }
                };
                snapshot.set_other(&number_key(slot), Some(&number.to_string()));
                assigned.in_vmsd = true;
            }
        }
        self.vmsd.set_list(list);
        if next != first {
            self.vmx.values_mut().set(DISK_COUNT, &next.to_string());
            assigned.in_vmx = true;
        }
        Ok(())
    }

    fn read_snapshots(&self, state: &mut VmState, at: &ReadContext<'_>) -> Result<()> {
        let list = self.vmsd.list();
        let file = self.vmsd.values().file();
        let running: BTreeSet<u32> = state.disks.iter().map(|disk| disk.number).collect();
        let mut ids = BTreeMap::new();
        for snapshot in &list.snapshots {
            let id = parse_id(file, SNAPSHOT_ID, snapshot.other(SNAPSHOT_ID).unwrap_or_default())?;
            ids.insert(snapshot.uid, id);
        }
        for snapshot in &list.snapshots {
            let mut disks = Vec::new();
            for disk in &snapshot.disks {
                let Some(number) = snapshot_number(file, snapshot, disk)? else { continue };
                let runs = running.contains(&number);
                match (at.local)(&disk.file_name) {
                    Ok(located) if runs || located.exists => disks.push((number, located.layer)),
                    Err(e) if runs => return Err(e),
                    // A disk that the VM no longer has: its lines stay, and are ignored.
                    _ => {}
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
}

/// Returns the paths of a .vmx's disks, as written.
pub(super) fn disk_paths(vmx: &Vmx) -> Result<Vec<String>> {
    let disks = vmx.disks()?;
    Ok(disks.into_iter().flat_map(|disk| [Some(disk.file_name), disk.redo]).flatten().collect())
}

/// Returns the numbers of a .vmx's disks.
pub(super) fn disk_numbers(vmx: &Vmx, disks: &[VmxDisk]) -> Result<BTreeMap<Slot, u32>> {
    let mut numbers = BTreeMap::new();
    for disk in disks {
        if let Some(number) = number(vmx.values(), &number_key(disk.slot), DISK_NUMBER_MAX)? {
            numbers.insert(disk.slot, number);
        }
    }
    Ok(numbers)
}

/// Returns the disks whose number is in `numbers`.
pub(super) fn read_disks(
    disks: &[VmxDisk],
    numbers: &BTreeMap<Slot, u32>,
    at: &ReadContext<'_>,
) -> Result<Vec<DiskState>> {
    let mut states = Vec::new();
    for disk in disks {
        let Some(number) = numbers.get(&disk.slot) else { continue };
        let base = (at.local)(&disk.file_name)?.layer;
        let redo = disk.redo.as_deref().map(|redo| (at.local)(redo)).transpose()?;
        let (top, reset_to) = match redo {
            Some(redo) => (redo.layer, Some(base)),
            None => (base, None),
        };
        let size_bytes = at.size_bytes.get(&disk.slot).copied().unwrap_or(0);
        let slot = disk.slot.to_string();
        states.push(DiskState { number: *number, slot, mode: disk.mode, size_bytes, top, reset_to });
    }
    Ok(states)
}

/// Returns the number of one of a snapshot's disks, if it has one.
pub(super) fn snapshot_number(file: &str, snapshot: &Snapshot, disk: &SnapshotDisk) -> Result<Option<u32>> {
    let Some(slot) = Slot::parse(&disk.node) else { return Ok(None) };
    let Some(value) = snapshot.other(&number_key(slot)) else { return Ok(None) };
    let field = format!("{} of snapshot {}", number_key(slot), snapshot.uid);
    decimal_up_to(file, &field, value, DISK_NUMBER_MAX).map(Some)
}

/// Reads both lines. Without the second one, no plain name is served.
fn read_generation(values: &KeyValues) -> Result<ContentGeneration> {
    let read = |key: &str| -> Result<u64> { Ok(number(values, key, ContentGeneration::MAX)?.unwrap_or(0)) };
    let present = read(GENERATION)?;
    if present == 0 {
        return Err(wrong(values.file(), GENERATION, "0", "1 or more"));
    }
    Ok(ContentGeneration::read(present, read(OPENED_GENERATION)?))
}

/// Writes the generation. Lines with the same values stay as they are.
pub(super) fn write_generation(vmx: &mut Vmx, generation: ContentGeneration) -> Result<()> {
    for (key, wanted) in [(GENERATION, generation.present), (OPENED_GENERATION, generation.opened)] {
        if number(vmx.values(), key, u64::MAX)? != Some(wanted) {
            vmx.values_mut().set(key, &wanted.to_string());
        }
    }
    Ok(())
}

fn read_folds(values: &KeyValues, state: &mut VmState) -> Result<()> {
    state.last_job = number(values, LAST_JOB, JOB_NUMBER_MAX)?.unwrap_or(0);
    for index in 0usize.. {
        let key = |field: &str| format!("unstun.fold{index}.{field}");
        let Some(layer) = values.get(&key("layer"))? else { break };
        let missing = |field: &str| wrong(values.file(), &key(field), "absent", "a number");
        state.folds.push(FoldState {
            disk: number(values, &key("disk"), DISK_NUMBER_MAX)?.ok_or_else(|| missing("disk"))?,
            layer: layer.into(),
            job: number(values, &key("job"), JOB_NUMBER_MAX)?.ok_or_else(|| missing("job"))?,
            held: values.get_bool(&key("held"), false)?,
        });
    }
    Ok(())
}

pub(super) fn is_fold_key(key: &str) -> bool {
    key.to_ascii_lowercase().starts_with("unstun.fold")
}

const NUMBER_PREFIX: &str = "unstun.number.";

pub(super) fn number_key(slot: Slot) -> String {
    format!("{NUMBER_PREFIX}{slot}")
}

pub(super) fn slot_of_number_key(key: &str) -> Option<Slot> {
    let prefix = key.get(..NUMBER_PREFIX.len())?;
    prefix.eq_ignore_ascii_case(NUMBER_PREFIX).then(|| Slot::parse(&key[NUMBER_PREFIX.len()..])).flatten()
}

/// Returns the number under `key`, which is at most `max`.
pub(super) fn number<N: FromStr + PartialOrd + Display>(
    values: &KeyValues,
    key: &str,
    max: N,
) -> Result<Option<N>> {
    let Some(value) = values.get(key)? else { return Ok(None) };
    decimal_up_to(values.file(), key, value, max).map(Some)
}

pub(super) fn id(values: &KeyValues, key: &str) -> Result<Option<u128>> {
    values.get(key)?.map(|value| parse_id(values.file(), key, value)).transpose()
}

fn required_id(values: &KeyValues, key: &str) -> Result<u128> {
    id(values, key)?.ok_or_else(|| wrong(values.file(), key, "absent", "32 hexadecimal digits"))
}

pub(super) fn parse_id(file: &str, key: &str, value: &str) -> Result<u128> {
    let plain = value.len() == 32 && value.bytes().all(|b| b.is_ascii_hexdigit());
    let parsed = plain.then(|| u128::from_str_radix(value, 16).ok()).flatten();
    parsed.ok_or_else(|| wrong(file, key, shown(value), "32 hexadecimal digits"))
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
