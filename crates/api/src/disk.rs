//! A VM's disks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Store, VmClient};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskMode {
    #[default]
    Persistent,
    /// Never part of a snapshot.
    IndependentPersistent,
    /// Its writes are dropped by `vm reset`.
    IndependentNonpersistent,
}

impl DiskMode {
    /// As it is written on the command line, and in VMware's own dialogs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::IndependentPersistent => "independent-persistent",
            Self::IndependentNonpersistent => "independent-nonpersistent",
        }
    }
}

/// A disk to make: in a `VmCreate`, and the body of `POST /vms/VM/disks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    pub size_bytes: u64,
    #[serde(default)]
    pub mode: DiskMode,
    /// Absolute; null for the VM's home.
    #[serde(default)]
    pub dir: Option<PathBuf>,
}

impl DiskCreate {
    /// A persistent disk in the VM's home.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, mode: DiskMode::default(), dir: None }
    }
}

/// Body of `PUT /vms/VM/disks/N/size`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskGrow {
    pub size_bytes: u64,
}

/// Body of `PUT /vms/VM/disks/N/mode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSetMode {
    pub mode: DiskMode,
}

/// `vm disk grow`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskGrown {
    pub disk: Disk,
    /// Connected before: they see the old size until they connect again.
    pub reconnect: Vec<VmClient>,
}

/// `vm disk remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRemoved {
    pub number: u32,
    /// Descriptors of the layers nobody needs any more: they stay, unless `files_deleted`.
    pub layers: Vec<PathBuf>,
    pub files_deleted: bool,
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

/// Requests since the VM was opened, and the I/O they came to on the disk's files; of a native disk on its whole store.
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
    pub device_read_bytes: u64,
    pub device_written_bytes: u64,
    /// Of `device_reads`, those of headers, tables, maps, bitmaps and the journal.
    pub device_table_reads: u64,
    /// Of `device_writes`.
    pub device_table_writes: u64,
}

/// I/O on the files of one layer since they were opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerIo {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Of `reads`.
    pub table_reads: u64,
    /// Of `writes`.
    pub table_writes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Absolute.
    pub descriptor: PathBuf,
    /// As the descriptor's extent lines say it, in lower case: `vmfs`, `vmfssparse`, `flat`, ...
    pub format: String,
    pub allocated_bytes: u64,
    pub writable: bool,
    /// In a folder that is not this VM's: read, never written, never removed.
    pub foreign: bool,
    /// The snapshot whose content ends with this layer; null for the running one and where no snapshot owns
    /// it.
    pub snapshot: Option<String>,
    /// Null for a native disk, which has no layers of its own.
    pub io: Option<LayerIo>,
}
