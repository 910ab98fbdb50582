//! The journal: a ring of pages behind the header that records all changes since the last checkpoint.
//!
//! Records gather in a batch in memory. A batch is written when the next record does not fit, or when a round of
//! flushes begins. One device flush then makes data and records durable together: a record carries the checksum of its
//! data, so a replay can detect a record whose data was lost.
//!
//! The `flushed_lsn` that a batch carries becomes durable one round later. Only then is it certain that no replay will
//! doubt the records up to it, and their blocks may be overwritten in place.
//!
//! Page numbers (`seq`) count over all laps of the ring and never repeat in one epoch. Every opening of the store has
//! an epoch of its own, which is durable in a superblock before its first batch: batches left from an earlier epoch end
//! a replay.

mod batch;
#[cfg(test)]
mod crash_tests;
mod end;
mod memory_tail;
mod named;
mod record;
mod replay;
mod rounds;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreadable_tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use blk::sync::Signal;
use blk::{Env, Error, File, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::layout::{BLOCK, Geometry, HEADER_BLOCKS};
use batch::{OpenBatch, Stamp};

pub(crate) use memory_tail::MemoryTail;
pub(crate) use named::{RingBatches, has_partial_batch};
pub(crate) use record::CHANGE_BYTES_MAX;
pub use record::{Record, SectorsRecord};
pub use replay::{Begin, Replayed, replay};

/// Pages of a `Change` of the greatest length: its 32 pages, and one more that its header spills into.
const CHANGE_PAGES_MAX: u64 = CHANGE_BYTES_MAX as u64 / BLOCK + 1;

/// Pages that one `Change` may use up: those passed over where it does not fit before the ring's end, its own, and an
/// empty batch behind it. 66 pages.
const CHANGE_ROOM: u64 = (CHANGE_PAGES_MAX - 1) + CHANGE_PAGES_MAX + 1;

/// Pages that a `Map` or an `Unmap` may use up: its own, one that it spills into, and an empty batch behind it.
const RECORD_ROOM: u64 = 3;

/// Pages that may still be written after guests and changes have to wait, by those that were admitted before: 20 pages
/// of records (83 `Map` each, 1,660 in all), and 64 rounds that close a batch early and need an empty one behind it.
const ADMITTED_PAGES: u64 = 20 + 64 * 2;

/// Pages of the ring that guests leave free: room for four changes of the greatest length (most take a page), so that
/// takes and removals go on while a checkpoint makes room, and for what is still under way. 412 pages, 1.6 MiB.
pub(crate) const RESERVE_PAGES: u64 = 4 * CHANGE_ROOM + ADMITTED_PAGES;

/// Smallest ring: the reserve, and as much again for guests: 3.2 MiB.
pub const JOURNAL_PAGES_MIN: u64 = 2 * RESERVE_PAGES;

/// Interval between two tries of a write that finds no space.
const SPACE_RETRY_US: u64 = 100_000;

/// A place in the journal: the next batch's page number and the next record's number, which counts from 1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Position {
    /// Number of the page, over all laps of the ring.
    pub seq: u64,
    /// Number of the record.
    pub lsn: u64,
}

/// State that a journal continues from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// Greater than the epoch of every earlier batch and superblock, and already durable in a superblock.
    pub epoch: u64,
    /// Position at which the replay ended.
    pub at: Position,
    /// The oldest page still needed: where a replay would begin.
    pub tail: u64,
    /// Every record up to this one has its data, durably, and a superblock records that. Usually these are all records
    /// before `at`.
    pub flushed_lsn: u64,
    /// The newest durable checkpoint.
    pub checkpoint: u64,
    /// The checkpoint that wrote its catalogue, which an opening does not; 0 before the first.
    pub catalogue_checkpoint: u64,
    /// The newest checkpoint that a durable batch names, if known; 0 makes the first round name `checkpoint`.
    pub named: u64,
}

/// The journal of an open store.
pub(crate) struct Journal {
    env: Env,
    file: File,
    geometry: Geometry,
    epoch: u64,
    pub memory_tail: MemoryTail,
    state: RefCell<State>,
    /// Signals that a batch's write has ended.
    written: Signal,
    /// Signals that a round has ended.
    rounds: Signal,
    /// Makes a write that finds no space fail, instead of waiting for some.
    pub gives_up: Cell<bool>,
    /// `durable_flushed_lsn` for other cores.
    shared_flushed_lsn: Arc<AtomicU64>,
}

struct State {
    /// None when the last batch is closed.
    draft: Option<OpenBatch>,
    /// The page behind the last closed batch, and the next record's number.
    next: Position,
    /// The oldest page that may not be overwritten.
    tail: u64,
    checkpoint: u64,
    catalogue_checkpoint: u64,
    /// First page of a replay from `checkpoint`: it becomes the tail once a durable batch names `checkpoint`.
    checkpoint_tail: u64,
    /// `named` is the checkpoint in the newest closed batch, `durably_named` the newest one that a durable batch names.
    named: u64,
    durably_named: u64,
    flushed: u64,
    /// The `flushed_lsn` in the newest closed batch, or in the superblock where there is none.
    carried: u64,
    durable: u64,
    /// Bytes of data of `Map` records since the last round began.
    unflushed_bytes: u64,
    /// First pages of batches under way.
    writing: BTreeSet<u64>,
    /// The first error; no batch is written after it.
    failed: Option<Error>,
    rounds: rounds::Rounds,
}

/// Returns the most pages that a batch with this record alone may use up: its own, and as many that are passed over
/// where it does not fit before the ring's end.
pub fn pages_max(record: &Record) -> u64 {
    2 * (record.encoded_len() as u64 / BLOCK + 2)
}

impl State {
    /// Returns the page behind everything appended so far.
    fn end(&self) -> u64 {
        self.draft.as_ref().map_or(self.next.seq, OpenBatch::end)
    }
}

impl Journal {
    pub(crate) fn new(
        env: Env,
        file: File,
        geometry: Geometry,
        start: Start,
        memory_tail: MemoryTail,
    ) -> Rc<Journal> {
        assert!(geometry.journal_pages >= JOURNAL_PAGES_MIN, "a ring of {} pages", geometry.journal_pages);
        assert!(start.tail <= start.at.seq && start.flushed_lsn < start.at.lsn, "{start:?}");
        let state = State {
            draft: None,
            next: start.at,
            tail: start.tail,
            checkpoint: start.checkpoint,
            catalogue_checkpoint: start.catalogue_checkpoint,
            checkpoint_tail: start.tail,
            named: start.named,
            durably_named: start.named,
            flushed: start.flushed_lsn,
            carried: start.flushed_lsn,
            durable: start.flushed_lsn,
            unflushed_bytes: 0,
            writing: BTreeSet::new(),
            failed: None,
            rounds: rounds::Rounds::default(),
        };
        Rc::new(Journal {
            env,
            file: file.tables(),
            geometry,
            epoch: start.epoch,
            memory_tail,
            state: RefCell::new(state),
            written: Signal::default(),
            rounds: Signal::default(),
            gives_up: Cell::new(false),
            shared_flushed_lsn: Arc::new(AtomicU64::new(start.flushed_lsn)),
        })
    }

    /// Appends a record and returns its number. It never waits and never fails; the record is durable after a later
    /// `flush`.
    ///
    /// # Panics
    /// When the ring is full: the caller has to check `has_room` or, for a `Change`, `has_room_for_change` before.
    pub(crate) fn append(self: &Rc<Self>, record: Record) -> u64 {
        let len = record.encoded_len();
        if self.state.borrow().draft.as_ref().is_some_and(|draft| !draft.fits(len)) {
            self.close();
        }
        let mut state = self.state.borrow_mut();
        let Position { seq, lsn } = state.next;
        let draft =
            state.draft.get_or_insert_with(|| OpenBatch::open(self.geometry.journal_pages, seq, lsn, len));
        let bytes = draft.push(&record);
        self.memory_tail.append(lsn, bytes);
        state.next.lsn += 1;
        state.unflushed_bytes += match record {
            Record::Map { len, .. } => u64::from(len) * BLOCK,
            Record::Sectors(_) => BLOCK,
            Record::Unmap { .. } | Record::Change(_) => 0,
        };
        self.assert_inside(&state);
        lsn
    }

    fn assert_inside(&self, state: &State) {
        let used = state.end() - state.tail;
        let ring = self.geometry.journal_pages;
        assert!(
            used <= ring,
            "{used} pages are needed of a journal of {ring}: the oldest would be overwritten"
        );
    }

    /// Closes the open batch and starts its write.
    fn close(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        let Some(draft) = state.draft.take() else { return };
        let stamp = Stamp {
            store_id: self.geometry.store_id,
            epoch: self.epoch,
            checkpoint: state.checkpoint,
            catalogue_checkpoint: state.catalogue_checkpoint,
            flushed_lsn: state.flushed,
        };
        state.carried = state.flushed;
        state.named = state.checkpoint;
        state.next.seq = draft.end();
        if state.failed.is_some() {
            return;
        }
        let seq = draft.seq;
        state.writing.insert(seq);
        let data = draft.seal(stamp);
        let journal = self.clone();
        self.env.spawn_detached(Box::pin(async move { journal.write(seq, data).await }));
    }

    /// Opens a batch without records, to carry `flushed_lsn`.
    fn open_empty(&self) {
        let mut state = self.state.borrow_mut();
        let Position { seq, lsn } = state.next;
        state.draft = Some(OpenBatch::open(self.geometry.journal_pages, seq, lsn, 0));
        self.assert_inside(&state);
    }

    async fn write(&self, seq: u64, data: blk::Slice) {
        let page = HEADER_BLOCKS + seq % self.geometry.journal_pages;
        let result = self.when_space(async || self.file.write(page * BLOCK, data.clone()).await).await;
        self.state.borrow_mut().writing.remove(&seq);
        if let Err(error) = result {
            self.fail(error);
        }
        self.written.notify();
    }

    /// Runs a write in place again until there is space: file systems that never overwrite in place may have none.
    /// Nothing has changed then, and nothing is in doubt. A store that closes does not wait, because it must come to
    /// its end.
    pub(crate) async fn when_space(&self, write: impl AsyncFn() -> Result<()>) -> Result<()> {
        loop {
            match write().await {
                Err(e) if e.is_no_space() && !self.gives_up.get() => self.env.sleep_us(SPACE_RETRY_US).await,
                written => return written,
            }
        }
    }

    /// Returns the number of pages that can be appended before the oldest would be overwritten.
    pub(crate) fn free_pages(&self) -> u64 {
        self.geometry.journal_pages - self.used_pages()
    }

    fn fail(&self, error: Error) {
        // After a failure the state of the medium is in doubt; the tail in memory must not hide that from the next
        // opening.
        self.memory_tail.end();
        self.state.borrow_mut().failed.get_or_insert(error);
    }

    /// Returns whether a guest may be admitted to append a few records. False leaves `RESERVE_PAGES` for changes and
    /// for what is under way.
    pub(crate) fn has_room(&self) -> bool {
        self.used_pages() + RESERVE_PAGES < self.geometry.journal_pages
    }

    /// Returns whether an admitted guest may append a record. False leaves the pages that are kept for changes: the
    /// guest has to release its admission and try again.
    pub(crate) fn has_room_for_record(&self) -> bool {
        self.used_pages() + RECORD_ROOM + 4 * CHANGE_ROOM <= self.geometry.journal_pages
    }

    /// Returns whether a `Change` may be appended. If not, it has to wait for a checkpoint, like guests.
    pub(crate) fn has_room_for_change(&self) -> bool {
        self.used_pages() + CHANGE_ROOM + ADMITTED_PAGES <= self.geometry.journal_pages
    }

    /// Returns the number of pages that guests may use.
    pub(crate) fn pages_max(&self) -> u64 {
        self.geometry.journal_pages - RESERVE_PAGES
    }

    /// Returns the number of pages between the oldest that may not be overwritten and the newest record.
    pub(crate) fn used_pages(&self) -> u64 {
        let state = self.state.borrow();
        state.end() - state.tail
    }

    /// Closes the open batch, so that the next record begins a new one. Returns the position where a replay from a
    /// checkpoint of everything before it begins.
    pub(crate) fn cut(self: &Rc<Self>) -> Position {
        self.close();
        self.state.borrow().next
    }

    /// Notes that `checkpoint` is durable and that a replay from it begins at page `tail`. The pages before `tail` may
    /// be overwritten once a batch that names the checkpoint is durable. Until then a replay may begin at the previous
    /// checkpoint, if the newer superblock cannot be read.
    pub(crate) fn trim(&self, tail: u64, checkpoint: u64) {
        let mut state = self.state.borrow_mut();
        assert!(
            (state.tail..=state.next.seq).contains(&tail),
            "trimming to page {tail} of {}..{}",
            state.tail,
            state.next.seq
        );
        assert!(checkpoint > state.checkpoint, "checkpoint {checkpoint} after {}", state.checkpoint);
        state.checkpoint_tail = tail;
        state.checkpoint = checkpoint;
        state.catalogue_checkpoint = checkpoint;
    }

    /// Returns the newest checkpoint that a durable batch names. That batch shows that an older superblock is stale,
    /// even if the newer one becomes unreadable, so the space that this checkpoint freed may be used again.
    pub(crate) fn named_checkpoint(&self) -> u64 {
        self.state.borrow().durably_named
    }

    /// Returns the number of the newest record, flushed or not; 0 before the first.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.state.borrow().next.lsn - 1
    }

    /// Returns the number up to which every record is durable, with its data.
    #[cfg(test)]
    pub(crate) fn flushed_lsn(&self) -> u64 {
        self.state.borrow().flushed
    }

    /// Returns the number up to which every later replay will accept the records as durable, with their data.
    pub(crate) fn durable_flushed_lsn(&self) -> u64 {
        self.state.borrow().durable
    }

    /// Returns `durable_flushed_lsn` as other cores see it.
    pub(crate) fn shared_flushed_lsn(&self) -> Arc<AtomicU64> {
        self.shared_flushed_lsn.clone()
    }

    /// Returns the data bytes of `Map` records since the last round began.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.state.borrow().unflushed_bytes
    }

    /// Returns the error of the write or flush that ended this journal.
    #[cfg(test)]
    pub(crate) fn failed(&self) -> Option<Error> {
        self.state.borrow().failed.clone()
    }
}
