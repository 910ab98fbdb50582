//! Entries of the bin: states that a revert, a discard or a reset threw away and that the VM keeps for a while. Pure
//! functions over a VM's state.

use blk::manifest::{
    BINNED_STATES_MAX, BinnedBy, BinnedState, DiskMode, DiskState, LayerName, SnapshotState, VmState,
};
use blk::{Env, Error, Result};

use crate::tree;

/// Most names in a subject. With at most 512 bytes each they take 4 KiB of an entry.
const SUBJECT_NAMES_MAX: usize = 8;

/// Returns a new binned state with the id and the time set; the caller adds snapshots and disks.
pub(crate) fn new_entry(env: &Env, by: BinnedBy, subject: String) -> BinnedState {
    BinnedState {
        id: env.random(),
        by,
        unix_us: env.unix_us(),
        subject,
        snapshots: Vec::new(),
        disks: Vec::new(),
        added: Vec::new(),
        current: None,
    }
}

/// Joins names to an entry's subject. The number of names is bounded: an entry is read whole, and there may be
/// thousands of names.
pub(crate) fn subject_of(names: &[String]) -> String {
    let shown = names[..names.len().min(SUBJECT_NAMES_MAX)].join(", ");
    match names.len().saturating_sub(SUBJECT_NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the numbers of the disks that `after` has and `before` does not.
pub(crate) fn added(before: &[DiskState], after: &[DiskState]) -> Vec<u32> {
    let is_new = |number: &u32| !before.iter().any(|disk| disk.number == *number);
    after.iter().map(|disk| disk.number).filter(is_new).collect()
}

/// Returns whether a restore changes the content or the list of disks. A revert may only have brought a disk back; the
/// restore then only removes that disk.
pub(crate) fn moves_disks(binned: &BinnedState) -> bool {
    !binned.disks.is_empty() || !binned.added.is_empty()
}

/// Finds a binned state by its id.
pub fn find_binned(state: &VmState, id: u64) -> Result<&BinnedState> {
    state.bin.iter().find(|binned| binned.id == id).ok_or_else(|| {
        Error::not_found(
            &state.name,
            format!("the bin has no entry {id:016x}: the entry was removed or restored"),
        )
    })
}

/// Adds a state to the bin and removes the oldest entries above the maximum.
pub(crate) fn put(state: &mut VmState, binned: BinnedState) {
    state.bin.push(binned);
    let surplus = state.bin.len().saturating_sub(BINNED_STATES_MAX);
    state.bin.drain(..surplus);
}

/// Puts the snapshots of a binned state back into the tree. A name that is in use again gets a number. A parent that
/// has left the tree is replaced by the result of `nearest` for the snapshot's layers.
pub(crate) fn put_back(
    state: &mut VmState,
    binned: &BinnedState,
    nearest: impl Fn(&VmState, &[(u32, LayerName)]) -> Option<u128>,
) {
    for snapshot in &binned.snapshots {
        let parent = match snapshot.parent {
            Some(parent) if !state.snapshots.iter().any(|s| s.id == parent) => {
                nearest(state, &snapshot.disks)
            }
            known => known,
        };
        let name = tree::free_name(state, &snapshot.name);
        state.snapshots.push(SnapshotState { parent, name, ..snapshot.clone() });
    }
}

/// Returns the snapshot that the running disks descend from once the binned state is back: the recorded one, or the
/// result of `nearest` where that has left the tree. The entry of a reset has independent disks only, which descend
/// from no snapshot: the current one stays.
pub(crate) fn current_of(
    state: &VmState,
    binned: &BinnedState,
    nearest: impl Fn(&VmState, &[(u32, LayerName)]) -> Option<u128>,
) -> Option<u128> {
    let of_reset = matches!(binned.by, BinnedBy::Reset | BinnedBy::Restore) && binned.added.is_empty();
    if of_reset && !binned.disks.iter().any(|disk| disk.mode == DiskMode::Persistent) {
        return state.current;
    }
    let then = binned.current?;
    let tops: Vec<_> = binned.disks.iter().map(|disk| (disk.number, disk.top.clone())).collect();
    let here = state.snapshots.iter().any(|s| s.id == then);
    if here { Some(then) } else { nearest(state, &tops) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_a_bound() {
        let names: Vec<String> = (0..4096).map(|n| format!("{n:080}")).collect();
        assert_eq!(subject_of(&names[..2]), names[..2].join(", "));
        let long = subject_of(&names);
        assert!(long.len() < 1000 && long.ends_with("and 4088 more"), "{long}");
    }
}
