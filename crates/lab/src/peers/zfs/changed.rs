//! Blocks in memory.

use std::collections::BTreeMap;

use blk::Slice;

/// Blocks that were changed and are not yet written.
#[derive(Default)]
pub(super) struct Changed(pub(super) BTreeMap<u64, Slice>);

impl Changed {
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn get(&self, block: u64) -> Option<Slice> {
        self.0.get(&block).cloned()
    }

    pub(super) fn put(&mut self, block: u64, bytes: Slice) {
        self.0.insert(block, bytes);
    }
}
