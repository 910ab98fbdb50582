//! State of all groups, with the sets and sums that searches need. No I/O.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::layout::{Extent, Geometry};
use super::bitmaps_sum::BitmapsSum;
use super::bits::{Bits, LANE};
use super::group::{BLOCK_STATES, BlockState, CHUNK, Group, GroupSummary, Maps, SLOTS};

/// Numbers of blocks. `grown` is the sum of `used` to `free_meta`; page slots are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub grown: u64,
    pub used: u64,
    /// Freed, but not to be placed yet.
    pub waiting: u64,
    /// Free, but being written or punched.
    pub held: u64,
    pub free_data: u64,
    pub free_meta: u64,
    /// Number of blocks of `free_meta` that must remain when data is placed.
    pub reserve: u64,
}

/// Sets of groups, so that no search has to visit all groups.
#[derive(Debug, Clone, Copy)]
pub(super) enum GroupSet {
    Loaded,
    /// `Roomy`: loaded data groups with a free lane. `Gappy`: loaded data groups with a free block.
    Roomy,
    Gappy,
    /// Loaded metadata groups with a free block.
    Meta,
    /// The same sets of groups that are not loaded, as far as is known.
    ColdRoomy,
    ColdGappy,
    ColdMeta,
    Uncommitted,
    /// Groups whose page the next checkpoint writes.
    Changed,
    /// Data groups with chunks to examine for punching.
    Freed,
}

const SETS: usize = 10;

pub(super) struct State {
    pub geometry: Geometry,
    pub groups: Vec<Group>,
    /// Over the pages of the last checkpoint.
    pub committed_sum: BitmapsSum,
    sets: [Bits; SETS],
    /// Numbers of blocks by `BlockState`, of data groups and of metadata groups.
    totals: [[u64; BLOCK_STATES]; 2],
    /// Numbers of free lanes and of free blocks in loaded data groups.
    lanes: u64,
    loaded_free: u64,
    /// Number of punched chunks in which nothing was placed since, in all groups.
    sparse_chunks: u64,
    pub reserve: u64,
    /// The last attempt to grow the file failed: gaps are filled.
    pub full: bool,
    pub can_grow: bool,
    /// The groups in which the placement of data and of metadata continues.
    pub data_group: usize,
    pub meta_group: usize,
    pub gap_group: usize,
    /// The group in which the search for a stretch of free blocks begins.
    pub stretch_group: usize,
    /// Address behind the last single block: the next one goes there.
    pub dense: u64,
    /// End of the highest data block placed.
    pub frontier: u64,
    pub ready_to: u64,
    /// Uncommitted blocks with the lsn of the record that displaced them, in order.
    pub waiting: VecDeque<(u64, Extent)>,
    /// `freed`: extents that left the persisted set since the last page was written. `sealed`: earlier ones, of the
    /// checkpoint under way.
    pub freed: Vec<Extent>,
    pub sealed: Vec<Extent>,
    /// Extents freed while their group was not loaded; their blocks are still committed.
    pub deferred: Vec<Extent>,
    /// Committed checkpoints with the extents that they freed, in order.
    pub releasable: VecDeque<(u64, Vec<Extent>)>,
    /// Rest of a new metadata group that is not zero-written yet.
    pub preparing: Option<Extent>,
    /// Number of freezes so far, plus one.
    pub freezes: u64,
    /// Number of changes of the persisted set.
    pub committed_changes: u64,
    pub eviction_hand: usize,
    /// Groups that stay loaded for a replay.
    pub pinned: Vec<usize>,
}

impl State {
    pub(super) fn new(
        geometry: Geometry,
        summaries: Vec<GroupSummary>,
        can_grow: bool,
        ready_to: u64,
    ) -> State {
        let mut state = State {
            geometry,
            groups: Vec::with_capacity(summaries.len()),
            committed_sum: BitmapsSum::default(),
            sets: Default::default(),
            totals: [[0; BLOCK_STATES]; 2],
            lanes: 0,
            sparse_chunks: 0,
            loaded_free: 0,
            reserve: 0,
            full: false,
            can_grow,
            data_group: 0,
            meta_group: 0,
            gap_group: 0,
            stretch_group: 0,
            dense: 0,
            frontier: 0,
            ready_to: ready_to.max(geometry.groups_start()),
            waiting: VecDeque::new(),
            freed: Vec::new(),
            sealed: Vec::new(),
            deferred: Vec::new(),
            releasable: VecDeque::new(),
            preparing: None,
            freezes: 1,
            committed_changes: 0,
            eviction_hand: 0,
            pinned: Vec::new(),
        };
        summaries.into_iter().for_each(|summary| state.push(summary));
        state
    }

    pub(super) fn push(&mut self, summary: GroupSummary) {
        let group = self.groups.len();
        self.groups.push(Group::new(summary, self.group_blocks()));
        self.committed_sum.add(group, &self.groups[group].committed);
        self.sets.iter_mut().for_each(|set| set.grow(group + 1));
        self.change_totals(group, |total, count| total + count);
        self.refresh(group);
    }

    pub(super) fn group_blocks(&self) -> usize {
        self.geometry.group_blocks as usize
    }

    /// Returns how many blocks of a group may be placed.
    pub(super) fn usable(&self) -> u64 {
        self.geometry.group_blocks - SLOTS
    }

    /// Returns the block behind the last group.
    pub(super) fn end(&self) -> u64 {
        self.geometry.group_start(self.groups.len() as u64)
    }

    pub(super) fn set(&self, set: GroupSet) -> &Bits {
        &self.sets[set as usize]
    }

    /// Returns the group of `extent` and its blocks, counted from the group's start. None when it is not wholly inside
    /// of the usable blocks of one group.
    pub(super) fn locate(&self, extent: Extent) -> Option<(usize, Range<usize>)> {
        let group = self.geometry.group_of(extent.addr)?;
        let start = extent.addr - self.geometry.group_start(group.min(self.groups.len() as u64));
        let end = start.checked_add(extent.len)?;
        let inside = group < self.groups.len() as u64
            && start >= SLOTS
            && extent.len > 0
            && end <= self.geometry.group_blocks;
        inside.then_some((group as usize, start as usize..end as usize))
    }

    /// Like `locate`, for an extent that this allocator placed. Panics when it is not in a group.
    pub(super) fn locate_own(&self, extent: Extent) -> (usize, Range<usize>) {
        self.locate(extent).unwrap_or_else(|| panic!("{extent:?} was never placed"))
    }

    pub(super) fn extent(&self, group: usize, blocks: Range<usize>) -> Extent {
        let addr = self.geometry.group_start(group as u64) + blocks.start as u64;
        Extent { addr, len: blocks.len() as u64 }
    }

    pub(super) fn is_loaded(&self, group: usize) -> bool {
        self.groups[group].maps.is_some()
    }

    /// Returns whether all of `extent` is in `state`. False when its group is not loaded or when it is not inside of
    /// one group.
    pub(super) fn is(&self, extent: Extent, state: BlockState) -> bool {
        self.locate(extent).is_some_and(|(group, blocks)| {
            self.groups[group].maps.as_ref().is_some_and(|maps| maps.is(blocks, state))
        })
    }

    /// Changes the state of blocks. Panics when a block of `extent` is not in state `from`.
    pub(super) fn shift(&mut self, extent: Extent, from: BlockState, to: BlockState) {
        let (group, blocks) = self.locate_own(extent);
        self.shift_blocks(group, blocks, from, to);
    }

    pub(super) fn shift_blocks(
        &mut self,
        group: usize,
        blocks: Range<usize>,
        from: BlockState,
        to: BlockState,
    ) {
        let len = blocks.len() as u64;
        self.groups[group].shift(blocks.clone(), from, to);
        if to == BlockState::Uncommitted {
            self.groups[group].placed_in = self.freezes;
            self.note_filled(group, blocks);
        }
        self.note_shifted(group, len, from, to);
    }

    /// Like `shift_blocks` for parts of words of a group, which the caller has checked. No block is placed by it.
    pub(super) fn shift_words(
        &mut self,
        group: usize,
        parts: impl Iterator<Item = (usize, u64)>,
        from: BlockState,
        to: BlockState,
    ) {
        assert!(to != BlockState::Uncommitted, "blocks are placed one extent at a time");
        let len = self.groups[group].shift_words(parts, from, to);
        self.note_shifted(group, u64::from(len), from, to);
    }

    fn note_shifted(&mut self, group: usize, len: u64, from: BlockState, to: BlockState) {
        let totals = &mut self.totals[usize::from(self.groups[group].meta)];
        totals[from as usize] -= len;
        totals[to as usize] += len;
        self.committed_changes += u64::from(from == BlockState::Committed || to == BlockState::Committed);
        self.refresh(group);
    }

    /// Notes that a chunk was punched.
    pub(super) fn note_punched(&mut self, chunk: Extent) {
        let (group, blocks) = self.locate_own(chunk);
        let bit = 1 << (blocks.start / CHUNK);
        self.sparse_chunks += u64::from(self.groups[group].sparse_chunks & bit == 0);
        self.groups[group].sparse_chunks |= bit;
    }

    /// Notes that blocks were placed: the rest of a chunk counts as written too.
    fn note_filled(&mut self, group: usize, blocks: Range<usize>) {
        if self.groups[group].sparse_chunks == 0 {
            return;
        }
        for chunk in blocks.start / CHUNK..=(blocks.end - 1) / CHUNK {
            let bit = 1 << chunk;
            self.sparse_chunks -= u64::from(self.groups[group].sparse_chunks & bit != 0);
            self.groups[group].sparse_chunks &= !bit;
        }
    }

    /// Returns the number of free data blocks that are not in punched chunks.
    pub(super) fn free_written(&self) -> u64 {
        self.free_data().saturating_sub(self.sparse_chunks * CHUNK as u64)
    }

    /// Makes blocks free that may have been written.
    pub(super) fn free(&mut self, extent: Extent, from: BlockState) {
        self.shift(extent, from, BlockState::Free);
        self.note_freed(extent);
    }

    /// Notes that free blocks hold data that nothing needs.
    pub(super) fn note_freed(&mut self, extent: Extent) {
        let (group, blocks) = self.locate_own(extent);
        self.groups[group].note_freed(blocks);
        let data = !self.groups[group].meta;
        self.sets[GroupSet::Freed as usize].put(group, data);
    }

    pub(super) fn commit_placed(&mut self) {
        self.freezes += 1;
        let mut from = 0;
        while let Some(group) = self.set(GroupSet::Uncommitted).next(from, true) {
            self.change_totals(group, |total, count| total - count);
            self.groups[group].settle();
            self.change_totals(group, |total, count| total + count);
            self.refresh(group);
            from = group + 1;
        }
        self.committed_changes += 1;
    }

    pub(super) fn set_meta(&mut self, group: usize) {
        self.note_filled(group, 0..self.group_blocks());
        self.change_totals(group, |total, count| total - count);
        self.groups[group].meta = true;
        self.groups[group].dirty = true;
        self.change_totals(group, |total, count| total + count);
        self.refresh(group);
    }

    fn change_totals(&mut self, group: usize, change: impl Fn(u64, u64) -> u64) {
        let group = &self.groups[group];
        let totals = &mut self.totals[usize::from(group.meta)];
        for (total, count) in totals.iter_mut().zip(group.counts) {
            *total = change(*total, u64::from(count));
        }
    }

    pub(super) fn install(&mut self, group: usize, committed: Bits) {
        let maps = Maps::new(self.group_blocks(), committed);
        self.groups[group].install(maps);
        self.refresh(group);
    }

    pub(super) fn evict(&mut self, group: usize) {
        assert!(self.groups[group].is_quiet(), "group {group} is still needed");
        self.groups[group].maps = None;
        self.refresh(group);
    }

    /// Puts a group into the sets it belongs to, and updates the sums.
    pub(super) fn refresh(&mut self, at: usize) {
        let group = &self.groups[at];
        let (loaded, data, free) = (group.maps.is_some(), !group.meta, group.count(BlockState::Free) > 0);
        let lanes = group.lanes_at_most();
        let members: [(GroupSet, bool); SETS] = [
            (GroupSet::Loaded, loaded),
            (GroupSet::Roomy, loaded && data && lanes > 0),
            (GroupSet::Gappy, loaded && data && free),
            (GroupSet::Meta, loaded && !data && free),
            (GroupSet::ColdRoomy, !loaded && data && lanes > 0),
            (GroupSet::ColdGappy, !loaded && data && free),
            (GroupSet::ColdMeta, !loaded && !data && free),
            (GroupSet::Uncommitted, group.count(BlockState::Uncommitted) > 0),
            (GroupSet::Changed, group.dirty || group.written.is_some()),
            (GroupSet::Freed, data && group.freed_chunks != 0),
        ];
        for (set, is_member) in members {
            self.sets[set as usize].put(at, is_member);
        }
        let counted = if loaded && data { (lanes, group.count(BlockState::Free)) } else { (0, 0) };
        let before = std::mem::replace(&mut self.groups[at].counted, counted);
        self.lanes = self.lanes + u64::from(counted.0) - u64::from(before.0);
        self.loaded_free = self.loaded_free + u64::from(counted.1) - u64::from(before.1);
    }

    fn total(&self, meta: bool, state: BlockState) -> u64 {
        self.totals[usize::from(meta)][state as usize]
    }

    pub(super) fn free_data(&self) -> u64 {
        self.total(false, BlockState::Free)
    }

    pub(super) fn free_meta(&self) -> u64 {
        self.total(true, BlockState::Free)
    }

    pub(super) fn held_data(&self) -> u64 {
        self.total(false, BlockState::Held)
    }

    /// Returns whether gaps are filled, rather than lanes begun. That is so while the file does not grow, and while
    /// less than three quarters of the data groups are used: each lane that is begun for one block makes the file grow
    /// by sixteen blocks, which are zero-written first.
    pub(super) fn fills_gaps(&self) -> bool {
        let all: u64 = self.totals[0].iter().sum();
        self.full || !self.can_grow || 4 * (all - self.free_data()) < 3 * all
    }

    /// Returns the number of blocks that data placement finds without a load or a growth of the file.
    pub(super) fn room(&self) -> u64 {
        if self.fills_gaps() { self.loaded_free } else { self.lanes * LANE as u64 }
    }

    pub(super) fn totals(&self) -> Totals {
        let both = |state: BlockState| self.total(false, state) + self.total(true, state);
        Totals {
            grown: self.groups.len() as u64 * self.usable(),
            used: both(BlockState::Uncommitted) + both(BlockState::Committed),
            waiting: both(BlockState::Waiting),
            held: both(BlockState::Held),
            free_data: self.free_data(),
            free_meta: self.free_meta(),
            reserve: self.reserve,
        }
    }
}
