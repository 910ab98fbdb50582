//! `unstun repo`, `unstun backup` and `unstun restore`.

use std::path::PathBuf;

use api::name::{SnapshotRef, VmName};
use api::units;
use clap::{Args, Subcommand};

use super::policy::KeepArgs;
use crate::repository::{KEY_FILE_VARIABLE, PASSPHRASE_FILE_VARIABLE};

/// The repository of a command, and what opens it.
#[derive(Debug, Clone, Args)]
pub struct RepoArgs {
    /// Use the repository at this place (s3://BUCKET/PREFIX, gs://..., az://... or a folder), or of this name in
    /// /etc/unstun/repositories.toml
    #[arg(long, value_name = "PLACE|NAME", env = "UNSTUN_REPO")]
    pub repo: Option<String>,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// What opens a repository.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// Open it with the key in this file
    #[arg(long, value_name = "FILE", env = KEY_FILE_VARIABLE, conflicts_with = "passphrase_file")]
    pub key_file: Option<PathBuf>,
    /// Open it with the passphrase in this file
    #[arg(long, value_name = "FILE", env = PASSPHRASE_FILE_VARIABLE)]
    pub passphrase_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum RepoCommand {
    /// Make a repository for backups, in a folder or a bucket
    ///
    /// The credentials of a bucket are variables of the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
    /// AWS_ENDPOINT and so on; AWS_ALLOW_HTTP=true for a server without TLS.
    Init {
        #[command(flatten)]
        repo: RepoArgs,
        /// Make the key file, which must not exist; the backups cannot be read without it, so keep copies of it
        #[arg(long, requires = "key_file")]
        new_key: bool,
        /// Divide disks into chunks of this size, a power of two from 4K to 1M
        #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = units::parse_bytes)]
        chunk: u64,
    },
    /// Show a repository and the keys that open it
    Show {
        #[command(flatten)]
        repo: RepoArgs,
    },
    /// Add a key, which opens all backups, also earlier ones
    AddKey {
        #[command(flatten)]
        repo: RepoArgs,
        /// Make a new key file, which must not exist
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "new_passphrase_file",
            required_unless_present = "new_passphrase_file"
        )]
        new_key_file: Option<PathBuf>,
        /// Use the passphrase in this file
        #[arg(long, value_name = "FILE")]
        new_passphrase_file: Option<PathBuf>,
        /// Describe the key
        #[arg(long, default_value = "", hide_default_value = true)]
        label: String,
    },
    /// Remove a key; its file or passphrase does not open the repository any more
    RemoveKey {
        #[command(flatten)]
        repo: RepoArgs,
        /// ID of the key (`unstun repo show`)
        id: String,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    #[command(flatten)]
    pub make: BackupMakeArgs,
}

#[derive(Debug, Clone, Args)]
pub struct BackupMakeArgs {
    /// Back up this VM
    #[arg(required = true)]
    pub vm: Option<VmName>,
    #[command(flatten)]
    pub repo: RepoArgs,
    /// Back up this snapshot [default: one that the command takes]
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "quiesce")]
    pub snapshot: Option<SnapshotRef>,
    /// Freeze the guest's file systems while the snapshot is taken, if `vm set VM --guest-agent` says how
    #[arg(long)]
    pub quiesce: bool,
    /// Keep no snapshot on the VM; the next backup reads all of its disks then [default for VMs of the redo store]
    #[arg(long)]
    pub no_keep: bool,
    /// Describe the backup
    #[arg(long, default_value = "", hide_default_value = true)]
    pub note: String,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// List the backups of a repository
    List {
        /// List those of this VM alone
        vm: Option<VmName>,
        #[command(flatten)]
        repo: RepoArgs,
        /// List those that were removed and can be taken back too
        #[arg(long)]
        removed: bool,
    },
    /// Show a backup and its disks
    Show {
        /// Number of the backup, or VM, or VM@TIME
        which: String,
        #[command(flatten)]
        repo: RepoArgs,
    },
    /// Read backups as a restore would, and compare each chunk with its hash
    Verify {
        /// Numbers of backups, VMs, or VM@TIME [default: all backups]
        which: Vec<String>,
        #[command(flatten)]
        repo: RepoArgs,
        /// Read one of N chunks alone; maps are read wholly
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        sample: u64,
        /// Serve one backup as a VM instead, run this command with sh, and remove the VM; the backup boots if the command succeeds
        ///
        /// The variables UNSTUN_VM and UNSTUN_DISK0, UNSTUN_DISK1 and so on have the name of the VM and the NBD URIs of its disks.
        #[arg(long, value_name = "COMMAND", conflicts_with = "sample")]
        boot: Option<String>,
    },
    /// Remove backups by number, or those that no rule keeps, and reclaim the space of those that were removed before
    ///
    /// A removed backup can be taken back (`backup recall`) until a later prune, after --grace, reclaims its space. What a backup
    /// has stored that was begun a week ago and never completed is reclaimed too.
    Prune {
        /// Numbers of backups to remove
        numbers: Vec<u32>,
        #[command(flatten)]
        repo: RepoArgs,
        #[command(flatten)]
        keep: KeepArgs,
        /// Apply the rules to the backups of the VM with this name or ID alone; may be repeated [default: of each VM]
        #[arg(long, value_name = "VM")]
        vm: Vec<String>,
        /// Apply the rules to the backups with this note alone
        #[arg(long, value_name = "TEXT")]
        noted: Option<String>,
        /// Reclaim the space of what was removed at least this long ago, by an earlier command
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_grace)]
        grace: u64,
        /// Print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Copy backups into another repository: what it does not have of them
    Copy {
        /// Numbers of backups, VMs, or VM@TIME [default: all backups]
        which: Vec<String>,
        #[command(flatten)]
        repo: RepoArgs,
        /// Copy into the repository at this place, or of this name
        #[arg(long, value_name = "PLACE|NAME")]
        to: String,
        /// Open it with the key in this file
        #[arg(long, value_name = "FILE", conflicts_with = "to_passphrase_file")]
        to_key_file: Option<PathBuf>,
        /// Open it with the passphrase in this file
        #[arg(long, value_name = "FILE")]
        to_passphrase_file: Option<PathBuf>,
    },
    /// Take back backups that were removed
    Recall {
        /// Numbers of the backups (`backup list --removed`)
        #[arg(required = true)]
        numbers: Vec<u32>,
        #[command(flatten)]
        repo: RepoArgs,
    },
    /// Serve a disk of a backup as a read-only NBD export, until the command is ended
    Serve {
        /// Number of the backup, or VM, or VM@TIME
        which: String,
        #[command(flatten)]
        repo: RepoArgs,
        /// Serve this disk
        #[arg(long, value_name = "N", default_value_t = 0)]
        disk: u32,
        /// Listen on this Unix socket
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// End after the first client has disconnected
        #[arg(long)]
        once: bool,
    },
}

impl BackupCommand {
    /// Returns whether the command needs a daemon, because it runs a VM.
    pub fn boots(&self) -> bool {
        matches!(self, BackupCommand::Verify { boot: Some(_), .. })
    }
}

/// Reads a time in seconds, which can be 0.
fn parse_grace(text: &str) -> Result<u64, String> {
    match text {
        "0" | "0s" => Ok(0),
        _ => units::parse_duration_s(text),
    }
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Number of the backup, or VM for its latest one, or VM@TIME for the latest one until then
    #[arg(value_name = "NUMBER|VM[@TIME]")]
    pub which: String,
    #[command(flatten)]
    pub repo: RepoArgs,
    /// Give the VM this name [default: the one that it had]
    #[arg(long = "as", value_name = "NAME")]
    pub new_name: Option<VmName>,
    /// Return as soon as the VM can be started; its disks are copied in the background
    #[arg(long, conflicts_with = "into")]
    pub run: bool,
    /// Write raw files into this folder instead, without a daemon
    #[arg(long, value_name = "DIR", conflicts_with = "new_name")]
    pub into: Option<PathBuf>,
}
