//! Changes of a VM's list of disks: adding, removing, growing, changing the mode.

use std::rc::Rc;

use blk::layer::Layer;
use blk::manifest::{Change, DeltaFormat, DiskMode, DiskState, NewDisk, Opening, VmState};
use blk::{Error, Result};

use super::disk::Disk;
use super::link::Link;
use super::space::SpaceHold;
use super::vm::{Vm, nothing_changed};
use crate::event::EventKind;

impl Vm {
    /// Adds an empty disk. Clients of the other disks are not disturbed; existing snapshots do not include it.
    pub async fn add_disk(self: &Rc<Self>, wanted: &NewDisk) -> Result<DiskState> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let state = self.state();
        let mut made = self.manifest.create_disk(&state, wanted).await?;
        let base = made.top.clone();
        let added = async {
            if wanted.mode == DiskMode::IndependentNonpersistent {
                self.put_on_redo(&mut made).await?;
            }
            // A layer that cannot be opened does not become a disk.
            let disk = self.build_disk(made.number, &made.top, Opening::Serve).await?;
            let mut next = state;
            next.disks.push(made.clone());
            self.publish(Change { next, ..Change::default() }).await.map(|()| disk)
        };
        let disk = match added.await {
            Ok(disk) => disk,
            Err(e) => {
                for name in [&made.top, &base].into_iter().filter(|_| nothing_changed(&e)) {
                    self.forget_layer(name);
                    // A layer that cannot be removed now is debris, which the next open removes.
                    let _ = self.manifest.discard_child(name).await;
                }
                return Err(e);
            }
        };
        self.disks.borrow_mut().push(disk);
        self.activity.note(EventKind::Disks, &format!("disk{}", made.number), "added");
        Ok(made)
    }

    /// Removes a disk from the VM. Its files stay unless `remove_files`; then those that no snapshot needs are removed.
    /// Snapshots that include the disk keep it.
    pub async fn remove_disk(self: &Rc<Self>, number: u32, remove_files: bool) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.activity.refuse_clients(Some(number))?;
        self.refuse_open_jobs()?;
        let disk = self.disk(number)?;
        let before = self.state();
        let mut next = before.clone();
        next.disks.retain(|d| d.number != number);
        next.folds.retain(|f| f.disk != number);
        let mut remove = Vec::new();
        if remove_files {
            next.bin.retain(|binned| !binned.disks.iter().any(|disk| disk.number == number));
            remove = self.graph().await?.left_over(&before, &next);
            self.refuse_losing_clones(&next, remove.iter()).await?;
        }
        self.change_closed(&disk, Change { next, remove: remove.clone(), ..Change::default() }).await?;
        self.disks.borrow_mut().retain(|d| d.number != number);
        remove.iter().for_each(|layer| self.forget_layer(layer));
        let message = format!("removed, with {} layers", remove.len());
        self.activity.note(EventKind::Disks, &format!("disk{number}"), &message);
        Ok(())
    }

    /// Makes a base without deltas larger while it is in use: writes are held back for the few file operations it
    /// takes. An attached client sees the new size after it has reconnected.
    pub async fn grow_disk(self: &Rc<Self>, number: u32, size_bytes: u64) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let disk = self.disk(number)?;
        self.check_growth(&disk, size_bytes)?;
        let began_ns = self.env.now_ns();
        let hold = SpaceHold::over(std::slice::from_ref(&disk)).await;
        disk.flush_all().await?;
        let base = disk.chain().top().clone();
        let name = base.layer.name().to_string();
        self.manifest.grow(&name, size_bytes).await?;
        let layer = self.manifest.open(&name, true).await?;
        self.opened(&layer);
        disk.grown(&Link::new(layer, base.slot, self.options.defects));
        drop(hold);
        if let Some(state) = self.state.borrow_mut().disks.iter_mut().find(|d| d.number == number) {
            state.size_bytes = size_bytes;
        }
        let event = self.activity.event(EventKind::Disks, &format!("disk{number}"), "grown");
        self.activity
            .report(crate::event::Event { stun_us: (self.env.now_ns() - began_ns).div_ceil(1000), ..event });
        Ok(())
    }

    fn check_growth(&self, disk: &Disk, size_bytes: u64) -> Result<()> {
        let (now, deltas) = (disk.size_bytes(), disk.chain().links.len() - 1);
        if size_bytes <= now {
            let cause = format!("cannot resize the disk from {now} to {size_bytes} bytes");
            return Err(Error::invalid(&disk.name, format!("{cause}: a disk can only grow")));
        }
        if deltas > 0 {
            let cause = format!("it has {deltas} deltas, and every link of a chain has the same size");
            let remedy = "commit or discard its snapshots (snapshot commit --all), grow the disk, then take new \
                          snapshots";
            return Err(Error::refused(&disk.name, format!("{cause} (VMware's error 67); {remedy}")));
        }
        if disk.chain().top().layer.shape().flat {
            return Ok(());
        }
        Err(Error::refused(&disk.name, "only a flat base disk can grow"))
    }

    /// Changes whether snapshots include a disk, or whether a reset drops its writes.
    pub async fn set_mode(self: &Rc<Self>, number: u32, mode: DiskMode) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.activity.refuse_clients(Some(number))?;
        self.refuse_open_jobs()?;
        let before = self.state();
        let at = before.disks.iter().position(|d| d.number == number);
        let old = before.disks[at.ok_or_else(|| self.no_disk(number))?].clone();
        if old.mode == mode {
            return Ok(());
        }
        self.refuse_snapshotted(&before, &old)?;
        let disk = self.disk(number)?;
        let mut new = DiskState { mode, ..old.clone() };
        let mut remove = Vec::new();
        if let Some(base) = new.reset_to.take() {
            self.refuse_unreset(number)?;
            // The base is written again from here on.
            self.refuse_read_elsewhere(std::slice::from_ref(&base)).await?;
            remove.push(std::mem::replace(&mut new.top, base));
        }
        if mode == DiskMode::IndependentNonpersistent {
            self.put_on_redo(&mut new).await?;
        }
        // Layers are opened before the commit point; nothing has to be opened after it.
        let layers = match new.top == old.top {
            true => Vec::new(),
            false => self.open_chain(&new.top, Opening::Change).await?,
        };
        let mut next = before;
        next.disks.iter_mut().filter(|d| d.number == number).for_each(|d| *d = new.clone());
        let change = Change { next, remove: remove.clone(), ..Change::default() };
        if let Err(e) = self.change_closed(&disk, change).await {
            if nothing_changed(&e) && new.reset_to.is_some() {
                drop(layers);
                self.forget_layer(&new.top);
                // A layer that cannot be removed now is debris, which the next open removes.
                let _ = self.manifest.discard_child(&new.top).await;
            }
            return Err(e);
        }
        remove.iter().for_each(|layer| self.forget_layer(layer));
        match new.top == old.top {
            true => disk.closing.set(false),
            false => self.replace_disk(number, layers).inspect_err(|e| self.note_failed_change(e))?,
        }
        self.activity.note(EventKind::Disks, &format!("disk{number}"), "another mode");
        Ok(())
    }

    /// Publishes a change that ends the disk in its present form, after its writes are durable. If nothing was changed,
    /// the disk goes on.
    async fn change_closed(&self, disk: &Rc<Disk>, change: Change) -> Result<()> {
        disk.closing.set(true);
        let mut result = disk.close().await;
        let closed = result.is_ok();
        if closed {
            result = self.publish(change).await;
        }
        if let Err(e) = &result
            && (!closed || nothing_changed(e))
        {
            disk.closing.set(false);
        }
        result
    }

    fn no_disk(&self, number: u32) -> Error {
        self.disk(number).err().unwrap_or_else(|| Error::not_found(&self.name, format!("no disk{number}")))
    }

    /// Refuses a disk that a snapshot includes: if takes skipped it from now on, a revert to the snapshot would be
    /// impossible.
    fn refuse_snapshotted(&self, state: &VmState, disk: &DiskState) -> Result<()> {
        let has = |s: &&blk::manifest::SnapshotState| s.disks.iter().any(|(n, _)| *n == disk.number);
        match state.snapshots.iter().find(has) {
            Some(s) => {
                let cause = format!("snapshot {} has disk{}", s.name, disk.number);
                Err(Error::refused(&self.name, format!("{cause}; commit or discard its snapshots first")))
            }
            None => Ok(()),
        }
    }

    fn refuse_unreset(&self, number: u32) -> Result<()> {
        let held = self.disk(number)?.chain().top().layer.usage().held_bytes;
        if held > 0 {
            let cause = format!("disk{number} has {held} bytes that a reset would drop");
            return Err(Error::refused(&self.name, format!("{cause}; reset the VM first (vm reset)")));
        }
        Ok(())
    }

    /// Replaces a disk by one over other layers. It has no await.
    fn replace_disk(self: &Rc<Self>, number: u32, layers: Vec<Rc<dyn Layer>>) -> Result<()> {
        let old = self.disk(number)?;
        old.closing.set(true);
        let new = self.disk_over(number, layers)?;
        self.disks.borrow_mut().iter_mut().filter(|d| d.number == number).for_each(|d| *d = new.clone());
        Ok(())
    }

    /// Gives a nonpersistent disk the child that takes its writes. Nothing refers to the child before the next publish.
    async fn put_on_redo(&self, disk: &mut DiskState) -> Result<()> {
        let child = self.create_layer(&disk.top, DeltaFormat::Fitting).await?;
        disk.reset_to = Some(std::mem::replace(&mut disk.top, child.name().to_string()));
        Ok(())
    }

    /// Adds the child to nonpersistent disks that another product left without one.
    pub(crate) async fn add_missing_redo(self: &Rc<Self>) -> Result<()> {
        let mut next = self.state();
        let bare = |d: &&mut DiskState| d.mode == DiskMode::IndependentNonpersistent && d.reset_to.is_none();
        let mut changed = Vec::new();
        for disk in next.disks.iter_mut().filter(bare) {
            self.put_on_redo(disk).await?;
            changed.push(disk.clone());
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.publish(Change { next, ..Change::default() }).await?;
        for disk in &changed {
            let layers = self.open_chain(&disk.top, Opening::Serve).await?;
            self.replace_disk(disk.number, layers)?;
        }
        Ok(())
    }
}
