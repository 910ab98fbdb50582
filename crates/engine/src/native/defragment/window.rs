//! One window of a disk: its blocks are copied to one run while guests go on, and then change their places together.

use std::ops::Range;

use blk::{Buf, Result, Slice};
use futures_util::StreamExt;
use futures_util::stream;

use super::super::blocks::NewPart;
use super::super::changed_blocks::Watch;
use super::super::disk::NativeDisk;
use super::super::layout::{BLOCK, Extent, checksum, has_space};
use super::super::table::LookupRun;
use super::plan::{DefragmentScope, OldPlace, Plan, old_places};
use crate::operations::DefragmentOutcome;
use crate::options::Defect;

/// Most blocks of one record, whose data a recovery reads with one I/O, and of one write.
const PART_BLOCKS: u64 = (1 << 20) / BLOCK;

/// Reads under way at once. A guest's read waits behind these at most.
const READS_AT_ONCE: usize = 16;

/// Most records of one window. Guests that change more of it than this leaves room for get their turn first.
const PARTS_MAX: usize = 32;

/// What became of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It has few jumps, or none that a move would spare.
    InOrder,
    /// A move would spare jumps if it copied blocks that other states show too.
    Shared,
    /// The blocks are at their new place, from the one address to the other.
    Moved(Extent),
    /// No run of free blocks was long enough.
    NoRoom,
    /// Guests or a take changed too much of it meanwhile.
    Changed,
}

impl Outcome {
    /// Returns what became of a window of this many bytes.
    pub(super) fn figures(&self, bytes: u64) -> DefragmentOutcome {
        let none = DefragmentOutcome::default();
        match self {
            Outcome::InOrder => none,
            Outcome::Shared => DefragmentOutcome { shared_bytes: bytes, ..none },
            Outcome::Moved(extent) => DefragmentOutcome { moved_bytes: extent.len * BLOCK, ..none },
            Outcome::NoRoom => DefragmentOutcome { no_room_bytes: bytes, ..none },
            Outcome::Changed => DefragmentOutcome { changed_bytes: bytes, ..none },
        }
    }
}

impl NativeDisk {
    /// Lays the blocks of a window out in order, at `near` if that is free. Guests' writes are held back for the change
    /// of the map alone. What they changed during the copy stays where it is.
    ///
    /// # Errors
    /// `Cancelled`: the disk is being closed, or does not run any more. `NoSpace`: the journal is full. Both change
    /// nothing.
    pub(super) async fn defragment_window(
        &self,
        blocks: Range<u64>,
        scope: DefragmentScope,
        near: Option<u64>,
    ) -> Result<Outcome> {
        let _turn = self.defragment_turn.lock().await;
        let (offset, len) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        self.check_write(offset, len)?;
        // The old places are not used again before this ends.
        let _admitted = self.store.reads.enter();
        let range = self.writes.lock(blocks.clone()).await;
        let watch = self.changes.watch(blocks.clone());
        drop(range);
        // Another core overwrites blocks in place without a note. From here on it sends its writes here.
        self.store.withdraw(&self.node, blocks.clone());
        self.store.drain_writes().await;
        let plan = async |found: &[LookupRun]| Ok((self.node.since.get(), self.plan(found, scope)));
        let (since, plan) = match self.with_found(blocks.clone(), plan).await? {
            (since, Ok(plan)) => (since, plan),
            (_, Err(stays)) => return Ok(stays),
        };
        let Some(extent) = self.store.place_stretch(plan.len(), near).await? else {
            return Ok(Outcome::NoRoom);
        };
        let copied = match self.copy(&plan, extent).await {
            Ok(copied) => copied,
            Err(e) => {
                self.store.unplace(extent);
                return Err(e);
            }
        };
        let _range = self.writes.lock(blocks.clone()).await;
        let parts = async |found: &[LookupRun]| {
            self.check_write(offset, len)?;
            match self.node.since.get() == since {
                true => Ok(self.unchanged_parts(&plan, &copied, (found, &watch))),
                false => Ok(Vec::new()),
            }
        };
        let parts = match self.with_found(blocks, parts).await {
            Ok(parts) => parts,
            Err(e) => {
                self.store.unplace(extent);
                return Err(e);
            }
        };
        if parts.is_empty() || parts.len() > PARTS_MAX {
            self.store.unplace(extent);
            return Ok(Outcome::Changed);
        }
        self.store.publish_some(&self.node, extent, &parts)?;
        Ok(Outcome::Moved(extent))
    }

    /// Returns the blocks to move, or why the window stays as it is.
    fn plan(&self, found: &[LookupRun], scope: DefragmentScope) -> std::result::Result<Plan, Outcome> {
        let plan = |scope| Plan::of(found, |run| self.may_move(run, scope));
        match plan(scope) {
            Some(plan) => Ok(plan),
            None if scope == DefragmentScope::Exclusive && plan(DefragmentScope::SharedToo).is_some() => {
                Err(Outcome::Shared)
            }
            None => Err(Outcome::InOrder),
        }
    }

    /// Returns whether a run may get another place: no replay doubts its record, and no other state shows it unless
    /// `scope` includes such blocks.
    fn may_move(&self, run: &LookupRun, scope: DefragmentScope) -> bool {
        let is_exclusive = run.birth > self.node.since.get();
        has_space(run.addr) && self.is_settled(run) && (is_exclusive || scope == DefragmentScope::SharedToo)
    }

    /// Copies the blocks of a plan to `extent`. Returns their data, and the parts that records take.
    async fn copy(&self, plan: &Plan, extent: Extent) -> Result<(Slice, Vec<NewPart>)> {
        let mut whole = Buf::alloc((extent.len * BLOCK) as usize);
        let mut at = 0;
        let mut pieces = Vec::new();
        for runs in plan.runs.chunk_by(LookupRun::is_continued_by) {
            let len = (runs.iter().map(|run| run.len).sum::<u64>() * BLOCK) as usize;
            pieces.push((at, len, runs));
            at += len;
        }
        // A device with heads reads them in one sweep.
        pieces.sort_unstable_by_key(|(_, _, runs)| runs[0].addr);
        let reads = stream::iter(pieces).map(async |(at, len, runs): (usize, usize, &[LookupRun])| {
            let (piece, result) = self.read_stored(runs, runs[0].start * BLOCK, Buf::alloc(len)).await;
            result.map(|()| (at, piece))
        });
        let mut reads = reads.buffer_unordered(READS_AT_ONCE);
        let mut failed = None;
        // All reads end before an error is returned.
        while let Some(read) = reads.next().await {
            match read {
                Ok((at, piece)) => whole[at..at + piece.len()].copy_from_slice(&piece),
                Err(e) => failed = Some(e),
            }
        }
        drop(reads);
        if let Some(e) = failed {
            return Err(e);
        }
        let data = whole.freeze();
        let parts = parts_of(&plan.old, extent, &data);
        for at in (0..extent.len).step_by(PART_BLOCKS as usize) {
            let end = extent.len.min(at + PART_BLOCKS);
            let part = data.slice((at * BLOCK) as usize..(end * BLOCK) as usize);
            self.store.file.write((extent.addr + at) * BLOCK, part).await?;
        }
        Ok((data, parts))
    }

    /// Returns the parts of a copy that still are what the disk shows.
    fn unchanged_parts(
        &self,
        plan: &Plan,
        (data, parts): &(Slice, Vec<NewPart>),
        (found, watch): (&[LookupRun], &Watch),
    ) -> Vec<NewPart> {
        let unwatched = self.store.options.defects.has(Defect::MoveUnwatched);
        let mut now = found.iter().filter(|run| !run.is_hole()).flat_map(old_places).peekable();
        let is_unchanged: Vec<bool> = plan
            .old
            .iter()
            .map(|old| {
                while now.next_if(|place| place.block < old.block).is_some() {}
                now.peek() == Some(old) && (unwatched || !watch.has(old.block))
            })
            .collect();
        let base = parts[0].place.addr;
        let mut out = Vec::new();
        for part in parts {
            let (first, end) = (part.place.addr - base, part.place.end() - base);
            let flags = &is_unchanged[first as usize..end as usize];
            match flags.iter().all(|unchanged| *unchanged) {
                true => out.push(*part),
                false => out.extend(split(part, base, flags, data)),
            }
        }
        out
    }
}

/// Divides blocks with new places into parts that are contiguous on the disk, of at most `PART_BLOCKS`.
fn parts_of(old: &[OldPlace], extent: Extent, data: &Slice) -> Vec<NewPart> {
    let mut parts = Vec::new();
    let mut at = 0;
    for run in old.chunk_by(|a, b| a.block + 1 == b.block) {
        for some in run.chunks(PART_BLOCKS as usize) {
            let place = Extent { addr: extent.addr + at, len: some.len() as u64 };
            parts.push(part(some[0].block, place, extent.addr, data));
            at += place.len;
        }
    }
    parts
}

/// Returns a part of a copy whose data begins at address `base`.
fn part(start: u64, place: Extent, base: u64, data: &Slice) -> NewPart {
    let bytes = ((place.addr - base) * BLOCK) as usize..((place.end() - base) * BLOCK) as usize;
    NewPart { start, place, partial: None, checksum: checksum(&data[bytes]) }
}

/// Returns the pieces of a part whose blocks have their flags set.
fn split(whole: &NewPart, base: u64, flags: &[bool], data: &Slice) -> Vec<NewPart> {
    let mut out = Vec::new();
    let mut at = 0;
    for flags in flags.chunk_by(|a, b| a == b) {
        let len = flags.len() as u64;
        if flags[0] {
            let place = Extent { addr: whole.place.addr + at, len };
            out.push(part(whole.start + at, place, base, data));
        }
        at += len;
    }
    out
}
