//! What the host asks of the guest: a line of JSON each way, over a TCP connection that the guest opens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The host, as QEMU's user network shows it to the guest.
pub const HOST: &str = "10.0.2.2";
/// Kernel parameters, which process 1 finds in its environment: where the host listens.
pub const CONTROL_PORT: &str = "control_port";
pub const ECHO_PORT: &str = "echo_port";

/// Disks go by the serial numbers they are given: `disk0`, `disk1`, ... Every answer is a `Result`; an error is a
/// sentence.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// The file system of a disk, at `/DISK`.
    Mount {
        disk: String,
        kind: String,
    },
    /// Ends what runs on it first.
    Unmount {
        disk: String,
    },
    Sync,
    /// One writer per disk: on the raw disk, or on a file where it is mounted.
    StartWriters,
    /// `Vec<Gap>` since it was asked last (or since the start).
    Gaps,
    /// Stops them and reads everything back. `u64`: blocks found as they were written last.
    StopWriters,
    /// Files are made, renamed and removed on every mounted disk.
    StartChurn,
    /// `Durable`: what a reset may not take away any more.
    Churned,
    /// After a reset. `u64`: files found whole.
    CheckChurn(Durable),
    /// A file of so many bytes on every mounted disk, flushed: a delta that takes a while to commit.
    Weigh {
        bytes: u64,
    },
    /// A tree of files of a generation, on every mounted disk.
    Fill {
        generation: u64,
    },
    /// Files of the tree changed, cut, removed, renamed and added.
    Change,
    /// `String`: every entry with its kind and mode, and the SHA-256 of every file.
    Tree {
        disk: String,
    },
}

/// Of every disk: the number of its last file that was flushed, name and all.
pub type Durable = BTreeMap<String, u64>;

/// The longest time between the ends of two successive writes with their fdatasync.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gap {
    pub disk: String,
    pub longest_us: u64,
    pub writes: u64,
}
