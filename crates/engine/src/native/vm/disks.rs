//! Changes of a VM's list of disks: adding, removing, growing, changing the mode.

use std::rc::Rc;

use blk::manifest::{DiskMode, DiskState, NewDisk};
use blk::{Error, Result};

use super::super::change::Op;
use super::super::layout::BLOCK;
use super::NativeVm;
use super::items::{KeptSlot, layer_name, node_of};
use super::registry::{EXPECTED_SIZE, freeze, is_size, plan_disk};
use crate::event::EventKind;

impl NativeVm {
    /// Adds a disk, empty or over a source. Clients of the other disks are not disturbed; existing snapshots do not include it.
    pub async fn add_disk(self: &Rc<Self>, wanted: &NewDisk) -> Result<DiskState> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let (mut head, mut ops) = (self.head(), Vec::new());
        let disk = {
            let (slots, binned) = (self.slots.borrow(), self.binned_slots());
            let kept: Vec<&KeptSlot> = slots.values().flatten().chain(&binned).collect();
            plan_disk(&self.store, &head, &kept, wanted, &mut ops)?
        };
        head.disks.push(disk.clone());
        let disks = head.disks.clone();
        self.change(head, ops)?;
        self.put_disks(&disks)?;
        self.store.flush().await?;
        self.activity.note(EventKind::Disks, &format!("disk{}", disk.number), "added");
        Ok(disk)
    }

    /// Removes a disk from the VM and gives its space back. Snapshots that include the disk keep it.
    pub async fn remove_disk(self: &Rc<Self>, number: u32, remove_files: bool) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.activity.refuse_clients(Some(number))?;
        let disk = self.disk(number)?;
        if !remove_files {
            let cause = format!("disk{number} is native and has no files to keep");
            let remedy =
                "add --delete-files to delete its data; snapshots that contain the disk keep the data";
            return Err(Error::refused(&self.name, format!("{cause}; {remedy}")));
        }
        self.forget_binned_disk(number).await?;
        let mut head = self.head();
        let at = head.disks.iter().position(|d| d.number == number).expect("it is among the disks");
        let gone = head.disks.remove(at);
        self.stop_writes(std::slice::from_ref(&disk), true).await;
        let nodes = std::iter::once(&gone.top).chain(&gone.reset_to);
        let ops = nodes.map(|layer| Op::Drop { node: node_of(layer) }).collect();
        let disks = head.disks.clone();
        if let Err(e) = self.change(head, ops) {
            disk.closing.set(false);
            return Err(e);
        }
        self.put_disks(&disks)?;
        self.store.flush().await?;
        self.activity.note(EventKind::Disks, &format!("disk{number}"), "removed");
        Ok(())
    }

    /// Makes a disk larger. An attached client sees the new size after it has reconnected.
    pub async fn grow_disk(&self, number: u32, size_bytes: u64) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let disk = self.disk(number)?;
        let now = disk.size_bytes();
        if size_bytes <= now || !is_size(size_bytes) {
            let cause = format!("cannot resize the disk from {now} to {size_bytes} bytes");
            let expected = format!("{EXPECTED_SIZE}, and more than now: a disk can only grow");
            return Err(Error::invalid(&disk.name, format!("{cause}; {expected}")));
        }
        self.store.change(&[Op::Resize { node: disk.node.id, size_blocks: size_bytes / BLOCK }])?;
        if let Some(state) = self.state.borrow_mut().disks.iter_mut().find(|d| d.number == number) {
            state.size_bytes = size_bytes;
        }
        self.store.flush().await?;
        self.activity.note(EventKind::Disks, &format!("disk{number}"), "grown");
        Ok(())
    }

    /// Changes whether snapshots include a disk, or whether a reset drops its writes. The disk's content is unchanged.
    pub async fn set_mode(&self, number: u32, mode: DiskMode) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.activity.refuse_clients(Some(number))?;
        self.disk(number)?;
        self.refuse_snapshotted(number)?;
        self.forget_binned_disk(number).await?;
        let (mut head, mut ops) = (self.head(), Vec::new());
        let disk = head.disks.iter_mut().find(|d| d.number == number).expect("it is among the disks");
        if disk.mode == mode {
            return Ok(());
        }
        disk.mode = mode;
        if let Some(reset) = disk.reset_to.take() {
            ops.push(Op::Drop { node: node_of(&reset) });
        }
        if mode == DiskMode::IndependentNonpersistent {
            disk.reset_to = Some(layer_name(freeze(&self.store, node_of(&disk.top), &mut ops)));
        }
        self.change(head, ops)?;
        self.store.flush().await?;
        self.activity.note(EventKind::Disks, &format!("disk{number}"), "another mode");
        Ok(())
    }

    /// Refuses a disk that a snapshot includes: if takes skipped it from now on, a revert to the snapshot would be
    /// impossible.
    fn refuse_snapshotted(&self, number: u32) -> Result<()> {
        let state = self.state.borrow();
        match state.snapshots.iter().find(|s| s.disks.iter().any(|(n, _)| *n == number)) {
            Some(s) => {
                let cause = format!("snapshot {} has disk{number}", s.name);
                Err(Error::refused(&self.name, format!("{cause}; commit or discard its snapshots first")))
            }
            None => Ok(()),
        }
    }
}
