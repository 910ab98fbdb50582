//! The checksum over the bitmap pages of a checkpoint. It is a sum, so that a checkpoint computes the parts of the pages that
//! it writes and no others: a store may have millions of groups.

use super::group::GroupSummary;
use crate::native::layout::checksum;

/// Sum over the bitmap pages of all groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BitmapsSum(u64);

impl BitmapsSum {
    /// Sums the pages of these groups, in any order.
    pub(crate) fn of(summaries: impl Iterator<Item = (u64, GroupSummary)>) -> BitmapsSum {
        BitmapsSum(summaries.fold(0, |sum: u64, (group, summary)| sum.wrapping_add(part(group, &summary))))
    }

    /// Adds the page of a group.
    pub(super) fn add(&mut self, group: usize, summary: &GroupSummary) {
        self.0 = self.0.wrapping_add(part(group as u64, summary));
    }

    /// Replaces the page of a group.
    pub(super) fn replace(&mut self, group: usize, old: &GroupSummary, new: &GroupSummary) {
        self.0 = self.0.wrapping_sub(part(group as u64, old)).wrapping_add(part(group as u64, new));
    }

    /// Returns the checksum as the superblock has it; never 0.
    pub(crate) fn checksum(self) -> u64 {
        self.0.max(1)
    }
}

/// Returns the part of a group in the sum; 0 if it has no page.
fn part(group: u64, summary: &GroupSummary) -> u64 {
    if summary.version == 0 {
        return 0;
    }
    let mut bytes = [0; 24];
    for (at, word) in [group, summary.version, summary.checksum].into_iter().enumerate() {
        bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    checksum(&bytes)
}
