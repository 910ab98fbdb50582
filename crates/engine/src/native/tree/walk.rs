//! Walks over two trees side by side, piece by piece: what only one of them has, where they differ, and all of one.
//!
//! A node is reported when its end is reached. So over consecutive calls each is reported once, even if the other tree
//! changes between them behind the block that has been reached.

use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use blk::{Error, ErrorKind, Result};
use futures_util::future::join;

use super::cache::Nodes;
use super::entry::*;
use super::node::{Entries, Node};
use crate::native::layout::{addr_of, has_space, is_lost, place_of};

/// Number of nodes visited before other tasks get a turn: some 10 us where all of them are in memory.
const NODES_PER_TURN: usize = 4;

/// Visits what `old` refers to within blocks `from..to` and `new` does not at the same place: data, and pages that end
/// in `from + 1..=to`, each after all below it. `u64::MAX` is the end of the tree. Subtrees that both share are not
/// read.
///
/// Stops on a leaf's boundary after about `budget` nodes of each side, but always makes progress. Returns the block up
/// to which all is done: `to` at the end. Returns `Damaged` like `Nodes::lookup`.
pub(crate) async fn gone(
    nodes: &Nodes,
    old: Option<&Root>,
    new: Option<&Root>,
    from: u64,
    to: u64,
    budget: usize,
    visit: &mut dyn FnMut(WalkItem),
) -> Result<u64> {
    compare(nodes, old, new, from..to, budget, &mut SurveyTask { goes_on: false, visit }).await
}

/// Like `gone`, for both trees of two states: a block that `new` has as a backing block is not gone. `old` must be an
/// ancestor's state, or this one's: no block that it has as a backing block is a place of `new`.
pub(crate) async fn gone_from_both(
    nodes: &Nodes,
    old: &Roots,
    new: &Roots,
    blocks: Range<u64>,
    budget: usize,
    visit: &mut dyn FnMut(WalkItem),
) -> Result<u64> {
    let (from, to) = (blocks.start, blocks.end);
    let (old_places, new_places) = (old.places.as_ref(), new.places.as_ref());
    let (old_backings, new_backings) = (old.backings.as_ref(), new.backings.as_ref());
    if old_backings.is_none() && new_backings.is_none() {
        return gone(nodes, old_places, new_places, from, to, budget, visit).await;
    }
    let mut found = Vec::new();
    let done =
        gone(nodes, old_backings, new_backings, from, to, budget, &mut |item| found.push(item)).await?;
    let mut in_places = Vec::new();
    let done =
        gone(nodes, old_places, new_places, from, done, budget, &mut |item| in_places.push(item)).await?;
    found.into_iter().filter(|item| item.end() <= done).for_each(&mut *visit);
    for item in in_places {
        match item {
            WalkItem::Data(run) if new_backings.is_some() => {
                let mut backings = Vec::new();
                nodes.lookup(new_backings, run.start..run.start + run.len, &mut backings).await?;
                if let Some(lost) = backings.iter().find(|backing| is_lost(backing.addr)) {
                    let cause = format!("backing blocks from block {} on are lost", lost.start);
                    return Err(Error::damaged(nodes.path(), cause));
                }
                without_backings(&run, &backings, &mut |part| visit(WalkItem::Data(part)));
            }
            item => visit(item),
        }
    }
    Ok(done)
}

/// Visits the parts of a run whose blocks are not the backing blocks there.
fn without_backings(run: &Mapped, backings: &[Mapped], visit: &mut dyn FnMut(Mapped)) {
    let mut rest = Vec::new();
    for backing in backings {
        for n in 0..backing.len {
            let block = backing.start + n;
            let addr = run.addr + (block - run.start);
            if backing.addr == 0 || addr_of(backing.addr) + n != addr {
                push_run(&mut rest, 0, Mapped { start: block, len: 1, addr, birth: run.birth });
            }
        }
    }
    rest.into_iter().for_each(visit);
}

/// Visits the maximal ranges within `from..to` in which two trees differ, in order. Budget and result are those of
/// `gone`; a range is cut where a call stops.
pub(crate) async fn differences(
    nodes: &Nodes,
    a: Option<&Root>,
    b: Option<&Root>,
    from: u64,
    to: u64,
    budget: usize,
    visit: &mut dyn FnMut(Range<u64>),
) -> Result<u64> {
    let mut task = DifferenceTask { range: from..from, visit };
    let done = compare(nodes, a, b, from..to, budget, &mut task).await;
    task.add(u64::MAX..u64::MAX);
    done
}

/// Something that a walk finds in one of two trees alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalkItem {
    /// Never a hole, and never over the end of a leaf.
    Data(Mapped),
    Page {
        addr: u64,
        birth: u64,
        level: u8,
        first: u64,
    },
    /// The page cannot be read or does not match its parent: it counts as one without content.
    Damaged {
        addr: u64,
        level: u8,
        first: u64,
        error: Error,
    },
    /// The same for a page of the base, or some of these blocks are lost in the base: what follows within them may belong
    /// to the base too.
    UnknownBase(Range<u64>),
}

impl WalkItem {
    /// Returns the end of the blocks that the item is about.
    fn end(&self) -> u64 {
        match self {
            WalkItem::Data(run) => run.start + run.len,
            WalkItem::Page { level, first, .. } | WalkItem::Damaged { level, first, .. } => {
                first + span(*level)
            }
            WalkItem::UnknownBase(blocks) => blocks.end,
        }
    }
}

/// Visits what `root` refers to within `blocks` and `base` does not at the same place, and continues behind damage.
/// Pages are those that end in `blocks.start + 1..=blocks.end`, each after all below it. Budget and result are those of
/// `gone`.
pub(crate) async fn survey(
    nodes: &Nodes,
    root: Option<&Root>,
    base: Option<&Root>,
    blocks: Range<u64>,
    budget: usize,
    visit: &mut dyn FnMut(WalkItem),
) -> Result<u64> {
    compare(nodes, root, base, blocks, budget, &mut SurveyTask { goes_on: true, visit }).await
}

/// Returns whether the page at `addr` is the tree's node of `level` over `block`; false if a page on the path is
/// damaged.
pub(crate) async fn has_page(nodes: &Nodes, root: Option<&Root>, level: u8, block: u64, addr: u64) -> bool {
    let root = root.filter(|root| root.level >= level && block < span(root.level));
    let Some(mut spot) = root.map(Root::spot) else { return false };
    while spot.level > level && spot.pointer.is_page() {
        match nodes.load_whole(&spot).await {
            Ok(node) => spot = node.child_at(block),
            Err(_) => return false,
        }
    }
    spot.level == level && spot.pointer.addr == addr
}

/// The work of a walk over two trees, `a` and `b`.
pub(super) trait Task {
    /// Returns whether a place at which the trees are not the same has to be visited.
    fn wants(&self, a: &Source, b: &Source) -> bool;
    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>);
    /// Called instead of a visit for a place at which neither tree has a page, and each block differs. `a` is what the
    /// first tree has there.
    fn apart(&mut self, _blocks: Range<u64>, _a: &Source) {}
    /// Called when all below a page of `a` is done.
    fn end_of(&mut self, _page: &Spot) {}
    /// Handles an unreadable page: an error ends the walk; otherwise it continues behind the page.
    fn failed(&mut self, _side: Side, _page: &Spot, error: Error) -> Result<()> {
        Err(error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// The entries of a leaf, or of a place without one.
pub(super) struct LeafOf<'a>(Option<&'a Node>, Source);

impl LeafOf<'_> {
    pub(super) fn entries(&self) -> Entries {
        self.0.map_or(self.1.entries(), |node| node.entries())
    }
}

/// Returns the runs that `a` has in the store and `b` does not have at the same place, without flags.
fn only_in(blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>) -> Vec<Mapped> {
    let (a, b) = (a.entries(), b.entries());
    let mut runs = Vec::new();
    for block in blocks {
        let index = (block % span(0)) as usize;
        let Entry { addr: word, birth } = a[index];
        if has_space(word) && place_of(word) != place_of(b[index].addr) {
            push_run(&mut runs, 0, Mapped { start: block, len: 1, addr: addr_of(word), birth });
        }
    }
    runs
}

struct SurveyTask<'a> {
    /// Whether the walk continues behind a damaged page. If not, it fails.
    goes_on: bool,
    visit: &'a mut dyn FnMut(WalkItem),
}

impl Task for SurveyTask<'_> {
    fn wants(&self, a: &Source, _: &Source) -> bool {
        !matches!(a, Source::Hole | Source::Device(_))
    }

    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>) {
        // A lost block of the base may have been the same one.
        let entries = b.entries();
        let is_lost_at = |block: u64| self.goes_on && is_lost(entries[(block % span(0)) as usize].addr);
        let mut at = blocks.start;
        while at < blocks.end {
            let is_lost = is_lost_at(at);
            let end = (at..blocks.end).find(|block| is_lost_at(*block) != is_lost).unwrap_or(blocks.end);
            if is_lost {
                (self.visit)(WalkItem::UnknownBase(at..end));
            }
            only_in(at..end, a, b).into_iter().for_each(|run| (self.visit)(WalkItem::Data(run)));
            at = end;
        }
    }

    fn end_of(&mut self, page: &Spot) {
        let Spot { level, first, pointer: Pointer { addr, birth, .. } } = *page;
        (self.visit)(WalkItem::Page { addr, birth, level, first });
    }

    fn failed(&mut self, side: Side, page: &Spot, error: Error) -> Result<()> {
        if !self.goes_on || !matches!(error.kind, ErrorKind::Damaged | ErrorKind::Io) {
            return Err(error);
        }
        let Spot { level, first, pointer } = *page;
        (self.visit)(match side {
            Side::A => WalkItem::Damaged { addr: pointer.addr, level, first, error },
            Side::B => WalkItem::UnknownBase(first..page.end()),
        });
        Ok(())
    }
}

struct DifferenceTask<'a> {
    /// The last range found, which the next one may extend.
    range: Range<u64>,
    visit: &'a mut dyn FnMut(Range<u64>),
}

impl DifferenceTask<'_> {
    fn add(&mut self, next: Range<u64>) {
        if self.range.end == next.start {
            self.range.end = next.end;
            return;
        }
        let last = std::mem::replace(&mut self.range, next);
        if !last.is_empty() {
            (self.visit)(last);
        }
    }
}

impl Task for DifferenceTask<'_> {
    fn wants(&self, _: &Source, _: &Source) -> bool {
        true
    }

    fn apart(&mut self, blocks: Range<u64>, _: &Source) {
        self.add(blocks);
    }

    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>) {
        let (a, b) = (a.entries(), b.entries());
        for block in blocks {
            let index = (block % span(0)) as usize;
            if a[index] != b[index] {
                self.add(block..block + 1);
            }
        }
    }
}

/// A place in both trees.
struct Pair {
    level: u8,
    first: u64,
    a: Source,
    b: Source,
    a_node: Option<Rc<Node>>,
    b_node: Option<Rc<Node>>,
    /// Index of the next child.
    next: usize,
}

impl Pair {
    fn new(level: u8, first: u64, a: Source, b: Source) -> Pair {
        Pair { level, first, a, b, a_node: None, b_node: None, next: 0 }
    }

    fn end(&self) -> u64 {
        self.first + span(self.level)
    }

    /// Returns the next child that does not end at or before `from`.
    fn next_child(&mut self, from: u64) -> Option<Pair> {
        let level = self.level - 1;
        let skipped = from.saturating_sub(self.first) / span(level);
        let index = self.next.max(usize::try_from(skipped).unwrap_or(usize::MAX));
        if index >= FANOUT {
            return None;
        }
        self.next = index + 1;
        let children = |node: &Option<Rc<Node>>, source: &Source| {
            source.child(level, index, node.as_ref().map_or(&[], |node| node.children()))
        };
        let (a, b) = (children(&self.a_node, &self.a), children(&self.b_node, &self.b));
        Some(Pair::new(level, self.first + index as u64 * span(level), a, b))
    }

    /// Returns whether nothing below can differ. `Damaged` if both refer to one page and describe it differently.
    fn is_same(&self, nodes: &Nodes) -> Result<bool> {
        let (Source::Page(a), Source::Page(b)) = (self.a, self.b) else {
            return Ok(self.a == self.b);
        };
        if a.addr == b.addr && a != b {
            let cause = format!("map page at block {}: one tree expects {a:x?}, another {b:x?}", a.addr);
            return Err(Error::damaged(nodes.file.name(), cause));
        }
        Ok(a == b)
    }

    /// Returns whether all of the place is a hole, or consecutive blocks of one device, on either side.
    fn has_no_page(&self) -> bool {
        let has_none = |side: &Source| matches!(side, Source::Hole | Source::Device(_));
        has_none(&self.a) && has_none(&self.b)
    }

    /// Returns the page of one side.
    fn page(&self, source: &Source) -> Option<Spot> {
        let Source::Page(pointer) = *source else { return None };
        Some(Spot { level: self.level, first: self.first, pointer })
    }

    async fn load(&mut self, nodes: &Nodes, task: &mut dyn Task) -> Result<()> {
        let load = async |page: Option<Spot>| match page {
            Some(page) => nodes.load_whole(&page).await.map(Some).map_err(|error| (page, error)),
            None => Ok(None),
        };
        let (a, b) = join(load(self.page(&self.a)), load(self.page(&self.b))).await;
        self.b_node = b.or_else(|(page, error)| task.failed(Side::B, &page, error).map(|()| None))?;
        self.a_node = a.or_else(|(page, error)| task.failed(Side::A, &page, error).map(|()| None))?;
        Ok(())
    }

    fn finish(&self, to: u64, task: &mut dyn Task) {
        if let Some(page) = self.page(&self.a)
            && self.end() <= to
        {
            task.end_of(&page);
        }
    }
}

/// Lets every ready task run first.
async fn give_way() {
    let mut gone_behind = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gone_behind, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(super) async fn compare(
    nodes: &Nodes,
    a: Option<&Root>,
    b: Option<&Root>,
    blocks: Range<u64>,
    budget: usize,
    task: &mut dyn Task,
) -> Result<u64> {
    // The walk begins one level above both roots, so that they are places like all others.
    let level = 1 + a.map_or(0, |root| root.level).max(b.map_or(0, |root| root.level));
    let mut way = vec![Pair::new(level, 0, Source::top(a, level), Source::top(b, level))];
    let mut asked = 0;
    while let Some(pair) = way.last_mut() {
        let Some(mut child) = pair.next_child(blocks.start) else {
            pair.finish(blocks.end, task);
            way.pop();
            continue;
        };
        if child.first >= blocks.end {
            return Ok(blocks.end);
        }
        let same = child.is_same(nodes).or_else(|error| {
            let page = child.page(&child.a).expect("two pages of one address");
            task.failed(Side::A, &page, error).map(|()| true)
        })?;
        if same || !task.wants(&child.a, &child.b) {
            continue;
        }
        if child.has_no_page() {
            task.apart(child.first.max(blocks.start)..child.end().min(blocks.end), &child.a);
            continue;
        }
        if asked >= budget && child.first > blocks.start {
            return Ok(child.first);
        }
        asked += 1;
        if asked % NODES_PER_TURN == 0 {
            give_way().await;
        }
        child.load(nodes, task).await?;
        if child.level > 0 {
            way.push(child);
            continue;
        }
        let within = child.first.max(blocks.start)..child.end().min(blocks.end);
        task.leaf(
            within,
            &LeafOf(child.a_node.as_deref(), child.a),
            &LeafOf(child.b_node.as_deref(), child.b),
        );
        child.finish(blocks.end, task);
    }
    Ok(blocks.end)
}
