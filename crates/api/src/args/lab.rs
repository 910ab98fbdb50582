//! Arguments of `unstun lab`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use crate::name::VmName;
use crate::units::parse_past;

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the included experiments with their sources
    List,
    /// Run one experiment on modelled storage, in virtual time, or on real storage
    Run(RunArgs),
    /// Run every published experiment on modelled storage, under every hypothesis
    Reproduce(ReproduceArgs),
    /// Print how far each published figure follows each constant, and which figures are implied
    Sensitivity(SensitivityArgs),
    /// Compare what a snapshot costs several subjects, in alternating runs of the same work
    Compare(CompareArgs),
    /// Write a page with charts of one or more runs, or a workbook, tables, drawings
    Report(ReportArgs),
    /// Read measurements of IOmeter, fio, esxtop, perfmon, vCenter, vmware.log or ping
    Import(ImportArgs),
    /// Measure what a snapshot leaves of the rate, over read share, depth and layers (in virtual time)
    Sweep(SweepArgs),
    /// Check storage models: their rates over depth and block size beside bounds from first principles
    Devices(DevicesArgs),
    /// Predict whether a commit ends under a load, how long it takes, and what the guest sees
    Predict(PredictArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name an experiment of `lab list`, or a file of your own
    #[arg(value_name = "NAME|FILE.toml")]
    pub experiment: String,
    /// Measure this subject. Modelled: esx (default, or the stack that the experiment names), redo, native, plain, qcow2,
    /// qcow2:extended_l2, lvm, fleecing, rbd, zfs; on real storage: native (default), redo (redo:drain), redo:helper,
    /// redo:mirror, qemu, qemu-extl2, reflink, btrfs, lvm-thin, zfs, rbd, hooks
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<String>,
    /// Run in this directory in real time, for at most --minutes and within its free space
    #[arg(long, value_name = "DIR", conflicts_with_all = ["hypothesis", "storage"])]
    pub real: Option<PathBuf>,
    #[command(flatten)]
    pub minutes: MinutesArg,
    #[command(flatten)]
    pub hooks: HookArgs,
    /// Choose what VMware's deltas lock and cache: concurrent, table-lock, io-lock, io-lock-blind, delta-lock, read-lock,
    /// table-lock-cached, concurrent-cached, journal-each or serial-section [default: that of the experiment's ESX version]
    #[arg(long, value_name = "NAME")]
    pub hypothesis: Option<String>,
    /// Use this storage model [default: the experiment's, fitted to its baseline]
    #[arg(long, value_name = "MODEL|FILE.toml")]
    pub storage: Option<String>,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the run in this folder: run.jsonl during the run, then run.json and report.html
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Limit of one run on real storage.
#[derive(Debug, Args)]
pub struct MinutesArg {
    /// Limit the experiment's timed steps in minutes; longer ones are shortened alike (real storage only)
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = parse_minutes, requires = "real")]
    pub minutes: f64,
}

impl MinutesArg {
    pub fn seconds(&self) -> f64 {
        self.minutes * 60.0
    }
}

/// Options of the subjects `hooks` and `rbd`.
#[derive(Debug, Args)]
pub struct HookArgs {
    /// Load this target of the subject `hooks`: an NBD URI, a file or a block device, which is overwritten
    #[arg(long, value_name = "URI|PATH", requires = "real")]
    pub target: Vec<String>,
    /// Take the snapshot $UNSTUN_SNAPSHOT by this shell command
    #[arg(long, value_name = "COMMAND", requires = "real")]
    pub take: Option<String>,
    /// Commit the snapshot by this shell command, which returns when the commit has ended
    #[arg(long, value_name = "COMMAND", requires = "real")]
    pub commit: Option<String>,
    /// Read the snapshot of each --target here, with $UNSTUN_SNAPSHOT replaced: an NBD URI, a file or a block device
    #[arg(long, value_name = "URI|PATH", requires = "target")]
    pub frozen: Vec<String>,
    /// Limit the time of each of these commands, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub hook_limit: u32,
    /// Create the image of the subject `rbd` in this pool
    #[arg(long, value_name = "POOL[:id=NAME][:conf=FILE]", default_value = "rbd")]
    pub rbd: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SubjectArg {
    /// VMware as it was, under one of the hypotheses
    Esx,
    /// unstun's delta chains
    Redo,
    /// unstun's own store
    Native,
    /// A flat file without snapshots
    Plain,
    /// QEMU's overlays and their active commit
    Qcow2,
    /// The same with subclusters of 4 KiB
    #[value(name = "qcow2:extended_l2")]
    Qcow2ExtendedL2,
    /// LVM's classic snapshots
    Lvm,
    /// QEMU's copy before write, for a backup
    Fleecing,
    /// Ceph's object clones
    Rbd,
    /// A copy-on-write file system like ZFS
    Zfs,
}

#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Run only these experiments [default: all included ones]
    #[arg(value_name = "NAME|FILE.toml")]
    pub experiments: Vec<String>,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep all runs in this folder: runs.json and report.html
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Write an index of all that the articles say, with the results, into this Markdown file
    #[arg(long, value_name = "FILE", conflicts_with = "experiments")]
    pub index: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SensitivityArgs {
    /// Change the constants of these experiments only [default: all included ones with a published figure]
    #[arg(value_name = "NAME|FILE.toml")]
    pub experiments: Vec<String>,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Compare these subjects. On real storage: native, redo (redo:drain), redo:helper, redo:mirror, qemu,
    /// qemu-extl2, reflink, btrfs, lvm-thin, zfs, rbd, hooks; modelled: native, redo, plain, esx, qcow2,
    /// qcow2:extended_l2, lvm, fleecing, rbd, zfs. One that is named twice shows the noise
    #[arg(value_name = "SUBJECT")]
    pub subjects: Vec<String>,
    /// Measure in this directory in real time [default: on modelled storage in virtual time]
    #[arg(long, value_name = "DIR")]
    pub real: Option<PathBuf>,
    /// Use this storage model [default: the experiment's, else nvme]
    #[arg(long, value_name = "MODEL|FILE.toml", conflicts_with = "real")]
    pub storage: Option<String>,
    /// Use the protocol and the load of this experiment [default: a standard load]
    #[arg(long, value_name = "NAME|FILE.toml", conflicts_with_all = ["seconds", "size", "block", "read", "depth"])]
    pub experiment: Option<String>,
    #[command(flatten)]
    pub minutes: MinutesArg,
    /// Set the number of runs of each subject
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Set the length of each measured phase, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Set the size of the disk, in bytes or with K, M, G, T
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = crate::units::parse_disk_size)]
    pub size: u64,
    /// Set the size of an I/O, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    pub block: u32,
    /// Set the share of reads, in percent
    #[arg(long, value_name = "P", default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read: u8,
    /// Set the number of outstanding I/Os
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// Run the first subject once in each round, not twice: the noise of the comparison is then unknown
    #[arg(long, requires = "real")]
    pub no_noise: bool,
    #[command(flatten)]
    pub hooks: HookArgs,
    /// Benchmark the directory first, and print what the lab's models predict from that beside the measured figures
    #[arg(long, requires = "real", conflicts_with = "experiment")]
    pub predict: bool,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep all runs in this folder: run.json and report.html
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Name the folder or the file of a run; several are compared
    #[arg(required_unless_present = "vm", value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Report what the daemon recorded of this VM
    #[arg(long, conflicts_with = "runs")]
    pub vm: Option<VmName>,
    /// Begin at this time, such as 2026-11-27T12:00:00Z, or so long ago, such as 30m or 12h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_past, requires = "vm")]
    pub since: Timestamp,
    /// End at this time, or so long ago [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_past, requires = "vm")]
    pub until: Option<Timestamp>,
    /// Write one page with all charts and tables
    #[arg(short, long, value_name = "REPORT.html")]
    pub output: Option<PathBuf>,
    /// Write a workbook with charts
    #[arg(long, value_name = "FILE")]
    pub xlsx: Option<PathBuf>,
    /// Write samples.csv, layers.csv and rows.csv into this folder
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
    /// Write the drawings into this folder
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Select the VMs of a file whose name contains this
    #[arg(long, value_name = "PART")]
    pub vm: Option<String>,
    /// Select the disks whose name contains this
    #[arg(long, value_name = "PART")]
    pub disk: Option<String>,
    /// Select the counters whose name contains this
    #[arg(long, value_name = "PART")]
    pub counter: Option<String>,
    /// Mark a phase: prepare, baseline, prepare-snapshot, snapshot, commit, drain or after. Times count from the begin,
    /// such as snapshot=10m..1h, or are 2016-02-05T22:57:00Z [default: from the events of vmware.log]
    #[arg(long, value_name = "NAME=FROM..TO")]
    pub phase: Vec<String>,
    /// Keep the measurements in this folder: run.json and report.html
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Vary the share of reads in percent, in steps of 25
    #[arg(long, value_name = "FROM..TO", default_value = "0..100", value_parser = parse_percent)]
    pub read: RangeInclusive<u32>,
    /// Vary the number of outstanding I/Os, doubling each step
    #[arg(long, value_name = "FROM..TO", default_value = "1..64", value_parser = parse_depth)]
    pub depth: RangeInclusive<u32>,
    /// Set the numbers of snapshots in a chain
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(0..=LAYERS_MAX))]
    pub layers: Vec<u32>,
    #[arg(long, value_enum, default_value_t = SubjectArg::Redo)]
    pub subject: SubjectArg,
    /// Choose what VMware's deltas lock and cache, as with `lab run` [default: that of the release of --esx]
    #[arg(long, value_name = "NAME")]
    pub hypothesis: Option<String>,
    /// Choose VMware's release, and with it the format of its deltas: SEsparse from 7.0 on [default: 5.5]
    #[arg(long, value_name = "RELEASE")]
    pub esx: Option<String>,
    /// Fill the newest layer before the measurement, so that writes overwrite it
    #[arg(long)]
    pub filled: bool,
    #[arg(long, value_name = "MODEL|FILE.toml", default_value = "nvme")]
    pub storage: String,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Check only these storage models [default: all included ones]
    #[arg(value_name = "MODEL|FILE.toml")]
    pub models: Vec<String>,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct PredictArgs {
    /// Set the guest's load in I/Os of 4 KiB per second, reads and writes together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iops: u32,
    /// Set the share of reads, in percent
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read: u8,
    /// Use this storage model, or benchmark this directory with a temporary file
    #[arg(long, value_name = "MODEL|FILE.toml|DIR")]
    pub storage: String,
    /// Limit the benchmark of a directory, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=60))]
    pub seconds: u32,
    /// Accept a model of a directory that is off by at most this factor on the measured loads
    #[arg(long, value_name = "FACTOR", default_value_t = 4.0, value_parser = parse_factor)]
    pub accept_off: f64,
    /// Set the age of the snapshot at its commit, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub keep: u32,
    /// Set the seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Most layers of a sweep.
const LAYERS_MAX: i64 = 1000;
/// Largest depth of a worker.
const DEPTH_MAX: u32 = 1024;

/// Range of `--minutes` on real storage: from three seconds, so that a phase has samples, to a week.
const MINUTES: RangeInclusive<f64> = 0.05..=10_080.0;

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| MINUTES.contains(minutes));
    minutes
        .ok_or_else(|| format!("{text:?}: expected minutes, from {} to {}", MINUTES.start(), MINUTES.end()))
}

/// Range of `--accept-off`. Any prediction fits into a band of a factor of a thousand.
const FACTOR: RangeInclusive<f64> = 1.0..=1_000.0;

fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| FACTOR.contains(factor));
    factor.ok_or_else(|| format!("{text:?}: expected a factor, from {} to {}", FACTOR.start(), FACTOR.end()))
}

fn parse_percent(text: &str) -> Result<RangeInclusive<u32>, String> {
    parse_range(text, 0..=100)
}

fn parse_depth(text: &str) -> Result<RangeInclusive<u32>, String> {
    parse_range(text, 1..=DEPTH_MAX)
}

/// Parses `FROM..TO` or one number, within `possible`.
fn parse_range(text: &str, possible: RangeInclusive<u32>) -> Result<RangeInclusive<u32>, String> {
    let (low, high) = (possible.start(), possible.end());
    let expected = || format!("{text:?}: expected FROM..TO, from {low} to {high}");
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let number =
        |text: &str| text.trim_start_matches('=').parse::<u32>().ok().filter(|n| possible.contains(n));
    match (number(from), number(to)) {
        (Some(from), Some(to)) if from <= to => Ok(from..=to),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(parse_percent("0..100"), Ok(0..=100));
        assert_eq!(parse_depth("8"), Ok(8..=8));
        assert!(parse_percent("0..101").is_err());
        assert!(parse_depth("0..4").unwrap_err().contains("from 1 to 1024"));
        assert!(parse_depth("4..1").is_err());
        assert!(parse_depth("x").is_err());
    }

    #[test]
    fn factors_are_at_least_one() {
        assert_eq!(parse_factor("2.5"), Ok(2.5));
        for text in ["0.9", "1001", "NaN", "x 2"] {
            assert!(parse_factor(text).unwrap_err().contains("from 1 to 1000"), "{text}");
        }
    }

    #[test]
    fn minutes_may_have_parts() {
        assert_eq!(parse_minutes("0.1"), Ok(0.1));
        for text in ["0", "-1", "inf", "NaN", "ten"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }
}
