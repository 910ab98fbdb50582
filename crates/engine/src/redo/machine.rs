//! A redo VM and its disks behind the interface that both kinds of store have.

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;

use blk::file::FileCounters;
use blk::manifest::{ContentGeneration, DiskMode, DiskState, NewDisk, SnapshotState, VmState};
use blk::volume::Volume;
use blk::{Env, Local, Result};

use super::disk::Disk;
use super::space::SpaceHold;
use super::vm::Vm;
use crate::client::{Client, GenerationChange, View};
use crate::event::Event;
use crate::event::Listener;
use crate::job::Job;
use crate::machine::{Attached, Machine, RunningDisk};
use crate::operations::Loss;
use crate::operations::{Between, Differences};
use crate::operations::{CommitPreview, CommitWhat};
use crate::operations::{DiskLayers, Use};
use crate::stats::{DiskStats, LayerCounters};

impl RunningDisk for Disk {
    fn stats(&self) -> &DiskStats {
        &self.stats
    }

    fn device_counters(&self) -> FileCounters {
        Disk::device_counters(self)
    }

    fn layer_counters(&self) -> Vec<LayerCounters> {
        Disk::layer_counters(self)
    }

    /// Returns the growth of the top: a flat base is allocated already unless it is thin; a delta may grow to the size
    /// of its disk.
    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>> {
        let chain = self.chain();
        Box::pin(async move {
            let top = &chain.top().layer;
            let mut held_bytes = 0;
            match top.shape().flat {
                // A base may be thin.
                true => {
                    for file in top.files() {
                        held_bytes += file.allocated_bytes().await?;
                    }
                }
                false => held_bytes = top.usage().held_bytes,
            }
            Ok(self.size_bytes().saturating_sub(held_bytes))
        })
    }
}

impl Machine for Vm {
    fn env(&self) -> &Env {
        &self.env
    }

    fn state(&self) -> VmState {
        Vm::state(self)
    }

    fn generation(&self) -> ContentGeneration {
        self.state.borrow().generation
    }

    fn change_generation(&self, change: GenerationChange) -> Local<'_, Result<()>> {
        Box::pin(Vm::change_generation(self, change))
    }

    fn disks(&self) -> Vec<Rc<dyn RunningDisk>> {
        Vm::disks(self).into_iter().map(|disk| disk as Rc<dyn RunningDisk>).collect()
    }

    fn device_counters(&self) -> FileCounters {
        let mut sum = FileCounters::default();
        Vm::disks(self).iter().for_each(|disk| sum += disk.device_counters());
        sum
    }

    fn disk(&self, number: u32) -> Result<Rc<dyn RunningDisk>> {
        Ok(Vm::disk(self, number)?)
    }

    fn is_sealed(&self, snapshot: u128) -> bool {
        Vm::is_sealed(self, snapshot)
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        Vm::jobs(self)
    }

    fn events(&self) -> Vec<Event> {
        Vm::events(self)
    }

    fn listen(&self, listener: Listener) {
        *self.on_event.borrow_mut() = Some(listener);
    }

    fn hold_writes(&self) -> Local<'_, Box<dyn Any>> {
        Box::pin(async { Box::new(SpaceHold::over(&Vm::disks(self)).await) as Box<dyn Any> })
    }

    fn clients(&self) -> Vec<(u32, String)> {
        Vm::clients(self)
    }

    fn viewers(&self) -> Vec<(u128, String)> {
        Vm::viewers(self)
    }

    fn listing(&self) -> Local<'_, Result<Vec<DiskLayers>>> {
        Box::pin(Vm::listing(self))
    }

    fn delta_bytes(&self) -> Local<'_, Result<BTreeMap<u128, u64>>> {
        Box::pin(Vm::delta_bytes(self))
    }

    fn used(&self) -> Local<'_, Result<Use>> {
        Box::pin(Vm::used(self))
    }

    fn differences<'a>(&'a self, between: Between<'a>) -> Local<'a, Result<Differences>> {
        Box::pin(Vm::differences(self, between))
    }

    fn take<'a>(self: Rc<Self>, name: &'a str, description: &'a str) -> Local<'a, Result<SnapshotState>> {
        Box::pin(async move { Vm::take(&self, name, description).await })
    }

    fn take_copy<'a>(self: Rc<Self>, original: &'a SnapshotState) -> Local<'a, Result<SnapshotState>> {
        Box::pin(async move { Vm::take_copy(&self, original).await })
    }

    fn commit_preview<'a>(&'a self, what: &'a CommitWhat) -> Local<'a, Result<CommitPreview>> {
        Box::pin(Vm::commit_preview(self, what))
    }

    fn commit<'a>(self: Rc<Self>, what: &'a CommitWhat) -> Local<'a, Result<Rc<Job>>> {
        Box::pin(async move { Vm::commit(&self, what).await })
    }

    fn revert_preview<'a>(&'a self, wanted: Option<&'a str>, keeps_present: bool) -> Local<'a, Result<Loss>> {
        Box::pin(Vm::revert_preview(self, wanted, keeps_present))
    }

    fn revert<'a>(
        self: Rc<Self>,
        wanted: Option<&'a str>,
        take_first: Option<&'a str>,
        keep: bool,
    ) -> Local<'a, Result<SnapshotState>> {
        Box::pin(async move { Vm::revert(&self, wanted, take_first, keep).await })
    }

    fn discard_preview<'a>(&'a self, wanted: &'a str) -> Local<'a, Result<Loss>> {
        Box::pin(Vm::discard_preview(self, wanted))
    }

    fn discard<'a>(self: Rc<Self>, wanted: &'a str, keep: bool) -> Local<'a, Result<Loss>> {
        Box::pin(async move { Vm::discard(&self, wanted, keep).await })
    }

    fn reset_preview(&self) -> Local<'_, Result<Loss>> {
        Box::pin(Vm::reset_preview(self))
    }

    fn reset(self: Rc<Self>, keep: bool) -> Local<'static, Result<Loss>> {
        Box::pin(async move { Vm::reset(&self, keep).await })
    }

    fn restore_preview(&self, id: u64) -> Local<'_, Result<Loss>> {
        Box::pin(Vm::restore_preview(self, id))
    }

    fn restore(self: Rc<Self>, id: u64, keep: bool) -> Local<'static, Result<Loss>> {
        Box::pin(async move { Vm::restore(&self, id, keep).await })
    }

    fn empty_bin(self: Rc<Self>, ids: Vec<u64>) -> Local<'static, Result<u64>> {
        Box::pin(async move { Vm::empty_bin(&self, &ids).await })
    }

    fn binned_bytes(&self, id: u64) -> Local<'_, Result<u64>> {
        Box::pin(Vm::binned_bytes(self, id))
    }

    fn add_disk<'a>(self: Rc<Self>, wanted: &'a NewDisk) -> Local<'a, Result<DiskState>> {
        Box::pin(async move { Vm::add_disk(&self, wanted).await })
    }

    fn remove_disk(self: Rc<Self>, number: u32, remove_files: bool) -> Local<'static, Result<()>> {
        Box::pin(async move { Vm::remove_disk(&self, number, remove_files).await })
    }

    fn grow_disk(self: Rc<Self>, number: u32, size_bytes: u64) -> Local<'static, Result<()>> {
        Box::pin(async move { Vm::grow_disk(&self, number, size_bytes).await })
    }

    fn set_mode(self: Rc<Self>, number: u32, mode: DiskMode) -> Local<'static, Result<()>> {
        Box::pin(async move { Vm::set_mode(&self, number, mode).await })
    }

    fn attach<'a>(&'a self, number: u32, client: &'a str) -> Local<'a, Result<Attached<Client>>> {
        Box::pin(async move {
            let (disk, attached) = Vm::attach(self, number, client).await?;
            Ok((disk as Rc<dyn Volume>, attached))
        })
    }

    fn open_view<'a>(
        &'a self,
        snapshot: &'a str,
        number: u32,
        client: &'a str,
    ) -> Local<'a, Result<Attached<View>>> {
        Box::pin(async move {
            let (disk, view) = Vm::open_view(self, snapshot, number, client).await?;
            Ok((disk as Rc<dyn Volume>, view))
        })
    }

    fn hold<'a>(
        &'a self,
        snapshot: &'a str,
        client: &'a str,
    ) -> Local<'a, Result<(SnapshotState, Rc<View>)>> {
        Box::pin(Vm::hold(self, snapshot, client))
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(Vm::close(self))
    }
}
