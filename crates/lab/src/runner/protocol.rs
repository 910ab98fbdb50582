use blk::SECTOR;
use serde::{Deserialize, Serialize};

use crate::probe::Heartbeat;
use crate::run::Phase;
use crate::workload::{BLOCK_BYTES_MAX, OUTSTANDING_MAX};

/// Shortest interval of samples and heartbeats: a day of them is 86 million.
const INTERVAL_US_MIN: u64 = 1000;
/// Longest duration of one step: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// Most snapshots of one take. VMware's own limit is 32; the longest reported tree has 40.
const COUNT_MAX: u32 = 1000;

/// The steps of a run, carried out one after the other while the VM is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Interval of the samples, microseconds.
    #[serde(default = "one_second")]
    pub interval_us: u64,
    /// None: the VM is not pinged.
    pub heartbeat: Option<Heartbeat>,
    pub steps: Vec<Step>,
}

fn one_second() -> u64 {
    1_000_000
}

/// One step, which gives one span of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub phase: Phase,
    /// Description for readers; empty: that of the action.
    #[serde(default)]
    pub label: String,
    #[serde(flatten)]
    pub action: Action,
}

/// The action of a step. Times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Writes the workers' ranges once, from front to back. The load is stopped.
    Prepare {
        /// IOmeter: 64 KiB.
        #[serde(default = "preparation_block")]
        block_bytes: u32,
        /// IOmeter: 16. NTFS extends a file with one write under way.
        #[serde(default = "preparation_outstanding")]
        outstanding: u32,
    },
    /// The load runs.
    Run {
        seconds: f64,
        /// Part of `seconds`, at the begin, that is sampled but not part of the rows.
        #[serde(default)]
        warm_up_seconds: f64,
    },
    /// No load runs.
    Idle { seconds: f64 },
    /// Takes a snapshot, or `count` of them (`name-1`, `name-2`...), one after the other.
    Take {
        name: String,
        count: Option<u32>,
        /// Whether the load runs during the step.
        #[serde(default = "yes")]
        load: bool,
    },
    /// Commits until the commit ends or the limit passes. After the limit the commit continues, and a drain may follow.
    Commit {
        name: String,
        /// As in `take`: `name-1` first.
        count: Option<u32>,
        limit_seconds: Option<f64>,
        /// Whether the load runs during the step.
        #[serde(default = "yes")]
        load: bool,
    },
    /// Stops the load and waits for the end of the commit under way. Without one the step is left out.
    Drain { limit_seconds: Option<f64> },
    /// Copies the snapshot's disks out with sequential reads.
    Backup {
        name: String,
        #[serde(default = "backup_block")]
        block_bytes: u32,
        #[serde(default = "backup_outstanding")]
        outstanding: u32,
        /// Bytes of each disk; None: all of it.
        bytes: Option<u64>,
        limit_seconds: Option<f64>,
        /// Whether the load runs during the step.
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

/// Backup software reads pieces of 512 KiB to 1 MiB, with a few under way.
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
    /// Returns a protocol with samples of one second and without pings.
    pub fn new(steps: Vec<Step>) -> Protocol {
        Protocol { interval_us: one_second(), heartbeat: None, steps }
    }

    /// Returns the most snapshots that exist at a time.
    pub fn snapshots_max(&self) -> u64 {
        let (mut now, mut most) = (0u64, 0);
        for step in &self.steps {
            let count = |count: &Option<u32>| u64::from(count.unwrap_or(1));
            now = match &step.action {
                Action::Take { count: taken, .. } => now + count(taken),
                Action::Commit { count: committed, .. } => now.saturating_sub(count(committed)),
                _ => now,
            };
            most = most.max(now);
        }
        most
    }

    /// Checks that the protocol can be carried out. An error names step and field.
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
    /// Returns a step whose description is that of its action.
    pub fn new(phase: Phase, action: Action) -> Step {
        Step { phase, label: String::new(), action }
    }

    /// Returns the title of the step's span: the label, or the action's name.
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
    /// Writes everything once in large pieces, so that no read meets a hole.
    pub const FILL: Action = Action::Prepare { block_bytes: 1 << 20, outstanding: 8 };

    /// Runs the load, all of which counts.
    pub fn run(seconds: f64) -> Action {
        Action::Run { seconds, warm_up_seconds: 0.0 }
    }

    /// Takes one snapshot under load.
    pub fn take(name: &str) -> Action {
        Action::Take { name: name.to_string(), count: None, load: true }
    }

    /// Commits one snapshot under load.
    pub fn commit(name: &str, limit_seconds: f64) -> Action {
        Action::Commit { name: name.to_string(), count: None, limit_seconds: Some(limit_seconds), load: true }
    }

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
