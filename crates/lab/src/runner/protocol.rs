use blk::SECTOR;
use serde::{Deserialize, Serialize};

use crate::probe::Heartbeat;
use crate::run::Phase;
use crate::workload::{BLOCK_BYTES_MAX, OUTSTANDING_MAX};

/// Of samples and heartbeats: a day of them is 86 million.
const INTERVAL_US_MIN: u64 = 1000;
/// Of one step: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// Snapshots of one take: VMware's own limit is 32, the longest tree told of 40.
const COUNT_MAX: u32 = 1000;

/// What is done to the VM while it is measured, one step after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Of the samples, microseconds.
    #[serde(default = "one_second")]
    pub interval_us: u64,
    /// None: nobody pings the VM.
    #[serde(default)]
    pub heartbeat: Option<Heartbeat>,
    pub steps: Vec<Step>,
}

fn one_second() -> u64 {
    1_000_000
}

/// One step, which becomes one span of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub phase: Phase,
    /// For people; empty: the action says it.
    #[serde(default)]
    pub label: String,
    #[serde(flatten)]
    pub action: Action,
}

/// What a step does. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Writes what the workers work on, once, from its begin to its end. The load is stopped.
    Prepare {
        /// IOmeter: 64 KiB.
        #[serde(default = "preparation_block")]
        block_bytes: u32,
        /// IOmeter: 16. NTFS extends a file with one.
        #[serde(default = "preparation_outstanding")]
        outstanding: u32,
    },
    /// The load runs.
    Run {
        seconds: f64,
        /// Of them at the begin: sampled, but not part of the rows.
        #[serde(default)]
        warm_up_seconds: f64,
    },
    /// Nothing runs.
    Idle { seconds: f64 },
    /// A snapshot, or `count` of them (`name-1`, `name-2`...), one after the other.
    Take {
        name: String,
        #[serde(default)]
        count: Option<u32>,
        /// Whether the load runs meanwhile.
        #[serde(default = "yes")]
        load: bool,
    },
    /// Until the commit ends, or the limit: then it goes on, and a drain may follow.
    Commit {
        name: String,
        /// As with `take`: `name-1` first.
        #[serde(default)]
        count: Option<u32>,
        #[serde(default)]
        limit_seconds: Option<f64>,
        /// Whether the load runs meanwhile.
        #[serde(default = "yes")]
        load: bool,
    },
    /// The load stops, and what is left of the commit under way is waited for. Left out when none is.
    Drain {
        #[serde(default)]
        limit_seconds: Option<f64>,
    },
    /// Copies the snapshot's disks out, as a sequential reader, while the load runs.
    Backup {
        name: String,
        #[serde(default = "backup_block")]
        block_bytes: u32,
        #[serde(default = "backup_outstanding")]
        outstanding: u32,
        /// Of each disk; None: all of it.
        #[serde(default)]
        bytes: Option<u64>,
        #[serde(default)]
        limit_seconds: Option<f64>,
        /// Whether the load runs meanwhile.
        #[serde(default = "yes")]
        load: bool,
    },
}

fn preparation_block() -> u32 {
    64 << 10
}

fn preparation_outstanding() -> u32 {
    16
}

/// Backup software reads in pieces of 512 KiB to 1 MiB, a few ahead.
fn backup_block() -> u32 {
    1 << 20
}

fn backup_outstanding() -> u32 {
    2
}

fn yes() -> bool {
    true
}

impl Protocol {
    /// Whether it can be carried out; else what is wrong, by step and field.
    pub fn check(&self) -> Result<(), String> {
        let heartbeat_us = self.heartbeat.map_or(INTERVAL_US_MIN, |heartbeat| heartbeat.interval_us);
        for (name, us) in [("interval_us", self.interval_us), ("heartbeat: interval_us", heartbeat_us)] {
            if us < INTERVAL_US_MIN {
                return Err(format!("{name} = {us}: {INTERVAL_US_MIN} at least"));
            }
        }
        let named = |(n, step): (usize, &Step)| {
            step.action.check().map_err(|e| format!("step {} ({}): {e}", n + 1, step.title()))
        };
        self.steps.iter().enumerate().try_for_each(named)
    }
}

impl Step {
    /// Of its span: the label, or what the step does.
    pub fn title(&self) -> &str {
        match (self.label.as_str(), &self.action) {
            ("", Action::Prepare { .. }) => "prepare",
            ("", Action::Run { .. }) => "run",
            ("", Action::Idle { .. }) => "idle",
            ("", Action::Take { .. }) => "take",
            ("", Action::Commit { .. }) => "commit",
            ("", Action::Drain { .. }) => "drain",
            ("", Action::Backup { .. }) => "backup",
            (label, _) => label,
        }
    }
}

impl Action {
    fn check(&self) -> Result<(), String> {
        match self {
            Action::Prepare { block_bytes, outstanding } => check_transfers(*block_bytes, *outstanding),
            Action::Run { seconds, warm_up_seconds } => {
                check_seconds("seconds", Some(*seconds))?;
                check_seconds("warm_up_seconds", Some(*warm_up_seconds))
            }
            Action::Idle { seconds } => check_seconds("seconds", Some(*seconds)),
            Action::Take { count, .. } => check_count(*count),
            Action::Commit { count, limit_seconds, .. } => {
                check_count(*count)?;
                check_seconds("limit_seconds", *limit_seconds)
            }
            Action::Drain { limit_seconds } => check_seconds("limit_seconds", *limit_seconds),
            Action::Backup { block_bytes, outstanding, limit_seconds, .. } => {
                check_transfers(*block_bytes, *outstanding)?;
                check_seconds("limit_seconds", *limit_seconds)
            }
        }
    }
}

fn check_transfers(block_bytes: u32, outstanding: u32) -> Result<(), String> {
    if !(1..=BLOCK_BYTES_MAX).contains(&block_bytes) || !u64::from(block_bytes).is_multiple_of(SECTOR) {
        let expected = format!("multiples of {SECTOR} until {BLOCK_BYTES_MAX}");
        return Err(format!("block_bytes = {block_bytes}: {expected} are possible"));
    }
    match (1..=OUTSTANDING_MAX).contains(&outstanding) {
        true => Ok(()),
        false => Err(format!("outstanding = {outstanding}: 1 to {OUTSTANDING_MAX} are possible")),
    }
}

fn check_seconds(name: &str, seconds: Option<f64>) -> Result<(), String> {
    match seconds {
        Some(seconds) if !(0.0..=SECONDS_MAX).contains(&seconds) => {
            Err(format!("{name} = {seconds}: 0 to {SECONDS_MAX} are possible"))
        }
        _ => Ok(()),
    }
}

fn check_count(count: Option<u32>) -> Result<(), String> {
    match count {
        Some(count) if !(1..=COUNT_MAX).contains(&count) => {
            Err(format!("count = {count}: 1 to {COUNT_MAX} are possible"))
        }
        _ => Ok(()),
    }
}
