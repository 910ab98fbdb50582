//! Which blocks of the store are free.
//!
//! The store's file behind the journal is a row of groups. A group holds data or metadata; its first two blocks are the
//! slots of its bitmap page. Every other block has one state (`group::Use`), and every change of it is checked. The
//! bitmap pages hold the settled blocks alone: those that the committed trees and the catalogue refer to. What was
//! placed since is found by replaying the journal.
//!
//! Groups are read when they are needed. Placement looks at loaded groups only, without I/O; `place` brings groups in,
//! and lets the file grow by whole groups. Background work keeps groups loaded and space zero-written ahead.

mod audit;
mod bits;
mod checkpoint;
mod group;
mod growth;
mod load;
mod page;
mod place;
mod punch;
mod state;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::sync::{Signal, TaskMutex};
use blk::{Env, Error, File, Result};

pub use self::audit::{Marks, Retained, Tick};
use self::group::Use;
pub use self::growth::Growth;
pub use self::load::RESIDENT_BYTES_MAX;
pub use self::page::GROUP_BLOCKS_MAX;
use self::place::Wish;
use self::state::State;
pub use super::layout::{Extent, Geometry};

/// Blocks at the start of a group that hold its bitmap page, in turns.
pub const SLOTS: u64 = 2;

/// The page slots, and a lane behind them.
pub const GROUP_BLOCKS_MIN: u64 = 32;

/// What the catalogue says about a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupSummary {
    /// Blocks that the page has not in use.
    pub free: u32,
    /// The checkpoint that wrote the page; 0: never written, all free.
    pub version: u64,
    /// Where in the group the page lies: 0 or 1.
    pub slot: u8,
    /// Metadata only.
    pub meta: bool,
    /// Of the page.
    pub checksum: u64,
}

/// Blocks. `grown` is the sum of `used` to `free_meta`; page slots count nowhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub grown: u64,
    pub used: u64,
    /// Freed, and not to be placed yet.
    pub waiting: u64,
    /// Free, and being written or punched.
    pub held: u64,
    pub free_data: u64,
    pub free_meta: u64,
    /// What must stay of `free_meta` when data is placed.
    pub reserve: u64,
}

/// Whole groups in a store's file of this length.
pub fn groups_within(geometry: &Geometry, file_bytes: u64) -> u64 {
    (file_bytes / super::layout::BLOCK).saturating_sub(geometry.groups_start()) / geometry.group_blocks
}

pub struct Space {
    env: Env,
    file: File,
    geometry: Geometry,
    growth: Growth,
    state: RefCell<State>,
    /// Held by who loads for placement, lets the file grow, or writes zeros.
    turn: TaskMutex,
    /// Held blocks became free, or work ahead ended.
    eased: Signal,
    working_ahead: Cell<bool>,
    /// What placement had come to at the last zero write ahead.
    frontier_at_zeros: Cell<u64>,
    /// No more work ahead is begun.
    stopped: Cell<bool>,
    /// Work ahead came to its end before all was ready; something must change first.
    ahead_blocked: Cell<bool>,
    /// The file system cannot punch.
    never_punches: Cell<bool>,
    resident_groups_max: Cell<usize>,
    /// Who looks at a committed state, and needs what checkpoints free to stay as it is.
    retainers: Cell<usize>,
    /// The first contradiction between the trees and the bitmaps: no page is written any more.
    damage: RefCell<Option<Error>>,
}

impl Space {
    /// Whether all of `extent` lies in blocks of one group that may be placed.
    pub fn has(&self, extent: Extent) -> bool {
        self.state.borrow().locate(extent).is_some()
    }

    /// `summaries`: one for every group that the file has room for (`groups_within`), those that the catalogue does not
    /// know as `GroupSummary::default()`. `ready_to`: block up to which the file was zero-written ahead. A file that
    /// cannot grow (a block device) has all its groups from the start.
    ///
    /// Panics when `geometry.group_blocks` is not within `GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX`.
    pub fn open(
        env: Env,
        file: File,
        geometry: Geometry,
        summaries: Vec<GroupSummary>,
        ready_to: u64,
        growth: Growth,
        can_grow: bool,
    ) -> Rc<Space> {
        assert!((GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX).contains(&geometry.group_blocks), "{geometry:?}");
        let groups_max = load::groups_within(RESIDENT_BYTES_MAX, geometry.group_blocks);
        Rc::new(Space {
            env,
            file,
            geometry,
            growth,
            state: RefCell::new(State::new(geometry, summaries, can_grow, ready_to)),
            turn: TaskMutex::default(),
            eased: Signal::default(),
            working_ahead: Cell::new(false),
            frontier_at_zeros: Cell::new(0),
            stopped: Cell::new(false),
            ahead_blocked: Cell::new(false),
            never_punches: Cell::new(false),
            resident_groups_max: Cell::new(groups_max),
            retainers: Cell::new(0),
            damage: RefCell::new(None),
        })
    }

    /// Data blocks in one run, 1 to `want` of them, which become young. No I/O: from loaded groups. `near`: the address
    /// behind the stream that they go on with; where that is not free the stream begins a lane. What has none, and is
    /// shorter than a lane, lies behind the last such. None: `place` finds out what there is.
    pub fn try_place(self: &Rc<Self>, want: u64, near: Option<u64>) -> Option<Extent> {
        let (placed, ahead) = {
            let mut state = self.state.borrow_mut();
            let placed = state.place_data(Wish { want, near })?;
            (placed, state.wants_ahead(&self.growth))
        };
        if ahead {
            self.work_ahead();
        }
        Some(placed)
    }

    /// Like `try_place`, and loads groups or lets the file grow when need be. `NoSpace` when the file cannot grow and no
    /// data block is free, or the metadata's reserve could not be had; nothing is changed then.
    pub async fn place(self: &Rc<Self>, want: u64, near: Option<u64>) -> Result<Extent> {
        loop {
            if let Some(placed) = self.try_place(want, near) {
                return Ok(placed);
            }
            self.find_data_room().await?;
        }
    }

    /// Young blocks that nothing refers to and no I/O is under way to: free at once.
    pub fn unplace(&self, extent: Extent) {
        self.state.borrow_mut().free(extent, Use::Young);
        self.ahead_blocked.set(false);
    }

    /// Metadata blocks in one run, 1 to `want` of them, for the checkpoint under way: settled at once. `NoSpace` changes
    /// nothing.
    pub async fn place_meta(self: &Rc<Self>, want: u64) -> Result<Extent> {
        loop {
            if let Some(placed) = self.state.borrow_mut().place_meta(want) {
                return Ok(placed);
            }
            self.find_meta_room(1).await?;
        }
    }

    /// Exactly `len` metadata blocks in one run. `NoSpace` also when `len` is more than a group has.
    pub async fn place_meta_run(self: &Rc<Self>, len: u64) -> Result<Extent> {
        loop {
            if let Some(placed) = self.state.borrow_mut().place_meta_run(len) {
                return Ok(placed);
            }
            self.find_meta_room(len).await?;
        }
    }

    /// Metadata blocks of the checkpoint under way that nothing has come to refer to, and no I/O is under way to: free at
    /// once, so that attempts that fail do not use up the space of those that follow.
    pub fn unplace_meta(&self, extent: Extent) {
        let mut state = self.state.borrow_mut();
        state.shift(extent, Use::Settled, Use::Waiting);
        state.free(extent, Use::Waiting);
        self.ahead_blocked.set(false);
    }

    /// Placed since the last freeze, and displaced by the record `lsn`. Records come in order.
    pub fn free_young(&self, extent: Extent, lsn: u64) {
        let mut state = self.state.borrow_mut();
        state.shift(extent, Use::Young, Use::Waiting);
        state.waiting.push_back((lsn, extent));
    }

    /// Blocks freed by records up to `durable_flushed_lsn` and by committed checkpoints up to `named_checkpoint`, which a
    /// durable batch of the journal names. They stay out of use until the caller has seen every read and write end that
    /// was admitted before now, and calls `release`. What checkpoints freed waits longer while it is retained.
    pub fn take_releasable(&self, durable_flushed_lsn: u64, named_checkpoint: u64) -> Vec<Extent> {
        let mut state = self.state.borrow_mut();
        let mut batch = Vec::new();
        let named = if self.retainers.get() == 0 { named_checkpoint } else { 0 };
        while state.releasable.front().is_some_and(|(checkpoint, _)| *checkpoint <= named) {
            batch.extend(state.releasable.pop_front().map(|(_, extent)| extent));
        }
        while state.waiting.front().is_some_and(|(lsn, _)| *lsn <= durable_flushed_lsn) {
            batch.extend(state.waiting.pop_front().map(|(_, extent)| extent));
        }
        batch
    }

    /// The extents are free: of a batch of `take_releasable`, which may be released in parts.
    pub fn release(&self, extents: &[Extent]) {
        let mut state = self.state.borrow_mut();
        extents.iter().for_each(|extent| state.free(*extent, Use::Waiting));
        drop(state);
        self.ahead_blocked.set(false);
        self.eased.notify();
    }

    /// Data is placed only while metadata groups have this many blocks free, or can get them.
    pub fn set_reserve(&self, blocks: u64) {
        let mut state = self.state.borrow_mut();
        if blocks > state.reserve {
            self.ahead_blocked.set(false);
        }
        state.reserve = blocks;
    }

    /// Recovery: a record says that these data blocks were placed. The group is loaded (`load_for`). `Damaged` when they
    /// are not free data blocks of one group; nothing is changed then.
    pub fn replay_place(&self, extent: Extent) -> Result<()> {
        self.replay(extent, Use::Free, "placed")?;
        let mut state = self.state.borrow_mut();
        state.shift(extent, Use::Free, Use::Young);
        state.frontier = state.frontier.max(extent.end());
        Ok(())
    }

    /// Recovery: a record displaced these blocks, which an earlier record had placed. They are free at once: the caller
    /// makes the records durable before it places anything. `Damaged` like `replay_place`.
    pub fn replay_free(&self, extent: Extent) -> Result<()> {
        self.replay(extent, Use::Young, "displaced")?;
        self.state.borrow_mut().free(extent, Use::Young);
        Ok(())
    }

    fn replay(&self, extent: Extent, from: Use, what: &str) -> Result<()> {
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

    pub fn totals(&self) -> Totals {
        self.state.borrow().totals()
    }

    pub fn groups(&self) -> u64 {
        self.state.borrow().groups.len() as u64
    }

    /// Block up to which the file was zero-written ahead, or is metadata's.
    pub fn ready_to(&self) -> u64 {
        self.state.borrow().ready_to
    }
}

#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
