//! Answers to BLOCK_STATUS: extents of a context, cut to the range of the caller; and the pieces of a volume's status.

use std::ops::Range;

use blk::SECTOR;
use blk::volume::BlockStatus;

use crate::nbd::proto::{STATE_HOLE, STATE_ZERO};

/// A part of a range with its state in one metadata context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Flags, whose meaning the context defines.
    pub flags: u32,
}

/// Cuts extents that begin at `begin` to `range`, which begins there or later, and merges neighbours of equal flags.
pub(super) fn cut(extents: &[Extent], begin: u64, range: &Range<u64>) -> Vec<Extent> {
    let mut cut: Vec<Extent> = Vec::new();
    let mut at = begin;
    for extent in extents {
        let (start, end) = (at.max(range.start), at.saturating_add(extent.len).min(range.end));
        at = at.saturating_add(extent.len);
        match cut.last_mut() {
            _ if start >= end => {}
            Some(last) if last.flags == extent.flags => last.len += end - start,
            _ => cut.push(Extent { len: end - start, flags: extent.flags }),
        }
    }
    cut
}

/// Returns the pieces of `base:allocation`'s extents that begin on a sector. A sector of several extents is a hole, or
/// zero, only if all of them are. A last sector that the extents do not cover is left out, unless it is the only one.
pub(super) fn pieces(extents: &[Extent]) -> Vec<BlockStatus> {
    let mut pieces = Pieces(Vec::new());
    let (mut partial_bytes, mut common) = (0, u32::MAX);
    for extent in extents {
        let mut left = extent.len;
        if partial_bytes > 0 {
            let more = left.min(SECTOR - partial_bytes);
            (partial_bytes, left) = (partial_bytes + more, left - more);
            common &= extent.flags;
            if partial_bytes == SECTOR {
                pieces.push(SECTOR, common);
                partial_bytes = 0;
            }
        }
        pieces.push(left / SECTOR * SECTOR, extent.flags);
        if left % SECTOR > 0 {
            (partial_bytes, common) = (left % SECTOR, extent.flags);
        }
    }
    if pieces.0.is_empty() {
        pieces.push(SECTOR, 0);
    }
    pieces.0
}

struct Pieces(Vec<BlockStatus>);

impl Pieces {
    fn push(&mut self, len: u64, flags: u32) {
        let piece = BlockStatus { len, hole: flags & STATE_HOLE != 0, zero: flags & STATE_ZERO != 0 };
        match self.0.last_mut() {
            _ if len == 0 => {}
            Some(last) if (last.hole, last.zero) == (piece.hole, piece.zero) => last.len += len,
            _ => self.0.push(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(all: &[(u64, u32)]) -> Vec<Extent> {
        all.iter().map(|&(len, flags)| Extent { len, flags }).collect()
    }

    #[test]
    fn extents_are_cut_and_merged() {
        let all = extents(&[(100, 1), (50, 0), (50, 0), (1 << 40, 3)]);
        assert_eq!(cut(&all, 0, &(0..300)), extents(&[(100, 1), (100, 0), (100, 3)]));
        assert_eq!(cut(&all, 0, &(120..130)), extents(&[(10, 0)]));
        assert_eq!(cut(&all, 1000, &(1050..1150)), extents(&[(50, 1), (50, 0)]));
        assert_eq!(cut(&extents(&[(100, 1)]), 0, &(100..200)), []);
        assert_eq!(cut(&extents(&[(u64::MAX, 1), (u64::MAX, 1)]), 5, &(5..7)), extents(&[(2, 1)]));
    }

    #[test]
    fn a_sector_is_zero_only_if_all_of_it_is() {
        let of = |all: &[(u64, u32)]| {
            let pieces = pieces(&extents(all));
            pieces.iter().map(|piece| (piece.len, piece.hole, piece.zero)).collect::<Vec<_>>()
        };
        let (data, hole) = ((false, false), (true, true));
        let piece = |len, (hole, zero): (bool, bool)| (len, hole, zero);
        assert_eq!(of(&[(1024, 3), (512, 0)]), [piece(1024, hole), piece(512, data)]);
        assert_eq!(of(&[(700, 3), (836, 0)]), [piece(512, hole), piece(1024, data)]);
        assert_eq!(of(&[(100, 3), (100, 2), (312, 3), (512, 2)]), [(1024, false, true)]);
        assert_eq!(of(&[(600, 0), (1448, 3)]), [piece(1024, data), piece(1024, hole)]);
        assert_eq!(of(&[(512, 3), (100, 3)]), [piece(512, hole)], "the rest is another answer's");
        assert_eq!(of(&[(100, 3)]), [piece(512, data)]);
    }
}
