//! The records of a journal, as tables over the trees of the last checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::journal::Record;
use super::super::layout::Extent;
use super::super::replayed_records::ReplayedRecords;
use super::super::table::{Redirect, Table};
use super::copy::Found;
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

/// Returns the blocks that records change, by node: also those of records that do not count.
pub(super) fn touched(records: &ReplayedRecords) -> BTreeMap<u64, Vec<Range<u64>>> {
    let mut touched: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
    for (node, blocks) in records.records.iter().filter_map(|(_, record)| blocks_of(record)) {
        touched.entry(node).or_default().push(blocks);
    }
    touched
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
