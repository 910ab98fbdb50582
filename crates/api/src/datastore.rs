//! The datastores of a daemon.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::VmClient;
use crate::name::{DatastoreName, VmName};
use crate::units::format_bytes;

/// Body of `POST /datastores`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreAdd {
    /// A folder, a block device, or a file of fixed size; absolute.
    pub path: PathBuf,
    /// Null takes the folder's name.
    #[serde(default)]
    pub name: Option<DatastoreName>,
    /// Takes a device's lease from an owner of which nothing is heard: its host must be dead, or cut off from the device.
    #[serde(default)]
    pub take_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatastoreCondition {
    Open,
    /// Could not be opened.
    Broken,
    /// Is served, and does not answer.
    Hung,
}

/// What a datastore does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hung {
    pub for_s: u64,
    /// A verb phrase: "renaming a file".
    pub doing: String,
}

impl DatastoreCondition {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Broken => "broken",
            Self::Hung => "hung",
        }
    }
}

/// A row of `datastore list`. What only an open one can say is null for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datastore {
    pub name: DatastoreName,
    /// Absolute.
    pub path: PathBuf,
    /// The daemon was started on it: VMs are made there unless another is named.
    pub is_main: bool,
    /// A block device, or a file of fixed size: native disks alone, and it does not grow.
    pub is_device: bool,
    pub condition: DatastoreCondition,
    /// Why it is broken, or that it hangs.
    pub message: Option<String>,
    /// Null while it answers. The figures of one that hangs are those of before.
    pub hung: Option<Hung>,
    /// What is wrong in it, while it is served.
    pub notices: Vec<String>,
    /// On the file system, and free inside of the store.
    pub free_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
    /// Of VMs that were removed and are kept in the bin, as far as it is known.
    pub bin_bytes: Option<u64>,
    /// Freed and not in use again yet: what the store is giving back, and deltas that no snapshot owns.
    pub reclaimable_bytes: Option<u64>,
    pub direct_io: Option<bool>,
    /// Those that are served.
    pub vms: Option<u64>,
    /// Whether it has a store of native disks already: with the first one it gets it.
    pub native_store: bool,
    /// What its maps may take in memory.
    pub map_cache_bytes: Option<u64>,
}

/// `datastore create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreCreated {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// What was on it, and went by --force.
    pub overwritten: Option<String>,
}

/// `datastore remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreRemoved {
    pub name: DatastoreName,
    /// All that is in it stays.
    pub path: PathBuf,
}

/// `datastore remove --dry-run`: what ends with it. All that is in the datastore stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreRemovePreview {
    pub name: DatastoreName,
    pub path: PathBuf,
    pub condition: DatastoreCondition,
    /// Those that are not served any more.
    pub vms: Vec<VmName>,
    /// Those that are not served as it is: closed, or broken.
    pub idle_vms: Vec<VmName>,
    /// Who is connected, and has to go first.
    pub clients: Vec<DatastoreClient>,
    /// Of the bin, which stays on it: `datastore add` shows them again.
    pub bin_entries: u64,
    pub bin_bytes: u64,
}

/// A client of a VM of a datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreClient {
    pub vm: VmName,
    pub client: VmClient,
}

/// A datastore that is full: guest writes wait there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullDatastore {
    pub datastore: DatastoreName,
    pub free_bytes: u64,
    pub total_bytes: u64,
    pub waiting: Vec<WaitingVm>,
    /// What gives most of it back, the largest first.
    pub freeable: Vec<Freeable>,
}

/// A VM whose guest writes wait for space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingVm {
    pub vm: VmName,
    pub writes: u64,
}

/// A snapshot whose commit gives space back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeable {
    pub vm: VmName,
    pub snapshot: String,
    /// At most: what the layer below does not hold yet moves there.
    pub bytes_max: u64,
}

impl Freeable {
    /// What to type, and what it gives.
    pub fn remedy(&self) -> String {
        let bytes = format_bytes(self.bytes_max);
        format!("`unstun snapshot commit {} {}` gives back at most {bytes}", self.vm, self.snapshot)
    }
}
