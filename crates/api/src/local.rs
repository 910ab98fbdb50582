//! Output of commands that use no daemon, or that only evaluate its answer.

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::VmName;

/// Output of `convert`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Converted {
    pub chain: PathBuf,
    pub output: PathBuf,
    pub size_bytes: u64,
    /// Bytes of data found in the chain and written; the rest of the output is a hole.
    pub bytes_written: u64,
    pub layers: u64,
}

/// Output of `pull`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pulled {
    /// Name of the disk's export, without a snapshot.
    pub export: String,
    pub output: PathBuf,
    pub size_bytes: u64,
    /// The snapshot that the output holds; null for a running disk.
    pub snapshot: Option<String>,
    /// The snapshot that the output held before; null if all of it was copied.
    pub since: Option<String>,
    /// Bytes read from the export; holes are not read.
    pub bytes_read: u64,
    /// Bytes of data written to the output, without zeros.
    pub bytes_written: u64,
}

/// The command line shows the variants' comments as its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// The disk's bytes, with holes for zeros
    Raw,
    /// QEMU's
    Qcow2,
    /// VMware's, uncompressed: a descriptor, and the bytes beside it (NAME-flat.vmdk)
    VmdkFlat,
    /// VMware's, compressed, in one file (streamOptimized)
    VmdkStream,
    /// An archive with all disks, compressed, and a description of the VM
    Ova,
}

/// Output of `export`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exported {
    pub vm: VmName,
    /// Snapshot that was exported; null for one that the command took and has removed again.
    pub snapshot: Option<String>,
    pub format: ExportFormat,
    pub files: Vec<ExportedFile>,
}

/// A file that an export has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedFile {
    pub path: PathBuf,
    /// Number of the disk; null for an archive of all disks.
    pub disk: Option<u32>,
    /// Size of the disk, or of the disks of an archive.
    pub size_bytes: u64,
    /// Length of the file, its holes included.
    pub file_bytes: u64,
    /// SHA-256 of the file in hexadecimal digits; null for formats that are not written from begin to end.
    pub sha256: Option<String>,
    /// Bytes from the begin that an interrupted export had written, and that still have their hashes; null for an export that
    /// cannot be continued.
    #[serde(default)]
    pub resumed_bytes: Option<u64>,
}

/// The command line shows the variants' comments as its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum AttachTo {
    /// Arguments for qemu-system-*
    Qemu,
    /// `<disk>` elements for a domain
    Libvirt,
    /// A `qm set` command
    Proxmox,
    /// Options for cloud-hypervisor (vhost-user alone)
    CloudHypervisor,
}

/// The command line shows the variants' comments as its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum AttachVia {
    /// Network block device, over the daemon's socket
    Nbd,
    /// vhost-user-blk: the guest's rings in shared memory, one socket for each disk
    VhostUser,
}

/// Output of `attach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attach {
    pub vm: VmName,
    pub to: AttachTo,
    /// Protocol by which the disks are reached.
    pub via: AttachVia,
    pub disks: Vec<AttachDisk>,
    /// Unix socket of the export (of the first disk, with vhost-user); null where NBD is served over TCP.
    pub socket: Option<AttachSocket>,
    /// Arguments for QEMU or cloud-hypervisor, XML for libvirt, a command for Proxmox.
    pub snippet: String,
    /// Shell lines that give QEMU's user access; comments begin with `#`.
    pub access: Vec<String>,
    /// Command, word by word, that starts the guest where it was at a snapshot; without the program's name where that is
    /// not known. Null without `--resume`.
    #[serde(default)]
    pub resume: Option<Vec<String>>,
    /// Whether that guest stands still once it is loaded, until `cont` in QEMU's monitor.
    #[serde(default)]
    pub resume_paused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachDisk {
    pub number: u32,
    /// Name of the NBD export.
    pub export: String,
    pub nbd_uri: String,
    /// Socket of the disk for vhost-user clients; null where none is served.
    pub vhost_user_socket: Option<PathBuf>,
}

/// A Unix socket, and its access permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachSocket {
    pub path: PathBuf,
    pub owner: String,
    pub group: String,
    /// Octal permission bits, such as `660`.
    pub mode: String,
}

words! {
    pub enum Severity {
        /// Data is lost, or wrong, or cannot be read.
        Damage = "damage",
        /// The object works now, but will fail soon or elsewhere.
        Warning = "warning",
        /// Information only.
        Note = "note",
    }
}

/// Output of `repair`. The exit code is 6 if damage stays, or if nothing was written and the findings include damage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repair {
    pub path: PathBuf,
    pub mends: Vec<Mend>,
    /// Findings of a check after the mends are written.
    pub unmended: Vec<Unmended>,
    /// Findings of a check before the mends.
    pub findings: Vec<Finding>,
    /// Folder with the original files; null where nothing was written.
    pub undo_copies: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MendAction {
    /// Replaces lines of a text.
    Edit,
    /// Creates a missing file.
    Create,
    /// Moves files out of the folder, into the one with the undo copies.
    MoveAside,
    /// Clears entries of a delta's tables that lead past its end.
    Cut,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mend {
    /// Name of the file in the VM's folder.
    pub file: String,
    pub action: MendAction,
    /// Depending on the action: lines that are written, or left out of a list; files that are moved; ranges of the disk
    /// that are lost.
    pub lines: Vec<String>,
    pub reason: String,
    /// Assumption of the mend that no file proves.
    pub caution: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unmended {
    pub finding: Finding,
    /// Reason why the finding stays, and what to do by hand.
    pub reason: String,
}

/// Output of `repair --undo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairUndone {
    pub path: PathBuf,
    pub undo_copies: PathBuf,
    pub files: Vec<String>,
}

/// Output of `check`. The exit code is 6 if the findings include damage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    pub path: PathBuf,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub severity: Severity,
    pub file: String,
    /// Key, field of a header, or entry of a table.
    pub field: String,
    pub found: String,
    pub expected: String,
    pub remedy: String,
}
