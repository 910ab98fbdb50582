//! One store: all disks of a datastore, their space, their journal. Every change of it begins here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::{Admission, Signal, TaskMutex};
use blk::{Env, Error, ErrorKind, File, Result};

use super::catalogue::Catalogue;
use super::change::{Key, Op, encode};
use super::journal::{Journal, Record};
use super::layout::{BLOCK, Extent, Geometry};
use super::lineage::{Lineage, NONE, Node};
use super::space::Space;
use super::stored::Stored;
use super::superblock::Superblock;
use super::table::Held;
use super::tree::Nodes;
use super::view::{Scratch, View, find_over};
use crate::options::Defects;

/// Changes are one record: a take of a few hundred disks, each with two nodes, and its name.
const CHANGE_BYTES_MAX: usize = 128 << 10;

/// The reserve follows the runs in memory in steps.
const RESERVE_STEP_RUNS: usize = 64;

/// Blocks of a discard whose map is looked at first, to leave out what has no space: 64 MiB.
const LOOKED_UP_MAX: u64 = (64 << 20) / BLOCK;

#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Pages of trees kept in memory.
    pub map_cache_bytes: usize,
    /// Redirects in memory before a checkpoint merges them: about 64 bytes each, twice while one is under way.
    pub pending_runs_max: usize,
    /// Tables over a tree before a checkpoint merges them: what a lookup may have to ask one by one.
    pub pending_depth_max: usize,
    /// An unflushed redirect waits at most this long, and this many bytes, for the store's own flush.
    pub flush_us: u64,
    pub flush_bytes: u64,
    /// Set aside for the catalogue and the interior pages of a checkpoint.
    pub reserve_blocks: u64,
    /// Pages of trees that one step of giving space back reads on each side.
    pub reclaim_pages: usize,
    /// While guests are active the giving back rests this many times as long as a step took.
    pub reclaim_rest: u64,
    pub defects: Defects,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            map_cache_bytes: 64 << 20,
            pending_runs_max: 256 << 10,
            pending_depth_max: 8,
            flush_us: 1_000_000,
            flush_bytes: 64 << 20,
            reserve_blocks: 1024,
            reclaim_pages: 256,
            reclaim_rest: 2,
            defects: Defects::default(),
        }
    }
}

pub struct Store {
    pub env: Env,
    pub options: StoreOptions,
    pub(super) file: File,
    pub(super) geometry: Geometry,
    pub(super) nodes: Nodes,
    pub(super) space: Rc<Space>,
    pub(super) journal: Rc<Journal>,
    pub(super) lineage: RefCell<Lineage>,
    /// Ends with the next take.
    pub(super) generation: Cell<u64>,
    pub(super) next_node: Cell<u64>,
    /// Items and nodes changed since the last freeze.
    pub(super) changed_items: RefCell<BTreeMap<Key, Option<Vec<u8>>>>,
    pub(super) changed_nodes: RefCell<BTreeSet<u64>>,
    /// As of the last checkpoint, and the items frozen for the one under way; whoever has the turn takes it out.
    pub(super) catalogue: RefCell<Catalogue>,
    pub(super) stored: RefCell<Stored>,
    pub(super) superblock: Cell<Superblock>,
    pub(super) checkpoint_turn: TaskMutex,
    /// Placed for data that is on its way: no record speaks of it yet.
    pub(super) unpublished: RefCell<Vec<Extent>>,
    /// Settled space that checkpoints found free and none has recorded yet.
    pub(super) freed: RefCell<Vec<Extent>>,
    /// Reads and writes of all disks: space is used again only when those that may still look at it have ended.
    pub(super) reads: Rc<Admission>,
    pub(super) writes: Rc<Admission>,
    /// Something to do for the one who tends the store.
    pub(super) work: Rc<Signal>,
    /// Runs in all tables, merged ones apart.
    pub(super) pending: Cell<usize>,
    /// A write found no space: a checkpoint may have some to give.
    pub(super) starved: Cell<bool>,
    /// Tables over a tree, of the deepest node.
    pub(super) deepest: Cell<usize>,
    /// A checkpoint is durable, or something was given back.
    pub(super) progress: Signal,
    pub(super) checkpoints: Cell<u64>,
    /// The node whose space is being given back, from the first step to the last.
    pub(super) reclaiming: Cell<u64>,
    pub(super) reclaimed_blocks: Cell<u64>,
    /// Dropped nodes whose space stays for now: their jobs are paused.
    pub(super) held_back: RefCell<BTreeSet<u64>>,
    /// Guest requests completed, over all disks: whether guests are active.
    pub(super) requests: Cell<u64>,
    pub(super) closed: Cell<bool>,
    pub(super) ending: Signal,
    /// Somebody tends the store: what he does may be under way.
    pub(super) tended: Cell<bool>,
    /// Found by work that went on without what was damaged.
    pub(super) damage: RefCell<Vec<Error>>,
    /// Why nothing more is written.
    broken: RefCell<Option<Error>>,
}

/// What `open` and `recover` have found; the rest of a store starts empty.
pub(super) struct Parts {
    pub file: File,
    pub geometry: Geometry,
    pub nodes: Nodes,
    pub space: Rc<Space>,
    pub journal: Rc<Journal>,
    pub lineage: Lineage,
    pub catalogue: Catalogue,
    pub stored: Stored,
    pub superblock: Superblock,
}

impl Store {
    pub(super) fn assemble(env: Env, options: StoreOptions, parts: Parts) -> Rc<Store> {
        let superblock = parts.superblock;
        let reclaiming = parts.stored.half_reclaimed();
        Rc::new(Store {
            env,
            options,
            file: parts.file,
            geometry: parts.geometry,
            nodes: parts.nodes,
            space: parts.space,
            journal: parts.journal,
            lineage: RefCell::new(parts.lineage),
            generation: Cell::new(superblock.generation),
            next_node: Cell::new(superblock.next_node),
            changed_items: RefCell::default(),
            changed_nodes: RefCell::default(),
            catalogue: RefCell::new(parts.catalogue),
            stored: RefCell::new(parts.stored),
            superblock: Cell::new(superblock),
            checkpoint_turn: TaskMutex::default(),
            unpublished: RefCell::default(),
            freed: RefCell::default(),
            reads: Rc::default(),
            writes: Rc::default(),
            work: Rc::default(),
            pending: Cell::new(0),
            starved: Cell::new(false),
            deepest: Cell::new(0),
            progress: Signal::default(),
            checkpoints: Cell::new(0),
            reclaiming: Cell::new(reclaiming),
            reclaimed_blocks: Cell::new(0),
            held_back: RefCell::default(),
            requests: Cell::new(0),
            closed: Cell::new(false),
            ending: Signal::default(),
            tended: Cell::new(false),
            damage: RefCell::default(),
            broken: RefCell::new(None),
        })
    }

    /// For messages: the path of the store's file.
    pub fn path(&self) -> &str {
        self.file.name()
    }

    pub fn id(&self) -> u64 {
        self.geometry.store_id
    }

    /// Why nothing is written any more; reads go on.
    pub fn broken(&self) -> Option<Error> {
        self.broken.borrow().clone()
    }

    pub(super) fn break_down(&self, cause: &Error) {
        self.broken.borrow_mut().get_or_insert_with(|| cause.clone());
        self.work.notify();
        self.progress.notify();
    }

    pub(super) fn refuse_when_broken(&self) -> Result<()> {
        match &*self.broken.borrow() {
            Some(e) => Err(Error::refused(self.path(), format!("it is read-only since: {e}"))),
            None => Ok(()),
        }
    }

    pub fn node(&self, id: u64) -> Result<Rc<Node>> {
        self.lineage.borrow().known(id, self.path())
    }

    pub fn new_node_id(&self) -> u64 {
        let id = self.next_node.get();
        self.next_node.set(id + 1);
        id
    }

    /// Items of a kind, as they are now.
    pub async fn items(&self, kind: u8) -> Vec<(Key, Vec<u8>)> {
        let _turn = self.checkpoint_turn.lock().await;
        let mut found: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        for (key, value) in self.catalogue.borrow().items.iter().filter(|(key, _)| key.kind == kind) {
            found.insert(*key, value.clone());
        }
        for (key, value) in self.changed_items.borrow().iter().filter(|(key, _)| key.kind == kind) {
            match value {
                Some(value) => found.insert(*key, value.clone()),
                None => found.remove(key),
            };
        }
        found.into_iter().collect()
    }

    /// Makes `ops` true in memory at once, all of them, and durable with the next flush. No await: the swap of a take.
    pub fn change(&self, ops: &[Op]) -> Result<u64> {
        self.refuse_when_broken()?;
        let bytes = encode(ops);
        if bytes.len() > CHANGE_BYTES_MAX {
            let cause = format!("a change of {} bytes, at most {CHANGE_BYTES_MAX} fit a record", bytes.len());
            return Err(Error::refused(self.path(), cause));
        }
        if !self.journal.has_room_for_change() {
            self.work.notify();
            let cause = "the journal is full until its checkpoint has ended; try again";
            return Err(Error::new(ErrorKind::NoSpace, self.path(), cause));
        }
        self.apply(ops)?;
        let lsn = self.journal.append(Record::Change(bytes));
        self.work.notify();
        Ok(lsn)
    }

    /// Everything that completed before this call is durable when it answers.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.journal.flush().await;
        if let Err(e) = &flushed {
            self.break_down(e);
        }
        flushed
    }

    /// The same for a change that has just been made and for one that the journal replays.
    pub(super) fn apply(&self, ops: &[Op]) -> Result<()> {
        self.lineage.borrow().check(ops).map_err(|cause| Error::damaged(self.path(), cause))?;
        let generation = self.generation.get();
        let mut took = false;
        for op in ops {
            self.apply_one(op, generation)?;
            took |= matches!(op, Op::Take { .. });
        }
        if took {
            self.generation.set(generation + 1);
        }
        Ok(())
    }

    fn apply_one(&self, op: &Op, generation: u64) -> Result<()> {
        let mut lineage = self.lineage.borrow_mut();
        let mut changed = self.changed_nodes.borrow_mut();
        let mut is_new = |id: u64, lineage: &Lineage| match lineage.get(id) {
            Some(_) => Err(Error::damaged(self.path(), format!("node {id} is made twice"))),
            None => {
                self.next_node.set(self.next_node.get().max(id + 1));
                changed.insert(id);
                Ok(())
            }
        };
        match *op {
            Op::Create { node, size_blocks } => {
                is_new(node, &lineage)?;
                lineage.add(Node::new(node, NONE, size_blocks, View::tree(None, generation)));
            }
            Op::Take { running, sealed } => {
                is_new(sealed, &lineage)?;
                let running = lineage.known(running, self.path())?;
                let view = running.freeze(generation);
                self.deepest.set(self.deepest.get().max(view.depth()));
                let node = Node::new(sealed, running.parent.get(), running.size_blocks.get(), view);
                node.sealed.set(generation);
                lineage.add(node);
                lineage.reparent(&running, sealed);
                changed.insert(running.id);
            }
            Op::Branch { from, node } => {
                is_new(node, &lineage)?;
                let from = lineage.known(from, self.path())?;
                lineage.add(Node::new(node, from.id, from.size_blocks.get(), from.current_view()));
            }
            Op::Drop { node } => {
                let node = lineage.known(node, self.path())?;
                if node.is_running() {
                    node.freeze(generation);
                    node.sealed.set(generation);
                }
                lineage.drop_node(&node);
                changed.insert(node.id);
            }
            Op::Resize { node, size_blocks } => {
                lineage.known(node, self.path())?.size_blocks.set(size_blocks);
                changed.insert(node);
            }
            Op::Put { key, ref value } => {
                self.changed_items.borrow_mut().insert(key, Some(value.clone()));
            }
            Op::Delete { key } => {
                self.changed_items.borrow_mut().insert(key, None);
            }
            Op::Void { .. } => {}
        }
        Ok(())
    }

    /// Where `blocks` of a node lie, from memory alone; false when pages have to be read.
    pub(super) fn find_cached(&self, node: &Node, blocks: Range<u64>, out: &mut Scratch) -> bool {
        out.clear();
        let view = node.view.borrow();
        find_over(&node.active.borrow(), blocks, out, |gap, out| view.find_cached(&self.nodes, gap, out))
    }

    /// Where `blocks` of a node lie, in order. The caller is admitted as a reader or a writer: what is found is not
    /// used again before it ends.
    pub(super) async fn find(&self, node: &Node, blocks: Range<u64>, out: &mut Scratch) -> Result<()> {
        if self.find_cached(node, blocks.clone(), out) {
            return Ok(());
        }
        out.clear();
        let mut gaps = Vec::new();
        let view = node.current_view();
        find_over(&node.active.borrow(), blocks, out, |gap, _| {
            gaps.push(gap);
            true
        });
        for gap in gaps {
            view.find(&self.nodes, gap, out).await?;
        }
        out.found.sort_unstable_by_key(|found| found.start);
        Ok(())
    }

    /// Whether blocks of a node may change place now. A node that was sealed or dropped meanwhile has nobody to merge what
    /// is put there. NoSpace: the journal is full; whoever let go of all that it holds may wait for room and try again.
    fn may_record(&self, node: &Node) -> Result<()> {
        if !node.is_running() {
            let cause = format!("node {} was sealed or dropped while a write to it was under way", node.id);
            return Err(Error::new(ErrorKind::Cancelled, self.path(), cause));
        }
        match self.journal.has_room_for_record() {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::NoSpace, self.path(), "the journal is full until a checkpoint"))
            }
        }
    }

    /// Data that is complete, though not durable, becomes the node's: map, record and space change together. On an error
    /// its space is free again.
    pub(super) fn publish(&self, node: &Node, start: u64, extent: Extent, checksum: u64) -> Result<()> {
        if let Err(e) = self.may_record(node) {
            self.unplace(extent);
            return Err(e);
        }
        let birth = self.generation.get();
        let Extent { addr, len } = extent;
        let lsn =
            self.journal.append(Record::Map { node: node.id, start, len: len as u32, addr, birth, checksum });
        self.placed(extent);
        self.put(node, start, Held { len, addr, birth, lsn });
        Ok(())
    }

    /// Space for data that is about to be written; `publish` or `unplace` follows.
    pub(super) async fn place(&self, want: u64, near: Option<u64>, phase: u64) -> Result<Extent> {
        let extent = match self.space.try_place(want, near, phase) {
            Some(extent) => extent,
            None => self.space.place(want, near, phase).await?,
        };
        self.unpublished.borrow_mut().push(extent);
        Ok(extent)
    }

    pub(super) fn unplace(&self, extent: Extent) {
        self.placed(extent);
        self.space.unplace(extent);
    }

    fn placed(&self, extent: Extent) {
        let mut unpublished = self.unpublished.borrow_mut();
        let at = unpublished.iter().position(|e| *e == extent).expect("placed before");
        unpublished.swap_remove(at);
    }

    /// The blocks read as zeros from here on, and their space is the store's again.
    fn unmap(&self, node: &Node, blocks: Range<u64>) -> Result<()> {
        self.may_record(node)?;
        let (start, len, birth) = (blocks.start, blocks.end - blocks.start, self.generation.get());
        let lsn = self.journal.append(Record::Unmap { node: node.id, start, len, birth });
        self.put(node, start, Held { len, addr: 0, birth, lsn });
        Ok(())
    }

    /// Unmaps what of `blocks` has space. Of a long range nothing is looked up: that would read the map of all of it.
    pub(super) async fn unmap_mapped(&self, node: &Node, blocks: Range<u64>) -> Result<()> {
        if blocks.end - blocks.start > LOOKED_UP_MAX {
            return self.unmap(node, blocks);
        }
        let mut scratch = Scratch::default();
        self.find(node, blocks, &mut scratch).await?;
        let mut mapped = scratch.found.iter().filter(|found| !found.is_hole());
        mapped.try_for_each(|found| self.unmap(node, found.start..found.end()))
    }

    fn put(&self, node: &Node, start: u64, held: Held) {
        let mut displaced = Vec::new();
        let grown = node.put(start, held, &mut displaced);
        self.pending.set(self.pending.get().wrapping_add_signed(grown));
        for extent in displaced {
            self.space.free_young(extent, held.lsn);
        }
        if self.pending.get().is_multiple_of(RESERVE_STEP_RUNS) {
            self.set_reserve();
        }
        if self.wants_checkpoint() || self.journal.unflushed_bytes() >= self.options.flush_bytes {
            self.work.notify();
        }
    }

    /// Sets aside what the next checkpoint may need at most: a leaf for every run, the interior nodes over as many
    /// leaves, the catalogue.
    pub(super) fn set_reserve(&self) {
        let leaves = (self.pending.get() + RESERVE_STEP_RUNS) as u64;
        self.space.set_reserve(leaves + leaves / 64 + self.options.reserve_blocks);
    }

    /// Guests wait where a checkpoint has fallen behind: the journal is full, or memory is.
    pub(super) async fn wait_for_room(&self) -> Result<()> {
        while !self.journal.has_room() || self.pending_runs() > 2 * self.options.pending_runs_max {
            self.refuse_when_broken()?;
            let progress = self.progress.wait();
            self.work.notify();
            progress.await;
        }
        self.refuse_when_broken()
    }

    /// Ends all work: what is in memory is merged and durable afterwards, and the file is left alone.
    pub async fn close(&self) -> Result<()> {
        self.closed.set(true);
        self.work.notify();
        self.ending.notify();
        let written = self.write_all().await;
        while self.tended.get() {
            self.progress.wait().await;
        }
        self.space.stop().await;
        written
    }

    async fn write_all(&self) -> Result<()> {
        if self.broken().is_some() {
            return Ok(());
        }
        self.flush().await?;
        self.checkpoint().await
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.work.notify();
    }
}
