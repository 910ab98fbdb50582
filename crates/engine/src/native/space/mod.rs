//! Allocation of the store's blocks.
//!
//! The store's file behind the journal is a row of groups. A group holds data or metadata; its first two blocks are the
//! slots of its bitmap page. Every other block has one state (`group::BlockState`), and every change of state is checked. The
//! bitmap pages hold the committed blocks alone: those that the committed trees and the catalogue refer to. Blocks placed
//! since then are found by a replay of the journal.
//!
//! Groups are read when they are needed. Placement searches loaded groups only, without I/O; `place` loads groups, and
//! grows the file by whole groups. Background work keeps groups loaded and space zero-written ahead.

mod audit;
mod batch;
mod bitmaps_sum;
mod bits;
mod checkpoint;
mod group;
mod growth;
mod load;
mod page;
mod place;
mod punch;
mod rebuild;
mod state;
mod stretch;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::sync::{Signal, TaskMutex};
use blk::{Env, Error, File, Result};

pub(crate) use self::audit::{Marks, Retained, Tick};
pub(crate) use self::batch::sorted;
pub(crate) use self::bitmaps_sum::BitmapsSum;
use self::group::BlockState;
pub(crate) use self::group::{GroupSummary, SLOTS};
pub use self::growth::Growth;
pub(crate) use self::growth::GrowthHold;
pub(crate) use self::page::GROUP_BLOCKS_MAX;
use self::place::PlacementRequest;
pub(crate) use self::rebuild::{BlockSet, FoundGroup, GroupPages};
use self::state::State;
pub(crate) use self::state::Totals;
pub(crate) use super::layout::{Extent, Geometry};

/// Smallest group: the page slots, and one whole lane behind them.
pub(crate) const GROUP_BLOCKS_MIN: u64 = 32;

/// Returns the number of whole groups in a store's file of this length.
pub(crate) fn groups_within(geometry: &Geometry, file_bytes: u64) -> u64 {
    (file_bytes / super::layout::BLOCK).saturating_sub(geometry.groups_start()) / geometry.group_blocks
}

pub(crate) struct Space {
    env: Env,
    file: File,
    geometry: Geometry,
    growth: Growth,
    state: RefCell<State>,
    /// Held by a task that loads groups for placement, grows the file, or writes zeros.
    turn: TaskMutex,
    /// Number of `GrowthHold`s.
    growth_holds: Cell<usize>,
    /// Signals that held blocks became free, or that work ahead has ended.
    eased: Signal,
    working_ahead: Cell<bool>,
    /// The placement frontier at the last zero write ahead.
    frontier_at_zeros: Cell<u64>,
    /// No further work ahead may begin.
    stopped: Cell<bool>,
    /// Work ahead ended before all was ready; it is not tried again before something changes.
    ahead_blocked: Cell<bool>,
    /// Free data blocks kept ready for first writes; see `keep_ready`.
    ready_blocks: Cell<u64>,
    /// The file could not grow for them; `keep_ready` tries again.
    ready_blocked: Cell<bool>,
    /// The file system cannot punch holes.
    never_punches: Cell<bool>,
    resident_groups_max: Cell<usize>,
    /// No stretch makes the file grow before this time.
    stretch_grows_from_ns: Cell<u64>,
    /// Number of readers of a committed state, for which the blocks that checkpoints free must stay unchanged.
    retainers: Cell<usize>,
    /// The first contradiction between the trees and the bitmaps; no page is written after it.
    damage: RefCell<Option<Error>>,
}

impl Space {
    /// Returns whether all of `extent` is in blocks of one group that may be placed.
    pub(crate) fn has(&self, extent: Extent) -> bool {
        self.state.borrow().locate(extent).is_some()
    }

    /// Opens the space of a store. `summaries`: one for every whole group of the file (`groups_within`),
    /// `GroupSummary::default()` for those that the catalogue does not have. `ready_to`: block up to which the file was
    /// zero-written ahead. A file that cannot grow (a block device) has all its groups from the start.
    ///
    /// # Panics
    /// When `geometry.group_blocks` is not within `GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX`.
    pub(crate) fn open(
        env: Env,
        file: File,
        geometry: Geometry,
        summaries: Vec<GroupSummary>,
        ready_to: u64,
        growth: Growth,
        can_grow: bool,
    ) -> Rc<Space> {
        assert!((GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX).contains(&geometry.group_blocks), "{geometry:?}");
        Rc::new(Space {
            env,
            file,
            geometry,
            growth,
            state: RefCell::new(State::new(geometry, summaries, can_grow, ready_to)),
            turn: TaskMutex::default(),
            growth_holds: Cell::default(),
            eased: Signal::default(),
            working_ahead: Cell::new(false),
            frontier_at_zeros: Cell::new(0),
            stopped: Cell::new(false),
            ahead_blocked: Cell::new(false),
            ready_blocks: Cell::new(0),
            ready_blocked: Cell::new(false),
            never_punches: Cell::new(false),
            resident_groups_max: Cell::new(usize::MAX),
            stretch_grows_from_ns: Cell::new(0),
            retainers: Cell::new(0),
            damage: RefCell::new(None),
        })
    }

    /// Places 1 to `want` data blocks in one run, which become uncommitted. It uses loaded groups and does no I/O. `near` is
    /// the address behind the stream that the blocks continue; where that is not free, the stream begins a lane. Blocks
    /// without `near` that are shorter than a lane go behind the last such blocks. None: no loaded group has room, and
    /// the caller uses `place`.
    pub(crate) fn try_place(self: &Rc<Self>, want: u64, near: Option<u64>) -> Option<Extent> {
        let (placed, ahead) = {
            let mut state = self.state.borrow_mut();
            let placed = state.place_data(PlacementRequest { want, near })?;
            (placed, state.wants_ahead(&self.growth))
        };
        if ahead {
            self.work_ahead();
        }
        Some(placed)
    }

    /// Like `try_place`, but loads groups or grows the file as needed.
    ///
    /// # Errors
    /// `NoSpace`: the file cannot grow, and no data block is free or the metadata's reserve could not be had. Nothing
    /// has changed then.
    pub(crate) async fn place(self: &Rc<Self>, want: u64, near: Option<u64>) -> Result<Extent> {
        loop {
            if let Some(placed) = self.try_place(want, near) {
                return Ok(placed);
            }
            self.find_data_room().await?;
        }
    }

    /// Frees uncommitted blocks at once. Nothing may refer to them, and no I/O to them may be under way.
    pub(crate) fn unplace(&self, extent: Extent) {
        self.state.borrow_mut().free(extent, BlockState::Uncommitted);
        self.ahead_blocked.set(false);
    }

    /// Places 1 to `want` metadata blocks in one run for the checkpoint under way; they are committed at once. `NoSpace`
    /// changes nothing.
    pub(crate) async fn place_meta(self: &Rc<Self>, want: u64) -> Result<Extent> {
        loop {
            if let Some(placed) = self.state.borrow_mut().place_meta(want) {
                return Ok(placed);
            }
            self.find_meta_room(1).await?;
        }
    }

    /// Like `place_meta`, but half a group away from the block `from` where there is room.
    pub(crate) async fn place_meta_apart(self: &Rc<Self>, want: u64, from: u64) -> Result<Extent> {
        loop {
            if let Some(placed) = self.state.borrow_mut().place_meta_apart(want, from) {
                return Ok(placed);
            }
            self.find_meta_room(1).await?;
        }
    }

    /// Places exactly `len` metadata blocks in one run. Returns `NoSpace` also when `len` is more than a group has.
    #[cfg(test)]
    pub(crate) async fn place_meta_run(self: &Rc<Self>, len: u64) -> Result<Extent> {
        loop {
            if let Some(placed) = self.state.borrow_mut().place_meta_run(len) {
                return Ok(placed);
            }
            self.find_meta_room(len).await?;
        }
    }

    /// Frees metadata blocks of the checkpoint under way at once, so that failed attempts do not use up the space of
    /// later ones. Nothing may refer to them, and no I/O to them may be under way.
    pub(crate) fn unplace_meta(&self, extent: Extent) {
        let mut state = self.state.borrow_mut();
        state.shift(extent, BlockState::Committed, BlockState::Waiting);
        state.free(extent, BlockState::Waiting);
        self.ahead_blocked.set(false);
    }

    /// Frees blocks that were placed since the last freeze and displaced by the record `lsn`. Records come in order.
    pub(crate) fn free_uncommitted(&self, extent: Extent, lsn: u64) {
        let mut state = self.state.borrow_mut();
        state.shift(extent, BlockState::Uncommitted, BlockState::Waiting);
        state.waiting.push_back((lsn, extent));
    }

    /// Returns the blocks freed by records up to `durable_flushed_lsn` and by committed checkpoints up to
    /// `named_checkpoint`, which a durable batch of the journal names. They stay out of use until the caller has waited
    /// for every read and write admitted before now and calls `release`. Blocks that checkpoints freed wait longer
    /// while they are retained.
    pub(crate) fn take_releasable(&self, durable_flushed_lsn: u64, named_checkpoint: u64) -> Vec<Extent> {
        let mut state = self.state.borrow_mut();
        let mut batch: Vec<Extent> = Vec::new();
        let named = if self.retainers.get() == 0 { named_checkpoint } else { 0 };
        while state.releasable.front().is_some_and(|(checkpoint, _)| *checkpoint <= named) {
            let freed = state.releasable.pop_front().map_or(Vec::new(), |(_, freed)| freed);
            match batch.is_empty() {
                true => batch = freed,
                false => batch.extend(freed),
            }
        }
        while state.waiting.front().is_some_and(|(lsn, _)| *lsn <= durable_flushed_lsn) {
            batch.extend(state.waiting.pop_front().map(|(_, extent)| extent));
        }
        batch
    }

    /// Makes extents of a batch of `take_releasable` free; a batch may be released in parts.
    pub(crate) fn release(&self, extents: &[Extent]) {
        let mut state = self.state.borrow_mut();
        if state.shift_sorted(extents, BlockState::Waiting, BlockState::Free) {
            extents.iter().for_each(|extent| state.note_freed(*extent));
        } else {
            extents.iter().for_each(|extent| state.free(*extent, BlockState::Waiting));
        }
        drop(state);
        self.ahead_blocked.set(false);
        self.eased.notify();
    }

    /// Sets the reserve: data is placed only while metadata groups have this many blocks free, or can get them.
    pub(crate) fn set_reserve(&self, blocks: u64) {
        let mut state = self.state.borrow_mut();
        if blocks > state.reserve {
            self.ahead_blocked.set(false);
        }
        state.reserve = blocks;
    }

    /// Replays a record that placed these data blocks. The group must be loaded (`load_for`).
    ///
    /// # Errors
    /// `Damaged`: they are not free data blocks of one group. Nothing has changed then.
    pub(crate) fn replay_place(&self, extent: Extent) -> Result<()> {
        self.replay(extent, BlockState::Free, "placed")?;
        let mut state = self.state.borrow_mut();
        state.shift(extent, BlockState::Free, BlockState::Uncommitted);
        state.frontier = state.frontier.max(extent.end());
        Ok(())
    }

    /// Replays a record that displaced these blocks, which an earlier record had placed. They are free at once: the
    /// caller makes the records durable before it places anything. Returns `Damaged` like `replay_place`.
    pub(crate) fn replay_free(&self, extent: Extent) -> Result<()> {
        self.replay(extent, BlockState::Uncommitted, "displaced")?;
        self.state.borrow_mut().free(extent, BlockState::Uncommitted);
        Ok(())
    }

    fn replay(&self, extent: Extent, from: BlockState, what: &str) -> Result<()> {
        let state = self.state.borrow();
        let data = state.locate(extent).is_some_and(|(group, _)| !state.groups[group].meta);
        if data && state.is(extent, from) {
            return Ok(());
        }
        let cause = format!(
            "the journal says that blocks {}..{} were {what}; expected {from:?} data blocks of one group there; run a check \
             of the store",
            extent.addr,
            extent.addr.saturating_add(extent.len)
        );
        Err(Error::damaged(self.file.name(), cause))
    }

    /// Returns whether a block is in a group of data.
    pub(crate) fn is_data(&self, addr: u64) -> bool {
        let state = self.state.borrow();
        state.locate(Extent { addr, len: 1 }).is_some_and(|(group, _)| !state.groups[group].meta)
    }

    pub(crate) fn totals(&self) -> Totals {
        self.state.borrow().totals()
    }

    pub(crate) fn groups(&self) -> u64 {
        self.state.borrow().groups.len() as u64
    }

    /// Returns the block up to which the file was zero-written ahead or belongs to metadata.
    pub(crate) fn ready_to(&self) -> u64 {
        self.state.borrow().ready_to
    }
}

#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod stretch_tests;
#[cfg(test)]
mod tests;
