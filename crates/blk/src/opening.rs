//! State of an open file that its openings on several cores share: the latch, and the writes that no flush has covered.

use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::Error;
use crate::exec::Env;
use crate::fence::Deadline;
use crate::reactor::{Handle, Limits, SharedDescriptor};
use crate::unflushed::Unflushed;

/// Counts of I/O on the device, for "device I/Os per guest I/O" and for `events`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileCounters {
    /// Number of reads that were submitted.
    pub reads: u64,
    /// Number of writes that were submitted.
    pub writes: u64,
    /// Number of flushes that were submitted.
    pub flushes: u64,
    /// Bytes that `reads` requested, including the rest of partly needed device blocks.
    pub bytes_read: u64,
    /// Bytes of `writes`, including the rest of partly changed device blocks.
    pub bytes_written: u64,
    /// Part of `reads` that used a handle from `File::tables`.
    pub table_reads: u64,
    /// Part of `writes` that used a handle from `File::tables`.
    pub table_writes: u64,
}

impl AddAssign for FileCounters {
    fn add_assign(&mut self, other: FileCounters) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.table_reads += other.table_reads;
        self.table_writes += other.table_writes;
    }
}

/// An open file on its way to another core of this process.
pub struct SharedFile {
    pub(crate) descriptor: SharedDescriptor,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) condition: Arc<Condition>,
    pub(crate) deadline: Option<Arc<Deadline>>,
}

/// What one opening begins with.
pub(crate) struct Opened {
    pub env: Env,
    pub handle: Handle,
    pub name: String,
    pub limits: Limits,
    pub condition: Arc<Condition>,
    pub deadline: Option<Arc<Deadline>>,
}

/// The part of one opening. Its core alone writes it, so its locks are free but for a moment of a flush.
#[derive(Default)]
pub(crate) struct Opening {
    unflushed: Mutex<Unflushed>,
    counters: Mutex<FileCounters>,
}

impl Opening {
    /// Returns the ranges that this opening wrote and that no flush has covered.
    pub(crate) fn unflushed(&self) -> MutexGuard<'_, Unflushed> {
        self.unflushed.lock().expect("no panic inside")
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut FileCounters)) {
        change(&mut self.counters.lock().expect("no panic inside"));
    }

    fn counters(&self) -> FileCounters {
        *self.counters.lock().expect("no panic inside")
    }
}

/// Condition of a file on all cores.
#[derive(Default)]
pub(crate) struct Condition {
    latched: AtomicBool,
    latch: Mutex<Option<Error>>,
    /// A flush has failed: the unflushed ranges are in doubt.
    flush_failed: AtomicBool,
    /// The openings, the ended ones included until another is added.
    openings: Mutex<Vec<Arc<Opening>>>,
}

impl Condition {
    /// Adds an opening. The first one takes over what ended ones have left.
    pub(crate) fn add_opening(&self) -> Arc<Opening> {
        let mut openings = self.lock_openings();
        let (present, ended) =
            std::mem::take(&mut *openings).into_iter().partition(|opening| Arc::strong_count(opening) > 1);
        *openings = present;
        let added = Arc::<Opening>::default();
        openings.push(added.clone());
        for opening in ended {
            openings[0].unflushed().append(std::mem::take(&mut opening.unflushed()));
            openings[0].count(|counters| *counters += opening.counters());
        }
        added
    }

    fn lock_openings(&self) -> MutexGuard<'_, Vec<Arc<Opening>>> {
        self.openings.lock().expect("no panic inside")
    }

    pub(crate) fn counters(&self) -> FileCounters {
        let mut sum = FileCounters::default();
        self.lock_openings().iter().for_each(|opening| sum += opening.counters());
        sum
    }

    pub(crate) fn latched(&self) -> Option<Error> {
        match self.latched.load(Ordering::Acquire) {
            true => self.latch.lock().expect("no panic inside").clone(),
            false => None,
        }
    }

    /// Latches the file on all cores. The first error stays.
    pub(crate) fn latch(&self, error: &Error) {
        self.latch.lock().expect("no panic inside").get_or_insert_with(|| error.clone());
        self.latched.store(true, Ordering::Release);
    }

    /// Takes the unflushed ranges of all openings, for a flush that covers them.
    pub(crate) fn take_unflushed(&self) -> Unflushed {
        let mut all = Unflushed::default();
        for opening in self.lock_openings().iter() {
            let ranges = std::mem::take(&mut *opening.unflushed());
            match all.is_empty() {
                true => all = ranges,
                false => all.append(ranges),
            }
        }
        all
    }

    /// Notes that a flush has failed, whose ranges are unflushed again. Returns the bytes that are in doubt.
    pub(crate) fn flush_failed(&self) -> u64 {
        self.flush_failed.store(true, Ordering::Release);
        self.lock_openings().iter().map(|opening| opening.unflushed().bytes()).sum()
    }

    /// Returns whether a failed flush may have lost what was written to the range.
    pub(crate) fn is_in_doubt(&self, range: &Range<u64>) -> bool {
        self.flush_failed.load(Ordering::Acquire)
            && self.lock_openings().iter().any(|opening| opening.unflushed().overlaps(range))
    }
}
