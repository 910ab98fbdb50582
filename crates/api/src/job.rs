//! Work in the background.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Operation;
use crate::error::ErrorFields;
use crate::name::{DatastoreName, VmName};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    Running,
    Paused,
    /// The datastore is full; it goes on when space returns.
    WaitingForSpace,
    Done,
    Failed,
    Cancelled,
}

impl JobState {
    pub fn is_open(self) -> bool {
        matches!(self, Self::Queued | Self::Running | Self::Paused | Self::WaitingForSpace)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::WaitingForSpace => "waiting_for_space",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a job does with the bytes that it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobBytes {
    /// Into the layer below: a commit of a redo VM.
    Moved,
    /// To the store's free space; nothing is copied: a commit of a native VM.
    GivenBack,
    /// Into another store.
    Copied,
    /// And compared.
    Read,
}

impl JobBytes {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::GivenBack => "given back",
            Self::Copied => "copied",
            Self::Read => "read",
        }
    }
}

/// A row of `job list`, and the answer of every job command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub operation: Operation,
    /// Null for a scrub, which is of the whole store.
    pub vm: Option<VmName>,
    /// Where the work is.
    pub datastore: DatastoreName,
    pub snapshots: Vec<String>,
    pub state: JobState,
    pub started: Timestamp,
    pub ended: Option<Timestamp>,
    /// What `bytes_done` and `bytes_total` count.
    pub bytes: JobBytes,
    pub bytes_done: u64,
    /// What the deltas held at the start; shrinks as the guest overwrites.
    pub bytes_total: u64,
    /// Over the last seconds; 0 unless running.
    pub rate_bytes_s: u64,
    pub limit_bytes_s: Option<u64>,
    pub eta_s: Option<u64>,
    /// Mean over the last second; null without guest I/O.
    pub guest_latency_us: Option<u64>,
    /// Set in state `failed`.
    pub error: Option<ErrorFields>,
}

/// Body of `PUT /jobs/N/limit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobLimit {
    /// Null lifts the limit.
    pub limit_bytes_s: Option<u64>,
}
