//! The records of a journal at an opening: which of them count, by the data that the medium has.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Buf, Error, ErrorKind, File, Result};
use futures_util::StreamExt;
use futures_util::stream;

use super::backing::{ALL_SECTORS, groups_of};
use super::change::{Op, decode};
use super::journal::{Position, Record, Replayed, SectorsRecord};
use super::layout::{BLOCK, checksum};
use super::media::read_hard;

/// Number of reads under way at once that compare data with its checksum.
const COMPARED_AT_ONCE: usize = 16;

/// The journal's records, and which of them count.
pub(super) struct ReplayedRecords {
    pub(super) records: Vec<(u64, Record)>,
    /// Records whose data was not flushed and is missing.
    pub(super) missing: BTreeSet<u64>,
    /// Records declared aborted by an earlier recovery.
    pub(super) aborted: BTreeSet<u64>,
    /// Errors of the missing records whose data the device cannot read.
    pub(super) unreadable: Vec<Error>,
    pub(super) end: Position,
    pub(super) flushed_lsn: u64,
    pub(super) epoch: u64,
}

impl ReplayedRecords {
    /// Reads all records; `tail` are those behind the journal's end.
    pub(super) async fn read(
        file: &File,
        found: Replayed,
        tail: &[(u64, Record)],
    ) -> Result<ReplayedRecords> {
        let Replayed { mut records, end, flushed_lsn, epoch, .. } = found;
        records.extend_from_slice(tail);
        let mut aborted = BTreeSet::new();
        for (lsn, record) in &records {
            let Record::Change(bytes) = record else { continue };
            for op in decode(bytes, &format!("{}: record {lsn}", file.name()))? {
                if let Op::Abort { first, last } = op {
                    let (oldest, newest) = (records[0].0, records[records.len() - 1].0);
                    aborted.extend(first.max(oldest)..=last.min(newest));
                }
            }
        }
        let doubtful = &records[records.partition_point(|(lsn, _)| *lsn <= flushed_lsn)..];
        let doubtful = doubtful.iter().filter(|(lsn, _)| !aborted.contains(lsn));
        let mut compared = stream::iter(doubtful.map(|(lsn, record)| compare_data(file, *lsn, record)))
            .buffer_unordered(COMPARED_AT_ONCE);
        let (mut missing, mut unreadable) = (BTreeSet::new(), Vec::new());
        while let Some((lsn, data)) = compared.next().await {
            match data? {
                RecordData::There => {}
                RecordData::Absent => drop(missing.insert(lsn)),
                RecordData::Unreadable(e) => {
                    missing.insert(lsn);
                    unreadable.push(e);
                }
            }
        }
        drop(compared);
        Ok(ReplayedRecords { records, missing, aborted, unreadable, end, flushed_lsn, epoch })
    }

    /// Returns whether a record is neither missing nor aborted.
    pub(super) fn counts(&self, lsn: u64) -> bool {
        !self.missing.contains(&lsn) && !self.aborted.contains(&lsn)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.records.iter().filter(|(lsn, _)| self.counts(*lsn)).filter_map(|(_, record)| match record {
            Record::Map { addr, .. } => Some(*addr),
            Record::Sectors(sectors) => Some(sectors.addr),
            Record::Unmap { .. } | Record::Change(_) => None,
        })
    }
}

/// Sectors whose records do not count, by the address of their block: later records of the block name them as present.
#[derive(Default)]
pub(super) struct MissingSectors {
    missing: BTreeMap<u64, u8>,
    /// Blocks whose first record does not count, and none behind it so far.
    unplaced: BTreeSet<u64>,
}

impl MissingSectors {
    /// Notes the next record of a block, which `counts` or not.
    pub(super) fn note(&mut self, record: &SectorsRecord, counts: bool) {
        let addr = record.addr;
        if record.is_first() {
            self.missing.remove(&addr);
            self.unplaced.remove(&addr);
        }
        match counts {
            true => self.missing.entry(addr).and_modify(|missing| *missing &= !record.added),
            false => self.missing.entry(addr).and_modify(|missing| *missing |= record.added),
        };
        if !counts {
            self.missing.entry(addr).or_insert(record.added);
            if record.is_first() {
                self.unplaced.insert(addr);
            }
        }
    }

    /// Returns whether the block is placed by this record, which counts.
    pub(super) fn places(&mut self, record: &SectorsRecord) -> bool {
        self.unplaced.remove(&record.addr) || record.is_first()
    }

    pub(super) fn of(&self, addr: u64) -> u8 {
        self.missing.get(&addr).copied().unwrap_or(0)
    }
}

/// What the medium holds of a record's data.
enum RecordData {
    There,
    Absent,
    Unreadable(Error),
}

async fn compare_data(file: &File, lsn: u64, record: &Record) -> (u64, Result<RecordData>) {
    let (node, start, len, addr, expected, sectors) = match record {
        Record::Map { node, start, len, addr, checksum, .. } => {
            (*node, *start, *len, *addr, *checksum, ALL_SECTORS)
        }
        Record::Sectors(SectorsRecord { node, block, addr, checksum, added, .. }) => {
            (*node, *block, 1, *addr, *checksum, *added)
        }
        Record::Unmap { .. } | Record::Change(_) => return (lsn, Ok(RecordData::There)),
    };
    let (data, result) = match sectors {
        ALL_SECTORS => read_hard(file, addr * BLOCK, u64::from(len) * BLOCK).await,
        _ => read_sectors(file, addr, sectors).await,
    };
    let data = match result {
        Ok(()) if checksum(&data) == expected => Ok(RecordData::There),
        Ok(()) => Ok(RecordData::Absent),
        // The file had not grown that far when the power went.
        Err(e) if e.kind == ErrorKind::Damaged => Ok(RecordData::Absent),
        // A sector may be unreadable if its write was under way when the power was lost.
        Err(e) if e.kind == ErrorKind::Io => {
            let blocks = format!("blocks {start}..{} of node {node}", start + u64::from(len));
            let cause = format!(
                "{blocks} show what they held before journal record {lsn}: its data cannot be read: {e}"
            );
            Ok(RecordData::Unreadable(Error::damaged(file.name(), cause)))
        }
        Err(e) => Err(e),
    };
    (lsn, data)
}

/// Reads these sectors of a block, and no others: one that was being written when the power went may be unreadable.
async fn read_sectors(file: &File, addr: u64, sectors: u8) -> (Buf, Result<()>) {
    let mut found = Vec::new();
    for group in groups_of(sectors) {
        let (data, result) = read_hard(file, addr * BLOCK + group.start, group.end - group.start).await;
        if result.is_err() {
            return (data, result);
        }
        found.extend_from_slice(&data);
    }
    (Buf::copy_of(&found), Ok(()))
}
