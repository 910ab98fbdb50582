//! The nodes of a rebuilt store: those of the catalogue, and what of their trees is lost.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;

use blk::{Error, Result};

use super::super::catalogue::Catalogue;
use super::super::change::Key;
use super::super::layout::BLOCK;
use super::super::replayed_records::ReplayedRecords;
use super::super::source::read_sources;
use super::super::stored::{NodeItem, node_key};
use super::super::superblock::Superblock;
use super::super::table::Table;
use super::super::tree::{PageTag, Roots, span};
use super::super::vm::names_of_nodes;
use super::anchor::Records;
use super::inputs::Rebuild;
use super::journal::apply;
use super::report::{RebuildReport, RebuiltNode, in_bytes};
use super::trees::{Knowledge, NewPages, Trees, all_lost, lose, unmap};
use crate::options::Defect;

/// Blocks of the ancestor of states that are found without a catalogue: more than a disk has that those states may be of.
pub(super) const ANCESTOR_BLOCKS: u64 = span(5);

/// The nodes, and the items of the store's users.
pub(super) struct NodeList {
    pub items: BTreeMap<Key, Vec<u8>>,
    pub nodes: BTreeMap<u64, NodeItem>,
    pub generation: u64,
    pub next_node: u64,
}

/// Trees of a node, and what they became.
pub(super) struct Mended {
    pub roots: Roots,
    pub report: RebuiltNode,
}

impl NodeList {
    /// Returns the nodes of a catalogue. `Damaged` if they contradict each other.
    pub(super) fn of_catalogue(
        catalogue: Catalogue,
        superblock: &Superblock,
        place: &str,
        report: &mut RebuildReport,
    ) -> Result<NodeList> {
        let wrong = |cause: String| Error::damaged(place, cause);
        let mut nodes = BTreeMap::new();
        for (key, bytes) in catalogue.items.range(node_key(0)..=node_key(u64::MAX)) {
            let item = NodeItem::decode(bytes, place)?;
            item.check(key.minor, superblock).map_err(wrong)?;
            nodes.insert(key.minor, item);
        }
        for (id, item) in nodes.iter().filter(|(_, item)| item.parent != 0) {
            item.check_parent(*id, nodes.get(&item.parent)).map_err(wrong)?;
        }
        read_sources(&catalogue.items, superblock, place)?;
        for error in &catalogue.damaged {
            report
                .notes
                .push(format!("One copy of the catalogue is damaged, and the other one was used: {error}."));
        }
        let (generation, next_node) = (superblock.generation, superblock.next_node);
        Ok(NodeList { items: catalogue.user_items(), nodes, generation, next_node })
    }

    /// Makes what is damaged lost, in all nodes. `records`: those to merge, if the new store does not have the journal.
    pub(super) async fn mend(
        &mut self,
        rebuild: &Rebuild<'_>,
        trees: &Trees<'_>,
        pages: &NewPages,
        records: Option<&Records>,
        report: &mut RebuildReport,
    ) -> Result<()> {
        if let Some(Records::Known(known)) = records {
            self.generation = self.generation.max(known.generation());
            note_changes(known, report);
        }
        let mut order: Vec<u64> = self.nodes.keys().copied().collect();
        // Parents first.
        order.sort_by_key(|id| (self.nodes[id].sealed == 0, self.nodes[id].sealed, *id));
        let before = self.nodes.clone();
        let names = names_of_nodes(&self.items);
        let mut lost: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for id in order {
            let item = before[&id];
            // The ancestor of states that an earlier rebuild found without a catalogue shows nothing to anybody.
            if item.dropped || item.roots == all_lost(ANCESTOR_BLOCKS) {
                continue;
            }
            let whole = before.get(&item.parent).filter(|parent| !parent.dropped);
            let whole = whole.filter(|_| lost.get(&item.parent).is_some_and(Vec::is_empty));
            let base = whole.map_or(Roots::default(), |parent| parent.roots);
            let known = Knowledge { has_sources: true, ..Knowledge::default() };
            let (ranges, _) = trees.lost_in(&item.roots, &base, &known).await?;
            lost.insert(id, ranges.clone());
            let name = names.get(&id).cloned();
            let mut mended =
                Mended { roots: item.roots, report: RebuiltNode { node: id, name, ..Default::default() } };
            if item.sealed == 0 && matches!(records, Some(Records::Unknown(_))) {
                mended.lose_all(item.size_blocks);
                lost.insert(id, iter::once(0..item.size_blocks).collect());
            } else {
                let known = records.and_then(|records| match records {
                    Records::Known(known) if item.sealed == 0 => Some(known),
                    _ => None,
                });
                let (stamp, node) = (if item.sealed == 0 { self.generation } else { item.sealed }, id);
                let of = OfNode { node, lost: ranges, records: known, stamp, size_blocks: item.size_blocks };
                mended.mend(rebuild, trees, pages, of).await?;
            }
            self.nodes.insert(id, NodeItem { roots: mended.roots, ..item });
            report.nodes.push(mended.report(item.size_blocks));
        }
        self.generation += u64::from(records.is_some());
        Ok(())
    }
}

pub(super) fn note_changes(records: &ReplayedRecords, report: &mut RebuildReport) {
    if records.changes() > 0 {
        report.notes.push(format!(
            "{} changes of VMs and snapshots after the last checkpoint are lost, and so is what was written to disks that these \
             changes made.",
            records.changes()
        ));
    }
}

/// What is to be done with a node's trees.
pub(super) struct OfNode<'a> {
    /// The node of the records.
    pub node: u64,
    pub lost: Vec<Range<u64>>,
    pub records: Option<&'a ReplayedRecords>,
    pub stamp: u64,
    pub size_blocks: u64,
}

impl Mended {
    pub(super) fn lose_all(&mut self, size_blocks: u64) {
        self.roots = all_lost(size_blocks);
        self.report.lost = iter::once(0..size_blocks).collect();
    }

    pub(super) async fn mend(
        &mut self,
        rebuild: &Rebuild<'_>,
        trees: &Trees<'_>,
        pages: &NewPages,
        of: OfNode<'_>,
    ) -> Result<()> {
        let mut table = Table::default();
        for range in &of.lost {
            let range = range.start.min(of.size_blocks)..range.end.min(of.size_blocks);
            match rebuild.defects.has(Defect::RebuildLostAsZeros) {
                true => unmap(&mut table, range),
                false => lose(&mut table, range),
            }
        }
        if let Some(records) = of.records {
            apply(&mut table, of.node, records, rebuild.anchor.from_head, rebuild.found);
        }
        if !table.is_empty() {
            let tag = PageTag { node: of.node, checkpoint: rebuild.next_checkpoint() };
            self.roots = trees.merge(self.roots, &table, of.stamp, tag, pages).await?;
        }
        let lost = table.runs().filter(|(_, run)| super::super::layout::is_lost(run.addr));
        self.report.lost = lost.map(|(start, run)| start..start + run.len).collect();
        Ok(())
    }

    /// Returns the report; the ranges so far are of blocks.
    pub(super) fn report(self, size_blocks: u64) -> RebuiltNode {
        let RebuiltNode { lost, .. } = &self.report;
        RebuiltNode {
            bytes: size_blocks * BLOCK,
            recovered_bytes: self.roots.blocks() * BLOCK,
            lost: in_bytes(lost.clone(), size_blocks),
            ..self.report
        }
    }
}
