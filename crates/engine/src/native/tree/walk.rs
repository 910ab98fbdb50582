//! Two trees side by side, piece by piece: what one has and the other has not, where they differ, and all of one.
//!
//! A node is reported when its end is reached. So over consecutive calls each is reported once, whatever the other
//! tree becomes between them behind the block that has been reached.

use std::ops::Range;
use std::rc::Rc;

use blk::{Error, ErrorKind, Result};
use futures_util::future::join;

use super::cache::Nodes;
use super::entry::*;
use super::node::{Entries, NO_ENTRIES, Node};

/// Something a tree refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// Never a hole, and never over the end of a leaf.
    Data(Mapped),
    Node {
        addr: u64,
        birth: u64,
        level: u8,
    },
}

/// What `old` refers to within blocks `from..to` and `new` does not at the same place: data, and nodes that end in
/// `from + 1..=to`, each after all below it. `u64::MAX` is the end of the tree. Subtrees that both share are not read.
///
/// Stops on a leaf's boundary when about `budget` nodes of each side have been asked for, but not before it has come
/// further. Answers the block up to which all is done: `to` at the end. Damaged as `Nodes::lookup`.
pub async fn gone(
    nodes: &Nodes,
    old: Option<&Root>,
    new: Option<&Root>,
    from: u64,
    to: u64,
    budget: usize,
    visit: &mut dyn FnMut(Gone),
) -> Result<u64> {
    compare(nodes, old, new, from..to, budget, &mut GoneTask { visit }).await
}

/// The maximal ranges within `from..to` in which two trees differ, in order. Budget and answer as of `gone`; a range is cut
/// where a call stops.
pub async fn differences(
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

/// All that a tree refers to, each node after what is below it. A page that cannot be read or is damaged goes to
/// `damaged` and counts as a node without content.
pub async fn survey(
    nodes: &Nodes,
    root: Option<&Root>,
    visit: &mut dyn FnMut(Gone),
    damaged: &mut dyn FnMut(Error),
) -> Result<()> {
    let mut task = SurveyTask { inner: GoneTask { visit }, damaged };
    compare(nodes, root, None, 0..u64::MAX, usize::MAX, &mut task).await.map(|_| ())
}

/// What is done with two trees side by side, `a` and `b`.
trait Task {
    /// Whether the place, at which they are not the same, is of interest.
    fn wants(&self, a: &Source, b: &Source) -> bool;
    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>);
    /// All below a page of `a` is done.
    fn end_of(&mut self, _pointer: &Pointer, _level: u8) {}
    /// An error makes the walk fail; otherwise it goes on behind the page.
    fn failed(&mut self, error: Error) -> Result<()> {
        Err(error)
    }
}

/// A leaf's entries; holes where there is none.
struct LeafOf<'a>(Option<&'a Node>);

impl LeafOf<'_> {
    fn entries(&self) -> Entries {
        self.0.map_or(NO_ENTRIES, |node| node.entries())
    }
}

struct GoneTask<'a> {
    visit: &'a mut dyn FnMut(Gone),
}

impl Task for GoneTask<'_> {
    fn wants(&self, a: &Source, _: &Source) -> bool {
        *a != Source::Hole
    }

    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>) {
        let (old, new) = (a.entries(), b.entries());
        let mut runs = Vec::new();
        for block in blocks {
            let index = (block % span(0)) as usize;
            let Entry { addr, birth } = old[index];
            if addr != 0 && addr != new[index].addr {
                push_run(&mut runs, 0, Mapped { start: block, len: 1, addr, birth });
            }
        }
        runs.into_iter().for_each(|run| (self.visit)(Gone::Data(run)));
    }

    fn end_of(&mut self, pointer: &Pointer, level: u8) {
        (self.visit)(Gone::Node { addr: pointer.addr, birth: pointer.birth, level });
    }
}

struct SurveyTask<'a> {
    inner: GoneTask<'a>,
    damaged: &'a mut dyn FnMut(Error),
}

impl Task for SurveyTask<'_> {
    fn wants(&self, a: &Source, b: &Source) -> bool {
        self.inner.wants(a, b)
    }

    fn leaf(&mut self, blocks: Range<u64>, a: &LeafOf<'_>, b: &LeafOf<'_>) {
        self.inner.leaf(blocks, a, b);
    }

    fn end_of(&mut self, pointer: &Pointer, level: u8) {
        self.inner.end_of(pointer, level);
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        if !matches!(error.kind, ErrorKind::Damaged | ErrorKind::Io) {
            return Err(error);
        }
        (self.damaged)(error);
        Ok(())
    }
}

struct DifferenceTask<'a> {
    /// The last range found, which the next one may continue.
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

/// A place of both trees.
struct Pair {
    level: u8,
    first: u64,
    a: Source,
    b: Source,
    a_node: Option<Rc<Node>>,
    b_node: Option<Rc<Node>>,
    /// Index of the child that is next.
    next: usize,
}

impl Pair {
    fn new(level: u8, first: u64, a: Source, b: Source) -> Pair {
        Pair { level, first, a, b, a_node: None, b_node: None, next: 0 }
    }

    fn end(&self) -> u64 {
        self.first + span(self.level)
    }

    /// The next child that does not end at or before `from`.
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

    /// Nothing below can differ. Damaged when both name one page and describe it differently.
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

    async fn load(&mut self, nodes: &Nodes, task: &mut dyn Task) -> Result<()> {
        let (level, first) = (self.level, self.first);
        let load = async |source: Source| match source {
            Source::Page(pointer) => nodes.load(&Spot { level, first, pointer }).await.map(Some),
            Source::Hole | Source::Above(_) => Ok(None),
        };
        let (a, b) = join(load(self.a), load(self.b)).await;
        self.a_node = a.or_else(|error| task.failed(error).map(|()| None))?;
        self.b_node = b.or_else(|error| task.failed(error).map(|()| None))?;
        Ok(())
    }

    fn finish(&self, to: u64, task: &mut dyn Task) {
        if let Source::Page(pointer) = &self.a
            && self.end() <= to
        {
            task.end_of(pointer, self.level);
        }
    }
}

async fn compare(
    nodes: &Nodes,
    a: Option<&Root>,
    b: Option<&Root>,
    blocks: Range<u64>,
    budget: usize,
    task: &mut dyn Task,
) -> Result<u64> {
    // One level over both roots, so that these are places like all others.
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
        if child.is_same(nodes)? || !task.wants(&child.a, &child.b) {
            continue;
        }
        if asked >= budget && child.first > blocks.start {
            return Ok(child.first);
        }
        asked += 1;
        child.load(nodes, task).await?;
        if child.level > 0 {
            way.push(child);
            continue;
        }
        let within = child.first.max(blocks.start)..child.end().min(blocks.end);
        task.leaf(within, &LeafOf(child.a_node.as_deref()), &LeafOf(child.b_node.as_deref()));
        child.finish(blocks.end, task);
    }
    Ok(blocks.end)
}
