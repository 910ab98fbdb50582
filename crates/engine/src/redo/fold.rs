//! A commit as a drain: the content of one delta moves into the layer below it, region by region, until the delta is
//! empty.
//!
//! This order makes a crash harmless at any point: copy a region; flush the parent; clear the delta's pointer; flush
//! the delta; only then the parent alone holds the region. The format itself records the progress, so a crash, a cancel
//! or a resume needs no journal.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::layer::Run;
use blk::manifest::Manifest;
use blk::sync::Signal;
use blk::{Buf, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::stream;

use super::chain::{FoldRoute, held};
use super::disk::Disk;
use super::link::Link;
use super::map::Piece;
use super::pace::Pace;
use super::space::{SpaceHold, reserve_bytes, set_aside};
use super::vm::Vm;
use crate::job::Job;
use crate::options::Defect;

/// Block size of a file system: smaller pieces cannot be given back.
const PUNCH_BYTES: u64 = 4096;

/// Moves `route.source` into `route.target`. A disk has at most one at a time.
pub(super) struct Fold {
    pub disk: Rc<Disk>,
    pub route: Rc<FoldRoute>,
    pub job: Rc<Job>,
    pace: Pace,
    manifest: Rc<dyn Manifest>,
    /// (file, offset, length) of the source's space that nothing refers to.
    freed: RefCell<Vec<(u16, u64, u64)>>,
    /// Number of pieces under way, and the signal that one has ended.
    under_way: Cell<usize>,
    piece_ended: Signal,
    /// A piece of the batch has failed: no further one begins.
    failing: Cell<bool>,
    /// Time spent on changes of the route of guest writes, without an await: the stun of a commit.
    pub stun_ns: Cell<u64>,
    /// Part of the batch was not copied because a higher layer shadows it.
    skipped: Cell<bool>,
}

impl Fold {
    pub(super) fn new(vm: &Vm, disk: Rc<Disk>, route: Rc<FoldRoute>, job: Rc<Job>) -> Fold {
        Fold {
            pace: Pace::new(disk.env.clone(), vm.disks(), disk.options.fold),
            disk,
            route,
            job,
            manifest: vm.manifest().clone(),
            freed: RefCell::default(),
            under_way: Cell::new(0),
            piece_ended: Signal::default(),
            failing: Cell::new(false),
            stun_ns: Cell::new(0),
            skipped: Cell::new(false),
        }
    }

    fn steer(&self, route: Option<Rc<FoldRoute>>) {
        let began_ns = self.disk.env.now_ns();
        self.disk.set_fold(route);
        self.stun_ns.set(self.stun_ns.get() + self.disk.env.now_ns() - began_ns);
    }

    /// Steers guest writes, then moves everything. On `Ok` the source is empty. `Cancelled` and errors leave a correct
    /// chain: what is left in the source still shadows the target.
    pub(super) async fn drain(&self) -> Result<()> {
        self.steer(Some(self.route.clone()));
        // First writes admitted before may still be under way into the source.
        let drained = self.disk.write_gate.drain();
        if !self.disk.options.defects.has(Defect::FoldWithoutDrain) {
            drained.await;
        }
        let result = self.move_counted().await;
        if result.is_err() && !self.route.releasing.get() {
            self.route.moving.borrow_mut().clear();
            self.steer(None);
        }
        result
    }

    /// Moves everything and sets the job's total. From here on the source only shrinks, so what it holds now is the
    /// most that is moved.
    async fn move_counted(&self) -> Result<()> {
        let held = held_bytes(&self.disk, &self.route.source).await?;
        let moved_before = self.job.bytes_done.get();
        self.job.bytes_total.set(moved_before + held + self.job.bytes_later.get());
        self.move_all().await
    }

    async fn move_all(&self) -> Result<()> {
        let size = self.disk.size_bytes();
        let regions = 0..size.div_ceil(self.route.region_bytes());
        let mut batch = Vec::new();
        for region in regions {
            if self.route.source.layer.populated(region) {
                batch.push(region);
            }
            if batch.len() == self.disk.options.fold.batch_regions {
                self.move_batch(&std::mem::take(&mut batch)).await?;
            }
        }
        self.move_batch(&batch).await
    }

    async fn move_batch(&self, regions: &[u64]) -> Result<()> {
        let mut left = regions;
        while !left.is_empty() {
            self.job.checkpoint().await?;
            match self.try_counted(left).await {
                Err(e) if e.is_no_space() && !self.route.releasing.get() => {
                    let moved = self.move_one_when_full(left[0]).await?;
                    left = &left[usize::from(moved)..];
                }
                other => return other,
            }
        }
        Ok(())
    }

    /// Moves a batch. A batch that fails before its release has moved nothing.
    async fn try_counted(&self, regions: &[u64]) -> Result<()> {
        let done = self.job.bytes_done.get();
        let result = self.try_batch(regions).await;
        if result.is_err() && !self.route.releasing.get() {
            self.route.moving.borrow_mut().clear();
            self.job.bytes_done.set(done);
        }
        result
    }

    /// Moves on when the datastore is full: gives back what this commit has freed so far. If that is nothing, moves one
    /// region into the reserve while guests that need space wait. Returns false when the region has to be tried again.
    async fn move_one_when_full(&self, region: u64) -> Result<bool> {
        if self.punch_freed().await? {
            return Ok(false);
        }
        let hold = SpaceHold::over(&self.pace.disks).await;
        let moved = async {
            self.manifest.reserve(0).await?;
            self.try_counted(&[region]).await?;
            self.punch_freed().await
        };
        let moved = moved.await;
        // If the space is gone meanwhile, the next try finds no reserve and waits.
        set_aside(&*self.manifest, reserve_bytes(&self.disk.options, &self.pace.disks)).await;
        drop(hold);
        match moved {
            Ok(_) => Ok(true),
            Err(e) if e.may_pass() && !self.route.releasing.get() => {
                self.job.wait_for_space(self.disk.options.space_retry_us).await;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Gives the released space back to the datastore. The removal of its pointers is durable, and this waits for
    /// requests that looked them up before. Nothing is punched while a sealed view shares the layer. Returns false when
    /// nothing was freed.
    async fn punch_freed(&self) -> Result<bool> {
        let shared = Rc::strong_count(&self.route.source.layer) > 1;
        if shared || self.freed.borrow().is_empty() {
            return Ok(false);
        }
        let (reads, writes) = (self.disk.read_gate.drain(), self.disk.write_gate.drain());
        reads.await;
        writes.await;
        let mut freed = self.freed.take();
        freed.sort_unstable();
        self.punch(&freed).await
    }

    async fn punch(&self, sorted: &[(u16, u64, u64)]) -> Result<bool> {
        let files = self.route.source.layer.files();
        let mut punched = false;
        for (file, range) in merged(sorted) {
            // The file system takes back whole blocks only.
            let start = range.start.next_multiple_of(PUNCH_BYTES);
            let end = range.end / PUNCH_BYTES * PUNCH_BYTES;
            if start < end {
                match files[usize::from(file)].give_back(start, end - start).await {
                    // The space stays allocated until the layer is removed.
                    Err(e) if e.kind == ErrorKind::Unsupported => return Ok(false),
                    given => given?,
                }
                punched = true;
            }
        }
        Ok(punched)
    }

    async fn try_batch(&self, regions: &[u64]) -> Result<()> {
        if regions.is_empty() {
            return Ok(());
        }
        let mut pieces = Vec::new();
        for &region in regions {
            pieces.extend(self.begin_region(region).await?);
        }
        self.copy_all(pieces).await?;
        let (source, target) = (&self.route.source, &self.route.target);
        let defects = self.disk.options.defects;
        if !defects.has(Defect::ReleaseBeforeParentFlush) {
            target.flush().await?;
        }
        // Data that was skipped because a higher layer shadows it is gone after the release: the shadow must be
        // durable.
        if self.skipped.replace(false) && !defects.has(Defect::ReleaseBeforeShadowFlush) {
            self.disk.flush_links(|link| !Rc::ptr_eq(link, source)).await?;
        }
        if defects.has(Defect::PunchBeforeRelease) {
            let moving: Vec<_> = self.route.moving.borrow().values().cloned().collect();
            let mut early: Vec<_> =
                moving.iter().flat_map(|m| held(m)).map(|(run, file, at)| (file, at, run.len)).collect();
            early.sort_unstable();
            self.punch(&early).await?;
        }
        self.route.releasing.set(true);
        for &region in regions {
            source.layer.release(region);
        }
        source.note_write();
        let freed = finish_release(&self.disk, &self.route).await?;
        self.freed.borrow_mut().extend(freed);
        Ok(())
    }

    /// Begins to move a region. From here on writes into it go to both layers; writes admitted before hold their ranges
    /// against the copy.
    async fn begin_region(&self, region: u64) -> Result<Vec<Piece>> {
        let runs: Rc<Vec<Run>> =
            Rc::new(self.route.source.layer.lookup(range_of(&self.disk, &self.route, region)).await?);
        self.route.moving.borrow_mut().insert(region, runs.clone());
        Ok(self.pieces_of(&runs))
    }

    /// Copies the pieces of all regions of a batch together: a region with little data does not make the next one wait
    /// for its slowest piece.
    async fn copy_all(&self, pieces: Vec<Piece>) -> Result<()> {
        let depth = self.disk.options.fold.depth.max(1);
        let mut copies =
            stream::iter(pieces.into_iter().map(|piece| self.copy_in_turn(piece))).buffer_unordered(depth);
        // After an error the pieces under way are awaited: their writes could otherwise land after newer ones.
        let mut result = Ok(());
        while let Some(copied) = copies.next().await {
            result = result.and(copied);
            self.failing.set(result.is_err());
        }
        self.failing.set(false);
        result
    }

    /// Splits the runs into pieces no larger than a guest write may have to wait for.
    fn pieces_of(&self, runs: &[Run]) -> Vec<Piece> {
        let unit = self.disk.options.fold.piece_bytes;
        let slot = self.route.source.slot;
        let mut pieces = Vec::new();
        for (run, file, offset) in held(runs) {
            let mut at = 0;
            while at < run.len {
                let len = unit.min(run.len - at);
                pieces.push(Piece { start: run.start + at, len, slot: slot + file, offset: offset + at });
                at += len;
            }
        }
        pieces
    }

    async fn copy_in_turn(&self, piece: Piece) -> Result<()> {
        self.job.checkpoint().await?;
        while self.under_way.get() >= self.pace.share() {
            self.piece_ended.wait().await;
        }
        if self.failing.get() {
            return Ok(());
        }
        self.under_way.set(self.under_way.get() + 1);
        let began_ns = self.disk.env.now_ns();
        let copied = self.copy_piece(piece).await;
        if copied.is_ok() {
            let pause_us = self.pace.pause_us(self.disk.env.now_ns() - began_ns);
            self.job.moved(piece.len).await;
            self.job.pause_us(pause_us).await;
        }
        self.under_way.set(self.under_way.get() - 1);
        self.piece_ended.notify();
        copied
    }

    async fn copy_piece(&self, piece: Piece) -> Result<()> {
        let range = piece.start..piece.start + piece.len;
        let lock = self.disk.writes.lock(range.clone());
        let _held = if self.disk.options.defects.has(Defect::CopyWithoutLock) {
            drop(lock);
            None
        } else {
            Some(lock.await)
        };
        for part in self.unshadowed(&piece).await? {
            let file = self.route.source.file(part.slot);
            let (buf, result) = file.read(part.offset, Buf::alloc(part.len as usize)).await;
            result?;
            let chain = self.disk.chain();
            let range = part.start..part.start + part.len;
            self.disk.write_into(&self.route.target, &chain, range, buf.freeze(), false).await?;
        }
        Ok(())
    }

    /// Returns the parts of a piece that must reach the target: all of it while any named state depends on the source.
    async fn unshadowed(&self, piece: &Piece) -> Result<Vec<Piece>> {
        if !self.route.skip_shadowed.get() {
            return Ok(vec![*piece]);
        }
        let mut now = self.disk.resolve(piece.start..piece.start + piece.len).await?;
        let all = now.len();
        now.retain(|p| self.route.source.owns(p.slot));
        self.skipped.set(self.skipped.get() || now.len() < all);
        Ok(now)
    }
}

/// Makes the release of the moving regions durable; from then on the target alone holds their data. Returns the space
/// that they used in the source: file, offset and length.
///
/// # Errors
///
/// `Latched`: an earlier flush of the source failed, and only reopening the disk shows which layer is valid. `NoSpace`:
/// the tables could not be written; the call may be repeated.
pub(super) async fn finish_release(disk: &Disk, route: &FoldRoute) -> Result<Vec<(u16, u64, u64)>> {
    let mut freed = Vec::new();
    if !route.releasing.get() {
        return Ok(freed);
    }
    route.source.flush().await?;
    route.releasing.set(false);
    for (region, pinned) in route.moving.take() {
        freed.extend(held(&pinned).map(|(run, file, offset)| (file, offset, run.len)));
        disk.map.invalidate(range_of(disk, route, region));
    }
    Ok(freed)
}

fn range_of(disk: &Disk, route: &FoldRoute, region: u64) -> Range<u64> {
    let bytes = route.region_bytes();
    region * bytes..disk.size_bytes().min((region + 1) * bytes)
}

/// Joins neighbouring ranges.
fn merged(sorted: &[(u16, u64, u64)]) -> Vec<(u16, Range<u64>)> {
    let mut out: Vec<(u16, Range<u64>)> = Vec::new();
    for &(file, offset, len) in sorted {
        match out.last_mut() {
            Some((last, range)) if *last == file && range.end == offset => range.end += len,
            _ => out.push((file, offset..offset + len)),
        }
    }
    out
}

/// Returns the bytes of the disk that a layer holds according to its tables: what a commit of it would move.
pub(super) async fn held_bytes(disk: &Disk, link: &Link) -> Result<u64> {
    let region_bytes = link.layer.shape().region_bytes;
    let mut total = 0;
    for region in (0..disk.size_bytes().div_ceil(region_bytes)).filter(|&r| link.layer.populated(r)) {
        let range = region * region_bytes..disk.size_bytes().min((region + 1) * region_bytes);
        total += held(&link.layer.lookup(range).await?).map(|(run, ..)| run.len).sum::<u64>();
    }
    Ok(total)
}
