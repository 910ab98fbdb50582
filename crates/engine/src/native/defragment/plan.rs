//! Order of the blocks of a window: how often a sequential read jumps, and which blocks to move so that it does not.

use super::super::backing::Backing;
use super::super::table::LookupRun;

/// Fewest jumps within a window that are worth a copy of it.
const JUMPS_MIN: u64 = 2;

/// An address behind all of a store's, for blocks that get a new place.
const NEW_PLACES: u64 = 1 << 60;

/// Blocks that a defragmentation moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefragmentScope {
    /// Those that the running disk alone shows.
    Exclusive,
    /// Those of snapshots and clones too: the disk gets copies of its own, which need space.
    SharedToo,
}

/// One block that gets a new place, with its present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OldPlace {
    pub block: u64,
    pub addr: u64,
    pub birth: u64,
    pub backing: Backing,
}

/// The blocks of a window that get new places, one behind the other.
#[derive(Debug)]
pub(super) struct Plan {
    pub runs: Vec<LookupRun>,
    pub old: Vec<OldPlace>,
}

impl Plan {
    /// Returns the blocks to move, if that leaves at most half of the jumps.
    pub(super) fn of(found: &[LookupRun], may_move: impl Fn(&LookupRun) -> bool) -> Option<Plan> {
        let before = jumps(found.iter().map(|run| (run.addr, run)));
        if before < JUMPS_MIN {
            return None;
        }
        let mut moved = 0;
        let after = jumps(found.iter().map(|run| match may_move(run) {
            false => (run.addr, run),
            true => {
                moved += run.len;
                (NEW_PLACES + moved - run.len, run)
            }
        }));
        if after * 2 > before {
            return None;
        }
        let runs: Vec<LookupRun> = found.iter().filter(|run| may_move(run)).copied().collect();
        let old = runs.iter().flat_map(old_places).collect();
        Some(Plan { runs, old })
    }

    /// Returns the number of blocks that move.
    pub(super) fn len(&self) -> u64 {
        self.old.len() as u64
    }
}

/// Returns the present place of each block of a run.
pub(super) fn old_places(run: &LookupRun) -> impl Iterator<Item = OldPlace> + use<> {
    let LookupRun { start, len, addr, birth, backing, .. } = *run;
    (0..len).map(move |n| OldPlace { block: start + n, addr: addr + n, birth, backing })
}

/// Counts how often a sequential read of runs at these addresses has to go elsewhere. Holes need no I/O. The other
/// sectors of a block that has a backing block are one more place, unless the block is moved.
pub(super) fn jumps<'a>(places: impl Iterator<Item = (u64, &'a LookupRun)>) -> u64 {
    let mut next = None;
    let mut count = 0;
    for (addr, run) in places.filter(|(addr, _)| *addr != 0) {
        count += u64::from(next.is_some_and(|next| next != addr));
        count += u64::from(addr < NEW_PLACES && !run.backing.is_none());
        next = Some(addr + run.len);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64, addr: u64) -> LookupRun {
        LookupRun { start, len, addr, birth: 1, lsn: 0, backing: Backing::NONE }
    }

    fn moved(found: &[LookupRun], may_move: impl Fn(&LookupRun) -> bool) -> Option<Vec<u64>> {
        Plan::of(found, may_move).map(|plan| plan.old.iter().map(|old| old.block).collect())
    }

    #[test]
    fn a_window_in_order_stays() {
        let ordered = [run(0, 4, 100), run(4, 2, 104), run(6, 10, 0), run(16, 3, 106), run(19, 1, 500)];
        assert_eq!(moved(&ordered, |_| true), None, "one jump");
    }

    #[test]
    fn blocks_move_where_that_halves_the_jumps() {
        let found = [run(0, 1, 100), run(1, 1, 300), run(2, 1, 200), run(3, 2, 0), run(5, 2, 400)];
        assert_eq!(moved(&found, |run| !run.is_hole()), Some(vec![0, 1, 2, 5, 6]));
        assert_eq!(moved(&found, |run| (1..400).contains(&run.addr)), Some(vec![0, 1, 2]));
        assert_eq!(moved(&found, |run| run.addr == 300), None, "as many jumps as before");
        assert_eq!(moved(&found, |_| false), None);
    }

    #[test]
    fn a_block_with_a_backing_block_is_in_two_places() {
        let partial = LookupRun { backing: Backing::new(1, 50, 1), ..run(1, 1, 101) };
        let found = [run(0, 1, 100), partial, run(2, 1, 102), run(3, 1, 200)];
        assert_eq!(moved(&found, |_| true), Some(vec![0, 1, 2, 3]));
    }
}
