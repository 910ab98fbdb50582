//! A row of bits, and the word scans over it.

use std::ops::Range;

const WORD: usize = 64;

/// Blocks that are kept together for later writes of the guest's neighbouring blocks: placement looks for whole lanes.
/// Divides a word.
pub(super) const LANE: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bits {
    words: Vec<u64>,
}

/// Returns the words that `range` touches, each with the mask of the bits in the range.
pub(super) fn masks(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = if range.is_empty() { 0..0 } else { range.start / WORD..range.end.div_ceil(WORD) };
    words.map(move |word| {
        let first = range.start.saturating_sub(word * WORD).min(WORD);
        let end = (range.end - word * WORD).min(WORD);
        (word, (u64::MAX << first) & (u64::MAX >> (WORD - end)))
    })
}

/// Returns the number of lanes of a word without a set bit.
pub(super) fn empty_lanes(word: u64) -> u32 {
    (0..WORD / LANE).map(|lane| u32::from(lane_is_empty(word, lane))).sum()
}

fn lane_is_empty(word: u64, lane: usize) -> bool {
    (word >> (lane * LANE)) & ((1 << LANE) - 1) == 0
}

impl Bits {
    /// Creates at least `len` bits, all clear.
    pub(super) fn new(len: usize) -> Bits {
        Bits { words: vec![0; len.div_ceil(WORD)] }
    }

    pub(super) fn of_words(words: Vec<u64>) -> Bits {
        Bits { words }
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn word_mut(&mut self, word: usize) -> &mut u64 {
        &mut self.words[word]
    }

    /// Extends the bits so that bit `len - 1` exists.
    pub(super) fn grow(&mut self, len: usize) {
        self.words.resize(self.words.len().max(len.div_ceil(WORD)), 0);
    }

    pub(super) fn len(&self) -> usize {
        self.words.len() * WORD
    }

    pub(super) fn get(&self, at: usize) -> bool {
        self.words[at / WORD] & 1 << (at % WORD) != 0
    }

    pub(super) fn put(&mut self, at: usize, value: bool) {
        let mask = 1 << (at % WORD);
        let word = &mut self.words[at / WORD];
        *word = if value { *word | mask } else { *word & !mask };
    }

    pub(super) fn fill(&mut self, range: Range<usize>) {
        masks(range).for_each(|(word, mask)| self.words[word] |= mask);
    }

    /// Clears all bits outside of `range`, and truncates to the words that the range needs.
    pub(super) fn keep(&mut self, range: Range<usize>) {
        self.words.truncate(range.end.div_ceil(WORD));
        let mut kept = vec![0; self.words.len()];
        masks(range).for_each(|(word, mask)| kept[word] = self.words[word] & mask);
        self.words = kept;
    }

    pub(super) fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the first bit at or behind `from` that is `value`.
    pub(super) fn next(&self, from: usize, value: bool) -> Option<usize> {
        let flip = if value { 0 } else { u64::MAX };
        let first = from / WORD;
        let mut keep = u64::MAX << (from % WORD);
        for (at, word) in self.words.iter().enumerate().skip(first) {
            let found = (word ^ flip) & keep;
            if found != 0 {
                return Some(at * WORD + found.trailing_zeros() as usize);
            }
            keep = u64::MAX;
        }
        None
    }

    /// Like `next`, but continues from the beginning.
    pub(super) fn next_round(&self, from: usize, value: bool) -> Option<usize> {
        self.next(from, value).or_else(|| self.next(0, value))
    }

    /// Returns the length of the run of `value` from `from` on, `max` at most.
    pub(super) fn run(&self, from: usize, value: bool, max: usize) -> usize {
        self.next(from, !value).unwrap_or(self.len()).saturating_sub(from).min(max)
    }

    /// Returns the maximal runs of set bits.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, true)?;
            at = start + self.run(start, true, usize::MAX);
            Some(start..at)
        })
    }

    /// Returns the start of an empty lane: from the word of bit `from` on, then from the beginning.
    pub(super) fn next_empty_lane(&self, from: usize) -> Option<usize> {
        let first = (from / WORD).min(self.words.len());
        let order = (first..self.words.len()).chain(0..first);
        order.filter(|word| self.words[*word] != u64::MAX).find_map(|word| {
            let lane = (0..WORD / LANE).find(|lane| lane_is_empty(self.words[word], *lane))?;
            Some(word * WORD + lane * LANE)
        })
    }

    pub(super) fn empty_lanes(&self) -> u32 {
        self.words.iter().map(|word| empty_lanes(*word)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn masks_cover_their_range_and_nothing_else() {
        assert_eq!(masks(5..5).count(), 0);
        assert_eq!(masks(0..64).collect::<Vec<_>>(), [(0, u64::MAX)]);
        assert_eq!(masks(63..66).collect::<Vec<_>>(), [(0, 1 << 63), (1, 3)]);
        assert_eq!(masks(70..72).collect::<Vec<_>>(), [(1, 0xc0)]);
    }

    proptest! {
        #[test]
        fn scans_agree_with_a_test_of_every_bit(
            ranges in proptest::collection::vec((0usize..300, 0usize..70), 0..8),
            from in 0usize..320,
        ) {
            let mut bits = Bits::new(320);
            let mut plain = vec![false; bits.len()];
            for (start, len) in ranges {
                let range = start..(start + len).min(320);
                bits.fill(range.clone());
                plain[range].fill(true);
            }
            for value in [false, true] {
                let expected = (from..plain.len()).find(|at| plain[*at] == value);
                prop_assert_eq!(bits.next(from, value), expected);
                let run = (from..plain.len()).take_while(|at| plain[*at] == value).count();
                prop_assert_eq!(bits.run(from, value, usize::MAX), run);
            }
            let lanes: Vec<usize> =
                (0..plain.len()).step_by(LANE).filter(|at| !plain[*at..at + LANE].contains(&true)).collect();
            prop_assert_eq!(bits.empty_lanes() as usize, lanes.len());
            let word = from / 64 * 64;
            let expected = lanes.iter().find(|at| **at >= word).or(lanes.first());
            prop_assert_eq!(bits.next_empty_lane(from), expected.copied());
            prop_assert_eq!(bits.runs().map(|run| run.len()).sum::<usize>(), bits.count());
        }
    }
}
