//! Places of a node's blocks, and changes of them: map, record and space change together.

use std::ops::Range;

use blk::{Error, ErrorKind, Result};

use super::journal::{Record, SectorsRecord};
use super::layout::{BLOCK, Extent};
use super::lineage::{Node, TableGrowth};
use super::store::Store;
use super::table::{PartialBlock, Redirect};
use super::view::{Scratch, find_over};

/// Step, in runs in memory, by which the reserve follows them.
const RESERVE_STEP_RUNS: usize = 64;

/// Longest discard, in blocks, whose map is looked up to leave out blocks without space: 64 MiB.
const LOOKED_UP_MAX: u64 = (64 << 20) / BLOCK;

/// Blocks that get a place, or a block that gets sectors there.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewPart {
    /// First block of the disk.
    pub start: u64,
    pub place: Extent,
    /// The sectors, if they are not all; then the place is one block.
    pub partial: Option<NewSectors>,
    /// Checksum of the data: of the whole blocks, or of the added sectors.
    pub checksum: u64,
}

/// Sectors of one block.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewSectors {
    pub present: u8,
    pub added: u8,
    /// Address and birth of the block that has the others.
    pub backing: (u64, u64),
}

impl Store {
    /// Looks up the places of `blocks` of a node in memory alone; returns false when pages have to be read.
    pub(super) fn find_cached(&self, node: &Node, blocks: Range<u64>, out: &mut Scratch) -> bool {
        out.clear();
        let view = node.view.borrow();
        find_over(&node.active.borrow(), blocks, out, |gap, out| view.find_cached(&self.nodes, gap, out))
    }

    /// Looks up the places of `blocks` of a node, in order. The caller is admitted as a reader or a writer, so the
    /// blocks found are not used again before it ends.
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

    /// Checks that blocks of a node may change place now.
    ///
    /// # Errors
    /// `Cancelled`: the node was sealed or dropped meanwhile, so nothing would merge the change. `NoSpace`: the journal
    /// is full; a caller that has released all that it holds may wait for room and try again.
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

    /// Makes data that is complete, though not durable, part of the node: map, record and space change together. On an
    /// error its space is free again.
    pub(super) fn publish(
        &self,
        node: &Node,
        extent: Extent,
        parts: impl Iterator<Item = NewPart>,
    ) -> Result<()> {
        if let Err(e) = self.may_record(node) {
            self.unplace(extent);
            return Err(e);
        }
        self.placed(extent);
        parts.for_each(|part| self.publish_part(node, &part));
        Ok(())
    }

    fn publish_part(&self, node: &Node, part: &NewPart) {
        let NewPart { start, place: Extent { addr, len }, partial, checksum } = *part;
        let birth = self.generation.get();
        let (record, partial) = match partial {
            None => (Record::Map { node: node.id, start, len: len as u32, addr, birth, checksum }, None),
            Some(NewSectors { present, added, backing }) => {
                let (node, block) = (node.id, start);
                let record = SectorsRecord { node, block, addr, birth, present, added, backing, checksum };
                let backing = record.backing_of(present);
                let part = PartialBlock { backing, is_placed_here: record.is_first() };
                (Record::Sectors(record), Some(part))
            }
        };
        let lsn = self.journal.append(record);
        self.put(node, start, Redirect { len, addr, birth, lsn }, partial);
    }

    /// Makes parts of an extent part of the node, like `publish`; the rest of the extent is free again. `parts` are in
    /// the order of their addresses.
    pub(super) fn publish_some(&self, node: &Node, extent: Extent, parts: &[NewPart]) -> Result<()> {
        if let Err(e) = self.may_record(node) {
            self.unplace(extent);
            return Err(e);
        }
        self.placed(extent);
        let mut at = extent.addr;
        for part in parts {
            self.unplace_between(at, part.place.addr);
            self.publish_part(node, part);
            at = part.place.end();
        }
        self.unplace_between(at, extent.end());
        Ok(())
    }

    fn unplace_between(&self, from: u64, end: u64) {
        if from < end {
            self.space.unplace(Extent { addr: from, len: end - from });
        }
    }

    /// Makes further sectors part of a block that has some: data that is complete, though not durable.
    pub(super) fn publish_sectors(&self, node: &Node, part: &NewPart) -> Result<()> {
        self.may_record(node)?;
        self.publish_part(node, part);
        Ok(())
    }

    /// Places space for data that is about to be written; `publish` or `unplace` must follow.
    pub(super) async fn place(&self, want: u64, near: Option<u64>) -> Result<Extent> {
        let extent = match self.space.try_place(want, near) {
            Some(extent) => extent,
            None => self.space.place(want, near).await?,
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

    /// Unmaps blocks: they read as zeros from here on, and the store takes their space back.
    fn unmap(&self, node: &Node, blocks: Range<u64>) -> Result<()> {
        self.may_record(node)?;
        let (start, len, birth) = (blocks.start, blocks.end - blocks.start, self.generation.get());
        let lsn = self.journal.append(Record::Unmap { node: node.id, start, len, birth });
        self.put(node, start, Redirect { len, addr: 0, birth, lsn }, None);
        Ok(())
    }

    /// Unmaps those of `blocks` that have space. A long range is unmapped without a look-up, which would read the map
    /// of all of it.
    pub(super) async fn unmap_mapped(&self, node: &Node, blocks: Range<u64>) -> Result<()> {
        if blocks.end - blocks.start > LOOKED_UP_MAX {
            return self.unmap(node, blocks);
        }
        let mut scratch = Scratch::default();
        self.find(node, blocks, &mut scratch).await?;
        let mut mapped = scratch.found.iter().filter(|found| !found.is_hole());
        let Some(first) = mapped.next() else { return Ok(()) };
        // One record covers the holes in between: they cost nothing.
        self.unmap(node, first.start..mapped.next_back().unwrap_or(first).end())
    }

    fn put(&self, node: &Node, start: u64, redirect: Redirect, part: Option<PartialBlock>) {
        let mut displaced = Vec::new();
        self.withdraw(node, start..start + redirect.len);
        self.count(node.id, node.put(start, redirect, part, &mut displaced));
        for extent in displaced {
            self.space.free_uncommitted(extent, redirect.lsn);
        }
        if self.pending.get().is_multiple_of(RESERVE_STEP_RUNS) {
            self.set_reserve();
        }
        // This is the first record since the last flush of all: the task that flushes in time sleeps until a signal.
        let first = self.flush_due_ns.get() == 0;
        if first || self.wants_checkpoint() || self.journal.unflushed_bytes() >= self.options.flush_bytes {
            self.work.notify();
        }
    }

    /// Counts the growth of a node's table.
    pub(super) fn count(&self, node: u64, grown: TableGrowth) {
        if grown.begins {
            self.unmerged.borrow_mut().insert(node);
        }
        self.pending.set(self.pending.get().wrapping_add_signed(grown.runs));
        self.pending_pages.update(|pages| pages + grown.pages * self.trees());
    }

    /// Returns the number of trees of a state that a merge may change.
    pub(super) fn trees(&self) -> u64 {
        1 + u64::from(self.superblock.get().has_sector_masks())
    }

    /// Sets the reserve to what this and the next checkpoint may still need: the pages that merges write, three for each
    /// run until the next update, and the catalogue.
    pub(super) fn set_reserve(&self) {
        let soon = RESERVE_STEP_RUNS as u64 * 3 * self.trees();
        let pages = self.pending_pages.get().saturating_sub(self.pages_placed.get());
        // The next checkpoint may write all of the catalogue beside the present one, and it may grow meanwhile.
        let catalogue = self.superblock.get().catalogue_pages * 5 / 4;
        self.space.set_reserve(pages + soon + self.options.reserve_blocks.max(catalogue));
    }
}
