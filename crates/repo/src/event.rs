//! Events of the log: what has happened to a repository, as JSON.

use serde::{Deserialize, Serialize};

use crate::chunk::ChunkRef;

/// What an entry of the log says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A session began; the number of this entry is its epoch.
    Begin,
    /// A backup is complete, and its session ended.
    Backup(Box<Backup>),
    /// Backups were given up. Their content stays until a sweep.
    Forget {
        /// Numbers of the backups.
        backups: Vec<u32>,
    },
    /// Backups were taken back before a sweep.
    Recall {
        /// Numbers of the backups.
        backups: Vec<u32>,
    },
    /// Packs that no backup names any more. No later entry may name them.
    Sweep {
        /// Backups that were given up long enough ago and can no longer be taken back.
        gone: Vec<u32>,
        /// Epochs of sessions that count as dead. They cannot complete a backup any more.
        fenced: Vec<u32>,
        /// Packs: epoch, first number, count.
        packs: Vec<(u32, u32, u32)>,
    },
}

/// A backup of a VM at one instant. Its number is that of its entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backup {
    /// Epoch of the session that wrote it.
    pub epoch: u32,
    /// Instant of the content, in microseconds since 1970.
    pub taken_us: u64,
    /// Where it is from.
    pub origin: Origin,
    /// Disks, in the order of their numbers.
    pub disks: Vec<DiskBackup>,
    /// What it cost.
    pub figures: Figures,
}

/// Which state of which VM a backup has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Name of the VM.
    pub vm: String,
    /// Identity of the VM, which a new name does not change.
    pub vm_id: String,
    /// Name and ID of the snapshot, by which the next backup of this VM learns what has changed.
    pub snapshot: String,
    /// See `snapshot`.
    pub snapshot_id: String,
    /// Host that made the backup.
    pub host: String,
    /// How consistent the state is: `crash`, `file-system` or `memory`.
    pub consistency: String,
    /// Free text of the user.
    pub note: String,
}

/// A disk of a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskBackup {
    /// Number of the disk in its VM.
    pub number: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Top page of the map; None for a disk of zeros.
    pub root: Option<ChunkRef>,
    /// Bytes of the chunks that the map names.
    pub data_bytes: u64,
    /// Table of the packs that the map names, with the number of references: parts of at most 65,536 lines of 12 bytes.
    pub packs: Vec<ChunkRef>,
}

/// What a backup cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes of the disks.
    pub size_bytes: u64,
    /// Bytes that were compared, because they had changed or nothing was known of them.
    pub read_bytes: u64,
    /// Bytes of chunks that the repository did not have.
    pub new_bytes: u64,
    /// Bytes of the packs that were stored.
    pub stored_bytes: u64,
    /// Packs that were stored.
    pub packs: u32,
    /// Duration in microseconds.
    pub took_us: u64,
}
