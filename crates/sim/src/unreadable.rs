//! Sectors that the medium cannot read until they are written again.
//!
//! A drive that loses power while it writes a sector may leave a checksum that does not match. The sector is then
//! neither old nor new, and reading it is an error. A drive with a cache writes completed data later, so each write
//! that no flush covered may have been under way.

use std::ops::Range;

use crate::content::SECTOR;
use crate::interval::IntervalSet;
use crate::rng::Rng;

/// Maximum number of a file's writes that leave unreadable sectors at one cut.
const WRITES_MAX: u64 = 3;
/// Maximum number of such sectors in a row for one write: those of a physical block of 4096 bytes.
const RUN_MAX: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    sectors: IntervalSet,
}

fn sectors_of(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR..range.end.div_ceil(SECTOR)
}

impl Unreadable {
    /// Returns whether reading these bytes is an error.
    pub(crate) fn strikes(&self, range: &Range<u64>) -> bool {
        self.sectors.within(sectors_of(range)).next().is_some()
    }

    /// Makes the sectors of a written range readable.
    pub(crate) fn written(&mut self, range: &Range<u64>) {
        if self.sectors.len() > 0 {
            self.sectors.remove(sectors_of(range));
        }
    }

    pub(crate) fn put(&mut self, range: &Range<u64>) {
        self.sectors.insert(sectors_of(range));
    }

    /// Draws sectors of some of `writes` that are unreadable from now on, in units of `unit_bytes`.
    pub(crate) fn draw(&mut self, writes: &[Range<u64>], size: u64, unit_bytes: u64, rng: &mut Rng) {
        for _ in 0..rng.between(1, WRITES_MAX) {
            let Some(write) = rng.pick(writes) else { return };
            let all = sectors_of(write);
            let start = all.start + rng.below(all.end - all.start);
            let end = all.end.min(start + rng.between(1, RUN_MAX));
            let unit = unit_bytes / SECTOR;
            let run = start / unit * unit..end.next_multiple_of(unit).min(size.div_ceil(SECTOR));
            if !run.is_empty() {
                self.sectors.insert(run);
            }
        }
    }

    /// Returns the byte ranges in order.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for sector in self.sectors.within(0..u64::MAX) {
            match ranges.last_mut() {
                Some(last) if last.end == sector * SECTOR => last.end += SECTOR,
                _ => ranges.push(sector * SECTOR..(sector + 1) * SECTOR),
            }
        }
        ranges
    }
}
