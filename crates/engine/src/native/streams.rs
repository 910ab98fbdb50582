//! Recognition of sequential streams among the writes of a disk.

use super::layout::Extent;

/// Number of redirects remembered, to recognise the next one of a stream: as many streams may be written in turn.
const STREAMS: usize = 32;

/// The ends of a disk's last redirects. A write that begins at one of them continues a stream.
pub(super) struct Streams {
    /// Block of the disk, and block of the store.
    ends: [(u64, u64); STREAMS],
    oldest: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Self { ends: [(u64::MAX, 0); STREAMS], oldest: 0 }
    }
}

impl Streams {
    /// Returns the address behind the redirect that ended before `block`.
    pub(super) fn behind(&self, block: u64) -> Option<u64> {
        self.ends.iter().find(|(end, _)| *end == block).map(|(_, addr)| *addr)
    }

    /// Notes that blocks from `start` on were placed.
    pub(super) fn note(&mut self, start: u64, placed: Extent) {
        let known = self.ends.iter().position(|(end, _)| *end == start);
        let at = known.unwrap_or(self.oldest);
        if known.is_none() {
            self.oldest = (self.oldest + 1) % STREAMS;
        }
        self.ends[at] = (start + placed.len, placed.end());
    }
}
