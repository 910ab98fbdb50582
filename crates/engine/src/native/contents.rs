//! Contents of a store's catalogue at an opening: groups and nodes, each checked against the superblock.

use blk::{Error, Result};

use super::catalogue::Catalogue;
use super::layout::Extent;
use super::lineage::{Lineage, Node};
use super::space::{GroupSummary, Space};
use super::stored::{NodeItem, StoredNodes, check_group, decode_group, group_key, node_key};
use super::superblock::Superblock;
use super::view::View;

/// Returns the summaries of the first `groups` groups.
pub(super) fn read_summaries(
    catalogue: &Catalogue,
    groups: u64,
    superblock: &Superblock,
    place: &str,
) -> Result<Vec<GroupSummary>> {
    let read = |group| {
        let Some(bytes) = catalogue.items.get(&group_key(group)) else { return Ok(GroupSummary::default()) };
        let summary = decode_group(bytes, place)?;
        check_group(&summary, superblock).map_err(|cause| Error::damaged(place, cause))?;
        Ok(summary)
    };
    (0..groups).map(read).collect()
}

/// Refuses a catalogue outside of the groups: its blocks are given back to the groups later.
pub(super) fn check_catalogue(catalogue: &Catalogue, space: &Space, place: &str) -> Result<()> {
    match catalogue.extents().find(|extent| !space.has(*extent)) {
        None => Ok(()),
        Some(Extent { addr, len }) => {
            let cause =
                format!("its catalogue is in the {len} blocks from {addr} on, expected blocks of a group");
            Err(Error::damaged(place, cause))
        }
    }
}

/// Returns the nodes and their items.
pub(super) fn read_nodes(
    catalogue: &Catalogue,
    superblock: &Superblock,
    place: &str,
) -> Result<(Lineage, StoredNodes)> {
    let (mut lineage, mut stored) = (Lineage::default(), StoredNodes::default());
    for (key, bytes) in catalogue.items.range(node_key(0)..=node_key(u64::MAX)) {
        let item = NodeItem::decode(bytes, place)?;
        item.check(key.minor, superblock).map_err(|cause| Error::damaged(place, cause))?;
        // Its pages belong to an earlier generation: no merge uses this stamp any more.
        let node = Node::new(key.minor, item.parent, item.size_blocks, View::tree(item.roots, item.sealed));
        let node = node.on(item.device);
        node.sealed.set(item.sealed);
        node.dropped.set(item.dropped);
        node.cursor.set(item.cursor);
        lineage.add(node);
        stored.load(key.minor, item);
    }
    for (id, item) in stored.all() {
        if item.parent != 0 {
            item.check_parent(id, stored.get(item.parent)).map_err(|cause| Error::damaged(place, cause))?;
        }
    }
    lineage.settle();
    Ok((lineage, stored))
}
