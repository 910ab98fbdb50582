use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io::Write;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Error, Local, Result};
use sim::{Device, Options, SimWorld};

use super::*;
use crate::plain::Plain;
use crate::probe::Heartbeat;
use crate::run::{Clock, Counters, Phase, Quantity, Stun};
use crate::subject::{CommitEnd, CommitProgress};
use crate::workload::Worker;

const SECOND_US: u64 = 1_000_000;
const DISK_BYTES: u64 = 16 << 20;

/// The subject's behaviour.
#[derive(Debug, Clone, Copy, Default)]
struct Manners {
    take_fails: bool,
    take_hangs: bool,
    commit_fails: bool,
    gives_up: bool,
    /// Rounds of a commit; each takes a second and moves one MiB.
    rounds: u64,
    stun_us: u64,
}

/// A flat disk with snapshot operations that may misbehave.
struct Fake {
    env: Env,
    disk: Rc<dyn Volume>,
    manners: Manners,
    helpers: RefCell<Vec<u64>>,
    stuns: RefCell<Vec<Stun>>,
    closed: Rc<Cell<bool>>,
}

impl Fake {
    async fn stun(&self, cause: &str) {
        let (at_us, stun_us) = (self.env.now_ns() / 1000, self.manners.stun_us);
        self.env.sleep_us(stun_us).await;
        self.stuns.borrow_mut().push(Stun { at_us, stun_us, disk: None, cause: cause.into() });
    }
}

impl Subject for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn disks(&self) -> Vec<Rc<dyn Volume>> {
        vec![self.disk.clone()]
    }

    fn counters(&self) -> Option<Counters> {
        let us = self.env.now_ns() / 1000;
        Some(Counters { reads: us / 500, writes: us / 2000, ..Counters::default() })
    }

    fn take_stuns(&self) -> Vec<Stun> {
        self.stuns.take()
    }

    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(async move {
            self.stun("take").await;
            match self.manners {
                Manners { take_fails: true, .. } => Err(Error::refused(name, "declined")),
                Manners { take_hangs: true, .. } => pending().await,
                _ => Ok(()),
            }
        })
    }

    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>> {
        Box::pin(async move {
            for round in 0..self.manners.rounds {
                self.env.sleep_us(SECOND_US).await;
                self.helpers.borrow_mut().push((round + 1) << 20);
            }
            match self.manners {
                Manners { commit_fails: true, .. } => Err(Error::damaged(name, "a table is torn")),
                Manners { gives_up: true, .. } => Ok(CommitEnd::GaveUp("10 rounds".into())),
                _ => Ok(CommitEnd::Done),
            }
        })
    }

    fn progress(&self) -> CommitProgress {
        CommitProgress { helper_bytes: self.helpers.borrow().clone(), ..CommitProgress::default() }
    }

    fn close(&self) -> Local<'_, Result<()>> {
        self.closed.set(true);
        Box::pin(async { Ok(()) })
    }
}

fn reader() -> Worker {
    Worker::random("reader", 4096, 100)
}

fn steps(json: &str) -> Vec<Step> {
    serde_json::from_str(json).unwrap()
}

const USUAL: &str = r#"[
    {"do": "run", "phase": "baseline", "seconds": 3, "warm_up_seconds": 0.5, "label": "steady"},
    {"do": "take", "phase": "snapshot", "name": "s"},
    {"do": "run", "phase": "snapshot", "seconds": 2},
    {"do": "commit", "phase": "commit", "name": "s", "limit_seconds": 5},
    {"do": "drain", "phase": "drain", "limit_seconds": 30},
    {"do": "run", "phase": "after", "seconds": 1}
]"#;

fn plan(json: &str) -> Plan {
    Plan {
        head: Record::head("test", "fake", "steady", Clock::Virtual, 4),
        workload: Workload { workers: vec![reader()], ..Workload::default() },
        protocol: Protocol {
            interval_us: SECOND_US,
            heartbeat: Some(Heartbeat::default()),
            steps: steps(json),
        },
        path: None,
    }
}

/// Runs a plan on a disk whose I/Os take a millisecond. `spoil` adds faults.
fn run_on(manners: Manners, plan: Plan, spoil: impl FnOnce(&SimWorld)) -> Record {
    let world = SimWorld::new(4, Options { device: Device::steady(1_000_000), ..Options::default() });
    world.write_file("disk", &vec![0; DISK_BYTES as usize]);
    spoil(&world);
    let (closed, wanted) = (Rc::new(Cell::new(false)), plan.workload.workers.len() == 1);
    let seen = closed.clone();
    let record = world.run(move |env| async move {
        let file = env.open_root("/").unwrap().open("disk", OpenMode::Write).await.unwrap();
        let disk = Rc::new(Plain::new(file, DISK_BYTES));
        let (helpers, stuns) = (RefCell::default(), RefCell::default());
        let fake = Fake { env: env.clone(), disk, manners, helpers, stuns, closed };
        run(&env, Rc::new(fake), plan, RunObserver::none()).await
    });
    assert!(seen.get() || !wanted, "a subject is closed whatever happened");
    record.expect("no power cut")
}

fn figures(record: &Record, phase: Phase, quantity: Quantity) -> Vec<f64> {
    let rows = record.rows.iter().filter(|row| (row.phase, row.quantity) == (phase, quantity));
    rows.filter_map(|row| row.predicted).collect()
}

#[test]
fn each_phase_has_its_rates_after_the_warm_up_and_host_ratios() {
    let record = run_on(Manners::default(), plan(USUAL), |_| {});
    assert_eq!(record.end, End::Complete);
    assert_eq!(record.phases[0].label, "steady");
    for phase in [Phase::Baseline, Phase::Snapshot, Phase::After] {
        let rates = figures(&record, phase, Quantity::ReadsPerS);
        assert_eq!(rates.len(), 1);
        assert!((998.0..=1001.0).contains(&rates[0]), "{phase:?}: {rates:?}");
        let ratio = figures(&record, phase, Quantity::HostReadRatio)[0];
        assert!((1.99..2.01).contains(&ratio), "{phase:?}: {ratio}");
        assert_eq!(figures(&record, phase, Quantity::LatencyUs), [1000.0]);
    }
    // The take has no duration, and so no rates.
    let seconds = figures(&record, Phase::Snapshot, Quantity::Seconds);
    assert_eq!(seconds, [0.0]);
    assert!(!record.phases.iter().any(|span| span.phase == Phase::Drain), "nothing was left to drain");
}

#[test]
fn rounds_stuns_and_lost_pings_are_figures() {
    let manners = Manners { rounds: 3, stun_us: 1_200_000, ..Manners::default() };
    let record = run_on(manners, plan(USUAL), |_| {});
    assert_eq!(figures(&record, Phase::Commit, Quantity::HelperBytes), [1048576.0, 2097152.0, 3145728.0]);
    let rows = record.rows.iter().filter(|row| row.quantity == Quantity::Seconds && row.note == FIRST_ROUND);
    let first: Vec<f64> = rows.filter_map(|row| row.predicted).collect();
    assert_eq!(first, [1.0]);
    assert_eq!(figures(&record, Phase::Commit, Quantity::Converged), [1.0]);
    assert_eq!(figures(&record, Phase::Snapshot, Quantity::StunUs), [1_200_000.0]);
    assert_eq!(record.stuns[0].at_us, 3_000_000);
    assert_eq!(figures(&record, Phase::Snapshot, Quantity::PingsLost), [2.0, 0.0]);
}

#[test]
fn in_real_time_a_read_that_takes_longer_than_a_second_is_a_lost_ping() {
    let mut plan = plan(r#"[{"do": "run", "phase": "baseline", "seconds": 5.5}]"#);
    plan.head.clock = Clock::Real;
    plan.protocol.heartbeat = None;
    let record = run_on(Manners::default(), plan, |world| {
        // The fault begins after two and a half seconds.
        let slow = sim::Action::Delay { ns: 2_000_000_000 };
        world.add_fault(sim::Fault::nth(2500, slow).of(sim::OpKind::Read).and_all_later());
    });
    let lost: Vec<bool> = record.beats.iter().map(|beat| beat.lost).collect();
    assert_eq!(lost[..5], [false, false, false, true, true]);
    assert_eq!(record.beats[4].at_us, 4 * SECOND_US);
    assert_eq!(figures(&record, Phase::Baseline, Quantity::PingsLost), [2.0]);
}

#[test]
fn a_commit_that_does_not_converge_is_a_figure_and_drains_without_load() {
    let record = run_on(Manners { rounds: 9, ..Manners::default() }, plan(USUAL), |_| {});
    assert_eq!(record.end, End::Complete);
    assert_eq!(figures(&record, Phase::Commit, Quantity::Converged), [0.0]);
    assert!(record.rows.iter().any(|row| row.note == "not converged after 5 s"));
    assert_eq!(figures(&record, Phase::Drain, Quantity::Converged), [1.0]);
    let seconds = figures(&record, Phase::Drain, Quantity::Seconds)[0];
    assert!((3.9..=4.0).contains(&seconds), "{seconds}");
    assert_eq!(figures(&record, Phase::Drain, Quantity::Iops), [] as [f64; 0]);
    let gave_up = run_on(Manners { gives_up: true, ..Manners::default() }, plan(USUAL), |_| {});
    assert!(gave_up.rows.iter().any(|row| row.note == "gave up: 10 rounds"));
    assert_eq!(gave_up.end, End::Complete);
}

#[test]
fn verbs_that_fail_or_hang_end_the_run_with_what_was_sampled() {
    let of = |manners| run_on(manners, plan(USUAL), |_| {});
    for (manners, words) in [
        (Manners { take_fails: true, ..Manners::default() }, "take of s: s: declined"),
        (Manners { take_hangs: true, ..Manners::default() }, "take of s: no end after 900 s"),
        (Manners { commit_fails: true, ..Manners::default() }, "commit: s: a table is torn"),
    ] {
        let record = of(manners);
        assert_eq!(record.end, End::Failed(words.into()));
        assert_eq!(figures(&record, Phase::Baseline, Quantity::Iops).len(), 1);
    }
}

#[test]
fn an_io_that_fails_ends_the_run() {
    let record = run_on(Manners::default(), plan(USUAL), |world| {
        let broken = sim::Action::Fail(blk::Errno::EIO);
        world.add_fault(sim::Fault::nth(1500, broken).of(sim::OpKind::Read));
    });
    let End::Failed(text) = &record.end else { panic!("{:?}", record.end) };
    assert!(text.contains("disk 0: reading 4096 bytes at"), "{text}");
    assert_eq!(record.phases.len(), 1);
    let rates = figures(&record, Phase::Baseline, Quantity::ReadsPerS);
    assert!(rates.len() == 1 && rates[0] > 500.0);
}

#[test]
fn a_workload_that_does_not_fit_and_an_interval_of_nothing_are_refused() {
    let mut wrong = plan(USUAL);
    wrong.workload.workers.push(Worker { disk: 1, ..reader() });
    let record = run_on(Manners::default(), wrong, |_| {});
    assert_eq!(record.end, End::Failed("worker \"reader\": disk = 1: there are 1 disks, from 0".into()));
    let refusal = |change: fn(&mut Protocol)| {
        let mut protocol = plan(USUAL).protocol;
        change(&mut protocol);
        protocol.check().unwrap_err()
    };
    assert_eq!(refusal(|p| p.interval_us = 0), "interval_us = 0: 1000 at least");
    assert!(
        refusal(|p| p.heartbeat = Some(Heartbeat { interval_us: 0, ..Heartbeat::default() }))
            .contains("heart")
    );
    let nothing = r#"[{"do": "prepare", "phase": "prepare", "block_bytes": 0}]"#;
    assert!(steps(nothing)[0].title() == "prepare");
    let wrong = Protocol { steps: steps(nothing), ..plan(USUAL).protocol };
    assert!(wrong.check().unwrap_err().starts_with("step 1 (prepare): block_bytes = 0"));
    assert!(refusal(|p| p.steps[0].action = Action::Idle { seconds: f64::NAN }).contains("NaN"));
}

#[test]
fn a_run_is_on_file_while_it_goes_and_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let manners = Manners { rounds: 3, stun_us: 1_200_000, ..Manners::default() };
    let record = run_on(manners, Plan { path: Some(path.clone()), ..plan(USUAL) }, |_| {});
    assert_eq!(read(&path).unwrap(), record);
    // A file cut anywhere after its head is a shorter run.
    let bytes = std::fs::read(&path).unwrap();
    let head = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    for len in (head + 1..bytes.len() - 1).step_by(97) {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let cut = read(&path).unwrap();
        assert_eq!(cut.end, End::Interrupted);
        assert!(record.samples.starts_with(&cut.samples));
        assert!(cut.phases.len() <= record.phases.len());
    }
    std::fs::write(&path, &bytes[..head / 2]).unwrap();
    assert!(read(&path).is_err());
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"{\"mark\": {\"at_us\": 1, \"text\": \"x\"}}\n").unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("line 1"));
}

#[test]
fn steps_refuse_what_they_do_not_know() {
    let parse = |text: &str| serde_json::from_str::<Step>(text).map_err(|e| e.to_string());
    assert!(parse(r#"{"do": "run", "phase": "after", "seconds": 1}"#).is_ok());
    assert!(parse(r#"{"do": "run", "phase": "after", "secnds": 1}"#).unwrap_err().contains("secnds"));
    assert!(parse(r#"{"do": "walk", "phase": "after"}"#).unwrap_err().contains("walk"));
    assert!(parse(r#"{"do": "drain", "phase": "later"}"#).unwrap_err().contains("later"));
}

#[test]
fn a_scaled_run_is_at_full_scale_and_on_file_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let manners = Manners { rounds: 3, stun_us: 1_200_000, ..Manners::default() };
    let plain = run_on(manners, plan(USUAL), |_| {});
    let Plan { head, .. } = plan(USUAL);
    let head = Record { time_scale: 64, ..head };
    let scaled = run_on(manners, Plan { head, path: Some(path.clone()), ..plan(USUAL) }, |_| {});
    assert_eq!(read(&path).unwrap(), scaled);
    let commit =
        |record: &Record| record.phases.iter().find(|span| span.phase == Phase::Commit).cloned().unwrap();
    assert_eq!(commit(&scaled).lasts_us(), 64 * commit(&plain).lasts_us());
    let figure = |record: &Record, quantity| record.figure(Phase::Commit, quantity).unwrap();
    for (quantity, factor) in
        [(Quantity::Seconds, 64.0), (Quantity::HelperBytes, 64.0), (Quantity::Iops, 1.0)]
    {
        assert_eq!(figure(&scaled, quantity), factor * figure(&plain, quantity), "{quantity:?}");
    }
    assert_eq!(scaled.stuns[0].stun_us, plain.stuns[0].stun_us);
    assert_eq!(scaled.stuns[0].at_us, 64 * plain.stuns[0].at_us);
}
