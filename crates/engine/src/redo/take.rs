//! Take: a snapshot of all disks of a VM at one instant, without holding back a request.

use std::rc::Rc;

use blk::manifest::{
    CHAIN_LAYERS_MAX, Change, DeltaFormat, LayerName, Opening, SNAPSHOT_UID_MAX, SnapshotState, next_number,
};
use blk::{Error, Result};
use futures_util::future::join_all;

use super::disk::Disk;
use super::link::Link;
use super::space::reserve_bytes;
use super::vm::{Vm, nothing_changed};
use crate::event::{DiskTimes, Event, EventKind};
use crate::operations::Rename;
use crate::options::Defect;
use crate::tree;

/// A child that is durable and that nothing refers to yet.
struct Child {
    disk: Rc<Disk>,
    parent: Rc<Link>,
    link: Rc<Link>,
    create_us: u64,
}

impl Vm {
    /// Takes a snapshot of all persistent disks. Resolves when it is sealed: its content can no longer change.
    ///
    /// Order: the children are created and durable; the home's one commit point; the swap of all disks in memory
    /// between two polls; then, outside of any gate, the writes under way in the parents complete and the parents are
    /// flushed.
    pub async fn take(self: &Rc<Self>, name: &str, description: &str) -> Result<SnapshotState> {
        self.take_with(tree::new_snapshot(&self.env, name, description), false, DeltaFormat::Fitting).await
    }

    /// Does the same with the id, the name, the description and the time of `label`, and with new deltas in `format`.
    pub async fn take_as(
        self: &Rc<Self>,
        label: &SnapshotState,
        format: DeltaFormat,
    ) -> Result<SnapshotState> {
        self.take_with(label.clone(), false, format).await
    }

    /// Takes a snapshot under the id, the names and the time of another VM's snapshot.
    pub async fn take_copy(self: &Rc<Self>, original: &SnapshotState) -> Result<SnapshotState> {
        self.take_with(original.clone(), true, DeltaFormat::Fitting).await
    }

    async fn take_with(
        self: &Rc<Self>,
        label: SnapshotState,
        copied: bool,
        format: DeltaFormat,
    ) -> Result<SnapshotState> {
        let began_ns = self.env.now_ns();
        let turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let snapshot = self.plan_take(label, copied)?;
        let disks = self.snapshotted();
        self.manifest.admit(Opening::Change, disks.len())?;
        let reserve_before = reserve_bytes(&self.options, &disks);
        let children = self.create_children(&disks, format).await?;
        let early = self.options.defects.has(Defect::SwapBeforePublish);
        let mut stun_us = if early { self.swap(&children) } else { 0 };
        if let Err(e) = self.publish_take(&snapshot, &children).await {
            // After a failure that may have changed something the children stay: the record may be in place, and then
            // the home names them; if not, they are debris, which the next open removes.
            if nothing_changed(&e) {
                join_all(children.into_iter().map(|child| self.drop_child(child))).await;
            }
            return Err(e);
        }
        self.activity.unsealed.borrow_mut().insert(snapshot.id);
        if !early {
            stun_us = self.swap(&children);
        }
        let total_us = (self.env.now_ns() - began_ns) / 1000;
        let reserve_after = reserve_bytes(&self.options, &disks);
        if reserve_after != reserve_before {
            // A full datastore keeps the former reserve.
            let _ = self.manifest.reserve(reserve_after).await;
        }
        let sealed = join_all(children.iter().map(|c| self.seal(c))).await;
        drop(turn);
        let sealed =
            join_all(children.iter().zip(sealed).map(|(c, once)| self.seal_when_space(c, once))).await;
        let mut times = sealed.into_iter().collect::<Result<Vec<_>>>()?;
        times.iter_mut().for_each(|t| t.stun_us = stun_us);
        self.activity.unsealed.borrow_mut().remove(&snapshot.id);
        self.activity.report(Event {
            unix_us: self.env.unix_us(),
            kind: EventKind::Take,
            subject: snapshot.name.clone(),
            stun_us,
            total_us,
            disks: times,
            message: format!("sealed after {} us", (self.env.now_ns() - began_ns) / 1000),
        });
        Ok(snapshot)
    }

    /// Gives a snapshot another name or description. Its content, its deltas and its clients stay as they are.
    pub async fn rename(self: &Rc<Self>, wanted: &str, label: &Rename) -> Result<SnapshotState> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let (next, before, after) = tree::renamed(&self.state.borrow(), wanted, label)?;
        if before != after {
            self.publish(Change { next, ..Change::default() }).await?;
            let said = tree::renaming(&before, &after);
            self.activity.note(EventKind::Rename, &after.name, &said);
        }
        Ok(after)
    }

    fn plan_take(&self, label: SnapshotState, copied: bool) -> Result<SnapshotState> {
        let state = self.state.borrow();
        tree::check_name(&state, &label.name, &label.description)?;
        if !copied {
            tree::refuse_id(&state, &label.name)?;
        }
        let disks = self.snapshotted();
        if disks.is_empty() {
            return Err(Error::refused(
                &self.name,
                "none of its disks is part of snapshots (all are independent)",
            ));
        }
        if let Some(deep) = disks.iter().find(|d| d.chain().links.len() >= CHAIN_LAYERS_MAX) {
            let cause = format!(
                "its chain has {CHAIN_LAYERS_MAX} layers, the most there can be; commit a snapshot first"
            );
            return Err(Error::refused(&deep.name, cause));
        }
        let uid = next_number(&self.name, "numbers of snapshots", state.last_uid, SNAPSHOT_UID_MAX)?;
        Ok(SnapshotState {
            uid,
            parent: if copied { label.parent } else { state.current },
            disks: disks.iter().map(|d| (d.number, d.top_name())).collect(),
            ..label
        })
    }

    async fn create_children(&self, disks: &[Rc<Disk>], format: DeltaFormat) -> Result<Vec<Child>> {
        let created = join_all(disks.iter().map(|disk| self.create_child(disk, format))).await;
        if let Some(e) = created.iter().find_map(|c| c.as_ref().err().cloned()) {
            for child in created.into_iter().flatten() {
                self.drop_child(child).await;
            }
            return Err(e);
        }
        Ok(created.into_iter().flatten().collect())
    }

    async fn create_child(&self, disk: &Rc<Disk>, format: DeltaFormat) -> Result<Child> {
        let began_ns = self.env.now_ns();
        let parent = disk.chain().top().clone();
        let layer = self.create_layer(parent.layer.name(), format).await?;
        let slot = disk.slots.borrow_mut().reserve(layer.files().len(), layer.name())?;
        let link = Link::new(layer, slot, self.options.defects);
        Ok(Child { disk: disk.clone(), parent, link, create_us: (self.env.now_ns() - began_ns) / 1000 })
    }

    /// Removes a child that nothing refers to. A child that cannot be removed now is debris, which the next open
    /// removes.
    async fn drop_child(&self, child: Child) {
        let name = child.link.layer.name().to_string();
        self.forget_layer(&name);
        drop(child);
        let _ = self.manifest.discard_child(&name).await;
    }

    /// Publishes the take: the one commit point.
    async fn publish_take(&self, snapshot: &SnapshotState, children: &[Child]) -> Result<()> {
        let tops: Vec<(u32, LayerName)> =
            children.iter().map(|c| (c.disk.number, c.link.layer.name().to_string())).collect();
        let next = tree::after_take(&self.state.borrow(), snapshot.clone(), &tops);
        let change = Change { next, ..Change::default() };
        self.publish(change).await
    }

    /// Swaps all disks in one instant: it has no await. Returns the time it took, which is the whole stun, in
    /// microseconds.
    fn swap(&self, children: &[Child]) -> u64 {
        let began_ns = self.env.now_ns();
        for child in children {
            child.disk.push_top(&child.link);
        }
        (self.env.now_ns() - began_ns).div_ceil(1000)
    }

    /// Seals again until there is space: file systems that never overwrite in place may have had none for the parent's
    /// tables. The snapshot exists already, and other operations may free space meanwhile.
    async fn seal_when_space(&self, child: &Child, once: Result<DiskTimes>) -> Result<DiskTimes> {
        let mut sealed = once;
        while sealed.as_ref().is_err_and(Error::may_pass) {
            self.env.sleep_us(self.options.space_retry_us).await;
            let _turn = self.operations.lock().await;
            if self.closed.get() || !self.is_parent_still(child) {
                break;
            }
            sealed = self.seal(child).await;
        }
        sealed
    }

    /// Returns whether the disk still runs, on a delta over the parent.
    fn is_parent_still(&self, child: &Child) -> bool {
        let chain = child.disk.chain();
        let is_under_another = chain.position(&child.parent).is_some_and(|at| at + 1 < chain.links.len());
        let runs = self.disk(child.disk.number).is_ok_and(|disk| Rc::ptr_eq(&disk, &child.disk));
        runs && is_under_another && !self.options.defects.has(Defect::DoubtFullDevice)
    }

    /// Waits for the writes that were admitted under the old chain, then makes the parent durable and clean.
    async fn seal(&self, child: &Child) -> Result<DiskTimes> {
        let began_ns = self.env.now_ns();
        let drained = child.disk.write_gate.drain();
        if !self.options.defects.has(Defect::SealWithoutDrain) {
            drained.await;
        }
        let drained_ns = self.env.now_ns();
        // During a commit the frozen state is spread over two layers: all layers are flushed.
        child.disk.flush_all().await?;
        if child.parent.layer.shape().writable {
            child.parent.seal().await?;
        }
        Ok(DiskTimes {
            number: child.disk.number,
            create_us: child.create_us,
            drain_us: (drained_ns - began_ns) / 1000,
            flush_us: (self.env.now_ns() - drained_ns) / 1000,
            ..DiskTimes::default()
        })
    }
}
