//! One grant: the places of the blocks of a window, and which of them may be overwritten.

use std::ops::Range;
use std::sync::Arc;

use super::super::layout::has_space;
use super::super::table::LookupRun;
use super::mark::Mark;
use super::{WINDOW_BLOCKS, mark::SharedDisk};

/// What a grant takes without its runs: its entries and its mark on both cores.
const GRANT_BYTES: usize = 150;

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

/// What a redirect by the VM's core changes in its grant of a window. The other blocks have stayed where they were.
pub(super) struct Redirected {
    pub window: u64,
    /// Mark of the grant that was in force before. Another one does not show the other blocks.
    pub base: Arc<Mark>,
    pub mark: Arc<Mark>,
    pub epoch: u64,
    /// Blocks of the window, and their new places.
    pub places: Vec<(Range<u64>, u64)>,
    /// When the blocks at their new places may be overwritten.
    pub settled_at: u64,
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
        found.iter().filter(is_plain).map(granted).for_each(|run| push(&mut runs, run));
        Grant { window, mark: Mark::new(disk), epoch: disk.epoch(), runs: runs.into() }
    }

    /// Returns the grant after a redirect of some of its blocks. The permission to overwrite the others ends with its
    /// epoch.
    pub(super) fn redirected(&self, change: Redirected) -> Grant {
        let Redirected { window, mark, epoch, places, settled_at, .. } = change;
        let first_block = window * WINDOW_BLOCKS;
        let mut blocks = [None; WINDOW_BLOCKS as usize];
        for run in &self.runs {
            let settled_at = if self.epoch == epoch { run.settled_at } else { NEVER };
            for n in 0..run.len {
                let addr = if run.addr == 0 { 0 } else { run.addr + u64::from(n) };
                blocks[usize::from(run.first + n)] = Some((addr, settled_at));
            }
        }
        for (range, addr) in places {
            for block in range.clone() {
                blocks[(block - first_block) as usize] = Some((addr + (block - range.start), settled_at));
            }
        }
        let mut runs: Vec<GrantedRun> = Vec::with_capacity(self.runs.len() + 2);
        for (first, block) in blocks.into_iter().enumerate() {
            let Some((addr, settled_at)) = block else { continue };
            let run = GrantedRun { first: first as u8, len: 1, addr, settled_at };
            push(&mut runs, run);
        }
        Grant { window, mark, epoch, runs: runs.into() }
    }

    /// Returns what the grant takes on both cores, in bytes.
    pub(super) fn bytes(&self) -> usize {
        GRANT_BYTES + size_of::<GrantedRun>() * self.runs.len()
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

/// Adds a run, or makes the last one longer.
fn push(runs: &mut Vec<GrantedRun>, run: GrantedRun) {
    match runs.last_mut() {
        Some(last) if joins(last, &run) => last.len += run.len,
        _ => runs.push(run),
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
    fn a_redirect_moves_its_blocks_and_leaves_the_others() {
        let disk = Arc::<SharedDisk>::default();
        let found = [run(32, 4, 100, 7), run(36, 2, 0, 0), run(40, 24, 300, 9)];
        let before = Grant::new(1, &found, &disk, |run| Some(run.lsn));
        let redirect = |grant: &Grant, blocks: Range<u64>, addr: u64| {
            let (base, mark) = (grant.mark.clone(), Mark::new(&disk));
            let places = vec![(blocks, addr)];
            let epoch = disk.epoch();
            grant.redirected(Redirected { window: 1, base, mark, epoch, places, settled_at: 20 })
        };
        let pieces = |grant: &Grant, blocks: Range<u64>| {
            let mut pieces = Vec::new();
            let whole = grant.places(&blocks, &mut |piece: Piece| {
                pieces.push((piece.start, piece.len, piece.addr, piece.settled_at));
            });
            (whole, pieces)
        };
        let after = redirect(&before, 34..38, 500);
        assert_eq!(pieces(&after, 32..40), (false, vec![(32, 2, 100, 7), (34, 4, 500, 20)]));
        assert_eq!(pieces(&after, 40..64), (true, vec![(40, 24, 300, 9)]));
        let filled = redirect(&after, 38..40, 504);
        assert_eq!(pieces(&filled, 34..41), (true, vec![(34, 6, 500, 20), (40, 1, 300, 9)]));
        disk.end_writes();
        let taken = redirect(&filled, 63..64, 900);
        let (whole, all) = pieces(&taken, 32..64);
        assert!(whole && all.iter().all(|piece| (piece.3 == 20) == (piece.0 == 63)), "{all:?}");
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
