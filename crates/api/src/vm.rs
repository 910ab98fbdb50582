//! VMs, and the clients connected to them.

use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BinEntry, Disk, DiskCreate, Space, Store, VmGuest, VmLimits, WhenFull};
use crate::name::{DatastoreName, SnapshotRef, Tag, VmName};

/// Maximum number of tags of a VM.
const TAGS_MAX: usize = 50;

/// Body of `POST /vms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmCreate {
    pub name: VmName,
    pub disks: Vec<DiskCreate>,
    #[serde(default)]
    pub store: Store,
    #[serde(default)]
    pub when_full: WhenFull,
    /// Datastore of the VM; null for the main one.
    pub datastore: Option<DatastoreName>,
}

/// Body of `POST /import`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmImport {
    /// Absolute path of a VM's folder, of its .vmx, or of an OVA (.ova).
    pub path: PathBuf,
    /// Name of the VM; null takes the .vmx file's name, or the name in the OVA.
    pub name: Option<VmName>,
    /// Whether to write the folder's own files, instead of deltas in the datastore.
    #[serde(default)]
    pub in_place: bool,
    /// Absolute paths of folders outside `path` that its files may refer to.
    #[serde(default)]
    pub allow_roots: Vec<PathBuf>,
    /// Whether to accept links whose parentCID is not their parent's CID.
    #[serde(default)]
    pub ignore_content_ids: bool,
    /// Whether SEsparse deltas of other programs are written too; only with `in_place`.
    #[serde(default)]
    pub write_sesparse: bool,
    /// Null is `redo` for a folder, and `native` for an OVA, which is the only choice there. `native` makes disks over the
    /// images, as `DiskCreate.from` does; the snapshots of a folder stay behind.
    #[serde(default)]
    pub store: Option<Store>,
    /// Whether the images of a native VM are copied into the store in the background.
    #[serde(default = "crate::source::yes")]
    pub copy: bool,
    /// Whether the hashes in the manifest of an OVA are compared: that of its descriptor at once, those of its disks in the
    /// background and before the copy.
    #[serde(default = "crate::source::yes")]
    pub verify: bool,
    #[serde(default)]
    pub when_full: WhenFull,
    /// Datastore of the VM; null for the one that contains the folder, else the main one.
    pub datastore: Option<DatastoreName>,
}

/// Body of `POST /vms/VM/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmClone {
    pub snapshot: SnapshotRef,
    /// Name of the new VM.
    pub name: VmName,
}

/// Body of `POST /vms/VM/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmMove {
    /// N where `diskN` is the VM's only disk; null moves all disks.
    pub disk: Option<u32>,
    /// Target store type; null keeps the present one.
    pub store: Option<Store>,
    /// Target datastore; null keeps the present one.
    pub datastore: Option<DatastoreName>,
}

/// Output of `vm move --dry-run`: what would be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmMovePreview {
    pub vm: VmName,
    /// Target datastore.
    pub datastore: DatastoreName,
    /// Target store type.
    pub store: Store,
    /// Folder of the VM after the move.
    pub home: PathBuf,
    /// Number of snapshots that are copied too.
    pub snapshots: u64,
    /// Maximum number of bytes that are copied, without what guests write meanwhile.
    pub bytes_to_copy: u64,
    /// Free space of the target.
    pub free_bytes: u64,
    /// Connected clients. They stay connected.
    pub clients: Vec<VmClient>,
}

/// Body of `POST /vms/VM/rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmRename {
    pub name: VmName,
}

/// Body of `PUT /vms/VM/snapshot-dir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDir {
    /// Absolute path of the folder; null for the VM's home.
    pub dir: Option<PathBuf>,
}

/// Body of `PUT /vms/VM/shared-writers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedWriters {
    pub shared: bool,
}

/// Body of `POST /vms/VM/open`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VmOpen {
    /// Whether the user states that the other side of an interrupted move is lost permanently, and this side is the VM.
    pub take_over: bool,
}

/// Body of `POST /vms/VM/close`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Disconnect {
    /// Whether to end the sessions of the VM's running disks first.
    pub disconnect: bool,
}

words! {
    pub enum VmCondition {
        Open = "open",
        /// `vm close` closed the VM: the daemon does not use its files until `vm open`.
        Closed = "closed",
        /// The VM could not be opened.
        Broken = "broken",
    }
}

/// A row of `vm list`. Fields that need an open VM are null for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmSummary {
    pub name: VmName,
    pub condition: VmCondition,
    /// Why the VM is broken, or why the files of an open VM cannot be read.
    pub message: Option<String>,
    pub datastore: DatastoreName,
    pub home: PathBuf,
    pub id: Option<String>,
    pub store: Store,
    pub disks: Option<u64>,
    /// Sum of the disks' sizes, as the guest sees them.
    pub size_bytes: Option<u64>,
    pub allocated_bytes: Option<u64>,
    pub snapshots: Option<u64>,
    pub nbd_clients: u64,
    /// Number of guest writes that wait because the datastore is full.
    pub waiting_writes: u64,
    #[serde(default)]
    pub tags: Vec<Tag>,
    #[serde(default)]
    pub note: String,
}

/// Body of `PUT /vms/VM/labels`: what people want to know about a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VmLabels {
    pub tags: Vec<Tag>,
    /// One line of text.
    pub note: String,
}

impl VmLabels {
    pub fn check(&self) -> Result<(), String> {
        if self.tags.len() > TAGS_MAX {
            return Err(format!("{} tags: expected at most {TAGS_MAX}", self.tags.len()));
        }
        crate::name::check_message(&self.note).map_err(|e| format!("note: {e}"))
    }
}

/// Output of `vm show`, and of every command that creates or changes a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Vm {
    pub id: String,
    pub name: VmName,
    pub datastore: DatastoreName,
    /// Absolute path of the folder of its files.
    pub home: PathBuf,
    /// Folder in which its deltas are created, if not the home.
    pub snapshot_dir: Option<PathBuf>,
    pub store: Store,
    /// Number of the core that runs it.
    #[serde(default)]
    pub core: u64,
    pub when_full: WhenFull,
    /// Whether several clients may write one disk.
    pub shared_writers: bool,
    pub limits: VmLimits,
    #[serde(default)]
    pub tags: Vec<Tag>,
    #[serde(default)]
    pub note: String,
    #[serde(default)]
    pub guest: VmGuest,
    /// Number of requests that wait now because the VM has reached a limit.
    pub delayed_requests: u64,
    /// Generation of the content of its running disks, which is part of their exports' names in `nbd_uri`. A revert, a
    /// discard of the running state and a reset raise it.
    pub generation: u64,
    /// Whether the content was replaced and `vm open` has not been called since. Exports without a generation in their
    /// name (`VM/diskN`) are then refused.
    pub fenced: bool,
    /// Snapshot from which the running state descends.
    pub current_snapshot: Option<String>,
    pub snapshots: u64,
    /// Whether deltas remain that no snapshot owns, for example after a cancelled commit.
    pub needs_consolidation: bool,
    pub nbd_clients: u64,
    /// Number of guest writes that wait because the datastore is full.
    pub waiting_writes: u64,
    pub clients: Vec<VmClient>,
    /// Notices from opening its files.
    pub notices: Vec<String>,
    pub space: Space,
    pub disks: Vec<Disk>,
}

/// A client connected to a disk or to a sealed state of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmClient {
    /// Number of the disk; null for a snapshot's state.
    pub disk: Option<u32>,
    /// Snapshot of the sealed state; null for a running disk.
    pub snapshot: Option<String>,
    /// Peer of the connection: `pid 4711 (qemu-system-x86)` on a Unix socket, `127.0.0.1:50312` over TCP.
    pub client: String,
    pub access: ClientAccess,
}

/// Access of a client to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientAccess {
    /// The client may write and has not.
    Connected,
    /// The client has written. No other client may write before its last connection ends, unless writers are shared.
    Writes,
    /// The client reads a snapshot's state, or a disk that another client writes.
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VmRemove {
    pub delete_disks: bool,
    /// Whether to remove the disks permanently, rather than into the bin.
    pub purge: bool,
    /// Whether to remove nothing unless the bin keeps it.
    pub keep: bool,
}

/// Output of `vm remove --dry-run`: what would be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmRemovePreview {
    pub vm: VmName,
    pub condition: VmCondition,
    pub datastore: DatastoreName,
    pub store: Store,
    pub home: PathBuf,
    pub disks_deleted: bool,
    /// Disks of the VM; null where the VM is not open, because its files are then not read.
    pub disks: Option<Vec<RemovedDisk>>,
    /// Names of the snapshots, which are removed too; null where the VM is not open.
    pub snapshots: Option<Vec<String>>,
    pub allocated_bytes: Option<u64>,
    /// Connected clients. They must disconnect first.
    pub clients: Vec<VmClient>,
    /// Time until which the bin keeps it at most; null where the bin does not keep it.
    pub kept_until: Option<Timestamp>,
    /// Reason why the bin does not keep it.
    pub not_kept: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedDisk {
    pub number: u32,
    pub size_bytes: u64,
}

/// Output of `vm remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmRemoved {
    pub name: VmName,
    pub home: PathBuf,
    /// Whether the disks were deleted permanently.
    pub disks_deleted: bool,
    /// Entry of the bin that keeps the VM for a while; null if none does.
    pub bin: Option<BinEntry>,
}

/// Output of `vm close`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmClosed {
    pub name: VmName,
    pub home: PathBuf,
    /// Clients that were disconnected.
    pub clients: Vec<VmClient>,
}

/// Body of `POST /vms/VM/defragment`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VmDefragment {
    /// N of the only disk; null for all disks.
    pub disk: Option<u32>,
    /// Copy blocks that snapshots or clones show too. The copies take space.
    #[serde(default)]
    pub copy_shared: bool,
}

/// Output of `space`: the space that a VM takes, and the snapshots that hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmSpace {
    pub vm: VmName,
    pub datastore: DatastoreName,
    pub store: Store,
    /// Sum of the disks' sizes, as the guest sees them.
    pub logical_bytes: u64,
    /// Bytes that only this VM and all its snapshots hold.
    pub allocated_bytes: u64,
    /// Bytes that other VMs share: the base of a clone or of an import, and data that clones of this VM read.
    pub shared_bytes: u64,
    /// Bytes of the files with the guest's memory at snapshots.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Parents before children, older siblings first.
    pub snapshots: Vec<SnapshotSpace>,
    pub disks: Vec<DiskOrder>,
    pub space: Space,
}

/// Order of a running disk's blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskOrder {
    /// N of the export `VM/diskN`.
    pub number: u32,
    /// Bytes that a sequential read gets on average before it has to go elsewhere, at most 4 MiB, from samples; null for
    /// a redo disk and a disk without data.
    pub average_run_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotSpace {
    pub id: String,
    pub name: String,
    pub created: Timestamp,
    pub age_s: u64,
    /// Bytes written on top of the snapshot, on all its branches and disks.
    pub delta_bytes: u64,
    /// Bytes of the file with the guest's memory; 0 without one.
    #[serde(default)]
    pub memory_bytes: u64,
}
