//! Byte ranges of a file that were written and that no flush has covered: the data that a failed flush may have lost.

use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of separate ranges, about 200 KiB of memory. Beyond it, nearby ranges are merged, so that a guest
/// that never flushes costs no more. A range that is too large only makes more reads an error if a flush fails.
const RANGES_MAX: usize = 4096;
/// Gap in bytes below which two ranges are merged when there are too many for the first time.
const GAP_FIRST: u64 = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// Start to end. The ranges neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
    /// Ranges with a gap of at most this many bytes are merged.
    gap: u64,
}

impl Unflushed {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end.saturating_add(self.gap) >= start
        {
            if before_end >= end {
                return;
            }
            start = before;
            self.ranges.remove(&before);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end.saturating_add(self.gap)).next() {
            self.ranges.remove(&next);
            end = end.max(next_end);
        }
        self.ranges.insert(start, end);
        if self.ranges.len() > RANGES_MAX {
            self.join_near();
        }
    }

    fn join_near(&mut self) {
        self.gap = GAP_FIRST.max(self.gap * 2);
        let ranges = std::mem::take(&mut self.ranges);
        ranges.into_iter().for_each(|(start, end)| self.insert(start..end));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn append(&mut self, other: Unflushed) {
        other.ranges.into_iter().for_each(|(start, end)| self.insert(start..end));
    }

    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[Range<u64>]) -> Unflushed {
        let mut unflushed = Unflushed::default();
        ranges.iter().for_each(|range| unflushed.insert(range.clone()));
        unflushed
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let unflushed = of(&[10..20, 30..40, 20..30, 5..7, 12..13, 0..2]);
        assert_eq!(unflushed.ranges, BTreeMap::from([(0, 2), (5, 7), (10, 40)]));
        assert_eq!(unflushed.bytes(), 34);
        for (range, overlaps) in [(2..5, false), (6..7, true), (39..90, true), (40..90, false), (0..1, true)]
        {
            assert_eq!(unflushed.overlaps(&range), overlaps, "{range:?}");
        }
    }

    #[test]
    fn memory_is_bounded_and_no_range_is_lost() {
        let places = (0..10 * RANGES_MAX as u64).map(|n| n.wrapping_mul(0x9E37_79B9) % (1 << 30) * 4096);
        let mut unflushed = Unflushed::default();
        for at in places.clone() {
            unflushed.insert(at..at + 512);
            assert!(unflushed.ranges.len() <= RANGES_MAX);
        }
        assert!(places.into_iter().all(|at| unflushed.overlaps(&(at..at + 512))));
    }
}
