//! The published experiments, and anybody's own: what was measured where, in what steps, and which figures came out.
//!
//! An experiment is a TOML file. Those that ship are in `experiments/`, embedded, and known by the file's name; any
//! other is read by its path. Keys carry their units, sizes are those of the article, and what an article does not say
//! is an [`Unknown`] with the values that are plausible.

mod catalogue;
mod cells;
mod check;
pub mod fitted;
mod inputs;
mod parse;
mod play;
mod real;
mod scale;

pub use catalogue::{find, names, shipped};
pub use cells::Column;
pub use parse::parse;
pub use play::{Play, Stack};
pub use real::{Means, Room, Scaled};
use serde::{Deserialize, Serialize};

use crate::probe::Heartbeat;
use crate::run::{Constant, ConstantSource, Phase, Quantity, Use};
use crate::runner::Step;
use crate::vmware::rules::JOURNAL_RECORD_SECTORS;
use crate::vmware::spec::{MARKS_MAX, Version};
use crate::workload::Worker;

/// One file of the catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file's, without its ending.
    #[serde(skip)]
    pub name: String,
    pub title: String,
    /// Article, author, year.
    pub source: String,
    /// Model, by its name or the path of its TOML.
    pub storage: String,
    /// Whose baseline the model's free constants are fitted to; None: this experiment's own, if it has one.
    #[serde(default)]
    pub fitted_on: Option<String>,
    /// Of the samples: what the authors' tools averaged over.
    #[serde(default = "one")]
    pub interval_seconds: u32,
    /// Slips of the source, what was inferred and from what.
    #[serde(default)]
    pub notes: Vec<String>,
    pub esx: Esx,
    #[serde(default)]
    pub scale: Option<Scale>,
    /// None: nobody pinged the VM.
    #[serde(default)]
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
    /// At most one for each baseline cell.
    #[serde(default, rename = "fit")]
    pub fits: Vec<Fit>,
}

fn one() -> u32 {
    1
}

fn all_marks() -> u32 {
    MARKS_MAX
}

fn whole_record() -> u32 {
    JOURNAL_RECORD_SECTORS
}

/// What VMware's side of it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Esx {
    /// Decides how a commit is carried out, and what a stun costs.
    pub release: Version,
    pub format: Format,
    /// The disks are deltas over read-only bases from the start.
    #[serde(default)]
    pub linked_clone: bool,
    /// Deltas lie on a device of their own, of this model; None: beside the disks.
    #[serde(default)]
    pub delta_storage: Option<String>,
    /// A filter spares reads the tables of deltas that hold nothing of them: 7.0 U2 and later, SEsparse.
    #[serde(default)]
    pub read_filter: bool,
    /// The datastore is a file server's; else VMFS.
    #[serde(default)]
    pub nfs: bool,
    /// Records that VMFS writes when it zeroed a block.
    #[serde(default = "all_marks")]
    pub block_marks: u32,
    /// Pieces that a commit has under way at a time.
    #[serde(default = "one")]
    pub committer_outstanding: u32,
    /// First writes that share a record of SEsparse's journal at most; as many as there is room for is the most.
    #[serde(default = "whole_record")]
    pub journal_writes: u32,
}

/// Of the deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    VmfsSparse,
    SeSparse,
    /// No deltas: the array's own snapshots.
    VVol,
}

/// A smaller run in place of one that would take too long to simulate. Rates stay what they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Disks, what workers work on, and caches of tables are divided by it.
    pub size: u32,
    /// All durations are divided by it, and predicted ones multiplied.
    pub time: u32,
    /// Why this changes nothing that is compared.
    pub note: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    pub name: String,
    pub size_bytes: u64,
    /// Disks like this one.
    #[serde(default = "one")]
    pub times: u32,
}

/// One cell of an article's tables and graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub phase: Phase,
    pub quantity: Quantity,
    /// Of which step of that phase, by its label; None: all of them.
    #[serde(default)]
    pub span: Option<String>,
    /// Of a commit's seconds.
    #[serde(default)]
    pub part: Option<Part>,
    /// Of which of the phase's stuns, from 1; None: all of them, added up.
    #[serde(default)]
    pub stun: Option<u32>,
    /// None: the article says something, and no figure.
    #[serde(default)]
    pub value: Option<f64>,
    pub r#use: Use,
    #[serde(default)]
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Until what the delta held when the commit was asked for has been copied.
    FirstRound,
}

/// An input that nobody published: the first value is what a single run has, all together make the band.
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
    /// Of each worker.
    Outstanding,
    /// Of each worker.
    AlignBytes,
    /// Of each worker.
    WorkingSetBytes,
    /// Of the steps of the phase `snapshot` that run for a time.
    SnapshotSeconds,
    /// See [`Esx::committer_outstanding`].
    CommitterOutstanding,
    /// See [`Esx::read_filter`]: 0 is none.
    ReadFilter,
    /// See [`Esx::block_marks`].
    BlockMarks,
    /// See [`Esx::journal_writes`].
    JournalWrites,
    /// What a call of the datastore for a file (`calls.call` of its model) takes, microseconds.
    FileCallUs,
}

/// A free constant of the storage model, and the baseline cell it is fitted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// As the model calls it.
    pub constant: String,
    /// Between what it is physically ordinary, in the constant's unit.
    pub low: f64,
    pub high: f64,
    /// The cell.
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
            Input::FileCallUs => "a call for a file",
        }
    }

    /// Of the load: a baseline is another one with another value.
    pub fn moves_baseline(self) -> bool {
        matches!(self, Input::Outstanding | Input::AlignBytes | Input::WorkingSetBytes)
    }

    /// Empty for a plain number.
    pub fn unit(self) -> &'static str {
        match self {
            Input::Outstanding
            | Input::CommitterOutstanding
            | Input::ReadFilter
            | Input::BlockMarks
            | Input::JournalWrites => "",
            Input::FileCallUs => "us",
            Input::AlignBytes | Input::WorkingSetBytes => "bytes",
            Input::SnapshotSeconds => "s",
        }
    }
}

impl Experiment {
    /// One disk, nothing published, samples of a second.
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
                committer_outstanding: 1,
                journal_writes: JOURNAL_RECORD_SECTORS,
            },
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

    /// Of each disk, bytes, in full size.
    pub fn disk_bytes(&self) -> Vec<u64> {
        let each = |disk: &Disk| std::iter::repeat_n(disk.size_bytes, disk.times as usize);
        self.disks.iter().flat_map(each).collect()
    }

    /// What nobody published, as a single run has it.
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

    /// The experiment with another value for something that is not known.
    pub fn with(&self, input: Input, value: u64) -> Experiment {
        let mut other = self.clone();
        let narrow = u32::try_from(value).unwrap_or(u32::MAX);
        for worker in &mut other.workers {
            match input {
                Input::Outstanding => worker.outstanding = narrow,
                Input::AlignBytes => worker.align_bytes = narrow,
                Input::WorkingSetBytes => worker.working_set_bytes = value,
                Input::SnapshotSeconds
                | Input::CommitterOutstanding
                | Input::ReadFilter
                | Input::BlockMarks
                | Input::JournalWrites
                | Input::FileCallUs => {}
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
