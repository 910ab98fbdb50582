//! Audit of the space: the blocks that the bitmap pages on the medium have in use, and a guard that keeps the blocks of
//! a committed state from being placed again meanwhile.

use std::rc::Rc;

use blk::Error;
use blk::sync::Signal;
use futures_util::future::join_all;

use super::bits::Bits;
use super::{Extent, Geometry, GroupSummary, SLOTS, Space};

/// Bitmap pages read at once.
const PAGES_AT_ONCE: usize = 16;

/// The committed blocks of a state, to be ticked off. One bit a block: 32 MiB for each TiB of the store's size.
pub(crate) struct Marks {
    geometry: Geometry,
    groups: Vec<Group>,
}

struct Group {
    meta: bool,
    /// Blocks in use by the bitmap and not ticked off. None: the page is damaged, and nothing is known about the group.
    left: Option<Bits>,
}

/// Result of ticking off a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    /// The block was in use and not ticked off before.
    First,
    /// The block was ticked off before, or is free by the bitmap.
    Clear,
    /// The group's page is damaged.
    Unknown,
    /// The block is in no group, or in a page slot.
    Outside,
    /// The block holds data where metadata belongs, or the reverse.
    WrongKind,
}

impl Marks {
    pub(crate) fn tick(&mut self, addr: u64, meta: bool) -> Tick {
        let Some(at) = self.geometry.group_of(addr) else { return Tick::Outside };
        let Some(group) = usize::try_from(at).ok().and_then(|at| self.groups.get_mut(at)) else {
            return Tick::Outside;
        };
        let block = addr - self.geometry.group_start(at);
        if block < SLOTS {
            return Tick::Outside;
        }
        if group.meta != meta {
            return Tick::WrongKind;
        }
        let block = block as usize;
        match &mut group.left {
            None => Tick::Unknown,
            Some(left) if left.get(block) => {
                left.put(block, false);
                Tick::First
            }
            Some(_) => Tick::Clear,
        }
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the blocks of a group that were not ticked off, in maximal runs.
    pub(crate) fn left(&self, group: usize) -> Vec<Extent> {
        let start = self.geometry.group_start(group as u64);
        let runs = self.groups[group].left.iter().flat_map(Bits::runs);
        runs.map(|run| Extent { addr: start + run.start as u64, len: run.len() as u64 }).collect()
    }
}

/// A guard: while it exists, no block that a checkpoint frees is placed again. The drop of the last one signals `over`.
pub(crate) struct Retained {
    space: Rc<Space>,
    over: Rc<Signal>,
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.space.retainers.update(|n| n - 1);
        if self.space.retainers.get() == 0 {
            self.over.notify();
        }
    }
}

impl Space {
    pub(crate) fn retain(self: &Rc<Self>, over: Rc<Signal>) -> Retained {
        self.retainers.update(|n| n + 1);
        Retained { space: self.clone(), over }
    }

    /// Reads the pages that `summaries` describe from the medium, and returns the blocks in use. `damaged` is called
    /// for each page that cannot be read or is not the one described, with its group.
    pub(crate) async fn marks(
        &self,
        summaries: &[GroupSummary],
        damaged: &mut dyn FnMut(u64, Error),
    ) -> Marks {
        let mut groups = Vec::with_capacity(summaries.len());
        for some in summaries.chunks(PAGES_AT_ONCE) {
            let first = groups.len();
            let pages = some.iter().enumerate().map(|(n, summary)| self.read_committed(first + n, *summary));
            for (summary, page) in some.iter().zip(join_all(pages).await) {
                let group = groups.len() as u64;
                let left = page.map_err(|error| damaged(group, error)).ok();
                groups.push(Group { meta: summary.meta, left });
            }
        }
        Marks { geometry: self.geometry, groups }
    }
}
