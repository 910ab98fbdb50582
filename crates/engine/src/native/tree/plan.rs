//! Plan of a merge's next steps: the leaves that its updates touch, read level by level, and subtrees that need not be
//! read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blk::{Local, Result};

use super::cache::Nodes;
use super::entry::*;
use super::node::Node;

/// The services that a merge needs from the store.
pub(crate) trait MergeSpace {
    /// Returns whether an old entry or node that covers `blocks` and was born at `birth` belongs to this tree alone. If
    /// it does at some block, it must also do so at the blocks before, and for later births.
    fn is_exclusive(&self, birth: u64, blocks: &Range<u64>) -> bool;
    /// Places a free block for a new node.
    fn place_node(&self) -> Local<'_, Result<u64>>;
    /// Returns the tag of new pages.
    fn tag(&self) -> PageTag;
    /// Frees the block of a node that a failed merge has placed; its write has ended.
    fn unplace_node(&self, addr: u64);
    /// Frees blocks to which the tree no longer refers: exclusive old data or an exclusive old node.
    fn free(&self, addr: u64, len: u64);
}

/// A leaf to change, or a page of any level to drop.
pub(super) struct Step {
    pub level: u8,
    pub first: u64,
    pub source: Source,
    /// Indexes of the updates that touch it.
    pub updates: Range<usize>,
    /// None for a hole, and where nothing of the old page is needed.
    pub node: Option<Rc<Node>>,
    /// All of it is unmapped, and no block below can be freed.
    pub drop: bool,
}

impl Step {
    pub(super) fn blocks(&self) -> Range<u64> {
        self.first..self.first + span(self.level)
    }
}

/// The next few steps and the pages above them.
pub(super) struct Window {
    /// In the order of blocks.
    pub steps: Vec<Step>,
    /// Interior pages by level and first block: the paths to the steps.
    pub paths: BTreeMap<(u8, u64), Rc<Node>>,
    /// After these steps everything up to this block, the end of a leaf, is done.
    pub until: u64,
}

/// Most places of one level in a window. The pages of a window are read in the order of their addresses: those of a map
/// that several checkpoints have changed are in several places, each in the order of blocks, and a long window makes
/// few seeks between them. 2 MiB of pages.
pub(super) const WINDOW_PLACES: usize = 512;

pub(super) struct Planner<'a> {
    pub nodes: &'a Nodes,
    pub space: &'a dyn MergeSpace,
    pub root: Option<Root>,
    /// Level of the new root; not below the old root's.
    pub level: u8,
    pub updates: &'a [Update],
    /// Damaged pages below which the updates change something: their blocks are lost.
    pub lost: RefCell<Vec<Range<u64>>>,
}

impl Planner<'_> {
    /// Plans the steps from block `at` on: at most `WINDOW_PLACES` places of a level.
    pub(super) async fn window(&self, at: u64) -> Result<Window> {
        let mut window = Window { steps: Vec::new(), paths: BTreeMap::new(), until: span(self.level) };
        let mut row = Vec::new();
        self.enlist(self.level, 0, Source::top(self.root.as_ref(), self.level), at, &mut row, &mut window);
        for level in (0..self.level).rev() {
            self.load(&mut row).await?;
            row = self.below(level, row, at, &mut window);
        }
        self.load(&mut row).await?;
        window.steps.append(&mut row);
        window.steps.retain(|step| step.first < window.until);
        window.steps.sort_by_key(|step| step.first);
        Ok(window)
    }

    /// Returns the places of `level` below a row that has been read.
    fn below(&self, level: u8, row: Vec<Step>, at: u64, window: &mut Window) -> Vec<Step> {
        let mut next = Vec::new();
        for step in row {
            let children = step.node.as_ref().map_or(&[][..], |node| node.children());
            for index in self.touched(level, &step, at) {
                let first = step.first + index as u64 * span(level);
                if next.len() == WINDOW_PLACES {
                    window.until = window.until.min(first);
                    break;
                }
                self.enlist(level, first, step.source.child(level, index, children), at, &mut next, window);
            }
            if let Some(node) = step.node {
                window.paths.insert((step.level, step.first), node);
            }
        }
        next
    }

    /// Returns the indexes of the places of `level` below a step that its updates touch from block `at` on, in order.
    fn touched(&self, level: u8, step: &Step, at: u64) -> impl Iterator<Item = usize> {
        let (first, end) = (step.first, step.blocks().end);
        let mut updates = &self.updates[step.updates.clone()];
        let mut from = at.max(first);
        std::iter::from_fn(move || {
            updates = &updates[updates.partition_point(|update| update.end() <= from)..];
            let block = updates.first()?.start.max(from);
            let index = (block - first) / span(level);
            from = first + (index + 1) * span(level);
            (block < end).then_some(index as usize)
        })
    }

    /// Adds a place to the row, or to the steps if it is dropped. A place that updates do not change is left out.
    fn enlist(
        &self,
        level: u8,
        first: u64,
        source: Source,
        at: u64,
        row: &mut Vec<Step>,
        window: &mut Window,
    ) {
        let blocks = first..first + span(level);
        if blocks.end <= at {
            return;
        }
        let updates = self.touching(first.max(at)..blocks.end);
        let touching = &self.updates[updates.clone()];
        if touching.is_empty() || source == Source::Hole && touching.iter().all(|update| update.addr == 0) {
            return;
        }
        let drop = touching[0].addr == 0
            && touching[0].start <= first
            && blocks.end <= touching[0].end()
            && !self.may_be_freed(&source, &blocks);
        let step = Step { level, first, source, updates, node: None, drop };
        if drop { window.steps.push(step) } else { row.push(step) }
    }

    fn touching(&self, blocks: Range<u64>) -> Range<usize> {
        let from = self.updates.partition_point(|update| update.end() <= blocks.start);
        let to = self.updates.partition_point(|update| update.start < blocks.end);
        from..to
    }

    /// Returns whether something at or below the place could be exclusive. Everything below was born no later, and if
    /// anything is exclusive, the first block is.
    fn may_be_freed(&self, source: &Source, blocks: &Range<u64>) -> bool {
        match source {
            Source::Hole | Source::Device(_) => false,
            Source::Page(pointer) => {
                self.space.is_exclusive(pointer.birth, &(blocks.start..blocks.start + 1))
            }
            Source::Above(_) => true,
        }
    }

    async fn load(&self, row: &mut [Step]) -> Result<()> {
        let spots: Vec<Spot> = row.iter().map(|step| self.spot_to_read(step)).collect();
        for (step, node) in row.iter_mut().zip(self.nodes.load_all(&spots, false).await?) {
            if node.as_ref().is_some_and(|node| node.is_lost) {
                self.lost.borrow_mut().push(step.blocks());
            }
            step.node = node;
        }
        Ok(())
    }

    /// Returns a hole if nothing has to be read, which includes a leaf that is replaced whole and of which nothing is
    /// freed.
    fn spot_to_read(&self, step: &Step) -> Spot {
        let pointer = match step.source {
            Source::Page(pointer) if !self.is_replaced_whole(step) => pointer,
            _ => Pointer::default(),
        };
        Spot { level: step.level, first: step.first, pointer }
    }

    fn is_replaced_whole(&self, step: &Step) -> bool {
        let blocks = step.blocks();
        let covered = |update: &Update| update.end().min(blocks.end) - update.start.max(blocks.start);
        step.level == 0
            && self.updates[step.updates.clone()].iter().map(covered).sum::<u64>() == span(0)
            && !self.may_be_freed(&step.source, &blocks)
    }
}
