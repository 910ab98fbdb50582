//! A checkpoint: the changes in the journal go into the trees, and one superblock makes all of them valid.
//!
//! Order: all running nodes are frozen between two polls, and the journal continues in a new batch; the redirects up to
//! there become durable; tables are merged into new pages; one step of reclaim; the bitmaps of the groups and the
//! catalogue; a flush; the superblock; a flush; a batch of the journal that names the checkpoint, and a flush. Only
//! then may the space that it freed be used again. A crash before the superblock leaves the old state and the journal
//! whole.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use blk::{Local, Result};

use super::catalogue::Catalogue;
use super::journal::Position;
use super::layout::Extent;
use super::lineage::Node;
use super::space::{GroupSummary, sorted};
use super::store::Store;
use super::stored::{NodeItem, encode_group, group_key, node_key};
use super::superblock::{SOURCES, Superblock};
use super::table::Table;
use super::tree::{MergePace, MergeSpace, PageTag, Roots, Update, merge};
use super::view::View;
use crate::options::Defect;

/// Longest pause of a merge between two batches of pages.
const REST_US_MAX: u64 = 20_000;

/// Runs and extents processed between two turns of the reactor: each takes a hundred nanoseconds, and guests wait
/// meanwhile.
const STEP_RUNS: usize = 512;

/// The store at the moment of a freeze.
struct Frozen {
    journal: Position,
    generation: u64,
    next_node: u64,
    /// Nodes whose item changes, with their views at this moment.
    nodes: Vec<(u64, NodeItem, Rc<View>)>,
    /// Views to merge, each after the one below it.
    views: Vec<Rc<View>>,
}

impl Store {
    /// Merges and writes all changes. Guests go on meanwhile.
    pub async fn checkpoint(&self) -> Result<()> {
        let _turn = self.checkpoint_turn.lock().await;
        self.refuse_when_broken()?;
        let result = match self.prepare_checkpoint().await {
            // Everything in memory is still right, and the next attempt writes all of it.
            Err(e) if e.is_no_space() => Err(e),
            // After any other error it is unknown which of two superblocks the medium has.
            prepared => self.commit_checkpoint(prepared).await.inspect_err(|e| self.fail_read_only(e)),
        };
        self.merging.end();
        self.progress.notify();
        result
    }

    /// Writes all that the next superblock refers to, and returns that superblock and the number of blocks given back.
    /// On `NoSpace` nothing of what was frozen is lost.
    async fn prepare_checkpoint(&self) -> Result<(Superblock, u64)> {
        let frozen = self.freeze();
        if !self.options.defects.has(Defect::CheckpointBeforeJournal) {
            // A merged redirect counts as committed, so no replay may doubt its data any more.
            while self.journal.durable_flushed_lsn() < frozen.journal.lsn - 1 {
                // A failed journal is not tried again, regardless of the error, nor is one of a store that failed meanwhile.
                self.flush().await?;
                self.refuse_when_broken()?;
            }
        }
        let merged = self.merge_views(&frozen.views).await;
        self.note_nodes(&frozen);
        merged?;
        self.lineage.borrow_mut().forget_removed();
        let reclaimed = self.reclaim_step().await?;
        let mut catalogue = self.catalogue.take();
        let written = self.write_catalogue(&mut catalogue, &frozen).await;
        *self.catalogue.borrow_mut() = catalogue;
        Ok((written?, reclaimed))
    }

    async fn commit_checkpoint(&self, prepared: Result<(Superblock, u64)>) -> Result<()> {
        let (superblock, reclaimed) = prepared?;
        if !self.options.defects.has(Defect::SuperblockBeforePages) {
            self.file.flush().await?;
        }
        self.journal.when_space(async || superblock.write(&self.file).await).await?;
        self.file.flush().await?;
        self.committed(&superblock, reclaimed);
        if !self.options.defects.has(Defect::ReuseBeforeNamed) {
            self.flush().await?;
        }
        self.work.notify();
        Ok(())
    }

    async fn merge_views(&self, views: &[Rc<View>]) -> Result<()> {
        for view in views {
            self.merge_view(view).await?;
        }
        Ok(())
    }

    /// Freezes the store in one moment for all disks: it has no await.
    fn freeze(&self) -> Frozen {
        let generation = self.generation.get();
        let lineage = self.lineage.borrow();
        let mut changed = self.changed_nodes.take();
        let mut unmerged = self.unmerged.borrow_mut();
        unmerged.retain(|id| {
            lineage.get(*id).is_some_and(|node| frozen_view(&node, generation).roots().is_none())
        });
        let mut views = Vec::new();
        for node in unmerged.iter().filter_map(|id| lineage.get(*id)) {
            add_unmerged(&node.current_view(), &mut views);
            changed.insert(node.id);
        }
        views.iter().for_each(|view: &Rc<View>| view.listed.set(false));
        self.deepest.set(0);
        self.space.freeze(&self.unpublished.borrow());
        let mut catalogue = self.catalogue.borrow_mut();
        self.changed_items.take().into_iter().for_each(|(key, value)| catalogue.set(key, value));
        let pages = self.journal.used_pages();
        self.merging.begin(self.pending.get(), pages);
        self.pages_placed.set(0);
        Frozen {
            journal: self.journal.cut(),
            generation,
            next_node: self.next_node.get(),
            nodes: changed.iter().filter_map(|id| lineage.get(*id)).map(|node| item_of(&node)).collect(),
            views,
        }
    }

    async fn merge_view(&self, view: &Rc<View>) -> Result<()> {
        let Some(below) = view.below() else { return Ok(()) };
        let below = below.roots().expect("merged before those above it");
        let updates = self.updates_of(view).await;
        let space = StoreSpace {
            store: self,
            parent: view.parent,
            tag: self.tag_of(view),
            freed: RefCell::default(),
        };
        let pace = Pace { store: self, worked_from_ns: Cell::new(self.env.now_ns()) };
        let merged = merge(&self.nodes, below, &updates, view.stamp, &space, &pace).await;
        self.merging.end_view();
        self.pages_placed.set(0);
        self.note_freed(space.freed.take());
        let table = view.merged(merged?);
        let runs = table.as_ref().map_or(0, Table::len);
        self.pending.update(|pending| pending - runs);
        self.pending_pages.update(|pages| pages.saturating_sub(view.pages * self.trees()));
        if runs > STEP_RUNS {
            self.env.offload(move || drop(table)).await;
        }
        Ok(())
    }

    /// Returns the tag of the pages that a merge of the view writes.
    fn tag_of(&self, view: &View) -> PageTag {
        let superblock = self.superblock.get();
        match superblock.is_rebuildable() {
            true => PageTag { node: view.node, checkpoint: superblock.checkpoint + 1 },
            false => PageTag::default(),
        }
    }

    /// Hundreds of thousands of extents are moved where that is possible, not copied.
    fn note_freed(&self, mut extents: Vec<Extent>) {
        let mut freed = self.freed.borrow_mut();
        match freed.is_empty() {
            true => *freed = extents,
            false => freed.append(&mut extents),
        }
    }

    /// Returns the updates of a view. Its content does not change, so it may be read in steps.
    async fn updates_of(&self, view: &View) -> Vec<Update> {
        let runs = view.with_table(Table::len).unwrap_or(0);
        let (mut updates, mut next) = (Vec::with_capacity(runs), Some(0));
        while let Some(from) = next {
            if !updates.is_empty() {
                self.env.next_turn().await;
            }
            let more = view.with_table(|table| table.updates(from, STEP_RUNS, &mut updates));
            next = more.expect("a view over another has a table");
        }
        updates
    }

    /// Records the nodes' items as of the freeze, with the roots that the merges have made. A node whose view was not
    /// merged stays among the changed ones.
    fn note_nodes(&self, frozen: &Frozen) {
        let mut stored = self.stored.borrow_mut();
        for (id, item, view) in &frozen.nodes {
            match view.roots() {
                Some(roots) => stored.set(*id, NodeItem { roots, ..*item }),
                None => drop(self.changed_nodes.borrow_mut().insert(*id)),
            }
        }
    }

    async fn write_catalogue(&self, catalogue: &mut Catalogue, frozen: &Frozen) -> Result<Superblock> {
        let mut superblock = self.superblock.get();
        superblock.checkpoint += 1;
        if self.declares_sources.get() {
            superblock.features_incompat |= SOURCES;
        }
        for (id, item) in self.stored.borrow_mut().take_dirty() {
            catalogue.set(node_key(id), item.map(|item| item.encode()));
        }
        self.settle_places(catalogue).await?;
        for (group, summary) in self.space.write_pages(superblock.checkpoint).await? {
            catalogue.set(group_key(u64::from(group)), Some(encode_group(&summary)));
        }
        superblock.catalogue_checkpoint = superblock.checkpoint;
        superblock.generation = frozen.generation;
        superblock.next_node = frozen.next_node;
        superblock.journal = frozen.journal;
        superblock.journal_epoch = superblock.epoch;
        superblock.groups = self.space.groups();
        superblock.ready_to = self.space.ready_to();
        superblock.flushed_lsn = frozen.journal.lsn - 1;
        superblock.clean = self.closed.get().into();
        superblock.boot = self.boot.get();
        superblock.bitmaps_checksum = self.space.bitmaps_sum().checksum();
        superblock.catalogue_pages = catalogue.next_pages();
        (superblock.catalogue, superblock.second_catalogue) =
            catalogue.write(&self.file, &superblock).await?;
        Ok(superblock)
    }

    /// Takes and gives back space until all groups that change are known: their items are part of the catalogue.
    async fn settle_places(&self, catalogue: &mut Catalogue) -> Result<()> {
        let mut known = BTreeSet::new();
        loop {
            self.give_up().await?;
            let before = known.len();
            for group in self.space.groups_to_write().await? {
                if known.insert(group) {
                    catalogue.touch(group_key(group), || encode_group(&GroupSummary::default()));
                }
            }
            let mut freed = Vec::new();
            let placed = catalogue.place(&self.space, &mut freed).await;
            let committed = freed.is_empty() && known.len() == before;
            self.freed.borrow_mut().append(&mut freed);
            placed?;
            if committed && self.space.groups_to_write().await?.len() == before {
                return Ok(());
            }
        }
    }

    /// Removes the blocks that merges and earlier attempts freed from the committed space.
    async fn give_up(&self) -> Result<()> {
        let freed = self.freed.take();
        let freed = match freed.len() > STEP_RUNS {
            true => self.env.offload(move || sorted(freed)).await,
            false => sorted(freed),
        };
        if let Err(e) = self.load_groups_of(&freed).await {
            self.freed.borrow_mut().extend(freed);
            return Err(e);
        }
        for some in freed.chunks(STEP_RUNS) {
            let began_ns = self.env.now_ns();
            self.space.free_committed(some);
            if freed.len() > STEP_RUNS {
                self.yield_to_guests(began_ns).await;
            }
        }
        Ok(())
    }

    async fn load_groups_of(&self, extents: &[Extent]) -> Result<()> {
        for some in extents.chunks(STEP_RUNS) {
            let began_ns = self.env.now_ns();
            self.space.load_for(some.iter().map(|extent| extent.addr)).await?;
            if extents.len() > STEP_RUNS {
                self.yield_to_guests(began_ns).await;
            }
        }
        Ok(())
    }

    fn committed(&self, superblock: &Superblock, reclaimed: u64) {
        self.superblock.set(*superblock);
        self.journal.trim(superblock.journal.seq, superblock.checkpoint);
        self.space.committed(superblock.checkpoint);
        self.reclaimed_blocks.set(self.reclaimed_blocks.get() + reclaimed);
        self.set_reserve();
        self.checkpoints.set(self.checkpoints.get() + 1);
        self.work.notify();
    }

    pub(super) fn pending_runs(&self) -> usize {
        self.pending.get()
    }
}

fn frozen_view(node: &Node, generation: u64) -> Rc<View> {
    match node.is_running() {
        true => node.freeze(generation),
        false => node.current_view(),
    }
}

/// Appends the views under `view` that are not merged, lowest first. If a view is listed, all views below it are.
fn add_unmerged(view: &Rc<View>, views: &mut Vec<Rc<View>>) {
    let mut chain = Vec::new();
    let mut at = Some(view.clone());
    while let Some(unmerged) = at.filter(|v| v.roots().is_none() && !v.listed.replace(true)) {
        at = unmerged.below();
        chain.push(unmerged);
    }
    views.extend(chain.into_iter().rev());
}

fn item_of(node: &Node) -> (u64, NodeItem, Rc<View>) {
    let item = NodeItem {
        parent: node.parent.get(),
        sealed: node.sealed.get(),
        size_blocks: node.size_blocks.get(),
        dropped: node.dropped.get(),
        cursor: node.cursor.get(),
        device: node.device,
        roots: Roots::default(),
    };
    (node.id, item, node.current_view())
}

/// The services of the store that a merge uses.
struct StoreSpace<'a> {
    store: &'a Store,
    parent: u64,
    tag: PageTag,
    freed: RefCell<Vec<Extent>>,
}

impl MergeSpace for StoreSpace<'_> {
    fn is_exclusive(&self, birth: u64, blocks: &Range<u64>) -> bool {
        self.store.lineage.borrow().is_exclusive(self.parent, birth, blocks)
    }

    fn place_node(&self) -> Local<'_, Result<u64>> {
        Box::pin(async {
            let addr = self.store.space.place_meta(1).await?.addr;
            self.store.pages_placed.update(|placed| placed + 1);
            Ok(addr)
        })
    }

    fn tag(&self) -> PageTag {
        self.tag
    }

    fn unplace_node(&self, addr: u64) {
        self.store.pages_placed.update(|placed| placed - 1);
        self.store.space.unplace_meta(Extent { addr, len: 1 });
    }

    fn free(&self, addr: u64, len: u64) {
        self.freed.borrow_mut().push(Extent { addr, len });
    }
}

/// Pace of a merge: it yields to guests while it is not behind.
struct Pace<'a> {
    store: &'a Store,
    worked_from_ns: Cell<u64>,
}

impl MergePace for Pace<'_> {
    fn merged(&self, updates: usize) -> Local<'_, ()> {
        self.store.merging.add(updates);
        self.store.set_reserve();
        let env = &self.store.env;
        let worked_ns = env.now_ns() - self.worked_from_ns.get();
        let us = self.store.rest_us(worked_ns / 1000).min(REST_US_MAX);
        Box::pin(async move {
            env.sleep_us(us).await;
            self.worked_from_ns.set(env.now_ns());
        })
    }
}
