//! `unstun vm`.

use std::path::PathBuf;
use std::str::FromStr;

use api::limits::{self, BURST_S_MAX, WEIGHT_MAX};
use api::name::{DiskRef, Tag, VmName};
use api::{DiskMode, FROZEN_MS_MAX, FROZEN_MS_MIN, GuestAccess, MonitorSocket, Store, WhenFull};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::bin::ConsentArgs;
use super::disk::{DiskSpec, DiskSpecs};
use super::snapshot::VmLossArgs;

#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Create a VM with empty disks, or with a disk filled from an image
    Create(VmCreateArgs),
    /// Import a VM from VMware's folder, which is written only with --in-place, or from an OVA
    Import(ImportArgs),
    /// List the VMs
    List,
    /// Show the disks, layers, clients and free space of a VM
    Show { vm: VmName },
    /// Add, remove, grow and change disks
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Change settings of a VM
    Set(SetArgs),
    /// Create a linked clone: a VM that starts from a snapshot of another
    Clone(CloneArgs),
    /// Give a VM another name; its folder and its exports get it too
    ///
    /// Power the guest off first, and attach its disks again afterwards. Policies and alarms that name the VM do not follow.
    Rename {
        vm: VmName,
        /// Set this name
        #[arg(value_name = "NEW")]
        name: VmName,
    },
    /// Move a VM and its snapshots into another datastore or store while its guest runs
    Move(MoveArgs),
    /// Lay the blocks of a VM's disks out in order while its guest runs, so that sequential reads are fast again
    ///
    /// Random writes after snapshots and clones leave a native disk's neighbours apart; `unstun space VM` shows how far. A
    /// job moves the blocks that the disk alone shows. It yields to guests, and `unstun job` pauses, limits and cancels it.
    Defragment(DefragmentArgs),
    /// Close a VM so that other tools can use its files (`vm open` reopens it)
    Close {
        vm: VmName,
        /// End the sessions of clients that write; power the guest off first
        #[arg(long)]
        disconnect: bool,
    },
    /// Open a closed VM, or serve its plain export names (VM/diskN) again after a revert
    ///
    /// Make sure that no earlier client is running: such a client has the old content in its caches, reconnects
    /// automatically, and corrupts the guest's file systems. The names that `unstun attach` prints need no `vm open`.
    Open {
        vm: VmName,
        /// Make this side of an interrupted move the VM; the other side must be lost permanently
        #[arg(long)]
        take_over: bool,
    },
    /// Discard what was written to the independent-nonpersistent disks
    Reset(VmLossArgs),
    /// Remove a VM from the datastore (without --delete-disks its files stay)
    #[command(visible_alias = "rm")]
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    pub vm: VmName,
    /// Delete the VM's disks and snapshots too; `unstun bin restore` can undo this (default: for 24 hours)
    #[arg(long)]
    pub delete_disks: bool,
    /// Delete the disks permanently instead of moving them to the bin
    #[arg(long, requires = "delete_disks")]
    pub purge: bool,
    #[command(flatten)]
    pub consent: ConsentArgs,
}

#[derive(Debug, Args)]
pub struct VmCreateArgs {
    pub vm: VmName,
    /// Add a disk of SIZE bytes (K, M, G, T), such as 20G, or one over an image, at once and without a copy:
    /// from=IMAGE[,size=SIZE][,format=FORMAT][,copy=no]; may be repeated, and disks may be separated by commas
    #[arg(long = "disk", value_name = "SIZE[,mode=MODE][,dir=DIR]", required_unless_present = "from")]
    pub disks: Vec<DiskSpecs>,
    /// Fill the last disk from an image that qemu-img can read [default size: that of the image]
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Set the format of the image: raw, qcow2, vmdk, ... [default: by its file name]
    #[arg(long, value_name = "FORMAT", requires = "from")]
    pub from_format: Option<String>,
    /// Choose the kind of store for the disks
    #[arg(long, value_enum, default_value_t = Store::Native)]
    pub store: Store,
    /// Choose what guest writes do while the datastore is full
    #[arg(long, value_enum, default_value_t = WhenFull::Wait)]
    pub when_full: WhenFull,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Name the VM's folder, its .vmx, or an OVA (.ova)
    pub path: PathBuf,
    /// Set the name of the VM [default: the name of its .vmx, or in the OVA]
    #[arg(long)]
    pub name: Option<VmName>,
    /// Write to the folder's own files [default: to deltas in the datastore, on a snapshot `as-imported`]
    #[arg(long)]
    pub in_place: bool,
    /// Choose the kind of store: with `native` the disks run over the folder's images, without its snapshots [default: redo;
    /// native for an OVA]
    #[arg(long, value_enum, conflicts_with = "in_place")]
    pub store: Option<Store>,
    /// Leave the images of a native VM where they are: they are needed as long as the VM is
    #[arg(long)]
    pub no_copy: bool,
    /// Do not compare the hashes that the manifest of an OVA has, of which those of disks are compared in the background
    #[arg(long)]
    pub no_verify: bool,
    /// Allow the VM's files to refer to this folder outside of PATH; may be repeated
    #[arg(long = "allow-root", value_name = "DIR")]
    pub allow_roots: Vec<PathBuf>,
    /// Accept links whose parentCID is not their parent's CID; the parent's data must be unchanged
    #[arg(long)]
    pub ignore_content_ids: bool,
    /// Write to SEsparse deltas that ESXi made; no ESXi has verified what unstun writes there
    #[arg(long, requires = "in_place")]
    pub write_sesparse: bool,
    /// Choose what guest writes do while the datastore is full
    #[arg(long, value_enum, default_value_t = WhenFull::Wait)]
    pub when_full: WhenFull,
}

#[derive(Debug, Args)]
pub struct CloneArgs {
    /// Name the snapshot from which the clone starts
    #[arg(value_name = "VM@NAME")]
    pub state: String,
    /// Name the new VM
    pub new: VmName,
}

#[derive(Debug, Args)]
pub struct MoveArgs {
    /// Name the VM, or its only disk
    #[arg(value_name = "VM[/diskN]")]
    pub what: String,
    /// Move to this datastore, by its name or its folder [default: the current one]
    #[arg(long, value_name = "DIR|NAME", required_unless_present = "store")]
    pub to: Option<PathBuf>,
    /// Move to this kind of store [default: the current one]
    #[arg(long, value_enum)]
    pub store: Option<Store>,
    /// Start the job and return, without following its progress
    #[arg(long)]
    pub detach: bool,
    /// Print what would be copied without doing it
    #[arg(long, conflicts_with = "detach")]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct DefragmentArgs {
    /// Name the VM, or its only disk
    #[arg(value_name = "VM[/diskN]")]
    pub what: String,
    /// Copy blocks that snapshots or clones show too; the copies take space until those are removed
    #[arg(long)]
    pub copy_shared: bool,
    /// Start the job and return, without following its progress
    #[arg(long)]
    pub detach: bool,
}

#[derive(Debug, Args)]
#[group(id = "change", multiple = false)]
pub struct SetChange {
    /// Create the deltas of later snapshots in this folder (workingDir, snapshot.redoNotWithParent)
    #[arg(long, value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,
    /// Create the deltas of later snapshots beside the disks again (the default)
    #[arg(long)]
    pub no_snapshot_dir: bool,
    /// Allow several clients to write one disk: for a live migration or a cluster file system [default: off]
    #[arg(long, value_enum, value_name = "on|off")]
    pub shared_writers: Option<OnOff>,
}

/// A limit, or its removal. A type of its own, because clap reads a bare `Option` as "may be left out".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

fn iops(text: &str) -> Result<Limit, String> {
    limits::parse_iops(text).map(Limit)
}

fn bandwidth(text: &str) -> Result<Limit, String> {
    limits::parse_bandwidth(text).map(Limit)
}

/// Limits on all clients of the VM's disks and snapshots together. An option that is left out changes nothing.
#[derive(Debug, Args)]
#[group(id = "limits", multiple = true, conflicts_with = "change")]
pub struct SetLimits {
    /// Limit reads, writes, discards and zeroes per second over all disks of the VM; `none` removes the limit
    #[arg(long, value_name = "N|none", value_parser = iops)]
    pub iops: Option<Limit>,
    /// Allow bursts of N per second after idle time; needs --iops; `none` allows no bursts [default: none]
    #[arg(long, value_name = "N|none", value_parser = iops)]
    pub iops_burst: Option<Limit>,
    /// Limit the bytes read and written per second over all disks of the VM (100M); `none` removes the limit
    #[arg(long, value_name = "BYTES|none", value_parser = bandwidth)]
    pub bandwidth: Option<Limit>,
    /// Allow bursts of BYTES per second after idle time; needs --bandwidth; `none` allows no bursts [default: none]
    #[arg(long, value_name = "BYTES|none", value_parser = bandwidth)]
    pub bandwidth_burst: Option<Limit>,
    /// Set how many seconds a burst may last [default: 10]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=BURST_S_MAX))]
    pub burst_seconds: Option<u64>,
    /// Set the VM's share of the daemon's processor time relative to other VMs, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=WEIGHT_MAX))]
    pub weight: Option<u64>,
}

/// What people want to know about the VM. An option that is left out changes nothing.
#[derive(Debug, Args)]
#[group(id = "labels", multiple = true, conflicts_with_all = ["change", "limits"])]
pub struct SetLabels {
    /// Give the VM this tag, to which policies may apply; may be repeated
    #[arg(long, value_name = "TAG")]
    pub add_tag: Vec<Tag>,
    /// Take this tag from the VM; may be repeated
    #[arg(long, value_name = "TAG")]
    pub remove_tag: Vec<Tag>,
    /// Set the note of the VM, a line of text; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// A value, or `none`. A type of its own, because clap reads a bare `Option` as "may be left out".
#[derive(Debug, Clone)]
pub struct OrNone<T>(pub Option<T>);

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            "none" => Ok(OrNone(None)),
            _ => text.parse().map(|value| OrNone(Some(value))),
        }
    }
}

/// How the guest is reached, for a snapshot with frozen file systems or with memory. An option that is left out changes nothing.
#[derive(Debug, Args)]
#[group(id = "guest", multiple = true, conflicts_with_all = ["change", "limits", "labels"])]
pub struct SetGuest {
    /// Freeze the guest's file systems for `snapshot take --quiesce` in this way: through the socket of QEMU's guest agent, by
    /// libvirt, or by the commands in /etc/unstun/guests/NAME.toml; `none`: not at all
    #[arg(long, value_name = "unix:PATH|libvirt:DOMAIN|command:NAME|none")]
    pub guest_agent: Option<OrNone<GuestAccess>>,
    /// Save the guest's memory for `snapshot take --memory` through the socket of QEMU's monitor (QMP); `none`: not at all
    #[arg(long, value_name = "unix:PATH|none")]
    pub qmp: Option<OrNone<MonitorSocket>>,
    /// Thaw the file systems, or let the guest run on, after so many milliseconds, whether the snapshot is taken or not
    /// [default: 2000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(FROZEN_MS_MIN..=FROZEN_MS_MAX))]
    pub frozen_max: Option<u64>,
}

/// The options of `vm set`, at least one of which is given.
const SETTINGS: [&str; 15] = [
    "guest_agent",
    "qmp",
    "frozen_max",
    "add_tag",
    "remove_tag",
    "note",
    "snapshot_dir",
    "no_snapshot_dir",
    "shared_writers",
    "iops",
    "iops_burst",
    "bandwidth",
    "bandwidth_burst",
    "burst_seconds",
    "weight",
];

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("setting").args(SETTINGS).required(true).multiple(true))]
pub struct SetArgs {
    pub vm: VmName,
    #[command(flatten)]
    pub change: SetChange,
    #[command(flatten)]
    pub limits: SetLimits,
    #[command(flatten)]
    pub labels: SetLabels,
    #[command(flatten)]
    pub guest: SetGuest,
}

#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Add a disk to a VM
    Add(DiskAddArgs),
    /// Remove a disk from a VM (without --delete-files its files stay)
    Remove {
        #[arg(value_name = "VM/diskN")]
        disk: DiskRef,
        /// Delete the disk's files too; this cannot be undone
        #[arg(long)]
        delete_files: bool,
    },
    /// Grow a disk (refused while it has deltas)
    Grow {
        #[arg(value_name = "VM/diskN")]
        disk: DiskRef,
        /// Set the new size in bytes, or with K, M, G or T, such as 40G
        #[arg(value_parser = api::units::parse_disk_size)]
        size: u64,
    },
    /// Change the mode of a disk
    Set {
        #[arg(value_name = "VM/diskN")]
        disk: DiskRef,
        #[arg(long, value_enum)]
        mode: DiskMode,
    },
}

#[derive(Debug, Args)]
pub struct DiskAddArgs {
    pub vm: VmName,
    /// Set the size in bytes, or with K, M, G or T, such as 20G; and optionally mode and folder; or
    /// from=IMAGE[,size=SIZE][,format=FORMAT][,copy=no] for a disk over an image
    #[arg(value_name = "SIZE[,mode=MODE][,dir=DIR]", required_unless_present = "from")]
    pub disk: Option<DiskSpec>,
    /// Fill the disk from an image that qemu-img can read [default size: that of the image]
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Set the format of the image: raw, qcow2, vmdk, ... [default: by its file name]
    #[arg(long, value_name = "FORMAT", requires = "from")]
    pub from_format: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

#[derive(Debug, Subcommand)]
pub enum SourceCommand {
    /// List the images that disks are over, with what has been copied of them
    List,
    /// Copy an image into its store, so that the disks over it do not need it any more
    Copy {
        /// Number of the source, from `source list`
        number: u64,
        /// Start the job and return, without following its progress
        #[arg(long)]
        detach: bool,
    },
}
