//! States compared as they are now: their trees, and the redirects that no checkpoint has merged yet. So a question
//! about differences or space needs no checkpoint.

use std::ops::Range;

use blk::Result;

use super::layout::has_space;
use super::lineage::Node;
use super::store::Store;
use super::table::{LookupRun, Table};
use super::tree::{Mapped, Roots, WalkItem, differences, gone_from_both, span};
use super::view::Scratch;

/// Pages of each map compared in one step, before other tasks get a turn: some 100 us when all of them are in memory.
pub(super) const PAGES_AT_ONCE: usize = 128;
/// Runs taken from all tables of a state in one step: some 50 us.
const RUNS_AT_ONCE: usize = 512;
/// Blocks of runs compared in one step: what the pages of one step map.
const BLOCKS_AT_ONCE: u64 = PAGES_AT_ONCE as u64 * span(0);

/// One side of a comparison.
#[derive(Clone, Copy)]
pub(super) enum State<'a> {
    /// A node as it is at each step, with its redirects.
    Node(&'a Node),
    /// Trees. Without them: an empty disk.
    Trees(Roots),
}

impl State<'_> {
    fn at_moment(&self, blocks: Range<u64>) -> Moment {
        match self {
            State::Node(node) => Moment::of(node, blocks),
            State::Trees(roots) => Moment { roots: *roots, runs: Vec::new(), end: blocks.end },
        }
    }
}

/// The content of a state at one moment, in a range of blocks.
struct Moment {
    roots: Roots,
    /// Runs that the trees do not have, ascending and apart from each other.
    runs: Vec<LookupRun>,
    /// End of the blocks that `runs` describes.
    end: u64,
}

impl Moment {
    /// Looks through the tables of a node from the newest to the oldest. It has no await.
    fn of(node: &Node, blocks: Range<u64>) -> Moment {
        let mut view = node.current_view();
        let tables = 2 + view.depth();
        let runs_max = (RUNS_AT_ONCE / tables).max(1);
        let blocks_max = (BLOCKS_AT_ONCE / tables as u64).max(1);
        let mut search =
            Search { runs: Vec::new(), end: blocks.end, gaps: vec![blocks], runs_max, blocks_max };
        search.look_through(&node.active.borrow());
        let roots = loop {
            if let Some(roots) = view.roots() {
                break roots;
            }
            view.with_table(|table| search.look_through(table));
            view = view.below().expect("a view without a tree is over another");
        };
        let Search { mut runs, end, .. } = search;
        runs.retain(|run| run.start < end);
        runs.iter_mut().for_each(|run| run.len = run.end().min(end) - run.start);
        runs.sort_unstable_by_key(|run| run.start);
        Moment { roots, runs, end }
    }

    /// Returns what the state has at `blocks`: runs and holes without gaps.
    async fn content(&self, store: &Store, blocks: Range<u64>) -> Result<Vec<LookupRun>> {
        let mut content = Scratch::default();
        let mut at = blocks.start;
        let first = self.runs.partition_point(|run| run.end() <= at);
        for run in self.runs[first..].iter().take_while(|run| run.start < blocks.end) {
            if at < run.start {
                content.find_in(&store.nodes, &self.roots, at..run.start).await?;
                at = run.start;
            }
            let end = run.end().min(blocks.end);
            content.found.push(run.part(at..end));
            at = end;
        }
        if at < blocks.end {
            content.find_in(&store.nodes, &self.roots, at..blocks.end).await?;
        }
        Ok(content.found)
    }
}

/// A search for the newest runs in several tables.
struct Search {
    runs: Vec<LookupRun>,
    end: u64,
    /// What no table so far has.
    gaps: Vec<Range<u64>>,
    /// Most runs of one table, and most blocks in them.
    runs_max: usize,
    blocks_max: u64,
}

impl Search {
    /// Takes the runs of one table that are in the gaps. The search ends earlier where they are too many or too long.
    fn look_through(&mut self, table: &Table) {
        if table.is_empty() {
            return;
        }
        let (mut runs_left, mut blocks_left) = (self.runs_max, self.blocks_max);
        let mut gaps = Vec::new();
        for gap in std::mem::take(&mut self.gaps) {
            let mut at = gap.start;
            while at < gap.end.min(self.end) {
                let (found, mut end) = table.next(&(at..gap.end.min(self.end)));
                match found {
                    Some(run) => {
                        (runs_left, end) = (runs_left - 1, end.min(at + blocks_left));
                        blocks_left -= end - at;
                        self.runs.push(LookupRun { len: end - at, ..run });
                        if runs_left == 0 || blocks_left == 0 {
                            self.end = end;
                        }
                    }
                    None => gaps.push(at..end),
                }
                at = end;
            }
        }
        self.gaps = gaps;
    }
}

impl Store {
    /// Visits what `a` refers to within `blocks` and `b` does not at the same place: `tree::gone` of states as they are
    /// now. Pages are those of the trees. Compares about `PAGES_AT_ONCE` pages; returns the block up to which it has.
    /// The caller retains the space.
    pub(super) async fn gone_now(
        &self,
        (a, b): (State<'_>, State<'_>),
        blocks: Range<u64>,
        visit: &mut dyn FnMut(WalkItem),
    ) -> Result<u64> {
        let (a, b) = moments((a, b), &blocks);
        let (ranges, end) = unmerged_ranges(&a, &b);
        let mut visit_merged = |item: WalkItem| match item {
            WalkItem::Data(run) => {
                subtract(run.start..run.start + run.len, &ranges, |blocks| {
                    visit(WalkItem::Data(part_of(&run, blocks)));
                });
            }
            other => visit(other),
        };
        let merged = blocks.start..end;
        let done =
            gone_from_both(&self.nodes, &a.roots, &b.roots, merged, PAGES_AT_ONCE, &mut visit_merged).await?;
        self.compare_unmerged((&a, &b), &ranges, done, &mut |run, other| {
            let is_gone = |addr: u64| has_space(addr) && addr != other.addr && addr != other.backing.addr();
            let LookupRun { start, len, .. } = run;
            if is_gone(run.addr) {
                visit(WalkItem::Data(Mapped { start, len, addr: run.addr, birth: run.birth }));
            }
            if is_gone(run.backing.addr()) {
                let (addr, birth) = (run.backing.addr(), run.backing.birth);
                visit(WalkItem::Data(Mapped { start, len, addr, birth }));
            }
        })
        .await?;
        Ok(done)
    }

    /// Returns the ranges within `blocks` in which two states differ as they are now, ascending and apart from each
    /// other, and the block up to which they were compared: `pages` pages of each map at most, of `PAGES_AT_ONCE`. The
    /// caller retains the space.
    pub(super) async fn differences_now(
        &self,
        (a, b): (State<'_>, State<'_>),
        blocks: Range<u64>,
        pages: usize,
    ) -> Result<(Vec<Range<u64>>, u64)> {
        let (a, b) = moments((a, b), &blocks);
        let (ranges, end) = unmerged_ranges(&a, &b);
        let mut found = Vec::new();
        let mut visit = |blocks: Range<u64>| subtract(blocks, &ranges, |blocks| found.push(blocks));
        let (a_root, b_root) = (a.roots.places.as_ref(), b.roots.places.as_ref());
        let budget = pages.min(PAGES_AT_ONCE);
        let done = differences(&self.nodes, a_root, b_root, blocks.start, end, budget, &mut visit).await?;
        self.compare_unmerged((&a, &b), &ranges, done, &mut |run, other| {
            if run.addr != other.addr {
                found.push(run.start..run.start + run.len);
            }
        })
        .await?;
        found.sort_unstable_by_key(|blocks| blocks.start);
        Ok((found, done))
    }

    /// Visits what `a` has in the ranges up to block `to`, each piece with what `b` has there.
    async fn compare_unmerged(
        &self,
        (a, b): (&Moment, &Moment),
        ranges: &[Range<u64>],
        to: u64,
        visit: &mut dyn FnMut(LookupRun, LookupRun),
    ) -> Result<()> {
        for range in ranges.iter().take_while(|range| range.start < to) {
            let blocks = range.start..range.end.min(to);
            let (a, b) = (a.content(self, blocks.clone()).await?, b.content(self, blocks).await?);
            visit_pieces(&a, &b, visit);
        }
        Ok(())
    }
}

/// Returns both states at one moment.
fn moments((a, b): (State<'_>, State<'_>), blocks: &Range<u64>) -> (Moment, Moment) {
    (a.at_moment(blocks.clone()), b.at_moment(blocks.clone()))
}

/// Returns the ranges in which one of two states has unmerged runs, and the end of what both describe.
fn unmerged_ranges(a: &Moment, b: &Moment) -> (Vec<Range<u64>>, u64) {
    let end = a.end.min(b.end);
    let runs = a.runs.iter().chain(&b.runs).filter(|run| run.start < end);
    let mut all: Vec<Range<u64>> = runs.map(|run| run.start..run.end().min(end)).collect();
    all.sort_unstable_by_key(|blocks| blocks.start);
    all.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        last.end = if joins { last.end.max(next.end) } else { last.end };
        joins
    });
    (all, end)
}

/// Visits the parts of `blocks` that are in none of the ranges.
fn subtract(blocks: Range<u64>, ranges: &[Range<u64>], mut visit: impl FnMut(Range<u64>)) {
    let mut at = blocks.start;
    let first = ranges.partition_point(|range| range.end <= at);
    for range in ranges[first..].iter().take_while(|range| range.start < blocks.end) {
        if at < range.start {
            visit(at..range.start);
        }
        at = range.end;
    }
    if at < blocks.end {
        visit(at..blocks.end);
    }
}

/// Returns the part of a run within `blocks`.
fn part_of(run: &Mapped, blocks: Range<u64>) -> Mapped {
    let addr = if run.addr == 0 { 0 } else { run.addr + (blocks.start - run.start) };
    Mapped { start: blocks.start, len: blocks.end - blocks.start, addr, birth: run.birth }
}

/// Visits the pieces of `a` within which `b` has one run too, each with that of `b`. Both describe the same blocks
/// without gaps.
fn visit_pieces(a: &[LookupRun], b: &[LookupRun], visit: &mut dyn FnMut(LookupRun, LookupRun)) {
    let mut others = b.iter().peekable();
    for run in a {
        let (mut at, end) = (run.start, run.start + run.len);
        while at < end {
            let other = others.peek().expect("both describe the same blocks");
            let piece = at..end.min(other.start + other.len);
            visit(run.part(piece.clone()), other.part(piece.clone()));
            at = piece.end;
            if at == other.start + other.len {
                others.next();
            }
        }
    }
}
