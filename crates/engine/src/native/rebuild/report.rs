//! What a rebuild has found.

use std::ops::Range;

use super::super::layout::BLOCK;

/// Result of a rebuild.
#[derive(Debug, Default, Clone)]
pub struct RebuildReport {
    /// The last valid checkpoint.
    pub checkpoint: u64,
    /// The catalogue was read: names, sizes and snapshots are those of the source.
    pub has_catalogue: bool,
    /// The journal's records count, those after the last checkpoint too.
    pub has_journal: bool,
    /// The states of disks in the new store, by the number of their node.
    pub nodes: Vec<RebuiltNode>,
    /// Further damage, and what it means, as sentences.
    pub notes: Vec<String>,
}

/// A state of a disk in the new store.
#[derive(Debug, Default, Clone)]
pub struct RebuiltNode {
    /// Number of the node.
    pub node: u64,
    /// VM and disk, with the snapshot if the state is one. Without a catalogue: the VM that was made for the state.
    pub name: Option<String>,
    /// Size of the disk in bytes.
    pub bytes: u64,
    /// Bytes with space in the store.
    pub recovered_bytes: u64,
    /// Ranges in bytes whose content is lost.
    pub lost: Vec<Range<u64>>,
}

impl RebuildReport {
    /// Returns whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.has_catalogue && self.has_journal && self.notes.is_empty() && self.lost_bytes() == 0
    }

    /// Returns the bytes of all lost ranges.
    pub fn lost_bytes(&self) -> u64 {
        self.nodes.iter().flat_map(|node| &node.lost).map(|range| range.end - range.start).sum()
    }
}

/// Returns ranges of blocks as ranges of bytes, those that touch as one, within a disk.
pub(super) fn in_bytes(mut blocks: Vec<Range<u64>>, size_blocks: u64) -> Vec<Range<u64>> {
    blocks.sort_by_key(|range| (range.start, range.end));
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in blocks {
        let range = range.start.min(size_blocks) * BLOCK..range.end.min(size_blocks) * BLOCK;
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ if range.is_empty() => {}
            _ => out.push(range),
        }
    }
    out
}
