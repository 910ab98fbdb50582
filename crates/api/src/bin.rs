//! The bin: removed VMs and states, which can be restored for a while.

use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Operation, Store, VmCondition};
use crate::name::{DatastoreName, VmName};

/// Kind of object that an entry of the bin restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BinKind {
    /// A whole VM, with its snapshots.
    Vm,
    /// A state of a VM that still exists.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinEntry {
    /// Identifier for `bin restore` and `bin empty`. They also accept the VM's name if it has one entry.
    pub id: String,
    pub kind: BinKind,
    pub vm: VmName,
    pub datastore: DatastoreName,
    pub store: Store,
    /// Operation that put the entry into the bin.
    pub operation: Operation,
    /// For a state: the snapshot to which the VM was reverted, or the snapshots that were removed from the tree.
    pub subject: Option<String>,
    pub removed: Timestamp,
    /// Time at which the entry expires. The bin removes it earlier if space is short.
    pub kept_until: Timestamp,
    /// Bytes that removing the entry frees; null if the VM was closed and the number is therefore unknown.
    pub bytes: Option<u64>,
    /// Folder of a VM's files.
    pub path: Option<PathBuf>,
}

/// Body of `POST /bin/restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BinRestore {
    /// Entry's ID, or the name of a VM that has one entry.
    pub entry: String,
    /// Name of the restored VM; null keeps the previous name.
    pub name: Option<VmName>,
    /// Datastore of the entry; null for all datastores.
    pub datastore: Option<DatastoreName>,
    /// For a state: end the sessions of the VM's running disks first.
    #[serde(default)]
    pub disconnect: bool,
}

/// Output of `bin restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinRestored {
    /// Entry as it was before the restore.
    pub entry: BinEntry,
    /// Name of the restored VM.
    pub vm: VmName,
    pub home: PathBuf,
    /// Condition of the VM; a VM that was closed when it was removed is closed again.
    pub condition: VmCondition,
}

/// Body of `POST /bin/empty` and of its preview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BinEmpty {
    /// IDs of entries, or names of VMs that have one entry; an empty list means all entries.
    pub entries: Vec<String>,
    /// Datastore of the entries; null for all datastores.
    pub datastore: Option<DatastoreName>,
}

/// Output of `bin empty`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinEmptied {
    /// Entries that were removed permanently, or that a preview would remove.
    pub entries: Vec<BinEntry>,
    /// Sum of the entries' bytes, as far as they are known.
    pub bytes: u64,
    /// Entries that could not be removed, with the reason.
    pub left: Vec<BinLeft>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BinLeft {
    pub id: String,
    pub vm: VmName,
    pub cause: String,
}
