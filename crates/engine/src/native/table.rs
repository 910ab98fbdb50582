//! Redirects that are in no tree yet: runs of blocks, the newest for each block. They are in memory, and in the journal
//! too.

use std::collections::BTreeMap;
use std::ops::Range;

use super::backing::Backing;
use super::layout::{Extent, device_of};
use super::tree::{Update, span};

/// Blocks covered by a leaf of a tree.
const LEAF_BLOCKS: u64 = span(0);

/// A run of blocks at one place, as of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    pub len: u64,
    /// 0: the blocks read as zeros and have no space.
    pub addr: u64,
    pub birth: u64,
    pub lsn: u64,
}

/// A block in a table that was written in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialBlock {
    /// None once the block has all of its sectors.
    pub backing: Backing,
    /// The block got its place in this table, and did not only get further sectors there.
    pub is_placed_here: bool,
}

/// Result of a lookup for a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupRun {
    pub start: u64,
    pub len: u64,
    /// 0: the blocks read as zeros.
    pub addr: u64,
    pub birth: u64,
    /// Number of the record that placed the blocks; 0 once a checkpoint has settled them.
    pub lsn: u64,
    /// The block that has the rest of the sectors; then `len` is 1.
    pub backing: Backing,
}

impl LookupRun {
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    pub fn is_hole(&self) -> bool {
        self.addr == 0
    }

    /// Returns the number of the source that has the blocks; 0: the blocks are the store's, or a hole.
    pub fn device(&self) -> u8 {
        device_of(self.addr)
    }

    /// Returns a part of a run without a backing block.
    pub fn part(&self, blocks: Range<u64>) -> LookupRun {
        let addr = if self.addr == 0 { 0 } else { self.addr + (blocks.start - self.start) };
        LookupRun { start: blocks.start, len: blocks.end - blocks.start, addr, ..*self }
    }

    /// Returns whether the disk's next blocks are also the store's next ones: one I/O reaches both, even if they were
    /// written at different times.
    pub fn is_continued_by(&self, next: &LookupRun) -> bool {
        !self.is_hole()
            && self.end() == next.start
            && self.addr + self.len == next.addr
            && self.backing.is_none()
            && next.backing.is_none()
    }
}

/// Returns whether one I/O reaches all of the blocks.
pub(super) fn is_contiguous(found: &[LookupRun]) -> bool {
    found.windows(2).all(|pair| pair[0].is_continued_by(&pair[1]))
}

/// Redirects keyed by their first block; runs never overlap.
#[derive(Default)]
pub struct Table {
    runs: BTreeMap<u64, Redirect>,
    /// Blocks that were written in part; each is a run of its own.
    parts: BTreeMap<u64, PartialBlock>,
    leaves: u64,
    mapped: u64,
}

impl Table {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of runs, which bounds the memory used.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns the most leaves that a merge of the table may have to write.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Returns the number of blocks of all runs that are not holes.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Counts the leaves that a run touches and that have no run yet. A hole over several leaves changes its first and
    /// its last one, and drops those in between.
    fn new_leaves(&self, blocks: &Range<u64>, hole: bool) -> u64 {
        let (first, last) = (blocks.start / LEAF_BLOCKS, (blocks.end - 1) / LEAF_BLOCKS);
        let is_new =
            |leaf: &u64| self.runs.range(leaf * LEAF_BLOCKS..(leaf + 1) * LEAF_BLOCKS).next().is_none();
        match hole && last > first {
            true => 2,
            false => (first..=last).filter(is_new).count() as u64,
        }
    }

    /// Inserts a run over earlier ones. The space that they got in this table, and that is not the new run's, goes to
    /// `displaced`.
    pub fn insert(&mut self, start: u64, redirect: Redirect, displaced: &mut Vec<Extent>) {
        let blocks = start..start + redirect.len;
        let hole = redirect.addr == 0;
        self.mapped += if hole { 0 } else { redirect.len };
        let overlaps = match self.runs.range_mut(..blocks.end).next_back() {
            // The usual overwrite: the number of leaves does not change.
            Some((&at, old)) if at == start && old.len == redirect.len && (old.addr == 0) == hole => {
                let old = std::mem::replace(old, redirect);
                match old.addr == redirect.addr {
                    // A block that gets more of its sectors stays where it is.
                    true => self.mapped -= if hole { 0 } else { old.len },
                    false => self.displace(start, &old, displaced),
                }
                return;
            }
            Some((&at, old)) => at + old.len > start,
            None => false,
        };
        self.leaves += self.new_leaves(&blocks, hole);
        if overlaps {
            self.cut_out(&blocks, displaced);
        }
        self.runs.insert(start, redirect);
    }

    /// Inserts a block that has only some of its sectors at its place, or that got its last ones.
    pub fn insert_partial(
        &mut self,
        block: u64,
        redirect: Redirect,
        part: PartialBlock,
        displaced: &mut Vec<Extent>,
    ) {
        assert!(redirect.len == 1 && redirect.addr != 0, "{redirect:?} of {part:?}");
        let before = self.runs.get(&block).filter(|old| old.addr == redirect.addr);
        let was_placed_here = before.map(|_| self.parts.get(&block).is_none_or(|part| part.is_placed_here));
        self.insert(block, redirect, displaced);
        let is_placed_here = was_placed_here.unwrap_or(part.is_placed_here);
        match part.backing.is_none() && is_placed_here {
            true => self.parts.remove(&block),
            false => self.parts.insert(block, PartialBlock { is_placed_here, ..part }),
        };
    }

    fn cut_out(&mut self, blocks: &Range<u64>, displaced: &mut Vec<Extent>) {
        self.cut_at(blocks.start);
        self.cut_at(blocks.end);
        while let Some((at, old)) = self.runs.range(blocks.clone()).next().map(|(at, old)| (*at, *old)) {
            self.displace(at, &old, displaced);
            self.runs.remove(&at);
        }
    }

    /// Notes the space of a run that is replaced. A place that the block had before this table belongs to the tree.
    fn displace(&mut self, start: u64, old: &Redirect, displaced: &mut Vec<Extent>) {
        let part = if self.parts.is_empty() { None } else { self.parts.remove(&start) };
        if old.addr == 0 {
            return;
        }
        self.mapped -= old.len;
        if part.is_none_or(|part| part.is_placed_here) {
            displaced.push(Extent { addr: old.addr, len: old.len });
        }
    }

    /// Splits a run that reaches across `at`, so that `at` is the start of one.
    fn cut_at(&mut self, at: u64) {
        let Some((&start, redirect)) = self.runs.range_mut(..at).next_back() else { return };
        if start + redirect.len <= at {
            return;
        }
        let mut tail = *redirect;
        redirect.len = at - start;
        tail.len -= redirect.len;
        tail.addr += if tail.addr == 0 { 0 } else { redirect.len };
        self.runs.insert(at, tail);
    }

    /// Returns the run that holds `block`, cut to begin there.
    fn at(&self, block: u64) -> Option<LookupRun> {
        let (&start, redirect) = self.runs.range(..=block).next_back()?;
        let found =
            (block < start + redirect.len).then(|| clip(start, redirect, block..start + redirect.len))?;
        Some(LookupRun { backing: self.backing_of(start), ..found })
    }

    fn backing_of(&self, start: u64) -> Backing {
        match self.parts.is_empty() {
            true => Backing::NONE,
            false => self.parts.get(&start).map_or(Backing::NONE, |part| part.backing),
        }
    }

    /// Returns the run at `blocks.start`, or None, and the end of the run or of the gap.
    pub fn next(&self, blocks: &Range<u64>) -> (Option<LookupRun>, u64) {
        if self.runs.is_empty() {
            return (None, blocks.end);
        }
        if let Some(found) = self.at(blocks.start) {
            let len = found.len.min(blocks.end - blocks.start);
            return (Some(LookupRun { len, ..found }), blocks.start + len);
        }
        if blocks.end - blocks.start == 1 {
            return (None, blocks.end);
        }
        let next = self.runs.range(blocks.clone()).next();
        (None, next.map_or(blocks.end, |(&start, _)| start))
    }

    /// Appends the runs that begin at block `from` or later, `max` of them at most. Returns the start of the next one.
    pub fn updates(&self, from: u64, max: usize, out: &mut Vec<Update>) -> Option<u64> {
        let mut runs = self.runs.range(from..);
        out.extend(runs.by_ref().take(max).map(|(&start, redirect)| Update {
            start,
            len: redirect.len,
            addr: redirect.addr,
            birth: redirect.birth,
            backing: self.backing_of(start),
        }));
        runs.next().map(|(&start, _)| start)
    }

    pub fn runs(&self) -> impl Iterator<Item = (u64, Redirect)> {
        self.runs.iter().map(|(&start, &redirect)| (start, redirect))
    }
}

fn clip(start: u64, redirect: &Redirect, to: Range<u64>) -> LookupRun {
    let addr = if redirect.addr == 0 { 0 } else { redirect.addr + (to.start - start) };
    let Redirect { birth, lsn, .. } = *redirect;
    LookupRun { start: to.start, len: to.end - to.start, addr, birth, lsn, backing: Backing::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(len: u64, addr: u64, lsn: u64) -> Redirect {
        Redirect { len, addr, birth: 1, lsn }
    }

    #[test]
    fn a_newer_run_replaces_the_part_that_it_covers() {
        let (mut table, mut gone) = (Table::default(), Vec::new());
        table.insert(10, redirect(10, 100, 1), &mut gone);
        table.insert(13, redirect(2, 500, 2), &mut gone);
        assert_eq!(gone, [Extent { addr: 103, len: 2 }]);
        let runs: Vec<_> = table.runs().map(|(start, h)| (start, h.len, h.addr)).collect();
        assert_eq!(runs, [(10, 3, 100), (13, 2, 500), (15, 5, 105)]);
        assert_eq!(table.mapped(), 10);
        gone.clear();
        table.insert(0, redirect(100, 0, 3), &mut gone);
        assert_eq!((gone.iter().map(|e| e.len).sum::<u64>(), table.mapped()), (10, 0));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn leaves_are_counted_once() {
        let (mut table, mut gone) = (Table::default(), Vec::new());
        for block in [0, 3, LEAF_BLOCKS - 1, LEAF_BLOCKS, 7 * LEAF_BLOCKS] {
            table.insert(block, redirect(1, 100, 1), &mut gone);
        }
        assert_eq!(table.leaves(), 3);
        table.insert(2 * LEAF_BLOCKS - 1, redirect(2, 200, 2), &mut gone);
        assert_eq!(table.leaves(), 4);
        table.insert(0, redirect(1000 * LEAF_BLOCKS, 0, 3), &mut gone);
        assert_eq!(table.leaves(), 6);
    }

    #[test]
    fn a_lookup_returns_runs_and_the_ends_of_gaps() {
        let (mut table, mut gone) = (Table::default(), Vec::new());
        table.insert(10, redirect(4, 100, 7), &mut gone);
        assert_eq!(table.next(&(0..20)), (None, 10));
        let found = LookupRun { start: 12, len: 2, addr: 102, birth: 1, lsn: 7, backing: Backing::NONE };
        assert_eq!(table.next(&(12..20)), (Some(found), 14));
        assert_eq!(table.next(&(14..20)), (None, 20));
    }
}
