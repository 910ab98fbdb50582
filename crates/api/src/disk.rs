//! A VM's disks.

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DiskFrom, Source, Store, VmClient};

/// The command line shows the variants' comments as its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DiskMode {
    /// Part of every snapshot
    #[default]
    Persistent,
    /// Never part of a snapshot
    IndependentPersistent,
    /// Writes are kept until `vm reset` drops them
    IndependentNonpersistent,
}

impl DiskMode {
    /// Returns the mode's name on the command line and in VMware's own dialogs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::IndependentPersistent => "independent-persistent",
            Self::IndependentNonpersistent => "independent-nonpersistent",
        }
    }
}

/// Disk to create: part of a `VmCreate`, and the body of `POST /vms/VM/disks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    /// Size of the disk; 0 with `from` is that of the image.
    #[serde(default)]
    pub size_bytes: u64,
    #[serde(default)]
    pub mode: DiskMode,
    /// Absolute path of the disk's folder; null for the VM's home.
    pub dir: Option<PathBuf>,
    /// Image that the disk shows until it is written; null for an empty disk. Of native VMs only.
    #[serde(default)]
    pub from: Option<DiskFrom>,
}

impl DiskCreate {
    /// Returns a persistent disk in the VM's home.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, mode: DiskMode::default(), dir: None, from: None }
    }
}

/// Body of `PUT /vms/VM/disks/N/size`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskGrow {
    pub size_bytes: u64,
}

/// Body of `PUT /vms/VM/disks/N/mode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskSetMode {
    pub mode: DiskMode,
}

/// Output of `vm disk grow`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskGrown {
    pub disk: Disk,
    /// Clients that were connected before and see the old size until they reconnect.
    pub reconnect: Vec<VmClient>,
    /// Whether there were clients, and all of them see the new size.
    #[serde(default)]
    pub shown: bool,
    /// Why QEMU could not be told; null where it was, and where the VM has no monitor.
    #[serde(default)]
    pub cause: Option<String>,
}

/// Output of `vm disk remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskRemoved {
    pub number: u32,
    /// Descriptors of the layers that are no longer needed. They stay unless `files_deleted` is set.
    pub layers: Vec<PathBuf>,
    pub files_deleted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disk {
    pub id: String,
    /// N of the export `VM/diskN`. It is assigned when the disk is first seen, and never reused.
    pub number: u32,
    /// Controller and unit, such as `scsi0:0`.
    pub slot: String,
    pub store: Store,
    pub mode: DiskMode,
    pub size_bytes: u64,
    pub nbd_uri: String,
    /// Socket of the disk for vhost-user clients; null where none is served.
    pub vhost_user_socket: Option<PathBuf>,
    /// Absolute path of the descriptor of the running (top) layer.
    pub descriptor: PathBuf,
    /// Layers from the base to the writable top.
    pub layers: Vec<Layer>,
    /// Source below the disk, until all of it is in the store; null if there is none.
    #[serde(default)]
    pub source: Option<Source>,
    pub io: DiskIo,
}

/// Guest requests since the VM was opened, and the resulting I/O on the disk's files. For a native disk, the I/O is
/// that of its whole store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskIo {
    pub guest_reads: u64,
    pub guest_writes: u64,
    pub guest_flushes: u64,
    /// Ranges allocated in a delta for the first time.
    pub first_writes: u64,
    /// Table look-ups; each builds 2 MiB of the resolved map.
    pub map_loads: u64,
    pub device_reads: u64,
    pub device_writes: u64,
    pub device_flushes: u64,
    pub device_read_bytes: u64,
    pub device_written_bytes: u64,
    /// Part of `device_reads` that reads headers, tables, maps, bitmaps and the journal.
    pub device_table_reads: u64,
    /// Part of `device_writes` that writes the same structures.
    pub device_table_writes: u64,
}

/// I/O on the files of one layer since they were opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerIo {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Part of `reads` that reads the header, the directory and the tables.
    pub table_reads: u64,
    /// Part of `writes` that writes the same structures.
    pub table_writes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Layer {
    /// Absolute path.
    pub descriptor: PathBuf,
    /// Format from the descriptor's extent lines, in lower case: `vmfs`, `vmfssparse`, `flat`, ...
    pub format: String,
    pub allocated_bytes: u64,
    pub writable: bool,
    /// Whether the layer is in a folder that is not this VM's. Such a layer is read, but never written or removed.
    pub foreign: bool,
    /// Snapshot whose content ends with this layer; null for the running layer and for a layer that no snapshot owns.
    pub snapshot: Option<String>,
    /// I/O of the layer; null for a native disk, which has no layers of its own.
    pub io: Option<LayerIo>,
}
