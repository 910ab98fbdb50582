//! Parent/child graph of the states of a store's disks: running disks are the leaves, sealed states are between them
//! and the roots.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blk::{Error, Result};

use super::change::Op;
use super::key::USER_KINDS;
use super::layout::{BLOCK, Extent};
use super::remote::NodeGrants;
use super::table::{PartialBlock, Redirect, Table};
use super::tree::{LEVEL_MAX, Roots, span};
use super::view::{MergeOf, View};

/// The parent of a root: no node.
pub(super) const NONE: u64 = 0;

/// One state of one disk: running, or sealed by a take.
pub struct Node {
    pub id: u64,
    pub parent: Cell<u64>,
    /// The generation that ended with the take that sealed the node; for a node dropped while it ran, the generation of
    /// the drop; 0 while it runs.
    pub sealed: Cell<u64>,
    pub size_blocks: Cell<u64>,
    /// Device of the source that blocks of the node may be on; 0: none.
    pub device: u8,
    /// Nothing refers to the node. Its space is given back when it has at most one child.
    pub dropped: Cell<bool>,
    /// Of a dropped node: blocks below this one have been given back, or belong to its child now.
    pub cursor: Cell<u64>,
    /// Blocks born after this generation belong to this node, and not to its ancestors.
    pub since: Cell<u64>,
    /// Redirects since the running node's view was frozen.
    pub active: RefCell<Table>,
    pub view: RefCell<Rc<View>>,
    /// Pages that a merge of `active` may write.
    pages: Cell<u64>,
    /// What other cores may do with the node's blocks.
    pub(super) grants: NodeGrants,
}

impl Node {
    pub fn new(id: u64, parent: u64, size_blocks: u64, view: Rc<View>) -> Node {
        Node {
            id,
            parent: Cell::new(parent),
            sealed: Cell::new(0),
            size_blocks: Cell::new(size_blocks),
            device: 0,
            dropped: Cell::new(false),
            cursor: Cell::new(0),
            since: Cell::new(0),
            active: RefCell::default(),
            view: RefCell::new(view),
            pages: Cell::new(0),
            grants: NodeGrants::default(),
        }
    }

    /// Returns the node with blocks that may be on a device.
    pub fn on(self, device: u8) -> Node {
        Node { device, ..self }
    }

    pub fn is_running(&self) -> bool {
        self.sealed.get() == 0
    }

    fn state(&self) -> NodeState {
        match (self.dropped.get(), self.is_running()) {
            (true, _) => NodeState::Dropped,
            (false, true) => NodeState::Running,
            (false, false) => NodeState::Sealed,
        }
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_blocks.get() * BLOCK
    }

    pub fn current_view(&self) -> Rc<View> {
        self.view.borrow().clone()
    }

    /// Moves the redirects so far into a view: O(1), regardless of their number.
    pub fn freeze(&self, stamp: u64) -> Rc<View> {
        let table = self.active.take();
        if !table.is_empty() {
            let (below, pages) = (self.current_view(), self.pages.take());
            let merge = MergeOf { node: self.id, parent: self.parent.get(), pages };
            *self.view.borrow_mut() = View::pending(table, below, stamp, merge);
        }
        self.current_view()
    }

    /// Returns the trees if a checkpoint has merged all of the node.
    pub fn roots(&self) -> Option<Roots> {
        self.current_view().roots()
    }

    /// Puts a run into the table of the running node; `part` if it is a block that was written in part.
    pub fn put(
        &self,
        start: u64,
        redirect: Redirect,
        part: Option<PartialBlock>,
        displaced: &mut Vec<Extent>,
    ) -> TableGrowth {
        let mut active = self.active.borrow_mut();
        let (runs, leaves, size_blocks) = (active.len() as isize, active.leaves(), self.size_blocks.get());
        match part {
            Some(part) => active.insert_partial(start, redirect, part, displaced),
            None => active.insert(start, redirect, displaced),
        }
        let pages =
            merge_pages(active.leaves(), size_blocks).saturating_sub(merge_pages(leaves, size_blocks));
        self.pages.update(|before| before + pages);
        TableGrowth { begins: runs == 0, runs: active.len() as isize - runs, pages }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Running,
    Sealed,
    Dropped,
}

/// Most blocks of a disk. Records and the map's entries have 48 bits for a block: 1 EiB.
pub(super) const DISK_BLOCKS_MAX: u64 = 1 << 48;

/// Greatest node number. Records have 48 bits for it. Numbers count up and are never reused: at a thousand a second
/// they last 9,000 years.
const NODES_MAX: u64 = (1 << 48) - 1;

pub(super) fn check_size(blocks: u64) -> Result<(), String> {
    match blocks <= DISK_BLOCKS_MAX {
        true => Ok(()),
        false => Err(format!("a disk of {blocks} blocks, expected at most {DISK_BLOCKS_MAX}")),
    }
}

/// Growth of a table.
pub struct TableGrowth {
    /// The table was empty.
    pub begins: bool,
    pub runs: isize,
    /// Additional pages that a merge of the table may write.
    pub pages: u64,
}

/// Returns the most pages that a merge into `leaves` leaves of a map of this size writes: the leaves, and on each level
/// above as many pages, or all that the level has.
fn merge_pages(leaves: u64, size_blocks: u64) -> u64 {
    let above = (1..=LEVEL_MAX).map(|level| leaves.min(size_blocks.div_ceil(span(level)).max(1)));
    leaves + above.sum::<u64>()
}

/// All nodes of a store.
#[derive(Default)]
pub(super) struct Lineage {
    nodes: BTreeMap<u64, Rc<Node>>,
    children: BTreeMap<u64, BTreeSet<u64>>,
    dropped: BTreeSet<u64>,
    /// The nodes among these that have been given back in part.
    begun: BTreeSet<u64>,
    /// Number of nodes over each source, dropped ones included.
    over: BTreeMap<u8, u64>,
    /// Nodes that were removed, with the node that their children descend from now: for views that were frozen before.
    forward: BTreeMap<u64, u64>,
}

impl Lineage {
    pub(super) fn add(&mut self, node: Node) -> Rc<Node> {
        let node = Rc::new(node);
        self.children.entry(node.parent.get()).or_default().insert(node.id);
        self.nodes.insert(node.id, node.clone());
        *self.over.entry(node.device).or_default() += 1;
        self.settle_since(&node);
        if node.dropped.get() {
            self.dropped.insert(node.id);
        }
        self.reclaimed_to(node.id, node.cursor.get());
        node
    }

    /// Notes that the blocks of a dropped node below `cursor` have been given back.
    pub(super) fn reclaimed_to(&mut self, id: u64, cursor: u64) {
        if let Some(node) = self.nodes.get(&id) {
            node.cursor.set(cursor);
            if cursor > 0 {
                self.begun.insert(id);
            }
        }
    }

    pub(super) fn drop_node(&mut self, node: &Rc<Node>) {
        node.dropped.set(true);
        self.dropped.insert(node.id);
    }

    /// Returns whether a node is over the source, dropped ones included.
    pub(super) fn is_over(&self, device: u8) -> bool {
        self.over.get(&device).is_some_and(|nodes| *nodes > 0)
    }

    pub(super) fn dropped(&self) -> Vec<u64> {
        self.dropped.iter().copied().collect()
    }

    pub(super) fn get(&self, id: u64) -> Option<Rc<Node>> {
        self.nodes.get(&id).cloned()
    }

    pub(super) fn known(&self, id: u64, place: &str) -> Result<Rc<Node>> {
        self.get(id)
            .ok_or_else(|| Error::damaged(place, format!("it speaks of node {id}, which is not there")))
    }

    /// Returns the first node with a number of at least `id`.
    pub(super) fn next(&self, id: u64) -> Option<Rc<Node>> {
        self.nodes.range(id..).next().map(|(_, node)| node.clone())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Rc<Node>> {
        self.nodes.values()
    }

    pub(super) fn reparent(&mut self, node: &Rc<Node>, parent: u64) {
        if let Some(siblings) = self.children.get_mut(&node.parent.get()) {
            siblings.remove(&node.id);
        }
        self.children.entry(parent).or_default().insert(node.id);
        node.parent.set(parent);
        self.settle_since(node);
    }

    /// Removes a node that has been given back: its only child becomes a child of its parent.
    pub(super) fn remove(&mut self, id: u64) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.dropped.remove(&id);
        self.begun.remove(&id);
        self.over.entry(node.device).and_modify(|nodes| *nodes -= 1);
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

    /// Clears `forward`, once every view that was frozen before the last removal is merged.
    pub(super) fn forget_removed(&mut self) {
        self.forward.clear();
    }

    /// Checks that all of `ops` can be applied, one after the other: a change is made whole or not at all.
    pub(super) fn check(&self, ops: &[Op]) -> Result<(), String> {
        let mut after: BTreeMap<u64, NodeState> = BTreeMap::new();
        for op in ops {
            let is =
                |id: u64| after.get(&id).copied().or_else(|| self.nodes.get(&id).map(|node| node.state()));
            let expect = |id: u64, fits: fn(Option<NodeState>) -> bool| match is(id) {
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
                    (node, NodeState::Running)
                }
                Op::CreateOver { node, size_blocks, .. } => {
                    expect_new(node)?;
                    check_size(size_blocks)?;
                    (node, NodeState::Running)
                }
                Op::Take { running, sealed } => {
                    expect(running, |found| found == Some(NodeState::Running))?;
                    expect_new(sealed)?;
                    (sealed, NodeState::Sealed)
                }
                Op::Branch { from, node } => {
                    expect(from, |found| found == Some(NodeState::Sealed))?;
                    expect_new(node)?;
                    (node, NodeState::Running)
                }
                Op::Drop { node } => {
                    expect(node, |found| found.is_some_and(|state| state != NodeState::Dropped))?;
                    (node, NodeState::Dropped)
                }
                Op::Resize { node, size_blocks } => {
                    expect(node, |found| found == Some(NodeState::Running))?;
                    check_size(size_blocks)?;
                    continue;
                }
                Op::Put { key, .. } | Op::Delete { key } if key.kind < USER_KINDS => {
                    return Err(format!("{op:?}: items of this kind are the store's own"));
                }
                Op::Put { .. } | Op::Delete { .. } | Op::Abort { .. } => continue,
            };
            after.insert(id, state);
        }
        Ok(())
    }

    /// Derives `since` of all nodes after a load, in which parents and children come in any order.
    pub(super) fn settle(&self) {
        for node in self.nodes.values() {
            self.settle_since(node);
        }
    }

    fn settle_since(&self, node: &Node) {
        let parent = self.nodes.get(&node.parent.get());
        node.since.set(parent.map_or(0, |parent| parent.sealed.get()));
    }

    /// Returns whether space born at `birth`, shown at `blocks` by a state that descends from `parent`, is used by no
    /// other state. While the parent is being given back, its blocks below the cursor belong to its child.
    pub(super) fn is_exclusive(&self, parent: u64, birth: u64, blocks: &Range<u64>) -> bool {
        let parent = self.forward.get(&parent).copied().unwrap_or(parent);
        let Some(parent) = self.nodes.get(&parent) else { return true };
        birth > parent.sealed.get()
            || (parent.dropped.get() && blocks.end <= parent.cursor.get() && birth > parent.since.get())
    }

    pub(super) fn children(&self, id: u64) -> Vec<u64> {
        self.children.get(&id).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    pub(super) fn is_reclaimable(&self, id: u64) -> bool {
        self.dropped.contains(&id) && self.children.get(&id).is_none_or(|set| set.len() <= 1)
    }

    /// Returns the next node whose space can be given back; a node that has been given back in part comes first. While
    /// a node is half given back its neighbours wait, because they would be compared with an incomplete tree.
    pub(super) fn next_to_reclaim(&self, held_back: &BTreeSet<u64>) -> Option<u64> {
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
