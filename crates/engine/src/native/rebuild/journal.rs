//! The records of a journal, as tables over the trees of the last checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blk::Result;

use super::super::change::{Op, decode};
use super::super::journal::Record;
use super::super::layout::Extent;
use super::super::replayed_records::ReplayedRecords;
use super::super::table::{Redirect, Table};
use super::copy::Found;
use super::states::State;
use super::trees::lose;

impl ReplayedRecords {
    /// Returns whether some data cannot be read that records name and that was not aborted.
    pub(super) fn has_unreadable(&self, found: &Found) -> bool {
        let records = self.records.iter().filter(|(lsn, _)| !self.aborted.contains(lsn));
        records.filter_map(|(_, record)| data_of(record)).any(|at| found.is_unreadable(at.addr, at.len))
    }

    /// Returns the greatest generation that a record has.
    pub(super) fn generation(&self) -> u64 {
        let births = self.records.iter().map(|(_, record)| match record {
            Record::Map { birth, .. } | Record::Unmap { birth, .. } => *birth,
            Record::Sectors(sectors) => sectors.birth,
            Record::Change(_) => 0,
        });
        births.max().unwrap_or(0)
    }

    /// Returns the number of changes of disks, VMs and snapshots.
    pub(super) fn changes(&self) -> usize {
        self.records.iter().filter(|(_, record)| matches!(record, Record::Change(_))).count()
    }
}

/// Returns the node of a record, and the blocks that it changes.
fn blocks_of(record: &Record) -> Option<(u64, Range<u64>)> {
    match record {
        Record::Map { node, start, len, .. } => Some((*node, *start..start + u64::from(*len))),
        Record::Unmap { node, start, len, .. } => Some((*node, *start..start + len)),
        Record::Sectors(sectors) => Some((sectors.node, sectors.block..sectors.block + 1)),
        Record::Change(_) => None,
    }
}

/// Returns the place of a record's data.
fn data_of(record: &Record) -> Option<Extent> {
    match record {
        Record::Map { addr, len, .. } => Some(Extent { addr: *addr, len: u64::from(*len) }),
        Record::Sectors(sectors) => Some(Extent { addr: sectors.addr, len: 1 }),
        Record::Unmap { .. } | Record::Change(_) => None,
    }
}

/// The blocks that records change, also those of records that do not count, by the node of the records.
pub(super) struct Touched {
    /// In order, and without overlaps.
    blocks: BTreeMap<u64, Vec<Range<u64>>>,
    /// Records are of nodes that were there at the checkpoint and whose root is not known: an empty disk has none, and a
    /// branch that was not written before has that of its ancestor.
    pub has_rootless: bool,
}

impl Touched {
    /// `states`: those of the last checkpoint.
    pub(super) fn by(records: &ReplayedRecords, place: &str, states: &[State]) -> Result<Touched> {
        let mut blocks: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        let mut later = BTreeSet::new();
        for (_, record) in &records.records {
            if let Some((node, range)) = blocks_of(record) {
                blocks.entry(node).or_default().push(range);
            }
            if let Record::Change(bytes) = record {
                later.extend(decode(bytes, place)?.iter().filter_map(new_node));
            }
        }
        blocks.values_mut().for_each(join);
        let newest: BTreeSet<u64> =
            states.iter().filter(|state| state.is_newest).map(|state| state.tag.node).collect();
        let is_rootless = |node: &u64| !newest.contains(node) && !later.contains(node);
        let has_rootless = blocks.keys().any(is_rootless);
        Ok(Touched { blocks, has_rootless })
    }

    /// Returns the blocks that the records of a node change.
    pub(super) fn of(&self, node: u64) -> &[Range<u64>] {
        self.blocks.get(&node).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Returns the node that an operation makes.
fn new_node(op: &Op) -> Option<u64> {
    match *op {
        Op::Create { node, .. } | Op::CreateOver { node, .. } | Op::Branch { node, .. } => Some(node),
        Op::Take { sealed, .. } => Some(sealed),
        _ => None,
    }
}

/// Sorts ranges, and joins those that touch.
fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
}

/// Applies the records of one node to its table. A record without its data never happened; without a superblock
/// (`in_doubt`) its data may have been overwritten since, and the blocks are lost. So are blocks of which only some sectors
/// were written, and data that cannot be read.
pub(super) fn apply(table: &mut Table, node: u64, records: &ReplayedRecords, in_doubt: bool, found: &Found) {
    for (lsn, record) in &records.records {
        let Some((_, blocks)) = blocks_of(record).filter(|(of, _)| *of == node) else { continue };
        let is_unreadable = data_of(record).is_some_and(|at| found.is_unreadable(at.addr, at.len));
        match records.counts(*lsn) {
            _ if records.aborted.contains(lsn) => continue,
            true => {}
            false if in_doubt || is_unreadable => {
                lose(table, blocks);
                continue;
            }
            false => continue,
        }
        match *record {
            Record::Map { len, addr, birth, .. } => {
                let redirect = Redirect { len: u64::from(len), addr, birth, lsn: *lsn };
                table.insert(blocks.start, redirect, &mut Vec::new());
                for n in (0..u64::from(len)).filter(|n| found.is_unreadable(addr + n, 1)) {
                    lose(table, blocks.start + n..blocks.start + n + 1);
                }
            }
            Record::Unmap { len, birth, .. } => {
                table.insert(blocks.start, Redirect { len, addr: 0, birth, lsn: *lsn }, &mut Vec::new());
            }
            Record::Sectors(_) => lose(table, blocks),
            Record::Change(_) => {}
        }
    }
}
