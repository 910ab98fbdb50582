//! Removal of names from the tree, in as many changes as necessary: a record has a maximum size, and guests have their
//! turn between two.

use std::collections::{BTreeMap, BTreeSet};

use blk::Result;
use blk::manifest::{SnapshotState, VmState};

use super::super::change::{Key, Op};
use super::NativeVm;
use super::items::{node_of, snapshot_key};

/// Size at which a change is ended, of 128 KiB at most: some 300 snapshots of one disk, which take a fraction of a
/// millisecond. The last item may add 4 KiB of description and a few hundred bytes.
const CHANGE_BYTES: usize = 16 << 10;

/// Returns how many dropped snapshots keep a change below that size: each has a key, and a node for each disk.
pub(super) fn snapshots_per_change(disks: usize) -> usize {
    (CHANGE_BYTES / (32 + 16 * disks)).max(1)
}

pub(super) fn drop_snapshot(vm: u128, snapshot: &SnapshotState) -> Vec<Op> {
    let key: Key = snapshot_key(vm, snapshot.uid);
    let drops = snapshot.disks.iter().map(|(_, layer)| Op::Drop { node: node_of(layer) });
    std::iter::once(Op::Delete { key }).chain(drops).collect()
}

/// The content of one change.
#[derive(Default)]
struct RemovalChange {
    ops: Vec<Op>,
    bytes: usize,
    moved: BTreeMap<u128, Option<u128>>,
    gone: BTreeSet<u128>,
}

impl RemovalChange {
    fn add(&mut self, ops: Vec<Op>) {
        let bytes = |op: &Op| 32 + if let Op::Put { value, .. } = op { value.len() } else { 0 };
        self.bytes += ops.iter().map(bytes).sum::<usize>();
        self.ops.extend(ops);
    }
}

impl NativeVm {
    /// Makes `head` the VM, gives the snapshots in `moved` other parents, and removes those in `gone` from the tree in
    /// their order: into the entry `kept` of the bin, or permanently. None of them can be used from the first change on.
    /// After a crash some of them may still be in the tree. Durable after the store's next flush. `NoSpace` at the
    /// first change: nothing has changed.
    pub(super) async fn remove_names(
        &self,
        head: VmState,
        gone: &[SnapshotState],
        moved: &BTreeMap<u128, Option<u128>>,
        kept: Option<u64>,
    ) -> Result<()> {
        self.leaving.borrow_mut().extend(gone.iter().map(|s| s.id));
        let done = self.remove_names_in_parts(&head, gone, moved, kept).await;
        self.leaving.borrow_mut().clear();
        done
    }

    async fn remove_names_in_parts(
        &self,
        head: &VmState,
        gone: &[SnapshotState],
        moved: &BTreeMap<u128, Option<u128>>,
        kept: Option<u64>,
    ) -> Result<()> {
        let mut change = RemovalChange::default();
        // Children get their new parents before the old ones leave.
        for (id, parent) in moved {
            self.end_when_full(head, &mut change, kept).await?;
            change.add(self.put_under(*id, *parent));
            change.moved.insert(*id, *parent);
        }
        for snapshot in gone {
            self.end_when_full(head, &mut change, kept).await?;
            change.add(match kept {
                Some(entry) => self.bin_snapshot(entry, snapshot),
                None => drop_snapshot(self.id(), snapshot),
            });
            change.gone.insert(snapshot.id);
        }
        self.end(head, change, kept)
    }

    async fn end_when_full(
        &self,
        head: &VmState,
        change: &mut RemovalChange,
        kept: Option<u64>,
    ) -> Result<()> {
        if change.bytes < CHANGE_BYTES {
            return Ok(());
        }
        self.end(head, std::mem::take(change), kept)?;
        // The removal has begun: later changes wait for room in the journal.
        self.env.sleep_us(1).await;
        self.store.wait_for_room().await
    }

    fn end(&self, head: &VmState, change: RemovalChange, kept: Option<u64>) -> Result<()> {
        self.change(head.clone(), change.ops)?;
        let (mut state, mut slots) = (self.state.borrow_mut(), self.slots.borrow_mut());
        let state = &mut *state;
        let left = state.snapshots.extract_if(.., |s| change.gone.contains(&s.id));
        let left: Vec<SnapshotState> = left.collect();
        if let Some(binned) = state.bin.iter_mut().find(|binned| Some(binned.id) == kept) {
            // The latest snapshots left first.
            binned.snapshots.splice(..0, left);
        }
        for snapshot in &mut state.snapshots {
            snapshot.parent = change.moved.get(&snapshot.id).copied().unwrap_or(snapshot.parent);
        }
        if kept.is_none() {
            change.gone.iter().for_each(|id| drop(slots.remove(id)));
        }
        Ok(())
    }

    fn put_under(&self, id: u128, parent: Option<u128>) -> Vec<Op> {
        let state = self.state.borrow();
        let moved = state.snapshots.iter().filter(|s| s.id == id);
        moved.map(|s| self.put_again(&SnapshotState { parent, ..s.clone() })).collect()
    }
}
