//! Every stack through a whole protocol, with every read verified, and its counters as the mechanisms say.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use sim::{Device, Options};

use super::{Kind, Setup};
use crate::modelled::{self, Outcome, world_options};
use crate::run::{Clock, Counters, End, Phase, Quantity, Record};
use crate::runner::{Action, Plan, Protocol, RunObserver, Step};
use crate::subject::{CommitEnd, Subject};
use crate::workload::{Worker, Workload};

const MIB: u64 = 1 << 20;

fn world() -> Options {
    world_options(Options { device: Device::steady(200_000), ..Options::default() })
}

/// Takes two snapshots under load, reads the older one, commits it, then commits the other.
fn protocol() -> Protocol {
    let step = |phase, action| Step::new(phase, action);
    let backup = Action::Backup {
        name: "s-1".into(),
        block_bytes: 1 << 20,
        outstanding: 2,
        bytes: None,
        limit_seconds: None,
        load: true,
    };
    let take = Action::Take { name: "s".into(), count: Some(2), load: true };
    let commit = Action::Commit { name: "s".into(), count: Some(2), limit_seconds: Some(600.0), load: true };
    Protocol::new(vec![
        step(Phase::Prepare, Action::Prepare { block_bytes: 65536, outstanding: 16 }),
        step(Phase::Baseline, Action::run(0.05)),
        step(Phase::Snapshot, Action::take("first")),
        step(Phase::Snapshot, Action::run(0.05)),
        step(Phase::Snapshot, take),
        step(Phase::Snapshot, Action::run(0.05)),
        step(Phase::Snapshot, backup),
        step(Phase::Commit, commit),
        step(Phase::Commit, Action::commit("first", 600.0)),
        step(Phase::Drain, Action::Drain { limit_seconds: Some(600.0) }),
        step(Phase::After, Action::run(0.05)),
    ])
}

fn outcome(kind: Kind, block_bytes: u32, seed: u64) -> Outcome {
    outcome_of(kind, Setup::default(), block_bytes, seed)
}

fn outcome_of(kind: Kind, setup: Setup, block_bytes: u32, seed: u64) -> Outcome {
    let mixed = Worker {
        random_percent: 70,
        outstanding: 4,
        working_set_bytes: 8 * MIB,
        flush_interval_us: 300_000,
        ..Worker::random("mixed", block_bytes, 50)
    };
    let plan = Plan {
        head: Record::head("test", kind.name(), "steady", Clock::Virtual, seed),
        workload: Workload {
            workers: vec![mixed.clone(), Worker { disk: 1, outstanding: 2, ..mixed }],
            verify: true,
            ..Workload::default()
        },
        protocol: protocol(),
        path: None,
    };
    let make = move |env: Env, _| async move {
        Ok(Rc::new(kind.create(&env, &[16 * MIB, 8 * MIB + 4096], setup).await?) as Rc<dyn Subject>)
    };
    modelled::run(world(), plan, RunObserver::none(), make)
}

#[test]
fn every_read_shows_what_was_written() {
    for kind in Kind::ALL {
        for (block_bytes, seed) in [(4096, 1), (1536, 2), (40 << 10, 3)] {
            let record = outcome(kind, block_bytes, seed).record;
            assert_eq!(record.end, End::Complete, "{} {block_bytes}: {:?}", kind.name(), record.rows);
            let converged = record.rows.iter().filter(|row| row.quantity == Quantity::Converged);
            assert!(converged.clone().count() >= 2, "{}", kind.name());
            assert!(converged.clone().all(|row| row.predicted == Some(1.0)), "{}", kind.name());
        }
    }
}

/// Units of other sizes than the default, through the same protocol.
#[test]
fn other_units_show_what_was_written() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.units().is_some()) {
        let units = kind.units().unwrap();
        for unit_bytes in [*units.start(), 256 << 10] {
            let setup = Setup { unit_bytes: Some(unit_bytes), ..Setup::default() };
            let record = outcome_of(kind, setup, 4096, 1).record;
            assert_eq!(record.end, End::Complete, "{} {unit_bytes}: {:?}", kind.name(), record.rows);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for kind in Kind::ALL {
        let [one, two] = [outcome(kind, 4096, 5), outcome(kind, 4096, 5)];
        assert_eq!((one.event_hash, &one.record), (two.event_hash, &two.record), "{}", kind.name());
    }
}

#[test]
fn every_constant_names_its_source() {
    for kind in Kind::ALL {
        assert!(
            kind.constants(Setup::default()).iter().all(|constant| !constant.note.is_empty()),
            "{}",
            kind.name()
        );
        assert!(!kind.left_out().is_empty());
    }
}

/// Returns what each step did to the storage.
pub(super) fn counted<F>(kind: Kind, steps: impl FnOnce(Rc<dyn Subject>) -> F + 'static) -> F::Output
where
    F: Future<Output: 'static> + 'static,
{
    let world = sim::SimWorld::new(1, world());
    let run = world.run(move |env| async move {
        let peer: Rc<dyn Subject> = Rc::new(kind.create(&env, &[64 * MIB], Setup::default()).await.unwrap());
        steps(peer).await
    });
    run.expect("no power cut")
}

pub(super) async fn write(subject: &Rc<dyn Subject>, offset: u64, len: usize) -> Counters {
    let before = subject.counters().unwrap();
    disk(subject).write(offset, Buf::zeroed(len).freeze()).await.unwrap();
    subject.counters().unwrap().since(&before).unwrap()
}

pub(super) async fn read(subject: &Rc<dyn Subject>, offset: u64, len: usize) -> Counters {
    let before = subject.counters().unwrap();
    disk(subject).read(offset, Buf::alloc(len)).await.1.unwrap();
    subject.counters().unwrap().since(&before).unwrap()
}

fn disk(subject: &Rc<dyn Subject>) -> Rc<dyn Volume> {
    subject.disks().remove(0)
}

pub(super) async fn commit(subject: &Rc<dyn Subject>, name: &str) -> Counters {
    let before = subject.counters().unwrap();
    assert_eq!(subject.commit(name).await.unwrap(), CommitEnd::Done);
    subject.counters().unwrap().since(&before).unwrap()
}
