//! The part of a state that belongs to it alone. A node's tree is compared with the tree of the state it descends from,
//! its ground: what the tree refers to, and the ground does not at the same place, was made by the node's own writes.
//! Over all nodes, every page and every data block is found exactly once this way.

use std::ops::Range;

use super::stored::NodeItem;
use super::tree::Root;

/// A range of a disk over one ground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub start: u64,
    pub end: u64,
    pub ground: Option<Root>,
    /// The node's own blocks in the range were born after this generation.
    pub since: u64,
}

impl Piece {
    /// The whole disk, over no ground.
    pub(super) const ALL: Piece = Piece { start: 0, end: u64::MAX, ground: None, since: 0 };

    pub(super) fn blocks(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// Most ancestors visited for one node: a damaged lineage may contain a cycle.
const ANCESTORS_MAX: usize = 1 << 20;

/// Returns the pieces of a node's tree that count, in order. Blocks before the node's own cursor are given back already
/// and do not count. Where the parent's blocks are given back, the parent's parent is the ground.
pub(super) fn pieces(id: u64, item_of: &dyn Fn(u64) -> Option<NodeItem>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let Some(item) = item_of(id) else { return pieces };
    let mut end = u64::MAX;
    let mut ground = item_of(item.parent);
    for _ in 0..ANCESTORS_MAX {
        let given_back = ground.filter(|ground| ground.dropped).map_or(0, |ground| ground.cursor);
        let start = item.cursor.max(given_back);
        if start < end {
            let since = ground.map_or(0, |ground| ground.sealed);
            pieces.push(Piece { start, end, ground: ground.and_then(|ground| ground.root), since });
            end = start;
        }
        if start <= item.cursor {
            break;
        }
        ground = ground.and_then(|ground| item_of(ground.parent));
    }
    pieces.reverse();
    pieces
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Items = BTreeMap<u64, NodeItem>;

    fn item(parent: u64, sealed: u64, cursor: u64) -> NodeItem {
        NodeItem { parent, sealed, size_blocks: 1000, dropped: cursor > 0, cursor, root: None }
    }

    fn grounds(items: &Items, id: u64) -> Vec<(Range<u64>, u64)> {
        pieces(id, &|id| items.get(&id).copied()).iter().map(|piece| (piece.blocks(), piece.since)).collect()
    }

    #[test]
    fn the_ground_is_the_parent_unless_that_is_given_back() {
        let mut items = Items::from([(1, item(0, 5, 0)), (2, item(1, 7, 0)), (3, item(2, 0, 0))]);
        assert_eq!(grounds(&items, 1), [(0..u64::MAX, 0)]);
        assert_eq!(grounds(&items, 3), [(0..u64::MAX, 7)]);
        items.insert(2, item(1, 7, 504));
        assert_eq!(grounds(&items, 2), [(504..u64::MAX, 5)]);
        assert_eq!(grounds(&items, 3), [(0..504, 5), (504..u64::MAX, 7)]);
        items.insert(1, item(0, 5, 252));
        assert_eq!(grounds(&items, 3), [(0..252, 0), (252..504, 5), (504..u64::MAX, 7)]);
    }

    #[test]
    fn a_circle_ends() {
        let items = Items::from([(1, item(2, 5, 9)), (2, item(1, 7, 9))]);
        assert!(grounds(&items, 1).len() <= 3);
    }
}
