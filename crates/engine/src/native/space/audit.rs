//! What the check asks of the space: which blocks the bitmap pages on the medium have in use, and that nothing of a
//! committed state is placed again while it is looked at.

use std::rc::Rc;

use blk::Error;
use blk::sync::Signal;
use futures_util::future::join_all;

use super::bits::Bits;
use super::{Extent, Geometry, GroupSummary, SLOTS, Space};

/// Bitmap pages read at once.
const PAGES_AT_ONCE: usize = 16;

/// The settled blocks of a state, to be ticked off. A bit a block: 32 MiB for a TiB that the store has grown to.
pub struct Marks {
    geometry: Geometry,
    groups: Vec<Group>,
}

struct Group {
    meta: bool,
    /// In use by the bitmap and not ticked off. None: the page is damaged, and nothing is known.
    left: Option<Bits>,
}

/// What ticking a block off came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// Was in use, for the first time.
    First,
    /// Ticked off before, or free by the bitmap.
    Clear,
    /// The group's page is damaged.
    Unknown,
    /// In no group, or in a page slot.
    Outside,
    /// Data where metadata belongs, or the reverse.
    WrongKind,
}

impl Marks {
    pub fn tick(&mut self, addr: u64, meta: bool) -> Tick {
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

    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// What of a group was not ticked off, in maximal runs.
    pub fn left(&self, group: usize) -> Vec<Extent> {
        let start = self.geometry.group_start(group as u64);
        let runs = self.groups[group].left.iter().flat_map(Bits::runs);
        runs.map(|run| Extent { addr: start + run.start as u64, len: run.len() as u64 }).collect()
    }
}

/// While it lives nothing that a checkpoint frees is placed again. The last one tells `over` that it may be.
pub struct Retained {
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
    pub fn retain(self: &Rc<Self>, over: Rc<Signal>) -> Retained {
        self.retainers.update(|n| n + 1);
        Retained { space: self.clone(), over }
    }

    /// The blocks in use by the pages that `summaries` describe, read from the medium. A page that cannot be read or is
    /// not the one described goes to `damaged`, with its group.
    pub async fn marks(&self, summaries: &[GroupSummary], damaged: &mut dyn FnMut(u64, Error)) -> Marks {
        let mut groups = Vec::with_capacity(summaries.len());
        for some in summaries.chunks(PAGES_AT_ONCE) {
            let first = groups.len();
            let pages = some.iter().enumerate().map(|(n, summary)| self.read_settled(first + n, *summary));
            for (summary, page) in some.iter().zip(join_all(pages).await) {
                let group = groups.len() as u64;
                let left = page.map_err(|error| damaged(group, error)).ok();
                groups.push(Group { meta: summary.meta, left });
            }
        }
        Marks { geometry: self.geometry, groups }
    }
}
