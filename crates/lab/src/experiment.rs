//! The published experiments, and users' own: setup, steps, and the published figures.
//!
//! An experiment is a TOML file. Those that ship are in `experiments/`, are embedded, and have the file's name. Any
//! other experiment is read from its path. Keys carry their units, and sizes are those of the article. What an article
//! does not say is an [`Unknown`] with its plausible values.

mod catalogue;
mod cells;
mod check;
pub mod claims;
pub mod fitted;
pub mod frozen;
mod inputs;
mod memory;
mod modelled_run;
mod parse;
mod real;
mod scale;

pub use catalogue::{find, names, shipped};
pub use cells::Column;
pub use modelled_run::{ModelledRun, Stack};
pub use parse::parse;
pub use real::{Limits, Scaled, Space};
use serde::{Deserialize, Serialize};

use crate::peers::Kind;
use crate::probe::Heartbeat;
use crate::run::{Bound, Clock, Constant, ConstantSource, Phase, Quantity, Record, Use};
use crate::runner::Step;
use crate::vmware::rules::{JOURNAL_RECORD_SECTORS, PIECES_AT_ONCE};
use crate::vmware::spec::{MARKS_MAX, Version};
use crate::workload::Worker;

/// One file of the catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file's name, without its extension.
    #[serde(skip)]
    pub name: String,
    pub title: String,
    /// Article, author, year.
    pub source: String,
    /// Name of the article, which is the same for all of its experiments; None: no figure of it is published.
    pub article: Option<String>,
    /// Storage model: its name, or the path of its TOML file.
    pub storage: String,
    /// The experiment whose baseline the model's free constants are fitted to; None: this experiment's own baseline, if
    /// it has one.
    pub fitted_on: Option<String>,
    /// Length of a sample: the interval that the authors' tools averaged over.
    #[serde(default = "one")]
    pub interval_seconds: u32,
    /// Slips of the source, and what was inferred from which evidence.
    #[serde(default)]
    pub notes: Vec<String>,
    pub esx: Esx,
    /// The stack that the article measured, where it is not VMware's; of `esx` then only `delta_storage` has an effect.
    pub peer: Option<PeerSide>,
    pub scale: Option<Scale>,
    /// None: the VM was not pinged.
    pub heartbeat: Option<Heartbeat>,
    #[serde(rename = "disk")]
    pub disks: Vec<Disk>,
    /// None: an idle VM.
    #[serde(default, rename = "worker")]
    pub workers: Vec<Worker>,
    #[serde(rename = "step")]
    pub steps: Vec<Step>,
    #[serde(default)]
    pub published: Vec<Published>,
    #[serde(default, rename = "unknown")]
    pub unknowns: Vec<Unknown>,
    /// At most one fit for each baseline cell.
    #[serde(default, rename = "fit")]
    pub fits: Vec<Fit>,
}

fn one() -> u32 {
    1
}

fn all_marks() -> u32 {
    MARKS_MAX
}

fn pieces_at_once() -> u32 {
    PIECES_AT_ONCE
}

fn whole_record() -> u32 {
    JOURNAL_RECORD_SECTORS
}

/// The VMware side of the experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Esx {
    /// The release, which decides how a commit is carried out and what a stun costs.
    pub release: Version,
    pub format: Format,
    /// The disks are deltas over read-only bases from the start.
    #[serde(default)]
    pub linked_clone: bool,
    /// Storage model of a separate device for deltas; None: they are beside the disks.
    pub delta_storage: Option<String>,
    /// A filter spares reads the tables of deltas that hold nothing of the range: 7.0 U2 and later, SEsparse.
    #[serde(default)]
    pub read_filter: bool,
    /// The datastore is on a file server; otherwise it is VMFS.
    #[serde(default)]
    pub nfs: bool,
    /// Records that VMFS writes when it has zeroed a block.
    #[serde(default = "all_marks")]
    pub block_marks: u32,
    /// Pieces that a commit keeps under way at a time.
    #[serde(default = "pieces_at_once")]
    pub committer_outstanding: u32,
    /// Most first writes that share a record of SEsparse's journal. The maximum is the number that a record has space
    /// for.
    #[serde(default = "whole_record")]
    pub journal_writes: u32,
}

/// The other stack of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSide {
    pub kind: Kind,
    /// Time of each guest's request on its way to the stack, one at a time; it comes from a baseline.
    #[serde(default)]
    pub request_us: f64,
    /// Largest cache of qcow2's L2 tables; None: QEMU's default.
    pub l2_cache_bytes: Option<u64>,
}

/// Format of the deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    VmfsSparse,
    SeSparse,
    /// No deltas: the array takes its own snapshots.
    VVol,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::VmfsSparse => "VMFSsparse",
            Format::SeSparse => "SEsparse",
            Format::VVol => "vVol",
        }
    }
}

/// A smaller run in place of one that would take too long to simulate. Its rates are those of the full size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Divisor of the disks, of the workers' ranges, and of the caches of tables.
    pub size: u32,
    /// Divisor of all durations; predicted durations are multiplied by it.
    pub time: u32,
    /// Why the scale does not change any compared figure.
    pub note: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    pub name: String,
    pub size_bytes: u64,
    /// Number of disks like this one.
    #[serde(default = "one")]
    pub times: u32,
}

/// One cell of an article's tables and graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub phase: Phase,
    pub quantity: Quantity,
    /// Label of the step within that phase; None: all of its steps.
    pub span: Option<String>,
    /// Part of a commit's seconds.
    pub part: Option<Part>,
    /// Cluster or chunk of the other stack with which the figure was measured, in a run of its own; None: its default.
    pub unit_bytes: Option<u64>,
    /// Number of the stun within the phase, from 1; None: the sum of all its stuns.
    pub stun: Option<u32>,
    /// None: the article describes the result without a figure.
    pub value: Option<f64>,
    /// None: the value itself is published.
    pub bound: Option<Bound>,
    pub r#use: Use,
    #[serde(default)]
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The time until the delta's content at the commit's request has been copied.
    FirstRound,
}

/// An input that is not published. The first value is that of a single run; all values together make the band.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unknown {
    pub input: Input,
    pub values: Vec<u64>,
    #[serde(default)]
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// I/Os that each worker keeps under way.
    Outstanding,
    /// Alignment of each worker's I/Os.
    AlignBytes,
    /// Length of each worker's part of the disk.
    WorkingSetBytes,
    /// Length of those steps of the phase `snapshot` that run for a time.
    SnapshotSeconds,
    /// See [`Esx::committer_outstanding`].
    CommitterOutstanding,
    /// See [`Esx::read_filter`]; 0 is no filter.
    ReadFilter,
    /// See [`Esx::block_marks`].
    BlockMarks,
    /// See [`Esx::journal_writes`].
    JournalWrites,
    /// Size of the array's cache for reads (`read_cache` of its model).
    ReadCacheBytes,
    /// Time that one call of the datastore for a file takes (`calls.call` of its model), microseconds.
    FileCallUs,
}

/// A free constant of the storage model, and the baseline cell it is fitted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// The constant's name in the model.
    pub constant: String,
    /// Range that is physically ordinary, in the constant's unit.
    pub low: f64,
    pub high: f64,
    /// Phase and quantity of the cell.
    pub phase: Phase,
    pub quantity: Quantity,
}

impl Input {
    pub fn name(self) -> &'static str {
        match self {
            Input::Outstanding => "outstanding",
            Input::AlignBytes => "alignment",
            Input::WorkingSetBytes => "working set",
            Input::SnapshotSeconds => "age of the snapshot",
            Input::CommitterOutstanding => "committer's outstanding pieces",
            Input::ReadFilter => "filter for reads",
            Input::BlockMarks => "records of a block that was zeroed",
            Input::JournalWrites => "first writes in a record of the journal",
            Input::ReadCacheBytes => "cache of the array",
            Input::FileCallUs => "a call for a file",
        }
    }

    /// Returns whether the baseline depends on the input, so that the storage is fitted for each value.
    pub fn moves_baseline(self) -> bool {
        use Input::{AlignBytes, Outstanding, ReadCacheBytes, WorkingSetBytes};
        matches!(self, Outstanding | AlignBytes | WorkingSetBytes | ReadCacheBytes)
    }

    /// Returns the unit; empty for a plain number.
    pub fn unit(self) -> &'static str {
        match self {
            Input::FileCallUs => "us",
            Input::AlignBytes | Input::WorkingSetBytes | Input::ReadCacheBytes => "bytes",
            Input::SnapshotSeconds => "s",
            _ => "",
        }
    }
}

impl Experiment {
    /// Returns an experiment with one disk, no published figures, and samples of one second.
    pub fn bare(
        name: &str,
        storage: &str,
        release: Version,
        disk_bytes: u64,
        workers: Vec<Worker>,
        steps: Vec<Step>,
    ) -> Experiment {
        Experiment {
            name: name.to_string(),
            title: String::new(),
            source: String::new(),
            article: None,
            storage: storage.to_string(),
            fitted_on: None,
            interval_seconds: 1,
            notes: Vec::new(),
            esx: Esx {
                release,
                format: Format::VmfsSparse,
                linked_clone: false,
                delta_storage: None,
                read_filter: false,
                nfs: false,
                block_marks: MARKS_MAX,
                committer_outstanding: PIECES_AT_ONCE,
                journal_writes: JOURNAL_RECORD_SECTORS,
            },
            peer: None,
            scale: None,
            heartbeat: None,
            disks: vec![Disk { name: "disk".into(), size_bytes: disk_bytes, times: 1 }],
            workers,
            steps,
            published: Vec::new(),
            unknowns: Vec::new(),
            fits: Vec::new(),
        }
    }

    /// Returns the stack whose figures are published, under the frozen hypothesis if it is VMware's.
    pub fn own_stack(&self) -> Stack {
        match &self.peer {
            Some(peer) => Stack::Peer(peer.kind),
            None => Stack::Esx(self.esx.hypothesis()),
        }
    }

    /// Returns the size of each disk in full size, bytes.
    pub fn disk_bytes(&self) -> Vec<u64> {
        let each = |disk: &Disk| std::iter::repeat_n(disk.size_bytes, disk.times as usize);
        self.disks.iter().flat_map(each).collect()
    }

    /// Returns the values that a single run assumes for the inputs that are not published.
    pub fn declared(&self) -> Vec<Constant> {
        let constant = |unknown: &Unknown| Constant {
            name: unknown.input.name().to_string(),
            value: unknown.values[0] as f64,
            unit: unknown.input.unit().to_string(),
            source: ConstantSource::Declared,
            note: unknown.note.clone(),
        };
        self.unknowns.iter().map(constant).collect()
    }

    /// Returns the head of a run's record, with the experiment's description and declared inputs.
    pub fn head(&self, subject: &str, storage: &str, clock: Clock, seed: u64) -> Record {
        Record {
            title: self.title.clone(),
            source: self.source.clone(),
            constants: self.declared(),
            ..Record::head(&self.name, subject, storage, clock, seed)
        }
    }

    /// Returns the experiment with another value for an input that is not published.
    pub fn with(&self, input: Input, value: u64) -> Experiment {
        let mut other = self.clone();
        let narrow = u32::try_from(value).unwrap_or(u32::MAX);
        for worker in &mut other.workers {
            match input {
                Input::Outstanding => worker.outstanding = narrow,
                Input::AlignBytes => worker.align_bytes = narrow,
                Input::WorkingSetBytes => worker.working_set_bytes = value,
                _ => {}
            }
        }
        match input {
            Input::SnapshotSeconds => scale::set_snapshot_seconds(&mut other.steps, value),
            Input::CommitterOutstanding => other.esx.committer_outstanding = narrow,
            Input::ReadFilter => other.esx.read_filter = value != 0,
            Input::BlockMarks => other.esx.block_marks = narrow,
            Input::JournalWrites => other.esx.journal_writes = narrow,
            _ => {}
        }
        other
    }
}
