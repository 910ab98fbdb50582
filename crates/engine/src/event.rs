//! Events of a VM, for the command `events` and for reports.

/// Times of one disk in an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskTimes {
    pub number: u32,
    /// Creating the child, durably.
    pub create_us: u64,
    /// Waiting for the writes under way in the parent.
    pub drain_us: u64,
    /// A take: flushing the parent and writing its clean header. A commit: recording its end, and the last flushes.
    pub flush_us: u64,
    /// Time new I/O of this disk was held back.
    pub stun_us: u64,
    /// Bytes moved.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A snapshot is sealed.
    Take,
    /// Names have left the tree; the drain begins.
    CommitStart,
    Commit,
    CommitCancelled,
    CommitFailed,
    /// The VM runs on from a snapshot, which is kept.
    Revert,
    /// What was written since a snapshot is gone, and its name.
    Discard,
    /// What was written to nonpersistent disks is gone.
    Reset,
    /// What the bin had kept is the VM's again.
    Restore,
    /// What the bin had kept is gone.
    BinEmptied,
    /// A disk came, went, grew or changed its mode.
    Disks,
    /// Guest writes wait because the datastore is full.
    SpaceExhausted,
    SpaceReturned,
    /// A commit that a stop or a crash interrupted goes on.
    Recovered,
    /// Writes that had been answered may be missing, so the content generation was raised.
    WritesLost,
}

/// The message of `WritesLost`.
pub const WRITES_LOST: &str = "the daemon or its host ended before writes that it had answered were flushed, and \
                                      they may be missing";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub unix_us: i64,
    pub kind: EventKind,
    /// The snapshots or the disk it was about.
    pub subject: String,
    /// Time new guest I/O was held back.
    pub stun_us: u64,
    /// From the request to the durable change.
    pub total_us: u64,
    pub disks: Vec<DiskTimes>,
    /// For people: an outcome or a warning.
    pub message: String,
}

/// Called with each event as it happens.
pub type Listener = Box<dyn Fn(&Event)>;

/// Called with true when writes of a disk begin to wait for space, and with false when none waits any more.
pub(crate) type SpaceListener = Box<dyn Fn(bool)>;
