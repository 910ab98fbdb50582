//! The snapshot tree, and the cost of changes to it.

use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CommitForecast, MemorySaved, Operation, Quiesce, Quiesced, Space, Store, VmClient};
use crate::name::{SnapshotName, SnapshotRef, VmName, check_message};
use crate::units::format_seconds;

/// Body of `POST /vms/VM/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotTake {
    pub name: SnapshotName,
    #[serde(default)]
    pub message: String,
    /// Whether the guest's file systems are frozen meanwhile.
    #[serde(default)]
    pub quiesce: Quiesce,
    /// Whether the guest's memory of the same instant is saved too.
    #[serde(default)]
    pub memory: bool,
    /// Format of the new deltas of a VM of files.
    #[serde(default)]
    pub delta: DeltaFormat,
}

words! {
    /// Format of new deltas. The command line shows the variants' comments as its help.
    #[derive(Default, clap::ValueEnum)]
    pub enum DeltaFormat {
        /// VMFSsparse; SEsparse for disks above 2,032 GiB, and on SEsparse deltas that unstun made
        #[default]
        Fitting = "fitting",
        /// SEsparse, VMware's only delta on VMFS6
        Sesparse = "sesparse",
    }
}

impl SnapshotTake {
    /// A take without a description, of the disks alone.
    pub fn named(name: SnapshotName) -> SnapshotTake {
        let delta = DeltaFormat::Fitting;
        SnapshotTake { name, message: String::new(), quiesce: Quiesce::No, memory: false, delta }
    }

    pub fn check(&self) -> Result<(), String> {
        if self.memory && self.quiesce != Quiesce::No {
            return Err("memory with quiesce: with the guest's memory, nothing in its file systems is lost; expected one of them".to_owned());
        }
        check_message(&self.message)
    }
}

/// Body of `POST /vms/VM/snapshots/rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRename {
    pub snapshot: SnapshotRef,
    /// New name; null keeps the present one.
    #[serde(default)]
    pub name: Option<SnapshotName>,
    /// New description; null keeps the present one.
    #[serde(default)]
    pub message: Option<String>,
}

impl SnapshotRename {
    pub fn check(&self) -> Result<(), String> {
        match (&self.name, &self.message) {
            (None, None) => Err("a snapshot to rename without a new name or a new description".to_owned()),
            (_, Some(message)) => check_message(message),
            (Some(_), None) => Ok(()),
        }
    }
}

/// Output of `snapshot take`. The daemon answers once the snapshot is sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotTaken {
    pub vm: VmName,
    pub snapshot: Snapshot,
    pub stun_us: u64,
    /// What became of the request to freeze the guest's file systems; null without one.
    #[serde(default)]
    pub quiesced: Option<Quiesced>,
    /// The guest's memory; null without the request.
    #[serde(default)]
    pub memory: Option<MemorySaved>,
    pub space: Space,
}

/// Output of `snapshot tree`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotTree {
    pub vm: VmName,
    pub store: Store,
    /// Parents before children, older siblings first.
    pub snapshots: Vec<Snapshot>,
    /// Deltas under the running disks that no snapshot owns.
    pub unowned: Vec<UnownedDelta>,
    /// Number of snapshots that have VMware's state of the machine (.vmsn, .vmem), which is removed with its snapshot.
    pub machine_states: u64,
}

/// Delta that `snapshot consolidate` removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnownedDelta {
    /// N of `diskN`.
    pub disk: u32,
    pub descriptor: PathBuf,
    pub allocated_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    pub id: String,
    pub name: String,
    /// The parent's id; null for a root.
    pub parent: Option<String>,
    pub created: Timestamp,
    /// Whether the running state descends from this snapshot ("you are here").
    pub current: bool,
    /// Whether its content can no longer change.
    pub sealed: bool,
    pub message: String,
    /// Who took it: `user NAME (uid N)`, `token NAME` or `policy NAME`; null if that is not recorded.
    #[serde(default)]
    pub created_by: Option<String>,
    /// Whether the guest's file systems were frozen at its instant.
    #[serde(default)]
    pub quiesced: bool,
    /// Length of the file with the guest's memory of its instant; null without one.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Redo VM: bytes of the deltas written on top of the snapshot, on all its branches and disks. Native VM: bytes
    /// that only this snapshot holds.
    pub delta_bytes: u64,
}

/// Body of `POST /vms/VM/commit` and its preview: `{"snapshot": "NAME"}`, `"all"` or `"unowned"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitTarget {
    Snapshot(SnapshotRef),
    All,
    /// `snapshot consolidate`: the deltas that no snapshot owns.
    Unowned,
}

/// Effects of a commit. Nothing has been changed yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommitPreview {
    pub vm: VmName,
    /// Names of the snapshots that would be removed, oldest first.
    pub snapshots: Vec<String>,
    /// Maximum; the number is less where the guest overwrites data that is still in the delta.
    pub bytes_to_move: u64,
    pub bytes_freed: u64,
    /// Estimated duration; null where no rate was ever measured.
    pub estimated_s: Option<u64>,
    /// By the VM's own record; null before its first commit.
    #[serde(default)]
    pub forecast: Option<CommitForecast>,
    /// Sentence that names the snapshots to which the VM can no longer revert.
    pub warning: String,
    /// Deltas that cannot be merged, each with its reason. Their snapshots are removed nevertheless.
    pub stays: Vec<String>,
}

impl CommitPreview {
    /// Returns how long it will take.
    pub fn time_text(&self) -> String {
        match (&self.forecast, self.estimated_s) {
            (Some(forecast), _) => forecast.sentence(),
            (None, Some(s)) => format!("about {}", format_seconds(s)),
            (None, None) => "unknown before this daemon's first commit".to_owned(),
        }
    }

    /// Returns the sentence that a user must have read before any commit.
    pub fn warning_for(snapshots: &[String]) -> String {
        let names = snapshots.join(", ");
        if snapshots.is_empty() {
            return "no snapshot is removed: only deltas that no snapshot owns are merged".to_owned();
        }
        format!("once the commit starts you cannot revert to {names}, even if you cancel it")
    }
}

/// Body of `POST /vms/VM/revert` and its preview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Revert {
    /// Target of the revert; null for the snapshot from which the running state descends.
    pub snapshot: Option<SnapshotRef>,
    /// Name of a snapshot to take of the running state first.
    pub take_first: Option<SnapshotName>,
    pub disconnect: bool,
    /// Whether to remove the discarded state permanently, rather than into the bin.
    pub purge: bool,
    /// Whether to change nothing unless the bin keeps the discarded state.
    pub keep: bool,
}

/// Body of `POST /vms/VM/discard` and its preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Discard {
    pub snapshot: SnapshotRef,
    #[serde(default)]
    pub disconnect: bool,
    /// Whether to remove the discarded state permanently, rather than into the bin.
    #[serde(default)]
    pub purge: bool,
    /// Whether to change nothing unless the bin keeps the discarded state.
    #[serde(default)]
    pub keep: bool,
}

/// Body of `POST /vms/VM/reset` and `POST /vms/VM/undo`, and of their previews.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reset {
    /// Whether to end the sessions of the VM's running disks first.
    pub disconnect: bool,
    /// Whether to remove the discarded state permanently, rather than into the bin.
    pub purge: bool,
    /// Whether to change nothing unless the bin keeps the discarded state.
    pub keep: bool,
}

/// State that a revert, a discard, a reset or an undo throws away: the preview, and the answer afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    pub vm: VmName,
    /// `revert`, `discard` or `reset`; `restore` for an undo.
    pub operation: Operation,
    /// Snapshot whose state the VM runs on afterwards; null where the running state stays, or reverts to no snapshot.
    pub target: Option<String>,
    /// Snapshot that keeps the state from before the operation.
    pub taken: Option<String>,
    /// Names of the snapshots that are removed.
    pub snapshots: Vec<String>,
    /// Descriptors of the layers that are removed.
    pub layers: Vec<PathBuf>,
    /// Bytes that those layers hold.
    pub bytes_lost: u64,
    /// Whether the running state changes: the disks that the guest has open get other content.
    pub reverts: bool,
    /// Writable clients. In a preview they prevent the operation; in an answer they were disconnected.
    pub clients: Vec<VmClient>,
    /// Time until which the bin keeps all of it, unless space is short before; null where it is removed permanently.
    pub kept_until: Option<Timestamp>,
    /// Reason why the bin does not keep it.
    pub not_kept: Option<String>,
    /// Sentence that says what is lost.
    pub warning: String,
}

impl Loss {
    /// Returns the sentence that a user must have read before the operation.
    pub fn sentence(&self) -> String {
        let fate = match (self.operation, &self.target, &self.taken) {
            (_, _, Some(taken)) => return format!("nothing is lost: the current state is saved as {taken}"),
            _ if self.kept_until.is_some() => return self.kept_sentence(),
            (Operation::Reset, ..) => {
                "everything written to the nonpersistent disks since their last reset is lost".to_owned()
            }
            (Operation::Restore, ..) if self.reverts => {
                "everything the guest wrote since the state was thrown away is lost".to_owned()
            }
            (_, Some(target), None) if self.reverts => {
                format!("everything the guest wrote since {target} that no other snapshot keeps is lost")
            }
            _ => "the running state does not change".to_owned(),
        };
        match self.snapshots.as_slice() {
            [] => format!("{fate}; this cannot be undone"),
            names => format!("{fate}; you cannot revert to {} afterwards", names.join(", ")),
        }
    }
}

impl Loss {
    fn kept_sentence(&self) -> String {
        let until = self.kept_until.map_or(String::new(), |until| format!("{until:.0}"));
        let vm = &self.vm;
        format!(
            "the bin keeps the state until {until}, or until its space or the layers below it are needed; `unstun \
             snapshot undo {vm}` restores the state"
        )
    }
}

/// Body of `POST /vms/VM/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Diff {
    /// N of `diskN`.
    pub disk: u32,
    pub from: SnapshotRef,
    /// Later state; null for the running state.
    pub to: Option<SnapshotRef>,
    /// Offset at which the answer begins.
    #[serde(default)]
    pub start_bytes: u64,
}

/// Differences between two states of a disk: a part of them over REST, all of them from `snapshot diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Differences {
    pub vm: VmName,
    pub disk: u32,
    pub from: String,
    pub to: Option<String>,
    /// Size of the disk in the later state.
    pub size_bytes: u64,
    pub start_bytes: u64,
    /// Offset at which this answer ends; equal to `size_bytes` when the answer is complete.
    pub end_bytes: u64,
    /// Differing ranges, ascending and not adjacent. Data outside of them reads the same in both states.
    pub ranges: Vec<DiskRange>,
    /// What `snapshot diff --verify` has found; null over REST, and without it.
    #[serde(default)]
    pub verified: Option<DifferencesVerified>,
}

/// A comparison of the content of two states with their differences, none of which was missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DifferencesVerified {
    /// Bytes outside of the ranges, which read the same in both states.
    pub same_bytes: u64,
    /// Bytes inside of the ranges that read the same nevertheless: they were written with what was there.
    pub equal_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskRange {
    pub start_bytes: u64,
    pub length_bytes: u64,
}
