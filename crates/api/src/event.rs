//! Events of a VM.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::VmName;

words! {
    pub enum Operation {
        Take = "take",
        /// Event: the guest's file systems were frozen for a take, or could not be.
        Quiesce = "quiesce",
        /// Event: the guest's memory was saved with a take.
        Memory = "memory",
        CommitStart = "commit_start",
        /// Event: a commit ended. Job: the whole commit.
        Commit = "commit",
        /// Job only: a commit of the deltas that no snapshot owns.
        Consolidate = "consolidate",
        /// Job only: the move of a VM into another store.
        Move = "move",
        /// Job only: a read of all data that the store holds.
        Scrub = "scrub",
        /// Job: the copy of a source's image into the store. Event: it ended, or the image cannot be read.
        Land = "land",
        /// Job only: the hash of an image is compared with that of its OVA's manifest.
        Verify = "verify",
        /// Event: a defragmentation ended. Job: the whole defragmentation.
        Defragment = "defragment",
        CommitCancelled = "commit_cancelled",
        CommitFailed = "commit_failed",
        /// Event: a snapshot has another name or description.
        Rename = "rename",
        Revert = "revert",
        Discard = "discard",
        Reset = "reset",
        /// The bin returned to the VM what it had kept.
        Restore = "restore",
        /// The bin removed permanently what it had kept.
        BinEmptied = "bin_emptied",
        /// Entry of the bin only: its VM was removed.
        Remove = "remove",
        /// A disk was added, removed or grown, or its mode changed.
        Disks = "disks",
        /// The VM's folder was imported, cloned or opened; or opening it repaired something.
        Home = "home",
        /// Guest writes wait or fail because the datastore is full.
        SpaceExhausted = "space_exhausted",
        SpaceReturned = "space_returned",
        /// At its start, the daemon finished or rolled forward an operation that a crash had interrupted.
        Recovered = "recovered",
        /// Acknowledged writes may be missing after a crash. The daemon refuses clients from before the crash.
        WritesLost = "writes_lost",
    }
}

/// A row of `events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Number of the event, rising within a VM; `events?after=ID` returns the later ones.
    pub id: u64,
    pub time: Timestamp,
    pub vm: VmName,
    pub operation: Operation,
    /// Snapshots, separated by commas; of an operation on disks these.
    pub snapshot: Option<String>,
    /// Time for which the VM's new guest I/O was held back, microseconds.
    pub stun_us: u64,
    /// Time for which the guest's file systems were frozen, or the guest stood still for its memory, microseconds.
    #[serde(default)]
    pub frozen_us: u64,
    pub disks: Vec<EventDisk>,
    pub message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventDisk {
    pub number: u32,
    pub stun_us: u64,
    /// Time outside the stun for draining and flushing I/O in flight, microseconds.
    pub flush_us: u64,
    /// Bytes that a commit moved; 0 for other events.
    pub bytes_moved: u64,
}
