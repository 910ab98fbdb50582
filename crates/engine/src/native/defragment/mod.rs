//! Defragmentation of a running disk: blocks that belong to the disk alone are laid out in the order of their addresses.
//!
//! The pass goes through the disk window by window. A window in which a sequential read jumps is copied to one run of
//! free blocks, without a lock. Guests' changes are noted meanwhile. Then the blocks that nothing has changed get their
//! new places in one step, by the same records that a redirected write makes: a crash at any point leaves the old or the
//! new place, which hold the same data. The old places are freed as those of any redirect.

mod fragmentation;
mod plan;
#[cfg(test)]
mod tests;
mod window;

use std::ops::Range;

use blk::{Error, ErrorKind, Result};

use self::window::Outcome;
use super::disk::NativeDisk;
use super::layout::{BLOCK, Extent};
use super::store::Store;
use super::view::Scratch;
use crate::job::Job;
use crate::operations::DefragmentOutcome;

pub use self::fragmentation::Fragmentation;
pub use self::plan::DefragmentScope;

/// Blocks of a window. The pass has a window's data in memory twice, 8 MiB. A jump of 8 ms at each end costs a hard disk
/// with 150 MB/s a quarter of the time in which it reads a window.
const WINDOW_BLOCKS: u64 = (4 << 20) / BLOCK;

/// Most blocks of one look-up that searches for data, 256 MiB.
const SEARCH_BLOCKS: u64 = (256 << 20) / BLOCK;

/// Blocks that are moved before a checkpoint gives their old places back, 1 GiB.
const CHECKPOINT_BLOCKS: u64 = (1 << 30) / BLOCK;

/// While guests are active, the pass pauses this many times as long as its last window took.
const REST_FACTOR: u64 = 2;
/// Longest pause between two windows.
const REST_US_MAX: u64 = 1_000_000;

/// Copies of one window before it stays as it is because guests change it all the time.
const TRIES_MAX: u32 = 3;

/// Time after which a window is tried again whose disk was about to be replaced.
const RETRY_US: u64 = 10_000;

/// A job, and the bytes of the disks that it works on before and after one disk.
#[derive(Clone, Copy)]
pub struct DefragmentJob<'a> {
    /// The job.
    pub job: &'a Job,
    /// Bytes of the disks before this one.
    pub before: u64,
    /// Bytes of the disks after this one.
    pub after: u64,
}

impl DefragmentJob<'_> {
    /// Shows that a disk of `size` blocks is done up to `block`.
    fn reached(&self, block: u64, size: u64) {
        self.job.bytes_total.set(self.before + size * BLOCK + self.after);
        self.job.bytes_done.set(self.before + block.min(size) * BLOCK);
    }
}

impl NativeDisk {
    /// Lays the disk out in order. The job shows the progress in bytes of the disk and what was done, and can pause,
    /// limit and cancel the pass; the caller ends the job. What was moved before an error or a cancel stays moved.
    ///
    /// # Errors
    /// `Cancelled`: the job was cancelled or its VM is being closed, or the disk was replaced by a revert or removed;
    /// the latter may be `Refused` too. Otherwise an error of the store.
    pub async fn defragment(
        &self,
        scope: DefragmentScope,
        of: DefragmentJob<'_>,
    ) -> Result<DefragmentOutcome> {
        let job = of.job;
        let (mut done, mut at, mut near) = (DefragmentOutcome::default(), 0, None);
        let (mut tries, mut unfreed) = (0, 0);
        self.settle_all(job).await?;

        while let Some(window) = self.next_window(at, of).await? {
            let (began_ns, before) = (self.store.env.now_ns(), self.store.guest_requests());
            let outcome = match self.defragment_window(window.clone(), scope, near).await {
                Ok(outcome) => outcome,
                Err(e) if self.may_try_again(&e) => {
                    job.pause_us(RETRY_US).await;
                    continue;
                }
                Err(e) => return Err(e),
            };
            tries = if outcome == Outcome::Changed { tries + 1 } else { 0 };
            if tries == TRIES_MAX {
                tries = 0;
            }
            if let Outcome::Moved(Extent { addr, len }) = outcome {
                near = Some(addr + len);
                unfreed += len;
            }
            let bytes = (window.end - window.start) * BLOCK;
            if tries == 0 {
                at = window.end;
                let more = outcome.figures(bytes);
                done.add(&more);
                job.add_defragmented(&more);
            }
            if matches!(outcome, Outcome::InOrder | Outcome::Shared) {
                self.store.env.next_turn().await;
                continue;
            }
            job.moved(if tries == 0 { bytes } else { 0 }).await;
            if unfreed >= CHECKPOINT_BLOCKS {
                unfreed = 0;
                self.store.checkpoint().await?;
            }
            self.rest(began_ns, before, job).await;
        }
        // The job is over when the moves are durable and the old places are given back.
        if unfreed > 0 {
            self.store.checkpoint().await?;
        }
        Ok(done)
    }

    /// Flushes until no replay doubts a record from before now: blocks of a record in doubt do not move.
    async fn settle_all(&self, job: &Job) -> Result<()> {
        let journal = &self.store.journal;
        let last = journal.last_lsn();
        while journal.durable_flushed_lsn() < last {
            job.checkpoint().await?;
            self.store.refuse_when_broken()?;
            self.store.flush().await?;
        }
        Ok(())
    }

    /// Returns the part of a window with data that begins at block `at` or later; None at the end of the disk.
    async fn next_window(&self, at: u64, of: DefragmentJob<'_>) -> Result<Option<Range<u64>>> {
        of.job.checkpoint().await?;
        let size = self.node.size_blocks.get();
        let at = self.next_data(at).await?;
        of.reached(at, size);
        if at >= size {
            return Ok(None);
        }
        // A merge that is behind delays this work like a guest's write.
        if self.store.is_behind() {
            of.job.or_cancelled(self.store.pace()).await??;
        }
        self.store.refuse_when_broken()?;
        Ok(Some(at..size.min((at / WINDOW_BLOCKS + 1) * WINDOW_BLOCKS)))
    }

    /// Returns whether a window that failed with `e` may be tried again: the journal was full, or an operation has
    /// stopped the disk's writes and may let them go on.
    fn may_try_again(&self, e: &Error) -> bool {
        let is_there = self.node.is_running() && !self.node.dropped.get() && !self.is_replaced.get();
        let runs = is_there && !self.store.closed.get();
        runs && self.store.broken().is_none()
            && ((e.is_no_space() && !self.store.journal.has_room())
                || (e.kind == ErrorKind::Cancelled && self.closing.get()))
    }

    /// Returns the first window boundary, or block of data, at or behind which there is data; the disk's end if there is
    /// none.
    async fn next_data(&self, from: u64) -> Result<u64> {
        let (mut at, mut span, mut scratch) = (from, WINDOW_BLOCKS, Scratch::default());
        loop {
            let size = self.node.size_blocks.get();
            if at >= size {
                return Ok(size);
            }
            self.check_range(at * BLOCK, 0)?;
            let end = size.min(at + span);
            let admitted = self.store.reads.enter();
            self.store.find(&self.node, at..end, &mut scratch).await?;
            drop(admitted);
            if let Some(data) = scratch.found.iter().find(|run| !run.is_hole()) {
                return Ok((data.start / WINDOW_BLOCKS * WINDOW_BLOCKS).max(from));
            }
            at = end;
            span = (span * 2).min(SEARCH_BLOCKS);
            self.store.env.next_turn().await;
        }
    }

    /// Pauses for the guests, if one has made a request since `before`.
    async fn rest(&self, began_ns: u64, before: u64, job: &Job) {
        if self.store.guest_requests() != before {
            let pause_us = (self.store.env.now_ns() - began_ns) / 1000 * REST_FACTOR;
            job.pause_us(pause_us.min(REST_US_MAX)).await;
        }
    }
}

impl Store {
    /// Places exactly `len` blocks in one run; `publish_some` or `unplace` must follow.
    async fn place_stretch(&self, len: u64, near: Option<u64>) -> Result<Option<Extent>> {
        let placed = self.space.place_stretch(len, near).await?;
        self.unpublished.borrow_mut().extend(placed);
        Ok(placed)
    }
}
