use std::ops::AddAssign;

use blk::file::FileCounters;
use serde::{Deserialize, Serialize};

use super::row::{Phase, Quantity, Row};

/// Version of the record's fields. It increases when a field changes its meaning or is removed, not when one is added.
pub const SCHEMA: u32 = 1;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Simulated time, which is independent of real time.
    #[default]
    Virtual,
    Real,
}

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    #[default]
    Complete,
    /// The user interrupted the run. The record has what was sampled until then.
    Interrupted,
    /// The subject could not continue; the text gives the reason. The record has what was sampled until then.
    Failed(String),
}

/// Source of the value of a model's constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConstantSource {
    DataSheet,
    Measured,
    /// Chosen so that the experiment's baseline row comes out; no other row may influence it.
    FittedToBaseline,
    /// Assumed, because it is not published.
    Declared,
}

/// A number that a model depends on, printed with every result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    pub name: String,
    pub value: f64,
    /// For example "us" or "bytes"; empty for a plain number.
    pub unit: String,
    pub source: ConstantSource,
    /// The exact source: the data sheet, the article, the reason.
    pub note: String,
}

/// A fact about the machine, its kernel or the measured programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseSpan {
    pub phase: Phase,
    /// For readers: "IOmeter stopped, delete drains".
    pub label: String,
    pub begin_us: u64,
    pub end_us: u64,
    /// A sample that begins before this time enters no rate: the step warms up, or is over at once.
    #[serde(default)]
    pub counted_from_us: u64,
    /// Base first; empty where layers cannot be told apart.
    #[serde(default)]
    pub layers: Vec<LayerHost>,
}

impl PhaseSpan {
    pub fn new(phase: Phase, label: String, begin_us: u64, end_us: u64) -> PhaseSpan {
        PhaseSpan { phase, label, begin_us, end_us, counted_from_us: 0, layers: Vec::new() }
    }

    pub fn lasts_us(&self) -> u64 {
        self.end_us.saturating_sub(self.begin_us)
    }

    /// Returns whether that moment is within the span. A span without a length contains the moment of its begin.
    pub fn holds(&self, at_us: u64) -> bool {
        self.begin_us <= at_us && at_us < self.end_us.max(self.begin_us.saturating_add(1))
    }
}

/// I/O that reached the storage since the subject began. For a VM's host this is the I/O below all of its layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// The part of `reads` and `writes` that went to headers, grain tables, maps, bitmaps and journals.
    pub table_reads: u64,
    pub table_writes: u64,
    /// The part of the bytes that a commit moved.
    pub commit_read_bytes: u64,
    pub commit_written_bytes: u64,
}

impl Counters {
    pub(super) fn fields(&mut self) -> [&mut u64; 9] {
        [
            &mut self.reads,
            &mut self.writes,
            &mut self.flushes,
            &mut self.read_bytes,
            &mut self.written_bytes,
            &mut self.table_reads,
            &mut self.table_writes,
            &mut self.commit_read_bytes,
            &mut self.commit_written_bytes,
        ]
    }

    /// Returns the difference to an earlier count. None where a count decreased, because it has started over.
    pub fn since(&self, before: &Counters) -> Option<Counters> {
        let (mut part, mut before) = (*self, *before);
        for (now, then) in part.fields().into_iter().zip(before.fields()) {
            *now = now.checked_sub(*then)?;
        }
        Some(part)
    }
}

impl From<FileCounters> for Counters {
    fn from(file: FileCounters) -> Counters {
        Counters {
            reads: file.reads,
            writes: file.writes,
            flushes: file.flushes,
            read_bytes: file.bytes_read,
            written_bytes: file.bytes_written,
            table_reads: file.table_reads,
            table_writes: file.table_writes,
            ..Counters::default()
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, mut other: Counters) {
        for (sum, more) in self.fields().into_iter().zip(other.fields()) {
            *sum += *more;
        }
    }
}

/// I/O that reached the files of the layers at one height of their chains, all disks together, within one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerHost {
    /// 0 is the base.
    pub layer: u32,
    /// This does not count a commit's bytes separately.
    pub host: Counters,
}

/// Latencies of the completions within one interval, microseconds. All are zero where no I/O completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// One interval of one run, all disks and workers together. Counts are within the interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Begin of the interval, microseconds.
    pub at_us: u64,
    pub interval_us: u64,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub read_latency: Spread,
    pub write_latency: Spread,
    /// None where the I/O below the subject cannot be observed, and where its layers changed during the interval.
    pub host: Option<Counters>,
    /// The longest time within which no I/O completed although one was under way.
    pub gap_us: u64,
}

/// A time during which new guest I/O was held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stun {
    /// Begin of the stun, microseconds.
    pub at_us: u64,
    pub stun_us: u64,
    /// None: all disks of the VM.
    pub disk: Option<u32>,
    pub cause: String,
}

/// One heartbeat, like that of a ping once a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    pub at_us: u64,
    pub lost: bool,
}

/// An event that a chart labels: "take", "round 3 began".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub at_us: u64,
    pub text: String,
}

fn full_size() -> u32 {
    1
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub schema: u32,
    /// Name of the experiment in the catalogue, or of the imported file.
    pub experiment: String,
    pub title: String,
    /// Article, author, year; or the files imported.
    pub source: String,
    /// "esx", "redo", "native", "qemu", "hooks", "imported"...
    pub subject: String,
    pub hypothesis: Option<String>,
    /// Name of the storage model, or the directory.
    pub storage: String,
    /// Frozen state of the models; empty for what was measured.
    #[serde(default)]
    pub model: String,
    pub clock: Clock,
    /// Divisor of all durations in the simulation; every time of the record is multiplied by it. 1: full size.
    #[serde(default = "full_size")]
    pub time_scale: u32,
    pub seed: u64,
    /// The command that repeats the run.
    pub command: String,
    pub began_unix_us: i64,
    pub machine: Vec<Fact>,
    pub constants: Vec<Constant>,
    /// What the model leaves out, one sentence each.
    pub left_out: Vec<String>,
    pub notes: Vec<String>,
    pub phases: Vec<PhaseSpan>,
    pub samples: Vec<Sample>,
    pub stuns: Vec<Stun>,
    pub beats: Vec<Beat>,
    pub marks: Vec<Mark>,
    /// The measured figures, phase by phase, with the published ones where they exist.
    pub rows: Vec<Row>,
    pub end: End,
}

impl Record {
    /// Returns whether reads and writes of tables were counted separately: a stack with tables shows some.
    pub fn tells_tables(&self) -> bool {
        self.samples.iter().filter_map(|s| s.host).any(|host| host.table_reads > 0 || host.table_writes > 0)
    }

    /// Returns the first figure of that kind; None where the run did not come to it.
    pub fn figure(&self, phase: Phase, quantity: Quantity) -> Option<f64> {
        self.rows.iter().find(|row| row.phase == phase && row.quantity == quantity)?.predicted
    }

    /// Returns the record of a run that has not begun.
    pub fn head(experiment: &str, subject: &str, storage: &str, clock: Clock, seed: u64) -> Record {
        Record {
            schema: SCHEMA,
            experiment: experiment.to_string(),
            subject: subject.to_string(),
            storage: storage.to_string(),
            clock,
            time_scale: full_size(),
            seed,
            ..Record::default()
        }
    }
}
