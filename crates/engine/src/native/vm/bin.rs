//! The bin of a native VM: the nodes of a thrown-away state are not dropped, and an entry in the catalogue refers to
//! them.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::manifest::{BINNED_STATES_MAX, BinnedBy, BinnedState, DiskState, LayerName, SnapshotState, VmState};
use blk::{Error, Result};

use super::super::change::Op;
use super::super::store::Store;
use super::NativeVm;
use super::items::{
    self, KeptSlot, binned_key, binned_snapshot_key, node_of, put_binned_snapshot, put_snapshot, snapshot_key,
};
use super::remove_names::snapshots_per_change;
use super::revert::RevertPlan;
use crate::bin::{current_of, find_binned, moves_disks, new_entry, put_back};
use crate::event::EventKind;
use crate::operations::Loss;

impl Store {
    /// Returns the bin of a VM, oldest entry first, and adds the slots of its snapshots' disks to `slots`.
    pub(super) fn read_bin(
        &self,
        vm: u128,
        slots: &mut BTreeMap<u128, Vec<KeptSlot>>,
    ) -> Result<Vec<BinnedState>> {
        let mut bin = Vec::new();
        for (key, value) in &self.items_of(items::BIN, vm) {
            bin.push(items::read_binned(self, *key, value)?);
        }
        for (key, value) in &self.items_of(items::BINNED_SNAPSHOT, vm) {
            let (entry, snapshot, kept) = items::read_binned_snapshot(self, *key, value)?;
            let binned = bin.iter_mut().find(|binned| binned.id == entry).ok_or_else(|| {
                let place = format!("{}: snapshot {} in the bin of VM {vm:032x}", self.path(), key.minor);
                Error::damaged(place, format!("its entry is {entry:016x}, which is not there"))
            })?;
            slots.insert(snapshot.id, kept);
            // Uids count up, so parents come before their children.
            binned.snapshots.push(snapshot);
        }
        bin.sort_by_key(|binned| (binned.unix_us, binned.id));
        Ok(bin)
    }

    /// Drops the nodes of an entry and removes it from the catalogue, in as many changes as necessary: the latest
    /// snapshots first, the entry last. Durable after the next flush.
    pub(super) async fn drop_binned(&self, vm: u128, binned: &BinnedState) -> Result<()> {
        for some in binned.snapshots.rchunks(snapshots_per_change(1)) {
            let ops = some.iter().flat_map(|snapshot| {
                let key = binned_snapshot_key(vm, snapshot.uid);
                let drops = snapshot.disks.iter().map(|(_, layer)| Op::Drop { node: node_of(layer) });
                std::iter::once(Op::Delete { key }).chain(drops)
            });
            self.wait_for_room().await?;
            self.change(&ops.collect::<Vec<_>>())?;
        }
        let drops = binned.disks.iter().map(|disk| Op::Drop { node: node_of(&disk.top) });
        let key = binned_key(vm, binned.id);
        self.wait_for_room().await?;
        self.change(&std::iter::once(Op::Delete { key }).chain(drops).collect::<Vec<_>>())?;
        Ok(())
    }
}

impl NativeVm {
    /// Returns the operations that move a snapshot from the tree into an entry of the bin.
    pub(super) fn bin_snapshot(&self, entry: u64, snapshot: &SnapshotState) -> Vec<Op> {
        let (vm, slots) = (self.id(), self.slots.borrow());
        let kept = slots.get(&snapshot.id).map(Vec::as_slice).unwrap_or_default();
        let put = put_binned_snapshot(vm, entry, snapshot, kept);
        vec![Op::Delete { key: snapshot_key(vm, snapshot.uid) }, put]
    }

    /// Removes the oldest entries to make room before an entry is added.
    pub(super) async fn make_room_in_bin(&self, adds: bool) -> Result<()> {
        let surplus = {
            let state = self.state.borrow();
            let count = (state.bin.len() + 1).saturating_sub(BINNED_STATES_MAX);
            state.bin.iter().take(count).map(|binned| binned.id).collect::<Vec<_>>()
        };
        match adds {
            true => self.drop_entries(&surplus).await,
            false => Ok(()),
        }
    }

    /// Returns the slots of disks that a restore would bring back.
    pub(super) fn binned_slots(&self) -> Vec<KeptSlot> {
        let state = self.state.borrow();
        let disks = state.bin.iter().flat_map(|binned| &binned.disks);
        disks.map(|disk| KeptSlot { number: disk.number, slot: disk.slot.clone() }).collect()
    }

    /// Removes the entries that include the disk: what is taken from it cannot be restored.
    pub(super) async fn forget_binned_disk(&self, number: u32) -> Result<()> {
        let has = |binned: &&BinnedState| binned.disks.iter().any(|disk| disk.number == number);
        let ids: Vec<u64> = self.state.borrow().bin.iter().filter(has).map(|binned| binned.id).collect();
        self.drop_entries(&ids).await
    }

    async fn drop_entries(&self, ids: &[u64]) -> Result<()> {
        for id in ids {
            let found = self.state.borrow().bin.iter().find(|binned| binned.id == *id).cloned();
            let Some(binned) = found else { continue };
            self.store.drop_binned(self.id(), &binned).await?;
            self.state.borrow_mut().bin.retain(|other| other.id != *id);
            let mut slots = self.slots.borrow_mut();
            binned.snapshots.iter().for_each(|snapshot| drop(slots.remove(&snapshot.id)));
        }
        Ok(())
    }

    /// Removes binned states permanently. Returns the bytes that only they held.
    pub async fn empty_bin(&self, ids: &[u64]) -> Result<u64> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        // An entry may have no node: its revert may only have brought a disk back.
        if !self.state.borrow().bin.iter().any(|binned| ids.contains(&binned.id)) {
            return Ok(0);
        }
        let bytes = self.store.exclusive_bytes(&self.binned_nodes(ids)).await?;
        self.drop_entries(ids).await?;
        self.store.flush().await?;
        self.activity.note(EventKind::BinEmptied, "", &format!("{bytes} bytes are freed"));
        Ok(bytes)
    }

    /// Returns the bytes that only the binned state holds.
    pub async fn binned_bytes(&self, id: u64) -> Result<u64> {
        self.store.exclusive_bytes(&self.binned_nodes(&[id])).await
    }

    /// Returns the nodes of these entries.
    pub(super) fn binned_nodes(&self, ids: &[u64]) -> Vec<u64> {
        let state = self.state.borrow();
        let entries = state.bin.iter().filter(|binned| ids.contains(&binned.id));
        let nodes = entries.flat_map(|binned| {
            let frozen = binned.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
            binned.disks.iter().map(|disk| &disk.top).chain(frozen)
        });
        nodes.map(|layer| node_of(layer)).collect()
    }

    /// See [`crate::Machine::restore_preview`].
    pub async fn restore_preview(&self, id: u64) -> Result<Loss> {
        let plan = self.plan_restore(id, false)?;
        let leaving: Vec<u64> = plan.leaving.iter().map(|disk| node_of(&disk.top)).collect();
        Ok(Loss { bytes: self.store.written_in(&leaving).await?, ..plan.loss })
    }

    /// Restores a binned state. Its snapshots return to the tree, and its disks run again with the content it kept.
    /// With `keep` the present content of these disks goes to the bin. A crash in between leaves some of the snapshots
    /// in the bin.
    pub async fn restore(self: &Rc<Self>, id: u64, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let reverts = self.plan_restore(id, keep)?.loss.reverts;
        if reverts {
            self.activity.refuse_clients(None)?;
        }
        self.make_room_in_bin(keep && reverts).await?;
        self.put_snapshots_back(id).await?;
        let plan = self.plan_restore(id, keep)?;
        let loss = self.carry_out(plan).await?;
        self.state.borrow_mut().bin.retain(|binned| binned.id != id);
        Ok(loss)
    }

    /// Puts the snapshots back one by one: their number is not bounded, but the size of a change is.
    async fn put_snapshots_back(&self, id: u64) -> Result<()> {
        let binned = find_binned(&self.state.borrow(), id)?.clone();
        for snapshot in &binned.snapshots {
            let one = BinnedState { snapshots: vec![snapshot.clone()], ..binned.clone() };
            let back = {
                let mut state = VmState { bin: Vec::new(), ..self.state.borrow().clone() };
                put_back(&mut state, &one, |state, disks| self.nearest_snapshot(state, disks));
                state.snapshots.pop().expect("put back just now")
            };
            let (vm, key) = (self.id(), binned_snapshot_key(self.id(), snapshot.uid));
            let put = {
                let slots = self.slots.borrow();
                put_snapshot(vm, &back, slots.get(&back.id).map(Vec::as_slice).unwrap_or_default())
            };
            self.store.wait_for_room().await?;
            self.store.change(&[Op::Delete { key }, put])?;
            let mut state = self.state.borrow_mut();
            state.snapshots.push(back);
            let entry = state.bin.iter_mut().find(|binned| binned.id == id).expect("found above");
            entry.snapshots.retain(|other| other.id != snapshot.id);
        }
        Ok(())
    }

    fn plan_restore(&self, id: u64, keep: bool) -> Result<RevertPlan> {
        let binned = find_binned(&self.state.borrow(), id)?.clone();
        let reverts = moves_disks(&binned);
        let mut head = self.head();
        let mut leaving: Vec<DiskState> =
            head.disks.extract_if(.., |disk| binned.added.contains(&disk.number)).collect();
        for disk in &binned.disks {
            if let Some(other) = head.disks.iter().find(|d| d.slot == disk.slot && d.number != disk.number) {
                let cause = format!("disk{} would be restored at {}", disk.number, disk.slot);
                let now = format!("where disk{} is now; remove that disk first", other.number);
                return Err(Error::refused(&self.name, format!("{cause}, {now}")));
            }
            match head.disks.iter_mut().find(|now| now.number == disk.number) {
                Some(now) => leaving.push(std::mem::replace(now, disk.clone())),
                None => head.disks.push(disk.clone()),
            }
        }
        if reverts {
            let state = self.state.borrow();
            head.current = current_of(&state, &binned, |state, disks| self.nearest_snapshot(state, disks));
        }
        let kept = (keep && reverts).then(|| new_entry(&self.env, BinnedBy::Restore, binned.subject.clone()));
        let loss = Loss { target: reverts.then_some(binned.subject), reverts, ..Loss::default() };
        let ops = vec![Op::Delete { key: binned_key(self.id(), id) }];
        let plan = RevertPlan { kind: EventKind::Restore, head, ops, leaving, binned: None, loss };
        Ok(plan.with_binned(self, kept))
    }

    /// Returns the snapshot that froze the nearest ancestor of one of the nodes.
    fn nearest_snapshot(&self, state: &VmState, disks: &[(u32, LayerName)]) -> Option<u128> {
        let frozen = |node: u64| {
            let names = |s: &&SnapshotState| s.disks.iter().any(|(_, layer)| node_of(layer) == node);
            state.snapshots.iter().rev().find(names).map(|s| s.id)
        };
        disks.iter().find_map(|(_, layer)| {
            let parent =
                |id: u64| self.store.node(id).ok().map(|node| node.parent.get()).filter(|id| *id != 0);
            let mut at = parent(node_of(layer));
            while let Some(node) = at {
                if let Some(found) = frozen(node) {
                    return Some(found);
                }
                at = parent(node);
            }
            None
        })
    }
}
