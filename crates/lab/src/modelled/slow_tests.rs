//! Our engine's commit beside a guest, on storage with slow access and on fast storage.

use super::tests::{figure, step};
use super::*;
use crate::run::{Clock, Phase, Quantity};
use crate::runner::{Action, Protocol, Step};
use crate::storage::StorageModel;
use crate::workload::{Worker, Workload};

/// Bytes that the workers write, and that the delta holds when it is committed.
const FILE_BYTES: u64 = 256 << 20;
const NAME: &str = "before";

fn steps(seconds: f64, limit_seconds: f64) -> Vec<Step> {
    let run = |phase| step(phase, Action::Run { seconds, warm_up_seconds: 0.0 });
    let name = || NAME.to_string();
    vec![
        run(Phase::Baseline),
        step(Phase::Snapshot, Action::Take { name: name(), count: None, load: false }),
        run(Phase::Snapshot),
        step(
            Phase::Commit,
            Action::Commit { name: name(), count: None, limit_seconds: Some(limit_seconds), load: true },
        ),
    ]
}

/// Two 10K disks, mirrored, without a cache.
const SLOW: &str = "sas-10k-pair";

fn play(storage: &str, worker: Worker, disk_bytes: u64, steps: Vec<Step>) -> Record {
    let head = Record::head("slow", "redo", storage, Clock::Virtual, 1);
    let storage = StorageModel::named(storage).expect("it ships").storage();
    let options = world_options(Options { storage: Some(storage), ..Options::default() });
    let plan = Plan {
        head,
        workload: Workload { workers: vec![worker], repeating: true, ..Workload::default() },
        protocol: Protocol { interval_us: 1_000_000, heartbeat: None, steps },
        path: None,
    };
    let record = run_engine(Engine::Redo, vec![disk_bytes], options, plan, RunObserver::none()).record;
    assert_eq!(record.end, End::Complete, "{:?}", record.notes);
    record
}

fn random(read_percent: u8, outstanding: u32) -> Worker {
    Worker { outstanding, align_bytes: 4096, ..Worker::random("guest", 4096, read_percent) }
}

/// The guest saturates the disks from the begin of the commit to its end. A piece of 64 KiB is two commands of the
/// mover, which may issue one for eight of the guest's, some 600 a second: 256 MiB take 110 s. They take more where the
/// guest has one I/O under way, because then even a single piece needs pauses.
#[test]
fn a_commit_under_a_saturating_guest_ends_and_leaves_it_most_of_the_device() {
    for outstanding in [1, 8, 32] {
        let record = commit_full_delta(SLOW, outstanding, 300.0);
        let [before, commit] =
            [Phase::Snapshot, Phase::Commit].map(|phase| figure(&record, phase, Quantity::Iops));
        assert!(commit > 0.6 * before, "{outstanding} under way: {commit} of {before} I/Os a second");
    }
}

/// Commits a delta that holds the guest's whole range when the commit begins.
fn commit_full_delta(storage: &str, outstanding: u32, limit_seconds: f64) -> Record {
    let worker = Worker { working_set_bytes: FILE_BYTES, ..random(60, outstanding) };
    let fill = step(Phase::PrepareSnapshot, Action::Prepare { block_bytes: 65_536, outstanding: 1 });
    let mut steps = steps(20.0, limit_seconds);
    steps.insert(2, fill);
    let record = play(storage, worker, 2 * FILE_BYTES, steps);
    assert_eq!(figure(&record, Phase::Commit, Quantity::Converged), 1.0, "{outstanding} under way");
    record
}

/// The commit uses the capacity that the guest can spare: it moves 256 MiB in 5 s. One piece at a time with pauses
/// would take more than 15 s.
#[test]
fn a_commit_on_storage_that_bears_more_takes_more() {
    for outstanding in [1, 32] {
        let record = commit_full_delta("v7000-ssd", outstanding, 5.0);
        let [before, commit] =
            [Phase::Snapshot, Phase::Commit].map(|phase| figure(&record, phase, Quantity::Iops));
        assert!(commit > 0.75 * before, "{outstanding} under way: {commit} of {before} I/Os a second");
    }
}

/// First writes all over a large disk cause writes of thousands of tables, each of them a seek.
#[test]
fn no_burst_of_tables_stands_before_the_guest() {
    let record = play(SLOW, random(50, 4), 8 << 30, steps(90.0, 5.0));
    let writes = record.samples.iter().map(|sample| sample.writes).sum::<u64>();
    assert!(writes > 3 * 8192, "{writes} are too few for rounds of tables of their own");
    let gap_us = record.samples.iter().map(|sample| sample.gap_us).max().expect("samples");
    assert!(gap_us < 100_000, "{gap_us} us without a completion");
}
