//! Who descends from whom: running disks are the leaves, sealed states are between them and the roots.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blk::{Error, Result};

use super::change::Op;
use super::layout::{BLOCK, Extent};
use super::stored::USER_KINDS;
use super::table::{Held, Table};
use super::tree::{LEVEL_MAX, Root, span};
use super::view::View;

/// No node: a lineage begins there.
pub const NONE: u64 = 0;

/// One state of one disk: running, or sealed by a take.
pub struct Node {
    pub id: u64,
    pub parent: Cell<u64>,
    /// The generation that ended with the take that sealed it; the one in which it was dropped, if it still ran then; 0
    /// while it runs.
    pub sealed: Cell<u64>,
    pub size_blocks: Cell<u64>,
    /// Nobody names it any more; its space comes back when at most one other rests on it.
    pub dropped: Cell<bool>,
    /// Of a dropped node: what lies below this block has been given back, or belongs to its child now.
    pub cursor: Cell<u64>,
    /// What was born after this generation belongs to this node alone, and not to those it descends from.
    pub since: Cell<u64>,
    /// Redirects since the running node's view was frozen.
    pub active: RefCell<Table>,
    pub view: RefCell<Rc<View>>,
    /// Pages that merging `active` may write.
    pages: Cell<u64>,
}

impl Node {
    pub fn new(id: u64, parent: u64, size_blocks: u64, view: Rc<View>) -> Node {
        Node {
            id,
            parent: Cell::new(parent),
            sealed: Cell::new(0),
            size_blocks: Cell::new(size_blocks),
            dropped: Cell::new(false),
            cursor: Cell::new(0),
            since: Cell::new(0),
            active: RefCell::default(),
            view: RefCell::new(view),
            pages: Cell::new(0),
        }
    }

    pub fn is_running(&self) -> bool {
        self.sealed.get() == 0
    }

    fn state(&self) -> State {
        match (self.dropped.get(), self.is_running()) {
            (true, _) => State::Dropped,
            (false, true) => State::Running,
            (false, false) => State::Sealed,
        }
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_blocks.get() * BLOCK
    }

    pub fn current_view(&self) -> Rc<View> {
        self.view.borrow().clone()
    }

    /// Puts what was redirected so far into a view: O(1), whatever it holds.
    pub fn freeze(&self, stamp: u64) -> Rc<View> {
        let table = self.active.take();
        if !table.is_empty() {
            let (below, pages) = (self.current_view(), self.pages.take());
            *self.view.borrow_mut() = View::pending(table, below, stamp, (self.parent.get(), pages));
        }
        self.current_view()
    }

    /// The tree, where a checkpoint has merged all of it.
    pub fn root(&self) -> Option<Option<Root>> {
        self.current_view().root()
    }

    pub fn put(&self, start: u64, held: Held, displaced: &mut Vec<Extent>) -> Grown {
        let mut active = self.active.borrow_mut();
        let (runs, leaves, size_blocks) = (active.len() as isize, active.leaves(), self.size_blocks.get());
        active.insert(start, held, displaced);
        let pages =
            merge_pages(active.leaves(), size_blocks).saturating_sub(merge_pages(leaves, size_blocks));
        self.pages.update(|before| before + pages);
        Grown { begins: runs == 0, runs: active.len() as isize - runs, pages }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Sealed,
    Dropped,
}

/// Records and the map's entries have 48 bits for a block of a disk: 1 EiB.
pub const DISK_BLOCKS_MAX: u64 = 1 << 48;

/// Records have 48 bits for a node's number. Numbers count up and never come again: a thousand a second last 9,000 years.
const NODES_MAX: u64 = (1 << 48) - 1;

pub fn check_size(blocks: u64) -> Result<(), String> {
    match blocks <= DISK_BLOCKS_MAX {
        true => Ok(()),
        false => Err(format!("a disk of {blocks} blocks, expected at most {DISK_BLOCKS_MAX}")),
    }
}

/// By how much a table has grown.
pub struct Grown {
    /// It was empty.
    pub begins: bool,
    pub runs: isize,
    /// Pages that merging it may write in addition.
    pub pages: u64,
}

/// Pages that a merge into `leaves` leaves of a map of this size writes at most: those, and of each level above as many, or
/// all that there are.
fn merge_pages(leaves: u64, size_blocks: u64) -> u64 {
    let above = (1..=LEVEL_MAX).map(|level| leaves.min(size_blocks.div_ceil(span(level)).max(1)));
    leaves + above.sum::<u64>()
}

/// All nodes of a store.
#[derive(Default)]
pub struct Lineage {
    nodes: BTreeMap<u64, Rc<Node>>,
    children: BTreeMap<u64, BTreeSet<u64>>,
    dropped: BTreeSet<u64>,
    /// Of these, those that have been given back in part.
    begun: BTreeSet<u64>,
    /// Nodes given back, and what their children descend from now: for views that were frozen before.
    forward: BTreeMap<u64, u64>,
}

impl Lineage {
    pub fn add(&mut self, node: Node) -> Rc<Node> {
        let node = Rc::new(node);
        self.children.entry(node.parent.get()).or_default().insert(node.id);
        self.nodes.insert(node.id, node.clone());
        self.settle_since(&node);
        if node.dropped.get() {
            self.dropped.insert(node.id);
        }
        self.reclaimed_to(node.id, node.cursor.get());
        node
    }

    /// What of a dropped node lies below `cursor` has been given back.
    pub fn reclaimed_to(&mut self, id: u64, cursor: u64) {
        if let Some(node) = self.nodes.get(&id) {
            node.cursor.set(cursor);
            if cursor > 0 {
                self.begun.insert(id);
            }
        }
    }

    pub fn drop_node(&mut self, node: &Rc<Node>) {
        node.dropped.set(true);
        self.dropped.insert(node.id);
    }

    pub fn dropped(&self) -> Vec<u64> {
        self.dropped.iter().copied().collect()
    }

    pub fn get(&self, id: u64) -> Option<Rc<Node>> {
        self.nodes.get(&id).cloned()
    }

    pub fn known(&self, id: u64, place: &str) -> Result<Rc<Node>> {
        self.get(id)
            .ok_or_else(|| Error::damaged(place, format!("it speaks of node {id}, which is not there")))
    }

    /// The first of those from `id` on.
    pub fn next(&self, id: u64) -> Option<Rc<Node>> {
        self.nodes.range(id..).next().map(|(_, node)| node.clone())
    }

    pub fn all(&self) -> impl Iterator<Item = &Rc<Node>> {
        self.nodes.values()
    }

    pub fn reparent(&mut self, node: &Rc<Node>, parent: u64) {
        if let Some(siblings) = self.children.get_mut(&node.parent.get()) {
            siblings.remove(&node.id);
        }
        self.children.entry(parent).or_default().insert(node.id);
        node.parent.set(parent);
        self.settle_since(node);
    }

    /// The node has been given back: its only child comes to rest on its parent.
    pub fn remove(&mut self, id: u64) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.dropped.remove(&id);
        self.begun.remove(&id);
        for child in self.children.remove(&id).unwrap_or_default() {
            let child = self.nodes[&child].clone();
            self.reparent(&child, node.parent.get());
        }
        if let Some(siblings) = self.children.get_mut(&node.parent.get()) {
            siblings.remove(&id);
        }
        self.forward.values_mut().filter(|to| **to == id).for_each(|to| *to = node.parent.get());
        self.forward.insert(id, node.parent.get());
    }

    /// Every view that was frozen before the last removal is merged.
    pub fn forget_removed(&mut self) {
        self.forward.clear();
    }

    /// Whether all of `ops` can become true, one after the other: a change happens whole or not at all.
    pub fn check(&self, ops: &[Op]) -> Result<(), String> {
        let mut after: BTreeMap<u64, State> = BTreeMap::new();
        for op in ops {
            let is =
                |id: u64| after.get(&id).copied().or_else(|| self.nodes.get(&id).map(|node| node.state()));
            let expect = |id: u64, fits: fn(Option<State>) -> bool| match is(id) {
                found if fits(found) => Ok(()),
                found => Err(format!("{op:?}: node {id} is {found:?}")),
            };
            let expect_new = |id: u64| match id <= NODES_MAX {
                true => expect(id, |found| found.is_none()),
                false => Err(format!("{op:?}: node {id}, expected at most {NODES_MAX}")),
            };
            let (id, state) = match *op {
                Op::Create { node, size_blocks } => {
                    expect_new(node)?;
                    check_size(size_blocks)?;
                    (node, State::Running)
                }
                Op::Take { running, sealed } => {
                    expect(running, |found| found == Some(State::Running))?;
                    expect_new(sealed)?;
                    (sealed, State::Sealed)
                }
                Op::Branch { from, node } => {
                    expect(from, |found| found == Some(State::Sealed))?;
                    expect_new(node)?;
                    (node, State::Running)
                }
                Op::Drop { node } => {
                    expect(node, |found| found.is_some_and(|state| state != State::Dropped))?;
                    (node, State::Dropped)
                }
                Op::Resize { node, size_blocks } => {
                    expect(node, |found| found == Some(State::Running))?;
                    check_size(size_blocks)?;
                    continue;
                }
                Op::Put { key, .. } | Op::Delete { key } if key.kind < USER_KINDS => {
                    return Err(format!("{op:?}: items of this kind are the store's own"));
                }
                Op::Put { .. } | Op::Delete { .. } | Op::Void { .. } => continue,
            };
            after.insert(id, state);
        }
        Ok(())
    }

    /// Derives `since` of all nodes: after a load, when parents and children came in any order.
    pub fn settle(&self) {
        for node in self.nodes.values() {
            self.settle_since(node);
        }
    }

    fn settle_since(&self, node: &Node) {
        let parent = self.nodes.get(&node.parent.get());
        node.since.set(parent.map_or(0, |parent| parent.sealed.get()));
    }

    /// Whether space born at `birth`, shown at `blocks` by a state that descends from `parent`, is of no use to any
    /// other. Where the parent is being given back, what lies below its cursor is its child's already.
    pub fn is_exclusive(&self, parent: u64, birth: u64, blocks: &Range<u64>) -> bool {
        let parent = self.forward.get(&parent).copied().unwrap_or(parent);
        let Some(parent) = self.nodes.get(&parent) else { return true };
        birth > parent.sealed.get()
            || (parent.dropped.get() && blocks.end <= parent.cursor.get() && birth > parent.since.get())
    }

    pub fn children(&self, id: u64) -> Vec<u64> {
        self.children.get(&id).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    pub fn is_reclaimable(&self, id: u64) -> bool {
        self.dropped.contains(&id) && self.children.get(&id).is_none_or(|set| set.len() <= 1)
    }

    /// The next node whose space can come back: one that has been given back in part before others. While a node is half
    /// given back its neighbours wait: they would be compared with what is not whole.
    pub fn next_to_reclaim(&self, held_back: &BTreeSet<u64>) -> Option<u64> {
        let ready = |id: &u64| self.is_reclaimable(*id) && !held_back.contains(id);
        self.begun.iter().copied().find(ready).or_else(|| {
            self.dropped.iter().copied().filter(ready).find(|id| {
                let parent = self.nodes[id].parent.get();
                let mut neighbours = self.children(*id).into_iter().chain([parent]);
                !neighbours.any(|near| self.begun.contains(&near))
            })
        })
    }
}
