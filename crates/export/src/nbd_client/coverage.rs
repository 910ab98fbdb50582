//! The part of a read that the chunks of its reply have filled so far.

use std::ops::Range;

/// Separate parts of one reply. Servers send a reply in order, so that there is one; the limit bounds the memory of a
/// reply in small pieces.
const PARTS_MAX: usize = 4096;

/// Ascending parts that do not touch, in bytes from the start of the read.
#[derive(Debug, Default)]
pub(super) struct Coverage(Vec<Range<usize>>);

impl Coverage {
    /// Adds a part. Fails for one that is empty, overlaps an earlier one, or is one too many.
    pub(super) fn add(&mut self, part: Range<usize>) -> Result<(), &'static str> {
        let at = self.0.partition_point(|known| known.end <= part.start);
        if part.is_empty() {
            return Err("a chunk of a read is empty");
        }
        if self.0.get(at).is_some_and(|next| next.start < part.end) {
            return Err("two chunks of a read overlap");
        }
        let joins_before = at > 0 && self.0[at - 1].end == part.start;
        let joins_after = self.0.get(at).is_some_and(|next| next.start == part.end);
        match (joins_before, joins_after) {
            (true, true) => self.0[at - 1].end = self.0.remove(at).end,
            (true, false) => self.0[at - 1].end = part.end,
            (false, true) => self.0[at].start = part.start,
            (false, false) if self.0.len() == PARTS_MAX => {
                return Err("a read is answered in too many parts");
            }
            (false, false) => self.0.insert(at, part),
        }
        Ok(())
    }

    /// Returns whether the first `len` bytes are filled.
    pub(super) fn is_whole(&self, len: usize) -> bool {
        len == 0 || self.0.first() == Some(&(0..len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_in_any_order_and_never_overlap() {
        let mut coverage = Coverage::default();
        for part in [8..12, 0..4, 4..6, 12..16] {
            coverage.add(part).unwrap();
            assert!(!coverage.is_whole(16));
        }
        for wrong in [0..1, 5..7, 7..9, 15..17, 6..8 + 8, 6..6] {
            assert!(coverage.add(wrong.clone()).is_err(), "{wrong:?}");
        }
        coverage.add(6..8).unwrap();
        assert!(coverage.is_whole(16) && coverage.0.len() == 1);
        assert!(Coverage::default().is_whole(0));
    }

    #[test]
    fn parts_are_bounded() {
        let mut coverage = Coverage::default();
        let added = (0..=PARTS_MAX).map(|i| coverage.add(2 * i..2 * i + 1)).filter(Result::is_ok);
        assert_eq!(added.count(), PARTS_MAX);
    }
}
