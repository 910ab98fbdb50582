//! The blocks that are in use at the last valid checkpoint, from the bitmaps in the file.

use blk::{Buf, File, Result};

use super::super::layout::{BLOCK, Geometry};
use super::super::space::{BitmapsSum, BlockSet, FoundGroup, GroupPages, groups_within};
use super::super::superblock::Superblock;
use super::copy::Found;

/// Most choices among pages of groups that are compared with the checksum over all bitmaps.
const CHOICES_MAX: usize = 1 << 12;

/// What is known of a group at the last valid checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupState {
    /// Its blocks in use are, and whether it holds metadata.
    Known {
        meta: bool,
    },
    Unknown,
}

/// What the bitmaps of the last valid checkpoint say.
pub(super) struct InUse {
    used: BlockSet,
    groups: Vec<GroupState>,
    geometry: Geometry,
}

impl InUse {
    /// Reads the bitmaps from the copy.
    pub(super) async fn read(file: &File, superblock: &Superblock, found: &Found) -> Result<InUse> {
        let geometry = superblock.geometry();
        let in_file = groups_within(&geometry, found.blocks * BLOCK);
        let mut groups = Vec::new();
        for group in 0..superblock.groups {
            let start = geometry.group_start(group);
            if group >= in_file || found.is_unreadable(start, 2) {
                groups.push(GroupPages { pages: Vec::new(), damaged: true, zeros: false });
                continue;
            }
            let (slots, read) = file.read(start * BLOCK, Buf::alloc(2 * BLOCK as usize)).await;
            read?;
            let (a, b) = slots.split_at(BLOCK as usize);
            groups.push(GroupPages::find(&geometry, group, [a, b]));
        }
        let mut in_use = InUse { used: BlockSet::new(geometry), groups: Vec::new(), geometry };
        in_use.used.grow(superblock.groups);
        for (group, page) in choose(&groups, superblock).into_iter().enumerate() {
            in_use.groups.push(match page {
                None => GroupState::Unknown,
                Some(None) => GroupState::Known { meta: false },
                Some(Some(page)) => {
                    in_use.used.add_page(group as u64, page);
                    GroupState::Known { meta: page.summary.meta }
                }
            });
        }
        Ok(in_use)
    }

    /// Returns whether all blocks in use are known.
    pub(super) fn is_known(&self) -> bool {
        !self.groups.contains(&GroupState::Unknown)
    }

    fn group_of(&self, addr: u64) -> Option<&GroupState> {
        self.groups.get(usize::try_from(self.geometry.group_of(addr)?).ok()?)
    }

    /// Returns whether a block may have the data that an intact map page has there.
    pub(super) fn may_be_data(&self, addr: u64) -> bool {
        match self.group_of(addr) {
            Some(GroupState::Known { meta }) => !meta && self.used.contains(addr),
            Some(GroupState::Unknown) => true,
            None => false,
        }
    }

    /// Returns whether the block is a page of metadata in use; None if that is unknown.
    fn is_page(&self, addr: u64) -> Option<bool> {
        match self.group_of(addr) {
            Some(GroupState::Known { meta }) => Some(*meta && self.used.contains(addr)),
            Some(GroupState::Unknown) => None,
            None => Some(false),
        }
    }

    /// Returns the pages of metadata in use, as far as they are known.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> {
        let is_meta = |(_, state): &(usize, &GroupState)| matches!(state, GroupState::Known { meta: true });
        let groups = self.groups.iter().enumerate().filter(is_meta);
        groups.flat_map(|(group, _)| self.used.of_group(group as u64))
    }

    /// Overwrites the map pages of the copy that are not in use, so that no walk takes them for those of a state.
    pub(super) async fn erase_stale(&self, file: &File, found: &Found) -> Result<()> {
        for addr in found.maps.keys().filter(|addr| self.is_page(**addr) == Some(false)) {
            if matches!(self.group_of(*addr), Some(GroupState::Known { meta: true })) {
                file.write(addr * BLOCK, Buf::zeroed(BLOCK as usize)).await?;
            }
        }
        Ok(())
    }
}

type Choice<'a> = Option<Option<&'a FoundGroup>>;

/// Chooses the page of each group, as `GroupPages::choose` does. The checksum over all bitmaps of the checkpoint says
/// whether the choice is right. If it is not, no slot of zeros is one that was never written, and a newer page may be
/// missing in any group.
fn choose<'a>(groups: &'a [GroupPages], superblock: &Superblock) -> Vec<Choice<'a>> {
    let mut chosen: Vec<Choice<'a>> =
        groups.iter().map(|group| group.choose(|version| superblock.became_valid(version))).collect();
    let unknown: Vec<usize> = (0..groups.len()).filter(|n| chosen[*n].is_none()).collect();
    let expected = superblock.bitmaps_checksum;
    let choices = unknown.iter().try_fold(1usize, |all, n| all.checked_mul(groups[*n].pages.len() + 1));
    let is_right = |chosen: &[Choice<'_>]| {
        let summary =
            |(n, choice): (usize, &Choice<'_>)| choice.flatten().map(|page| (n as u64, page.summary));
        expected != 0 && BitmapsSum::of(chosen.iter().enumerate().filter_map(summary)).checksum() == expected
    };
    for choice in 0..choices.filter(|choices| *choices <= CHOICES_MAX).unwrap_or(0) {
        let mut rest = choice;
        for n in &unknown {
            let pages = &groups[*n].pages;
            chosen[*n] = Some(pages.get(rest % (pages.len() + 1)));
            rest /= pages.len() + 1;
        }
        if is_right(&chosen) {
            return chosen;
        }
    }
    for n in &unknown {
        chosen[*n] = None;
    }
    let no_explanation = unknown.is_empty() && !groups.iter().any(|group| group.zeros);
    for (choice, group) in chosen.iter_mut().zip(groups) {
        if group.zeros || expected != 0 && no_explanation {
            *choice = None;
        }
    }
    chosen
}
