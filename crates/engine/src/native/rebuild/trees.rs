//! The trees of a rebuilt store: what is damaged in them becomes lost, and the records of the journal are merged.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use blk::{Env, File, Local, Result};
use std::future::ready;

use super::super::layout::{BLOCK, Extent, Geometry, HEADER_BLOCKS, LOST, lost_word};
use super::super::space::{BlockSet, SLOTS};
use super::super::table::{Redirect, Table};
use super::super::tree::{
    MapCache, Mapped, MergePace, MergeSpace, Nodes, PageTag, Root, Roots, WalkItem, merge, on_devices, span,
    survey,
};
use super::copy::Found;
use super::in_use::InUse;

/// Cache for map pages.
const CACHE_BYTES: usize = 64 << 20;

/// Pages of metadata in new groups behind those of the source.
pub(super) struct NewPages {
    geometry: Geometry,
    /// The next block, and those that were placed.
    next: Cell<u64>,
    placed: RefCell<Vec<Extent>>,
    first_group: u64,
    /// Blocks of each group that are used.
    within: Range<u64>,
}

impl NewPages {
    pub(super) fn new(geometry: Geometry, first_group: u64) -> NewPages {
        NewPages::within(geometry, first_group, SLOTS..geometry.group_blocks)
    }

    /// Uses only these blocks of each group.
    pub(super) fn within(geometry: Geometry, first_group: u64, within: Range<u64>) -> NewPages {
        let next = Cell::new(geometry.group_start(first_group) + within.start);
        NewPages { geometry, next, placed: RefCell::default(), first_group, within }
    }

    pub(super) fn first_group(&self) -> u64 {
        self.first_group
    }

    fn group(&self) -> u64 {
        self.geometry.group_of(self.next.get()).expect("behind the journal")
    }

    /// Places one block.
    pub(super) fn place(&self) -> u64 {
        let addr = self.next.get();
        let end = self.geometry.group_start(self.group()) + self.within.end;
        let behind = self.geometry.group_start(self.group() + 1) + self.within.start;
        self.next.set(if addr + 1 == end { behind } else { addr + 1 });
        self.placed.borrow_mut().push(Extent { addr, len: 1 });
        addr
    }

    /// Returns places for so many pages as extents.
    pub(super) fn place_many(&self, pages: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for _ in 0..pages {
            let addr = self.place();
            match extents.last_mut() {
                Some(last) if last.end() == addr => last.len += 1,
                _ => extents.push(Extent { addr, len: 1 }),
            }
        }
        extents
    }

    /// Returns the number of groups with the new ones.
    pub(super) fn groups(&self) -> u64 {
        match self.placed.borrow().last() {
            Some(last) => self.geometry.group_of(last.addr).expect("behind the journal") + 1,
            None => self.first_group,
        }
    }

    pub(super) fn add_to(&self, used: &mut BlockSet) {
        for extent in self.placed.borrow().iter() {
            assert!(used.insert(*extent), "{extent:?} is in a new group");
        }
    }
}

impl MergeSpace for (&NewPages, PageTag) {
    /// Nothing is freed: the bitmaps are written anew.
    fn is_exclusive(&self, _: u64, _: &Range<u64>) -> bool {
        false
    }

    fn place_node(&self) -> Local<'_, Result<u64>> {
        Box::pin(ready(Ok(self.0.place())))
    }

    fn tag(&self) -> PageTag {
        self.1
    }

    /// The page stays unused in the file: a failed merge ends the rebuild.
    fn unplace_node(&self, _: u64) {}

    fn free(&self, addr: u64, len: u64) {
        unreachable!("{len} exclusive blocks at {addr}")
    }
}

struct NoPace<'a>(&'a Env);

impl MergePace for NoPace<'_> {
    fn merged(&self, _: usize) -> Local<'_, ()> {
        Box::pin(self.0.next_turn())
    }
}

/// What is known of the blocks that an intact map page refers to.
#[derive(Default)]
pub(super) struct Knowledge<'a> {
    /// The blocks in use; None if all that pages refer to are.
    pub in_use: Option<&'a InUse>,
    /// Blocks of sources can be read. If not, they are lost.
    pub has_sources: bool,
}

/// Adds blocks to ranges, the last of which may end there.
fn add(ranges: &mut Vec<Range<u64>>, blocks: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == blocks.start => last.end = blocks.end,
        _ => ranges.push(blocks),
    }
}

/// The map pages of the copy.
pub(super) struct Trees<'a> {
    env: &'a Env,
    nodes: Nodes,
    found: &'a Found,
}

impl<'a> Trees<'a> {
    pub(super) fn new(env: &'a Env, file: &File, store_id: u64, found: &'a Found) -> Trees<'a> {
        let nodes = Nodes::new(file.clone(), store_id, &MapCache::new(CACHE_BYTES)).losing(true);
        Trees { env, nodes, found }
    }

    /// Returns the blocks of a disk whose content is unknown, those that were lost before included, and the end of its last
    /// mapped block. What is the same in `base` is left out.
    pub(super) async fn lost_in(
        &self,
        roots: &Roots,
        base: &Roots,
        known: &Knowledge<'_>,
    ) -> Result<(Vec<Range<u64>>, u64)> {
        let (mut lost, mut end) = (Vec::new(), 0);
        for (root, base) in [(&roots.places, &base.places), (&roots.backings, &base.backings)] {
            let mut visit = |item: WalkItem| match item {
                WalkItem::Data(run) => {
                    end = end.max(run.start + run.len);
                    self.add_lost(&run, known, &mut lost);
                }
                WalkItem::Damaged { level, first, .. } => {
                    let behind = first.saturating_add(span(level));
                    end = end.max(behind);
                    add(&mut lost, first..behind);
                }
                WalkItem::Page { .. } | WalkItem::UnknownBase(_) => {}
            };
            survey(&self.nodes, root.as_ref(), base.as_ref(), 0..u64::MAX, usize::MAX, &mut visit).await?;
        }
        let mut visit = |blocks: Range<u64>, device: u8| {
            if device == LOST || !known.has_sources {
                end = end.max(if device == LOST { 0 } else { blocks.end });
                add(&mut lost, blocks);
            }
        };
        on_devices(&self.nodes, roots.places.as_ref(), base.places.as_ref(), &mut visit).await?;
        Ok((lost, end))
    }

    fn add_lost(&self, run: &Mapped, known: &Knowledge<'_>, lost: &mut Vec<Range<u64>>) {
        let all_read = !self.found.is_unreadable(run.addr, run.len);
        for n in 0..run.len {
            let (block, addr) = (run.start + n, run.addr + n);
            let is_bad = (!all_read && self.found.is_unreadable(addr, 1))
                || known.in_use.is_some_and(|in_use| !in_use.may_be_data(addr));
            if is_bad {
                add(lost, block..block + 1);
            }
        }
    }

    /// Adds the blocks that trees refer to from block `from` on, and that `base` does not have at the same place.
    pub(super) async fn add_used(
        &self,
        roots: &Roots,
        base: &Roots,
        from: u64,
        used: &mut BlockSet,
        note_page: &dyn Fn(u64),
    ) -> Result<()> {
        for (root, base) in [(&roots.places, &base.places), (&roots.backings, &base.backings)] {
            let mut visit = |item: WalkItem| match item {
                WalkItem::Data(run) => drop(used.insert(Extent { addr: run.addr, len: run.len })),
                WalkItem::Page { addr, .. } | WalkItem::Damaged { addr, .. } => {
                    used.insert(Extent { addr, len: 1 });
                    note_page(addr);
                }
                WalkItem::UnknownBase(_) => {}
            };
            survey(&self.nodes, root.as_ref(), base.as_ref(), from..u64::MAX, usize::MAX, &mut visit).await?;
        }
        Ok(())
    }

    /// Merges a table into trees.
    pub(super) async fn merge(
        &self,
        roots: Roots,
        table: &Table,
        stamp: u64,
        tag: PageTag,
        pages: &NewPages,
    ) -> Result<Roots> {
        let mut updates = Vec::new();
        assert_eq!(table.updates(0, usize::MAX, &mut updates), None, "all updates at once");
        merge(&self.nodes, roots, &updates, stamp, &(pages, tag), &NoPace(self.env)).await
    }
}

/// Returns the trees of a disk of `blocks` blocks that are all lost.
pub(super) fn all_lost(blocks: u64) -> Roots {
    Roots { places: Root::of_device(lost_word(0), blocks), backings: None }
}

/// Makes blocks lost. A table's runs do not overlap.
pub(super) fn lose(table: &mut Table, blocks: Range<u64>) {
    if !blocks.is_empty() {
        let (len, addr) = (blocks.end - blocks.start, lost_word(blocks.start));
        table.insert(blocks.start, Redirect { len, addr, birth: 0, lsn: 0 }, &mut Vec::new());
    }
}

/// Makes blocks holes.
pub(super) fn unmap(table: &mut Table, blocks: Range<u64>) {
    if !blocks.is_empty() {
        let redirect = Redirect { len: blocks.end - blocks.start, addr: 0, birth: 0, lsn: 0 };
        table.insert(blocks.start, redirect, &mut Vec::new());
    }
}

/// Writes zeros over the ring of the journal, whose records are in the trees.
pub(super) async fn erase_journal(file: &File, geometry: &Geometry) -> Result<()> {
    file.zero(HEADER_BLOCKS * BLOCK, geometry.journal_pages * BLOCK, true).await
}
