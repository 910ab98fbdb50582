//! The journal: a ring of pages behind the header that holds what happened since the last checkpoint.
//!
//! Records gather in a batch in memory; a batch is written when the next record does not fit, or when a round of
//! flushes begins. One device flush then makes data and records durable together: a record carries the checksum of
//! its data, so replay can tell a record whose data was lost.
//!
//! What a batch carries of `flushed_lsn` becomes durable one round later. Only then is it certain that no replay will
//! doubt the records up to there, and their blocks may be overwritten in place.
//!
//! Page numbers (`seq`) count over all laps of the ring and never repeat in one epoch. Every opening of the store is
//! an epoch of its own, durable in a superblock before its first batch: leftovers of an earlier one end a replay.

mod batch;
#[cfg(test)]
mod crash_tests;
mod end;
mod memory_tail;
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

use blk::sync::Signal;
use blk::{Env, Error, File, Result};

use super::layout::{BLOCK, Geometry, HEADER_BLOCKS};
use batch::{Draft, Stamp};

pub use batch::BATCH_PAGES_MAX;
pub use memory_tail::MemoryTail;
pub use record::{CHANGE_BYTES_MAX, Record};
pub use replay::{Begin, Replayed, replay};

/// A `Change` of the greatest length: its 32 pages, and one more that its header spills into.
const CHANGE_PAGES_MAX: u64 = CHANGE_BYTES_MAX as u64 / BLOCK + 1;

/// What one `Change` may use up: the pages passed over where it does not fit before the ring's end, itself, and an
/// empty batch behind it. 66 pages.
const CHANGE_ROOM: u64 = (CHANGE_PAGES_MAX - 1) + CHANGE_PAGES_MAX + 1;

/// What a `Map` or an `Unmap` may use up: a page of its own, one that it spills into, and an empty batch behind it.
const RECORD_ROOM: u64 = 3;

/// What is written after guests and changes have been told to wait, by those that were admitted before: 20 pages of
/// records (83 `Map` each, 1,660 in all), and 64 rounds that close a batch early and need an empty one behind it.
const ADMITTED_PAGES: u64 = 20 + 64 * 2;

/// What guests leave of the ring: room for four changes of the greatest length (most take a page), so that takes and
/// removals go on while a checkpoint makes room, and for what is still under way. 412 pages, 1.6 MiB.
pub const RESERVE_PAGES: u64 = 4 * CHANGE_ROOM + ADMITTED_PAGES;

/// The reserve, and as much again for guests: 3.2 MiB.
pub const JOURNAL_PAGES_MIN: u64 = 2 * RESERVE_PAGES;

/// Between two tries of a write that finds no space.
const SPACE_RETRY_US: u64 = 100_000;

/// A place in the journal: the next batch's page number and the next record's number, which counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub seq: u64,
    pub lsn: u64,
}

/// How a journal goes on.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Greater than that of every batch and superblock before, and already durable in a superblock.
    pub epoch: u64,
    /// Where replay ended.
    pub at: Position,
    /// The oldest page still needed: where a replay would begin.
    pub tail: u64,
    /// Every record up to this one has its data, durably, and a superblock says so: usually all before `at`.
    pub flushed_lsn: u64,
    /// The newest one that is durable.
    pub checkpoint: u64,
    /// The newest one that a durable batch names, as far as is known; 0 makes the first round name `checkpoint`.
    pub named: u64,
}

pub struct Journal {
    env: Env,
    file: File,
    geometry: Geometry,
    epoch: u64,
    pub memory_tail: MemoryTail,
    state: RefCell<State>,
    /// A batch's write has ended.
    written: Signal,
    /// A round has ended.
    rounds: Signal,
    /// `durable` has advanced, or the journal has failed.
    further: Signal,
    /// A write that finds no space fails, instead of waiting for some.
    pub gives_up: Cell<bool>,
}

struct State {
    /// None when the last batch is closed.
    draft: Option<Draft>,
    /// The page behind the last closed batch, and the next record's number.
    next: Position,
    /// The oldest page that may not be overwritten.
    tail: u64,
    checkpoint: u64,
    /// Where a replay from `checkpoint` begins: the tail once `checkpoint` is named durably.
    checkpoint_tail: u64,
    /// The checkpoint in the newest closed batch, and the newest one that a durable batch names.
    named: u64,
    durably_named: u64,
    flushed: u64,
    /// The `flushed_lsn` in the newest closed batch, or in the superblock where there is none.
    carried: u64,
    durable: u64,
    /// Data of `Map` records since the last round began.
    unflushed_bytes: u64,
    /// First pages of batches under way.
    writing: BTreeSet<u64>,
    /// The first error; nothing is written after it.
    failed: Option<Error>,
    rounds: rounds::Rounds,
}

/// The most pages that a batch with this record alone may use up: its own, and as many that are passed over where it does not
/// fit before the ring's end.
pub fn pages_max(record: &Record) -> u64 {
    2 * (record.encoded_len() as u64 / BLOCK + 2)
}

impl State {
    /// The page behind everything appended so far.
    fn end(&self) -> u64 {
        self.draft.as_ref().map_or(self.next.seq, Draft::end)
    }
}

impl Journal {
    pub fn new(
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
        let signals = [Signal::default(), Signal::default(), Signal::default()];
        let [written, rounds, further] = signals;
        Rc::new(Journal {
            env,
            file: file.tables(),
            geometry,
            epoch: start.epoch,
            memory_tail,
            state: RefCell::new(state),
            written,
            rounds,
            further,
            gives_up: Cell::new(false),
        })
    }

    /// Takes a record up and answers its number. Never waits and never fails; it is durable after a `flush` that is
    /// called later. Panics when the ring is full: the caller has asked `has_room` or, for a
    /// `Change`, `has_room_for_change`.
    pub fn append(self: &Rc<Self>, record: Record) -> u64 {
        let len = record.encoded_len();
        if self.state.borrow().draft.as_ref().is_some_and(|draft| !draft.fits(len)) {
            self.close();
        }
        let mut state = self.state.borrow_mut();
        let Position { seq, lsn } = state.next;
        let draft =
            state.draft.get_or_insert_with(|| Draft::open(self.geometry.journal_pages, seq, lsn, len));
        let bytes = draft.push(&record);
        self.memory_tail.append(lsn, bytes);
        state.next.lsn += 1;
        if let Record::Map { len, .. } = record {
            state.unflushed_bytes += u64::from(len) * BLOCK;
        }
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

    /// A batch without records: it carries `flushed_lsn`.
    fn open_empty(&self) {
        let mut state = self.state.borrow_mut();
        let Position { seq, lsn } = state.next;
        state.draft = Some(Draft::open(self.geometry.journal_pages, seq, lsn, 0));
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

    /// Writes in place again until there is space, where file systems that never overwrite in place have none: nothing has
    /// changed, and nothing is in doubt. Not while the store closes, which must come to its end.
    pub async fn when_space(&self, write: impl AsyncFn() -> Result<()>) -> Result<()> {
        loop {
            match write().await {
                Err(e) if e.is_no_space() && !self.gives_up.get() => self.env.sleep_us(SPACE_RETRY_US).await,
                written => return written,
            }
        }
    }

    /// Pages that can be appended before the oldest would be overwritten.
    pub fn free_pages(&self) -> u64 {
        self.geometry.journal_pages - self.used_pages()
    }

    fn fail(&self, error: Error) {
        // What is in doubt now must not come back as if nothing had happened.
        self.memory_tail.end();
        self.state.borrow_mut().failed.get_or_insert(error);
        self.further.notify();
    }

    /// Whether a guest may be admitted, to append a few records. False leaves `RESERVE_PAGES` for changes and for
    /// what is under way.
    pub fn has_room(&self) -> bool {
        self.used_pages() + RESERVE_PAGES < self.geometry.journal_pages
    }

    /// Whether a guest that was admitted may append a record. False leaves what is kept for changes: the guest gives
    /// way and comes again.
    pub fn has_room_for_record(&self) -> bool {
        self.used_pages() + RECORD_ROOM + 4 * CHANGE_ROOM <= self.geometry.journal_pages
    }

    /// Whether a `Change` may be appended. False means that it, like guests, must wait for a checkpoint.
    pub fn has_room_for_change(&self) -> bool {
        self.used_pages() + CHANGE_ROOM + ADMITTED_PAGES <= self.geometry.journal_pages
    }

    /// Pages between the oldest that may not be overwritten and the newest record.
    pub fn used_pages(&self) -> u64 {
        let state = self.state.borrow();
        state.end() - state.tail
    }

    /// The next record begins a new batch: where a replay from a checkpoint of everything before it begins.
    pub fn cut(self: &Rc<Self>) -> Position {
        self.close();
        self.state.borrow().next
    }

    /// Checkpoint `checkpoint` is durable, and a replay from it begins at page `tail`. The pages before it may be
    /// overwritten once a batch that names the checkpoint is durable: until then a replay may begin at the checkpoint
    /// before, if the newer superblock cannot be read.
    pub fn trim(&self, tail: u64, checkpoint: u64) {
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
    }

    /// The newest checkpoint that a durable batch names: an older superblock is known to be stale by it, whatever becomes
    /// of the newer one. What that checkpoint freed may be used again.
    pub fn named_checkpoint(&self) -> u64 {
        self.state.borrow().durably_named
    }

    /// The newest record, flushed or not; 0 before the first.
    pub fn last_lsn(&self) -> u64 {
        self.state.borrow().next.lsn - 1
    }

    /// Every record up to this one is durable, with its data.
    pub fn flushed_lsn(&self) -> u64 {
        self.state.borrow().flushed
    }

    /// A replay is sure to know that every record up to this one is durable with its data.
    pub fn durable_flushed_lsn(&self) -> u64 {
        self.state.borrow().durable
    }

    /// Data bytes of `Map` records since the last round began.
    pub fn unflushed_bytes(&self) -> u64 {
        self.state.borrow().unflushed_bytes
    }

    /// The error of the write or flush that ended this journal.
    pub fn failed(&self) -> Option<Error> {
        self.state.borrow().failed.clone()
    }

    /// Resolves when `durable_flushed_lsn` next advances, or the journal fails.
    pub async fn flushed_further(&self) {
        self.further.wait().await;
    }
}
