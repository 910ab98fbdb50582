//! `unstun snapshot`.

use std::str::FromStr;

use api::error::{Error, Result};
use api::name::{self, SnapshotName, SnapshotRef, VmName};
use api::{DeltaFormat, Quiesce};
use clap::{Args, Subcommand};

use super::bin::ConsentArgs;

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of all disks of a VM at one instant
    Take {
        #[command(flatten)]
        which: VmAndName,
        /// Describe the snapshot in one line of text
        #[arg(short, long, default_value = "", hide_default_value = true)]
        message: String,
        /// Freeze the guest's file systems meanwhile, if `vm set VM --guest-agent` says how; =require: or take no snapshot
        #[arg(
            long,
            value_enum,
            value_name = "try|require",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "try",
            default_value_t = Quiesce::No,
            hide_default_value = true,
            hide_possible_values = true
        )]
        quiesce: Quiesce,
        /// Save the guest's memory of the same instant too, through QEMU's monitor (`vm set VM --qmp`)
        #[arg(long, conflicts_with = "quiesce")]
        memory: bool,
        /// Choose the format of the new deltas of a VM with `--store redo`
        #[arg(long, value_enum, default_value_t = DeltaFormat::Fitting)]
        delta: DeltaFormat,
    },
    /// Show what is saved of the guest's memory at a snapshot, or write it as QEMU's migration stream
    Memory {
        #[command(flatten)]
        which: VmAndName,
        /// Write the stream to standard output, for -incoming exec: of QEMU
        #[arg(long)]
        stream: bool,
        /// Refuse if a disk differs from the snapshot, which its memory would not fit
        #[arg(long, requires = "stream")]
        unchanged: bool,
    },
    /// Show a VM's snapshots and its running state as a tree
    #[command(visible_alias = "list")]
    Tree {
        vm: VmName,
        /// Add what each snapshot cost the VM since its take
        #[arg(long)]
        cost: bool,
    },
    /// Give a snapshot another name, or another description
    Rename {
        vm: VmName,
        /// Name the snapshot
        snapshot: SnapshotRef,
        /// Set this name
        #[arg(value_name = "NEW", required_unless_present = "message")]
        name: Option<SnapshotName>,
        /// Set this description
        #[arg(short, long, value_name = "TEXT")]
        message: Option<String>,
    },
    /// Print the ranges of the disks that differ between two states (for an incremental backup)
    Diff {
        vm: VmName,
        /// Name the snapshot with the earlier state
        #[arg(value_name = "A")]
        from: SnapshotRef,
        /// Name the snapshot with the later state [default: the running state]
        #[arg(value_name = "B")]
        to: Option<SnapshotRef>,
        /// Read both snapshots, and fail if anything outside of the ranges differs
        #[arg(long, requires = "to")]
        verify: bool,
    },
    /// Remove a snapshot and keep everything written since it was taken
    Commit(CommitArgs),
    /// Return to a snapshot and keep it (without NAME: to the current one)
    Revert(RevertArgs),
    /// Remove a snapshot and discard everything written since it was taken
    Discard(DiscardArgs),
    /// Undo the last revert, discard or reset of a VM
    Undo(VmLossArgs),
    /// Merge the deltas that no snapshot owns into their parents
    Consolidate(ConsolidateArgs),
    /// Explain commit and discard, without doing either
    #[command(visible_aliases = ["remove", "rm"])]
    Delete { vm: Option<String>, name: Option<String> },
}

#[derive(Debug, Args)]
pub struct CommitArgs {
    #[command(flatten)]
    pub which: VmAndName,
    /// Commit every snapshot of the VM
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
pub struct ConsolidateArgs {
    pub vm: VmName,
    #[command(flatten)]
    pub job: JobArgs,
}

/// Options of a command that starts a job.
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(flatten)]
    pub consent: ConsentArgs,
    /// Start the job and return, without following its progress
    #[arg(long, conflicts_with = "dry_run")]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub struct RevertArgs {
    #[command(flatten)]
    pub which: VmAndName,
    /// Save the running state as a snapshot of this name first
    #[arg(long, value_name = "NAME")]
    pub take_first: Option<SnapshotName>,
    #[command(flatten)]
    pub loss: LossArgs,
}

#[derive(Debug, Args)]
pub struct DiscardArgs {
    #[command(flatten)]
    pub which: VmAndName,
    #[command(flatten)]
    pub loss: LossArgs,
}

/// Options of a command that throws data away.
#[derive(Debug, Args)]
pub struct LossArgs {
    /// End the sessions of clients that write; power the guest off first
    #[arg(long)]
    pub disconnect: bool,
    /// Remove the state permanently instead of moving it to the bin
    #[arg(long)]
    pub purge: bool,
    #[command(flatten)]
    pub consent: ConsentArgs,
}

/// Arguments of `snapshot undo` and `vm reset`.
#[derive(Debug, Args)]
pub struct VmLossArgs {
    pub vm: VmName,
    #[command(flatten)]
    pub loss: LossArgs,
}

/// `VM NAME` or `VM@NAME`.
#[derive(Debug, Args)]
pub struct VmAndName {
    /// Name the VM, or the VM and the snapshot as VM@NAME
    pub vm: String,
    /// Name the snapshot
    pub name: Option<String>,
}

impl VmAndName {
    /// Returns the VM, and the snapshot if one is named: a `SnapshotName` of one to be made, or a `SnapshotRef` of one
    /// that exists.
    pub fn parse<T: FromStr<Err = String>>(&self) -> Result<(VmName, Option<T>)> {
        name::vm_and_snapshot(&self.vm, self.name.as_deref()).map_err(Error::invalid)
    }

    /// Returns both. Fails with `Invalid` if no snapshot is named.
    pub fn parse_both<T: FromStr<Err = String>>(&self) -> Result<(VmName, T)> {
        let (vm, snapshot) = self.parse()?;
        let missing = || Error::invalid(format!("which snapshot of {vm}? expected {vm} NAME or {vm}@NAME"));
        let snapshot = snapshot.ok_or_else(missing)?;
        Ok((vm, snapshot))
    }
}
