//! Our engine on storage that is slow to get to its data: two 10K disks, mirrored, without a cache.

use super::tests::step;
use super::*;
use crate::run::{Clock, Phase};
use crate::runner::{Action, Protocol, Step};
use crate::storage::StorageModel;
use crate::workload::{Worker, Workload};

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

fn play(worker: Worker, disk_bytes: u64, steps: Vec<Step>) -> Record {
    let storage = StorageModel::named("sas-10k-pair").expect("it ships").storage();
    let options = world_options(Options { storage: Some(storage), ..Options::default() });
    let plan = Plan {
        head: Record::head("slow", "redo", "sas-10k-pair", Clock::Virtual, 1),
        workload: Workload { workers: vec![worker], repeating: true, ..Workload::default() },
        protocol: Protocol { interval_us: 1_000_000, heartbeat: None, steps },
        path: None,
    };
    let record = run_engine(Engine::Redo, vec![disk_bytes], options, plan, Audience::none()).record;
    assert_eq!(record.end, End::Complete, "{:?}", record.notes);
    record
}

fn random(read_percent: u8, outstanding: u32) -> Worker {
    Worker { outstanding, align_bytes: 4096, ..Worker::random("guest", 4096, read_percent) }
}

/// First writes all over a large disk leave thousands of tables to be written, each of them a seek.
#[test]
fn no_burst_of_tables_stands_before_the_guest() {
    let record = play(random(50, 4), 8 << 30, steps(90.0, 5.0));
    let writes = record.samples.iter().map(|sample| sample.writes).sum::<u64>();
    assert!(writes > 3 * 8192, "{writes} are too few for rounds of tables of their own");
    let gap_us = record.samples.iter().map(|sample| sample.gap_us).max().expect("samples");
    assert!(gap_us < 100_000, "{gap_us} us without a completion");
}
