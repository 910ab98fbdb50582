//! One overlay: what it holds, and the I/O of its tables.
//!
//! The model finds a cluster in memory and issues the I/O that QEMU needs to find it, for its cost alone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::{Buf, File, Result};

use super::layout::Layout;
use super::slices::{Slices, Use};
use crate::peers::sparse::Sparse;
use crate::peers::vm::Vm;
use crate::vmware::fifo_lock::FifoLock;
use crate::vmware::host::Purpose;

/// Clusters of a new image: header, refcount table, refcount block, L1 table.
const FIRST_CLUSTERS: u64 = 4;
/// Cluster of the first block of reference counts, and of the L1 table.
const REFCOUNTS_AT: u64 = 2;
const L1_AT: u64 = 3;
/// The shortest write to a file that is opened past the page cache.
const ENTRY_WRITE_BYTES: u64 = 4096;
/// Position of the bits of an entry that tell which subclusters are held; below them is the cluster in the file.
const HELD_SHIFT: u32 = 32;
const CLUSTER_MASK: u64 = (1 << HELD_SHIFT) - 1;

pub(super) struct Image {
    pub name: String,
    pub file: File,
    pub layout: Layout,
    vm: Rc<Vm>,
    slice_bytes: u64,
    /// By cluster of the disk: see [`HELD_SHIFT`].
    clusters: RefCell<Sparse>,
    /// Cluster in the file of each L2 table.
    tables: RefCell<BTreeMap<u64, u64>>,
    slices: RefCell<Slices>,
    /// Blocks of reference counts that were changed.
    refcounts: RefCell<BTreeSet<u64>>,
    next_cluster: Cell<u64>,
    /// Held during look-ups and changes of tables, with their I/O, as QEMU's lock of an image.
    pub lock: FifoLock,
    /// Ranges in which units are allocated; an overlapping write waits.
    pub allocating: RangeLock,
}

/// A part of the disk that is contiguous in the file, or not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// None: not held.
    pub at: Option<u64>,
    pub len: u64,
}

/// A part of a write that is one write to the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Range of the disk. It reaches beyond the write where units are completed from below.
    pub range: Range<u64>,
    pub at: u64,
    /// Units of the range are not held yet.
    pub new: bool,
}

impl Image {
    /// Creates an empty image, as `qemu-img create` does.
    pub(super) async fn create(
        vm: Rc<Vm>,
        name: String,
        layout: Layout,
        disk_bytes: u64,
    ) -> Result<Rc<Image>> {
        let file = vm.create_file(&name).await?;
        for cluster in 0..FIRST_CLUSTERS {
            let data = Buf::zeroed(layout.cluster_bytes as usize).freeze();
            vm.host.write(&file, cluster * layout.cluster_bytes, data, Purpose::Table).await?;
        }
        vm.host.flush(&file).await?;
        let slice_bytes = layout.slice_bytes(disk_bytes);
        Ok(Rc::new(Image {
            name,
            file,
            layout,
            vm,
            slice_bytes,
            clusters: RefCell::default(),
            tables: RefCell::default(),
            slices: RefCell::new(Slices::new(layout.cache_bytes(disk_bytes) / slice_bytes)),
            refcounts: RefCell::default(),
            next_cluster: Cell::new(FIRST_CLUSTERS),
            lock: FifoLock::default(),
            allocating: RangeLock::default(),
        }))
    }

    fn at(&self, offset: u64) -> Option<u64> {
        let entry = self.clusters.borrow().get(offset / self.layout.cluster_bytes);
        let inside = offset % self.layout.cluster_bytes;
        let is_held = entry >> HELD_SHIFT >> (inside / self.layout.unit_bytes()) & 1 == 1;
        is_held.then(|| (entry & CLUSTER_MASK) * self.layout.cluster_bytes + inside)
    }

    /// Returns the stretch that begins at the begin of the range.
    pub(super) fn find(&self, range: &Range<u64>) -> Stretch {
        let (unit, first) = (self.layout.unit_bytes(), self.at(range.start));
        let mut end = (range.start / unit + 1) * unit;
        while end < range.end && self.at(end) == first.map(|at| at + (end - range.start)) {
            end += unit;
        }
        Stretch { at: first, len: end.min(range.end) - range.start }
    }

    /// Returns whether all of the range is held.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        let unit = self.layout.unit_bytes();
        let first = range.start / unit * unit;
        (first..range.end).step_by(unit as usize).all(|offset| self.at(offset).is_some())
    }

    /// Returns the ranges of the disk that are held, in order; those of clusters in a row are joined.
    pub(super) fn held_ranges(&self) -> Vec<Range<u64>> {
        let (cluster_bytes, unit) = (self.layout.cluster_bytes, self.layout.unit_bytes());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (cluster, entry) in self.clusters.borrow().iter() {
            let held = (0..self.layout.subclusters).filter(|n| entry >> HELD_SHIFT >> n & 1 == 1);
            for start in held.map(|n| cluster * cluster_bytes + n * unit) {
                match ranges.last_mut() {
                    Some(last) if last.end == start => last.end += unit,
                    _ => ranges.push(start..start + unit),
                }
            }
        }
        ranges
    }

    /// Returns the range that a write of `range` keeps others out of: whole clusters where one is allocated, else units.
    pub(super) fn allocation(&self, range: &Range<u64>) -> Range<u64> {
        let clusters = self.clusters_of(range);
        let is_new = clusters.clone().any(|cluster| self.clusters.borrow().get(cluster) == 0);
        let unit = if is_new { self.layout.cluster_bytes } else { self.layout.unit_bytes() };
        range.start / unit * unit..range.end.div_ceil(unit) * unit
    }

    fn clusters_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.layout.cluster_bytes..range.end.div_ceil(self.layout.cluster_bytes)
    }

    fn slices_of(&self, range: &Range<u64>) -> Range<u64> {
        let span = self.slice_bytes / self.layout.entry_bytes * self.layout.cluster_bytes;
        range.start / span..range.end.div_ceil(span)
    }

    /// Returns the place in the file of a slice; None where its table does not exist.
    fn slice_at(&self, slice: u64) -> Option<u64> {
        let per_table = self.layout.cluster_bytes / self.slice_bytes;
        let table = *self.tables.borrow().get(&(slice / per_table))?;
        Some(table * self.layout.cluster_bytes + slice % per_table * self.slice_bytes)
    }

    /// Reads the slices of the range that are not in memory. The caller holds the lock.
    pub(super) async fn look_up(&self, range: &Range<u64>) -> Result<()> {
        for slice in self.slices_of(range) {
            let Some(at) = self.slice_at(slice) else { continue };
            let used = self.slices.borrow_mut().use_slice(slice, self.vm.env.now_ns() / 1000);
            let Use::Miss { write_first } = used else { continue };
            if let Some(replaced) = write_first {
                self.write_refcounts().await?;
                self.vm.host.flush(&self.file).await?;
                self.write_slice(replaced).await?;
            }
            let buf = Buf::alloc(self.slice_bytes as usize);
            self.vm.host.read(&self.file, at, buf, Purpose::Table).await.1?;
        }
        Ok(())
    }

    /// Divides a write into parts and allocates clusters for what is not held. The caller holds the lock.
    pub(super) async fn plan(&self, range: &Range<u64>) -> Result<Vec<Part>> {
        let mut parts: Vec<Part> = Vec::new();
        for cluster in self.clusters_of(range) {
            let next = self.plan_cluster(cluster, range).await?;
            match parts.last_mut() {
                Some(last) if last.new == next.new && last.at + len(&last.range) == next.at => {
                    last.range.end = next.range.end;
                }
                _ => parts.push(next),
            }
        }
        Ok(parts)
    }

    async fn plan_cluster(&self, cluster: u64, range: &Range<u64>) -> Result<Part> {
        let Layout { cluster_bytes, .. } = self.layout;
        let start = range.start.max(cluster * cluster_bytes);
        let end = range.end.min((cluster + 1) * cluster_bytes);
        if self.holds(&(start..end)) {
            let at = self.at(start).expect("all of it is held");
            return Ok(Part { range: start..end, at, new: false });
        }
        let known = self.clusters.borrow().get(cluster) & CLUSTER_MASK;
        let in_file = match known {
            0 => {
                self.make_table(cluster * cluster_bytes / self.layout.table_span()).await?;
                self.allocate(1)
            }
            known => known,
        };
        let range = self.completed(&(start..end));
        let at = in_file * cluster_bytes + range.start % cluster_bytes;
        Ok(Part { range, at, new: true })
    }

    /// Extends the range to whole units at those ends that are not held.
    fn completed(&self, range: &Range<u64>) -> Range<u64> {
        let unit = self.layout.unit_bytes();
        let start = if self.at(range.start).is_some() { range.start } else { range.start / unit * unit };
        let end = if self.at(range.end - 1).is_some() { range.end } else { range.end.div_ceil(unit) * unit };
        start..end
    }

    /// Makes the written part visible to readers. The caller holds the lock.
    pub(super) async fn link(&self, part: &Part) -> Result<()> {
        self.look_up(&part.range).await?;
        for slice in self.slices_of(&part.range) {
            self.slices.borrow_mut().set_dirty(slice);
        }
        let Layout { cluster_bytes, .. } = self.layout;
        let unit = self.layout.unit_bytes();
        let mut clusters = self.clusters.borrow_mut();
        for offset in (part.range.start / unit * unit..part.range.end).step_by(unit as usize) {
            let cluster = offset / cluster_bytes;
            let first = (cluster * cluster_bytes).max(part.range.start);
            let in_file = (part.at + (first - part.range.start)) / cluster_bytes;
            let held = clusters.get(cluster) & !CLUSTER_MASK;
            let bit = 1 << (offset % cluster_bytes / unit) << HELD_SHIFT;
            clusters.set(cluster, held | bit | in_file);
        }
        Ok(())
    }

    fn allocate(&self, count: u64) -> u64 {
        let first = self.next_cluster.get();
        self.next_cluster.set(first + count);
        let span = self.layout.refcount_span();
        self.refcounts.borrow_mut().extend(first / span..=(first + count - 1) / span);
        first
    }

    /// Makes an L2 table where there is none: reference counts, then the table, then its entry in the L1 table, each
    /// durable before the next (QEMU `block/qcow2-cluster.c`, l2_allocate).
    async fn make_table(&self, table: u64) -> Result<()> {
        if self.tables.borrow().contains_key(&table) {
            return Ok(());
        }
        let cluster = self.allocate(1);
        self.write_refcounts().await?;
        self.vm.host.flush(&self.file).await?;
        self.tables.borrow_mut().insert(table, cluster);
        let per_table = self.layout.cluster_bytes / self.slice_bytes;
        for slice in table * per_table..(table + 1) * per_table {
            self.slices.borrow_mut().use_slice(slice, self.vm.env.now_ns() / 1000);
            self.write_slice(slice).await?;
        }
        self.vm.host.flush(&self.file).await?;
        self.write_table(L1_AT * self.layout.cluster_bytes, ENTRY_WRITE_BYTES).await?;
        self.vm.host.flush(&self.file).await
    }

    async fn write_table(&self, at: u64, bytes: u64) -> Result<()> {
        self.vm.host.write(&self.file, at, Buf::zeroed(bytes as usize).freeze(), Purpose::Table).await
    }

    async fn write_slice(&self, slice: u64) -> Result<()> {
        match self.slice_at(slice) {
            Some(at) => self.write_table(at, self.slice_bytes).await,
            None => Ok(()),
        }
    }

    /// Writes changed reference counts. All of their blocks are modelled as being at one place.
    async fn write_refcounts(&self) -> Result<()> {
        let blocks = self.refcounts.take();
        for _ in blocks {
            self.write_table(REFCOUNTS_AT * self.layout.cluster_bytes, self.layout.cluster_bytes).await?;
        }
        Ok(())
    }

    /// Makes data and tables durable. A table is written after the data and the reference counts that it depends on are
    /// durable (QEMU `block/qcow2-cache.c`).
    pub(super) async fn flush(&self) -> Result<()> {
        let _own = self.lock.lock().await;
        let slices = self.slices.borrow_mut().take_dirty();
        if !slices.is_empty() {
            self.write_refcounts().await?;
            self.vm.host.flush(&self.file).await?;
        }
        for slice in slices {
            self.write_slice(slice).await?;
        }
        self.vm.host.flush(&self.file).await
    }
}

pub(super) fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}
