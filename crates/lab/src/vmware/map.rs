//! Map of the grains that a delta holds: runs, per table, in order of address.
//!
//! A run takes 8 bytes whatever its length. A delta of 4 KiB random writes takes 2 MiB of memory per GiB; one that was
//! written in order takes almost none.

/// Entries of a grain table in both formats, and so the grains of a region.
pub(super) const REGION_GRAINS: u64 = 4096;

/// Grains that are contiguous both on the disk and in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// First grain, within the region.
    first: u16,
    count: u16,
    /// Grain number in the file.
    at: u32,
}

/// The content of one grain table.
#[derive(Default, Clone)]
struct Region {
    runs: Vec<Run>,
    /// Grain number in the file where the table begins; 0: the region has no table.
    table_at: u32,
    /// The table has been written to the file.
    table_written: bool,
}

/// A stretch of grains that are all held or all missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Grain number in the file; None: not held.
    pub at: Option<u64>,
    pub count: u64,
}

pub(super) struct Map {
    regions: Vec<Region>,
    held: u64,
}

impl Map {
    pub(super) fn new(regions: u64) -> Map {
        Map { regions: vec![Region::default(); regions as usize], held: 0 }
    }

    /// Returns the number of grains held.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    fn region(&self, grain: u64) -> &Region {
        &self.regions[(grain / REGION_GRAINS) as usize]
    }

    /// Returns the stretch that begins at `grain`: at most `limit` grains, and not beyond its region.
    pub(super) fn find(&self, grain: u64, limit: u64) -> Stretch {
        let runs = &self.region(grain).runs;
        let first = (grain % REGION_GRAINS) as u16;
        let next = runs.partition_point(|run| run.first <= first);
        if let Some(run) = next.checked_sub(1).map(|before| runs[before])
            && first < run.first + run.count
        {
            let inside = first - run.first;
            let count = u64::from(run.count - inside).min(limit);
            return Stretch { at: Some(u64::from(run.at) + u64::from(inside)), count };
        }
        let end = runs.get(next).map_or(REGION_GRAINS, |run| u64::from(run.first));
        Stretch { at: None, count: (end - u64::from(first)).min(limit) }
    }

    /// Returns the first held grain from `grain` on.
    pub(super) fn next_held(&self, grain: u64) -> Option<u64> {
        let mut within = grain % REGION_GRAINS;
        for index in (grain / REGION_GRAINS) as usize..self.regions.len() {
            let runs = &self.regions[index].runs;
            let at = runs.partition_point(|run| u64::from(run.first + run.count) <= within);
            if let Some(run) = runs.get(at) {
                return Some(index as u64 * REGION_GRAINS + within.max(u64::from(run.first)));
            }
            within = 0;
        }
        None
    }

    /// Adds `count` grains from `grain` on, at `at` of the file. None of them is held yet, and all are of one region.
    pub(super) fn insert(&mut self, grain: u64, count: u64, at: u64) {
        assert_eq!(self.find(grain, count), Stretch { at: None, count });
        self.held += count;
        let at = u32::try_from(at).expect("a delta's file is below 2^32 grains");
        let runs = &mut self.regions[(grain / REGION_GRAINS) as usize].runs;
        let new = Run { first: (grain % REGION_GRAINS) as u16, count: count as u16, at };
        let next = runs.partition_point(|run| run.first < new.first);
        if let Some(before) = next.checked_sub(1).map(|before| &mut runs[before])
            && before.first + before.count == new.first
            && before.at + u32::from(before.count) == new.at
        {
            before.count += new.count;
            return;
        }
        runs.insert(next, new);
    }

    /// Returns the grain number in the file where the region's table begins.
    pub(super) fn table_at(&self, region: u64) -> Option<u64> {
        let at = self.regions[region as usize].table_at;
        (at != 0).then_some(u64::from(at))
    }

    pub(super) fn set_table(&mut self, region: u64, at: u64) {
        self.regions[region as usize].table_at =
            u32::try_from(at).expect("a delta's file is below 2^32 grains");
    }

    /// Returns true once per region: its whole table is to be written instead of a page.
    pub(super) fn is_table_new(&mut self, region: u64) -> bool {
        !std::mem::replace(&mut self.regions[region as usize].table_written, true)
    }

    /// Returns the stretches of the `count` grains from `grain` on, each with its first grain.
    pub(super) fn stretches(&self, grain: u64, count: u64) -> impl Iterator<Item = (u64, Stretch)> {
        let (mut next, end) = (grain, grain + count);
        std::iter::from_fn(move || {
            let (at, stretch) = (next, (next < end).then(|| self.find(next, end - next))?);
            next += stretch.count;
            Some((at, stretch))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(at: u64, count: u64) -> Stretch {
        Stretch { at: Some(at), count }
    }

    fn hole(count: u64) -> Stretch {
        Stretch { at: None, count }
    }

    #[test]
    fn stretches_end_at_runs_and_regions() {
        let mut map = Map::new(3);
        map.insert(4090, 6, 50);
        map.insert(4096, 8, 100);
        map.insert(10, 2, 60);
        assert_eq!(map.find(0, 100), hole(10));
        assert_eq!(map.find(11, 100), held(61, 1));
        assert_eq!(map.find(4092, 100), held(52, 4));
        assert_eq!(map.find(4096, 3), held(100, 3));
        assert_eq!(map.find(4104, 10_000), hole(4088));
        assert_eq!(map.next_held(12), Some(4090));
        assert_eq!(map.next_held(4100), Some(4100));
        assert_eq!(map.next_held(4104), None);
        assert_eq!(map.held(), 16);
    }

    #[test]
    fn what_is_written_in_order_is_one_run() {
        let mut map = Map::new(1);
        for n in 0..512 {
            map.insert(n * 8, 8, 100 + n * 8);
        }
        assert_eq!(map.regions[0].runs.len(), 1);
        assert_eq!(map.find(0, 5000), held(100, 4096));
    }

    /// Compares the map with a table that has an entry per grain.
    #[test]
    fn a_map_equals_a_table() {
        let mut rng = sim::Rng::new(5);
        let mut map = Map::new(2);
        let mut table = vec![0u64; 2 * REGION_GRAINS as usize];
        let mut free = 40;
        for _ in 0..2000 {
            let grain = rng.below(2 * REGION_GRAINS);
            let hole = map.find(grain, 1 + rng.below(20));
            if hole.at.is_none() {
                map.insert(grain, hole.count, free);
                for n in 0..hole.count {
                    table[(grain + n) as usize] = free + n;
                }
                free += hole.count + rng.below(2);
            }
        }
        for grain in 0..2 * REGION_GRAINS {
            let expected = table[grain as usize];
            assert_eq!(map.find(grain, 1), Stretch { at: (expected != 0).then_some(expected), count: 1 });
        }
    }
}
