//! What a check says: each fault, and whose data it hurts.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use blk::Error;

use crate::native::layout::Extent;

/// Faults that are listed; the rest is counted.
pub(super) const FINDINGS_MAX: usize = 1000;
/// States that one finding names; `Report::hurt` has all of them.
const HURT_MAX: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A superblock cannot be read, or is not the one that was written.
    Superblock,
    /// A page of the catalogue: the store may not open again.
    Catalogue,
    /// Nodes that contradict each other.
    Lineage,
    /// A page of a map: the blocks below it cannot be read.
    Map,
    /// Data that cannot be read.
    Data,
    /// A map refers to where nothing of its kind can lie.
    Place,
    /// One block is used twice.
    Doubled,
    /// In use, and free by the bitmap: something else may be written there.
    Unmarked,
    /// Its birth is not that of what the state wrote itself: its space would be given back too late, or too early.
    Birth,
    /// A bitmap page: its group's space cannot be used, what lies there is not hurt.
    Bitmap,
    /// In use by the bitmap alone: space lost.
    Leaked,
}

/// A part of a state, in bytes of its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hurt {
    pub node: u64,
    pub bytes: Range<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub fault: Fault,
    /// Place, and what was found and expected.
    pub error: Error,
    /// Where in the store; None where that is not a range of blocks.
    pub extent: Option<Extent>,
    /// The states that show it, dropped ones left out; the first hundred.
    pub hurt: Vec<Hurt>,
}

/// The state of the store that a checkpoint has made durable, and what is wrong with it.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub checkpoint: u64,
    /// Why what happened since that checkpoint was not merged and looked at as well.
    pub behind: Option<Error>,
    /// Kept states: running and sealed nodes that are not dropped.
    pub states: BTreeSet<u64>,
    /// Pages of maps, and data blocks, each counted once however many states share it.
    pub pages: u64,
    pub data_blocks: u64,
    /// Worst first.
    pub findings: Vec<Finding>,
    /// Findings that are not listed.
    pub more: u64,
    /// Kept states that a finding hurts. All others are whole.
    pub hurt: BTreeSet<u64>,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.more == 0
    }

    /// Kept states that nothing found hurts.
    pub fn whole(&self) -> impl Iterator<Item = u64> {
        self.states.difference(&self.hurt).copied()
    }

    /// Whether one more finding would be listed.
    pub(super) fn has_room(&self) -> bool {
        self.findings.len() < FINDINGS_MAX
    }

    pub(super) fn add(&mut self, fault: Fault, error: Error, extent: Option<Extent>, mut hurt: Vec<Hurt>) {
        self.hurt.extend(hurt.iter().map(|hurt| hurt.node));
        if !self.has_room() {
            self.more += 1;
            return;
        }
        hurt.truncate(HURT_MAX);
        self.findings.push(Finding { fault, error, extent, hurt });
    }

    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| (finding.fault, finding.extent));
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        for Hurt { node, bytes } in &self.hurt {
            write!(f, "; node {node}, bytes {}..{}", bytes.start, bytes.end)?;
        }
        Ok(())
    }
}
