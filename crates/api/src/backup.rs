//! Output of `unstun repo`, `unstun backup` and `unstun restore`.

use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Output of `repo init` and `repo show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepositoryShown {
    /// Where the repository is.
    pub repo: String,
    pub id: String,
    pub chunk_bytes: u64,
    pub created: Timestamp,
    pub backups: u64,
    /// Backups that were removed and whose space was not reclaimed yet.
    pub removed: u64,
    pub keys: Vec<RepositoryKey>,
}

/// A key that opens a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepositoryKey {
    pub id: String,
    /// Whether a passphrase opens it; otherwise a key file.
    pub passphrase: bool,
    pub label: String,
    pub created: Timestamp,
    /// Whether it opened the repository for this command.
    pub in_use: bool,
}

/// A backup: output of `backup`, a row of `backup list`, and output of `backup show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backup {
    /// Number of the backup in its repository.
    pub backup: u32,
    /// Name that the VM had.
    pub vm: String,
    /// Instant of the content.
    pub taken: Timestamp,
    /// Snapshot that was backed up.
    pub snapshot: String,
    /// Whether the guest's file systems were frozen at that instant.
    pub quiesced: bool,
    /// Host that made the backup.
    pub host: String,
    pub note: String,
    /// Whether it was removed, and `backup recall` can take it back.
    pub removed: bool,
    pub size_bytes: u64,
    /// Bytes that are not zeros, in whole chunks.
    pub data_bytes: u64,
    /// Bytes that were read, because they had changed since the backup before.
    pub read_bytes: u64,
    /// Bytes of chunks that the repository did not have.
    pub new_bytes: u64,
    /// Bytes that the backup added to the repository, compressed and with its map.
    pub stored_bytes: u64,
    pub took_us: u64,
    pub disks: Vec<BackupDisk>,
}

/// A disk of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupDisk {
    pub number: u32,
    pub size_bytes: u64,
    pub data_bytes: u64,
}

/// Output of `backup verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupsVerified {
    pub backups: Vec<u32>,
    /// Chunks whose content was read and compared with its hash.
    pub chunks: u64,
    pub bytes: u64,
    /// Chunks that were not read: another backup has them too, or only a sample was wanted.
    pub skipped: u64,
    pub findings: Vec<String>,
}

/// Output of `backup verify --boot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupBooted {
    pub backup: u32,
    pub vm: String,
    /// From the creation of the VM over the backup until it was removed.
    pub took_us: u64,
}

/// Output of `backup prune`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepositoryPruned {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Backups that this command removed.
    pub removed: Vec<u32>,
    /// Backups removed earlier that cannot be taken back any more.
    pub gone: u64,
    /// Backups that were begun long ago and never completed.
    pub abandoned: u64,
    pub reclaimed_bytes: u64,
    pub kept_bytes: u64,
}

/// Output of `restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Restored {
    pub backup: u32,
    /// VM that was made; null if files were written.
    pub vm: Option<String>,
    /// Raw files that were written.
    pub files: Vec<PathBuf>,
    pub size_bytes: u64,
    /// Whether all of the content is in its place; otherwise it is copied in the background.
    pub complete: bool,
}
