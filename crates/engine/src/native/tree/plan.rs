//! What a merge does next: the leaves its updates touch, read level by level, and subtrees that go unread.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blk::Result;

use super::PAGES_AT_ONCE;
use super::cache::Nodes;
use super::entry::*;
use super::merge::Ground;
use super::node::Node;

/// A leaf to change, or on any level something to drop.
pub(super) struct Step {
    pub level: u8,
    pub first: u64,
    pub source: Source,
    /// Those that touch it.
    pub updates: Range<usize>,
    /// None for a hole, and where nothing of the old page is needed.
    pub node: Option<Rc<Node>>,
    /// All of it is unmapped and nothing below is anybody's to free.
    pub drop: bool,
}

impl Step {
    pub fn blocks(&self) -> Range<u64> {
        self.first..self.first + span(self.level)
    }
}

/// The next few steps and the pages over them.
pub(super) struct Window {
    /// By block.
    pub steps: Vec<Step>,
    /// Interior pages by level and first block: the ways to the steps.
    pub ways: BTreeMap<(u8, u64), Rc<Node>>,
    /// With these steps all is done up to this block, the end of a leaf.
    pub until: u64,
}

pub(super) struct Planner<'a> {
    pub nodes: &'a Nodes,
    pub ground: &'a dyn Ground,
    pub root: Option<Root>,
    /// Of the root to be; not below the old root's.
    pub level: u8,
    pub updates: &'a [Update],
}

impl Planner<'_> {
    /// What is to do from block `at` on: at most `PAGES_AT_ONCE` places of a level at once.
    pub async fn window(&self, at: u64) -> Result<Window> {
        let mut window = Window { steps: Vec::new(), ways: BTreeMap::new(), until: span(self.level) };
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

    /// The places of `level` below a row that has been read.
    fn below(&self, level: u8, row: Vec<Step>, at: u64, window: &mut Window) -> Vec<Step> {
        let mut next = Vec::new();
        for step in row {
            let children = step.node.as_ref().map_or(&[][..], |node| node.children());
            for index in 0..FANOUT {
                let first = step.first + index as u64 * span(level);
                if next.len() == PAGES_AT_ONCE {
                    window.until = window.until.min(first);
                    break;
                }
                self.enlist(level, first, step.source.child(level, index, children), at, &mut next, window);
            }
            if let Some(node) = step.node {
                window.ways.insert((step.level, step.first), node);
            }
        }
        next
    }

    /// Adds a place to the row, or to the steps when it is dropped, or nowhere when updates make no difference to it.
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

    /// Whether something at or below the place could be exclusive: what is below was born no later, and what lies at the
    /// first block is exclusive if anything is.
    fn may_be_freed(&self, source: &Source, blocks: &Range<u64>) -> bool {
        match source {
            Source::Hole => false,
            Source::Page(pointer) => {
                self.ground.is_exclusive(pointer.birth, &(blocks.start..blocks.start + 1))
            }
            Source::Above(_) => true,
        }
    }

    async fn load(&self, row: &mut [Step]) -> Result<()> {
        let spots: Vec<Spot> = row.iter().map(|step| self.spot_to_read(step)).collect();
        for (step, node) in row.iter_mut().zip(self.nodes.load_all(&spots).await?) {
            step.node = node;
        }
        Ok(())
    }

    /// A hole where nothing has to be read: also at a leaf that is replaced whole and of which nothing is freed.
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
