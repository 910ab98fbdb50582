//! Command line of `unstun`: its arguments and its exit codes.

// The comments of arguments are help texts, in which brackets hold what may be omitted.
#![allow(rustdoc::broken_intra_doc_links)]

mod alarm;
mod backup;
mod bin;
mod config;
mod disk;
pub mod examples;
mod policy;
mod snapshot;
#[cfg(test)]
mod tests;
mod token;
mod vm;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::native::FORMAT_VERSION;
use jiff::Timestamp;

use crate::access::syslog::SyslogTo;
use crate::alarms::deliver::CHANNELS_DIR;
use crate::guest::GUESTS_DIR;
use crate::log::Filter;
use crate::memory::{CORES_MAX, MAP_CACHE_BYTES_MIN, Memory};
use api::args::lab::LabCommand;
use api::args::{DemoArgs, Global};
use api::listen::{NbdListen, WebListen};
use api::name::{DatastoreName, SnapshotRef, VmName};
use api::units;
use api::{AttachTo, AttachVia, ExportFormat};

pub use alarm::{AlarmCommand, MuteArgs, Threshold, ThresholdArgs};
pub use backup::{BackupArgs, BackupCommand, BackupMakeArgs, KeyArgs, RepoArgs, RepoCommand, RestoreArgs};
pub use bin::{BinCommand, ConsentArgs};
pub use config::{ConfigCommand, ConfigImportArgs};
pub use disk::{DiskSpec, DiskSpecs};
pub use policy::{BackupArg, KeepArgs, PolicyArgs, PolicyCommand};
pub use snapshot::{
    CommitArgs, ConsolidateArgs, DiscardArgs, JobArgs, LossArgs, RevertArgs, SnapshotCommand, VmAndName,
    VmLossArgs,
};
pub use token::{AuditArgs, TokenCommand, TokenCreateArgs};
pub use vm::{
    CloneArgs, DefragmentArgs, DiskAddArgs, DiskCommand, ImportArgs, Limit, MoveArgs, OnOff, OrNone,
    RemoveArgs, SetArgs, SetGuest, SetLabels, SetLimits, SourceCommand, VmCommand, VmCreateArgs,
};

const AFTER_HELP: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 refused or not confirmed, 4 not found, 5 locked, \
6 damage found.\nVM@NAME is accepted wherever VM NAME is. Sizes are in powers of 1024 (20G, 512M) or plain bytes.";

/// `0.1.0 (commit 1a2b3c4, native store format 1.0)`. `make install` names the commit; other builds do not.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let [major, minor] = FORMAT_VERSION;
    let commit = option_env!("UNSTUN_COMMIT").map_or(String::new(), |commit| format!("commit {commit}, "));
    format!("{} ({commit}native store format {major}.{minor})", env!("CARGO_PKG_VERSION"))
});

/// Serve virtual disks whose snapshots do not stun the VM
#[derive(Debug, Parser)]
#[command(name = "unstun", version = VERSION.as_str(), after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the daemon on a datastore (without --datastore: creates and serves ./unstun-data)
    Up(UpArgs),
    /// Show the state of the daemon and its free space
    Status,
    /// Add, create, list and remove datastores
    #[command(subcommand)]
    Datastore(DatastoreCommand),
    /// Create, import, clone, change and remove VMs
    #[command(subcommand)]
    Vm(VmCommand),
    /// Take, commit, revert and discard snapshots
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Show the space that a VM and its snapshots use
    Space { vm: VmName },
    /// List, restore and empty the bin of removed VMs and discarded states
    #[command(subcommand)]
    Bin(BinCommand),
    /// Make a repository for backups, and manage its keys
    #[command(subcommand)]
    Repo(RepoCommand),
    /// Back up a VM into a repository, and list, verify and remove backups
    ///
    /// The first backup of a VM stores what its disks have; each later one what has changed since. Every backup is whole by
    /// itself. Equal content of all VMs is stored once.
    Backup(BackupArgs),
    /// Restore a VM from a backup: it runs at once, and is copied in the background
    Restore(RestoreArgs),
    /// List the images below disks, and copy them into their stores
    #[command(subcommand)]
    Source(SourceCommand),
    /// List, pause, resume, cancel and limit background jobs
    #[command(subcommand)]
    Job(JobCommand),
    /// Print the events of a VM or of all VMs, with the stun of each operation
    Events(EventsArgs),
    /// Take and remove snapshots by a schedule
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// List, acknowledge and mute alarms, and change their rules
    #[command(subcommand)]
    Alarm(AlarmCommand),
    /// Create, list and revoke tokens for the API over TCP
    #[command(subcommand)]
    Token(TokenCommand),
    /// Save policies, tokens and thresholds as one file, and restore them
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a link that opens the web console, once and within a minute
    Console {
        /// Open the page of this VM
        vm: Option<VmName>,
    },
    /// Show what the snapshots of a VM cost it: its rates and latencies before, with, while committing and after them
    Cost(CostArgs),
    /// Print who changed what, from where and with which outcome
    Audit(AuditArgs),
    /// Print the lines that attach a VM's disks to QEMU, libvirt or Proxmox
    Attach(AttachArgs),
    /// Thaw the guests that a daemon left frozen when it ended (systemd runs it then)
    ///
    /// A snapshot with --quiesce freezes the guest's file systems for a moment. If the daemon is killed in that moment, this
    /// command thaws them, and so does the daemon's next start.
    Thaw(ThawArgs),
    /// Check the stores in use, or the files or the store at PATH (reads only)
    Check(CheckArgs),
    /// Repair what `check PATH` finds in VMware files (without --yes: print what would be written)
    Repair(RepairArgs),
    /// Check the stores of datastores and read every block of data
    Scrub,
    /// Write a VMware disk chain as one sparse raw file, without a daemon
    Convert(ConvertArgs),
    /// Write a state of a VM's disks as raw, qcow2, VMDK or OVA files
    ///
    /// Without @SNAPSHOT the command takes a snapshot, and removes it at its end.
    Export(ExportArgs),
    /// Copy an NBD export into a sparse raw file, or only what differs between two snapshots (needs no daemon here)
    ///
    /// Without --since, it copies all of the export and creates FILE. With --since, FILE holds that snapshot and gets only what
    /// differs. A record FILE.unstun says what FILE holds; an interrupted pull is completed by the same command.
    Pull(PullArgs),
    /// Load a VM while a snapshot is taken, kept and committed, on both kinds of store (about 45 s)
    Demo(DemoArgs),
    /// Measure what a snapshot costs: published experiments and your own, on modelled or on real storage
    #[command(subcommand)]
    Lab(LabCommand),
    /// Write the man pages or the shell completions (for packagers)
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// Print the names that fit the last word of a command line (for the completions of shells)
    #[command(hide = true)]
    Complete {
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct CostArgs {
    pub vm: VmName,
    /// Begin at this time, such as 2026-11-27T12:00:00Z, or so long ago, such as 12h or 30d
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = units::parse_past)]
    pub since: Timestamp,
    /// End at this time, or so long ago [default: now]
    #[arg(long, value_name = "TIME", value_parser = units::parse_past)]
    pub until: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Create the folder that --datastore names if it does not exist
    #[arg(long)]
    pub create: bool,
    /// Serve NBD on unix:PATH or HOST:PORT; may be repeated [default: unix:DATASTORE/.unstun/nbd.sock]
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    pub nbd: Vec<NbdListen>,
    /// Serve NBD on TCP addresses with TLS alone, for clients with a certificate of the authority; the folder has ca-cert.pem,
    /// server-cert.pem and server-key.pem
    #[arg(long, value_name = "DIR", conflicts_with = "nbd_insecure")]
    pub nbd_tls_dir: Option<PathBuf>,
    /// Serve NBD on TCP addresses beyond loopback although every client that reaches them can read and write every disk
    #[arg(long)]
    pub nbd_insecure: bool,
    /// Serve the API, the console and the metrics at this address too, for clients with a token; a TCP address beyond loopback
    /// with TLS; a Unix socket for a proxy; `none`: not at all; may be repeated [default: 127.0.0.1:8484, if it is free]
    #[arg(long, value_name = "HOST:PORT|unix:PATH|none")]
    pub web: Vec<WebListen>,
    /// Use this certificate for TLS beyond loopback, in PEM [default: one that the daemon makes for itself]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Use this private key for TLS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Copy the audit to this socket of a syslog daemon; `none`: do not [default: /dev/log, unless the log goes to the journal]
    #[arg(long, value_name = "PATH|none")]
    pub syslog: Option<SyslogTo>,
    /// Deliver alarms over the channels that the files in this folder describe
    #[arg(long, value_name = "DIR", default_value = CHANNELS_DIR)]
    pub alarms_dir: PathBuf,
    /// Freeze and thaw guests by the commands that the files in this folder name (`vm set VM --guest-agent command:NAME`)
    #[arg(long, value_name = "DIR", default_value = GUESTS_DIR)]
    pub guests_dir: PathBuf,
    /// Look at the daemon for alarms at this interval, such as 30s; a warning takes two looks in a row
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration_s, hide = true)]
    pub alarms_every: u64,
    /// Do not record what each disk does in each second: no charts, no costs of snapshots, no alarm about latency
    #[arg(long)]
    pub no_recorder: bool,
    /// Show the reports of `unstun lab` in this folder in the console: its files NAME.html and NAME.xlsx
    #[arg(long, value_name = "DIR")]
    pub lab_reports: Option<PathBuf>,
    /// Keep map pages of native disks in this part of the memory, in bytes or with K, M, G [default: at most a sixteenth]
    #[arg(long, value_name = "SIZE", value_parser = parse_map_cache)]
    pub map_cache: Option<usize>,
    /// Limit the memory of the daemon, in bytes or with K, M, G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_memory)]
    pub memory: Memory,
    /// Run VMs on N cores, 1 to 16; native stores are on the first [default: the machine's; fewer where --memory has less
    /// than 128 MiB for each]
    #[arg(long, value_name = "N", value_parser = parse_cores)]
    pub cores: Option<usize>,
    /// Keep removed VMs and discarded states in the bin for this time, in hours (0: keep nothing)
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    pub bin_hours: u32,
    /// Keep nothing in the bin while less than this part of the datastore is free, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub bin_free_percent: u32,
    /// Log to standard error at LEVEL: error, warn, info, debug or trace; PART=LEVEL sets it for one part (access, bin, client,
    /// daemon, datastore, relocation, rest or vm); separate several by commas
    #[arg(
        long,
        value_name = "LEVEL|PART=LEVEL",
        env = "UNSTUN_LOG",
        hide_env_values = true,
        default_value = "info"
    )]
    pub log: Filter,
}

fn parse_cores(text: &str) -> Result<usize, String> {
    let found = text.parse().ok().filter(|cores| (1..=CORES_MAX).contains(cores));
    found.ok_or_else(|| format!("{text:?}: expected 1 to {CORES_MAX}"))
}

fn parse_memory(text: &str) -> Result<Memory, String> {
    Memory::new(units::parse_bytes(text)?).map_err(|expected| format!("{text:?}: expected {expected}"))
}

fn parse_map_cache(text: &str) -> Result<usize, String> {
    let bytes = units::parse_bytes(text)?;
    if bytes < MAP_CACHE_BYTES_MIN {
        return Err(format!("{text:?}: expected at least {}", units::format_bytes(MAP_CACHE_BYTES_MIN)));
    }
    usize::try_from(bytes).map_err(|e| e.to_string())
}

fn parse_parent(text: &str) -> Result<(String, String), String> {
    let expected = || format!("{text:?}: expected LINK=PARENT, two names of descriptors in the folder");
    let (link, parent) = text.split_once('=').ok_or_else(expected)?;
    let sound = |name: &str| name.ends_with(".vmdk") && !name.contains('/');
    match sound(link) && sound(parent) && link != parent {
        true => Ok((link.to_owned(), parent.to_owned())),
        false => Err(expected()),
    }
}

#[derive(Debug, Subcommand)]
pub enum DatastoreCommand {
    /// Serve another datastore, now and after every restart
    Add {
        /// Name the folder, or the device or image that `create` prepared [default NAME: that of the folder, device or image]
        #[arg(value_name = "[NAME=]PATH")]
        what: String,
        /// Let a shared SCSI or NVMe device refuse the writes of other hosts, or not [default: as the datastore has it]
        #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
        reservations: Option<Switch>,
    },
    /// Create a datastore on a whole block device, in a file of fixed size or in an image of Ceph's RBD (without a daemon)
    Create {
        /// Name the device, such as /dev/disk/by-id/..., the file, or the image (rbd:POOL/IMAGE, and after it :id=USER
        /// or :conf=FILE)
        #[arg(value_name = "DEVICE")]
        path: PathBuf,
        /// Make the image, of this size
        #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
        size: Option<u64>,
        /// Overwrite the content of the device; this cannot be undone
        #[arg(long)]
        force: bool,
    },
    /// List the datastores and their free space
    List,
    /// Write what can be read of a damaged store to a new datastore (without a daemon)
    ///
    /// The source is not changed. Exit code 6: something is lost.
    Rebuild {
        /// Name the store's file or device, or the folder that has it
        source: PathBuf,
        /// Name the new folder, which must not exist
        #[arg(long, value_name = "PATH")]
        into: PathBuf,
    },
    /// Stop serving a datastore without changing its content
    Remove {
        name: DatastoreName,
        #[command(flatten)]
        consent: ConsentArgs,
    },
    /// Take over a device whose lease another host does not renew; that host must be dead or cut off
    TakeOver {
        /// Name the datastore that is not served, or the device
        #[arg(value_name = "NAME|[NAME=]DEVICE")]
        what: String,
        /// Claim the lease without asking
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the jobs since the start of the daemon
    List,
    /// Pause a job, which keeps its progress
    Pause { id: u64 },
    /// Resume a paused job
    Resume { id: u64 },
    /// Cancel a job; a cancelled commit leaves a delta that no snapshot owns
    Cancel { id: u64 },
    /// Limit the rate of a job
    Limit {
        id: u64,
        /// Set the limit in bytes per second, such as 200M; `none` removes it
        #[arg(value_parser = parse_rate)]
        rate: Rate,
    },
}

/// A type of its own, because clap reads a bare `Option` as "may be left out".
#[derive(Debug, Clone, Copy)]
pub struct Rate(pub Option<u64>);

fn parse_rate(text: &str) -> Result<Rate, String> {
    units::parse_rate(text).map(Rate)
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Print the events of this VM [default: of all VMs]
    pub vm: Option<VmName>,
    /// Print new events until Ctrl-C (with --json: one line each)
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Name the descriptor of the chain's last link
    #[arg(value_name = "CHAIN.vmdk")]
    pub chain: PathBuf,
    /// Name the raw file to write, which must not exist
    #[arg(value_name = "OUT.raw")]
    pub output: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// Name the VM, or one of its disks; with a snapshot, its state then
    #[arg(value_name = "VM[/diskN][@SNAPSHOT]")]
    pub what: String,
    /// Name the file to write, which must not exist; several disks get the suffix -diskN, except in an OVA
    pub file: PathBuf,
    /// Set the format [default: by the file's name]
    #[arg(long, value_enum)]
    pub format: Option<ExportFormat>,
    /// Continue an interrupted export of the same snapshot, or begin one that can be continued (raw and vmdk-flat)
    #[arg(long)]
    pub resume: bool,
    /// Set the number of processors in an OVA
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cpus: u32,
    /// Set the size of the memory in an OVA
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = units::parse_bytes)]
    pub memory: u64,
}

#[derive(Debug, Args)]
pub struct PullArgs {
    /// Read this export (nbd+unix:///VM/diskN@SNAPSHOT?socket=PATH or nbd://HOST[:PORT]/VM/diskN@SNAPSHOT)
    #[arg(value_name = "URI")]
    pub uri: String,
    /// Copy only what differs from this snapshot, which FILE holds
    #[arg(long, value_name = "SNAPSHOT")]
    pub since: Option<String>,
    /// Read this snapshot of the disk, if URI names none [default: the running disk]
    #[arg(long, value_name = "SNAPSHOT")]
    pub until: Option<String>,
    /// Write this raw file or block device
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace the content of an existing FILE; with --since, believe that FILE holds that snapshot
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    pub vm: VmName,
    /// Print the lines for this hypervisor
    #[arg(long = "as", value_enum, default_value_t = AttachTo::Qemu)]
    pub to: AttachTo,
    /// Reach the disks by this protocol
    #[arg(long, value_enum, default_value_t = AttachVia::Nbd)]
    pub via: AttachVia,
    /// Start the guest where it was at this snapshot, which has its memory (revert the VM to it first)
    #[arg(long, value_name = "SNAPSHOT")]
    pub resume: Option<SnapshotRef>,
}

#[derive(Debug, Args)]
pub struct ThawArgs {
    /// Find the commands that freeze and thaw guests in this folder
    #[arg(long, value_name = "DIR", default_value = GUESTS_DIR)]
    pub guests_dir: PathBuf,
    /// Try it for this time for each guest [default: 10s; 1s where QEMU may wait for the daemon]
    #[arg(long = "for", value_name = "TIME", value_parser = units::parse_duration_s)]
    pub tries_s: Option<u64>,
    /// Thaw nothing, and remove the record of this VM, whose guest runs
    #[arg(long, value_name = "VM", conflicts_with = "tries_s")]
    pub forget: Option<VmName>,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Name a VM's folder, its .vmx, the descriptor of a chain's last link, or a native store that nothing serves
    pub path: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Name a VM's folder, or its .vmx
    pub path: PathBuf,
    /// Write the repairs, after copying each file that changes
    #[arg(short, long)]
    pub yes: bool,
    /// Accept a parent with another content ID than expected; its data must be unchanged
    #[arg(long)]
    pub ignore_content_ids: bool,
    /// Name the parent of a link whose descriptor is lost; may be repeated
    #[arg(long, value_name = "LINK=PARENT", value_parser = parse_parent)]
    pub parent: Vec<(String, String)>,
    /// Accept the data loss of a truncated delta: the lost ranges show the parent's older data
    #[arg(long)]
    pub cut_deltas: bool,
    /// Move VMware's lock files aside; no VMware product on any host may have the VM open
    #[arg(long)]
    pub stale_locks: bool,
    /// Move links without references aside; no VM of another folder may depend on them
    #[arg(long)]
    pub move_orphans: bool,
    /// Restore the files that the last repair changed
    #[arg(long, conflicts_with_all = ["yes", "ignore_content_ids", "parent", "cut_deltas", "stale_locks", "move_orphans"])]
    pub undo: bool,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[arg(value_enum)]
    pub what: Generated,
    /// Name the folder to write to; it is created if it is missing
    pub dir: PathBuf,
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Generated {
    Man,
    Completions,
}
