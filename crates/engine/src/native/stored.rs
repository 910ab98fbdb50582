//! The lineage as of the last checkpoint: the nodes that exist after a crash, before the journal is replayed.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Error, Result};

use super::bytes::{Reader, Writer};
use super::key::Key;
pub use super::key::USER_KINDS;
use super::layout::{DEVICE_MAX, LOST, device_of};
use super::lineage::{DISK_BLOCKS_MAX, check_size};
use super::space::GroupSummary;
use super::superblock::Superblock;
use super::tree::{Root, Roots};

/// Kinds of items of the store itself.
pub(crate) const GROUP: u8 = 1;
pub(crate) const NODE: u8 = 2;
/// The catalogue's item for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeItem {
    pub parent: u64,
    pub sealed: u64,
    pub size_blocks: u64,
    pub dropped: bool,
    pub cursor: u64,
    /// Device of the source that its blocks may be on; 0: none.
    pub device: u8,
    pub roots: Roots,
}

pub(crate) fn node_key(id: u64) -> Key {
    Key { kind: NODE, major: 0, minor: id }
}

pub(crate) fn group_key(group: u64) -> Key {
    Key { kind: GROUP, major: 0, minor: group }
}

impl NodeItem {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.parent).u64(self.sealed).u64(self.size_blocks);
        out.u8(u8::from(self.dropped)).u64(self.cursor);
        let mut root = [0; Root::BYTES];
        Root::put(self.roots.places.as_ref(), &mut root);
        out.bytes(&root);
        if self.roots.backings.is_some() || self.device != 0 {
            Root::put(self.roots.backings.as_ref(), &mut root);
            out.bytes(&root);
        }
        if self.device != 0 {
            out.u8(self.device);
        }
        out.done()
    }

    pub(crate) fn decode(bytes: &[u8], place: &str) -> Result<NodeItem> {
        let mut input = Reader::new(bytes, place);
        let (parent, sealed) = (input.u64("parent of a node")?, input.u64("generation of a node")?);
        let size_blocks = input.u64("size of a node")?;
        check_size(size_blocks).map_err(|cause| Error::damaged(place, cause))?;
        let (dropped, cursor) = (input.u8("a node's dropped mark")? != 0, input.u64("cursor of a node")?);
        let places = decode_root(input.bytes("root of a node")?, place)?;
        let backings = match input.is_empty() {
            true => None,
            false => decode_root(input.bytes("second root of a node")?, place)?,
        };
        let device = if input.is_empty() { 0 } else { input.u8("device of a node")? };
        let roots = Roots { places, backings };
        Ok(NodeItem { parent, sealed, size_blocks, dropped, cursor, device, roots })
    }
}

impl NodeItem {
    /// Checks that a node of this number and content can exist in the store.
    pub(crate) fn check(&self, id: u64, superblock: &Superblock) -> Result<(), String> {
        let counted = |what: &str, found: u64, allowed: std::ops::RangeInclusive<u64>| {
            let (first, last) = (allowed.start(), allowed.end());
            match allowed.contains(&found) {
                true => Ok(()),
                false => Err(format!("{what} of node {id} is {found}, expected {first} to {last}")),
            }
        };
        counted("number", id, 1..=superblock.next_node.saturating_sub(1))?;
        counted("generation", self.sealed, u64::from(self.dropped)..=superblock.generation)?;
        // Only a dropped node is given back.
        let cursor_max = if self.dropped { DISK_BLOCKS_MAX } else { 0 };
        counted("cursor", self.cursor, 0..=cursor_max)?;
        let device_max = if superblock.has_sources() { DEVICE_MAX } else { 0 };
        counted("device", self.device.into(), 0..=device_max.into())?;
        for (root, device) in [(self.roots.places, self.device), (self.roots.backings, 0)] {
            let found = root.map_or(0, |root| device_of(root.pointer.addr));
            let may_be_lost = superblock.is_rebuildable() && found == LOST;
            if found != 0 && found != device && !may_be_lost {
                return Err(format!("device of a root of node {id} is {found}, expected 0 or {device}"));
            }
            let birth = root.map_or(0, |root| root.pointer.birth);
            counted("birth of a root", birth, 0..=superblock.generation)?;
        }
        Ok(())
    }

    /// Checks that the parent was sealed before the node: so no node is its own ancestor.
    pub(crate) fn check_parent(&self, id: u64, parent: Option<&NodeItem>) -> Result<(), String> {
        let parent = parent
            .ok_or_else(|| format!("node {id} descends from node {}, which is not there", self.parent))?;
        let earlier = parent.sealed != 0 && (self.sealed == 0 || parent.sealed < self.sealed);
        earlier.then_some(()).ok_or_else(|| {
            let (own, other) = (self.sealed, parent.sealed);
            format!(
                "node {id} of generation {own} descends from node {} of generation {other}, expected an earlier one that \
                 is sealed",
                self.parent
            )
        })
    }
}

fn decode_root(bytes: &[u8], place: &str) -> Result<Option<Root>> {
    if bytes.len() != Root::BYTES {
        let cause = format!("root of a node: {} bytes, expected {}", bytes.len(), Root::BYTES);
        return Err(Error::damaged(place, cause));
    }
    Root::get(bytes, place)
}

/// The items of all nodes.
#[derive(Default)]
pub(crate) struct StoredNodes {
    nodes: BTreeMap<u64, NodeItem>,
    children: BTreeMap<u64, BTreeSet<u64>>,
    /// Nodes changed since their items were written.
    dirty: BTreeSet<u64>,
}

impl StoredNodes {
    pub(crate) fn load(&mut self, id: u64, item: NodeItem) {
        self.children.entry(item.parent).or_default().insert(id);
        self.nodes.insert(id, item);
    }

    pub(crate) fn get(&self, id: u64) -> Option<&NodeItem> {
        self.nodes.get(&id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &NodeItem)> {
        self.nodes.iter().map(|(id, item)| (*id, item))
    }

    pub(crate) fn children(&self, id: u64) -> Vec<u64> {
        self.children.get(&id).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn set(&mut self, id: u64, item: NodeItem) {
        if let Some(old) = self.nodes.get(&id) {
            self.children.entry(old.parent).or_default().remove(&id);
        }
        self.load(id, item);
        self.dirty.insert(id);
    }

    /// Removes a node that has been given back: its only child becomes a child of its parent.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(item) = self.nodes.remove(&id) else { return };
        for child in self.children.remove(&id).unwrap_or_default() {
            let below = NodeItem { parent: item.parent, ..self.nodes[&child] };
            self.set(child, below);
        }
        self.children.entry(item.parent).or_default().remove(&id);
        self.dirty.insert(id);
    }

    /// Returns the changes that the catalogue does not have yet.
    pub(crate) fn take_dirty(&mut self) -> Vec<(u64, Option<NodeItem>)> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().map(|id| (id, self.nodes.get(&id).copied())).collect()
    }

    /// Returns the generation that ended when the node was sealed; 0 if there is no such node.
    pub(crate) fn sealed(&self, id: u64) -> u64 {
        self.nodes.get(&id).map_or(0, |item| item.sealed)
    }
}

pub(crate) fn encode_group(summary: &GroupSummary) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(summary.free)
        .u64(summary.version)
        .u8(summary.slot)
        .u8(u8::from(summary.meta))
        .u64(summary.checksum);
    out.done()
}

pub(crate) fn decode_group(bytes: &[u8], place: &str) -> Result<GroupSummary> {
    let mut input = Reader::new(bytes, place);
    // The format page refuses no slot. Only its lowest bit counts, so that a slot is always 0 or 1. A page in the other
    // slot has another version or checksum, and its reading fails.
    Ok(GroupSummary {
        free: input.u32("free blocks of a group")?,
        version: input.u64("version of a group")?,
        slot: input.u8("slot of a group")? & 1,
        meta: input.u8("a group's metadata mark")? != 0,
        checksum: input.u64("checksum of a group")?,
    })
}

/// Checks that a group like this can exist in the store.
pub(crate) fn check_group(summary: &GroupSummary, superblock: &Superblock) -> Result<(), String> {
    let (free, version) = (u64::from(summary.free), summary.version);
    for (what, found, max) in
        [("free blocks", free, superblock.group_blocks), ("version", version, superblock.checkpoint)]
    {
        if found > max {
            return Err(format!("{what} of a group: found {found}, expected at most {max}"));
        }
    }
    Ok(())
}
