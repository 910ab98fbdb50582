//! The bitmap of what a commit has to copy, and the order in which it copies.

use std::ops::Range;

/// Part of the disk for each bit. Source: QEMU `block/dirty-bitmap.c`, bdrv_get_default_bitmap_granularity.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;
/// Longest copy. Source: QEMU `block/mirror.c`, MAX_IO_BYTES.
pub(super) const COPY_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Dirty {
    disk_bytes: u64,
    bits: Vec<u64>,
    count: u64,
    /// Chunk at which the next search begins.
    cursor: u64,
    /// Copies under way, in chunks.
    copies: Vec<Range<u64>>,
}

fn chunks(range: &Range<u64>) -> Range<u64> {
    range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES)
}

impl Dirty {
    pub(super) fn new(disk_bytes: u64) -> Dirty {
        let words = disk_bytes.div_ceil(CHUNK_BYTES).div_ceil(64) as usize;
        Dirty { disk_bytes, bits: vec![0; words], count: 0, cursor: 0, copies: Vec::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.count * CHUNK_BYTES
    }

    pub(super) fn is_clean(&self) -> bool {
        self.count == 0
    }

    fn is_set(&self, chunk: u64) -> bool {
        self.bits.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, range: &Range<u64>) {
        for chunk in chunks(range).filter(|chunk| chunk * CHUNK_BYTES < self.disk_bytes) {
            self.count += u64::from(!self.is_set(chunk));
            self.bits[(chunk / 64) as usize] |= 1 << (chunk % 64);
        }
    }

    /// Returns the first dirty chunk from the cursor on, and then from the begin.
    fn next_set(&self) -> Option<u64> {
        let (from, words) = (self.cursor / 64, self.bits.len() as u64);
        let first = self.bits.get(from as usize)? & (!0 << (self.cursor % 64));
        if first != 0 {
            return Some(from * 64 + u64::from(first.trailing_zeros()));
        }
        let others = (from + 1..words).chain(0..=from);
        others
            .map(|at| (at, self.bits[at as usize]))
            .find(|(_, word)| *word != 0)
            .map(|(at, word)| at * 64 + u64::from(word.trailing_zeros()))
    }

    /// Begins the next copy: dirty chunks in a row, which are clean from now on. Returns None where there are none, or
    /// where the first of them is being copied.
    pub(super) fn begin_copy(&mut self) -> Option<Range<u64>> {
        let first = self.next_set()?;
        let is_copied = |copies: &[Range<u64>], chunk| copies.iter().any(|copy| copy.contains(&chunk));
        if is_copied(&self.copies, first) {
            return None;
        }
        let mut end = first;
        while end - first < COPY_BYTES_MAX / CHUNK_BYTES && self.is_set(end) && !is_copied(&self.copies, end)
        {
            self.bits[(end / 64) as usize] &= !(1 << (end % 64));
            self.count -= 1;
            end += 1;
        }
        self.copies.push(first..end);
        self.cursor = if end * CHUNK_BYTES < self.disk_bytes { end } else { 0 };
        Some(first * CHUNK_BYTES..(end * CHUNK_BYTES).min(self.disk_bytes))
    }

    pub(super) fn end_copy(&mut self, range: &Range<u64>) {
        let ended = chunks(range);
        self.copies.retain(|copy| *copy != ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_round_and_leave_what_is_under_way() {
        let mut dirty = Dirty::new(100 * CHUNK_BYTES - 5);
        dirty.set(&(10..20));
        dirty.set(&(70 * CHUNK_BYTES..71 * CHUNK_BYTES + 1));
        dirty.set(&(98 * CHUNK_BYTES..99 * CHUNK_BYTES + 9));
        assert_eq!(dirty.bytes(), 5 * CHUNK_BYTES);
        let first = dirty.begin_copy().unwrap();
        assert_eq!(first, 0..CHUNK_BYTES);
        assert_eq!(dirty.begin_copy(), Some(70 * CHUNK_BYTES..72 * CHUNK_BYTES));
        assert_eq!(dirty.begin_copy(), Some(98 * CHUNK_BYTES..100 * CHUNK_BYTES - 5));
        dirty.set(&(0..1));
        assert_eq!(dirty.begin_copy(), None, "its first copy is under way");
        dirty.end_copy(&first);
        assert_eq!(dirty.begin_copy(), Some(0..CHUNK_BYTES));
        assert!(dirty.is_clean());
    }

    #[test]
    fn a_copy_has_a_longest_length() {
        let mut dirty = Dirty::new(64 << 20);
        dirty.set(&(0..3 << 20));
        assert_eq!(dirty.begin_copy(), Some(0..COPY_BYTES_MAX));
        assert_eq!(dirty.begin_copy(), Some(COPY_BYTES_MAX..2 * COPY_BYTES_MAX));
    }
}
