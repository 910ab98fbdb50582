//! Events of a VM, for the command `events` and for reports.

use std::cell::{Cell, RefCell};

/// Times of one disk in an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskTimes {
    /// Number of the disk.
    pub number: u32,
    /// Time to create the child, durably.
    pub create_us: u64,
    /// Time spent waiting for the writes under way in the parent.
    pub drain_us: u64,
    /// A take: the flush of the parent and the write of its clean header. A commit: the record of its end, and the last
    /// flushes.
    pub flush_us: u64,
    /// Time for which new I/O of this disk was held back.
    pub stun_us: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A snapshot is sealed.
    Take,
    /// Names have left the tree; the drain begins.
    CommitStart,
    /// The drain has ended.
    Commit,
    /// The user has cancelled the drain; the names stay gone.
    CommitCancelled,
    /// The drain has ended with an error; the names stay gone.
    CommitFailed,
    /// The VM has gone back to a snapshot, which is kept.
    Revert,
    /// A snapshot's name and everything written since the snapshot are gone.
    Discard,
    /// Everything written to nonpersistent disks is gone.
    Reset,
    /// A snapshot has another name or description.
    Rename,
    /// An entry of the bin is part of the VM again.
    Restore,
    /// Entries of the bin are gone.
    BinEmptied,
    /// A defragmentation has ended, with what it moved.
    Defragment,
    /// A disk was added or removed, or changed its size or mode.
    Disks,
    /// Guest writes wait because the datastore is full.
    SpaceExhausted,
    /// No guest write waits for space any more.
    SpaceReturned,
    /// A commit that a stop or a crash interrupted has resumed.
    Recovered,
    /// Acknowledged writes may be missing, so the content generation was raised.
    WritesLost,
}

/// The message of `WritesLost`.
pub const WRITES_LOST: &str = "acknowledged writes may be missing: the daemon or its host ended before they were \
                               flushed";

/// One event of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time of the event, in microseconds since 1970 UTC.
    pub unix_us: i64,
    /// What has happened.
    pub kind: EventKind,
    /// The snapshots or the disk that the event is about.
    pub subject: String,
    /// Time for which new guest I/O was held back.
    pub stun_us: u64,
    /// Time from the request to the durable change.
    pub total_us: u64,
    /// Times of each disk; empty for events that hold back no I/O.
    pub disks: Vec<DiskTimes>,
    /// Text for people: an outcome or a warning.
    pub message: String,
}

/// Called with each event as it happens.
pub(crate) type Listener = Box<dyn Fn(&Event)>;

/// Called with true when writes of a disk begin to wait for space, and with false when no write waits any more.
type SpaceListener = Box<dyn Fn(bool)>;

/// Number of a disk's writes that wait for space, and the listener for its changes from zero and to zero.
#[derive(Default)]
pub(crate) struct SpaceWaits {
    count: Cell<u32>,
    listener: RefCell<Option<SpaceListener>>,
}

impl SpaceWaits {
    pub(crate) fn listen(&self, listener: SpaceListener) {
        *self.listener.borrow_mut() = Some(listener);
    }

    /// Counts one more write (or less) that waits.
    pub(crate) fn update(&self, begins: bool) {
        let before = self.count.get();
        let after = if begins { before + 1 } else { before - 1 };
        self.count.set(after);
        if before.min(after) == 0
            && let Some(tell) = &*self.listener.borrow()
        {
            tell(begins);
        }
    }
}
