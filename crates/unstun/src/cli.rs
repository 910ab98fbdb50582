//! The command line: what can be typed, and the exit code it ends with.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::command;
use crate::error::{Error, ErrorBody, Result};
use crate::listen::NbdListen;
use crate::name::{SnapshotName, VmName};
use crate::output::Output;
use crate::{api, name, units};

const AFTER_HELP: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 refused or not confirmed, 4 not found, 5 locked, \
6 damage found.\nVM@NAME is accepted wherever VM NAME is. Sizes are in powers of 1024 (20G, 512M) or plain bytes.";

/// Virtual disks whose snapshots never stun the VM.
#[derive(Debug, Parser)]
#[command(name = "unstun", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub struct Global {
    /// The datastore's folder; else $UNSTUN_DATASTORE, else ./unstun-data if it exists, else /var/lib/unstun
    #[arg(long, value_name = "DIR", global = true)]
    pub datastore: Option<PathBuf>,
    /// Print JSON (see docs/cli-json.md)
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a datastore; creates ./unstun-data when none is named
    Up(UpArgs),
    /// What the daemon serves, and the room it has
    Status,
    /// Create, show and remove VMs
    #[command(subcommand)]
    Vm(VmCommand),
    /// Take and commit snapshots
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Follow and steer the work in the background
    #[command(subcommand)]
    Job(JobCommand),
    /// Every take and commit of a VM, with its stun
    Events(EventsArgs),
    /// Write a VMware disk chain as one sparse raw file, without a daemon
    Convert(ConvertArgs),
    /// Put load on a VM while a snapshot is taken, lived with and committed (about 40 s)
    Demo,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Serve NBD on unix:PATH or HOST:PORT instead of DATASTORE/.unstun/nbd.sock; may be repeated
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    pub nbd: Vec<NbdListen>,
}

#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Create a VM with empty disks
    Create(VmCreateArgs),
    /// List the VMs
    List,
    /// Show a VM's disks, layers and room
    Show { vm: VmName },
    /// Forget a VM; its files stay unless --delete-disks
    Remove {
        vm: VmName,
        /// Delete the VM's files too; there is no way back
        #[arg(long)]
        delete_disks: bool,
    },
}

#[derive(Debug, Args)]
pub struct VmCreateArgs {
    pub vm: VmName,
    /// Size of a disk; may be repeated, or several separated by commas
    #[arg(long = "disk", value_name = "SIZE", required = true, value_delimiter = ',', value_parser = units::parse_disk_size)]
    pub disks: Vec<u64>,
    /// How snapshots are kept
    #[arg(long, value_enum, default_value_t = StoreArg::Redo)]
    pub store: StoreArg,
    /// What guest writes do while the datastore is full
    #[arg(long, value_enum, default_value_t = WhenFullArg::Wait)]
    pub when_full: WhenFullArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum StoreArg {
    /// VMware-style delta chains
    Redo,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WhenFullArg {
    /// Wait until space returns
    Wait,
    /// Fail with ENOSPC
    Error,
}

impl From<StoreArg> for api::Store {
    fn from(arg: StoreArg) -> Self {
        match arg {
            StoreArg::Redo => Self::Redo,
        }
    }
}

impl From<WhenFullArg> for api::WhenFull {
    fn from(arg: WhenFullArg) -> Self {
        match arg {
            WhenFullArg::Wait => Self::Wait,
            WhenFullArg::Error => Self::Error,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot of all disks of a VM, at one instant
    Take {
        #[command(flatten)]
        which: VmAndName,
        /// A line of text kept with the snapshot
        #[arg(short, long, default_value = "", hide_default_value = true)]
        message: String,
    },
    /// Show a VM's snapshots and where it runs
    Tree { vm: VmName },
    /// Keep everything written since the take, give up the way back
    Commit(CommitArgs),
    /// Explains commit and discard, and does neither
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
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Say what it would do, and do nothing
    #[arg(long, conflicts_with_all = ["yes", "detach"])]
    pub dry_run: bool,
    /// Start it and return, without following its progress
    #[arg(long)]
    pub detach: bool,
}

/// `VM NAME` or `VM@NAME`.
#[derive(Debug, Args)]
pub struct VmAndName {
    /// The VM, or VM@NAME
    pub vm: String,
    /// The snapshot
    pub name: Option<String>,
}

impl VmAndName {
    pub fn parse(&self) -> Result<(VmName, Option<SnapshotName>)> {
        name::vm_and_snapshot(&self.vm, self.name.as_deref()).map_err(Error::invalid)
    }

    pub fn parse_both(&self) -> Result<(VmName, SnapshotName)> {
        let (vm, snapshot) = self.parse()?;
        let missing = || Error::invalid(format!("which snapshot of {vm}? expected {vm} NAME or {vm}@NAME"));
        let snapshot = snapshot.ok_or_else(missing)?;
        Ok((vm, snapshot))
    }
}

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the jobs since the daemon's start
    List,
    /// Hold a job; it keeps what it has done
    Pause { id: u64 },
    /// Let a held job go on
    Resume { id: u64 },
    /// End a job; a commit leaves the rest of its delta behind
    Cancel { id: u64 },
    /// Bound a job's rate
    Limit {
        id: u64,
        /// Per second, such as 200M; none lifts the limit
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
    pub vm: VmName,
    /// Keep printing events as they happen; with --json one line each
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The descriptor of the chain's last link
    #[arg(value_name = "CHAIN.vmdk")]
    pub chain: PathBuf,
    /// Must not exist yet
    #[arg(value_name = "OUT.raw")]
    pub output: PathBuf,
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.global.json);
    match command::run(&cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = error.exit_code();
            eprintln!("unstun: {error}");
            if cli.global.json {
                // Standard output may be what failed; the exit code still says so.
                let _ = output.json(&ErrorBody::from(error));
            }
            ExitCode::from(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_documented_line_parses() {
        for line in [
            "unstun up",
            "unstun up --nbd unix:/run/u.sock --nbd 127.0.0.1:10809",
            "unstun --datastore /srv/d status --json",
            "unstun vm create web --disk 20G --disk 200G --store redo",
            "unstun vm create web --disk 20G,200G",
            "unstun vm list",
            "unstun vm show web",
            "unstun vm remove web --delete-disks",
            "unstun snapshot take web before-upgrade -m text",
            "unstun snapshot take web@before-upgrade",
            "unstun snapshot tree web",
            "unstun snapshot commit web before-upgrade",
            "unstun snapshot commit web@before-upgrade --yes",
            "unstun snapshot commit web --all",
            "unstun snapshot delete web before-upgrade",
            "unstun snapshot delete",
            "unstun job list",
            "unstun job pause 1",
            "unstun job resume 1",
            "unstun job cancel 1",
            "unstun job limit 1 200M",
            "unstun job limit 1 none",
            "unstun events web --follow",
            "unstun convert a.vmdk b.raw",
            "unstun demo",
        ] {
            parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn nonsense_is_a_usage_error() {
        for line in [
            "unstun",
            "unstun vm create web",
            "unstun vm create web --disk 20GB",
            "unstun vm create web --disk 1000",
            "unstun vm create ../web --disk 1G",
            "unstun vm create web --disk 1G --store native",
            "unstun up --nbd 10809",
            "unstun job pause first",
            "unstun job limit 1 0",
            "unstun vm show a@b",
            "unstun snapshot commit web a --dry-run --yes",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn commas_and_repetition_add_disks() {
        let cli = parse("unstun vm create web --disk 1G,2G --disk 512").unwrap();
        let Command::Vm(VmCommand::Create(args)) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(args.disks, [1 << 30, 2 << 30, 512]);
    }
}
