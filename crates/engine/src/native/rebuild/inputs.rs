//! The parts that all steps of a rebuild work on.

use blk::{Env, File};

use super::anchor::Anchor;
use super::copy::Found;
use crate::options::Defects;

/// The parts that a rebuild works on.
pub(super) struct Rebuild<'a> {
    pub env: &'a Env,
    pub target: &'a File,
    pub anchor: &'a Anchor,
    pub found: &'a Found,
    pub defects: Defects,
}

impl Rebuild<'_> {
    /// Returns the number of the checkpoint that writes the new store. No page of the source has it: openings whose superblocks
    /// are lost have taken numbers too, and pages of a checkpoint that was under way have the number behind the last one.
    pub(super) fn next_checkpoint(&self) -> u64 {
        self.anchor.superblock.checkpoint.max(self.anchor.ring.newest_checkpoint) + 2
    }
}
