//! The ESX version and the setup of its VM: what is published of each version, and what had to be declared.

use std::str::FromStr;

use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::extent::Zeroing;
use super::format::Format;
use super::rules::{Hypothesis, Rules, TableCache};
use crate::storage::StorageModel;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "3.5")]
    Esx35,
    #[serde(rename = "4.0")]
    Esx40,
    #[serde(rename = "5.0")]
    Esx50,
    #[serde(rename = "5.5")]
    Esx55,
    #[serde(rename = "6.0")]
    Esx60,
    #[serde(rename = "7.0")]
    Esx70,
}

/// How a running disk's newest snapshot is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitWay {
    /// A helper delta takes the writes while the frozen delta is copied; then the helper is copied in the same way, and
    /// so on.
    Helper(HelperRule),
    /// One pass; writes to the part already copied go to both sides.
    Mirror,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelperRule {
    pub last: LastRound,
    pub waits: Waits,
    /// Rounds per disk before `at_limit` applies; None: no limit.
    pub rounds_max: Option<u32>,
    pub at_limit: AtLimit,
}

/// When a helper is small enough to be merged while the VM is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastRound {
    Bytes(u64),
    /// Microseconds of the merge, estimated from the copy rate of the previous round.
    EstimatedUs(u64),
}

/// The wait between two rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    Nothing,
    /// 5, 10, 20, then 30 minutes up to the ninth round, then 60.
    Growing {
        /// Microseconds that stand for one minute: fewer where all times are divided.
        minute_us: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtLimit {
    /// Merges with the VM stopped, however long that takes.
    MergeStopped,
    /// The disk keeps its delta, and VMware reports "consolidation is needed".
    GiveUp,
}

/// Disks whose files are closed and reopened at each step of one disk's commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    AllDisks,
    OneDisk,
}

/// What a file operation of a stun costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    DeclaredUs(u64),
    /// As the storage model of the datastore declares.
    Calls {
        close_us: u64,
        open_us: u64,
        create_us: u64,
    },
    /// The time that opening a file in the VM's directory takes, for each operation.
    OfDirectory,
}

impl FileOperation {
    /// Returns the cost of a datastore's calls for closing, opening and creating a file.
    ///
    /// Errors: `NotFound` for a constant that the model does not have.
    pub fn of(model: &StorageModel) -> blk::Result<FileOperation> {
        let call_ns = model.value("calls.call")?;
        let us = |calls: &str| Ok::<_, blk::Error>((model.value(calls)? * call_ns / 1000.0) as u64);
        Ok(FileOperation::Calls {
            close_us: us("calls.close")?,
            open_us: us("calls.open")?,
            create_us: us("calls.create")?,
        })
    }
}

/// Cost of a stun: `checkpoint_us + (closes + opens + creations) * file_operation` over the touched disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StunCost {
    pub checkpoint_us: u64,
    pub file_operation: FileOperation,
    pub touched: Touched,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshots {
    Deltas,
    /// The array keeps the snapshots (vVol): no cost on the I/O path, no stun; a commit is one operation.
    Metadata {
        operation_us: u64,
    },
}

/// One VM and the host it runs on.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Name of the subject.
    pub name: String,
    pub format: Format,
    pub rules: Rules,
    /// The datastore is VMFS, which writes records of its own when a file grows; otherwise NFS.
    pub vmfs: bool,
    /// The component that zeroes VMFS's blocks at their first write.
    pub zeroing: Zeroing,
    /// Records that a block's first write costs VMFS: at most [`MARKS_MAX`].
    pub marks: u32,
    pub commit: CommitWay,
    pub stun: StunCost,
    pub snapshots: Snapshots,
    /// Sizes, bytes.
    pub disks: Vec<u64>,
    /// Every disk begins as a delta over a base that is never written.
    pub linked_clone: bool,
    /// The base's space is allocated at creation.
    pub thick: bool,
}

/// Stopping and resuming a VM, without its files. No publication gives a figure; logs of idle VMs show this order of
/// magnitude.
const CHECKPOINT_US: u64 = 10_000;
/// Size below which 3.5 and 4.0 merge a helper with the VM stopped, 16 MB. Source: the 2009 article.
const LAST_ROUND_BYTES: u64 = 16 << 20;
/// Longest merge that 5.x carries out with the VM stopped, 12 s. Source: VMware's own authors.
const LAST_ROUND_US: u64 = 12_000_000;
/// Records that VMFS writes when it has zeroed a block (the VDDK has a call for it, ClearLazyZero): one in the journal,
/// one in the pointer block.
pub const MARKS_MAX: u32 = 2;
/// Minute of the waits between rounds.
const MINUTE_US: u64 = 60_000_000;
/// Rounds of 5.x before it merges with the VM stopped.
const ROUNDS_MAX: u32 = 10;

impl HelperRule {
    /// The rule of 3.5 and 4.0: round after round. No limit was met within 980 s.
    pub fn by_size() -> HelperRule {
        let last = LastRound::Bytes(LAST_ROUND_BYTES);
        HelperRule { last, waits: Waits::Nothing, rounds_max: None, at_limit: AtLimit::GiveUp }
    }

    /// The rule of 5.x. `snapshot.asyncConsolidate.forceSync` is on unless an administrator lock it off.
    pub fn by_time() -> HelperRule {
        let last = LastRound::EstimatedUs(LAST_ROUND_US);
        HelperRule {
            last,
            waits: Waits::Growing { minute_us: MINUTE_US },
            rounds_max: Some(ROUNDS_MAX),
            at_limit: AtLimit::MergeStopped,
        }
    }
}

impl Waits {
    /// Returns the wait between round `round` (from 1) and the next, microseconds.
    pub fn after(self, round: u32) -> u64 {
        let Waits::Growing { minute_us } = self else { return 0 };
        let minutes = match round {
            1 => 5,
            2 => 10,
            3 => 20,
            4..=9 => 30,
            _ => 60,
        };
        minutes * minute_us
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let text: StrDeserializer<'_, Error> = text.into_deserializer();
        Version::deserialize(text).map_err(|e| format!("release of ESX: {e}"))
    }
}

impl Version {
    /// Returns the format for a disk below 2 TB on the file system of that time.
    pub fn format(self) -> Format {
        match self {
            Version::Esx70 => Format::SeSparse,
            _ => Format::VmfsSparse,
        }
    }

    /// Returns the default hypothesis; the others are columns beside it. In 3.5, host reads double at 32 a second, so
    /// nothing useful is cached, and one guest I/O runs at a time. The host options of 6.0 show a table cache. In 7.0,
    /// 20,000 IOPS on a sub-millisecond array are out of reach of one I/O at a time and of uncached tables.
    pub fn hypothesis(self) -> Hypothesis {
        match self {
            Version::Esx35 | Version::Esx40 | Version::Esx50 | Version::Esx55 => Hypothesis::IoLockBlind,
            Version::Esx60 | Version::Esx70 => Hypothesis::ConcurrentCached,
        }
    }

    /// Returns how a snapshot is committed. 3.5 and 4.0: round after round until a helper is below 16 MB, as the 2009
    /// article observed. 5.x: until merging takes 12 s. From 6.0 on: one mirrored pass.
    fn commit(self) -> CommitWay {
        match self {
            Version::Esx35 | Version::Esx40 => CommitWay::Helper(HelperRule::by_size()),
            Version::Esx50 | Version::Esx55 => CommitWay::Helper(HelperRule::by_time()),
            Version::Esx60 | Version::Esx70 => CommitWay::Mirror,
        }
    }

    /// Returns the component that zeroes blocks: the storage from 4.1 on (VAAI).
    fn zeroing(self) -> Zeroing {
        match self {
            Version::Esx35 | Version::Esx40 => Zeroing::Host,
            Version::Esx50 | Version::Esx55 | Version::Esx60 | Version::Esx70 => Zeroing::Storage,
        }
    }

    /// Returns the disks that a step reopens. The logged stuns of 5.x fall with every disk that is done; those of 6.0
    /// are the same for every disk.
    fn touched(self) -> Touched {
        match self {
            Version::Esx35 | Version::Esx40 | Version::Esx50 | Version::Esx55 => Touched::AllDisks,
            Version::Esx60 | Version::Esx70 => Touched::OneDisk,
        }
    }
}

/// A change of one number. Returns the ratio of the new value to the old one; None where the setup does not have it.
pub type Adjust = fn(&mut Spec) -> Option<f64>;

/// The numbers of a setup that no baseline fixes, each with a change of it.
pub const ADJUSTMENTS: [(&str, Adjust); 8] = [
    ("checkpoint", |spec| raise(&mut spec.stun.checkpoint_us)),
    ("committer's piece", |spec| raise(&mut spec.rules.piece_bytes)),
    ("committer's pieces", |spec| raise_count(&mut spec.rules.pieces_at_once)),
    ("journal sharing", |spec| match spec.format {
        Format::SeSparse => raise_count(&mut spec.rules.journal_writes),
        Format::VmfsSparse => None,
    }),
    ("serial section", |spec| raise_count(&mut spec.rules.section_us)),
    ("table cache", |spec| match &mut spec.rules.table_cache {
        TableCache::Pages(pages) => raise_count(pages),
        _ => None,
    }),
    ("last round", |spec| match &mut spec.commit {
        CommitWay::Helper(HelperRule {
            last: LastRound::Bytes(last) | LastRound::EstimatedUs(last), ..
        }) => raise(last),
        CommitWay::Mirror => None,
    }),
    ("wait between rounds", |spec| match &mut spec.commit {
        CommitWay::Helper(HelperRule { waits: Waits::Growing { minute_us }, .. }) => raise(minute_us),
        _ => None,
    }),
];

/// Raises a number by a quarter. Returns None for zero, which has no ratio.
fn raise(value: &mut u64) -> Option<f64> {
    let before = *value;
    *value += before.div_ceil(4);
    (before > 0).then(|| *value as f64 / before as f64)
}

fn raise_count(value: &mut u32) -> Option<f64> {
    let before = *value;
    *value += before.div_ceil(4);
    (before > 0).then(|| f64::from(*value) / f64::from(before))
}

impl Spec {
    /// Describes a VM with these disks on VMFS, under the version's own hypothesis.
    pub fn esx(version: Version, disks: Vec<u64>) -> Spec {
        let stun = StunCost {
            checkpoint_us: CHECKPOINT_US,
            file_operation: FileOperation::OfDirectory,
            touched: version.touched(),
        };
        Spec {
            name: "esx".into(),
            format: version.format(),
            rules: version.hypothesis().rules(),
            vmfs: true,
            zeroing: version.zeroing(),
            marks: MARKS_MAX,
            commit: version.commit(),
            stun,
            snapshots: Snapshots::Deltas,
            disks,
            linked_clone: false,
            thick: true,
        }
    }

    /// Describes VMware's ways of committing without VMware's other costs, for comparison with our drain. The format is
    /// that of our redo layers; tables are in memory and written at flushes. Nothing is serialised, and stuns are no
    /// longer than their own I/O.
    pub fn redo(mirror: bool, disks: Vec<u64>) -> Spec {
        let commit = if mirror {
            CommitWay::Mirror
        } else {
            CommitWay::Helper(HelperRule { waits: Waits::Nothing, ..HelperRule::by_time() })
        };
        let file_operation = FileOperation::DeclaredUs(0);
        Spec {
            name: if mirror { "redo:mirror" } else { "redo:helper" }.into(),
            format: Format::VmfsSparse,
            rules: Rules::redo(),
            vmfs: false,
            commit,
            stun: StunCost { checkpoint_us: 0, file_operation, touched: Touched::OneDisk },
            thick: false,
            ..Spec::esx(Version::Esx60, disks)
        }
    }

    /// Divides the times in the commit rule, for an experiment whose durations are divided.
    pub fn divide_times(&mut self, divisor: u64) {
        let CommitWay::Helper(rule) = &mut self.commit else { return };
        if let LastRound::EstimatedUs(us) = &mut rule.last {
            *us /= divisor;
        }
        if let Waits::Growing { minute_us } = &mut rule.waits {
            *minute_us /= divisor;
        }
    }
}
