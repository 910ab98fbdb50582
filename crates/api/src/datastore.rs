//! The datastores of a daemon.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::VmClient;
use crate::name::{DatastoreName, VmName};
use crate::units::format_bytes;

/// Body of `POST /datastores`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatastoreAdd {
    /// Absolute path of a folder, a block device, or a file of fixed size.
    pub path: PathBuf,
    /// Name of the datastore; null takes the folder's name.
    pub name: Option<DatastoreName>,
    /// Whether to take a device's lease from an owner that does not respond. The owner's host must be dead, or cut off
    /// from the device.
    #[serde(default)]
    pub take_over: bool,
    /// Whether the device refuses the writes of other hosts from now on, by persistent reservations; null leaves it as the
    /// datastore has it.
    #[serde(default)]
    pub reservations: Option<bool>,
}

words! {
    pub enum DatastoreCondition {
        Open = "open",
        /// The datastore could not be opened.
        Broken = "broken",
        /// The datastore is served but does not answer.
        Hung = "hung",
    }
}

/// Operation that a hung datastore does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hung {
    pub for_s: u64,
    /// Operation as a verb phrase, such as "renaming a file".
    pub doing: String,
}

/// A row of `datastore list`. Fields that need an open datastore are null for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Datastore {
    pub name: DatastoreName,
    /// Absolute path.
    pub path: PathBuf,
    /// Whether the daemon was started on it. VMs are created there unless another datastore is named.
    pub is_main: bool,
    /// Whether it is a block device or a file of fixed size. Such a datastore holds only native disks and does not
    /// grow.
    pub is_device: bool,
    pub condition: DatastoreCondition,
    /// Why the datastore is broken, or that it hangs.
    pub message: Option<String>,
    /// Operation that hangs; null while the datastore answers. The figures of a hung datastore are from before the
    /// hang.
    pub hung: Option<Hung>,
    /// Problems of a datastore that is served nevertheless.
    pub notices: Vec<String>,
    /// Free bytes on the file system and inside the store.
    pub free_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
    /// Bytes of removed VMs that the bin keeps, as far as they are known.
    pub bin_bytes: Option<u64>,
    /// Bytes that are freed but not in use again yet: those that the store is returning, and deltas that no snapshot
    /// owns.
    pub reclaimable_bytes: Option<u64>,
    pub direct_io: Option<bool>,
    /// Number of VMs that are served.
    pub vms: Option<u64>,
    /// Whether it has a store of native disks already; the first native disk creates the store.
    pub native_store: bool,
    /// Whether its device is reserved: it refuses the writes of other hosts.
    pub reservations: bool,
    /// Maximum memory of its maps, bytes.
    pub map_cache_bytes: Option<u64>,
}

/// Output of `datastore create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatastoreCreated {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Previous content that --force overwrote.
    pub overwritten: Option<String>,
}

/// Output of `datastore remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatastoreRemoved {
    pub name: DatastoreName,
    /// Path of the datastore. The removal deletes nothing in it.
    pub path: PathBuf,
}

/// Output of `datastore remove --dry-run`: the effects of the removal. The removal deletes nothing in the datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatastoreRemovePreview {
    pub name: DatastoreName,
    pub path: PathBuf,
    pub condition: DatastoreCondition,
    /// VMs that would no longer be served.
    pub vms: Vec<VmName>,
    /// VMs that are already not served: closed or broken.
    pub idle_vms: Vec<VmName>,
    /// Connected clients. They must disconnect first.
    pub clients: Vec<DatastoreClient>,
    /// Number of entries of the bin. The entries stay in the datastore, and `datastore add` shows them again.
    pub bin_entries: u64,
    pub bin_bytes: u64,
}

/// A client of a VM of a datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatastoreClient {
    pub vm: VmName,
    pub client: VmClient,
}

/// A full datastore, on which guest writes wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FullDatastore {
    pub datastore: DatastoreName,
    pub free_bytes: u64,
    pub total_bytes: u64,
    pub waiting: Vec<WaitingVm>,
    /// Snapshots whose commit frees the most space, the largest first.
    pub freeable: Vec<Freeable>,
}

/// A VM whose guest writes wait for space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingVm {
    pub vm: VmName,
    pub writes: u64,
}

/// A snapshot whose commit frees space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Freeable {
    pub vm: VmName,
    pub snapshot: String,
    /// Maximum number of bytes that the commit frees. Data that the layer below does not hold yet moves there.
    pub bytes_max: u64,
}

impl Freeable {
    /// Returns the command to type, and the bytes that it frees.
    pub fn remedy(&self) -> String {
        let bytes = format_bytes(self.bytes_max);
        format!("`unstun snapshot commit {} {}` frees at most {bytes}", self.vm, self.snapshot)
    }
}

/// Output of `datastore rebuild`. The exit code is 6 if `complete` is false.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreRebuilt {
    pub source: PathBuf,
    /// The new datastore.
    pub path: PathBuf,
    /// Number of the last valid checkpoint.
    pub checkpoint: u64,
    /// The catalogue was read: names, sizes and snapshots are those of the source.
    pub catalogue: bool,
    /// What was written after the last checkpoint is there.
    pub journal: bool,
    /// Nothing is lost.
    pub complete: bool,
    /// States of disks in the new datastore.
    pub states: Vec<RebuiltState>,
    /// Further damage, as sentences.
    pub notes: Vec<String>,
}

/// A state of a disk in a rebuilt datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RebuiltState {
    /// Number of the state in the store.
    pub node: u64,
    /// `VM/diskN` or `VM@SNAPSHOT/diskN`; without a catalogue, the VM that was made for the state. Null for a state that
    /// has no name.
    pub name: Option<String>,
    pub size_bytes: u64,
    /// Bytes with space in the store.
    pub recovered_bytes: u64,
    /// Ranges that read as an error until they are written.
    pub lost: Vec<crate::DiskRange>,
}
