//! Growth of the room for placement: groups to load, groups to add, and zeros to write ahead.
//!
//! Each step runs in a task of its own that holds `turn`. A caller that is dropped must not leave a zero write under
//! way that nothing waits for, because its blocks would be placed.

use std::rc::Rc;

use blk::{Buf, Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::group::{BlockState, CHUNK};
use super::state::{GroupSet, State};
use super::{Extent, GroupSummary, SLOTS, Space};
use crate::native::layout::BLOCK;

/// Pause between two zero writes while guests place data. With writes of 1 MiB that is 50 MiB/s; space for faster
/// guests is reserved only, not zero-written.
const ZERO_PAUSE_US: u64 = 20_000;

/// Amounts of space kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Blocks kept loaded, and zero-written, ahead of placement.
    pub ahead_blocks: u64,
    /// Blocks zero-written by one I/O: the longest I/O that a guest's may have to wait behind.
    pub chunk_blocks: u64,
}

impl Default for Growth {
    /// 16 MiB kept ahead, 1 MiB for each I/O.
    fn default() -> Self {
        Self { ahead_blocks: (16 << 20) / BLOCK, chunk_blocks: CHUNK as u64 }
    }
}

/// Keeps the file from growing; see `Space::hold_growth`.
pub(crate) struct GrowthHold(Rc<Space>);

impl Drop for GrowthHold {
    fn drop(&mut self) {
        self.0.growth_holds.update(|holds| holds - 1);
    }
}

/// The next step towards room for a placement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is room by now.
    Nothing,
    Load(usize),
    /// Blocks are held, and will be free.
    Wait,
    Prepare(Extent),
    Grow {
        meta: bool,
    },
}

impl Space {
    pub(super) async fn find_data_room(self: &Rc<Self>) -> Result<()> {
        let space = self.clone();
        self.env.spawn(async move { space.find_data_room_now().await }).join().await
    }

    async fn find_data_room_now(&self) -> Result<()> {
        let turn = self.turn.lock().await;
        let step = self.state.borrow().data_step();
        if step == Step::Wait {
            let eased = self.eased.wait();
            drop(turn);
            eased.await;
            return Ok(());
        }
        match self.take_step(step).await {
            Err(e) if e.is_no_space() => self.without_growth(e),
            other => other,
        }
    }

    /// Handles a file that does not grow: gaps are filled, or there is no space.
    fn without_growth(&self, cause: Error) -> Result<()> {
        let mut state = self.state.borrow_mut();
        if state.free_meta() < state.reserve || state.free_data() + state.held_data() == 0 {
            return Err(cause);
        }
        state.full = true;
        Ok(())
    }

    /// Takes one step towards `run` free metadata blocks in one run.
    pub(super) async fn find_meta_room(self: &Rc<Self>, run: u64) -> Result<()> {
        if run > self.state.borrow().usable() {
            return Err(self.no_space(&format!("{run} blocks in one run are more than a group has")));
        }
        let space = self.clone();
        let find = async move {
            let _turn = space.turn.lock().await;
            let step = space.state.borrow().meta_step(run);
            space.take_step(step).await
        };
        self.env.spawn(find).join().await
    }

    pub(super) async fn take_step(&self, step: Step) -> Result<()> {
        match step {
            Step::Nothing | Step::Wait => Ok(()),
            Step::Load(group) => self.load(group).await,
            Step::Prepare(rest) => self.prepare(rest).await,
            Step::Grow { meta } => self.grow(meta).await,
        }
    }

    /// Keeps the file from growing until the result is dropped: placements that need a new group find no space. A file
    /// system gives a growth that fails all that is free for a moment.
    pub(crate) async fn hold_growth(self: &Rc<Self>) -> GrowthHold {
        self.growth_holds.update(|holds| holds + 1);
        let hold = GrowthHold(self.clone());
        drop(self.turn.lock().await);
        hold
    }

    async fn grow(&self, meta: bool) -> Result<()> {
        let grown = if !self.state.borrow().can_grow {
            Err(self.no_space("all of the store's blocks are in groups already"))
        } else if self.growth_holds.get() > 0 {
            Err(self.no_space("the datastore is full, and what is left is needed to free space"))
        } else {
            self.grow_file().await
        };
        let group = match (grown, meta) {
            (Ok(group), _) => group,
            (Err(e), true) if e.is_no_space() => self.state.borrow().wholly_free_group().ok_or(e)?,
            (Err(e), _) => return Err(e),
        };
        self.load(group).await?;
        let mut state = self.state.borrow_mut();
        // The load may have read, and another task may have placed data in the group meanwhile.
        if meta && state.may_become_meta(group) && state.is_loaded(group) {
            state.begin_meta(group);
        }
        drop(state);
        self.ahead_blocked.set(false);
        Ok(())
    }

    /// Adds a data group to the file. `NoSpace` changes nothing.
    async fn grow_file(&self) -> Result<usize> {
        let start = self.state.borrow().end();
        if let Err(e) = self.extend(start).await {
            // Some file systems keep the part that a failed allocation did get.
            if e.is_no_space() {
                self.file.set_len(start * BLOCK).await?;
            }
            return Err(e);
        }
        let mut state = self.state.borrow_mut();
        state.push(GroupSummary::default());
        state.full = false;
        Ok(state.groups.len() - 1)
    }

    /// Extends the file by a group. The page slots are written, so that a checkpoint has their space also where nothing
    /// can be reserved.
    async fn extend(&self, start: u64) -> Result<()> {
        let bytes = self.geometry.group_blocks * BLOCK;
        match self.file.allocate(start * BLOCK, bytes).await {
            Err(e) if e.kind == ErrorKind::Unsupported => self.file.set_len(start * BLOCK + bytes).await?,
            other => other?,
        }
        self.file.tables().write(start * BLOCK, Buf::zeroed((SLOTS * BLOCK) as usize)).await
    }

    /// Zero-writes the next chunk of a metadata group, which may be placed then.
    async fn prepare(&self, rest: Extent) -> Result<()> {
        let chunk = Extent { addr: rest.addr, len: rest.len.min(self.growth.chunk_blocks) };
        self.write_zeros(chunk).await?;
        let mut state = self.state.borrow_mut();
        state.shift(chunk, BlockState::Held, BlockState::Free);
        let rest = Extent { addr: chunk.end(), len: rest.len - chunk.len };
        state.preparing = (rest.len > 0).then_some(rest);
        Ok(())
    }

    async fn write_zeros(&self, blocks: Extent) -> Result<()> {
        self.file.write(blocks.addr * BLOCK, Buf::zeroed((blocks.len * BLOCK) as usize)).await
    }

    fn no_space(&self, cause: &str) -> Error {
        let totals = self.totals();
        let cause = format!(
            "{cause}: {} blocks free for data, {} for metadata, of which {} are kept in reserve; remove snapshots or \
             free space on the datastore",
            totals.free_data, totals.free_meta, totals.reserve
        );
        Error::new(ErrorKind::NoSpace, self.file.name(), cause)
    }

    /// Starts background work unless it is under way. If it fails, the next placement that needs the space reports the
    /// error.
    pub(super) fn work_ahead(self: &Rc<Self>) {
        if self.stopped.get() || self.ahead_blocked.get() || self.working_ahead.replace(true) {
            return;
        }
        let space = self.clone();
        self.env.spawn_detached(Box::pin(async move {
            while !space.stopped.get()
                && let Ok(Some(pause_us)) = space.step_ahead().await
            {
                space.env.sleep_us(pause_us).await;
            }
            let still = space.state.borrow().wants_ahead(&space.growth);
            space.ahead_blocked.set(still);
            space.working_ahead.set(false);
            space.eased.notify();
        }));
    }

    /// Sets how many free data blocks are kept ready for first writes, beside those that `Growth` keeps ahead of
    /// placement. They are made ready while guests are idle (`make_ready`), and are not given back to the file system.
    /// Returns whether there may be something to do.
    pub(crate) fn keep_ready(&self, blocks: u64) -> bool {
        let blocked = self.ready_blocked.replace(false);
        self.ready_blocks.replace(blocks) != blocks || blocked
    }

    /// Returns whether `make_ready` has something to do.
    pub(crate) fn wants_ready(&self) -> bool {
        let blocked = self.stopped.get() || self.ready_blocked.get();
        !blocked && self.state.borrow().lacks_ready(self.ready_blocks.get())
    }

    /// Zero-writes a chunk, or adds a group to the file. A file that cannot grow is not an error: nothing needs the
    /// space yet.
    pub(crate) async fn make_ready(self: &Rc<Self>) -> Result<()> {
        let space = self.clone();
        let made = self.env.spawn(async move {
            let _turn = space.turn.lock().await;
            let zeros = space.state.borrow().ready_to < space.state.borrow().end();
            match zeros {
                _ if !space.wants_ready() => Ok(()),
                true => space.zero_ahead().await,
                // What is kept is a small part of what the file system has left, and a group is no more than that.
                false if space.ready_blocks.get() < space.geometry.group_blocks => {
                    space.ready_blocked.set(true);
                    Ok(())
                }
                false => space.grow(false).await,
            }
        });
        let made = made.join().await;
        self.ready_blocked.update(|blocked| blocked || made.is_err());
        made.or_else(|e| if e.is_no_space() { Ok(()) } else { Err(e) })
    }

    /// Ends background work: when this returns, none of its I/O is under way.
    pub(crate) async fn stop(&self) {
        self.stopped.set(true);
        while self.working_ahead.get() {
            self.eased.wait().await;
        }
        drop(self.turn.lock().await);
    }

    /// Takes the next step ahead. Returns the pause before the following one in microseconds; None when nothing is left
    /// to do.
    async fn step_ahead(&self) -> Result<Option<u64>> {
        let _turn = self.turn.lock().await;
        let step = self.state.borrow().ahead_step(&self.growth, self.resident_groups_max.get());
        if step != Step::Nothing {
            self.take_step(step).await?;
            return Ok(Some(0));
        }
        if !self.state.borrow().wants_zeros(&self.growth) {
            return Ok(None);
        }
        self.zero_ahead().await?;
        let frontier = self.state.borrow().frontier;
        let idle = self.frontier_at_zeros.replace(frontier) == frontier;
        Ok(Some(if idle { 0 } else { ZERO_PAUSE_US }))
    }

    /// Zero-writes the free blocks of the next chunk, which are held meanwhile.
    async fn zero_ahead(&self) -> Result<()> {
        let Some((group, chunk)) = self.state.borrow_mut().next_zero_chunk(self.growth.chunk_blocks) else {
            return Ok(());
        };
        self.load(group).await?;
        let held = self.state.borrow_mut().hold_free(group, chunk);
        let written = join_all(held.iter().map(|blocks| self.write_zeros(*blocks))).await;
        let written: Result<()> = written.into_iter().collect();
        let mut state = self.state.borrow_mut();
        held.iter().for_each(|blocks| state.shift(*blocks, BlockState::Held, BlockState::Free));
        if written.is_ok() {
            state.ready_to = chunk.end();
        }
        drop(state);
        self.eased.notify();
        written
    }
}

impl State {
    fn data_step(&self) -> Step {
        if self.free_meta() < self.reserve {
            return self.more_meta();
        }
        if self.room() > 0 {
            return Step::Nothing;
        }
        let cold = if self.fills_gaps() { GroupSet::ColdGappy } else { GroupSet::ColdRoomy };
        match self.set(cold).next_round(self.data_group, true) {
            Some(group) => Step::Load(group),
            None if self.held_data() > 0 => Step::Wait,
            None => Step::Grow { meta: false },
        }
    }

    fn meta_step(&self, run: u64) -> Step {
        let cold = self.set(GroupSet::ColdMeta).runs().flatten().next();
        match cold {
            Some(group) => Step::Load(group),
            None if run == 1 && self.set(GroupSet::Meta).next(0, true).is_some() => Step::Nothing,
            None => self.more_meta(),
        }
    }

    fn more_meta(&self) -> Step {
        self.preparing.map_or(Step::Grow { meta: true }, Step::Prepare)
    }

    /// Converts a data group to metadata; its blocks become free piece by piece as they are zero-written.
    fn begin_meta(&mut self, group: usize) {
        let blocks = SLOTS as usize..self.group_blocks();
        self.shift_blocks(group, blocks.clone(), BlockState::Free, BlockState::Held);
        self.set_meta(group);
        self.preparing = Some(self.extent(group, blocks));
    }

    fn wholly_free_group(&self) -> Option<usize> {
        (0..self.groups.len()).find(|group| self.may_become_meta(*group))
    }

    /// Returns whether a group may become metadata: not if data was placed there since the last freeze, even if it is
    /// gone, because the records of a replay may refer to it.
    fn may_become_meta(&self, group: usize) -> bool {
        let group = &self.groups[group];
        !group.meta && group.is_wholly_free() && group.placed_in != self.freezes
    }

    /// Returns whether background work has something to do.
    pub(super) fn wants_ahead(&self, growth: &Growth) -> bool {
        self.wants_room(growth) || self.wants_meta() || self.wants_zeros(growth)
    }

    fn wants_room(&self, growth: &Growth) -> bool {
        self.room() < growth.ahead_blocks
    }

    /// Returns whether metadata groups need space: a quarter more than the reserve, so that data need not wait for the
    /// reserve.
    fn wants_meta(&self) -> bool {
        self.preparing.is_some() || self.free_meta() < self.reserve + self.reserve / 4
    }

    /// Returns whether fewer data blocks than wanted are ready between the highest placed one and `ready_to`.
    fn wants_zeros(&self, growth: &Growth) -> bool {
        let Some(first) = self.geometry.group_of(self.frontier).filter(|_| self.can_grow) else {
            return false;
        };
        let mut ready = 0;
        for group in first..self.groups.len() as u64 {
            let start = self.geometry.group_start(group);
            let from = start.max(self.frontier);
            if from >= self.ready_to || ready >= growth.ahead_blocks {
                break;
            }
            if !self.groups[group as usize].meta {
                ready += self.ready_to.min(start + self.geometry.group_blocks) - from;
            }
        }
        ready < growth.ahead_blocks && self.ready_to < self.end()
    }

    /// Returns whether fewer than `wanted` free data blocks may be written without a cost: those that were freed, and
    /// those that were zero-written ahead.
    fn lacks_ready(&self, wanted: u64) -> bool {
        if !self.can_grow || wanted == 0 {
            return false;
        }
        let from = self.ready_to.max(self.frontier);
        let first = self.geometry.group_of(from).unwrap_or(0);
        let fresh = (first..self.groups.len() as u64).filter(|group| !self.groups[*group as usize].meta);
        let unready: u64 = fresh
            .map(|group| {
                let start = self.geometry.group_start(group);
                (start + self.geometry.group_blocks).saturating_sub(from.max(start + SLOTS))
            })
            .sum();
        self.free_written().saturating_sub(unready) < wanted
    }

    fn ahead_step(&self, growth: &Growth, resident_groups_max: usize) -> Step {
        if self.wants_meta() {
            return self.more_meta();
        }
        if !self.wants_room(growth) {
            return Step::Nothing;
        }
        let cold = if self.fills_gaps() { GroupSet::ColdGappy } else { GroupSet::ColdRoomy };
        match self.set(cold).next_round(self.data_group, true) {
            Some(group) if self.may_load_ahead(resident_groups_max) => Step::Load(group),
            None if self.can_grow => Step::Grow { meta: false },
            _ => Step::Nothing,
        }
    }

    /// Returns the group and the blocks to zero-write next; None when `ready_to` only skipped something.
    fn next_zero_chunk(&mut self, chunk_blocks: u64) -> Option<(usize, Extent)> {
        if self.frontier > self.ready_to {
            // Blocks that placement has reached, or is about to reach, are skipped.
            self.ready_to = (self.frontier + chunk_blocks).min(self.end());
        }
        let group = self.geometry.group_of(self.ready_to).filter(|_| self.ready_to < self.end())?;
        let end = self.geometry.group_start(group + 1);
        if self.groups[group as usize].meta {
            self.ready_to = end;
            return None;
        }
        let addr = self.ready_to.max(self.geometry.group_start(group) + SLOTS);
        Some((group as usize, Extent { addr, len: chunk_blocks.min(end - addr) }))
    }

    /// Holds the free blocks of a chunk and returns them.
    fn hold_free(&mut self, group: usize, chunk: Extent) -> Vec<Extent> {
        let (_, blocks) = self.locate_own(chunk);
        let mut held = Vec::new();
        let mut from = blocks.start;
        while let Some(at) = self.groups[group].maps().busy.next(from, false).filter(|at| *at < blocks.end) {
            from = at + self.groups[group].maps().busy.run(at, false, blocks.end - at);
            self.shift_blocks(group, at..from, BlockState::Free, BlockState::Held);
            held.push(self.extent(group, at..from));
        }
        held
    }
}
