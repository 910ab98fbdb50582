//! A native VM and its disks: figures, differences and clients, as `Machine` and `RunningDisk` need them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::file::FileCounters;
use blk::manifest::{LayerInfo, SnapshotState, VmState};
use blk::{Error, Local, Result};

use super::super::disk::NativeDisk;
use super::super::layout::BLOCK;
use super::super::space::GrowthHold;
use super::super::store::Store;
use super::super::tree::span;
use super::NativeVm;
use super::items::{layer_name, node_of};
use crate::client::{Client, GenerationChange, View};
use crate::machine::{Attached, RunningDisk};
use crate::operations::{DiffRequest, Differences, DiskLayers, SpaceUsage};
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
    /// Returns the counters of the store's file, which all its VMs share.
    pub(crate) fn device_counters(&self) -> FileCounters {
        self.store.file.counters()
    }

    /// Keeps the store from growing; guests still write where it has room.
    pub(crate) async fn hold_writes(&self) -> GrowthHold {
        self.store.space.hold_growth().await
    }

    /// Returns the running node of each disk: a native disk has no chain.
    pub(crate) async fn listing(&self) -> Result<Vec<DiskLayers>> {
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
                read_only: false,
            };
            Ok(DiskLayers { number: disk.number, layers: vec![top], unowned: Vec::new() })
        });
        layers.collect()
    }

    /// Returns 0: a native disk has no deltas.
    pub(crate) async fn unowned_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    pub(crate) async fn delta_bytes(&self) -> Result<BTreeMap<u128, u64>> {
        let snapshots = self.state.borrow().snapshots.clone();
        let mut found = BTreeMap::new();
        for snapshot in snapshots {
            let nodes: Vec<u64> = snapshot.disks.iter().map(|(_, layer)| node_of(layer)).collect();
            found.insert(snapshot.id, self.store.exclusive_bytes(&nodes).await?);
        }
        Ok(found)
    }

    pub(crate) async fn used(&self) -> Result<SpaceUsage> {
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
        shared_bytes += self.store.bytes_read_by_others(&own).await?;
        let all: Vec<u64> = own.into_iter().collect();
        Ok(SpaceUsage { allocated_bytes: self.store.exclusive_bytes(&all).await?, shared_bytes })
    }

    pub(crate) async fn differences(&self, between: DiffRequest<'_>) -> Result<Differences> {
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
            let cause = format!("requested from byte {} on, of {size_bytes}", between.start);
            let expected = format!("expected a multiple of {BLOCK} within the disk");
            return Err(Error::invalid(&self.name, format!("{cause}; {expected}")));
        }
        let blocks = between.end.min(size_bytes).saturating_sub(between.start).div_ceil(BLOCK);
        // A range that begins and ends within pages touches one more.
        let pages = (blocks / span(0) + 2).min(DIFFERENCE_PAGES_MAX as u64) as usize;
        let (ranges, end) = self.store.differences(from, to, between.start, pages).await?;
        Ok(Differences { size_bytes, ranges, end: end.min(size_bytes) })
    }

    pub(crate) async fn average_run_bytes(&self, number: u32) -> Result<Option<u64>> {
        let found = self.disk(number)?.fragmentation().await?;
        Ok(Some(found.average_run_bytes()).filter(|bytes| *bytes > 0))
    }

    pub(crate) async fn attach(&self, number: u32, client: &str) -> Result<Attached<Client>> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let disk = self.disk(number)?;
        Ok((disk, self.activity.attach(number, client)))
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

    pub(crate) async fn open_view(
        &self,
        snapshot: &str,
        number: u32,
        client: &str,
    ) -> Result<Attached<View>> {
        let (disk, view) = self.open_sealed(snapshot, number, client)?;
        Ok((disk, view))
    }

    /// Opens a sealed state of one disk.
    pub(in super::super) fn open_sealed(
        &self,
        snapshot: &str,
        number: u32,
        client: &str,
    ) -> Result<(Rc<NativeDisk>, Rc<View>)> {
        let found = self.sealed(snapshot)?;
        let Some((_, layer)) = found.disks.iter().find(|(n, _)| *n == number) else {
            let cause = format!("disk{number} is not part of snapshot {snapshot}");
            return Err(Error::not_found(&self.name, cause));
        };
        let name = format!("{}/disk{number}@{}", self.name, found.name);
        let node = self.store.node(node_of(layer))?;
        let disk = NativeDisk::new(&self.store, node, name, number, self.terms);
        Ok((disk, self.activity.view(found.id, client, false)))
    }

    pub(crate) async fn hold(&self, snapshot: &str, client: &str) -> Result<(SnapshotState, Rc<View>)> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let found = self.sealed(snapshot)?;
        let view = self.activity.view(found.id, client, true);
        Ok((found, view))
    }
}

impl Store {
    /// Waits until every write admitted before now has ended.
    pub fn drain_writes(&self) -> impl Future<Output = ()> + use<> {
        self.writes.drain()
    }
}
