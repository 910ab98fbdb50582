//! Revert, discard, and the reset of nonpersistent disks.
//!
//! All three give running disks another base layer. The order: the new tops are created and durable; then the home's
//! one commit point, which also removes the layers that nothing needs and raises the content generation; then the disks
//! in memory are replaced between two polls. No writable client may be attached: a disk that changes under its guest
//! corrupts the guest's file systems.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::manifest::{Change, DeltaFormat, LayerName, Opening, SnapshotState, VmState};
use blk::{Error, Result};
use futures_util::future::join_all;

use super::disk::Disk;
use super::revert_plan::{NewTop, RevertPlan, has_disk};
use super::vm::{Vm, nothing_changed};
use crate::event::{DiskTimes, Event, EventKind};
use crate::join::all;
use crate::operations::Loss;
use crate::options::Defect;
use crate::tree;

/// A disk that is ready to replace another one.
struct ReplacementDisk {
    number: u32,
    disk: Rc<Disk>,
    /// The child made for this disk; it is removed if the change fails.
    child: Option<LayerName>,
}

fn unkept(e: Error) -> Error {
    let cause = format!("the bin cannot keep the state that is thrown away: {}", e.cause);
    Error { cause: format!("{cause}; --purge removes it permanently"), ..e }
}

/// Returns the snapshots of the tree, then those of the bin.
fn all_snapshots(state: &VmState) -> impl Iterator<Item = &SnapshotState> {
    state.snapshots.iter().chain(state.bin.iter().flat_map(|binned| &binned.snapshots))
}

impl Vm {
    /// Returns what a revert to `wanted` (None: the current snapshot) would throw away. With `keeps_present` a take
    /// comes first.
    pub async fn revert_preview(&self, wanted: Option<&str>, keeps_present: bool) -> Result<Loss> {
        let planned = async || self.plan_revert(self.revert_target(wanted)?, false).await;
        let plan = self.read_steady(planned).await?;
        Ok(if keeps_present { Loss { layers: Vec::new(), bytes: 0, ..plan.loss } } else { plan.loss })
    }

    /// Goes back to a snapshot and keeps it. With `take_first` the present state first becomes a snapshot of that name.
    /// Otherwise, with `keep`, the present state goes to the bin.
    pub async fn revert(
        self: &Rc<Self>,
        wanted: Option<&str>,
        take_first: Option<&str>,
        keep: bool,
    ) -> Result<SnapshotState> {
        // The target is chosen before the take, so that "the latest" is not the snapshot that is taken now.
        let target = self.revert_target(wanted)?;
        if let Some(name) = take_first {
            self.activity.refuse_clients(None)?;
            self.refuse_open_jobs()?;
            self.take(name, "").await?;
        }
        let _turn = self.operations.lock().await;
        // The end of a fold may have renamed the target's layers since.
        let target = self.refuse_unsealed_target(&target)?;
        let plan = self.plan_revert(target.clone(), keep && take_first.is_none()).await?;
        self.carry_out(plan).await?;
        Ok(target)
    }

    /// See [`crate::Machine::discard_preview`].
    pub async fn discard_preview(&self, wanted: &str) -> Result<Loss> {
        Ok(self.read_steady(async || self.plan_discard(wanted, false).await).await?.loss)
    }

    /// Throws away what was written since the snapshot, every later snapshot of that branch included, and the
    /// snapshot's name. If the VM runs on that branch, it goes on from the snapshot's state; otherwise the whole branch
    /// is removed. With `keep` all of it goes to the bin.
    pub async fn discard(self: &Rc<Self>, wanted: &str, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.refuse_open_jobs()?;
        let plan = self.plan_discard(wanted, keep).await?;
        if plan.loss.reverts {
            self.activity.refuse_clients(None)?;
        }
        self.activity.refuse_viewed(&self.state.borrow(), |id| plan.gone.contains(id))?;
        self.carry_out(plan).await
    }

    /// See [`crate::Machine::reset_preview`].
    pub async fn reset_preview(&self) -> Result<Loss> {
        Ok(self.read_steady(async || self.plan_reset(false).await).await?.loss)
    }

    /// Drops what was written to the nonpersistent disks since the last reset; with `keep` it goes to the bin.
    pub async fn reset(self: &Rc<Self>, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let plan = self.plan_reset(keep).await?;
        // One generation covers all disks.
        self.activity.refuse_clients(None)?;
        for (number, _) in &plan.tops {
            self.refuse_folding(*number)?;
        }
        self.carry_out(plan).await
    }

    /// Returns the target's present record, and refuses a target that is not sealed or no longer exists.
    fn refuse_unsealed_target(&self, target: &SnapshotState) -> Result<SnapshotState> {
        self.refuse_when_closed()?;
        self.activity.refuse_clients(None)?;
        self.refuse_open_jobs()?;
        let state = self.state.borrow();
        let now = state.snapshots.iter().find(|s| s.id == target.id && self.activity.is_sealed(s.id));
        let gone = || Error::refused(&self.name, format!("{} is not sealed, or gone", target.name));
        now.cloned().ok_or_else(gone)
    }

    fn revert_target(&self, wanted: Option<&str>) -> Result<SnapshotState> {
        tree::revert_target(&self.state.borrow(), wanted).cloned()
    }

    pub(crate) async fn carry_out(self: &Rc<Self>, mut plan: RevertPlan) -> Result<Loss> {
        let began_ns = self.env.now_ns();
        let apart = self.options.defects.has(Defect::RaiseApart);
        if plan.loss.reverts && !apart {
            plan.next.generation = plan.next.generation.raised(&self.name)?;
        }
        let lost = plan.loss.layers.iter().chain(&plan.remove);
        self.refuse_losing_clones(&plan.next, lost).await?;
        let leaving = self.leaving(&plan);
        self.stop_writes(&leaving, true).await;
        let gone: Vec<_> = leaving.iter().filter(|d| !has_disk(&plan.next, d.number)).cloned().collect();
        let keeps = plan.loss.kept.is_some() && !self.options.defects.has(Defect::BinUnflushed);
        let built = async {
            if keeps {
                // The bin must keep every acknowledged write.
                all(leaving.iter().map(|disk| disk.close())).await.map_err(unkept)?;
            }
            // The files of a removed disk stay, and no later flush would write its tables.
            all(gone.iter().map(|disk| disk.close())).await?;
            // The steps that leave nothing behind come first, in case a later one fails.
            let returned = self.open_returned_disks(&plan).await?;
            Ok((self.build_tops(&plan.tops).await?, returned))
        };
        let (built, returned) = match built.await {
            Ok(built) => built,
            Err(e) => {
                self.stop_writes(&leaving, false).await;
                return Err(e);
            }
        };
        for new in &built {
            let state = plan.next.disks.iter_mut().find(|d| d.number == new.number);
            let state = state.expect("the top of a disk of the next state");
            state.top = new.disk.top_name();
            state.size_bytes = new.disk.size_bytes();
        }
        let change = Change {
            next: plan.next,
            configuration: plan.configuration,
            remove: plan.remove.clone(),
            reparent: Vec::new(),
        };
        if self.options.defects.has(Defect::SwapBeforePublish) {
            self.swap_disks(&change.next, &built);
        }
        if let Err(e) = self.publish(change).await {
            if nothing_changed(&e) {
                join_all(built.into_iter().map(|new| self.drop_built(new))).await;
                self.stop_writes(&leaving, false).await;
            }
            return Err(e);
        }
        let stun_us = self.swap_disks(&self.state(), &built);
        if plan.loss.reverts && apart {
            let generation = self.state().generation.raised(&self.name)?;
            let next = VmState { generation, ..self.state() };
            self.publish(Change { next, ..Change::default() }).await?;
        }
        plan.remove.iter().for_each(|layer| self.forget_layer(layer));
        self.disks.borrow_mut().extend(returned);
        self.report_move(plan.kind, &plan.loss, &gone, stun_us, (self.env.now_ns() - began_ns) / 1000);
        Ok(plan.loss)
    }

    /// Returns the disks whose present object ends with the change.
    fn leaving(&self, plan: &RevertPlan) -> Vec<Rc<Disk>> {
        let stays = |d: &Rc<Disk>| {
            plan.next.disks.iter().any(|s| s.number == d.number && s.top == d.top_name())
                && !plan.tops.iter().any(|(n, _)| *n == d.number)
        };
        self.disks().into_iter().filter(|d| !stays(d)).collect()
    }

    /// Stops (or resumes) the disks. Requests of connections that were cut may still be under way; they end before the
    /// disks change.
    async fn stop_writes(&self, disks: &[Rc<Disk>], stop: bool) {
        disks.iter().for_each(|disk| disk.closing.set(stop));
        if stop {
            for disk in disks {
                for gate in [&disk.read_gate, &disk.write_gate, &disk.flush_gate] {
                    gate.drain().await;
                }
            }
        }
    }

    async fn build_tops(self: &Rc<Self>, tops: &[(u32, NewTop)]) -> Result<Vec<ReplacementDisk>> {
        let made = join_all(tops.iter().map(|(number, top)| self.build_top(*number, top))).await;
        if let Some(e) = made.iter().find_map(|built| built.as_ref().err().cloned()) {
            for new in made.into_iter().flatten() {
                self.drop_built(new).await;
            }
            return Err(e);
        }
        Ok(made.into_iter().flatten().collect())
    }

    async fn build_top(self: &Rc<Self>, number: u32, top: &NewTop) -> Result<ReplacementDisk> {
        let (layers, child) = match top {
            NewTop::Existing(layer) => (self.open_chain(layer, Opening::Change).await?, None),
            NewTop::ChildOf(parent) => {
                let mut layers = self.open_chain(parent, Opening::Change).await?;
                let child = self.create_layer(parent, DeltaFormat::Fitting).await?;
                let name = child.name().to_string();
                layers.push(child);
                (layers, Some(name))
            }
        };
        Ok(ReplacementDisk { number, disk: self.disk_over(number, layers)?, child })
    }

    async fn drop_built(&self, new: ReplacementDisk) {
        drop(new.disk);
        if let Some(child) = new.child {
            // A child that cannot be removed now is debris, which the next open removes.
            let _ = self.manifest.discard_child(&child).await;
        }
    }

    /// Replaces all disks in one instant: it has no await. Returns the time it took, in microseconds.
    fn swap_disks(&self, next: &VmState, built: &[ReplacementDisk]) -> u64 {
        let began_ns = self.env.now_ns();
        let mut disks = self.disks.borrow_mut();
        disks.retain(|d| has_disk(next, d.number));
        for new in built {
            for layer in new.disk.chain().links.last().iter().map(|link| &link.layer) {
                self.opened(layer);
            }
            match disks.iter_mut().find(|d| d.number == new.number) {
                Some(old) => *old = new.disk.clone(),
                None => disks.push(new.disk.clone()),
            }
        }
        disks.sort_by_key(|d| next.disks.iter().position(|s| s.number == d.number));
        (self.env.now_ns() - began_ns).div_ceil(1000)
    }

    /// Opens the disks that the configuration of a snapshot brings back and that takes do not freeze.
    async fn open_returned_disks(self: &Rc<Self>, plan: &RevertPlan) -> Result<Vec<Rc<Disk>>> {
        let mut returned = Vec::new();
        for state in &plan.next.disks {
            let is_built = plan.tops.iter().any(|(number, _)| *number == state.number);
            if !is_built && self.disk(state.number).is_err() {
                returned.push(self.build_disk(state.number, &state.top, Opening::Change).await?);
            }
        }
        Ok(returned)
    }

    /// Refuses to remove layers that a clone reads, and snapshots that a clone was made of: from the tree and from the
    /// bin.
    ///
    /// A snapshot's record names the clones made of it. For a clone in a folder that is not searched there is no other
    /// record, so the snapshot stays even where something else still needs its layers.
    ///
    /// # Errors
    ///
    /// `Refused`, with the layer and the clone that reads it; an error of the manifest that looks for clones.
    pub(crate) async fn refuse_losing_clones(
        &self,
        next: &VmState,
        removed: impl Iterator<Item = &LayerName>,
    ) -> Result<()> {
        let before = self.state();
        let staying: BTreeSet<u128> = all_snapshots(next).map(|s| s.id).collect();
        let leaving = all_snapshots(&before).filter(|s| !staying.contains(&s.id));
        let frozen: Vec<_> = leaving.flat_map(|s| s.disks.iter().map(|(_, layer)| layer)).collect();
        let mut layers: BTreeSet<LayerName> = removed.cloned().collect();
        if !frozen.is_empty() {
            // A layer of another folder stays where it is, with its own readers.
            let graph = self.graph().await?;
            layers.extend(frozen.into_iter().filter(|layer| !graph.is_foreign(layer)).cloned());
        }
        self.refuse_read_elsewhere(&layers.into_iter().collect::<Vec<_>>()).await
    }

    /// Refuses to change or remove a layer that a clone reads: the clone has to be removed first.
    pub(crate) async fn refuse_read_elsewhere(&self, layers: &[LayerName]) -> Result<()> {
        if layers.is_empty() || self.options.defects.has(Defect::ForgetClones) {
            return Ok(());
        }
        match self.manifest.dependants(layers).await?.first() {
            Some(d) => {
                let cause = format!("{} is read by {}; remove or convert that VM first", d.layer, d.who);
                Err(Error::refused(&self.name, cause))
            }
            None => Ok(()),
        }
    }

    fn report_move(&self, kind: EventKind, loss: &Loss, gone: &[Rc<Disk>], stun_us: u64, total_us: u64) {
        let subject = match &loss.target {
            Some(target) => target.clone(),
            None => loss.snapshots.join(", "),
        };
        let fate = if loss.kept.is_some() { "are in the bin" } else { "were removed" };
        let mut message = format!("{} layers of {} bytes {fate}", loss.layers.len(), loss.bytes);
        for disk in gone {
            let number = disk.number;
            message.push_str(&format!("; disk{number} is no longer a disk of the VM, and its base stays"));
        }
        let event = self.activity.event(kind, &subject, &message);
        let disks = self.disks();
        let times = disks.iter().map(|d| DiskTimes { number: d.number, stun_us, ..DiskTimes::default() });
        self.activity.report(Event { stun_us, total_us, disks: times.collect(), ..event });
    }
}
