//! Predicts whether a commit will end under this load on this storage, how long it takes, and what the guest sees
//! meanwhile.

mod accuracy;

use serde::Serialize;

use crate::experiment::{Experiment, ModelledRun, Stack};
use crate::figures::phases;
use crate::modelled::Engine;
use crate::peers::Kind;
use crate::run::{End, Phase, Quantity, Record};
use crate::runner::{Action, RunObserver, Step};
use crate::storage::StorageModel;
use crate::storage::measured::{Figure, Load};
use crate::vmware::rules::Hypothesis;
use crate::vmware::spec::Version;
use crate::workload::{Pacing, Worker};

pub(crate) use accuracy::{Accuracy, Point};

/// The load, the age of the snapshot and the seed of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub iops: u32,
    pub read_percent: u8,
    /// Seconds from the take to the commit.
    pub keep_s: u32,
    pub seed: u64,
}

/// The prediction for one stack.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub stack: &'static str,
    /// IOPS that the storage delivers for this load without a snapshot.
    pub baseline_iops: Option<f64>,
    pub snapshot_iops: Option<f64>,
    pub commit_iops: Option<f64>,
    /// None: the commit did not end within the limit.
    pub commit_s: Option<f64>,
    pub converged: bool,
    /// The median over the commit's seconds of the 99th percentile.
    pub commit_p99_us: Option<f64>,
    /// The longest time in which no I/O completed, over the whole run.
    pub gap_us: u64,
    pub stuns: usize,
    pub longest_stun_us: u64,
    /// Why the run ended early, if it did.
    pub failure: Option<String>,
}

/// The answers on storage that differs from the model by as much as the measured storage did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Band {
    /// Factors of the time that everything takes.
    pub slower_by: f64,
    pub faster_by: f64,
    pub slower: Answer,
    pub faster: Answer,
}

/// An answer, with its band where the storage was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Prediction {
    #[serde(flatten)]
    pub answer: Answer,
    pub band: Option<Band>,
}

/// The ways in which a commit may be carried out.
pub(crate) const STACKS: [(&str, Stack, Version); 9] = [
    ("ESX 5.5, helper", Stack::Esx(Hypothesis::IoLockBlind), Version::Esx55),
    ("ESX 6.0, mirror", Stack::Esx(Hypothesis::ConcurrentCached), Version::Esx60),
    ("unstun redo", Stack::Engine(Engine::Redo), Version::Esx60),
    ("unstun native", Stack::Engine(Engine::Native), Version::Esx60),
    ("QEMU qcow2", Stack::Peer(Kind::Qcow2), Version::Esx60),
    ("QEMU extended L2", Stack::Peer(Kind::Qcow2ExtendedL2), Version::Esx60),
    ("LVM snapshot", Stack::Peer(Kind::Lvm), Version::Esx60),
    ("Ceph RBD", Stack::Peer(Kind::Rbd), Version::Esx60),
    ("ZFS", Stack::Peer(Kind::Zfs), Version::Esx60),
];

const DISK_BYTES: u64 = 8 << 30;
const BLOCK_BYTES: u32 = 4096;
/// Name of the snapshot that is committed.
const SNAPSHOT: &str = "before";
/// Most I/Os that a guest's driver keeps under way.
const OUTSTANDING: u32 = 32;
const BASELINE_S: f64 = 20.0;
/// Requests per run: their count scatters by 2 percent.
const RATE_REQUESTS: f64 = 2000.0;
/// Small, because the rate of a model that is made from figures does not depend on it.
const RATE_DISK_BYTES: u64 = 64 << 20;
/// Limit of a commit: one that takes more than an hour counts as not converging.
const LIMIT_S: f64 = 3600.0;

/// Returns the experiment that is run for a prediction.
fn experiment(question: Question, storage: &str, version: Version) -> Experiment {
    let interval_us = (1_000_000 / u64::from(question.iops.max(1))).max(1);
    let worker = Worker {
        pacing: Pacing::Open { interval_us },
        ..Worker::aligned("guest", BLOCK_BYTES, question.read_percent, OUTSTANDING)
    };
    let steps = vec![
        Step::new(Phase::Prepare, Action::FILL),
        Step::new(Phase::Baseline, Action::run(BASELINE_S)),
        Step::new(Phase::Prepare, Action::take(SNAPSHOT)),
        Step::new(Phase::Snapshot, Action::run(f64::from(question.keep_s))),
        Step::new(Phase::Commit, Action::commit(SNAPSHOT, LIMIT_S)),
    ];
    Experiment::bare("predict", storage, version, DISK_BYTES, vec![worker], steps)
}

/// Returns the rate that a model gives for the load of a measured figure: that of a flat file, for a short time.
pub(crate) fn rate(figure: &Figure, storage: &StorageModel, seed: u64) -> Option<f64> {
    let Load { block_bytes, read_percent, outstanding } = figure.load;
    let workers = vec![Worker::aligned("load", block_bytes, read_percent, outstanding)];
    let run = Action::run(RATE_REQUESTS / figure.iops.max(1.0));
    let steps = vec![Step::new(Phase::Prepare, Action::FILL), Step::new(Phase::Baseline, run)];
    let experiment = Experiment::bare("rate", &storage.name, Version::Esx60, RATE_DISK_BYTES, workers, steps);
    let play = ModelledRun::new(experiment, Stack::Engine(Engine::Plain), storage.clone(), seed);
    play.run(RunObserver::none()).figure(Phase::Baseline, Quantity::Iops)
}

/// Runs the prediction for one of [`STACKS`].
pub(crate) fn ask(question: Question, which: usize, storage: &StorageModel, observer: RunObserver) -> Answer {
    let (name, stack, version) = STACKS[which];
    let experiment = experiment(question, &storage.name, version);
    answer(name, &ModelledRun::new(experiment, stack, storage.clone(), question.seed).run(observer))
}

fn answer(stack: &'static str, record: &Record) -> Answer {
    let figures = phases(record);
    let of = |phase| figures.iter().find(|figures| figures.phase == Some(phase));
    let iops = |phase| of(phase).and_then(|figures| figures.iops());
    let converged = record.figure(Phase::Commit, Quantity::Converged) == Some(1.0);
    let commit = of(Phase::Commit);
    Answer {
        stack,
        baseline_iops: iops(Phase::Baseline),
        snapshot_iops: iops(Phase::Snapshot),
        commit_iops: iops(Phase::Commit),
        commit_s: commit.map(|commit| commit.lasts_us as f64 / 1e6).filter(|_| converged),
        converged,
        commit_p99_us: commit.and_then(|commit| commit.p99_us),
        gap_us: record.samples.iter().map(|sample| sample.gap_us).max().unwrap_or(0),
        stuns: record.stuns.len(),
        longest_stun_us: record.stuns.iter().map(|stun| stun.stun_us).max().unwrap_or(0),
        failure: match &record.end {
            End::Failed(why) => Some(why.clone()),
            _ => None,
        },
    }
}
