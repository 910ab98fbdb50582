//! What commands print that ask no daemon, or only look at its answer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::name::VmName;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachTo {
    Qemu,
    Libvirt,
    Proxmox,
}

/// `attach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    pub vm: VmName,
    pub to: AttachTo,
    pub disks: Vec<AttachDisk>,
    /// Null where NBD is served over TCP.
    pub socket: Option<AttachSocket>,
    /// Arguments for QEMU, XML for libvirt, a command for Proxmox.
    pub snippet: String,
    /// How to let QEMU's user in, a line each; comments begin with `#`.
    pub access: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachDisk {
    pub number: u32,
    /// As NBD names it.
    pub export: String,
    pub nbd_uri: String,
}

/// A Unix socket, and who may connect to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachSocket {
    pub path: PathBuf,
    pub owner: String,
    pub group: String,
    /// Octal permission bits, such as `660`.
    pub mode: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Data is lost, or wrong, or cannot be read.
    Damage,
    /// Works, and will not for long, or not everywhere.
    Warning,
    /// To be known.
    Note,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// `repair`; with damage among what stays, or not written with damage among the findings, it ends with exit code 6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    pub path: PathBuf,
    pub mends: Vec<Mend>,
    /// What a check finds once the mends are written.
    pub unmended: Vec<Unmended>,
    /// What a check finds before.
    pub findings: Vec<Finding>,
    /// The folder with the files as they were; null where nothing was written.
    pub undo_copies: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MendAction {
    /// Lines of a text are replaced.
    Edit,
    /// A file is written that is not there.
    Create,
    /// Files go out of the folder, into the one with the undo copies.
    MoveAside,
    /// Entries of a delta's tables that lead past its end are cleared.
    Cut,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mend {
    /// Name in the folder.
    pub file: String,
    pub action: MendAction,
    /// The lines that are written or, of a list, left out; the files that are moved; the ranges of the disk that are lost.
    pub lines: Vec<String>,
    pub reason: String,
    /// What no file proves.
    pub caution: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmended {
    pub finding: Finding,
    /// Why it stays, and what to do by hand.
    pub reason: String,
}

/// `repair --undo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairUndone {
    pub path: PathBuf,
    pub undo_copies: PathBuf,
    pub files: Vec<String>,
}

/// `check`; with damage among the findings it ends with exit code 6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub path: PathBuf,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub severity: Severity,
    pub file: String,
    /// A key, a header's field, or a table's entry.
    pub field: String,
    pub found: String,
    pub expected: String,
    pub remedy: String,
}
