//! The part of a state that belongs to it alone. A node's tree is compared with the tree of the state it descends from,
//! its base: what the tree refers to, and the base does not at the same place, was made by the node's own writes.
//! Over all nodes, every page and every data block is found exactly once this way.

use std::ops::Range;

use super::stored::NodeItem;
use super::tree::Roots;

const NO_ROOTS: Roots = Roots { places: None, backings: None };

/// A range of a disk over one base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiffRange {
    pub start: u64,
    pub end: u64,
    /// The node that is the base, and its trees.
    pub base_node: Option<u64>,
    pub base: Roots,
    /// The node's own blocks in the range were born after this generation.
    pub since: u64,
}

impl DiffRange {
    /// The whole disk, over no base.
    pub(super) const ALL: DiffRange =
        DiffRange { start: 0, end: u64::MAX, base_node: None, base: NO_ROOTS, since: 0 };

    pub(super) fn blocks(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// Most ancestors visited for one node: a damaged lineage may contain a cycle.
const ANCESTORS_MAX: usize = 1 << 20;

/// Returns the pieces of a node's tree that count, in order. Blocks before the node's own cursor are given back already
/// and do not count. Where the parent's blocks are given back, the parent's parent is the base.
pub(super) fn diff_ranges(id: u64, item_of: &dyn Fn(u64) -> Option<NodeItem>) -> Vec<DiffRange> {
    let mut ranges = Vec::new();
    let Some(item) = item_of(id) else { return ranges };
    let mut end = u64::MAX;
    let (mut base_node, mut base) = (item.parent, item_of(item.parent));
    for _ in 0..ANCESTORS_MAX {
        let given_back = base.filter(|base| base.dropped).map_or(0, |base| base.cursor);
        let start = item.cursor.max(given_back);
        if start < end {
            let since = base.map_or(0, |base| base.sealed);
            let node = base.map(|_| base_node);
            ranges.push(DiffRange {
                start,
                end,
                base_node: node,
                base: base.map_or(NO_ROOTS, |base| base.roots),
                since,
            });
            end = start;
        }
        if start <= item.cursor {
            break;
        }
        base_node = base.map_or(0, |base| base.parent);
        base = item_of(base_node);
    }
    ranges.reverse();
    ranges
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Items = BTreeMap<u64, NodeItem>;

    fn item(parent: u64, sealed: u64, cursor: u64) -> NodeItem {
        NodeItem {
            parent,
            sealed,
            size_blocks: 1000,
            dropped: cursor > 0,
            cursor,
            device: 0,
            roots: NO_ROOTS,
        }
    }

    fn bases(items: &Items, id: u64) -> Vec<(Range<u64>, u64)> {
        diff_ranges(id, &|id| items.get(&id).copied())
            .iter()
            .map(|range| (range.blocks(), range.since))
            .collect()
    }

    #[test]
    fn the_base_is_the_parent_unless_its_blocks_are_given_back() {
        let mut items = Items::from([(1, item(0, 5, 0)), (2, item(1, 7, 0)), (3, item(2, 0, 0))]);
        assert_eq!(bases(&items, 1), [(0..u64::MAX, 0)]);
        assert_eq!(bases(&items, 3), [(0..u64::MAX, 7)]);
        items.insert(2, item(1, 7, 504));
        assert_eq!(bases(&items, 2), [(504..u64::MAX, 5)]);
        assert_eq!(bases(&items, 3), [(0..504, 5), (504..u64::MAX, 7)]);
        items.insert(1, item(0, 5, 252));
        assert_eq!(bases(&items, 3), [(0..252, 0), (252..504, 5), (504..u64::MAX, 7)]);
    }

    #[test]
    fn a_cycle_in_the_lineage_ends() {
        let items = Items::from([(1, item(2, 5, 9)), (2, item(1, 7, 9))]);
        assert!(bases(&items, 1).len() <= 3);
    }
}
