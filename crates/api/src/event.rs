//! Events of a VM.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::name::VmName;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Take,
    CommitStart,
    /// Event: a commit ended. Job: the whole commit.
    Commit,
    /// Job only: a commit of the deltas that no snapshot owns.
    Consolidate,
    /// Job only: the move of a VM into another store.
    Move,
    /// Job only: a read of all data that the store holds.
    Scrub,
    CommitCancelled,
    CommitFailed,
    Revert,
    Discard,
    Reset,
    /// The bin returned to the VM what it had kept.
    Restore,
    /// The bin removed for good what it had kept.
    BinEmptied,
    /// Entry of the bin only: its VM was removed.
    Remove,
    /// A disk was added, removed or grown, or its mode changed.
    Disks,
    /// The VM's folder was imported, cloned or opened; or opening it repaired something.
    Home,
    /// Guest writes wait or fail because the datastore is full.
    SpaceExhausted,
    SpaceReturned,
    /// At its start, the daemon finished or rolled forward an operation that a crash had interrupted.
    Recovered,
    /// Acknowledged writes may be missing after a crash. The daemon refuses clients from before the crash.
    WritesLost,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::CommitStart => "commit_start",
            Self::Commit => "commit",
            Self::Consolidate => "consolidate",
            Self::Move => "move",
            Self::Scrub => "scrub",
            Self::CommitCancelled => "commit_cancelled",
            Self::CommitFailed => "commit_failed",
            Self::Revert => "revert",
            Self::Discard => "discard",
            Self::Reset => "reset",
            Self::Restore => "restore",
            Self::BinEmptied => "bin_emptied",
            Self::Remove => "remove",
            Self::Disks => "disks",
            Self::Home => "home",
            Self::SpaceExhausted => "space_exhausted",
            Self::SpaceReturned => "space_returned",
            Self::Recovered => "recovered",
            Self::WritesLost => "writes_lost",
        }
    }
}

/// A row of `events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, rising within a VM; `events?after=ID` returns the later ones.
    pub id: u64,
    pub time: Timestamp,
    pub vm: VmName,
    pub operation: Operation,
    pub snapshot: Option<String>,
    /// Time for which the VM's new guest I/O was held back, microseconds.
    pub stun_us: u64,
    pub disks: Vec<EventDisk>,
    pub message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDisk {
    pub number: u32,
    pub stun_us: u64,
    /// Time outside the stun for draining and flushing I/O in flight, microseconds.
    pub flush_us: u64,
    /// Bytes that a commit moved; 0 for other events.
    pub bytes_moved: u64,
}
