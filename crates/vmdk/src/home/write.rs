//! Conversion of `VmState` to the two text files. Other lines stay unchanged.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::{Change, DISK_NUMBER_MAX, DiskMode, DiskState, SnapshotState, VmState};
use blk::{Error, Result};

use super::bin;
use super::state::{
    DISK_COUNT, DISK_COUNT_MAX, LAST_JOB, SNAPSHOT_ID, Texts, is_fold_key, number, number_key,
    slot_of_number_key, snapshot_number, write_generation,
};
use super::survey::Located;
use crate::text::{shown, wrong};
use crate::vmsd::{SNAPSHOTS_MAX, Snapshot, SnapshotDisk, SnapshotList};
use crate::vmx::{Slot, Vmx};

/// Resolves a path in one of the files.
type Local<'a> = &'a dyn Fn(&str) -> Result<Located>;

fn means(local: Local<'_>, written: &str, layer: &str) -> bool {
    local(written).is_ok_and(|located| located.layer == layer)
}

impl Texts {
    /// Applies `change` to the texts.
    pub(super) fn write(&mut self, change: &Change, local: Local<'_>) -> Result<()> {
        let next = &change.next;
        write_disks(&mut self.vmx, next, local)?;
        if self.vmx.values().get("displayName")? != Some(&next.name) {
            self.vmx.values_mut().set("displayName", &next.name);
        }
        write_generation(&mut self.vmx, next.generation)?;
        let had_folds = self.vmsd.values().keys().any(is_fold_key);
        let mut list = self.snapshot_list(next, local)?;
        list.needs_consolidation = match (next.folds.is_empty(), had_folds) {
            (false, _) => true,
            (true, true) => false,
            (true, false) => self.vmsd.list().needs_consolidation,
        };
        self.vmsd.set_list(list);
        self.write_folds(next);
        Ok(())
    }

    /// Makes the configuration kept with a snapshot the VM's own. The VM's identity and name stay.
    pub(super) fn restore(&mut self, kept: Vmx) -> Result<()> {
        let old = std::mem::replace(&mut self.vmx, kept);
        let stays =
            |key: &str| key.to_ascii_lowercase().starts_with("unstun.") && slot_of_number_key(key).is_none();
        let mut lines = Vec::new();
        for entry in old.values().entries() {
            // Values in other encodings are not unstun's.
            let Ok((key, value)) = entry else { continue };
            if stays(key) || key.eq_ignore_ascii_case("displayName") {
                lines.push((key.to_owned(), value.to_owned()));
            }
        }
        let kept_count = number(self.vmx.values(), DISK_COUNT, DISK_COUNT_MAX)?.unwrap_or(0);
        let values = self.vmx.values_mut();
        values.replace(|key| stays(key), []);
        lines.iter().for_each(|(key, value)| values.set(key, value));
        let count = number(values, DISK_COUNT, DISK_COUNT_MAX)?.unwrap_or(0).max(kept_count);
        values.set(DISK_COUNT, &count.to_string());
        Ok(())
    }

    fn snapshot_list(&self, next: &VmState, local: Local<'_>) -> Result<SnapshotList> {
        if next.snapshots.len() > SNAPSHOTS_MAX {
            // It could be written, but the VM could never be opened again.
            let cause =
                format!("it would have {} snapshots, and {SNAPSHOTS_MAX} are read", next.snapshots.len());
            return Err(Error::refused(
                self.vmsd.values().file(),
                format!("{cause}; commit or discard some first"),
            ));
        }
        let uids: BTreeMap<u128, u32> = next.snapshots.iter().map(|own| (own.id, own.uid)).collect();
        let uid_of = |id: u128| uids.get(&id).copied();
        let before: BTreeMap<u32, &Snapshot> = self.snapshots().map(|old| (old.uid, old)).collect();
        let file = self.vmsd.values().file();
        let mut snapshots = Vec::new();
        for wanted in &next.snapshots {
            let mut snapshot = before.get(&wanted.uid).map_or_else(Snapshot::default, |old| (*old).clone());
            snapshot.uid = wanted.uid;
            snapshot.parent = wanted.parent.and_then(uid_of);
            snapshot.name = wanted.name.clone();
            if !wanted.description.is_empty() || snapshot.description.is_some() {
                snapshot.description = Some(wanted.description.clone());
            }
            if wanted.created_unix_us != 0 {
                snapshot.created_us = Some(wanted.created_unix_us);
            }
            snapshot.set_other(SNAPSHOT_ID, Some(&format!("{:032x}", wanted.id)));
            // For a snapshot that is restored from the bin.
            snapshot.set_other(bin::PARENT, None);
            write_snapshot_disks(file, &mut snapshot, wanted, &next.disks, local)?;
            snapshots.push(snapshot);
        }
        let current = next.current.and_then(uid_of);
        Ok(SnapshotList { snapshots, current, last_uid: next.last_uid, needs_consolidation: false })
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

/// Changes the list of disks to that of `next`: removed disks lose all their lines, and new ones are added.
pub(super) fn write_disks(vmx: &mut Vmx, next: &VmState, local: Local<'_>) -> Result<()> {
    let file = vmx.values().file().to_owned();
    let mut wanted: BTreeMap<Slot, &DiskState> = BTreeMap::new();
    for disk in &next.disks {
        let slot = Slot::parse(&disk.slot)
            .ok_or_else(|| Error::invalid(&file, format!("{} is no place for a disk", shown(&disk.slot))))?;
        if wanted.insert(slot, disk).is_some() {
            return Err(wrong(&file, &slot.to_string(), "given to two disks", "one disk in it"));
        }
    }
    let gone = gone_disks(vmx, &wanted)?;
    // Lines of another device in the slot of a new disk, such as a CD drive, would become part of the disk.
    let mut cleared = gone.clone();
    for slot in wanted.keys() {
        if vmx.disk(*slot)?.is_none() {
            cleared.insert(*slot);
        }
    }
    // All at once, because each pass processes every line, and a file may have many lines and disks.
    if !cleared.is_empty() {
        vmx.remove_disks(&cleared);
    }
    if !gone.is_empty() {
        vmx.values_mut().replace(|key| slot_of_number_key(key).is_some_and(|slot| gone.contains(&slot)), []);
    }
    for (slot, disk) in wanted {
        write_disk(vmx, slot, disk, local)?;
    }
    let used = next.disks.iter().map(|disk| disk.number + 1).max().unwrap_or(0);
    let count = number(vmx.values(), DISK_COUNT, DISK_COUNT_MAX)?.unwrap_or(0);
    if used > count {
        vmx.values_mut().set(DISK_COUNT, &used.to_string());
    }
    Ok(())
}

/// Returns the slots whose disk is not, or no longer, the intended one.
fn gone_disks(vmx: &Vmx, wanted: &BTreeMap<Slot, &DiskState>) -> Result<BTreeSet<Slot>> {
    let mut gone = BTreeSet::new();
    for old in vmx.disks()? {
        let had = number(vmx.values(), &number_key(old.slot), DISK_NUMBER_MAX)?;
        if wanted.get(&old.slot).is_none_or(|disk| had.is_some_and(|had| had != disk.number)) {
            gone.insert(old.slot);
        }
    }
    Ok(gone)
}

fn write_disk(vmx: &mut Vmx, slot: Slot, disk: &DiskState, local: Local<'_>) -> Result<()> {
    let resets = disk.reset_to.as_ref().filter(|_| disk.mode == DiskMode::IndependentNonpersistent);
    let (runs, redo) = match resets {
        Some(base) => (base, Some(&disk.top)),
        None => (&disk.top, None),
    };
    let old = vmx.disk(slot)?;
    let old_mode = match &old {
        Some(old) => {
            if !means(local, &old.file_name, runs) {
                vmx.set_disk_file(slot, runs);
            }
            old.mode
        }
        None => {
            vmx.add_disk(slot, runs);
            DiskMode::Persistent
        }
    };
    if old_mode != disk.mode {
        vmx.values_mut().set(&format!("{slot}.mode"), mode_word(disk.mode));
    }
    let old_redo = old.and_then(|old| old.redo);
    let same = match (&old_redo, redo) {
        (Some(old), Some(redo)) => means(local, old, redo),
        (None, None) => true,
        _ => false,
    };
    if !same {
        vmx.set_redo(slot, redo.map(String::as_str));
    }
    if number(vmx.values(), &number_key(slot), DISK_NUMBER_MAX)? != Some(disk.number) {
        vmx.values_mut().set(&number_key(slot), &disk.number.to_string());
    }
    Ok(())
}

/// Writes the disks of a snapshot. A path that still means the same layer stays as written; so do disks that unstun
/// does not know.
pub(super) fn write_snapshot_disks(
    file: &str,
    snapshot: &mut Snapshot,
    wanted: &SnapshotState,
    running: &[DiskState],
    local: Local<'_>,
) -> Result<()> {
    let mut wanted: BTreeMap<u32, &String> =
        wanted.disks.iter().map(|(number, layer)| (*number, layer)).collect();
    let mut disks = Vec::new();
    for disk in std::mem::take(&mut snapshot.disks) {
        let number = snapshot_number(file, snapshot, &disk)?;
        match number.and_then(|number| wanted.remove(&number)) {
            Some(layer) if !means(local, &disk.file_name, layer) => {
                disks.push(SnapshotDisk { node: disk.node, file_name: layer.clone() });
            }
            Some(_) => disks.push(disk),
            None if number.is_some() && local(&disk.file_name).is_ok_and(|located| located.exists) => {
                let key = Slot::parse(&disk.node).map(number_key);
                key.iter().for_each(|key| snapshot.set_other(key, None));
            }
            None => disks.push(disk),
        }
    }
    for (number, layer) in wanted {
        let Some(disk) = running.iter().find(|disk| disk.number == number) else {
            let cause = format!("disk{number} of snapshot {} is no disk of the VM", shown(&snapshot.name));
            return Err(Error::invalid(file, cause));
        };
        if let Some(slot) = Slot::parse(&disk.slot) {
            snapshot.set_other(&number_key(slot), Some(&number.to_string()));
        }
        disks.push(SnapshotDisk { node: disk.slot.clone(), file_name: layer.clone() });
    }
    snapshot.disks = disks;
    Ok(())
}

pub(super) fn mode_word(mode: DiskMode) -> &'static str {
    match mode {
        DiskMode::Persistent => "persistent",
        DiskMode::IndependentPersistent => "independent-persistent",
        DiskMode::IndependentNonpersistent => "independent-nonpersistent",
    }
}
