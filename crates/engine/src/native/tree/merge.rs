//! Changes to a map: writes new nodes from the leaves up to a new root, and frees the old ones that no other state
//! needs.
//!
//! Leaves are changed in the order of their blocks. The interior nodes over the current leaf are open; a node is
//! written when the next change is behind it. So each new node is written once, and memory holds one path and one
//! window of leaves, regardless of the number of updates.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blk::{Buf, Error, Local, Result};
use futures_util::stream::{self, StreamExt};

use super::cache::Nodes;
use super::entry::*;
use super::node::{Body, NO_ENTRIES, Node, PageMarks};
use super::plan::{MergeSpace, Planner, Step};
use super::{IOS_AT_ONCE, PAGES_PER_IO};
use crate::native::backing::Backing;
use crate::native::layout::{BLOCK, Extent, addr_of, has_space, lost_word, place_of};

/// Puts `updates` (sorted, not overlapping, born no later than `stamp`) into the trees of a state and returns their new
/// roots; None when nothing is mapped any more.
///
/// New nodes are born at `stamp`, which is no earlier than the old root's birth. They are written but not flushed. An
/// old entry is freed if it is exclusive and its block is elsewhere now; an old node is freed if it is exclusive and
/// replaced. Both happen only when all is written.
///
/// # Errors
/// Errors of the medium and of `place_node`; `Damaged` for old pages; `Invalid` for a block that no tree covers. The
/// old trees are unchanged then, and nothing of them is freed.
pub(crate) async fn merge(
    nodes: &Nodes,
    roots: Roots,
    updates: &[Update],
    stamp: u64,
    space: &dyn MergeSpace,
    pace: &dyn MergePace,
) -> Result<Roots> {
    let backed: Vec<Update>;
    let mut backings = None;
    let mut result = Ok(());
    let mut with_lost = Cow::Borrowed(updates);
    if roots.backings.is_some() || updates.iter().any(|update| !update.backing.is_none()) {
        backed = updates.iter().map(Update::of_backing).collect();
        let quiet = Uncounted(pace);
        let tree = (TreeKind::Backings, roots.backings);
        let (second, merged) = begin(nodes, tree, false, &backed, stamp, space, &quiet).await?;
        with_lost = lose(updates, &second.planner.lost.borrow(), roots.places);
        (backings, result) = (Some(second), merged);
    }
    let mut places = None;
    if result.is_ok() {
        let tree = (TreeKind::Places, roots.places);
        let paired = backings.as_ref().is_some_and(|second| second.root.is_some());
        match begin(nodes, tree, paired, &with_lost, stamp, space, pace).await {
            Ok((first, merged)) => (places, result) = (Some(first), merged),
            Err(e) => result = Err(e),
        }
    }
    if result.is_ok() {
        result = pair(places.as_mut(), backings.as_mut()).await;
    }
    // Either both trees are new, or neither is.
    for merge in places.iter().chain(&backings) {
        merge.settle(result.is_ok(), pace).await;
    }
    let root = |merge: Option<Merge<'_>>| merge.and_then(|merge| merge.root);
    result.map(|()| Roots { places: root(places), backings: root(backings) })
}

/// Returns the updates with those that make blocks lost whose backing blocks are unknown. Blocks that are updated are
/// good, and those behind the root are holes.
fn lose<'a>(updates: &'a [Update], lost: &[Range<u64>], places: Option<Root>) -> Cow<'a, [Update]> {
    let Some(root) = places.filter(|_| !lost.is_empty()) else { return Cow::Borrowed(updates) };
    let mut lost: Vec<Range<u64>> =
        lost.iter().filter(|range| range.start < span(root.level)).cloned().collect();
    lost.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
    let (mut all, mut at, mut next) = (Vec::with_capacity(updates.len() + lost.len()), 0, 0);
    let push_lost = |from: u64, to: u64, all: &mut Vec<Update>| {
        if from < to {
            let (len, addr) = (to - from, lost_word(from));
            all.push(Update { start: from, len, addr, birth: 0, backing: Backing::NONE });
        }
    };
    for range in &lost {
        at = at.max(range.start);
        let end = range.end.min(span(root.level));
        while let Some(update) = updates.get(next).filter(|update| update.start < end) {
            push_lost(at, update.start, &mut all);
            all.push(*update);
            at = at.max(update.end());
            next += 1;
        }
        push_lost(at, end, &mut all);
        at = at.max(end);
    }
    all.extend(&updates[next..]);
    Cow::Owned(all)
}

/// Gives both roots of a state the same tag, if one of them is new: a rebuild finds them by it.
async fn pair(places: Option<&mut Merge<'_>>, backings: Option<&mut Merge<'_>>) -> Result<()> {
    let (Some(places), Some(backings)) = (places, backings) else { return Ok(()) };
    if places.marks.tag.node == 0 {
        return Ok(());
    }
    match (places.is_changed(), backings.is_changed()) {
        (true, false) => backings.write_root_again().await,
        (false, true) => places.write_root_again().await,
        _ => Ok(()),
    }
}

/// The pace of the second tree: its updates are those of the first, which were counted.
struct Uncounted<'a>(&'a dyn MergePace);

impl MergePace for Uncounted<'_> {
    fn merged(&self, _: usize) -> Local<'_, ()> {
        self.0.merged(0)
    }
}

/// Writes the new nodes of one tree; `settle` must follow.
async fn begin<'a>(
    nodes: &'a Nodes,
    (kind, root): (TreeKind, Option<Root>),
    paired: bool,
    updates: &'a [Update],
    stamp: u64,
    space: &'a dyn MergeSpace,
    pace: &dyn MergePace,
) -> Result<(Merge<'a>, Result<()>)> {
    updates.iter().for_each(|update| update.check(stamp));
    assert!(updates.windows(2).all(|pair| pair[0].end() <= pair[1].start), "updates out of order");
    assert!(root.is_none_or(|root| root.pointer.birth <= stamp), "merging at {stamp} into {root:?}");
    let level = level_for(nodes, root.as_ref(), updates)?;
    let planner = Planner { nodes, space, root, level, updates, lost: RefCell::default() };
    let mut merge = Merge {
        planner,
        marks: PageMarks { kind, paired, is_root: false, tag: space.tag() },
        stamp,
        open: Vec::new(),
        root,
        unwritten: Vec::new(),
        placed: Vec::new(),
        data_freed: Vec::new(),
        nodes_freed: Vec::new(),
    };
    let result = merge.run(pace).await;
    Ok((merge, result))
}

/// Returns the lowest level, not below the root's, that covers all mapped blocks.
fn level_for(nodes: &Nodes, root: Option<&Root>, updates: &[Update]) -> Result<u8> {
    let lowest = root.map_or(0, |root| root.level);
    let end = updates.iter().rev().find(|update| update.addr != 0).map_or(0, |update| update.end());
    (lowest..=LEVEL_MAX).find(|level| end <= span(*level)).ok_or_else(|| {
        let limit = span(LEVEL_MAX);
        Error::invalid(nodes.file.name(), format!("mapping up to block {end}: a map ends at block {limit}"))
    })
}

/// An interior node that is being changed.
struct Open {
    level: u8,
    first: u64,
    /// None when it is new.
    old: Option<Pointer>,
    children: Vec<Pointer>,
    changed: bool,
}

impl Open {
    fn blocks(&self) -> Range<u64> {
        self.first..self.first + span(self.level)
    }

    fn index_of(&self, block: u64) -> usize {
        ((block - self.first) / span(self.level - 1)) as usize
    }
}

struct Merge<'a> {
    planner: Planner<'a>,
    marks: PageMarks,
    stamp: u64,
    /// The path to the last step, from the highest node down.
    open: Vec<Open>,
    root: Option<Root>,
    unwritten: Vec<(Node, Buf)>,
    placed: Vec<u64>,
    data_freed: Vec<Extent>,
    nodes_freed: Vec<u64>,
}

type Paths = BTreeMap<(u8, u64), Rc<Node>>;

/// Steps whose pages are written together.
const STEPS_AT_ONCE: usize = 64;

/// Steps taken between two turns of the pace: 0.2 ms of calculation where every block of their leaves changes.
const STEPS_PER_TURN: usize = 8;

/// Pages or extents freed between two turns of the pace: pages are removed from the cache.
const SETTLED_AT_ONCE: usize = 2048;

/// The pace of a merge.
pub(crate) trait MergePace {
    /// Notes that this many more updates are in new pages, and pauses.
    fn merged(&self, updates: usize) -> Local<'_, ()>;
}

impl Merge<'_> {
    async fn run(&mut self, pace: &dyn MergePace) -> Result<()> {
        self.open_above_the_root();
        let end = span(self.planner.level);
        let (mut at, mut merged) = (0, 0);
        while at < end {
            let window = self.planner.window(at).await?;
            for steps in window.steps.chunks(STEPS_AT_ONCE) {
                for some in steps.chunks(STEPS_PER_TURN) {
                    for step in some {
                        self.take(step, &window.paths).await?;
                    }
                    pace.merged(0).await;
                }
                self.write().await?;
                let done = steps.last().map_or(merged, |step| step.updates.end);
                pace.merged(done.saturating_sub(merged)).await;
                merged = merged.max(done);
            }
            at = window.until;
        }
        while !self.open.is_empty() {
            self.close().await?;
        }
        self.write().await
    }

    /// Opens new nodes above the old root of a tree that grows; the old root is their first descendant.
    fn open_above_the_root(&mut self) {
        let Some(root) = self.root else { return };
        for level in (root.level + 1..=self.planner.level).rev() {
            let mut children = vec![Pointer::default(); FANOUT];
            if level == root.level + 1 {
                children[0] = root.pointer;
            }
            self.open.push(Open { level, first: 0, old: None, children, changed: true });
        }
    }

    async fn take(&mut self, step: &Step, paths: &Paths) -> Result<()> {
        while self.open.last().is_some_and(|open| !open.blocks().contains(&step.first)) {
            self.close().await?;
        }
        self.open_down_to(step, paths);
        if step.drop && self.needs_page() {
            return self.add(step.level, step.first, Body::holes(step.level)).await;
        }
        if step.drop {
            self.set(step.level, step.first, Pointer::default());
            return Ok(());
        }
        self.change_leaf(step).await
    }

    /// Opens the missing nodes on the path to the parent of a step.
    fn open_down_to(&mut self, step: &Step, paths: &Paths) {
        let top = self.planner.level;
        let mut level = self.open.last().map_or(top, |open| open.level - 1);
        while level > step.level {
            let first = step.first / span(level) * span(level);
            let old = match self.open.last() {
                Some(parent) => parent.children[parent.index_of(first)],
                None => self.root.map_or(Pointer::default(), |root| root.pointer),
            };
            let source = Source::of(old);
            // A lost page is replaced, even if nothing below it changes.
            let mut changed = false;
            let children = match source {
                Source::Page(_) => {
                    let node = paths.get(&(level, first)).expect("the path to a step is read");
                    changed = node.is_lost;
                    match node.is_lost && self.marks.kind == TreeKind::Backings {
                        true => vec![Pointer::HOLE; FANOUT],
                        false => node.children().to_vec(),
                    }
                }
                _ => (0..FANOUT).map(|index| source.child(level - 1, index, &[]).pointer()).collect(),
            };
            let old = old.is_page().then_some(old);
            self.open.push(Open { level, first, old, children, changed });
            level -= 1;
        }
    }

    async fn change_leaf(&mut self, step: &Step) -> Result<()> {
        let mut old = step.node.as_ref().map_or(step.source.entries(), |node| node.entries());
        if self.marks.kind == TreeKind::Backings && step.node.as_ref().is_some_and(|node| node.is_lost) {
            // The blocks become lost in the tree of places, which needs no backing blocks for them.
            old = NO_ENTRIES;
        }
        let mut new = old;
        let updates = self.planner.updates;
        for update in &updates[step.updates.clone()] {
            for block in update.start.max(step.first)..update.end().min(step.blocks().end) {
                let index = (block - step.first) as usize;
                new[index] = update.entry(block);
                let (old_place, new_place) = (place_of(old[index].addr), place_of(new[index].addr));
                if old_place != new_place && old_place != update.backing.addr() {
                    self.free_data(old[index], block);
                }
            }
        }
        let known =
            step.node.as_ref().is_some_and(|node| !node.is_lost) || !matches!(step.source, Source::Page(_));
        if known && new == old {
            return Ok(());
        }
        if let Source::Page(pointer) = step.source {
            self.free_node(pointer, &step.blocks());
        }
        self.add(0, step.first, Body::leaf(&new)).await
    }

    /// Closes the deepest open node, which is complete.
    async fn close(&mut self) -> Result<()> {
        let open = self.open.pop().expect("a node is open");
        if !open.changed {
            return Ok(());
        }
        if let Some(old) = open.old {
            self.free_node(old, &open.blocks());
        }
        self.add(open.level, open.first, Body::interior(&open.children)).await
    }

    /// Adds a new node, unless all of it is a hole or consecutive blocks of a device, and the pointer to it.
    async fn add(&mut self, level: u8, first: u64, body: Body) -> Result<()> {
        let pointer = body.device_word(level).map_or(Pointer::default(), Pointer::of_device);
        let has_page = self.needs_page() || pointer.is_hole() && !body.is_empty();
        let pointer = if has_page { self.write_later(level, first, body).await? } else { pointer };
        self.set(level, first, pointer);
        Ok(())
    }

    /// Returns whether the next node has a page whatever it holds: a root of places with tags always has one if its
    /// predecessor had, because a rebuild would take that one for the root otherwise.
    fn needs_page(&self) -> bool {
        let had_page = self.root.is_some_and(|root| root.pointer.is_page());
        self.marks.kind == TreeKind::Places && self.open.is_empty() && self.marks.tag.node != 0 && had_page
    }

    async fn write_later(&mut self, level: u8, first: u64, body: Body) -> Result<Pointer> {
        let addr = self.planner.space.place_node().await?;
        self.placed.push(addr);
        let pointer = Pointer { addr, birth: self.stamp, ..Pointer::HOLE };
        let is_tagged = self.marks.tag.node != 0;
        let is_root = is_tagged && self.open.is_empty();
        let marks = PageMarks { is_root, paired: is_root && self.marks.paired, ..self.marks };
        let (node, page) =
            Node::seal(self.planner.nodes.store_id, marks, Spot { level, first, pointer }, body);
        let pointer = node.spot.pointer;
        self.unwritten.push((node, page));
        Ok(pointer)
    }

    fn is_changed(&self) -> bool {
        self.root != self.planner.root
    }

    /// Writes a copy of the root, which did not change, with a new tag.
    async fn write_root_again(&mut self) -> Result<()> {
        let Some(root) = self.root.filter(|root| root.pointer.is_page()) else { return Ok(()) };
        let spot = root.spot();
        let node = self.planner.nodes.load(&spot).await?;
        self.free_node(spot.pointer, &(0..span(spot.level)));
        let pointer = self.write_later(spot.level, 0, node.body()).await?;
        self.root = Some(Root { level: spot.level, pointer });
        self.write().await
    }

    fn set(&mut self, level: u8, first: u64, pointer: Pointer) {
        match self.open.last_mut() {
            None => self.root = (!pointer.is_hole()).then_some(Root { level, pointer }),
            Some(parent) => {
                assert_eq!(parent.level, level + 1, "the parent is open");
                let index = parent.index_of(first);
                parent.children[index] = pointer;
                parent.changed = true;
            }
        }
    }

    fn free_data(&mut self, old: Entry, block: u64) {
        if !has_space(old.addr) || !self.planner.space.is_exclusive(old.birth, &(block..block + 1)) {
            return;
        }
        let addr = addr_of(old.addr);
        match self.data_freed.last_mut() {
            Some(last) if last.end() == addr => last.len += 1,
            _ => self.data_freed.push(Extent { addr, len: 1 }),
        }
    }

    fn free_node(&mut self, old: Pointer, blocks: &Range<u64>) {
        if self.planner.space.is_exclusive(old.birth, blocks) {
            self.nodes_freed.push(old.addr);
        }
    }

    /// Writes the complete nodes, neighbours in the file together.
    async fn write(&mut self) -> Result<()> {
        let complete = std::mem::take(&mut self.unwritten);
        let runs = complete
            .chunk_by(|(one, _), (next, _)| one.spot.pointer.addr + 1 == next.spot.pointer.addr)
            .flat_map(|run| run.chunks(PAGES_PER_IO));
        let writes: Vec<_> =
            stream::iter(runs.map(|run| self.write_run(run))).buffer_unordered(IOS_AT_ONCE).collect().await;
        writes.into_iter().collect::<Result<()>>()?;
        complete.into_iter().for_each(|(node, _)| self.planner.nodes.keep(Rc::new(node)));
        Ok(())
    }

    async fn write_run(&self, run: &[(Node, Buf)]) -> Result<()> {
        let mut pages = Buf::alloc(run.len() * BLOCK as usize);
        for ((_, page), place) in run.iter().zip(pages.chunks_exact_mut(BLOCK as usize)) {
            place.copy_from_slice(page);
        }
        self.planner.nodes.file.write(run[0].0.spot.pointer.addr * BLOCK, pages).await
    }

    /// Frees what is not needed any more: the old pages and data, or the new pages of a merge that failed.
    async fn settle(&self, done: bool, pace: &dyn MergePace) {
        let (nodes, space) = (self.planner.nodes, self.planner.space);
        let pages = if done { &self.nodes_freed } else { &self.placed };
        for some in pages.chunks(SETTLED_AT_ONCE) {
            for addr in some {
                nodes.forget(*addr);
                match done {
                    true => space.free(*addr, 1),
                    false => space.unplace_node(*addr),
                }
            }
            pace.merged(0).await;
        }
        let data = if done { &self.data_freed[..] } else { &[] };
        for some in data.chunks(SETTLED_AT_ONCE) {
            some.iter().for_each(|extent| space.free(extent.addr, extent.len));
            pace.merged(0).await;
        }
    }
}
