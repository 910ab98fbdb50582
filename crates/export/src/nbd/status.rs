//! Replies to BLOCK_STATUS: a volume's pieces, and what has changed since other states, as block descriptors.
//! "NBD_REPLY_TYPE_BLOCK_STATUS" of proto.md. `options`, `negotiate` and `proto` have the selection of contexts.

use std::ops::Range;

use blk::volume::BlockStatus;

use super::proto::*;
use super::wire::Put;

/// Returns the payload of a chunk for `base:allocation`: the context's ID, then (length, flags) pairs that start at the range's
/// start and never exceed its end. `one` requests a single pair. There is always at least one pair; without pieces it
/// is "allocated, content unknown", which is correct for any content.
pub(super) fn allocation(range: &Range<u64>, one: bool, pieces: &[BlockStatus]) -> Vec<u8> {
    let pieces = pieces.iter().map(|piece| (piece.len, flags_of(piece)));
    payload(BASE_ALLOCATION_ID, range, one, pieces, 0)
}

/// Returns the payload of a chunk for a bitmap: what of the range up to `end` is among the changed ranges is dirty. Without any
/// knowledge everything is.
pub(super) fn bitmap(id: u32, range: &Range<u64>, one: bool, changed: &[Range<u64>], end: u64) -> Vec<u8> {
    let mut at = range.start;
    let mut pieces = Vec::with_capacity(2 * changed.len() + 1);
    for part in changed {
        let (start, stop) = (part.start.clamp(at, end.max(at)), part.end.clamp(at, end.max(at)));
        pieces.extend([(start - at, 0), (stop - start, STATE_DIRTY)]);
        at = stop;
    }
    pieces.push((end.saturating_sub(at), 0));
    payload(id, range, one, pieces.into_iter(), STATE_DIRTY)
}

/// `unknown` are the flags where nothing is known.
fn payload(
    id: u32,
    range: &Range<u64>,
    one: bool,
    pieces: impl Iterator<Item = (u64, u32)>,
    unknown: u32,
) -> Vec<u8> {
    let asked = u32::try_from(range.end - range.start).expect("the length of a request has 32 bits");
    let mut extents = merged(asked, if one { 1 } else { EXTENTS_MAX }, pieces);
    if extents.is_empty() {
        extents.push((asked, unknown));
    }
    let mut bytes = Vec::with_capacity(4 + extents.len() * 8);
    bytes.put_u32(id);
    for (len, flags) in extents {
        bytes.put_u32(len);
        bytes.put_u32(flags);
    }
    bytes
}

/// Merges neighbouring pieces of equal status, and cuts off what exceeds the range.
fn merged(asked: u32, extents_max: usize, pieces: impl Iterator<Item = (u64, u32)>) -> Vec<(u32, u32)> {
    let mut extents: Vec<(u32, u32)> = Vec::new();
    let mut left = asked;
    for (len, flags) in pieces {
        let len = len.min(u64::from(left)) as u32;
        if len == 0 {
            continue;
        }
        let full = extents.len() == extents_max;
        match extents.last_mut() {
            Some((total, same)) if *same == flags => *total += len,
            _ if full => break,
            _ => extents.push((len, flags)),
        }
        left -= len;
    }
    extents
}

fn flags_of(piece: &BlockStatus) -> u32 {
    let hole = if piece.hole { STATE_HOLE } else { 0 };
    let zero = if piece.zero { STATE_ZERO } else { 0 };
    hole | zero
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(len: u64, hole: bool) -> BlockStatus {
        BlockStatus { len, hole, zero: hole }
    }

    fn pairs(payload: &[u8]) -> Vec<(u32, u32)> {
        let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        (4..payload.len()).step_by(8).map(|at| (word(at), word(at + 4))).collect()
    }

    #[test]
    fn neighbours_merge_and_the_range_clips() {
        let pieces = [piece(512, true), piece(512, true), piece(0, false), piece(u64::MAX, false)];
        assert_eq!(pairs(&allocation(&(0..4096), false, &pieces)), [(1024, 3), (3072, 0)]);
    }

    #[test]
    fn req_one_returns_one_merged_descriptor() {
        let pieces = [piece(512, false), piece(512, false), piece(512, true)];
        assert_eq!(pairs(&allocation(&(0..4096), true, &pieces)), [(1024, 0)]);
    }

    #[test]
    fn an_unknown_range_is_reported_as_allocated() {
        assert_eq!(pairs(&allocation(&(512..1024), false, &[])), [(512, 0)]);
    }

    #[test]
    fn what_changed_is_dirty_and_the_rest_is_not() {
        let changed = [0..1536, 2048..2560, 3072..9000];
        let of = |range: Range<u64>, one, end| pairs(&bitmap(7, &range, one, &changed, end));
        assert_eq!(of(1024..4096, false, 4096), [(512, 1), (512, 0), (512, 1), (512, 0), (1024, 1)]);
        assert_eq!(of(1024..4096, true, 4096), [(512, 1)]);
        assert_eq!(of(1024..4096, false, 2560), [(512, 1), (512, 0), (512, 1)], "only what was compared");
        assert_eq!(pairs(&bitmap(7, &(0..4096), false, &[], 4096)), [(4096, 0)]);
        assert_eq!(pairs(&bitmap(7, &(0..4096), false, &[], 0)), [(4096, 1)], "nothing was compared");
        assert_eq!(bitmap(7, &(0..4096), false, &[], 0)[..4], 7_u32.to_be_bytes());
    }

    #[test]
    fn descriptors_are_bounded() {
        let pieces: Vec<BlockStatus> = (0..3 * EXTENTS_MAX).map(|i| piece(512, i % 2 == 0)).collect();
        let range = 0..512 * pieces.len() as u64;
        assert_eq!(pairs(&allocation(&range, false, &pieces)).len(), EXTENTS_MAX);
    }
}
