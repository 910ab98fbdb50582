//! The nodes of a rebuilt store without a catalogue: one for each root in its map pages.
//!
//! Each becomes the disk of a VM of its own. None of them gives space back: their lineage is lost, and so it is unknown which
//! blocks are exclusive.

use std::collections::BTreeMap;
use std::ops::Range;

use blk::Result;
use blk::manifest::{ContentGeneration, DiskMode, DiskState, VmState};

use super::super::change::Op;
use super::super::layout::BLOCK;
use super::super::replayed_records::ReplayedRecords;
use super::super::stored::NodeItem;
use super::super::tree::{PageTag, Roots};
use super::super::vm::recovered_vm;
use super::in_use::InUse;
use super::inputs::Rebuild;
use super::journal::Touched;
use super::nodes::{ANCESTOR_BLOCKS, Mended, NodeList, OfNode, note_changes};
use super::report::{RebuildReport, RebuiltNode};
use super::states::{State, find_states};
use super::trees::{Knowledge, NewPages, Trees, all_lost};
use crate::options::Defect;

/// Disks are given whole MiB if their size is lost.
const SIZE_STEP_BLOCKS: u64 = 256;

/// What the states in map pages are mended with.
pub(super) struct MapPages<'a> {
    pub rebuild: &'a Rebuild<'a>,
    pub trees: &'a Trees<'a>,
    pub pages: &'a NewPages,
    pub records: &'a ReplayedRecords,
}

/// What is known of the states beside their trees.
struct KnownOfStates {
    in_use: InUse,
    touched: Touched,
    /// It is known which state of a node is its newest.
    is_exact: bool,
    /// The greatest generation that was in use.
    generation: u64,
}

impl MapPages<'_> {
    /// Returns the nodes whose roots are in the file.
    pub(super) async fn nodes(&self, report: &mut RebuildReport) -> Result<NodeList> {
        let (states, known) = self.find_states().await?;
        self.note_lost_writes(&known, report);
        let newest_node = states.iter().map(|state| state.tag.node).max().unwrap_or(0);
        let mut list = NodeList {
            items: BTreeMap::new(),
            nodes: BTreeMap::new(),
            generation: known.generation + 1,
            next_node: self.rebuild.anchor.superblock.next_node.max(newest_node + 1),
        };
        let ancestor = list.add_ancestor(known.generation);
        for state in states {
            let (lost, size_blocks) = self.lost_in(&state, &known).await?;
            let id = if state.is_newest { state.tag.node } else { list.new_id() };
            let mut mended = self.mended(&state, id, lost, size_blocks, &known).await?;
            let item = NodeItem { parent: ancestor, size_blocks, roots: mended.roots, ..EMPTY };
            list.nodes.insert(id, item);
            mended.report.name = Some(list.add_vm(self.rebuild, &state, id, size_blocks));
            report.nodes.push(mended.report(size_blocks));
        }
        Ok(list)
    }

    async fn find_states(&self) -> Result<(Vec<State>, KnownOfStates)> {
        let Rebuild { target, anchor, found, defects, .. } = *self.rebuild;
        let superblock = &anchor.superblock;
        let in_use = InUse::read(target, superblock, found).await?;
        let trusts_all = defects.has(Defect::RebuildFromStalePages);
        if !trusts_all {
            in_use.erase_stale(target, found).await?;
        }
        let (states, is_exact) = find_states(superblock, &in_use, found, trusts_all);
        let births = states.iter().map(|state| state.birth).max().unwrap_or(0);
        let generation = superblock.generation.max(births).max(self.records.generation());
        let touched = Touched::by(self.records, target.name(), &states)?;
        Ok((states, KnownOfStates { in_use, touched, is_exact, generation }))
    }

    fn note_lost_writes(&self, known: &KnownOfStates, report: &mut RebuildReport) {
        if !known.is_exact {
            report.notes.push("Pages are damaged that may have been the newest roots of disks.".into());
        }
        note_changes(self.records, report);
        if known.is_exact && known.touched.has_rootless {
            report.notes.push(
                "Disks that had no root of their own at the last checkpoint were written since: these writes are lost.".into(),
            );
        }
    }

    /// Returns the blocks of a state that are lost, and the size of its disk in blocks.
    async fn lost_in(&self, state: &State, known: &KnownOfStates) -> Result<(Vec<Range<u64>>, u64)> {
        let knowledge = Knowledge { in_use: Some(&known.in_use), ..Knowledge::default() };
        let (mut lost, end) = self.trees.lost_in(&state.roots, &Roots::default(), &knowledge).await?;
        let touched = known.touched.of(state.tag.node);
        if !known.is_exact {
            lost.extend_from_slice(touched);
        }
        let of_records = touched.last().filter(|_| state.is_newest || !known.is_exact);
        let end = end.max(of_records.map_or(0, |range| range.end));
        Ok((lost, end.next_multiple_of(SIZE_STEP_BLOCKS).max(SIZE_STEP_BLOCKS)))
    }

    /// Mends the trees of a state, which becomes node `id`.
    async fn mended(
        &self,
        state: &State,
        id: u64,
        lost: Vec<Range<u64>>,
        size_blocks: u64,
        known: &KnownOfStates,
    ) -> Result<Mended> {
        let report = RebuiltNode { node: id, ..RebuiltNode::default() };
        let mut mended = Mended { roots: state.roots, report };
        if state.is_lost {
            mended.lose_all(size_blocks);
            return Ok(mended);
        }
        let records = Some(self.records).filter(|_| state.is_newest);
        let of = OfNode { node: state.tag.node, lost, records, stamp: known.generation, size_blocks };
        mended.mend(self.rebuild, self.trees, self.pages, of).await?;
        Ok(mended)
    }
}

/// A running node without content.
const EMPTY: NodeItem = NodeItem {
    parent: 0,
    sealed: 0,
    size_blocks: SIZE_STEP_BLOCKS,
    dropped: false,
    cursor: 0,
    device: 0,
    roots: Roots { places: None, backings: None },
};

impl NodeList {
    fn new_id(&mut self) -> u64 {
        self.next_node += 1;
        self.next_node - 1
    }

    /// Adds a node that stays and from which all others descend, so that no block is exclusive to one of them. What it had is
    /// unknown.
    fn add_ancestor(&mut self, generation: u64) -> u64 {
        let id = self.new_id();
        self.nodes.insert(id, NodeItem { sealed: generation, roots: all_lost(ANCESTOR_BLOCKS), ..EMPTY });
        id
    }

    /// Adds a VM with one disk, and returns its name.
    fn add_vm(&mut self, rebuild: &Rebuild<'_>, state: &State, node: u64, size_blocks: u64) -> String {
        let PageTag { node: tag, checkpoint } = state.tag;
        let name = match state.is_newest {
            true => format!("recovered-{tag}"),
            false => format!("recovered-{tag}-at-{checkpoint}-{}", state.birth),
        };
        let random = u128::from(rebuild.env.random()) << 64 | u128::from(rebuild.env.random());
        let disk = DiskState {
            number: 0,
            slot: "scsi0:0".into(),
            mode: DiskMode::Persistent,
            size_bytes: size_blocks * BLOCK,
            top: format!("n{node}"),
            reset_to: None,
        };
        let generation = ContentGeneration::begin(rebuild.env.random());
        let vm = VmState {
            name: name.clone(),
            id: random | 1,
            disks: vec![disk],
            generation,
            ..VmState::default()
        };
        if let Op::Put { key, value } = recovered_vm(&vm) {
            self.items.insert(key, value);
        }
        name
    }
}
