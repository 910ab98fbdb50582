//! Requests of the host to the guest: a line of JSON in each direction, over a TCP connection that the guest opens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Address of the host in the guest, in QEMU's user network.
pub(crate) const HOST: &str = "10.0.2.2";
/// Kernel parameters with the ports on which the host listens. Process 1 finds them in its environment.
pub(crate) const CONTROL_PORT: &str = "control_port";
pub(crate) const ECHO_PORT: &str = "echo_port";
/// Name of the guest agent's virtio-serial port.
pub(crate) const AGENT_PORT: &str = "org.qemu.guest_agent.0";

/// A request. Disks are named by their serial numbers: `disk0`, `disk1`, ... Every answer is a `Result`; an error is a
/// sentence.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Mounts the file system of a disk at `/DISK`.
    Mount {
        disk: String,
        kind: String,
    },
    /// Unmounts a disk, after ending what runs on it.
    Unmount {
        disk: String,
    },
    /// Answers `u64`: the size of a disk in bytes, as the guest's kernel knows it.
    Size {
        disk: String,
    },
    Sync,
    /// Starts QEMU's guest agent.
    StartAgent,
    /// Stops the agent: until it is continued, or for ever.
    StopAgent {
        continues: bool,
    },
    ContinueAgent,
    /// Starts one writer per disk: on the raw disk, or on a file where it is mounted.
    StartWriters,
    /// Answers `Vec<Gap>`: the gaps since the last request or the start.
    Gaps,
    /// Stops the writers and reads everything back. Answers `u64`: the blocks found as they were last written.
    StopWriters,
    /// Makes, renames and removes files on every mounted disk.
    StartChurn,
    /// Answers `Durable`: the files that a reset must not lose any more.
    Churned,
    /// Checks the files after a reset. Answers `u64`: the files found complete.
    CheckChurn(Durable),
    /// Writes and flushes a file of so many bytes on every mounted disk, for a delta that takes a while to commit.
    Weigh {
        bytes: u64,
    },
    /// Writes a tree of files of a generation on every mounted disk.
    Fill {
        generation: u64,
    },
    /// Changes, cuts, removes, renames and adds files of the tree.
    Change,
    /// Answers `String`: every entry with its kind and mode, and the SHA-256 of every file.
    Tree {
        disk: String,
    },
    /// Answers `Reserved`: two hosts take a store on a reserved LUN from each other.
    Reserve,
}

/// What a LUN with persistent reservations did with the I/O of two hosts. An error is that of a write; None is a success.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reserved {
    /// A write of host b while host a owns the store.
    pub beside_an_owner: Option<String>,
    /// A write of host a after b has taken the store over.
    pub after_a_take_over: Option<String>,
    pub a_reads: bool,
    pub b_writes: bool,
    /// Why host a has lost its lease.
    pub why_lost: String,
    /// A write of host a after b has released the store.
    pub after_a_release: Option<String>,
    /// A host that was killed reserved the device again.
    pub reserves_again: bool,
    /// Without reservations, both write.
    pub is_off: bool,
}

/// For every disk, the number of its last file that was flushed together with its name.
pub(crate) type Durable = BTreeMap<String, u64>;

/// The longest time between the ends of two successive writes with their fdatasync.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Gap {
    pub disk: String,
    pub longest_us: u64,
    pub writes: u64,
}
