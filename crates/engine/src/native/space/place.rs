//! Placement of new blocks.

use super::super::layout::Extent;
use super::bits::LANE;
use super::group::BlockState;
use super::state::{GroupSet, State};

/// A placement request.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacementRequest {
    /// Most blocks to place.
    pub want: u64,
    /// Preferred address: behind the stream that the blocks continue.
    pub near: Option<u64>,
}

impl State {
    /// Places data blocks in loaded groups; they become uncommitted. The scan of words begins where the last search ended. A
    /// search that finds nothing in a group is not repeated there, because the sets record it.
    pub(super) fn place_data(&mut self, request: PlacementRequest) -> Option<Extent> {
        assert!(request.want > 0, "nothing wanted");
        if self.free_meta() < self.reserve {
            return None;
        }
        let near = request.near.and_then(|near| self.find_at(near, request.want));
        let found = match near {
            Some(found) => found,
            // More blocks of the stream will follow.
            None if request.near.is_some() || request.want >= LANE as u64 => {
                self.find_lane(request.want).or_else(|| self.find_dense(request.want))?
            }
            None => self.find_dense(request.want)?,
        };
        if found.addr == self.dense {
            self.dense = found.end();
        }
        self.shift(found, BlockState::Free, BlockState::Uncommitted);
        self.frontier = self.frontier.max(found.end());
        Some(found)
    }

    /// Returns the run of free blocks from `at` of a loaded group on.
    fn free_run(&self, group: usize, at: usize, want: u64) -> Extent {
        let max = usize::try_from(want).unwrap_or(usize::MAX);
        let len = self.groups[group].maps().busy.run(at, false, max);
        self.extent(group, at..at + len)
    }

    pub(super) fn find_at(&self, addr: u64, want: u64) -> Option<Extent> {
        let wanted = Extent { addr, len: 1 };
        let (group, blocks) = self.locate(wanted)?;
        if self.groups[group].meta || !self.is(wanted, BlockState::Free) {
            return None;
        }
        Some(self.free_run(group, blocks.start, want))
    }

    /// Finds room behind the last blocks found so; otherwise from a free lane on, otherwise in a gap.
    fn find_dense(&mut self, want: u64) -> Option<Extent> {
        let behind = self.find_at(self.dense, want);
        let found = behind.or_else(|| self.find_lane(want)).or_else(|| self.find_gap(want))?;
        self.dense = found.addr;
        Some(found)
    }

    fn find_lane(&mut self, want: u64) -> Option<Extent> {
        let group = self.set(GroupSet::Roomy).next_round(self.data_group, true)?;
        self.data_group = group;
        let cursor = self.groups[group].lane_cursor;
        let lane = self.groups[group].maps().busy.next_empty_lane(cursor).expect("the set has roomy groups");
        self.groups[group].lane_cursor = lane;
        Some(self.free_run(group, lane, want))
    }

    fn find_gap(&mut self, want: u64) -> Option<Extent> {
        if !self.fills_gaps() {
            return None;
        }
        let group = self.set(GroupSet::Gappy).next_round(self.gap_group, true)?;
        self.gap_group = group;
        let cursor = self.groups[group].gap_cursor;
        let gap = self.groups[group].maps().busy.next_round(cursor, false).expect("the set has gappy groups");
        self.groups[group].gap_cursor = gap;
        Some(self.free_run(group, gap, want))
    }

    /// Places metadata blocks in loaded groups, the first free ones; they are committed at once.
    pub(super) fn place_meta(&mut self, want: u64) -> Option<Extent> {
        assert!(want > 0, "nothing wanted");
        let group = self.set(GroupSet::Meta).next_round(self.meta_group, true)?;
        self.meta_group = group;
        let cursor = self.groups[group].gap_cursor;
        let at = self.groups[group].maps().busy.next_round(cursor, false).expect("the set has free blocks");
        self.groups[group].gap_cursor = at;
        let found = self.free_run(group, at, want);
        self.shift(found, BlockState::Free, BlockState::Committed);
        Some(found)
    }

    /// Like `place_meta`, but at least a quarter of a group away from the block `from` if there is room: the search
    /// begins half a group behind it, and goes on in another group.
    pub(super) fn place_meta_apart(&mut self, want: u64, from: u64) -> Option<Extent> {
        assert!(want > 0, "nothing wanted");
        let (near, block) = self.locate(Extent { addr: from, len: 1 })?;
        let blocks = self.groups[near].maps.as_ref().map_or(0, |maps| maps.busy.len()).max(2);
        let is_apart = |at: usize| at.abs_diff(block.start) >= blocks / 4;
        let free_from = |state: &State, group: usize, at: usize| {
            state.set(GroupSet::Meta).next(group, true).filter(|found| *found == group)?;
            state.groups[group].maps().busy.next_round(at, false)
        };
        let beside = free_from(self, near, (block.start + blocks / 2) % blocks).filter(|at| is_apart(*at));
        let (group, at) = match beside {
            Some(at) => (near, at),
            None => {
                let group = self.set(GroupSet::Meta).next_round(near + 1, true)?;
                (group, free_from(self, group, self.groups[group].gap_cursor)?)
            }
        };
        let found = self.free_run(group, at, want);
        self.shift(found, BlockState::Free, BlockState::Committed);
        Some(found)
    }

    /// Places exactly `len` metadata blocks in one run, in loaded groups.
    #[cfg(test)]
    pub(super) fn place_meta_run(&mut self, len: u64) -> Option<Extent> {
        let mut from = 0;
        while let Some(group) = self.set(GroupSet::Meta).next(from, true) {
            if let Some(at) = self.find_run(group, len as usize) {
                let found = self.extent(group, at..at + len as usize);
                self.shift(found, BlockState::Free, BlockState::Committed);
                return Some(found);
            }
            from = group + 1;
        }
        None
    }
}
