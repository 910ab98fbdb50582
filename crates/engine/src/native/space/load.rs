//! Loading groups into memory when they are needed, and eviction when too many are loaded.

use std::rc::Rc;

use blk::{Buf, Error, Result};

use super::bits::Bits;
use super::group::BlockState;
use super::state::{GroupSet, State};
use super::{Extent, GroupSummary, SLOTS, Space, page};
use crate::native::layout::BLOCK;

/// Number of maps of one group: busy, uncommitted, committed, waiting.
const MAPS: usize = 4;

/// Returns how many groups' maps fit into `bytes`, at least four: one each for lanes, gaps, metadata, and the next
/// load.
fn groups_within(bytes: usize, group_blocks: u64) -> usize {
    (bytes / (MAPS * group_blocks.div_ceil(8) as usize)).max(4)
}

impl Space {
    /// Limits the maps of groups in memory. Groups that are changing stay, regardless of their number.
    pub(crate) fn keep_bitmaps_within(&self, bytes: usize) {
        self.resident_groups_max.set(groups_within(bytes, self.geometry.group_blocks));
    }

    /// Loads the groups of `addrs` for a replay, and keeps them loaded until the next `freeze`. Addresses outside of
    /// all groups are skipped. Returns `Damaged` when a page is not the one that the catalogue describes.
    pub(crate) async fn load_for(self: &Rc<Self>, addrs: impl Iterator<Item = u64>) -> Result<()> {
        let mut last = None;
        for addr in addrs {
            let Some((group, _)) = self.state.borrow().locate(Extent { addr, len: 1 }) else { continue };
            if last.replace(group) == Some(group) {
                continue;
            }
            self.load(group).await?;
            let mut state = self.state.borrow_mut();
            if !std::mem::replace(&mut state.groups[group].pinned, true) {
                state.pinned.push(group);
            }
        }
        Ok(())
    }

    pub(super) async fn load(&self, group: usize) -> Result<()> {
        loop {
            if self.state.borrow().is_loaded(group) {
                return Ok(());
            }
            let summary = self.state.borrow().groups[group].committed;
            let committed = self.read_committed(group, summary).await;
            let mut state = self.state.borrow_mut();
            // Another task may have loaded the group meanwhile, changed it and evicted it again.
            if state.groups[group].committed != summary || state.is_loaded(group) {
                continue;
            }
            let committed = committed?;
            state.make_room_for_maps(self.resident_groups_max.get());
            state.install(group, committed);
            return Ok(());
        }
    }

    /// Reads the committed blocks of a group. A group of version 0 was never written: all of it is free.
    pub(super) async fn read_committed(&self, group: usize, summary: GroupSummary) -> Result<Bits> {
        if summary.version == 0 {
            return Ok(Bits::new(self.geometry.group_blocks as usize));
        }
        if u64::from(summary.slot) >= SLOTS {
            let cause = format!(
                "the catalogue puts group {group}'s page into slot {}, expected 0 or 1",
                summary.slot
            );
            return Err(Error::damaged(self.file.name(), cause));
        }
        let addr = page::address(&self.geometry, group as u64, summary.slot);
        let (page, result) = self.file.tables().read(addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
        result?;
        page::decode(self.file.name(), &self.geometry, group as u64, &page, summary)
    }
}

impl State {
    /// Evicts groups to make room for one more. Groups without a free block go first: placement has no use for them.
    fn make_room_for_maps(&mut self, groups_max: usize) {
        let loaded = self.set(GroupSet::Loaded).count();
        let excess = (loaded + 1).saturating_sub(groups_max);
        let excess = self.evict_some(excess, loaded, |state, group| !state.has_free(group));
        self.evict_some(excess, loaded, |_, _| true);
    }

    /// Evicts by second chance: a group used since the hand last passed it stays for another round. Returns how many
    /// are still to be evicted.
    fn evict_some(&mut self, mut excess: usize, loaded: usize, may_go: fn(&State, usize) -> bool) -> usize {
        let mut looks = 2 * loaded;
        while excess > 0 && looks > 0 {
            let Some(group) = self.set(GroupSet::Loaded).next_round(self.eviction_hand, true) else { break };
            self.eviction_hand = (group + 1) % self.groups.len();
            looks -= 1;
            if !may_go(self, group) || !self.groups[group].is_quiet() {
                continue;
            }
            if !std::mem::take(&mut self.groups[group].touched) {
                self.evict(group);
                excess -= 1;
            }
        }
        excess
    }

    fn has_free(&self, group: usize) -> bool {
        self.groups[group].count(BlockState::Free) > 0
    }

    /// Returns whether a group can be loaded without evicting one that placement can use.
    pub(super) fn may_load_ahead(&self, groups_max: usize) -> bool {
        let mut loaded = self.set(GroupSet::Loaded).runs().flatten();
        self.set(GroupSet::Loaded).count() < groups_max
            || loaded.any(|group| !self.has_free(group) && self.groups[group].is_quiet())
    }
}
