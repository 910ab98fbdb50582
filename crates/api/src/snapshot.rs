//! The snapshot tree, and what its changes cost.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Operation, Space, Store, VmClient};
use crate::name::{SnapshotName, SnapshotRef, VmName};

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
    pub store: Store,
    /// Parents before children, older siblings first.
    pub snapshots: Vec<Snapshot>,
    /// Deltas under the running disks that no snapshot owns.
    pub unowned: Vec<UnownedDelta>,
    /// Snapshots that VMware's state of the machine (.vmsn, .vmem) is kept with; it goes with them.
    pub machine_states: u64,
}

/// For `snapshot consolidate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnownedDelta {
    /// N of `diskN`.
    pub disk: u32,
    pub descriptor: PathBuf,
    pub allocated_bytes: u64,
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
    /// Of a redo VM: held by the deltas written on top of it, on all its branches and disks. Of a native VM: held by it
    /// alone.
    pub delta_bytes: u64,
}

/// Body of `POST /vms/VM/commit` and its preview: `{"snapshot": "NAME"}`, `"all"` or `"unowned"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitTarget {
    Snapshot(SnapshotRef),
    All,
    /// `snapshot consolidate`: the deltas that no snapshot owns.
    Unowned,
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
    /// Deltas that cannot be folded, each with its reason; the names go all the same.
    pub stays: Vec<String>,
}

impl CommitPreview {
    /// The sentence a user has to have read before any commit.
    pub fn warning_for(snapshots: &[String]) -> String {
        let names = snapshots.join(", ");
        if snapshots.is_empty() {
            return "no snapshot goes: only deltas that none owns are folded away".to_owned();
        }
        format!("once it starts you cannot go back to {names}, even if you cancel")
    }
}

/// Body of `POST /vms/VM/revert` and its preview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revert {
    /// Null for the one the running state descends from.
    #[serde(default)]
    pub snapshot: Option<SnapshotRef>,
    /// Keeps the present under this name.
    #[serde(default)]
    pub take_first: Option<SnapshotName>,
    #[serde(default)]
    pub disconnect: bool,
    /// What is thrown away goes for good, rather than into the bin.
    #[serde(default)]
    pub purge: bool,
    /// Changes nothing where the bin would not keep it.
    #[serde(default)]
    pub keep: bool,
}

/// Body of `POST /vms/VM/discard` and its preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discard {
    pub snapshot: SnapshotRef,
    #[serde(default)]
    pub disconnect: bool,
    /// What is thrown away goes for good, rather than into the bin.
    #[serde(default)]
    pub purge: bool,
    /// Changes nothing where the bin would not keep it.
    #[serde(default)]
    pub keep: bool,
}

/// Body of `POST /vms/VM/reset` and `POST /vms/VM/undo`, and of their previews.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// End the sessions of the VM's running disks first.
    #[serde(default)]
    pub disconnect: bool,
    /// What is thrown away goes for good, rather than into the bin.
    #[serde(default)]
    pub purge: bool,
    /// Changes nothing where the bin would not keep it.
    #[serde(default)]
    pub keep: bool,
}

/// What a revert, a discard, a reset or an undo throws away: the preview, and the answer once it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub vm: VmName,
    /// `revert`, `discard` or `reset`; `restore` of an undo.
    pub operation: Operation,
    /// The snapshot whose state the VM runs on afterwards; null where the running state stays, or goes back
    /// to no snapshot.
    pub target: Option<String>,
    /// The snapshot that keeps the present.
    pub taken: Option<String>,
    /// The names that go.
    pub snapshots: Vec<String>,
    /// Descriptors of the layers that go.
    pub layers: Vec<PathBuf>,
    /// Held by those layers.
    pub bytes_lost: u64,
    /// The running state changes: what the guest has open becomes another disk's content.
    pub reverts: bool,
    /// Writable clients: in the way, as a preview; disconnected, as the answer.
    pub clients: Vec<VmClient>,
    /// All of it is in the bin until then, unless space is short before; null where it goes for good.
    pub kept_until: Option<Timestamp>,
    /// Why the bin does not keep it.
    pub not_kept: Option<String>,
    /// What is lost, in a sentence.
    pub warning: String,
}

impl Loss {
    /// The sentence a user has to have read before.
    pub fn sentence(&self) -> String {
        let fate = match (self.operation, &self.target, &self.taken) {
            (_, _, Some(taken)) => return format!("nothing is lost: the present is kept as {taken}"),
            _ if self.kept_until.is_some() => return self.kept_sentence(),
            (Operation::Reset, ..) => {
                "everything written to the nonpersistent disks since their last reset is lost".to_owned()
            }
            (Operation::Restore, ..) if self.reverts => {
                "everything the guest wrote since that was thrown away is lost".to_owned()
            }
            (_, Some(target), None) if self.reverts => {
                format!("everything the guest wrote since {target} that no other snapshot keeps is lost")
            }
            _ => "the running state stays as it is".to_owned(),
        };
        match self.snapshots.as_slice() {
            [] => format!("{fate}, for good"),
            names => format!("{fate}; there is no way back to {}", names.join(", ")),
        }
    }
}

impl Loss {
    fn kept_sentence(&self) -> String {
        let until = self.kept_until.map_or(String::new(), |until| format!("{until:.0}"));
        let vm = &self.vm;
        format!(
            "the bin keeps it until {until}, unless space is short before or a commit needs the layers under it: `unstun \
             snapshot undo {vm}` brings it back"
        )
    }
}

/// Body of `POST /vms/VM/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Diff {
    /// N of `diskN`.
    pub disk: u32,
    pub from: SnapshotRef,
    /// Null for the running state.
    #[serde(default)]
    pub to: Option<SnapshotRef>,
    /// Where the answer is to begin.
    #[serde(default)]
    pub start_bytes: u64,
}

/// What differs between two states of a disk: over REST a part of it, from `snapshot diff` all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differences {
    pub vm: VmName,
    pub disk: u32,
    pub from: String,
    pub to: Option<String>,
    /// Of the disk in the later state.
    pub size_bytes: u64,
    pub start_bytes: u64,
    /// Up to where this answers; `size_bytes` when that is all.
    pub end_bytes: u64,
    /// Rising, apart from each other; what is not in them reads the same in both states.
    pub ranges: Vec<DiskRange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRange {
    pub start_bytes: u64,
    pub length_bytes: u64,
}
