//! Background jobs.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Operation;
use crate::error::ErrorFields;
use crate::name::{DatastoreName, VmName};

words! {
    pub enum JobState {
        Queued = "queued",
        Running = "running",
        Paused = "paused",
        /// The datastore is full; the job continues when space returns.
        WaitingForSpace = "waiting_for_space",
        Done = "done",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl JobState {
    pub fn is_open(self) -> bool {
        matches!(self, Self::Queued | Self::Running | Self::Paused | Self::WaitingForSpace)
    }
}

/// Meaning of the bytes that a job counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobBytes {
    /// Bytes moved into the layer below, by a commit of a redo VM.
    Moved,
    /// Bytes returned to the store's free space without a copy, by a commit of a native VM.
    GivenBack,
    /// Bytes copied into another store.
    Copied,
    /// Bytes read and compared.
    Read,
    /// Bytes of disks that a defragmentation has gone through, those without data included.
    Scanned,
}

impl JobBytes {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::GivenBack => "freed",
            Self::Copied => "copied",
            Self::Read => "read",
            Self::Scanned => "gone through",
        }
    }
}

/// A row of `job list`, and the answer of every job command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    pub id: u64,
    pub operation: Operation,
    /// VM of the job; null for a scrub, which covers the whole store.
    pub vm: Option<VmName>,
    /// Datastore in which the job works.
    pub datastore: DatastoreName,
    pub snapshots: Vec<String>,
    pub state: JobState,
    pub started: Timestamp,
    pub ended: Option<Timestamp>,
    /// Meaning of `bytes_done` and `bytes_total`.
    pub bytes: JobBytes,
    pub bytes_done: u64,
    /// Bytes that the deltas held at the start. The number shrinks as the guest overwrites data.
    pub bytes_total: u64,
    /// Rate over the last seconds; 0 unless the job runs.
    pub rate_bytes_s: u64,
    pub limit_bytes_s: Option<u64>,
    pub eta_s: Option<u64>,
    /// Mean latency of guest I/O over the last second; null without guest I/O.
    pub guest_latency_us: Option<u64>,
    /// What a defragmentation has done so far; null for other jobs.
    pub defragmented: Option<Defragmented>,
    /// Error of a job in state `failed`.
    pub error: Option<ErrorFields>,
}

/// What a defragmentation has done. The address ranges that stayed are windows of disks, blocks without data included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Defragmented {
    /// Bytes that got a new place.
    pub moved_bytes: u64,
    /// Bytes of the address ranges that stayed because snapshots or clones show blocks of them too.
    pub shared_bytes: u64,
    /// Bytes of the address ranges that stayed because the datastore had no contiguous free space.
    pub no_room_bytes: u64,
    /// Bytes of the address ranges that stayed because guests changed them all the time.
    pub changed_bytes: u64,
}

/// Body of `PUT /jobs/N/limit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobLimit {
    /// Limit of the job's rate; null lifts the limit.
    pub limit_bytes_s: Option<u64>,
}
