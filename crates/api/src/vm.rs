//! VMs, and who is connected to them.

use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{BinEntry, Disk, DiskCreate, Space, Store, WhenFull};
use crate::name::{DatastoreName, SnapshotRef, VmName};

/// Body of `POST /vms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmCreate {
    pub name: VmName,
    pub disks: Vec<DiskCreate>,
    #[serde(default)]
    pub store: Store,
    #[serde(default)]
    pub when_full: WhenFull,
    /// Null for the main one.
    #[serde(default)]
    pub datastore: Option<DatastoreName>,
}

/// Body of `POST /import`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmImport {
    /// The folder of a VM, or its .vmx; absolute.
    pub path: PathBuf,
    /// Null takes the .vmx file's name.
    #[serde(default)]
    pub name: Option<VmName>,
    /// Write the folder's own files, instead of deltas in the datastore.
    #[serde(default)]
    pub in_place: bool,
    /// Folders outside `path` that its files may lead to; absolute.
    #[serde(default)]
    pub allow_roots: Vec<PathBuf>,
    /// Accept links whose parentCID is not their parent's CID.
    #[serde(default)]
    pub ignore_content_ids: bool,
    #[serde(default)]
    pub when_full: WhenFull,
    /// Null for the one that the folder lies in, and else the main one.
    #[serde(default)]
    pub datastore: Option<DatastoreName>,
}

/// Body of `POST /vms/VM/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmClone {
    pub snapshot: SnapshotRef,
    /// Of the new VM.
    pub name: VmName,
}

/// Body of `POST /vms/VM/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmMove {
    /// Null for all disks; N where `diskN` is the only one.
    #[serde(default)]
    pub disk: Option<u32>,
    /// Null: as it is kept now.
    #[serde(default)]
    pub store: Option<Store>,
    /// Null: the one it is in.
    #[serde(default)]
    pub datastore: Option<DatastoreName>,
}

/// Body of `PUT /vms/VM/snapshot-dir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDir {
    /// Absolute; null for the VM's home.
    pub dir: Option<PathBuf>,
}

/// Body of `PUT /vms/VM/shared-writers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedWriters {
    pub shared: bool,
}

/// Body of `POST /vms/VM/close`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    /// End the sessions of the VM's running disks first.
    #[serde(default)]
    pub disconnect: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmCondition {
    Open,
    /// By `vm close`: its files are at rest until `vm open`.
    Closed,
    /// Could not be opened.
    Broken,
}

impl VmCondition {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Broken => "broken",
        }
    }
}

/// A row of `vm list`. What only an open VM can say is null for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSummary {
    pub name: VmName,
    pub condition: VmCondition,
    /// Why it is broken, or why the files of an open one cannot be read.
    pub message: Option<String>,
    pub datastore: DatastoreName,
    pub home: PathBuf,
    pub id: Option<String>,
    pub store: Store,
    pub disks: Option<u64>,
    /// Sum over the disks, as the guest sees them.
    pub size_bytes: Option<u64>,
    pub allocated_bytes: Option<u64>,
    pub snapshots: Option<u64>,
    pub nbd_clients: u64,
    /// Guest writes that wait because the datastore is full.
    pub waiting_writes: u64,
}

/// `vm show`, and what every command answers that makes or changes a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    pub id: String,
    pub name: VmName,
    pub datastore: DatastoreName,
    /// The folder of its files, absolute.
    pub home: PathBuf,
    /// Where its deltas are made, if not in the home.
    pub snapshot_dir: Option<PathBuf>,
    pub store: Store,
    pub when_full: WhenFull,
    /// Several clients may write one disk.
    pub shared_writers: bool,
    /// Of the content of its running disks: part of their exports' names in `nbd_uri`. A revert, a discard of the
    /// running state and a reset raise it.
    pub generation: u64,
    /// The content was replaced, and `vm open` has not been called since: exports without a generation in their
    /// name (`VM/diskN`) are refused.
    pub fenced: bool,
    /// The snapshot the running state descends from.
    pub current_snapshot: Option<String>,
    pub snapshots: u64,
    /// Deltas remain that no snapshot owns (a cancelled commit, for one).
    pub needs_consolidation: bool,
    pub nbd_clients: u64,
    /// Guest writes that wait because the datastore is full.
    pub waiting_writes: u64,
    pub clients: Vec<VmClient>,
    /// What opening its files found worth saying.
    pub notices: Vec<String>,
    pub space: Space,
    pub disks: Vec<Disk>,
}

/// Somebody connected to a disk or to a sealed state of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmClient {
    /// Null on a snapshot's state.
    pub disk: Option<u32>,
    /// Null on a running disk.
    pub snapshot: Option<String>,
    /// The peer: `pid 4711 (qemu-system-x86)` on a Unix socket, `127.0.0.1:50312` over TCP.
    pub client: String,
    pub access: ClientAccess,
}

/// What a client does with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAccess {
    /// It may write and has not.
    Connected,
    /// It has written: no other client may before its last connection ends, unless writers are shared.
    Writes,
    /// A snapshot's state, or a disk that another client writes.
    ReadOnly,
}

impl fmt::Display for VmClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.disk, &self.snapshot) {
            (Some(disk), _) => {
                let does = match self.access {
                    ClientAccess::Connected => "is connected to",
                    ClientAccess::Writes => "writes to",
                    ClientAccess::ReadOnly => "reads",
                };
                write!(f, "{} {does} disk{disk}", self.client)
            }
            (None, Some(snapshot)) => write!(f, "{} reads {snapshot}", self.client),
            (None, None) => f.write_str(&self.client),
        }
    }
}

/// Body of `POST /vms/VM/remove/preview`, and parameters of `DELETE /vms/VM`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRemove {
    #[serde(default)]
    pub delete_disks: bool,
    /// Removes the disks for good, rather than into the bin.
    #[serde(default)]
    pub purge: bool,
    /// Removes nothing where the bin does not keep it.
    #[serde(default)]
    pub keep: bool,
}

/// `vm remove --dry-run`: what goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRemovePreview {
    pub vm: VmName,
    pub condition: VmCondition,
    pub datastore: DatastoreName,
    pub store: Store,
    pub home: PathBuf,
    pub disks_deleted: bool,
    /// Null where the VM is not open: its files are not read for this.
    pub disks: Option<Vec<RemovedDisk>>,
    /// Names of the snapshots, which go too; null as above.
    pub snapshots: Option<Vec<String>>,
    pub allocated_bytes: Option<u64>,
    /// Who is connected, and has to go first.
    pub clients: Vec<VmClient>,
    /// How long the bin keeps it at most; null where it does not.
    pub kept_until: Option<Timestamp>,
    /// Why the bin does not keep it.
    pub not_kept: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedDisk {
    pub number: u32,
    pub size_bytes: u64,
}

/// `vm remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRemoved {
    pub name: VmName,
    pub home: PathBuf,
    /// For good.
    pub disks_deleted: bool,
    /// Where the VM is kept for a while; null: nowhere.
    pub bin: Option<BinEntry>,
}

/// `vm close`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmClosed {
    pub name: VmName,
    pub home: PathBuf,
    /// Those that were disconnected.
    pub clients: Vec<VmClient>,
}

/// `space`: what a VM takes, and what keeps it from being less.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpace {
    pub vm: VmName,
    pub datastore: DatastoreName,
    pub store: Store,
    /// Sum over the disks, as the guest sees them.
    pub logical_bytes: u64,
    /// By what is its own, with all its snapshots.
    pub allocated_bytes: u64,
    /// By what it shows and others show too: the ground of a clone or of an import, and what clones of it read.
    pub shared_bytes: u64,
    /// Parents before children, older siblings first.
    pub snapshots: Vec<SnapshotSpace>,
    pub space: Space,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSpace {
    pub id: String,
    pub name: String,
    pub created: Timestamp,
    pub age_s: u64,
    /// Held by what was written on top of it, on all its branches and disks.
    pub delta_bytes: u64,
}
