//! SEsparse's metadata on its way into the file: journal records, then the sectors that they carry.
//!
//! A first write changes sectors of the grain table, the backmap and the bitmap; a new table also changes a sector of
//! the directory. A record carries whole sectors and is on the medium when the write is acknowledged; the sectors are
//! written to their places afterwards. A host's file shows sizes, order, and one sequence of records. It does not show
//! how many first writes share a record under load ([`Rules::journal_writes`]), nor when the sectors are written to
//! their places. Here that happens while the next record is written, which costs the guest least.
//!
//! [`Rules::journal_writes`]: crate::vmware::rules::Rules::journal_writes

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use blk::{Buf, Result, SECTOR};
use futures_util::future::{join, join_all};

use super::Delta;
use crate::vmware::format::SE_BACKMAP_ENTRY_BYTES;
use crate::vmware::host::Purpose;
use crate::vmware::map::REGION_GRAINS;
use crate::vmware::rules::{JOURNAL_RECORD_SECTORS, JOURNAL_SLOTS};
use crate::vmware::turns::Turns;

/// Number of a sector of the file, from 0.
type Sector = u64;

pub(super) struct Journal {
    /// Offset of the journal in the file, bytes.
    at: u64,
    /// Sectors of each first write that no record carries yet, oldest first.
    waiting: RefCell<VecDeque<BTreeSet<Sector>>>,
    /// First writes so far, and those of them whose record is on the medium.
    came: Cell<u64>,
    logged: Cell<u64>,
    /// One record is written at a time: records behind a hole in the sequence are void.
    turns: Turns,
    records: Cell<u64>,
    /// Sectors that the last record carried and that are not in their places yet.
    behind: RefCell<BTreeSet<Sector>>,
}

impl Journal {
    pub(super) fn new(at: u64) -> Journal {
        Journal {
            at,
            waiting: RefCell::default(),
            came: Cell::new(0),
            logged: Cell::new(0),
            turns: Turns::default(),
            records: Cell::new(0),
            behind: RefCell::default(),
        }
    }

    /// Resolves when journal records carry all of `sectors`: one record, or several where one has no room. Writes that
    /// wait meanwhile share the next record.
    pub(super) async fn log(&self, delta: &Delta, sectors: BTreeSet<Sector>) -> Result<()> {
        self.waiting.borrow_mut().push_back(sectors);
        let own = self.came.get();
        self.came.set(own + 1);
        let _turn = self.turns.take().await;
        while self.logged.get() <= own {
            self.write_record(delta).await?;
        }
        Ok(())
    }

    /// Writes one record. Waiting writes stay in the queue until their record is written, because the writing task may
    /// be dropped.
    async fn write_record(&self, delta: &Delta) -> Result<()> {
        let (carried, whole) = self.next_record(delta.kind.rules.journal_writes as usize);
        let slot_bytes = u64::from(1 + JOURNAL_RECORD_SECTORS) * SECTOR;
        let at = self.at + self.records.get() % JOURNAL_SLOTS * slot_bytes;
        let record = Buf::zeroed((1 + carried.len()) * SECTOR as usize).freeze();
        let record = delta.extent.write(&delta.host, at, record, Purpose::Table);
        let behind = self.behind.borrow().clone();
        let (written, in_place) = join(record, delta.write_sectors(&behind)).await;
        written.and(in_place)?;
        self.records.set(self.records.get() + 1);
        self.logged.set(self.logged.get() + whole as u64);
        let mut waiting = self.waiting.borrow_mut();
        waiting.drain(..whole);
        if whole == 0
            && let Some(first) = waiting.front_mut()
        {
            first.retain(|sector| !carried.contains(sector));
        }
        *self.behind.borrow_mut() = carried;
        Ok(())
    }

    /// Returns what the next record carries, of at most `limit` first writes, and how many of these it carries whole.
    /// That is none where the first write has more sectors than a record holds.
    fn next_record(&self, limit: usize) -> (BTreeSet<Sector>, usize) {
        let room = JOURNAL_RECORD_SECTORS as usize;
        let waiting = self.waiting.borrow();
        let mut carried = BTreeSet::new();
        let mut whole = 0;
        for sectors in waiting.iter().take(limit) {
            let together: BTreeSet<Sector> = carried.union(sectors).copied().collect();
            if together.len() > room {
                break;
            }
            carried = together;
            whole += 1;
        }
        if whole == 0 {
            carried = waiting.iter().flatten().copied().take(room).collect();
        }
        (carried, whole)
    }
}

impl Delta {
    /// Returns the sectors that changed because the grains of `range` were placed.
    pub(super) fn changed_sectors(&self, range: &Range<u64>) -> BTreeSet<Sector> {
        let mut changed = BTreeSet::new();
        for region in self.regions_of(range) {
            let first = (range.start / self.grain()).max(region * REGION_GRAINS);
            let end = range.end.div_ceil(self.grain()).min((region + 1) * REGION_GRAINS);
            self.change_table(region, &(first..end), &mut changed);
            let state = self.state.borrow();
            state
                .map
                .each_held(first, end - first, |_, count, at| self.change_space(at, count, &mut changed));
        }
        changed
    }

    /// Adds the sectors of the region's table that have entries of `grains`, and the directory's sector if the table is
    /// new.
    fn change_table(&self, region: u64, grains: &Range<u64>, changed: &mut BTreeSet<Sector>) {
        let entry_bytes = self.layout.format.entry_bytes();
        let mut state = self.state.borrow_mut();
        let table = state.map.table_at(region).expect("a region with grains has a table") * self.grain();
        let inside = |grain: u64| (grain - region * REGION_GRAINS) * entry_bytes;
        changed.extend(sectors(table + inside(grains.start)..table + inside(grains.end)));
        if state.map.is_table_new(region) {
            let entry = self.layout.directory_at + region * entry_bytes;
            changed.extend(sectors(entry..entry + entry_bytes));
        }
    }

    /// Adds the sectors of bitmap and backmap for `count` grains from `at` of the file.
    fn change_space(&self, at: u64, count: u64, changed: &mut BTreeSet<Sector>) {
        let Some(parts) = self.layout.parts else { return };
        let first = at - self.layout.data_at / self.grain();
        let end = first + count;
        let bits = u64::from(u8::BITS);
        changed.extend(sectors(parts.bitmap_at + first / bits..parts.bitmap_at + end.div_ceil(bits)));
        let owner = |grain: u64| parts.backmap_at + grain * SE_BACKMAP_ENTRY_BYTES;
        changed.extend(sectors(owner(first)..owner(end)));
    }

    /// Writes these sectors to their places, neighbours in one I/O. They are never read again, so their content is
    /// zeros.
    async fn write_sectors(&self, sectors: &BTreeSet<Sector>) -> Result<()> {
        let mut runs: Vec<Range<Sector>> = Vec::new();
        for &sector in sectors {
            match runs.last_mut() {
                Some(run) if run.end == sector => run.end += 1,
                _ => runs.push(sector..sector + 1),
            }
        }
        let writes = runs.into_iter().map(|run| {
            let data = Buf::zeroed(((run.end - run.start) * SECTOR) as usize).freeze();
            self.extent.write(&self.host, run.start * SECTOR, data, Purpose::Table)
        });
        join_all(writes).await.into_iter().collect()
    }
}

/// Returns the sectors that contain bytes of a range.
fn sectors(bytes: Range<u64>) -> Range<Sector> {
    bytes.start / SECTOR..bytes.end.div_ceil(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(writes: &[&[Sector]]) -> Journal {
        let journal = Journal::new(0);
        journal.waiting.borrow_mut().extend(writes.iter().map(|sectors| sectors.iter().copied().collect()));
        journal
    }

    #[test]
    fn a_record_takes_what_has_room_and_is_allowed() {
        let journal = waiting(&[&[1, 2], &[2, 3], &[4]]);
        assert_eq!(journal.next_record(24), (BTreeSet::from([1, 2, 3, 4]), 3));
        assert_eq!(journal.next_record(1), (BTreeSet::from([1, 2]), 1));
        let apart: Vec<Vec<Sector>> = (0..30).map(|n| vec![n * 10, n * 10 + 1]).collect();
        let apart: Vec<&[Sector]> = apart.iter().map(Vec::as_slice).collect();
        assert_eq!(waiting(&apart).next_record(24).1, 12);
    }

    #[test]
    fn what_is_larger_than_a_record_is_carried_in_parts() {
        let large: Vec<Sector> = (0..60).collect();
        let (carried, whole) = waiting(&[&large]).next_record(24);
        assert_eq!((carried.len(), whole), (24, 0));
    }

    #[test]
    fn the_slots_are_those_of_the_file_that_was_looked_into() {
        assert_eq!(JOURNAL_SLOTS, 81);
    }
}
