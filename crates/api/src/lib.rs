//! JSON structs of the REST API and of `--json`, documented in `docs/cli-json.md`; the API's client; and the code that
//! the command lines of `unstun` and `unstun-lab` share.
//!
//! Times are RFC 3339 in UTC, sizes in bytes, units in the field's name. Identities are 128 bits as 32 hexadecimal
//! digits. A field that does not apply is null, never absent. Fields are added, not renamed.

/// Defines an enum with a word for each variant, the same in JSON and in texts.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$attribute:meta])* $variant:ident = $word:literal,)* }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        $(#[$meta])*
        pub enum $name { $($(#[$attribute])* #[serde(rename = $word)] $variant,)* }

        impl $name {
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

/// Gives a type whose form in JSON is its text the conversions for that.
macro_rules! as_text {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

mod access;
mod alarm;
pub mod args;
mod backup;
mod bin;
pub mod calendar;
pub mod client;
mod config;
mod cost;
mod datastore;
mod disk;
pub mod error;
mod event;
pub mod event_stream;
mod guest;
mod job;
pub mod limits;
pub mod listen;
mod local;
pub mod location;
pub mod name;
pub mod openapi;
pub mod output;
mod policy;
pub mod program;
pub mod progress;
mod retention;
mod routes;
mod snapshot;
mod source;
pub mod units;
mod vm;
pub mod window;
mod zone;

use std::path::PathBuf;

use clap::ValueEnum;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use access::*;
pub use alarm::*;
pub use backup::*;
pub use bin::*;
pub use config::*;
pub use cost::*;
pub use datastore::*;
pub use disk::*;
pub use event::*;
pub use guest::*;
pub use job::*;
pub use limits::VmLimits;
pub use local::*;
pub use policy::*;
pub use retention::*;
pub use snapshot::*;
pub use source::*;
pub use vm::*;

/// Output of `status`, and of `up --json` once the daemon serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Datastores on which guest writes wait for space.
    pub full: Vec<FullDatastore>,
    pub version: String,
    pub pid: u32,
    pub started: Timestamp,
    /// Absolute path of the main datastore.
    pub datastore: PathBuf,
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Whether disk I/O bypasses the page cache; false where the file system refuses O_DIRECT.
    pub direct_io: bool,
    /// Base URIs, without an export's name.
    pub nbd: Vec<String>,
    /// URLs of the API over TCP, and `unix:PATH` for the socket of a proxy.
    #[serde(default)]
    pub web: Vec<String>,
    pub nbd_clients: u64,
    pub vms: u64,
    pub disks: u64,
    pub snapshots: u64,
    /// Number of jobs that are queued, running, paused or waiting for space.
    pub open_jobs: u64,
    /// Longest time since the start for which one task kept the core's thread from all others, microseconds.
    pub longest_poll_us: u64,
    /// The line of source that started that task, for reports of a slow core; null before the first poll of 0.2 ms.
    pub longest_poll_task: Option<String>,
    /// Number of times that a task did so for more than a millisecond.
    pub long_polls: u64,
    /// Cores in the order of their numbers. The first also runs the control side and the native stores.
    #[serde(default)]
    pub cores: Vec<Core>,
    /// All datastores, the main one first. The numbers above cover all of them; the space and `direct_io` are the main
    /// one's.
    pub datastores: Vec<Datastore>,
}

/// One core of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Core {
    pub number: u64,
    /// Number of open VMs that it runs.
    pub vms: u64,
    pub nbd_clients: u64,
    /// Requests that native VMs of this core have sent to the core of their stores: other writes than overwrites, and flushes.
    pub store_messages: u64,
    /// Batches in which they were sent.
    pub store_batches: u64,
}

/// Space on the datastore against the worst case: every delta may grow to the size of its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Space {
    /// Free bytes on the file system and inside the store.
    pub free_bytes: u64,
    /// Bytes that all deltas and native disks of the datastore together can still allocate.
    pub worst_growth_bytes: u64,
    /// Bytes of removed VMs that the bin keeps, as far as they are known. The bin frees them when others need the
    /// space.
    pub bin_bytes: u64,
    /// Bytes that are freed but not in use again yet: those that the store is returning, and deltas that no snapshot
    /// owns.
    pub reclaimable_bytes: u64,
}

impl Space {
    pub fn is_enough(&self) -> bool {
        self.free_bytes >= self.worst_growth_bytes
    }
}

words! {
    /// Kind of store of a VM's disks: a native store is one file for all disks of the datastore, whose snapshots are metadata
    /// in it. The command line shows the variants' comments as its help.
    #[derive(Default, ValueEnum)]
    pub enum Store {
        /// The native store: taking, reverting, cloning and dropping cost nothing
        #[default]
        Native = "native",
        /// VMware-style delta chains
        Redo = "redo",
    }
}

/// Behaviour of a guest's write while the datastore has no space left. The command line shows the variants' comments as
/// its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// Wait until space returns
    #[default]
    Wait,
    /// Fail with ENOSPC
    Error,
}
