//! What VMs did, as the daemon recorded it, and what their snapshots cost.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Operation, Store};
use crate::name::VmName;
use crate::units::{format_bytes, format_seconds, format_us};

/// Latency of requests, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    pub mean_us: f64,
    pub median_us: f64,
    /// 99 of 100 requests do not exceed it.
    pub p99_us: f64,
}

/// What a VM did within a time. Rates are means over the time that was observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// Time in which the VM was open and the daemon recorded it. All other fields are 0 or null if it is 0.
    pub observed_s: u64,
    /// Reads of the guest per second.
    pub reads_s: f64,
    pub writes_s: f64,
    pub flushes_s: f64,
    pub read_bytes_s: f64,
    pub written_bytes_s: f64,
    /// Reads of the files below, tables and commits included; of a native VM those of its whole store.
    pub host_reads_s: f64,
    pub host_writes_s: f64,
    pub host_read_bytes_s: f64,
    pub host_written_bytes_s: f64,
    /// Latency of reads and writes; null without requests.
    pub latency: Option<Latency>,
    pub read_latency: Option<Latency>,
    pub write_latency: Option<Latency>,
    /// Latency of the slowest request. No time without a completion while a request waited was longer.
    pub longest_us: u64,
    /// Most layers of a disk; 0 for native disks.
    pub layers: u64,
}

impl Load {
    /// Returns the reads and writes of the guest per second.
    pub fn guest_s(&self) -> f64 {
        self.reads_s + self.writes_s
    }

    pub fn median_us(&self) -> Option<f64> {
        self.latency.map(|latency| latency.median_us)
    }

    pub fn p99_us(&self) -> Option<f64> {
        self.latency.map(|latency| latency.p99_us)
    }

    /// Returns the reads and writes of the files per second.
    pub fn host_s(&self) -> f64 {
        self.host_reads_s + self.host_writes_s
    }

    /// Titles of `texts`.
    pub const TITLES: [&str; 7] =
        ["observed", "guest/s", "host/s", "host/guest", "median", "99 of 100", "slowest"];

    /// Returns the figures as texts; `-` for what is not known.
    pub fn texts(&self) -> [String; 7] {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        [
            or_none((self.observed_s > 0).then(|| format_seconds(self.observed_s))),
            or_none(self.rate_text(self.guest_s())),
            or_none(self.rate_text(self.host_s())),
            or_none(self.ratio_text()),
            or_none(self.latency.map(|latency| us_text(latency.median_us))),
            or_none(self.latency.map(|latency| us_text(latency.p99_us))),
            or_none(self.longest_text()),
        ]
    }

    pub fn rate_text(&self, rate: f64) -> Option<String> {
        match self.observed_s {
            0 => None,
            _ if rate < 10.0 => Some(format!("{rate:.1}")),
            _ => Some(format!("{rate:.0}")),
        }
    }

    /// Returns the requests to the files for each request of the guest.
    pub fn ratio_text(&self) -> Option<String> {
        (self.guest_s() > 0.0).then(|| format!("{:.2}", self.host_s() / self.guest_s()))
    }

    pub fn p99_text(&self) -> Option<String> {
        self.p99_us().map(us_text)
    }

    pub fn longest_text(&self) -> Option<String> {
        (self.longest_us > 0).then(|| format_us(self.longest_us))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn us_text(us: f64) -> String {
    format_us(us as u64)
}

/// Answer of `GET /vms/VM/record`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    pub vm: VmName,
    pub store: Store,
    pub from: Timestamp,
    /// Length of each of `steps`, which follow one another from `from` on.
    pub step_s: u64,
    pub steps: Vec<Load>,
}

/// What a snapshot cost its VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotCost {
    pub name: String,
    /// Null if no event of its take is known.
    pub taken: Option<Timestamp>,
    pub commit_began: Option<Timestamp>,
    /// When it was gone, and its commit had ended; null while it is there.
    pub ended: Option<Timestamp>,
    /// `commit`, `commit_cancelled`, `commit_failed` or `discard`.
    pub end: Option<Operation>,
    /// Time for which new guest I/O was held back by the take.
    pub take_stun_us: u64,
    /// And by the end of the commit. Snapshots that were committed together have the same figures of their commit.
    pub commit_stun_us: u64,
    pub bytes_moved: u64,
    /// The ten minutes before the take.
    pub before: Load,
    /// From the take to the begin of the commit.
    pub with: Load,
    pub committing: Load,
    /// The ten minutes after the end.
    pub after: Load,
}

impl SnapshotCost {
    /// Returns the parts of its life that were observed.
    pub fn observed(&self) -> Vec<(&'static str, &Load)> {
        let all = [
            ("before", &self.before),
            ("with", &self.with),
            ("committing", &self.committing),
            ("after", &self.after),
        ];
        all.into_iter().filter(|(_, load)| load.observed_s > 0).collect()
    }

    /// Returns the stun of its take, and how it ended.
    pub fn fate(&self) -> String {
        let end = self.end.map_or("", |end| match end {
            Operation::Commit => ", committed",
            Operation::Discard => ", discarded",
            Operation::CommitCancelled => ", commit cancelled",
            _ => ", commit failed",
        });
        format!("stun {}{end}", format_us(self.take_stun_us))
    }
}

impl VmCost {
    /// Returns the three times into which the VM's is divided.
    pub fn times(&self) -> [(&'static str, &Load); 3] {
        [
            ("without snapshots", &self.without),
            ("with snapshots", &self.with),
            ("committing", &self.committing),
        ]
    }

    /// Returns a sentence about its takes and commits.
    pub fn summary(&self) -> String {
        format!(
            "{} taken, {} commits that moved {}; stun {} in all, {} at most",
            self.takes,
            self.commits,
            format_bytes(self.bytes_moved),
            format_us(self.stun_us),
            format_us(self.longest_stun_us)
        )
    }
}

/// What to expect of a commit, by the VM's own record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommitForecast {
    pub now: CommitExpectation,
    /// At the hour of the day with the lowest load; null if that is not much shorter.
    pub quietest: Option<CommitExpectation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommitExpectation {
    pub at: Timestamp,
    pub seconds: u64,
    /// Requests of the guest per second at that time.
    pub guest_s: f64,
    /// Latency that 99 of 100 of them do not exceed without the commit.
    pub p99_us: Option<f64>,
    /// And with it.
    pub committing_p99_us: Option<f64>,
}

impl CommitForecast {
    /// Returns both expectations as one sentence.
    pub fn sentence(&self) -> String {
        let now = self.now.text("at the present load");
        match &self.quietest {
            None => now,
            Some(quiet) => {
                let time = TimeZone::system().to_datetime(quiet.at).strftime("%H:%M").to_string();
                format!("{now}; {}", quiet.text(&format!("at {time}")))
            }
        }
    }
}

impl CommitExpectation {
    fn text(&self, when: &str) -> String {
        let latency = self.p99_us.zip(self.committing_p99_us).map_or(String::new(), |(before, during)| {
            format!(", 99 of 100 requests below {} -> {}", us_text(before), us_text(during))
        });
        format!("about {} {when}{latency}", format_seconds(self.seconds))
    }
}

/// Output of `unstun cost`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VmCost {
    pub vm: VmName,
    pub store: Store,
    pub since: Timestamp,
    pub until: Timestamp,
    /// Takes, and their stuns together.
    pub takes: u64,
    /// Commits that have ended. Those of native VMs move nothing.
    pub commits: u64,
    pub bytes_moved: u64,
    /// Sum of the stuns of takes and commits.
    pub stun_us: u64,
    pub longest_stun_us: u64,
    /// The time in which there was no snapshot and no commit.
    pub without: Load,
    /// The time in which there was a snapshot and no commit.
    pub with: Load,
    pub committing: Load,
    /// The last snapshots, the oldest first.
    pub snapshots: Vec<SnapshotCost>,
}
