use serde::{Deserialize, Serialize};

use crate::probe::Heartbeat;
use crate::run::Phase;

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
