//! A set of page numbers as disjoint ranges: the pages of a file that have space on the medium.

use std::collections::BTreeMap;
use std::ops::Range;

/// Half-open, disjoint ranges; adjacent ranges are merged.
#[derive(Debug, Default)]
pub(crate) struct IntervalSet {
    /// start -> end
    ranges: BTreeMap<u64, u64>,
    /// Count of numbers in the set.
    len: u64,
}

impl IntervalSet {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.ranges.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// Returns how many numbers of `range` are not in the set.
    pub(crate) fn missing(&self, range: &Range<u64>) -> u64 {
        let held: u64 = self.overlapping(range).map(|r| r.end - r.start).sum();
        range.end.saturating_sub(range.start) - held
    }

    /// Returns the parts of `range` that are in the set, in order.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let Range { start, end } = range.clone();
        let before = self.ranges.range(..start).next_back();
        let inside = self.ranges.range(start..end.max(start));
        before.into_iter().chain(inside).filter_map(move |(&s, &e)| {
            let (s, e) = (s.max(start), e.min(end));
            (s < e).then_some(s..e)
        })
    }

    /// Returns the numbers of `range` that are in the set, in order.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.overlapping(&range).flatten()
    }

    /// Adds a range and returns the parts that were new.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.covers(&range) {
            return Vec::new();
        }
        let mut added = Vec::new();
        let mut at = range.start;
        for held in self.overlapping(&range) {
            if at < held.start {
                added.push(at..held.start);
            }
            at = held.end;
        }
        if at < range.end {
            added.push(at..range.end);
        }
        self.len += added.iter().map(|r| r.end - r.start).sum::<u64>();
        self.join(range);
        added
    }

    /// Replaces every range that overlaps or touches `range` by their union with it.
    fn join(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if let Some((&s, &e)) = self.ranges.range(..start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(&s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    /// Removes a range and returns the parts that were in the set.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let removed: Vec<Range<u64>> = self.overlapping(&range).collect();
        for part in &removed {
            let (&start, &end) =
                self.ranges.range(..=part.start).next_back().expect("an overlapping range starts before");
            self.ranges.remove(&start);
            if start < part.start {
                self.ranges.insert(start, part.start);
            }
            if part.end < end {
                self.ranges.insert(part.end, end);
            }
            self.len -= part.end - part.start;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeSet;

    /// Compares with a plain set, over random insertions and removals.
    #[test]
    fn equals_a_set_of_numbers() {
        let mut rng = Rng::new(5);
        let (mut ours, mut plain) = (IntervalSet::default(), BTreeSet::new());
        for step in 0..5000 {
            let start = rng.below(60);
            let range = start..start + rng.below(12);
            let missing = range.clone().filter(|n| !plain.contains(n)).count() as u64;
            assert_eq!(ours.missing(&range), missing, "step {step}");
            assert_eq!(ours.covers(&range), missing == 0, "step {step}");
            let insert = rng.coin();
            let changed = if insert { ours.insert(range.clone()) } else { ours.remove(range.clone()) };
            let expected: Vec<u64> =
                range.filter(|&n| if insert { plain.insert(n) } else { plain.remove(&n) }).collect();
            assert_eq!(changed.into_iter().flatten().collect::<Vec<u64>>(), expected, "step {step}");
            assert_eq!(ours.len(), plain.len() as u64);
            assert_eq!(
                ours.ranges.iter().flat_map(|(&s, &e)| s..e).collect::<Vec<_>>(),
                plain.iter().copied().collect::<Vec<_>>()
            );
        }
    }
}
