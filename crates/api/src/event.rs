//! What happened to a VM.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::name::VmName;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Take,
    CommitStart,
    /// As an event: the commit ended. As a job: the whole of it.
    Commit,
    /// Of a job alone: a commit of the deltas that no snapshot owns.
    Consolidate,
    /// Of a job alone: a VM goes into another store.
    Move,
    /// Of a job alone: all that the store holds is read.
    Scrub,
    CommitCancelled,
    CommitFailed,
    Revert,
    Discard,
    Reset,
    /// What the bin had kept is the VM's again.
    Restore,
    /// What the bin had kept is gone.
    BinEmptied,
    /// Of an entry of the bin alone: its VM was removed.
    Remove,
    /// A disk came, went, grew or changed its mode.
    Disks,
    /// What became of its folder: imported, cloned, opened, and what opening it put right.
    Home,
    /// Guest writes wait, or fail, because the datastore is full.
    SpaceExhausted,
    SpaceReturned,
    /// A start of the daemon finished or rolled forward what a crash had interrupted.
    Recovered,
    /// Writes that had been answered may be missing after a crash. Clients of before are refused.
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
    /// Rising within a VM; `events?after=ID` answers the later ones.
    pub id: u64,
    pub time: Timestamp,
    pub vm: VmName,
    pub operation: Operation,
    pub snapshot: Option<String>,
    /// New guest I/O of the VM was held back this long.
    pub stun_us: u64,
    pub disks: Vec<EventDisk>,
    pub message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDisk {
    pub number: u32,
    pub stun_us: u64,
    /// Outside the stun: draining and flushing what was in flight.
    pub flush_us: u64,
    /// By a commit; 0 otherwise.
    pub bytes_moved: u64,
}
