//! One grant: the places of the blocks of a window, and which of them may be overwritten.

use std::ops::Range;
use std::sync::Arc;

use super::super::layout::has_space;
use super::super::table::LookupRun;
use super::mark::Mark;
use super::{WINDOW_BLOCKS, mark::SharedDisk};

/// `GrantedRun::settled_at` of blocks that are not to be overwritten.
const NEVER: u64 = u64::MAX;

/// Blocks of a window that are at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GrantedRun {
    /// First block, counted from the window's.
    first: u8,
    len: u8,
    /// 0: the blocks read as zeros.
    addr: u64,
    /// The blocks may be overwritten in place once the journal's durable `flushed_lsn` is not below this.
    settled_at: u64,
}

/// Blocks of the disk that one I/O reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub start: u64,
    pub len: u64,
    /// 0: the blocks read as zeros.
    pub addr: u64,
    pub settled_at: u64,
}

impl Piece {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }

    pub(super) fn is_hole(&self) -> bool {
        self.addr == 0
    }

    /// Takes the next piece in, if one I/O reaches both.
    pub(super) fn extend(&mut self, next: &Piece) -> bool {
        let joins = match self.is_hole() {
            true => next.is_hole(),
            false => self.addr + self.len == next.addr,
        };
        if joins {
            self.len += next.len;
            self.settled_at = self.settled_at.max(next.settled_at);
        }
        joins
    }
}

/// A grant, as it goes to the VM's core.
pub(super) struct Grant {
    pub window: u64,
    pub mark: Arc<Mark>,
    /// Epoch of the permission to write.
    pub epoch: u64,
    runs: Box<[GrantedRun]>,
}

impl Grant {
    /// Makes the grant of a window. `found` are its blocks; those of a source, and those with a backing block, are left
    /// out. `settled_at` returns the number of the record that a write in place waits for; None if a run is shared.
    pub(super) fn new(
        window: u64,
        found: &[LookupRun],
        disk: &Arc<SharedDisk>,
        settled_at: impl Fn(&LookupRun) -> Option<u64>,
    ) -> Grant {
        let first_block = window * WINDOW_BLOCKS;
        let is_plain = |run: &&LookupRun| run.backing.is_none() && run.device() == 0;
        let granted = |run: &LookupRun| GrantedRun {
            first: (run.start - first_block) as u8,
            len: run.len as u8,
            addr: run.addr,
            settled_at: match has_space(run.addr) {
                true => settled_at(run).unwrap_or(NEVER),
                false => NEVER,
            },
        };
        let mut runs: Vec<GrantedRun> = Vec::with_capacity(found.len());
        for run in found.iter().filter(is_plain).map(granted) {
            match runs.last_mut() {
                Some(last) if joins(last, &run) => last.len += run.len,
                _ => runs.push(run),
            }
        }
        Grant { window, mark: Mark::new(disk), epoch: disk.epoch(), runs: runs.into() }
    }

    /// Visits the places of those of `blocks` that are in the window. Returns false if one of them is not granted.
    pub(super) fn places(&self, blocks: &Range<u64>, visit: &mut impl FnMut(Piece)) -> bool {
        let first_block = self.window * WINDOW_BLOCKS;
        let mut at = blocks.start.max(first_block);
        let end = blocks.end.min(first_block + WINDOW_BLOCKS);
        let from = self.runs.partition_point(|run| first_block + u64::from(run.first + run.len) <= at);
        for run in &self.runs[from..] {
            let start = first_block + u64::from(run.first);
            if at == end || start > at {
                break;
            }
            let run_end = end.min(start + u64::from(run.len));
            let addr = if run.addr == 0 { 0 } else { run.addr + (at - start) };
            visit(Piece { start: at, len: run_end - at, addr, settled_at: run.settled_at });
            at = run_end;
        }
        at == end
    }
}

/// Returns whether two neighbouring runs are one: at one place, and to be treated alike.
fn joins(last: &GrantedRun, next: &GrantedRun) -> bool {
    let is_next = last.first + last.len == next.first && last.settled_at == next.settled_at;
    is_next
        && match last.addr {
            0 => next.addr == 0,
            addr => addr + u64::from(last.len) == next.addr,
        }
}

#[cfg(test)]
mod tests {
    use super::super::super::backing::Backing;
    use super::*;

    fn run(start: u64, len: u64, addr: u64, lsn: u64) -> LookupRun {
        LookupRun { start, len, addr, birth: 1, lsn, backing: Backing::NONE }
    }

    #[test]
    fn a_grant_shows_the_places_of_its_window() {
        let found = [run(32, 4, 100, 7), run(36, 2, 104, 7), run(38, 10, 0, 0), run(48, 16, 300, 9)];
        let shared = |run: &LookupRun| (run.addr != 300).then_some(run.lsn);
        let grant = Grant::new(1, &found, &Arc::default(), shared);
        assert_eq!(grant.runs.len(), 3);
        let places = |blocks: Range<u64>| {
            let mut pieces = Vec::new();
            let whole = grant.places(&blocks, &mut |piece| pieces.push((piece.start, piece.len, piece.addr)));
            (whole, pieces)
        };
        assert_eq!(places(33..37), (true, vec![(33, 4, 101)]));
        assert_eq!(places(37..50), (true, vec![(37, 1, 105), (38, 10, 0), (48, 2, 300)]));
        assert_eq!(places(60..80), (true, vec![(60, 4, 312)]));
        assert_eq!(places(0..33), (true, vec![(32, 1, 100)]));
    }

    #[test]
    fn blocks_that_only_the_store_can_reach_are_left_out() {
        let backed = LookupRun { backing: Backing::new(1, 77, 1), ..run(33, 1, 200, 1) };
        let found = [run(32, 1, 100, 1), backed, run(34, 30, 0, 0)];
        let grant = Grant::new(1, &found, &Arc::default(), |_| Some(1));
        assert!(grant.places(&(32..33), &mut |_| {}) && grant.places(&(34..64), &mut |_| {}));
        assert!(!grant.places(&(32..34), &mut |_| {}) && !grant.places(&(33..34), &mut |_| {}));
    }
}
