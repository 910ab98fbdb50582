//! The JSON of the REST API and of `--json`: one set of structs, documented in `docs/cli-json.md`.
//!
//! Times are RFC 3339 in UTC, sizes in bytes, units in the field's name. Identities are 128 bits as 32 hexadecimal
//! digits. A field that does not apply is null, never absent. Fields are added, not renamed.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::ErrorFields;
use crate::name::{SnapshotName, VmName};

/// `status`, and what `up --json` prints once it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub started: Timestamp,
    /// Absolute.
    pub datastore: PathBuf,
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Whether disk I/O bypasses the page cache; false where the file system refuses O_DIRECT.
    pub direct_io: bool,
    /// Base URIs, without an export's name.
    pub nbd: Vec<String>,
    pub nbd_clients: u64,
    pub vms: u64,
    pub disks: u64,
    pub snapshots: u64,
    /// Queued, running, paused or waiting for space.
    pub open_jobs: u64,
}

/// Room on the datastore against the worst case: every delta may grow to the size of its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    pub free_bytes: u64,
    /// What all deltas of the datastore together can still allocate.
    pub worst_growth_bytes: u64,
}

impl Space {
    pub fn is_enough(&self) -> bool {
        self.free_bytes >= self.worst_growth_bytes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Store {
    /// VMware-style delta chains.
    Redo,
}

/// What a guest's write does while the datastore has no space left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    #[default]
    Wait,
    /// Fails with ENOSPC.
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskMode {
    Persistent,
    IndependentPersistent,
    IndependentNonpersistent,
}

/// Body of `POST /vms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmCreate {
    pub name: VmName,
    pub disks: Vec<DiskCreate>,
    pub store: Store,
    #[serde(default)]
    pub when_full: WhenFull,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    pub size_bytes: u64,
}

/// A row of `vm list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSummary {
    pub id: String,
    pub name: VmName,
    pub store: Store,
    pub disks: u64,
    /// Sum over the disks, as the guest sees them.
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    pub snapshots: u64,
    pub nbd_clients: u64,
}

/// `vm show` and `vm create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    pub id: String,
    pub name: VmName,
    /// The folder of its files, absolute.
    pub home: PathBuf,
    pub store: Store,
    pub when_full: WhenFull,
    /// The snapshot the running state descends from.
    pub current_snapshot: Option<String>,
    pub snapshots: u64,
    /// Deltas remain that no snapshot owns (a cancelled commit, for one).
    pub needs_consolidation: bool,
    pub nbd_clients: u64,
    pub space: Space,
    pub disks: Vec<Disk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    pub id: String,
    /// N of the export `VM/diskN`: fixed at first sight, never reused.
    pub number: u32,
    /// Controller and unit, such as `scsi0:0`.
    pub slot: String,
    pub store: Store,
    pub mode: DiskMode,
    pub size_bytes: u64,
    pub nbd_uri: String,
    /// Of the running (top) layer; absolute.
    pub descriptor: PathBuf,
    /// Base first, the writable top last.
    pub layers: Vec<Layer>,
    pub io: DiskIo,
}

/// Requests since the VM was opened, and the I/O they came to on the files of the present chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskIo {
    pub guest_reads: u64,
    pub guest_writes: u64,
    pub guest_flushes: u64,
    /// Stretches placed in a delta for the first time.
    pub first_writes: u64,
    /// Table look-ups: 2 MiB of the resolved map built.
    pub map_loads: u64,
    pub device_reads: u64,
    pub device_writes: u64,
    pub device_flushes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Absolute.
    pub descriptor: PathBuf,
    /// As the descriptor's extent lines say it, in lower case: `vmfs`, `vmfssparse`, `flat`, ...
    pub format: String,
    pub allocated_bytes: u64,
    pub writable: bool,
    /// The snapshot whose content ends with this layer; null for the running one and where no snapshot owns it.
    pub snapshot: Option<String>,
}

/// `vm remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRemoved {
    pub name: VmName,
    pub home: PathBuf,
    pub disks_deleted: bool,
}

/// Body of `POST /vms/VM/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotTake {
    pub name: SnapshotName,
    #[serde(default)]
    pub message: String,
}

/// `snapshot take`: answered once the snapshot is sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTaken {
    pub vm: VmName,
    pub snapshot: Snapshot,
    pub stun_us: u64,
    pub space: Space,
}

/// `snapshot tree`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTree {
    pub vm: VmName,
    /// Parents before children, older siblings first.
    pub snapshots: Vec<Snapshot>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub id: String,
    pub name: String,
    /// The parent's id; null for a root.
    pub parent: Option<String>,
    pub created: Timestamp,
    /// The running state descends from this one: "you are here".
    pub current: bool,
    /// Its content can no longer change.
    pub sealed: bool,
    pub message: String,
    /// Held by the deltas its take opened, over all disks.
    pub delta_bytes: u64,
}

/// Body of `POST /vms/VM/commit` and its preview: `{"snapshot": "NAME"}` or `"all"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitTarget {
    Snapshot(SnapshotName),
    All,
}

/// What a commit would do. Nothing has been changed yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitPreview {
    pub vm: VmName,
    /// The names that would go, oldest first.
    pub snapshots: Vec<String>,
    /// At most; less where the guest overwrites what is still in the delta.
    pub bytes_to_move: u64,
    pub bytes_freed: u64,
    /// Null where nothing was ever measured.
    pub estimated_s: Option<u64>,
    /// The way back that is lost, in a sentence.
    pub warning: String,
}

impl CommitPreview {
    /// The sentence a user has to have read before any commit.
    pub fn warning_for(snapshots: &[String]) -> String {
        let names = snapshots.join(", ");
        format!("from the first block moved you cannot go back to {names}, even if you cancel")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Take,
    CommitStart,
    /// As an event: the commit ended. As a job: the whole of it.
    Commit,
    CommitCancelled,
    CommitFailed,
    Revert,
    Discard,
    Reset,
    /// A disk came, went, grew or changed its mode.
    Disks,
    /// Guest writes wait, or fail, because the datastore is full.
    SpaceExhausted,
    SpaceReturned,
    /// A start of the daemon finished or rolled forward what a crash had interrupted.
    Recovered,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::CommitStart => "commit_start",
            Self::Commit => "commit",
            Self::CommitCancelled => "commit_cancelled",
            Self::CommitFailed => "commit_failed",
            Self::Revert => "revert",
            Self::Discard => "discard",
            Self::Reset => "reset",
            Self::Disks => "disks",
            Self::SpaceExhausted => "space_exhausted",
            Self::SpaceReturned => "space_returned",
            Self::Recovered => "recovered",
        }
    }
}

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

/// A row of `job list`, and the answer of every job command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub operation: Operation,
    pub vm: VmName,
    pub snapshots: Vec<String>,
    pub state: JobState,
    pub started: Timestamp,
    pub ended: Option<Timestamp>,
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

/// `convert`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Converted {
    pub chain: PathBuf,
    pub output: PathBuf,
    pub size_bytes: u64,
    /// Data found in the chain and written; the rest of the output is a hole.
    pub bytes_written: u64,
    pub layers: u64,
}
