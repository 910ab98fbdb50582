//! Free sectors of a delta. No I/O.
//!
//! Space is allocated at the end only, and never freed while the file is open: an I/O whose caller was dropped may
//! still reach the device. Only `ready` space (allocated, and zero-written) may be used, because writes into holes or
//! unwritten extents cost up to half of a device's IOPS, and because a guest's write must not find the datastore full.

use blk::SECTOR;

use crate::cowd::TABLE_SECTORS;

/// 4 KiB: runs of whole pages and grain tables are aligned to this, so that the device need not read before it writes.
pub(super) const PAGE_SECTORS: u64 = 4096 / SECTOR;

/// Maximum number of page fragments that are remembered for small runs, for each length.
const FRAGMENTS_MAX: usize = 1024;

/// How a delta's file grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Space that is reserved at once, and kept zero-written ahead of the guest. A multiple of 4 KiB.
    pub step_bytes: u64,
    /// Length of one write of zeros, behind which a guest's I/O may have to queue. A multiple of 4 KiB.
    pub chunk_bytes: u64,
}

impl Default for Growth {
    /// VMware's step, and 0.25 ms of a device that writes 1 GB/s.
    fn default() -> Self {
        Self { step_bytes: 16 << 20, chunk_bytes: 256 << 10 }
    }
}

impl Growth {
    pub(crate) fn step_sectors(&self) -> u64 {
        self.step_bytes.next_multiple_of(PAGE_SECTORS * SECTOR).max(PAGE_SECTORS * SECTOR) / SECTOR
    }

    pub(crate) fn chunk_sectors(&self) -> u64 {
        (self.chunk_bytes.next_multiple_of(PAGE_SECTORS * SECTOR) / SECTOR)
            .clamp(PAGE_SECTORS, self.step_sectors())
    }
}

/// Space that a first write needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpaceNeed {
    pub tables: u64,
    pub data_sectors: u64,
}

#[derive(Debug)]
pub(super) struct Space {
    /// Next sector that was never allocated.
    free: u64,
    /// End of the space that may be allocated.
    ready_end: u64,
    /// End of the space that is reserved on the datastore. The part past `ready_end` is not zero-written yet.
    allocated_end: u64,
    /// Free fragments of pages, by length: index 1 to 7.
    fragments: [Vec<u64>; PAGE_SECTORS as usize],
}

impl Space {
    /// Starts with `free`, the first sector past everything in use. The file may have holes beyond it, so that space is
    /// not ready.
    pub(super) fn new(free: u64) -> Self {
        let end = page_up(free);
        Self { free, ready_end: end, allocated_end: end, fragments: Default::default() }
    }

    /// Returns the first sector past the allocated space.
    pub(super) fn free_sector(&self) -> u64 {
        self.free
    }

    pub(super) fn ready_end(&self) -> u64 {
        self.ready_end
    }

    pub(super) fn allocated_end(&self) -> u64 {
        self.allocated_end
    }

    pub(super) fn ready_sectors(&self) -> u64 {
        self.ready_end.saturating_sub(self.free)
    }

    pub(super) fn set_ready_end(&mut self, end: u64) {
        assert!(end <= self.allocated_end && end >= self.ready_end);
        self.ready_end = end;
    }

    pub(super) fn set_allocated_end(&mut self, end: u64) {
        self.allocated_end = end;
    }

    /// Notes that the file was cut to the last page in use, and returns that length in bytes.
    pub(super) fn forget_ahead(&mut self) -> u64 {
        self.ready_end = page_up(self.free);
        self.allocated_end = self.ready_end;
        self.ready_end * SECTOR
    }

    /// Returns the minimum of `ready_end` before `need` can be allocated.
    pub(super) fn end_for(&self, need: SpaceNeed) -> u64 {
        let data =
            if self.fragment_for(need.data_sectors).is_some() { 0 } else { page_up(need.data_sectors) };
        page_up(self.free) + need.tables * u64::from(TABLE_SECTORS) + data
    }

    /// Allocates a table. The caller has ensured `end_for`.
    pub(super) fn take_table(&mut self) -> u64 {
        self.take_pages(u64::from(TABLE_SECTORS))
    }

    pub(super) fn take_data(&mut self, sectors: u64) -> u64 {
        if let Some(length) = self.fragment_for(sectors)
            && let Some(start) = self.fragments[length].pop()
        {
            self.keep_fragment(start + sectors, (length as u64) - sectors);
            return start;
        }
        let pages = page_up(sectors);
        let start = self.take_pages(pages);
        self.keep_fragment(start + sectors, pages - sectors);
        start
    }

    fn take_pages(&mut self, sectors: u64) -> u64 {
        let start = page_up(self.free);
        self.free = start + sectors;
        assert!(self.free <= self.ready_end, "sectors up to {} taken, {} ready", self.free, self.ready_end);
        start
    }

    fn keep_fragment(&mut self, start: u64, sectors: u64) {
        // A fragment without a place in the list is lost until the file is opened again.
        if let Some(list) = self.fragments.get_mut(sectors as usize).filter(|list| list.len() < FRAGMENTS_MAX)
            && sectors > 0
        {
            list.push(start);
        }
    }

    /// Returns the shortest fragment of at least `sectors`, which must be less than a page.
    fn fragment_for(&self, sectors: u64) -> Option<usize> {
        (sectors..PAGE_SECTORS)
            .map(|length| length as usize)
            .find(|length| !self.fragments[*length].is_empty())
    }
}

fn page_up(sectors: u64) -> u64 {
    sectors.next_multiple_of(PAGE_SECTORS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(free: u64, sectors: u64) -> Space {
        let mut space = Space::new(free);
        space.set_allocated_end(space.ready_end() + sectors);
        space.set_ready_end(space.allocated_end());
        space
    }

    #[test]
    fn whole_pages_are_aligned_and_small_runs_share_one() {
        let mut space = ready(36, 1000);
        assert_eq!(space.take_data(1), 40);
        assert_eq!(space.take_data(8), 48);
        assert_eq!(space.take_data(3), 41);
        assert_eq!(space.take_table(), 56);
        assert_eq!(space.take_data(5), 88);
        assert_eq!(space.take_data(3), 93);
        assert_eq!(space.take_data(4), 44);
        assert_eq!(space.take_data(20), 96);
        assert_eq!(space.take_data(4), 116);
        assert_eq!(space.free_sector(), 120);
    }

    #[test]
    fn no_space_is_ready_at_first() {
        let space = Space::new(36);
        assert_eq!(space.ready_sectors(), 4);
        assert_eq!(space.end_for(SpaceNeed { tables: 1, data_sectors: 3 }), 80);
    }

    #[test]
    fn odd_growth_parameters_are_rounded() {
        let growth = Growth { step_bytes: 5000, chunk_bytes: 1 << 20 };
        assert_eq!((growth.step_sectors(), growth.chunk_sectors()), (16, 16));
        let growth = Growth { step_bytes: 0, chunk_bytes: 0 };
        assert_eq!((growth.step_sectors(), growth.chunk_sectors()), (8, 8));
    }

    proptest! {
        #[test]
        fn no_sector_is_allocated_twice(free in 1u64..100, runs in proptest::collection::vec(0u64..40, 1..100)) {
            let mut space = ready(free, 100_000);
            let mut taken = std::collections::BTreeSet::new();
            for sectors in runs {
                let need = SpaceNeed { tables: u64::from(sectors == 0), data_sectors: sectors };
                prop_assert!(space.end_for(need) <= space.ready_end());
                let before = space.end_for(need);
                let (start, length) = if sectors == 0 {
                    (space.take_table(), u64::from(TABLE_SECTORS))
                } else {
                    (space.take_data(sectors), sectors)
                };
                prop_assert!(start >= free && space.free_sector() <= before);
                prop_assert!(length % 8 != 0 || start % 8 == 0);
                for sector in 0..length {
                    prop_assert!(taken.insert(start + sector));
                }
            }
            prop_assert!(taken.last().is_none_or(|last| *last < space.free_sector()));
        }
    }
}
