//! A map of grains in memory.

use std::ops::Range;

/// One bit for each grain, from grain `start` on.
pub(super) struct Bits {
    start: u64,
    words: Vec<u64>,
}

impl Bits {
    pub(super) fn new(window: &Range<u64>) -> Self {
        Self { start: window.start, words: vec![0; (window.end - window.start).div_ceil(64) as usize] }
    }

    /// Sets a bit, and returns whether it was set before. Ignores grains outside the window.
    pub(super) fn set(&mut self, grain: u64) -> bool {
        let Some(at) = grain.checked_sub(self.start) else { return false };
        let Some(word) = self.words.get_mut((at / 64) as usize) else { return false };
        let bit = 1 << (at % 64);
        let before = *word & bit != 0;
        *word |= bit;
        before
    }

    /// Sets all bits.
    pub(super) fn fill(&mut self) {
        self.words.fill(u64::MAX);
    }

    /// Returns the bits of eight grains, the first in the lowest bit. `grain` is a multiple of 8 past `start`.
    pub(super) fn byte(&self, grain: u64) -> u8 {
        let at = grain - self.start;
        let word = self.words.get((at / 64) as usize).copied().unwrap_or(0);
        (word >> (at % 64)) as u8
    }
}
