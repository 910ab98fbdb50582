//! Changes of the state of many extents at once. When a dropped state is given back, a word of a group's maps has
//! several of its blocks. Each word is changed once.

use super::Extent;
use super::bits::masks;
use super::group::BlockState;
use super::state::State;

/// Returns the extents in the order of their addresses, neighbours joined. Extents that overlap stay apart, so that
/// they are found.
pub(crate) fn sorted(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|extent| extent.addr);
    extents.dedup_by(|next, last| {
        let joins = last.addr.checked_add(last.len) == Some(next.addr);
        last.len += if joins { next.len } else { 0 };
        joins
    });
    extents
}

/// A part of one word of a group's maps.
struct Part {
    group: usize,
    word: usize,
    mask: u64,
}

impl State {
    /// Changes the state of extents, which belong to loaded groups, and returns true. Returns false, and changes
    /// nothing, if they are not in order and apart from each other, or if a block is not in state `from`.
    pub(super) fn shift_sorted(&mut self, extents: &[Extent], from: BlockState, to: BlockState) -> bool {
        if extents.windows(2).any(|pair| pair[0].addr.saturating_add(pair[0].len) > pair[1].addr) {
            return false;
        }
        let Some(parts) = self.parts_of(extents) else { return false };
        let is_from = |part: &Part| {
            let maps = self.groups[part.group].maps.as_ref();
            maps.is_some_and(|maps| maps.is_word(part.word, part.mask, from))
        };
        if !parts.iter().all(is_from) {
            return false;
        }
        for of_group in parts.chunk_by(|a, b| a.group == b.group) {
            let words = of_group.iter().map(|part| (part.word, part.mask));
            self.shift_words(of_group[0].group, words, from, to);
        }
        true
    }

    /// Returns the words of the extents. None: an extent is not within one group.
    fn parts_of(&self, extents: &[Extent]) -> Option<Vec<Part>> {
        let mut parts: Vec<Part> = Vec::new();
        for extent in extents {
            let (group, blocks) = self.locate(*extent)?;
            for (word, mask) in masks(blocks) {
                match parts.last_mut() {
                    Some(last) if (last.group, last.word) == (group, word) => last.mask |= mask,
                    _ => parts.push(Part { group, word, mask }),
                }
            }
        }
        Some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_and_overlaps_are_not() {
        let extent = |addr, len| Extent { addr, len };
        let joined = sorted(vec![extent(9, 1), extent(5, 2), extent(7, 2), extent(20, 4), extent(22, 1)]);
        assert_eq!(joined, [extent(5, 5), extent(20, 4), extent(22, 1)]);
    }
}
