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
use std::rc::Rc;

use blk::{Buf, Result, SECTOR};
use futures_util::future::{join, join_all};

use crate::vmware::extent::Extent;
use crate::vmware::fifo_lock::FifoLock;
use crate::vmware::host::{Host, Purpose};
use crate::vmware::rules::{JOURNAL_RECORD_SECTORS, JOURNAL_SLOTS};

/// Number of a sector of the file, from 0.
pub(super) type Sector = u64;

/// Sectors of each first write that no record carries yet, oldest first.
type Waiting = VecDeque<BTreeSet<Sector>>;

pub(super) struct Journal {
    extent: Extent,
    host: Rc<Host>,
    /// Offset of the journal in the file, bytes.
    at: u64,
    /// Most first writes of one record.
    writes_max: u32,
    waiting: RefCell<Waiting>,
    /// First writes so far, and those of them whose record is on the medium.
    came: Cell<u64>,
    logged: Cell<u64>,
    /// One record is written at a time: records behind a hole in the sequence are void.
    lock: FifoLock,
    records: Cell<u64>,
    /// Sectors that the last record carried and that are not in their places yet.
    behind: RefCell<BTreeSet<Sector>>,
}

impl Journal {
    pub(super) fn new(extent: Extent, host: Rc<Host>, at: u64, writes_max: u32) -> Journal {
        Journal {
            extent,
            host,
            at,
            writes_max,
            waiting: RefCell::default(),
            came: Cell::new(0),
            logged: Cell::new(0),
            lock: FifoLock::default(),
            records: Cell::new(0),
            behind: RefCell::default(),
        }
    }

    /// Resolves when journal records carry all of `sectors`: one record, or several where one has no space. Writes that
    /// wait meanwhile share the next record.
    pub(super) async fn log(&self, sectors: BTreeSet<Sector>) -> Result<()> {
        self.waiting.borrow_mut().push_back(sectors);
        let own = self.came.get();
        self.came.set(own + 1);
        let _guard = self.lock.lock().await;
        while self.logged.get() <= own {
            self.write_record().await?;
        }
        Ok(())
    }

    /// Writes one record. Waiting writes stay in the queue until their record is written, because the writing task may
    /// be dropped.
    async fn write_record(&self) -> Result<()> {
        let (carried, whole) = next_record(&self.waiting.borrow(), self.writes_max as usize);
        let slot_bytes = u64::from(1 + JOURNAL_RECORD_SECTORS) * SECTOR;
        let at = self.at + self.records.get() % JOURNAL_SLOTS * slot_bytes;
        let record = Buf::zeroed((1 + carried.len()) * SECTOR as usize).freeze();
        let record = self.extent.write(&self.host, at, record, Purpose::Table);
        let behind = self.behind.borrow().clone();
        let (written, in_place) = join(record, self.write_sectors(&behind)).await;
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

/// Returns what the next record carries, of at most `limit` first writes, and how many of these it carries whole.
/// That is none where the first write has more sectors than a record holds.
fn next_record(waiting: &Waiting, limit: usize) -> (BTreeSet<Sector>, usize) {
    let sectors_max = JOURNAL_RECORD_SECTORS as usize;
    let mut carried = BTreeSet::new();
    let mut whole = 0;
    for sectors in waiting.iter().take(limit) {
        let together: BTreeSet<Sector> = carried.union(sectors).copied().collect();
        if together.len() > sectors_max {
            break;
        }
        carried = together;
        whole += 1;
    }
    if whole == 0 {
        carried = waiting.iter().flatten().copied().take(sectors_max).collect();
    }
    (carried, whole)
}

/// Returns the sectors that contain bytes of a range.
pub(super) fn sectors(bytes: Range<u64>) -> Range<Sector> {
    bytes.start / SECTOR..bytes.end.div_ceil(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(writes: &[&[Sector]]) -> Waiting {
        writes.iter().map(|sectors| sectors.iter().copied().collect()).collect()
    }

    #[test]
    fn a_record_takes_what_has_room_and_is_allowed() {
        let queue = waiting(&[&[1, 2], &[2, 3], &[4]]);
        assert_eq!(next_record(&queue, 24), (BTreeSet::from([1, 2, 3, 4]), 3));
        assert_eq!(next_record(&queue, 1), (BTreeSet::from([1, 2]), 1));
        let apart: Vec<Vec<Sector>> = (0..30).map(|n| vec![n * 10, n * 10 + 1]).collect();
        let apart: Vec<&[Sector]> = apart.iter().map(Vec::as_slice).collect();
        assert_eq!(next_record(&waiting(&apart), 24).1, 12);
    }

    #[test]
    fn what_is_larger_than_a_record_is_carried_in_parts() {
        let large: Vec<Sector> = (0..60).collect();
        let (carried, whole) = next_record(&waiting(&[&large]), 24);
        assert_eq!((carried.len(), whole), (24, 0));
    }

    #[test]
    fn the_slots_are_those_of_the_file_that_was_looked_into() {
        assert_eq!(JOURNAL_SLOTS, 81);
    }
}
