//! Result of a check: each fault, and the states that it affects.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use blk::Error;

use crate::native::layout::Extent;

/// Most faults that are listed; the rest is counted.
pub(super) const FINDINGS_MAX: usize = 1000;
/// Most states that one finding names; `Report::affected` has all of them.
const AFFECTED_MAX: usize = 100;

/// Kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A superblock cannot be read, or is not the one that was written.
    Superblock,
    /// A page of the catalogue is damaged: the store may not open again.
    Catalogue,
    /// Nodes contradict each other.
    Lineage,
    /// A page of a map is damaged: the blocks below it cannot be read.
    Map,
    /// Data cannot be read.
    Data,
    /// A map refers to a place that cannot hold blocks of that kind.
    Place,
    /// One block is used twice.
    Doubled,
    /// A block is in use but free by the bitmap: it may be overwritten with other data.
    Unmarked,
    /// A block's birth is outside of the range of what the state itself wrote: its space would be given back too late,
    /// or too early.
    Birth,
    /// A bitmap page is damaged: its group's space cannot be used. The data in the group is not affected.
    Bitmap,
    /// Blocks are in use by the bitmap alone: their space is lost.
    Leaked,
}

/// A part of a state, in bytes of its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffectedRange {
    /// Number of the lineage node.
    pub node: u64,
    /// Whole blocks.
    pub bytes: Range<u64>,
}

/// One fault that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub fault: Fault,
    /// The place, and what was found and expected.
    pub error: Error,
    /// The blocks in the store; None where the place is not a range of blocks.
    pub extent: Option<Extent>,
    /// The states that show the extent, without dropped ones; the first hundred.
    pub affected: Vec<AffectedRange>,
}

/// The faults of the state that a checkpoint has made durable.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of that checkpoint.
    pub checkpoint: u64,
    /// Reason why the changes since that checkpoint were not merged and checked as well.
    pub behind: Option<Error>,
    /// Kept states: running and sealed nodes that are not dropped.
    pub states: BTreeSet<u64>,
    /// Numbers of pages of maps, and of data blocks; each counts once regardless of how many states share it.
    pub pages: u64,
    /// See `pages`.
    pub data_blocks: u64,
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// Number of findings that are not listed.
    pub more: u64,
    /// Kept states that a finding affects. All others are whole.
    pub affected: BTreeSet<u64>,
}

impl Report {
    /// Returns whether nothing was found.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.more == 0
    }

    /// Returns the kept states that no finding affects.
    pub fn whole(&self) -> impl Iterator<Item = u64> {
        self.states.difference(&self.affected).copied()
    }

    /// Returns whether one more finding would be listed.
    pub(super) fn has_room(&self) -> bool {
        self.findings.len() < FINDINGS_MAX
    }

    pub(super) fn add(
        &mut self,
        fault: Fault,
        error: Error,
        extent: Option<Extent>,
        mut affected: Vec<AffectedRange>,
    ) {
        self.affected.extend(affected.iter().map(|affected| affected.node));
        if !self.has_room() {
            self.more += 1;
            return;
        }
        affected.truncate(AFFECTED_MAX);
        self.findings.push(Finding { fault, error, extent, affected });
    }

    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| (finding.fault, finding.extent));
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        for AffectedRange { node, bytes } in &self.affected {
            write!(f, "; node {node}, bytes {}..{}", bytes.start, bytes.end)?;
        }
        Ok(())
    }
}
