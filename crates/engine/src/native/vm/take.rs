//! Take: one record for all disks, between two polls; then the writes under way end, and a flush seals the snapshot.

use blk::manifest::{DeltaFormat, DiskMode, DiskState, SNAPSHOT_UID_MAX, SnapshotState, next_number};
use blk::{Error, Result};

use super::NativeVm;
use super::items::{KeptSlot, layer_name, node_of, put_snapshot};
use super::registry::freeze;
use crate::event::{DiskTimes, Event, EventKind};
use crate::operations::Rename;
use crate::options::Defect;
use crate::tree;

impl NativeVm {
    /// Takes a snapshot of all persistent disks. Resolves when it is sealed: its content can no longer change.
    pub async fn take(&self, name: &str, description: &str) -> Result<SnapshotState> {
        self.take_with(tree::new_snapshot(&self.env, name, description), false).await
    }

    /// Does the same with the id, the name, the description and the time of `label`. There are no deltas to choose a
    /// `format` for.
    pub async fn take_as(&self, label: &SnapshotState, format: DeltaFormat) -> Result<SnapshotState> {
        if format != DeltaFormat::Fitting {
            let cause =
                "a format of deltas was asked for, but a native VM has none; take the snapshot without it";
            return Err(Error::unsupported(&self.name, cause));
        }
        self.take_with(label.clone(), false).await
    }

    /// Takes a snapshot under the id, the names and the time of another VM's snapshot.
    pub async fn take_copy(&self, original: &SnapshotState) -> Result<SnapshotState> {
        self.take_with(original.clone(), true).await
    }

    async fn take_with(&self, label: SnapshotState, copied: bool) -> Result<SnapshotState> {
        let name = label.name.clone();
        let began_ns = self.env.now_ns();
        if !copied {
            tree::refuse_id(&self.state.borrow(), &name)?;
        }
        let turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let persistent = self.persistent();
        self.check_take(&name, &label.description, &persistent)?;
        let swap_ns = self.env.now_ns();
        let snapshot = self.seal_nodes(label, copied, &persistent)?;
        let stun_us = (self.env.now_ns() - swap_ns).div_ceil(1000);
        self.activity.unsealed.borrow_mut().insert(snapshot.id);
        let drained = self.store.drain_writes();
        if !self.store.options.defects.has(Defect::SealWithoutDrain) {
            drained.await;
        }
        let drained_ns = self.env.now_ns();
        self.store.flush().await?;
        drop(turn);
        self.activity.unsealed.borrow_mut().remove(&snapshot.id);
        let total_us = (self.env.now_ns() - began_ns) / 1000;
        let times = |disk: &DiskState| DiskTimes {
            number: disk.number,
            drain_us: (drained_ns - swap_ns) / 1000,
            flush_us: (self.env.now_ns() - drained_ns) / 1000,
            stun_us,
            ..DiskTimes::default()
        };
        let event = self.activity.event(EventKind::Take, &name, &format!("sealed after {total_us} us"));
        self.activity.report(Event {
            stun_us,
            total_us,
            disks: persistent.iter().map(times).collect(),
            ..event
        });
        Ok(snapshot)
    }

    /// Gives a snapshot another name or description.
    pub async fn rename(&self, wanted: &str, label: &Rename) -> Result<SnapshotState> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let (next, before, after) = tree::renamed(&self.state.borrow(), wanted, label)?;
        if before == after {
            return Ok(after);
        }
        let slots = self.slots.borrow().get(&after.id).cloned().unwrap_or_default();
        self.change(self.head(), vec![put_snapshot(next.id, &after, &slots)])?;
        self.state.borrow_mut().snapshots = next.snapshots;
        self.store.flush().await?;
        self.activity.note(EventKind::Rename, &after.name, &tree::renaming(&before, &after));
        Ok(after)
    }

    fn persistent(&self) -> Vec<DiskState> {
        let state = self.state.borrow();
        state.disks.iter().filter(|d| d.mode == DiskMode::Persistent).cloned().collect()
    }

    fn check_take(&self, name: &str, description: &str, disks: &[DiskState]) -> Result<()> {
        let state = self.state.borrow();
        tree::check_name(&state, name, description)?;
        if disks.is_empty() {
            let cause = "none of its disks is part of snapshots (all are independent)";
            return Err(Error::refused(&self.name, cause));
        }
        next_number(&self.name, "numbers of snapshots", state.last_uid, SNAPSHOT_UID_MAX).map(drop)
    }

    /// Swaps all disks: it has no await.
    fn seal_nodes(&self, label: SnapshotState, copied: bool, disks: &[DiskState]) -> Result<SnapshotState> {
        let mut head = self.head();
        let mut ops = Vec::new();
        let sealed = |disk: &DiskState, ops: &mut _| {
            (disk.number, layer_name(freeze(&self.store, node_of(&disk.top), ops)))
        };
        let snapshot = SnapshotState {
            uid: head.last_uid + 1,
            parent: if copied { label.parent } else { head.current },
            disks: disks.iter().map(|disk| sealed(disk, &mut ops)).collect(),
            ..label
        };
        let slot = |disk: &DiskState| KeptSlot { number: disk.number, slot: disk.slot.clone() };
        let slots: Vec<KeptSlot> = disks.iter().map(slot).collect();
        ops.push(put_snapshot(head.id, &snapshot, &slots));
        (head.last_uid, head.current) = (snapshot.uid, Some(snapshot.id));
        self.change(head, ops)?;
        self.state.borrow_mut().snapshots.push(snapshot.clone());
        self.slots.borrow_mut().insert(snapshot.id, slots);
        Ok(snapshot)
    }
}
