//! A native disk as a volume that a front end serves: a running node, or a sealed one, which is read-only.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::{RangeLock, TaskMutex};
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, ErrorKind, Local, Result, Slice};
use futures_util::future::join_all;

use super::backing::WritePath;
use super::changed_blocks::ChangedBlocks;
use super::layout::BLOCK;
use super::lineage::Node;
use super::sources::{Resolved, SourceEdges, read_images};
use super::store::Store;
use super::streams::Streams;
use super::table::{LookupRun, Table, is_contiguous};
use super::view::Scratch;
use crate::event::SpaceWaits;
use crate::join::all;
use crate::options::{Defect, SpacePolicy};
use crate::stats::DiskStats;

/// Most results of lookups that a disk keeps for later ones: those of a deep queue.
const SCRATCH_KEPT: usize = 64;

/// A disk of a native VM: a node of a store, served as a volume.
pub struct NativeDisk {
    /// The store that the node belongs to.
    pub store: Rc<Store>,
    /// The running node, or a sealed one that is read only.
    pub node: Rc<Node>,
    /// Name for messages: `web/disk0`.
    pub name: String,
    /// See [`blk::manifest::DiskState::number`].
    pub number: u32,
    /// Changes fail with `Refused`.
    pub read_only: bool,
    /// Requests since the disk was opened.
    pub stats: DiskStats,
    policy: SpacePolicy,
    space_retry_us: u64,
    /// Ranges that a write works on, in blocks: overlapping writes run one after the other, in one order.
    pub(super) writes: RangeLock,
    /// Blocks that guests change while a defragmentation copies them.
    pub(super) changes: Rc<ChangedBlocks>,
    /// Held by a defragmentation while it works on a window.
    pub(super) defragment_turn: TaskMutex,
    pub(super) closing: Cell<bool>,
    /// The VM runs on another node by now, or has no such disk any more.
    pub(super) is_replaced: Cell<bool>,
    pub(super) space_waits: SpaceWaits,
    pub(super) streams: RefCell<Streams>,
    scratch: RefCell<Vec<Scratch>>,
}

/// Behaviour of a disk; the same for all disks of a VM.
#[derive(Debug, Clone, Copy)]
pub struct DiskOptions {
    /// What a write does that finds no space.
    pub policy: SpacePolicy,
    /// Interval between two tries of a write that waits for space.
    pub space_retry_us: u64,
}

impl NativeDisk {
    /// Serves `node` of `store`. Changes are refused where the node is sealed.
    pub fn new(
        store: &Rc<Store>,
        node: Rc<Node>,
        name: String,
        number: u32,
        terms: DiskOptions,
    ) -> Rc<NativeDisk> {
        Rc::new(NativeDisk {
            store: store.clone(),
            name,
            number,
            read_only: !node.is_running(),
            node,
            stats: DiskStats::default(),
            policy: terms.policy,
            space_retry_us: terms.space_retry_us,
            writes: RangeLock::default(),
            changes: Rc::default(),
            defragment_turn: TaskMutex::default(),
            closing: Cell::new(false),
            is_replaced: Cell::new(false),
            space_waits: SpaceWaits::default(),
            streams: RefCell::default(),
            scratch: RefCell::default(),
        })
    }

    /// Returns the size of the disk, whole blocks.
    pub fn size_bytes(&self) -> u64 {
        self.node.size_bytes()
    }

    /// Returns the bytes that have space: those of the last checkpoint, and those redirected since.
    pub fn mapped_bytes(&self) -> u64 {
        let (mut mapped, mut view) = (self.node.active.borrow().mapped(), self.node.current_view());
        while let Some(below) = view.below() {
            mapped += view.with_table(Table::mapped).unwrap_or(0);
            view = below;
        }
        mapped += view.roots().and_then(|roots| roots.places).map_or(0, |root| root.pointer.count);
        (mapped * BLOCK).min(self.size_bytes())
    }

    pub(super) fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        // The node's blocks may belong to another node by now.
        if self.node.dropped.get() {
            return Err(Error::new(ErrorKind::Refused, &self.name, "the snapshot was discarded"));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size_bytes()) {
            let cause = format!("{len} bytes at {offset} reach past the disk's {} bytes", self.size_bytes());
            return Err(Error::invalid(&self.name, cause));
        }
        Ok(())
    }

    pub(super) fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::Refused, &self.name, "a sealed snapshot cannot be written"));
        }
        if self.closing.get() {
            return Err(Error::new(ErrorKind::Cancelled, &self.name, "the disk is being closed"));
        }
        self.check_range(offset, len)
    }

    /// Runs `work` with the places of `blocks`, in order; the caller is admitted.
    pub(super) async fn with_found<T>(
        &self,
        blocks: Range<u64>,
        work: impl AsyncFnOnce(&[LookupRun]) -> Result<T>,
    ) -> Result<T> {
        // If another host writes the store, the state in memory is as old as the last possible read.
        self.store.file.pass_fence().await?;
        let mut scratch = self.scratch.borrow_mut().pop().unwrap_or_default();
        let result = match self.store.find(&self.node, blocks, &mut scratch).await {
            Ok(()) => work(&scratch.found).await,
            Err(e) => Err(e),
        };
        if scratch.is_small() && self.scratch.borrow().len() < SCRATCH_KEPT {
            self.scratch.borrow_mut().push(scratch);
        }
        result
    }

    /// Returns whether each kept result is small.
    #[cfg(test)]
    pub fn kept_scratch(&self) -> impl Iterator<Item = bool> {
        self.scratch.borrow().iter().map(Scratch::is_small).collect::<Vec<_>>().into_iter()
    }

    /// Returns whether no replay will doubt the record that placed a run.
    pub(super) fn is_settled(&self, found: &LookupRun) -> bool {
        let journal = &self.store.journal;
        let settled = match self.store.options.defects.has(Defect::EarlyFlushedLsn) {
            true => journal.last_lsn(),
            false => journal.durable_flushed_lsn(),
        };
        found.lsn <= settled
    }

    /// Reads a range that was checked in the same poll.
    async fn read_range(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let began_ns = self.store.env.now_ns();
        let admitted = self.store.reads.enter();
        let blocks = blocks_of(offset, buf.len() as u64);
        let (mut kept, mut images) = (Some(buf), Vec::new());
        let mut result = self
            .with_found(blocks, async |found| {
                let resolved: Resolved;
                let found = match found.iter().any(|found| found.device() != 0) {
                    false => found,
                    true => {
                        resolved = self.store.resolve(found).await?;
                        images = resolved.images;
                        &resolved.runs
                    }
                };
                let (buf, result) = self.read_stored(found, offset, kept.take().expect("taken once")).await;
                kept = Some(buf);
                result
            })
            .await;
        drop(admitted);
        let mut buf = kept.expect("put back");
        if !images.is_empty() && result.is_ok() {
            (buf, result) = read_images(&images, offset, buf).await;
        }
        self.stats.read_done(buf.len(), self.store.env.now_ns() - began_ns, result.is_ok());
        self.store.requests.update(|n| n + 1);
        (buf, result)
    }

    /// Reads blocks of which none is a source's.
    pub(super) async fn read_stored(
        &self,
        found: &[LookupRun],
        offset: u64,
        mut buf: Buf,
    ) -> (Buf, Result<()>) {
        if found.iter().any(|found| !found.backing.is_none()) {
            return self.read_sectors(found, offset, buf).await;
        }
        if let Some(first) = found.first().filter(|_| is_contiguous(found)) {
            if first.is_hole() {
                buf.fill(0);
                return (buf, Ok(()));
            }
            return self.store.file.read(first.addr * BLOCK + (offset - first.start * BLOCK), buf).await;
        }
        let end = offset + buf.len() as u64;
        let runs = found.chunk_by(LookupRun::is_continued_by);
        let parts = runs.map(async |run| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let (from, to) = (offset.max(first.start * BLOCK), end.min(last.end() * BLOCK));
            let len = (to - from) as usize;
            if first.is_hole() {
                return (from, Buf::zeroed(len), Ok(()));
            }
            let at = first.addr * BLOCK + (from - first.start * BLOCK);
            let (part, result) = self.store.file.read(at, Buf::alloc(len)).await;
            (from, part, result)
        });
        let mut result = Ok(());
        for (from, part, outcome) in join_all(parts).await {
            let at = (from - offset) as usize;
            buf[at..at + part.len()].copy_from_slice(&part);
            result = result.and(outcome);
        }
        (buf, result)
    }

    pub(super) async fn write_range(&self, offset: u64, data: Slice) -> Result<()> {
        let began_ns = self.store.env.now_ns();
        let len = data.len();
        let range = offset..offset + len as u64;
        let changes = async || self.changes_map(&range).await;
        let result =
            self.retry_for_space(changes, async || self.write_once(offset, data.clone()).await).await;
        // A write that finds no space is not counted: the guest's server repeats or refuses it.
        if !result.as_ref().is_err_and(Error::is_no_space) {
            self.stats.write_done(len, self.store.env.now_ns() - began_ns, result.is_ok());
        }
        self.store.requests.update(|n| n + 1);
        result
    }

    /// Returns whether a write to these bytes changes the map. Pages that are missing in memory are read, which the
    /// write would do in any case.
    async fn changes_map(&self, range: &Range<u64>) -> Result<bool> {
        let _admitted = self.store.reads.enter();
        let in_place = |found: &LookupRun| self.path_of(found, range) == WritePath::InPlace;
        let blocks = blocks_of(range.start, range.end - range.start);
        self.with_found(blocks, async |found| Ok(!found.iter().all(in_place))).await
    }

    /// Waits for a turn, and for room, if the store is behind and a write `changes` the map.
    async fn admit_change(&self, changes: &impl AsyncFn() -> Result<bool>) -> Result<()> {
        if self.store.is_behind() && changes().await? {
            return self.store.pace().await;
        }
        self.store.refuse_when_broken()
    }

    /// Repeats `once` while there is no space, at the pace of the store if it `changes` the map. Between two tries it
    /// holds neither range nor admission: work that would free space must be able to pass.
    pub(super) async fn retry_for_space<T>(
        &self,
        changes: impl AsyncFn() -> Result<bool>,
        mut once: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let mut waiting = false;
        let result = loop {
            if let Err(e) = self.admit_change(&changes).await {
                break Err(e);
            }
            match once().await {
                // The blocks redirected so far stay; the next try overwrites them in place after the checkpoint that
                // makes room.
                Err(e) if e.is_no_space() && self.waits_for_journal(&changes).await => {}
                Err(e) if e.is_no_space() => {
                    self.store.starved.set(true);
                    self.store.recall_stocks();
                    self.store.work.notify();
                    if self.policy == SpacePolicy::Error || self.closing.get() {
                        break Err(e);
                    }
                    if !std::mem::replace(&mut waiting, true) {
                        self.space_waits.update(true);
                    }
                    self.store.env.sleep_us(self.space_retry_us).await;
                }
                other => break other,
            }
        };
        if waiting {
            self.space_waits.update(false);
        }
        result
    }

    /// Returns whether a write that found no space has to wait for the journal alone, which `admit_change` does.
    async fn waits_for_journal(&self, changes: &impl AsyncFn() -> Result<bool>) -> bool {
        !self.store.journal.has_room() && !self.closing.get() && changes().await.unwrap_or(false)
    }

    async fn write_once(&self, offset: u64, data: Slice) -> Result<()> {
        let blocks = blocks_of(offset, data.len() as u64);
        let _range = self.writes.lock(blocks.clone()).await;
        self.check_write(offset, data.len() as u64)?;
        let edges = self.source_edges(offset..offset + data.len() as u64).await?;
        // The disk may have been closed while an image was read.
        self.check_write(offset, data.len() as u64)?;
        self.changes.note(&blocks);
        let _admitted = self.store.writes.enter();
        self.with_found(blocks, async |found| {
            if let [only] = found
                && self.path_of(only, &(offset..offset + data.len() as u64)) == WritePath::InPlace
            {
                return self.overwrite(only, offset, data).await;
            }
            self.write_found(found, offset, data, &edges).await
        })
        .await
    }

    pub(super) async fn overwrite(&self, found: &LookupRun, offset: u64, data: Slice) -> Result<()> {
        self.store.file.write(found.addr * BLOCK + (offset - found.start * BLOCK), data).await
    }

    /// Overwrites the ranges that may be overwritten, and redirects each range in between.
    async fn write_found(
        &self,
        found: &[LookupRun],
        offset: u64,
        data: Slice,
        edges: &SourceEdges,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let path_of = |found: &LookupRun| self.path_of(found, &(offset..end));
        // The usual first write: nothing is allocated for it.
        if found.iter().all(|found| path_of(found) == WritePath::Redirect) {
            return self.redirect(found, offset, data, edges).await;
        }
        let mut stretches: Vec<(WritePath, &[LookupRun])> = Vec::new();
        let mut from = 0;
        for at in 0..found.len() {
            let path = path_of(&found[at]);
            let joins = found.get(at + 1).is_some_and(|next| {
                path_of(next) == path && (path == WritePath::Redirect || found[at].is_continued_by(next))
            });
            if !joins {
                stretches.push((path, &found[from..=at]));
                from = at + 1;
            }
        }
        let writes = stretches.into_iter().map(async |(path, found)| {
            let first = offset.max(found[0].start * BLOCK);
            let last = end.min(found[found.len() - 1].end() * BLOCK);
            let part = data.slice((first - offset) as usize..(last - offset) as usize);
            match path {
                WritePath::InPlace => self.overwrite(&found[0], first, part).await,
                WritePath::Extend => self.extend(&found[0], first, part).await,
                WritePath::Redirect => self.redirect(found, first, part, edges).await,
            }
        });
        all(writes).await
    }

    async fn flush_now(&self) -> Result<()> {
        let began_ns = self.store.env.now_ns();
        self.store.requests.update(|n| n + 1);
        let result = self.store.flush().await;
        self.stats.flush_done(self.store.env.now_ns() - began_ns, result.is_ok());
        self.store.requests.update(|n| n + 1);
        result
    }
}

/// Returns the blocks that hold a range of bytes.
pub(super) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK..(offset + len).div_ceil(BLOCK)
}

impl Volume for NativeDisk {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.size_bytes(),
            read_only: self.read_only,
            preferred_bytes: BLOCK as u32,
            fast_zero: !self.read_only,
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            match self.check_range(offset, buf.len() as u64) {
                Ok(()) => self.read_range(offset, buf).await,
                Err(e) => (buf, Err(e)),
            }
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.check_write(offset, data.len() as u64)?;
            self.write_range(offset, data).await
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move { if self.read_only { Ok(()) } else { self.flush_now().await } })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.check_write(range.start, range.end - range.start)?;
            self.unmap(range).await.map(drop)
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move { self.zero_range(range, mode).await })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move { self.status_of(range).await })
    }
}
