//! The JSON of the REST API and of `--json`, one set of structs, documented in `docs/cli-json.md`; the API's client; and
//! what the command lines of `unstun` and `unstun-lab` have in common.
//!
//! Times are RFC 3339 in UTC, sizes in bytes, units in the field's name. Identities are 128 bits as 32 hexadecimal
//! digits. A field that does not apply is null, never absent. Fields are added, not renamed.

pub mod args;
mod bin;
pub mod client;
mod datastore;
mod disk;
pub mod error;
mod event;
mod job;
pub mod listen;
mod local;
pub mod location;
pub mod name;
pub mod output;
pub mod program;
pub mod progress;
mod snapshot;
pub mod units;
mod vm;

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use bin::*;
pub use datastore::*;
pub use disk::*;
pub use event::*;
pub use job::*;
pub use local::*;
pub use snapshot::*;
pub use vm::*;

/// `status`, and what `up --json` prints once it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Those on which guest writes wait for space.
    pub full: Vec<FullDatastore>,
    pub version: String,
    pub pid: u32,
    pub started: Timestamp,
    /// The main one; absolute.
    pub datastore: PathBuf,
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Whether disk I/O bypasses the page cache; false where the file system refuses O_DIRECT.
    pub direct_io: bool,
    /// Base URIs, without an export's name.
    pub nbd: Vec<String>,
    pub nbd_clients: u64,
    pub vms: u64,
    pub disks: u64,
    pub snapshots: u64,
    /// Queued, running, paused or waiting for space.
    pub open_jobs: u64,
    /// The longest time since the start that one task kept the core's thread from all others.
    pub longest_poll_us: u64,
    /// How often one did for more than a millisecond.
    pub long_polls: u64,
    /// The main one first; the numbers above are over all of them, room and `direct_io` the main one's.
    pub datastores: Vec<Datastore>,
}

/// Room on the datastore against the worst case: every delta may grow to the size of its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// On the file system, and free inside of the store.
    pub free_bytes: u64,
    /// What all deltas and native disks of the datastore together can still allocate.
    pub worst_growth_bytes: u64,
    /// Of VMs that were removed and are kept in the bin, as far as it is known: taken, and given back when others need it.
    pub bin_bytes: u64,
    /// Freed and not in use again yet: what the store is giving back, and deltas that no snapshot owns.
    pub reclaimable_bytes: u64,
}

impl Space {
    pub fn is_enough(&self) -> bool {
        self.free_bytes >= self.worst_growth_bytes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Store {
    /// One file for all disks of the datastore; snapshots are metadata in it.
    #[default]
    Native,
    /// VMware-style delta chains.
    Redo,
}

impl Store {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Redo => "redo",
        }
    }
}

/// What a guest's write does while the datastore has no space left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    #[default]
    Wait,
    /// Fails with ENOSPC.
    Error,
}
