//! A store: all disks of a datastore, their space and their journal. Every change of it begins here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::file::FileCounters;
use blk::sync::{Admission, Signal, TaskMutex};
use blk::{Env, Error, ErrorKind, File, Result};

use super::backing::SECTOR;
use super::catalogue::Catalogue;
use super::change::{Key, Op, encode};
use super::journal::{Journal, Record};
use super::layout::{Extent, Geometry, device_word};
use super::lineage::{Lineage, NONE, Node};
use super::progress::Progress;
use super::remote::{GrantedDisk, StoreStock};
use super::source::{SOURCE, Source};
use super::space::Space;
use super::stored::StoredNodes;
use super::superblock::Superblock;
use super::tree::{Nodes, Root, Roots};
use super::view::View;
use super::write_coalescer::WriteCoalescer;
use crate::options::{Defect, Defects};

/// Longest change, which is one record: a take of a few hundred disks, each with two nodes, and its name.
const CHANGE_BYTES_MAX: usize = 128 << 10;

/// Memory of one redirect that is not merged yet, with its part of the table's nodes.
pub const PENDING_RUN_BYTES: usize = 64;

/// Settings of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Cache for pages of trees.
    pub map_cache_bytes: usize,
    /// Cap of the maps of groups in memory. Groups that are changing stay, regardless of their number.
    pub bitmap_bytes: usize,
    /// Redirects in memory, about 64 bytes each (`PENDING_RUN_BYTES`), beyond those that a checkpoint has merged: half of them make a
    /// checkpoint due, and writers are delayed so that there are never more. Twice as many with the merged ones.
    pub pending_runs_max: usize,
    /// Tables over a tree that make a checkpoint due: a lookup may have to search them one by one.
    pub pending_depth_max: usize,
    /// Longest time that an unflushed redirect waits for the store's own flush; `flush_bytes` bounds the bytes that
    /// wait.
    pub flush_us: u64,
    /// See `flush_us`.
    pub flush_bytes: u64,
    /// Blocks set aside for the catalogue and the interior pages of a checkpoint.
    pub reserve_blocks: u64,
    /// Pages of trees that one step of reclaim reads on each side.
    pub reclaim_pages: usize,
    /// While guests are active, reclaim pauses this many times as long as its last step took.
    pub reclaim_rest: u64,
    /// Blocks that another core has in advance for redirects, at most this and half as many more.
    pub handed_out_blocks: u64,
    /// Planted to prove that tests find them; none in production.
    pub defects: Defects,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            map_cache_bytes: 64 << 20,
            bitmap_bytes: 32 << 20,
            pending_runs_max: 256 << 10,
            pending_depth_max: 8,
            flush_us: 1_000_000,
            flush_bytes: 64 << 20,
            reserve_blocks: 1024,
            reclaim_pages: 256,
            reclaim_rest: 16,
            handed_out_blocks: 256,
            defects: Defects::default(),
        }
    }
}

/// An open store.
pub struct Store {
    /// The core that the store was opened on.
    pub env: Env,
    /// The settings of this opening.
    pub options: StoreOptions,
    pub(super) file: File,
    /// A first write of some sectors of a block leaves the others where they are.
    pub(super) masks_sectors: bool,
    pub(super) geometry: Geometry,
    pub(super) nodes: Nodes,
    pub(super) space: Rc<Space>,
    pub(super) coalescer: Rc<WriteCoalescer>,
    pub(super) journal: Rc<Journal>,
    pub(super) lineage: RefCell<Lineage>,
    /// The present generation; it ends with the next take.
    pub(super) generation: Cell<u64>,
    pub(super) next_node: Cell<u64>,
    /// The present items of the store's users.
    items: RefCell<BTreeMap<Key, Vec<u8>>>,
    /// Items and nodes changed since the last freeze.
    pub(super) changed_items: RefCell<BTreeMap<Key, Option<Vec<u8>>>>,
    pub(super) changed_nodes: RefCell<BTreeSet<u64>>,
    /// The sources, as their items are now.
    pub(super) sources: RefCell<BTreeMap<u8, Rc<Source>>>,
    /// The next superblock declares that the store has sources.
    pub(super) declares_sources: Cell<bool>,
    /// Nodes that may have redirects that no tree has yet.
    pub(super) unmerged: RefCell<BTreeSet<u64>>,
    /// The catalogue of the last checkpoint, with the items frozen for the one under way; the holder of
    /// `checkpoint_turn` takes it out.
    pub(super) catalogue: RefCell<Catalogue>,
    pub(super) stored: RefCell<StoredNodes>,
    pub(super) superblock: Cell<Superblock>,
    /// The boot that the next superblock names.
    pub(super) boot: Cell<u64>,
    pub(super) checkpoint_turn: TaskMutex,
    /// Extents placed for data that is being written: no record refers to them yet.
    pub(super) unpublished: RefCell<Vec<Extent>>,
    /// Committed extents that checkpoints have freed and none has recorded yet.
    pub(super) freed: RefCell<Vec<Extent>>,
    /// Reads and writes of all disks: space is used again only after those that may still refer to it have ended.
    pub(super) reads: Rc<Admission>,
    pub(super) writes: Rc<Admission>,
    /// Signals work for the tasks that tend the store.
    pub(super) work: Rc<Signal>,
    /// Number of runs in all tables that are not merged.
    pub(super) pending: Cell<usize>,
    pub(super) merging: Progress,
    /// Time of the next turn of writers that are delayed.
    pub(super) turn_ns: Cell<u64>,
    /// Most pages that a merge of these runs may write.
    pub(super) pending_pages: Cell<u64>,
    /// Pages of these that the merge under way has placed.
    pub(super) pages_placed: Cell<u64>,
    /// A write found no space: a checkpoint may free some.
    pub(super) starved: Cell<bool>,
    /// Number of tables over a tree, of the deepest node.
    pub(super) deepest: Cell<usize>,
    /// Signals that a checkpoint is durable, or that space was given back.
    pub(super) progress: Signal,
    pub(super) checkpoints: Cell<u64>,
    pub(super) reclaimed_blocks: Cell<u64>,
    /// Dropped nodes whose space stays for now because their jobs are paused or cancelled.
    pub(super) held_back: RefCell<BTreeSet<u64>>,
    /// Dropped nodes with damaged pages: their space stays.
    pub(super) unreclaimable: RefCell<BTreeMap<u64, Error>>,
    /// Guest requests completed, over all disks of this core: shows whether guests are active.
    pub(super) requests: Cell<u64>,
    /// Disks that other cores serve.
    pub(super) remote_disks: RefCell<Vec<Rc<GrantedDisk>>>,
    /// Blocks that other cores have in advance.
    pub(super) remote_stocks: RefCell<Vec<Rc<StoreStock>>>,
    pub(super) closed: Cell<bool>,
    /// Number of running tasks that tend the store; their work may be under way.
    pub(super) tended: Cell<u32>,
    /// Time of the next flush of records that wait for one, and 0 where none waits.
    pub(super) flush_due_ns: Cell<u64>,
    /// Time at which the next chunk may be punched while guests are active.
    pub(super) punch_due_ns: Cell<u64>,
    /// The guests' requests at the last look whether they are idle, and the time of the last look that found new ones.
    pub(super) requests_at_look: Cell<u64>,
    pub(super) active_ns: Cell<u64>,
    /// The guests' requests at the last step of background calculation.
    pub(super) requests_at_step: Cell<u64>,
    /// Freed space has been put back up to this record.
    pub(super) put_back_to: Cell<u64>,
    /// Errors found by work that continued without the damaged object.
    pub(super) damage: RefCell<Vec<Error>>,
    /// VMs whose content generations the opening raised, because acknowledged writes may be lost. Each reports it when
    /// it is opened.
    pub(super) raised: RefCell<BTreeSet<u128>>,
    /// Why nothing more is written.
    broken: RefCell<Option<Error>>,
}

/// The parts that `open` and `recover` have read; the rest of a store starts empty.
pub(super) struct StoreParts {
    pub file: File,
    pub geometry: Geometry,
    pub nodes: Nodes,
    pub space: Rc<Space>,
    pub journal: Rc<Journal>,
    pub lineage: Lineage,
    pub catalogue: Catalogue,
    pub stored: StoredNodes,
    pub superblock: Superblock,
    pub sources: BTreeMap<u8, Rc<Source>>,
}

/// Returns whether a write of one sector harms no other, even if the power goes. The page cache writes whole pages.
fn writes_single_sectors(file: &File) -> bool {
    let limits = file.limits();
    limits.direct
        && u64::from(limits.logical_block.max(limits.physical_block)) == SECTOR
        && limits.physical_block != 0
}

impl Store {
    pub(super) fn assemble(env: Env, options: StoreOptions, parts: StoreParts) -> Rc<Store> {
        let superblock = parts.superblock;
        Rc::new(Store {
            coalescer: WriteCoalescer::new(env.clone(), parts.file.clone()),
            env,
            options,
            masks_sectors: superblock.has_sector_masks() && writes_single_sectors(&parts.file),
            file: parts.file,
            geometry: parts.geometry,
            nodes: parts.nodes,
            space: parts.space,
            journal: parts.journal,
            lineage: RefCell::new(parts.lineage),
            generation: Cell::new(superblock.generation),
            next_node: Cell::new(superblock.next_node),
            items: RefCell::new(parts.catalogue.user_items()),
            changed_items: RefCell::default(),
            changed_nodes: RefCell::default(),
            sources: RefCell::new(parts.sources),
            declares_sources: Cell::default(),
            unmerged: RefCell::default(),
            catalogue: RefCell::new(parts.catalogue),
            stored: RefCell::new(parts.stored),
            superblock: Cell::new(superblock),
            boot: Cell::new(superblock.boot),
            checkpoint_turn: TaskMutex::default(),
            unpublished: RefCell::default(),
            freed: RefCell::default(),
            reads: Rc::default(),
            writes: Rc::default(),
            work: Rc::default(),
            pending: Cell::new(0),
            merging: Progress::default(),
            turn_ns: Cell::new(0),
            pending_pages: Cell::new(0),
            pages_placed: Cell::new(0),
            starved: Cell::new(false),
            deepest: Cell::new(0),
            progress: Signal::default(),
            checkpoints: Cell::new(0),
            reclaimed_blocks: Cell::new(0),
            held_back: RefCell::default(),
            unreclaimable: RefCell::default(),
            requests: Cell::new(0),
            remote_disks: RefCell::default(),
            remote_stocks: RefCell::default(),
            closed: Cell::new(false),
            tended: Cell::new(0),
            flush_due_ns: Cell::new(0),
            punch_due_ns: Cell::new(0),
            requests_at_look: Cell::new(0),
            active_ns: Cell::new(0),
            requests_at_step: Cell::new(0),
            put_back_to: Cell::new(0),
            damage: RefCell::default(),
            raised: RefCell::default(),
            broken: RefCell::new(None),
        })
    }

    /// Returns the path of the store's file, for messages.
    pub fn path(&self) -> &str {
        self.file.name()
    }

    /// Returns the random number of the store, which every page has.
    pub fn id(&self) -> u64 {
        self.geometry.store_id
    }

    /// Returns the I/O of this core that reached the store's file.
    pub fn device_counters(&self) -> FileCounters {
        self.file.counters()
    }

    /// Returns whether the store was closed: it is not used any more.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Returns why nothing is written any more; reads go on.
    pub fn broken(&self) -> Option<Error> {
        self.broken.borrow().clone()
    }

    /// Returns the damage that was found so far by work that goes on without the damaged object, and that of map pages
    /// below which blocks are lost.
    pub fn damage(&self) -> Vec<Error> {
        let mut all = self.damage.borrow().clone();
        all.extend(self.nodes.lost());
        all
    }

    pub(super) fn fail_read_only(&self, cause: &Error) {
        if self.broken.borrow().is_none() {
            *self.broken.borrow_mut() = Some(cause.clone());
            self.end_all_remote_writes();
        }
        self.work.notify();
        self.progress.notify();
    }

    /// Makes the store read-only when the lease of its file is lost, even if no request finds it.
    pub(super) fn stop_with_lease(self: &Rc<Self>) {
        let Some(fence) = self.file.fence() else { return };
        let store = Rc::downgrade(self);
        self.env.spawn_detached(Box::pin(async move {
            let cause = fence.until_lost().await;
            if let Some(store) = store.upgrade().filter(|store| !store.closed.get()) {
                store.fail_read_only(&cause);
            }
        }));
    }

    pub(super) fn refuse_when_broken(&self) -> Result<()> {
        match &*self.broken.borrow() {
            Some(e) => Err(Error::refused(self.path(), format!("it is read-only since: {e}"))),
            None => Ok(()),
        }
    }

    /// Returns a node of the lineage. `NotFound` for an unknown one.
    pub fn node(&self, id: u64) -> Result<Rc<Node>> {
        self.lineage.borrow().known(id, self.path())
    }

    /// Returns a number that no node has had.
    pub fn new_node_id(&self) -> u64 {
        let id = self.next_node.get();
        self.next_node.set(id + 1);
        id
    }

    /// Returns the present items of a kind.
    pub fn items(&self, kind: u8) -> Vec<(Key, Vec<u8>)> {
        let items = self.items.borrow();
        let first = Key { kind, major: 0, minor: 0 };
        items.range(first..).take_while(|(key, _)| key.kind == kind).map(|(k, v)| (*k, v.clone())).collect()
    }

    /// Returns the value of a present item.
    pub(super) fn item(&self, key: Key) -> Option<Vec<u8>> {
        self.items.borrow().get(&key).cloned()
    }

    /// Returns whether the item is present.
    pub(super) fn has_item(&self, key: Key) -> bool {
        self.items.borrow().contains_key(&key)
    }

    /// Returns the present items of a kind that belong to one VM. The others' items are not visited: a store has
    /// thousands of VMs.
    pub(super) fn items_of(&self, kind: u8, vm: u128) -> Vec<(Key, Vec<u8>)> {
        let all = Key { kind, major: vm, minor: 0 }..=Key { kind, major: vm, minor: u64::MAX };
        self.items.borrow().range(all).map(|(k, v)| (*k, v.clone())).collect()
    }

    /// Applies all of `ops` in memory at once; the next flush makes them durable. It has no await, so it can be the
    /// swap of a take.
    pub fn change(&self, ops: &[Op]) -> Result<u64> {
        self.refuse_when_broken()?;
        // The file may belong to another owner by now.
        if self.closed.get() {
            return Err(Error::new(ErrorKind::Cancelled, self.path(), "it is closed"));
        }
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

    /// Makes everything that completed before this call durable.
    pub async fn flush(&self) -> Result<()> {
        let flushed = match self.journal.flush().await {
            Err(_) if self.broken().is_some() && self.options.defects.has(Defect::FlushRetried) => Ok(()),
            flushed => flushed,
        };
        match &flushed {
            Err(e) => self.fail_read_only(e),
            Ok(()) if self.journal.durable_flushed_lsn() > self.put_back_to.get() => self.work.notify(),
            Ok(()) => {}
        }
        flushed
    }

    /// Applies operations: those of a change that is being made, or of one that the journal replays.
    pub(super) fn apply(&self, ops: &[Op]) -> Result<()> {
        let checked = self.lineage.borrow().check(ops).and_then(|()| self.check_sources(ops));
        checked.map_err(|cause| Error::damaged(self.path(), cause))?;
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
                lineage.add(Node::new(node, NONE, size_blocks, View::tree(Roots::default(), generation)));
            }
            Op::CreateOver { node, size_blocks, device, blocks } => {
                is_new(node, &lineage)?;
                let places = Root::of_device(device_word(device, 0), blocks);
                let view = View::tree(Roots { places, backings: None }, generation);
                lineage.add(Node::new(node, NONE, size_blocks, view).on(device));
                self.source_is_used(device);
            }
            Op::Take { running, sealed } => {
                is_new(sealed, &lineage)?;
                let running = lineage.known(running, self.path())?;
                self.end_remote_writes(&running);
                let view = running.freeze(generation);
                self.deepest.set(self.deepest.get().max(view.depth()));
                let node = Node::new(sealed, running.parent.get(), running.size_blocks.get(), view);
                let node = node.on(running.device);
                node.sealed.set(generation);
                lineage.add(node);
                lineage.reparent(&running, sealed);
                changed.insert(running.id);
                self.unmerged.borrow_mut().extend([sealed, running.id]);
            }
            Op::Branch { from, node } => {
                is_new(node, &lineage)?;
                let from = lineage.known(from, self.path())?;
                let node = Node::new(node, from.id, from.size_blocks.get(), from.current_view());
                let node = lineage.add(node.on(from.device)).id;
                self.unmerged.borrow_mut().insert(node);
            }
            Op::Drop { node } => {
                let node = lineage.known(node, self.path())?;
                self.end_grants(&node);
                if node.is_running() {
                    node.freeze(generation);
                    node.sealed.set(generation);
                }
                lineage.drop_node(&node);
                changed.insert(node.id);
            }
            Op::Resize { node, size_blocks } => {
                let node = lineage.known(node, self.path())?;
                node.size_blocks.set(size_blocks);
                self.publish_size(&node);
                changed.insert(node.id);
            }
            Op::Put { key, ref value } => self.change_item(key, Some(value.clone()))?,
            Op::Delete { key } => self.change_item(key, None)?,
            Op::Abort { .. } => {}
        }
        Ok(())
    }

    /// Sets an item, or removes it if there is no value.
    fn change_item(&self, key: Key, value: Option<Vec<u8>>) -> Result<()> {
        if key.kind == SOURCE {
            self.note_source(key, value.as_deref())?;
        }
        let mut items = self.items.borrow_mut();
        match &value {
            Some(value) => items.insert(key, value.clone()),
            None => items.remove(&key),
        };
        self.changed_items.borrow_mut().insert(key, value);
        Ok(())
    }

    /// Ends all work: everything in memory is merged and durable afterwards, and the file is not used any more.
    pub async fn close(&self) -> Result<()> {
        self.closed.set(true);
        self.journal.gives_up.set(true);
        self.work.notify();
        self.end_remote_io().await;
        let written = self.write_all().await;
        while self.tended.get() > 0 {
            self.progress.wait().await;
        }
        self.space.stop().await;
        written
    }

    /// Ends what other cores do with the store's file.
    async fn end_remote_io(&self) {
        self.lineage.borrow().all().for_each(|node| self.end_grants(node));
        self.remote_stocks.borrow().iter().for_each(|stock| stock.end(self));
        let (reads, writes) = (self.reads.drain(), self.writes.drain());
        if !self.remote_disks.borrow().is_empty() || !self.remote_stocks.borrow().is_empty() {
            reads.await;
            writes.await;
        }
    }

    /// Returns the number of guest requests that have ended, on all cores.
    pub(super) fn guest_requests(&self) -> u64 {
        let remote = self.remote_disks.borrow().iter().map(|disk| disk.shared.requests()).sum::<u64>();
        self.requests.get() + remote
    }

    async fn write_all(&self) -> Result<()> {
        if self.broken().is_some() {
            return Ok(());
        }
        self.flush().await?;
        self.checkpoint().await?;
        self.journal.memory_tail.end();
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.work.notify();
    }
}
