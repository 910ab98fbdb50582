//! Landing: the image of a source is copied into its landing map, until nothing needs the image any more.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use blk::buf::{ZEROS_BYTES, zeros};
use blk::volume::Volume;
use blk::{Buf, Error, Result, Slice};
use futures_util::future::join_all;

use super::super::change::Op;
use super::super::disk::{DiskOptions, NativeDisk};
use super::super::layout::BLOCK;
use super::super::source::{Source, SourceItem, not_attached, source_key};
use super::super::store::Store;
use super::super::view::Scratch;
use crate::job::Job;
use crate::options::{Defect, SpacePolicy};

/// Blocks that one read of the image has, and reads under way at once: a slow image is read ahead, and no guest's write
/// waits behind more than a few of these.
const PIECE_BLOCKS: u64 = (1 << 20) / BLOCK;
const PIECES_AT_ONCE: u64 = 4;
/// Blocks that are copied before the progress is recorded: what a crash makes the next landing look at again, 64 MiB.
const RECORD_BLOCKS: u64 = (64 << 20) / BLOCK;
/// While guests are active, a landing pauses this many times as long as its last step took.
const REST_FACTOR: u64 = 1;
/// Longest pause between two steps.
const REST_US_MAX: u64 = 1_000_000;
/// Time between two looks whether a landing may go on that waits for space.
const HELD_US: u64 = 500_000;
const _: () = assert!(BLOCK as usize <= ZEROS_BYTES);

/// Begin of a step of background work.
pub struct Turn {
    began_ns: u64,
    guest_requests: u64,
}

impl Store {
    /// Begins a step of background work. Steps are short, so that guests do not wait behind one.
    pub fn begin_turn(&self) -> Turn {
        Turn { began_ns: self.env.now_ns(), guest_requests: self.guest_requests() }
    }

    /// Ends a step of background work: pauses as long as it took, if guests were active meanwhile. The step itself has made
    /// `own` requests that count as those of guests.
    pub async fn end_turn(&self, job: &Job, turn: Turn, own: u64) {
        if self.guest_requests() - turn.guest_requests > own {
            let pause_us = (self.env.now_ns() - turn.began_ns) / 1000 * REST_FACTOR;
            job.pause_us(pause_us.min(REST_US_MAX)).await;
        }
    }

    /// Copies what has not landed of a source from its image, and then detaches the image. `job` shows the progress, and
    /// can pause, limit and cancel the landing; it is over when this returns. A later landing goes on where this one
    /// ends. When this succeeds, it is durable that the image is not needed any more.
    ///
    /// # Errors
    /// `Cancelled`: the job was cancelled, the store was closed, or the source was removed. `NoSpace`: the store is full.
    /// Otherwise an error of the image or of the store.
    pub async fn land(self: &Rc<Self>, device: u8, job: &Job) -> Result<()> {
        let result = self.land_for(device, job).await;
        job.end(result.clone());
        result
    }

    async fn land_for(self: &Rc<Self>, device: u8, job: &Job) -> Result<()> {
        let source = self.source(device)?;
        let _turn = source.landing_turn.lock().await;
        let (blocks, mut at) = (source.blocks(), source.landed.get());
        // What the job did before the landing counts too.
        job.bytes_total.set(job.bytes_done.get() + (blocks - at) * BLOCK);
        let options = DiskOptions { policy: SpacePolicy::Error, space_retry_us: 1 };
        let name = format!("source {}", source.name);
        let map = NativeDisk::new(self, self.node(source.landing)?, name, 0, options);
        while at < blocks {
            if let Err(cancelled) = job.checkpoint().await {
                self.record_landed(&source, at).await?;
                return Err(cancelled);
            }
            self.refuse_landing(&source)?;
            if source.is_held() {
                job.wait_for_space(HELD_US).await;
                continue;
            }
            let turn = self.begin_turn();
            let end = blocks.min(at + PIECE_BLOCKS * PIECES_AT_ONCE);
            let wanted = wanted_pieces(&source, end);
            let (extra, pieces) =
                (wanted.len() as u64, (at..end).step_by(PIECE_BLOCKS as usize).chain(wanted));
            let copies =
                pieces.map(|start| land_piece(&map, &source, start..blocks.min(start + PIECE_BLOCKS)));
            let written: Result<u64> = join_all(copies).await.into_iter().sum();
            self.refuse_landing(&source)?;
            let written = written?;
            // What was wanted counts when the landing in order has reached it.
            job.keep_limit(extra * PIECE_BLOCKS * BLOCK).await;
            job.moved((end - at) * BLOCK).await;
            at = end;
            if at == blocks || at - source.landed.get() >= RECORD_BLOCKS {
                self.record_landed(&source, at).await?;
            }
            self.end_turn(job, turn, written).await;
        }
        if !self.options.defects.has(Defect::DetachBeforeFlush) {
            self.flush().await?;
        }
        source.detach();
        source.uses.drain().await;
        Ok(())
    }

    fn refuse_landing(&self, source: &Rc<Source>) -> Result<()> {
        match self.closed.get() || !self.has_source(source) {
            true => Err(Error::cancelled(format!("landing of source {}", source.name))),
            false => Ok(()),
        }
    }

    /// Records that all blocks below `landed` have landed. What was copied is durable before.
    async fn record_landed(&self, source: &Rc<Source>, landed: u64) -> Result<()> {
        if !self.options.defects.has(Defect::LandedBeforeFlush) {
            self.flush().await?;
        }
        self.wait_for_room().await?;
        self.refuse_landing(source)?;
        let item = SourceItem { landed, ..source.item() };
        self.change(&[Op::Put { key: source_key(source.device), value: item.encode() }]).map(drop)
    }
}

/// Returns the next pieces from block `at` on that guests have read from the image, each once.
fn wanted_pieces(source: &Source, at: u64) -> Vec<u64> {
    let blocks = source.take_wanted(PIECES_AT_ONCE as usize);
    let pieces =
        blocks.into_iter().map(|block| block / PIECE_BLOCKS * PIECE_BLOCKS).filter(|start| *start >= at);
    pieces.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Copies what has not landed of some blocks and is not zeros. Returns the number of writes.
async fn land_piece(map: &Rc<NativeDisk>, source: &Rc<Source>, blocks: Range<u64>) -> Result<u64> {
    let missing = missing(map, blocks.clone()).await?;
    if missing.is_empty() {
        return Ok(0);
    }
    let image = source.image.borrow().clone().ok_or_else(|| not_attached(source, &blocks))?;
    let (from, end) = (blocks.start * BLOCK, source.bytes.min(blocks.end * BLOCK));
    let status = image.clone().status(from..end).await.unwrap_or_default();
    if status.iter().filter(|piece| piece.zero).map(|piece| piece.len).sum::<u64>() == end - from {
        return Ok(0);
    }
    let (read, result) = image.read(from, Buf::alloc((end - from) as usize)).await;
    result?;
    let mut whole = Buf::zeroed(((blocks.end - blocks.start) * BLOCK) as usize);
    whole[..read.len()].copy_from_slice(&read);
    write_data(map, blocks.start, missing, whole.freeze()).await
}

/// Returns the blocks that the landing map does not have.
async fn missing(map: &NativeDisk, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
    let _admitted = map.store.reads.enter();
    let mut scratch = Scratch::default();
    map.store.find(&map.node, blocks, &mut scratch).await?;
    Ok(scratch.found.iter().filter(|run| run.is_hole()).map(|run| run.start..run.end()).collect())
}

/// Writes those of the `missing` blocks that are not zeros; `data` begins with block `start`. Returns the number of
/// writes.
async fn write_data(map: &Rc<NativeDisk>, start: u64, missing: Vec<Range<u64>>, data: Slice) -> Result<u64> {
    let (zeros, mut writes) = (zeros(), 0);
    let bytes = |blocks: &Range<u64>| {
        ((blocks.start - start) * BLOCK) as usize..((blocks.end - start) * BLOCK) as usize
    };
    let is_data = |block: &u64| data[bytes(&(*block..block + 1))] != zeros[..BLOCK as usize];
    for blocks in missing {
        let mut at = blocks.start;
        while let Some(first) = (at..blocks.end).find(is_data) {
            at = (first..blocks.end).find(|block| !is_data(block)).unwrap_or(blocks.end);
            map.clone().write(first * BLOCK, data.slice(bytes(&(first..at)))).await?;
            writes += 1;
        }
    }
    Ok(writes)
}
