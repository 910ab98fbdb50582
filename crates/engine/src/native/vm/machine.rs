//! A native VM behind the interface that both kinds of store have.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::file::FileCounters;
use blk::manifest::{ContentGeneration, DiskMode, DiskState, LayerInfo, NewDisk, SnapshotState, VmState};
use blk::volume::Volume;
use blk::{Env, Error, Local, Result};

use super::super::disk::NativeDisk;
use super::super::layout::BLOCK;
use super::super::store::Store;
use super::NativeVm;
use super::items::{layer_name, node_of};
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

/// Most pages of maps read on each side for one answer about differences.
const DIFFERENCE_PAGES_MAX: usize = 4096;

impl RunningDisk for NativeDisk {
    fn stats(&self) -> &DiskStats {
        &self.stats
    }

    /// Returns the counters of the whole store: its disks share one file.
    fn device_counters(&self) -> FileCounters {
        self.store.file.counters()
    }

    fn layer_counters(&self) -> Vec<LayerCounters> {
        Vec::new()
    }

    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>> {
        let bytes = self.size_bytes().saturating_sub(self.mapped_bytes());
        Box::pin(std::future::ready(Ok(bytes)))
    }
}

impl NativeVm {
    /// Returns the running node of each disk: a native disk has no chain.
    fn layers(&self) -> Result<Vec<DiskLayers>> {
        let state = self.state.borrow();
        let layers = state.disks.iter().map(|disk| {
            let node = self.store.node(node_of(&disk.top))?;
            let parent = node.parent.get();
            let top = LayerInfo {
                name: disk.top.clone(),
                parent: (parent != 0).then(|| layer_name(parent)),
                size_bytes: node.size_bytes(),
                format: "native".into(),
                allocated_bytes: self.disk(disk.number)?.mapped_bytes(),
                foreign: false,
            };
            Ok(DiskLayers { number: disk.number, layers: vec![top], unowned: Vec::new() })
        });
        layers.collect()
    }

    async fn delta_bytes(&self) -> Result<BTreeMap<u128, u64>> {
        let snapshots = self.state.borrow().snapshots.clone();
        let mut found = BTreeMap::new();
        for snapshot in snapshots {
            let nodes: Vec<u64> = snapshot.disks.iter().map(|(_, layer)| node_of(layer)).collect();
            found.insert(snapshot.id, self.store.held_only_by(&nodes).await?);
        }
        Ok(found)
    }

    async fn used(&self) -> Result<Use> {
        let (disks, snapshots) = {
            let state = self.state.borrow();
            let disks: Vec<u64> = state.disks.iter().map(|d| node_of(&d.top)).collect();
            let sealed = state.snapshots.iter().flat_map(|s| &s.disks).map(|(_, layer)| node_of(layer));
            let mut others = sealed.collect::<Vec<_>>();
            let entries: Vec<u64> = state.bin.iter().map(|binned| binned.id).collect();
            others.extend(self.binned_nodes(&entries));
            (disks, others)
        };
        let own: BTreeSet<u64> = disks.iter().chain(&snapshots).copied().collect();
        let mut shared_bytes = 0;
        for disk in disks {
            shared_bytes += self.store.shared_with_others(disk, &own).await?;
        }
        shared_bytes += self.store.lent_to_others(&own).await?;
        let all: Vec<u64> = own.into_iter().collect();
        Ok(Use { allocated_bytes: self.store.held_only_by(&all).await?, shared_bytes })
    }

    async fn differences(&self, between: Between<'_>) -> Result<Differences> {
        self.refuse_when_closed()?;
        let frozen = |name: &str| -> Result<Option<u64>> {
            let disks = self.sealed(name)?.disks;
            Ok(disks.iter().find(|(n, _)| *n == between.disk).map(|(_, layer)| node_of(layer)))
        };
        let from = frozen(between.from)?;
        let to = match between.to {
            Some(name) => frozen(name)?.ok_or_else(|| {
                Error::not_found(&self.name, format!("disk{} is not part of snapshot {name}", between.disk))
            })?,
            None => self.disk(between.disk)?.node.id,
        };
        let size_bytes = self.store.node(to)?.size_bytes();
        if between.start > size_bytes || !between.start.is_multiple_of(BLOCK) {
            let cause = format!("asked from byte {} on, of {size_bytes}", between.start);
            let expected = format!("expected a multiple of {BLOCK} within the disk");
            return Err(Error::invalid(&self.name, format!("{cause}; {expected}")));
        }
        let (ranges, end) = self.store.differences(from, to, between.start, DIFFERENCE_PAGES_MAX).await?;
        Ok(Differences { size_bytes, ranges, end: end.min(size_bytes) })
    }

    async fn attach(&self, number: u32, client: &str) -> Result<Attached<Client>> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let disk = self.disk(number)?;
        Ok((disk, self.clients.enter(Client { disk: number, name: client.to_string() })))
    }

    /// Changes the content generation. The change is durable when this returns.
    pub async fn change_generation(&self, change: GenerationChange) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let head = self.head();
        let generation = change.apply(head.generation, &self.name)?;
        if generation != head.generation {
            self.change(VmState { generation, ..head }, Vec::new())?;
        }
        self.store.flush().await
    }

    async fn open_view(&self, snapshot: &str, number: u32, client: &str) -> Result<Attached<View>> {
        let found = self.sealed(snapshot)?;
        let Some((_, layer)) = found.disks.iter().find(|(n, _)| *n == number) else {
            let cause = format!("disk{number} is not part of snapshot {snapshot}");
            return Err(Error::not_found(&self.name, cause));
        };
        let name = format!("{}/disk{number}@{}", self.name, found.name);
        let node = self.store.node(node_of(layer))?;
        let disk: Rc<dyn Volume> = NativeDisk::new(&self.store, node, name, number, self.terms);
        let view = View { snapshot: found.id, client: client.to_string(), still: false };
        Ok((disk, self.views.enter(view)))
    }

    async fn hold(&self, snapshot: &str, client: &str) -> Result<(SnapshotState, Rc<View>)> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let found = self.sealed(snapshot)?;
        let view = View { snapshot: found.id, client: client.to_string(), still: true };
        Ok((found, self.views.enter(view)))
    }
}

impl Store {
    /// Waits until every write admitted before now has ended.
    pub fn drain_writes(&self) -> impl Future<Output = ()> + use<> {
        self.writes.drain()
    }
}

impl Machine for NativeVm {
    fn env(&self) -> &Env {
        &self.env
    }

    fn state(&self) -> VmState {
        NativeVm::state(self)
    }

    fn generation(&self) -> ContentGeneration {
        self.state.borrow().generation
    }

    fn change_generation(&self, change: GenerationChange) -> Local<'_, Result<()>> {
        Box::pin(NativeVm::change_generation(self, change))
    }

    fn disks(&self) -> Vec<Rc<dyn RunningDisk>> {
        NativeVm::disks(self).into_iter().map(|disk| disk as Rc<dyn RunningDisk>).collect()
    }

    fn device_counters(&self) -> FileCounters {
        self.store.file.counters()
    }

    fn disk(&self, number: u32) -> Result<Rc<dyn RunningDisk>> {
        Ok(NativeVm::disk(self, number)?)
    }

    fn is_sealed(&self, snapshot: u128) -> bool {
        NativeVm::is_sealed(self, snapshot)
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().clone()
    }

    fn events(&self) -> Vec<Event> {
        self.events.borrow().iter().cloned().collect()
    }

    fn listen(&self, listener: Listener) {
        *self.on_event.borrow_mut() = Some(listener);
    }

    /// Holds nothing back: a store grows in steps that exceed a small reserve anyway.
    fn hold_writes(&self) -> Local<'_, Box<dyn Any>> {
        Box::pin(async { Box::new(()) as Box<dyn Any> })
    }

    fn clients(&self) -> Vec<(u32, String)> {
        self.clients.all().iter().map(|c| (c.disk, c.name.clone())).collect()
    }

    fn viewers(&self) -> Vec<(u128, String)> {
        self.views.all().iter().map(|v| (v.snapshot, v.client.clone())).collect()
    }

    fn listing(&self) -> Local<'_, Result<Vec<DiskLayers>>> {
        Box::pin(async move { self.layers() })
    }

    fn delta_bytes(&self) -> Local<'_, Result<BTreeMap<u128, u64>>> {
        Box::pin(NativeVm::delta_bytes(self))
    }

    fn used(&self) -> Local<'_, Result<Use>> {
        Box::pin(NativeVm::used(self))
    }

    fn differences<'a>(&'a self, between: Between<'a>) -> Local<'a, Result<Differences>> {
        Box::pin(NativeVm::differences(self, between))
    }

    fn take<'a>(self: Rc<Self>, name: &'a str, description: &'a str) -> Local<'a, Result<SnapshotState>> {
        Box::pin(async move { NativeVm::take(&self, name, description).await })
    }

    fn take_copy<'a>(self: Rc<Self>, original: &'a SnapshotState) -> Local<'a, Result<SnapshotState>> {
        Box::pin(async move { NativeVm::take_copy(&self, original).await })
    }

    fn commit_preview<'a>(&'a self, what: &'a CommitWhat) -> Local<'a, Result<CommitPreview>> {
        Box::pin(NativeVm::commit_preview(self, what))
    }

    fn commit<'a>(self: Rc<Self>, what: &'a CommitWhat) -> Local<'a, Result<Rc<Job>>> {
        Box::pin(async move { NativeVm::commit(&self, what).await })
    }

    fn revert_preview<'a>(&'a self, wanted: Option<&'a str>, keeps_present: bool) -> Local<'a, Result<Loss>> {
        Box::pin(NativeVm::revert_preview(self, wanted, keeps_present))
    }

    fn revert<'a>(
        self: Rc<Self>,
        wanted: Option<&'a str>,
        take_first: Option<&'a str>,
        keep: bool,
    ) -> Local<'a, Result<SnapshotState>> {
        Box::pin(async move { NativeVm::revert(&self, wanted, take_first, keep).await })
    }

    fn discard_preview<'a>(&'a self, wanted: &'a str) -> Local<'a, Result<Loss>> {
        Box::pin(NativeVm::discard_preview(self, wanted))
    }

    fn discard<'a>(self: Rc<Self>, wanted: &'a str, keep: bool) -> Local<'a, Result<Loss>> {
        Box::pin(async move { NativeVm::discard(&self, wanted, keep).await })
    }

    fn reset_preview(&self) -> Local<'_, Result<Loss>> {
        Box::pin(NativeVm::reset_preview(self))
    }

    fn reset(self: Rc<Self>, keep: bool) -> Local<'static, Result<Loss>> {
        Box::pin(async move { NativeVm::reset(&self, keep).await })
    }

    fn restore_preview(&self, id: u64) -> Local<'_, Result<Loss>> {
        Box::pin(NativeVm::restore_preview(self, id))
    }

    fn restore(self: Rc<Self>, id: u64, keep: bool) -> Local<'static, Result<Loss>> {
        Box::pin(async move { NativeVm::restore(&self, id, keep).await })
    }

    fn empty_bin(self: Rc<Self>, ids: Vec<u64>) -> Local<'static, Result<u64>> {
        Box::pin(async move { NativeVm::empty_bin(&self, &ids).await })
    }

    fn binned_bytes(&self, id: u64) -> Local<'_, Result<u64>> {
        Box::pin(NativeVm::binned_bytes(self, id))
    }

    fn add_disk<'a>(self: Rc<Self>, wanted: &'a NewDisk) -> Local<'a, Result<DiskState>> {
        Box::pin(async move { NativeVm::add_disk(&self, wanted).await })
    }

    fn remove_disk(self: Rc<Self>, number: u32, remove_files: bool) -> Local<'static, Result<()>> {
        Box::pin(async move { NativeVm::remove_disk(&self, number, remove_files).await })
    }

    fn grow_disk(self: Rc<Self>, number: u32, size_bytes: u64) -> Local<'static, Result<()>> {
        Box::pin(async move { NativeVm::grow_disk(&self, number, size_bytes).await })
    }

    fn set_mode(self: Rc<Self>, number: u32, mode: DiskMode) -> Local<'static, Result<()>> {
        Box::pin(async move { NativeVm::set_mode(&self, number, mode).await })
    }

    fn attach<'a>(&'a self, number: u32, client: &'a str) -> Local<'a, Result<Attached<Client>>> {
        Box::pin(NativeVm::attach(self, number, client))
    }

    fn open_view<'a>(
        &'a self,
        snapshot: &'a str,
        number: u32,
        client: &'a str,
    ) -> Local<'a, Result<Attached<View>>> {
        Box::pin(NativeVm::open_view(self, snapshot, number, client))
    }

    fn hold<'a>(
        &'a self,
        snapshot: &'a str,
        client: &'a str,
    ) -> Local<'a, Result<(SnapshotState, Rc<View>)>> {
        Box::pin(NativeVm::hold(self, snapshot, client))
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(NativeVm::close(self))
    }
}
