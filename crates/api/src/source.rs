//! Sources: read-only images below native disks.

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::DatastoreName;

/// Format of an image. The command line shows the variants' comments as its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// The disk's bytes
    Raw,
    /// VMware's disks: a descriptor, a sparse file, or a chain of snapshots
    Vmdk,
    /// A disk of an OVA, which is read in place
    Ova,
    /// An export of an NBD server
    Nbd,
    /// QEMU's own, as are the others that `qemu-nbd` reads for the daemon
    Qcow2,
    /// Hyper-V's
    Vhdx,
    /// VirtualBox's
    Vdi,
    /// Virtual PC's and the older one of Hyper-V
    Vpc,
    /// A disk of a backup in a repository
    Backup,
}

impl ImageFormat {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Vmdk => "vmdk",
            Self::Ova => "ova",
            Self::Nbd => "nbd",
            Self::Qcow2 => "qcow2",
            Self::Vhdx => "vhdx",
            Self::Vdi => "vdi",
            Self::Vpc => "vpc",
            Self::Backup => "backup",
        }
    }
}

/// Image that a new disk shows until it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskFrom {
    /// Absolute path of a file, or the URI of an NBD export.
    pub uri: String,
    /// Format of the file; null takes it from the file's name.
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// Number of the disk in an OVA, from 0; null for others.
    #[serde(default)]
    pub part: Option<u32>,
    /// Whether the image is copied into the store in the background. Without that it is needed as long as the disk is.
    #[serde(default = "yes")]
    pub copy: bool,
    /// Of a disk in an OVA: whether the hash that the OVA's manifest has for it is compared, in the background and before the
    /// copy.
    #[serde(default = "yes")]
    pub verify: bool,
    /// Number of the backup, where `uri` is the place or the name of a repository and the format is `backup`; null for others.
    #[serde(default)]
    pub backup: Option<u32>,
    /// Absolute path of the file with the key that opens the repository; null if the repository's name says it.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// Absolute path of the file with the passphrase that opens the repository.
    #[serde(default)]
    pub passphrase_file: Option<PathBuf>,
}

impl DiskFrom {
    /// An image that is copied into the store, whose format its name says.
    pub fn image(uri: impl Into<String>) -> DiskFrom {
        let uri = uri.into();
        DiskFrom {
            uri,
            format: None,
            part: None,
            copy: true,
            verify: true,
            backup: None,
            key_file: None,
            passphrase_file: None,
        }
    }
}

pub(crate) fn yes() -> bool {
    true
}

words! {
    pub enum SourceState {
        /// The image is read where the disks have nothing of their own.
        Open = "open",
        /// The image cannot be read; so reads of what has not been copied are errors.
        Unavailable = "unavailable",
        /// All of the image is in the store. The image is not needed any more.
        Copied = "copied",
    }
}

words! {
    pub enum HashState {
        /// The hash has not been compared since the start of the daemon, or not to its end.
        Pending = "pending",
        /// The image has the hash that the manifest has.
        Matches = "matches",
        /// The image has another hash: it is not read any more.
        Wrong = "wrong",
    }
}

/// A row of `source list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    pub datastore: DatastoreName,
    /// Number of the source in its datastore.
    pub number: u64,
    pub uri: String,
    pub format: ImageFormat,
    /// Number of the backup, where `uri` is a repository; null for others.
    #[serde(default)]
    pub backup: Option<u32>,
    /// Whether nothing shows if the image has changed: it is trusted not to.
    pub trusted: bool,
    /// Whether the image is copied into the store in the background.
    pub copy: bool,
    pub state: SourceState,
    /// Comparison of the image with the hash in the manifest of its OVA; null where none is made.
    #[serde(default)]
    pub hash: Option<HashState>,
    /// Why the image cannot be read, or will not be at the daemon's next start; null without such a reason.
    pub message: Option<String>,
    pub size_bytes: u64,
    /// Bytes of the image, from its start, that are in the store.
    pub copied_bytes: u64,
    /// Running disks over the source, as `VM/diskN`. States of snapshots, and VMs that are closed or in the bin, are not listed.
    pub disks: Vec<String>,
    /// Job that copies the image; null if none does.
    pub job: Option<u64>,
}
