//! The end of a rebuild: bitmaps, catalogue and superblocks of the new store.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blk::{Buf, Result};

use super::super::catalogue::Catalogue;
use super::super::change::Key;
use super::super::journal::Position;
use super::super::layout::BLOCK;
use super::super::space::{BitmapsSum, BlockSet, GroupSummary, SLOTS};
use super::super::stored::{encode_group, group_key, node_key};
use super::super::superblock::{ABANDONED_MAX, SLOT_BLOCKS, Superblock};
use super::super::tree::Roots;
use super::anchor::Records;
use super::inputs::Rebuild;
use super::nodes::NodeList;
use super::report::RebuildReport;
use super::trees::{NewPages, Trees, erase_journal};

pub(super) struct Finish<'a> {
    pub rebuild: &'a Rebuild<'a>,
    pub list: &'a NodeList,
    pub pages: &'a NewPages,
    pub trees: &'a Trees<'a>,
    pub keeps_journal: bool,
}

/// A catalogue with the places of its copies: one in the lower halves of new groups, one in the upper ones.
struct LaidOut {
    catalogue: Catalogue,
    copies: [NewPages; 2],
    groups: u64,
}

impl Finish<'_> {
    pub(super) async fn write(&self, records: &Records, report: &mut RebuildReport) -> Result<()> {
        let (file, geometry) = (self.rebuild.target, self.rebuild.anchor.superblock.geometry());
        let mut superblock = self.superblock(records, report.has_catalogue);
        let LaidOut { mut catalogue, copies, groups } = self.lay_out();
        file.set_len(geometry.group_start(groups) * BLOCK).await?;
        let (used, meta) = self.used(groups, &copies).await?;
        let mut summaries = Vec::new();
        for group in 0..groups {
            let summary =
                self.write_bitmap(&used, group, meta[group as usize], superblock.checkpoint).await?;
            summaries.push((group, summary));
            catalogue.items.insert(group_key(group), encode_group(&summary));
        }
        if !self.keeps_journal {
            erase_journal(file, &geometry).await?;
        }
        superblock.groups = groups;
        superblock.ready_to = geometry.group_start(groups);
        superblock.bitmaps_checksum = BitmapsSum::of(summaries.into_iter()).checksum();
        superblock.catalogue_pages = catalogue.next_pages();
        (superblock.catalogue, superblock.second_catalogue) = catalogue.write(file, &superblock).await?;
        file.flush().await?;
        for _ in SLOT_BLOCKS {
            superblock.write(file).await?;
            file.flush().await?;
            superblock.checkpoint += 1;
        }
        report.checkpoint = self.rebuild.anchor.superblock.catalogue_checkpoint;
        Ok(())
    }

    /// Returns the new superblock without the catalogue. `keeps_names`: VMs have the names that clients know.
    fn superblock(&self, records: &Records, keeps_names: bool) -> Superblock {
        let old = self.rebuild.anchor.superblock;
        let checkpoint = self.rebuild.next_checkpoint();
        let mut superblock = Superblock {
            checkpoint,
            catalogue_checkpoint: checkpoint,
            generation: self.list.generation,
            next_node: self.list.next_node,
            abandoned: [[0; 2]; ABANDONED_MAX],
            abandoned_unknown: 0,
            ..old
        };
        if !self.keeps_journal {
            let (epoch, lsn) = match records {
                Records::Known(known) => (known.epoch, known.end.lsn),
                Records::Unknown(_) => (0, 0),
            };
            let lsn = lsn.max(old.journal.lsn).max(old.flushed_lsn + 1);
            superblock.epoch = old.epoch.max(epoch) + 1;
            superblock.journal_epoch = superblock.epoch;
            superblock.journal = Position { seq: 0, lsn };
            superblock.flushed_lsn = lsn - 1;
            // Clients that rely on what is lost may still run, so the content generations are raised.
            superblock.clean = u64::from(!keeps_names);
            superblock.boot = if keeps_names { old.boot | 1 } else { 0 };
        }
        superblock
    }

    fn items(&self, groups: u64) -> BTreeMap<Key, Vec<u8>> {
        let mut items = self.list.items.clone();
        items.extend(self.list.nodes.iter().map(|(id, item)| (node_key(*id), item.encode())));
        items.extend((0..groups).map(|group| (group_key(group), encode_group(&GroupSummary::default()))));
        items
    }

    /// Finds places for the catalogue. It has an item for each group, and groups are added for it.
    fn lay_out(&self) -> LaidOut {
        let geometry = self.rebuild.anchor.superblock.geometry();
        let first = self.pages.groups();
        let half = (geometry.group_blocks / 2).max(SLOTS + 1);
        let mut groups = first + 1;
        loop {
            let copies = [(SLOTS, half), (half, geometry.group_blocks)]
                .map(|(from, to)| NewPages::within(geometry, first, from..to));
            let catalogue =
                Catalogue::lay_out(self.items(groups), &mut |copy, pages| copies[copy].place_many(pages));
            let needed = copies.iter().map(NewPages::groups).fold(groups, u64::max);
            if needed == groups {
                return LaidOut { catalogue, copies, groups };
            }
            groups = needed;
        }
    }

    /// Returns the blocks in use, and which groups hold metadata.
    async fn used(&self, groups: u64, copies: &[NewPages; 2]) -> Result<(BlockSet, Vec<bool>)> {
        let geometry = self.rebuild.anchor.superblock.geometry();
        let mut used = BlockSet::new(geometry);
        used.grow(groups);
        let meta = RefCell::new(vec![false; groups as usize]);
        let note_page = |addr: u64| {
            if let Some(group) = geometry.group_of(addr).filter(|group| *group < groups) {
                meta.borrow_mut()[group as usize] = true;
            }
        };
        for item in self.list.nodes.values() {
            let from = if item.dropped { item.cursor } else { 0 };
            let parent = self.list.nodes.get(&item.parent).filter(|parent| !parent.dropped && !item.dropped);
            let base = parent.map_or(Roots::default(), |parent| parent.roots);
            self.trees.add_used(&item.roots, &base, from, &mut used, &note_page).await?;
        }
        for pages in [self.pages, &copies[0], &copies[1]] {
            pages.add_to(&mut used);
        }
        let mut meta = meta.into_inner();
        meta[self.pages.first_group() as usize..].fill(true);
        Ok((used, meta))
    }

    /// Writes the bitmap of a group into slot 0; slot 1 is zeros.
    async fn write_bitmap(
        &self,
        used: &BlockSet,
        group: u64,
        meta: bool,
        checkpoint: u64,
    ) -> Result<GroupSummary> {
        let file = self.rebuild.target;
        let (addr, page, summary) = used.encode(group, checkpoint, meta);
        file.write(addr * BLOCK, page).await?;
        file.write((addr + 1) * BLOCK, Buf::zeroed(BLOCK as usize)).await?;
        Ok(summary)
    }
}
