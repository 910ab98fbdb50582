//! The space's part of a checkpoint: uncommitted blocks settle, pages are written, and blocks freed by committed checkpoints
//! become free again.

use std::rc::Rc;

use blk::{Buf, Error, Result};
use futures_util::future::join_all;

use super::bitmaps_sum::BitmapsSum;
use super::group::{BlockState, Group};
use super::state::{GroupSet, State};
use super::{Extent, GroupSummary, Space, page};
use crate::native::layout::BLOCK;

/// Pages written at once.
const PAGES_AT_ONCE: usize = 16;

impl Space {
    /// Begins a checkpoint, which persists what was placed until now. `unpublished` is placed but in no record yet: it
    /// stays uncommitted.
    pub(crate) fn freeze(&self, unpublished: &[Extent]) {
        let mut state = self.state.borrow_mut();
        unpublished.iter().for_each(|extent| state.shift(*extent, BlockState::Uncommitted, BlockState::Held));
        state.commit_placed();
        unpublished.iter().for_each(|extent| state.shift(*extent, BlockState::Held, BlockState::Uncommitted));
        for group in std::mem::take(&mut state.pinned) {
            state.groups[group].pinned = false;
        }
    }

    /// Removes extents from the persisted set. They may be placed again after `committed` of the checkpoint under way,
    /// and `release`. The extents come from the medium: if one is not committed, `write_pages` returns `Damaged`. It is
    /// fastest if they are sorted.
    pub(crate) fn free_committed(&self, extents: &[Extent]) {
        let mut state = self.state.borrow_mut();
        if state.shift_sorted(extents, BlockState::Committed, BlockState::Waiting) {
            state.freed.extend_from_slice(extents);
            return;
        }
        extents.iter().for_each(|extent| self.free_one_committed(&mut state, *extent));
    }

    fn free_one_committed(&self, state: &mut State, extent: Extent) {
        match state.locate(extent) {
            Some((group, _)) if !state.is_loaded(group) => state.deferred.push(extent),
            _ => self.free_loaded(state, extent),
        }
    }

    fn free_loaded(&self, state: &mut State, extent: Extent) {
        if state.is(extent, BlockState::Committed) {
            state.shift(extent, BlockState::Committed, BlockState::Waiting);
            state.freed.push(extent);
            return;
        }
        let cause = format!(
            "blocks {}..{} are freed and the bitmap does not have all of them in use; run a check of the store",
            extent.addr,
            extent.addr.saturating_add(extent.len)
        );
        self.damage.borrow_mut().get_or_insert_with(|| Error::damaged(self.file.name(), cause));
    }

    async fn free_deferred(&self) -> Result<()> {
        loop {
            let Some(extent) = self.state.borrow().deferred.last().copied() else { return Ok(()) };
            let located = self.state.borrow().locate(extent);
            let (group, _) = located.expect("only extents of a group are put off");
            self.load(group).await?;
            let mut state = self.state.borrow_mut();
            if state.is_loaded(group) {
                state.deferred.pop();
                self.free_loaded(&mut state, extent);
            }
        }
    }

    /// Returns the groups whose pages `write_pages` would write now, in order.
    pub(crate) async fn groups_to_write(&self) -> Result<Vec<u64>> {
        self.free_deferred().await?;
        Ok(self.state.borrow().changed_groups().into_iter().map(|group| group as u64).collect())
    }

    /// Writes the pages of groups whose persisted set differs from the committed one, into the slot that does not hold
    /// the committed page, and returns their summaries in order. The pages are not flushed. The persisted set must not
    /// change meanwhile, and the call must not be dropped half-way. It may be repeated when it failed, or when the
    /// checkpoint did.
    pub(crate) async fn write_pages(self: &Rc<Self>, checkpoint: u64) -> Result<Vec<(u32, GroupSummary)>> {
        self.free_deferred().await?;
        if let Some(damage) = self.damage.borrow().clone() {
            return Err(damage);
        }
        let (changed, changes) = {
            let mut state = self.state.borrow_mut();
            let freed = std::mem::take(&mut state.freed);
            // Hundreds of thousands of extents are moved, not copied.
            match state.sealed.is_empty() {
                true => state.sealed = freed,
                false => state.sealed.extend(freed),
            }
            (state.changed_groups(), state.committed_changes)
        };
        for some in changed.chunks(PAGES_AT_ONCE) {
            // All of them end before an error is returned: a later page of the same slot must not be overtaken.
            let written = join_all(some.iter().map(|group| self.write_page(*group, checkpoint))).await;
            written.into_iter().collect::<Result<()>>()?;
        }
        let state = self.state.borrow();
        assert_eq!(
            state.committed_changes, changes,
            "the persisted set changed while its pages were written"
        );
        let summary = |group: usize| state.groups[group].written.expect("written just now");
        Ok(changed.into_iter().map(|group| (group as u32, summary(group))).collect())
    }

    async fn write_page(&self, group: usize, checkpoint: u64) -> Result<()> {
        let (addr, page, summary) = self.state.borrow().encode(group, checkpoint);
        self.file.tables().write(addr * BLOCK, page).await?;
        let mut state = self.state.borrow_mut();
        state.groups[group].written = Some(summary);
        // The group may have become a metadata group meanwhile.
        state.groups[group].dirty = state.groups[group].meta != summary.meta;
        state.refresh(group);
        Ok(())
    }

    /// Notes that the superblock of `checkpoint` is durable.
    pub(crate) fn committed(&self, checkpoint: u64) {
        let mut state = self.state.borrow_mut();
        for group in state.changed_groups() {
            let Some(summary) = state.groups[group].written.take() else { continue };
            assert_eq!(summary.version, checkpoint, "group {group} was written for another checkpoint");
            let old = std::mem::replace(&mut state.groups[group].committed, summary);
            state.committed_sum.replace(group, &old, &summary);
            state.refresh(group);
        }
        let sealed = std::mem::take(&mut state.sealed);
        state.releasable.push_back((checkpoint, sealed));
    }

    /// Returns the sum over the pages of all groups: those of the checkpoint under way once they are written.
    pub(crate) fn bitmaps_sum(&self) -> BitmapsSum {
        let state = self.state.borrow();
        let mut sum = state.committed_sum;
        for group in state.changed_groups() {
            let Group { committed, written, .. } = &state.groups[group];
            sum.replace(group, committed, written.as_ref().unwrap_or(committed));
        }
        sum
    }

    /// Returns the summaries of all groups for the catalogue: those of the checkpoint under way once its pages are
    /// written.
    #[cfg(test)]
    pub(crate) fn summaries(&self) -> Vec<GroupSummary> {
        let state = self.state.borrow();
        state.groups.iter().map(|group| group.written.unwrap_or(group.committed)).collect()
    }

    /// Returns the persisted set of a group in memory in maximal runs: the committed one while no checkpoint is under
    /// way. Returns `Damaged` if the group's page is damaged.
    #[cfg(test)]
    pub(crate) async fn committed_runs(&self, group: u32) -> Result<Vec<Extent>> {
        let group = group as usize;
        loop {
            self.load(group).await?;
            let state = self.state.borrow();
            if let Some(maps) = &state.groups[group].maps {
                return Ok(maps.committed.runs().map(|run| state.extent(group, run)).collect());
            }
        }
    }
}

impl State {
    fn changed_groups(&self) -> Vec<usize> {
        self.set(GroupSet::Changed).runs().flatten().collect()
    }

    fn encode(&self, at: usize, checkpoint: u64) -> (u64, Buf, GroupSummary) {
        let group = &self.groups[at];
        assert!(
            checkpoint > group.committed.version,
            "checkpoint {checkpoint} is not newer than group {at}'s page"
        );
        let summary = GroupSummary {
            free: self.usable() as u32 - group.maps().committed.count() as u32,
            version: checkpoint,
            // After a crash before the superblock, the committed page is unchanged.
            slot: 1 - group.committed.slot,
            meta: group.meta,
            checksum: 0,
        };
        let (page, summary) = page::encode(&self.geometry, at as u64, &group.maps().committed, summary);
        (page::address(&self.geometry, at as u64, summary.slot), page, summary)
    }
}
