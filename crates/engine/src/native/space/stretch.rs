//! Placement of blocks that must be in one run: the copies that a defragmentation makes.

use std::rc::Rc;

use blk::{Error, Result};

use super::super::layout::Extent;
use super::growth::Step;
use super::state::{GroupSet, State};
use super::{BlockState, Space};

/// Free data blocks that a stretch leaves to guests, 64 MiB, or a group if that is less: whether the file can grow is
/// known only when it has to.
const LEFT_TO_GUESTS: u64 = (64 << 20) / super::super::layout::BLOCK;

/// Groups that are loaded for one stretch before the file grows.
const LOADS_MAX: usize = 4;

/// Time after which a stretch makes the file grow again that could not: a file system gives a growth that fails all that
/// is free for a moment.
const GROW_AGAIN_NS: u64 = 10_000_000_000;

/// A run of this many stretches is preferred: the next ones find their place behind it.
const PREFERRED_STRETCHES: u64 = 8;

impl Space {
    /// Places exactly `len` data blocks in one run, which become uncommitted: at `near` if that is free. Loads groups
    /// and grows the file as needed. None: there is no such run, or guests need the rest of the space.
    pub(crate) async fn place_stretch(
        self: &Rc<Self>,
        len: u64,
        near: Option<u64>,
    ) -> Result<Option<Extent>> {
        for tries in 0..=LOADS_MAX {
            let placed = self.state.borrow_mut().place_stretch(len, near);
            if placed.is_some() {
                return Ok(placed);
            }
            match self.find_stretch_room(len, tries < LOADS_MAX).await {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(e) if e.is_no_space() => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(self.state.borrow_mut().place_stretch(len, near))
    }

    /// Loads a group with free lanes if it `may_load`, or adds one to the file. Returns false when there is nothing to
    /// load or to add.
    async fn find_stretch_room(self: &Rc<Self>, len: u64, may_load: bool) -> Result<bool> {
        let space = self.clone();
        let found = self.env.spawn(async move {
            let _turn = space.turn.lock().await;
            let step = space.state.borrow().stretch_step(len, may_load);
            let grows = matches!(step, Step::Grow { .. });
            if step == Step::Nothing || grows && space.env.now_ns() < space.stretch_grows_from_ns.get() {
                return Ok(false);
            }
            let taken = space.take_step(step).await;
            if grows && taken.as_ref().is_err_and(Error::is_no_space) {
                space.stretch_grows_from_ns.set(space.env.now_ns() + GROW_AGAIN_NS);
            }
            taken.map(|()| true)
        });
        found.join().await
    }
}

impl State {
    fn stretch_step(&self, want: u64, may_load: bool) -> Step {
        if self.free_meta() < self.reserve {
            return Step::Nothing;
        }
        let loads = may_load && !self.is_short_of(want);
        match self.set(GroupSet::ColdRoomy).next_round(self.stretch_group, true).filter(|_| loads) {
            Some(group) => Step::Load(group),
            None if self.can_grow && !self.full => Step::Grow { meta: false },
            None => Step::Nothing,
        }
    }

    /// Returns whether a stretch would leave too few free blocks to guests.
    fn is_short_of(&self, want: u64) -> bool {
        self.free_data() < want + LEFT_TO_GUESTS.min(self.usable())
    }

    /// Places exactly `want` data blocks in one run of a loaded group.
    pub(super) fn place_stretch(&mut self, want: u64, near: Option<u64>) -> Option<Extent> {
        assert!(want > 0, "nothing wanted");
        if self.free_meta() < self.reserve || self.is_short_of(want) {
            return None;
        }
        let near = near.and_then(|near| self.find_at(near, want)).filter(|found| found.len == want);
        let found = near
            .or_else(|| self.find_stretch(want, want * PREFERRED_STRETCHES))
            .or_else(|| self.find_stretch(want, want))?;
        self.shift(found, BlockState::Free, BlockState::Uncommitted);
        self.frontier = self.frontier.max(found.end());
        Some(found)
    }

    /// Finds `want` blocks at the start of a run of at least `run` free ones.
    fn find_stretch(&mut self, want: u64, run: u64) -> Option<Extent> {
        let groups: Vec<usize> = self.set(GroupSet::Roomy).runs().flatten().collect();
        let first = groups.partition_point(|group| *group < self.stretch_group);
        let mut order = groups[first..].iter().chain(&groups[..first]);
        let (group, at) =
            order.find_map(|group| Some((*group, self.find_run(*group, usize::try_from(run).ok()?)?)))?;
        self.stretch_group = group;
        Some(self.extent(group, at..at + want as usize))
    }

    /// Returns the start of the first run of at least `len` free blocks of a loaded group.
    pub(super) fn find_run(&self, group: usize, len: usize) -> Option<usize> {
        let busy = &self.groups[group].maps().busy;
        let mut from = 0;
        while let Some(at) = busy.next(from, false) {
            let found = busy.run(at, false, len);
            if found == len {
                return Some(at);
            }
            from = at + found;
        }
        None
    }
}
