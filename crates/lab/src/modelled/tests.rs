use std::cell::Cell;

use sim::Device;

use super::*;
use crate::probe::Heartbeat;
use crate::run::{Clock, Phase, PhaseSpan, Quantity};
use crate::runner::{Action, Protocol, Step};
use crate::workload::{Worker, Workload};

const MIB: u64 = 1 << 20;

pub(super) fn step(phase: Phase, action: Action) -> Step {
    Step { phase, label: String::new(), action }
}

fn run_for(phase: Phase, seconds: f64) -> Step {
    step(phase, Action::Run { seconds, warm_up_seconds: 0.0 })
}

fn mixed(outstanding: u32) -> Worker {
    Worker {
        random_percent: 70,
        outstanding,
        working_set_bytes: 8 * MIB,
        ..Worker::random("mixed", 4096, 50)
    }
}

fn whole_protocol() -> Protocol {
    let name = "before".to_string();
    Protocol {
        interval_us: 1_000_000,
        heartbeat: Some(Heartbeat::default()),
        steps: vec![
            step(Phase::Prepare, Action::Prepare { block_bytes: 65536, outstanding: 16 }),
            run_for(Phase::Baseline, 3.0),
            step(Phase::Snapshot, Action::Take { name: name.clone(), count: None, load: true }),
            run_for(Phase::Snapshot, 3.0),
            step(
                Phase::Snapshot,
                Action::Backup {
                    name: name.clone(),
                    block_bytes: 1 << 20,
                    outstanding: 2,
                    bytes: None,
                    limit_seconds: None,
                    load: true,
                },
            ),
            step(Phase::Commit, Action::Commit { name, count: None, limit_seconds: Some(600.0), load: true }),
            step(Phase::Drain, Action::Drain { limit_seconds: Some(600.0) }),
            run_for(Phase::After, 2.0),
        ],
    }
}

fn world() -> Options {
    world_options(Options { device: Device::steady(200_000), ..Options::default() })
}

fn plan(engine: Engine, seed: u64) -> Plan {
    Plan {
        head: Record::head("test", engine.name(), "steady", Clock::Virtual, seed),
        workload: Workload {
            workers: vec![mixed(4), Worker { disk: 1, ..mixed(2) }],
            verify: true,
            ..Workload::default()
        },
        protocol: whole_protocol(),
        path: None,
    }
}

pub(super) fn outcome(engine: Engine, seed: u64) -> Outcome {
    run_engine(engine, vec![64 * MIB, 16 * MIB], world(), plan(engine, seed), RunObserver::none())
}

pub(super) fn phases_of<'a>(record: &'a Record, phases: &[Phase]) -> Vec<&'a PhaseSpan> {
    record.phases.iter().filter(|span| phases.contains(&span.phase)).collect()
}

pub(super) fn figure(record: &Record, phase: Phase, quantity: Quantity) -> f64 {
    let row = record.rows.iter().find(|row| (row.phase, row.quantity) == (phase, quantity));
    row.and_then(|row| row.predicted).unwrap_or_else(|| panic!("no {quantity:?} of {phase:?}"))
}

/// Covers every part of a protocol, on each engine, with every read verified.
#[test]
fn a_whole_protocol_ends_and_every_read_shows_what_was_written() {
    for engine in [Engine::Redo, Engine::Native, Engine::Plain] {
        let Outcome { record, .. } = outcome(engine, 1);
        assert_eq!(record.end, End::Complete, "{}: {:?}", engine.name(), record.notes);
        assert_eq!(figure(&record, Phase::Commit, Quantity::Converged), 1.0);
        assert!(figure(&record, Phase::Baseline, Quantity::Iops) > 10_000.0);
        assert!(figure(&record, Phase::Snapshot, Quantity::StunUs) <= 1000.0);
        assert!(record.beats.len() >= 8 && record.beats.iter().all(|beat| !beat.lost));
        let phases: Vec<Phase> = record.phases.iter().map(|span| span.phase).collect();
        use Phase::{After, Baseline, Commit, Prepare, Snapshot};
        assert_eq!(phases, [Prepare, Baseline, Snapshot, Snapshot, Snapshot, Commit, After]);
        let in_order = record.samples.windows(2).all(|w| w[0].at_us + w[0].interval_us <= w[1].at_us);
        assert!(in_order && record.samples.iter().all(|sample| sample.host.is_some()));
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for engine in [Engine::Redo, Engine::Native] {
        let (one, two, other) = (outcome(engine, 7), outcome(engine, 7), outcome(engine, 8));
        assert_eq!((one.event_hash, &one.record), (two.event_hash, &two.record));
        assert_ne!(one.event_hash, other.event_hash);
    }
}

#[test]
fn runs_on_threads_of_their_own_are_the_same_runs() {
    let alone = outcome(Engine::Native, 3).event_hash;
    let threads: Vec<_> =
        (0..2).map(|_| std::thread::spawn(|| outcome(Engine::Native, 3).event_hash)).collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), alone);
    }
}

#[test]
fn disks_of_hundreds_of_gib_are_made_at_once() {
    for engine in [Engine::Redo, Engine::Native, Engine::Plain] {
        let mut plan = plan(engine, 1);
        plan.workload.workers = (0..12).map(|disk| Worker { disk, ..mixed(1) }).collect();
        plan.workload.verify = false;
        plan.protocol.steps.retain(|step| !matches!(step.action, Action::Backup { .. }));
        for step in &mut plan.protocol.steps {
            if let Action::Run { seconds, .. } = &mut step.action {
                *seconds = 0.2;
            }
        }
        let Outcome { record, .. } =
            run_engine(engine, vec![400 << 30; 12], world(), plan, RunObserver::none());
        assert_eq!(record.end, End::Complete, "{}: {:?}", engine.name(), record.notes);
    }
}

#[test]
fn an_interruption_keeps_what_was_sampled() {
    let observer = RunObserver::none();
    let (flag, seen) = (observer.interrupted.clone(), Rc::new(Cell::new(0)));
    let calls = seen.clone();
    let progress = Rc::new(move |progress: &runner::Progress| {
        calls.set(calls.get() + 1);
        if progress.phase == Phase::Snapshot && progress.at_us > 5_000_000 {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let observer = RunObserver { progress, ..observer };
    let outcome =
        run_engine(Engine::Redo, vec![64 * MIB, 16 * MIB], world(), plan(Engine::Redo, 1), observer);
    let record = outcome.record;
    assert_eq!(record.end, End::Interrupted);
    assert!(seen.get() > 10);
    assert_eq!(record.phases.last().map(|span| span.phase), Some(Phase::Snapshot));
    assert!(figure(&record, Phase::Snapshot, Quantity::Iops) > 0.0);
}
