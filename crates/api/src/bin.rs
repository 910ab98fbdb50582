//! The bin: what was removed, and can be brought back for a while.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Operation, Store, VmCondition};
use crate::name::{DatastoreName, VmName};

/// What an entry of the bin brings back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinKind {
    /// A whole VM, with its snapshots.
    Vm,
    /// A state of a VM that is there.
    State,
}

impl BinKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "VM",
            Self::State => "state",
        }
    }
}

/// A row of `bin list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinEntry {
    /// What `bin restore` and `bin empty` take; as well as the VM's name where that has one entry.
    pub id: String,
    pub kind: BinKind,
    pub vm: VmName,
    pub datastore: DatastoreName,
    pub store: Store,
    /// What put it there.
    pub operation: Operation,
    /// Of a state: the snapshot that the VM went back to, or the names that left the tree.
    pub subject: Option<String>,
    pub removed: Timestamp,
    /// Unless space is short before.
    pub kept_until: Timestamp,
    /// What its removal gives back; null where that was not known: the VM was closed.
    pub bytes: Option<u64>,
    /// The folder of a VM's files.
    pub path: Option<PathBuf>,
}

/// Body of `POST /bin/restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BinRestore {
    /// An entry's id, or the name of a VM that has one entry.
    pub entry: String,
    /// What the VM is called from then on; null: as it was.
    #[serde(default)]
    pub name: Option<VmName>,
    /// Null for all.
    #[serde(default)]
    pub datastore: Option<DatastoreName>,
    /// Of a state: end the sessions of the VM's running disks first.
    #[serde(default)]
    pub disconnect: bool,
}

/// `bin restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinRestored {
    /// As it was.
    pub entry: BinEntry,
    /// What it is called now.
    pub vm: VmName,
    pub home: PathBuf,
    /// A VM that was closed when it was removed is closed again.
    pub condition: VmCondition,
}

/// Body of `POST /bin/empty` and of its preview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BinEmpty {
    /// Ids of entries, or names of VMs that have one entry; none: all entries.
    #[serde(default)]
    pub entries: Vec<String>,
    /// Null for all.
    #[serde(default)]
    pub datastore: Option<DatastoreName>,
}

/// `bin empty`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinEmptied {
    /// What was removed for good; in a preview what would be.
    pub entries: Vec<BinEntry>,
    /// Their sum, as far as it is known.
    pub bytes: u64,
    /// What could not be removed, and why.
    pub left: Vec<BinLeft>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinLeft {
    pub id: String,
    pub vm: VmName,
    pub cause: String,
}
