//! The demo's NBD client and its whole run, against a server in memory.

use std::path::Path;
use std::time::Duration;

use crate::support::nbd_server::{Flavour, NbdServer};
use crate::support::{self, Daemon, Fake};
use api::client::runtime;
use api::error::{ErrorKind, Result};
use api::output::Output;
use lab::demo::nbd::{self, Connection};
use lab::demo::region::{self, Content, Regions};
use lab::demo::report::Report;
use lab::demo::stamp::BLOCK_BYTES;
use lab::demo::wire::Command;
use lab::demo::{self, Plan};
use lab::run::{Phase as Part, Quantity, Record};

const DISK_BYTES: usize = 64 << 20;

fn short() -> Plan {
    let phase = Duration::from_millis(300);
    Plan { disk_bytes: DISK_BYTES as u64, warm_up: phase, baseline: phase, snapshot: phase, after: phase }
}

fn measure(server: &NbdServer) -> Result<Report> {
    recorded(server, None).map(|(report, _)| report)
}

fn recorded(server: &NbdServer, dir: Option<&Path>) -> Result<(Report, Record)> {
    let daemon = Daemon::serving(Fake::new(&server.uri()));
    runtime().unwrap().block_on(demo::measure(&daemon.client(), Output::new(true), &short(), dir))
}

#[test]
fn data_come_back_with_both_kinds_of_reply() {
    for flavour in [Flavour::Simple, Flavour::Structured] {
        let server = NbdServer::start(DISK_BYTES, flavour);
        runtime().unwrap().block_on(async {
            let mut connection = Connection::open(&server.uri(), 4).await.unwrap();
            assert_eq!((connection.size_bytes, connection.read_only), (DISK_BYTES as u64, false));
            let pieces: Vec<Vec<u8>> = (1..5).map(|byte| vec![byte; 700_000]).collect();
            for (number, piece) in pieces.iter().enumerate() {
                connection.write((number * 1_000_000) as u64, piece, 0);
            }
            while !connection.is_idle() {
                nbd::check(&connection.next().await.unwrap()).unwrap();
            }
            for number in 0..4 {
                connection.read(number * 1_000_000, 1_000_000, number);
            }
            while !connection.is_idle() {
                let request = connection.next().await.unwrap();
                let piece = &pieces[request.tag as usize];
                assert_eq!(request.command, Command::Read);
                assert_eq!(request.data[..700_000], piece[..], "{flavour:?}");
                assert!(request.data[700_000..].iter().all(|&byte| byte == 0), "{flavour:?}");
            }
            connection.close().await.unwrap();
        });
    }
}

#[test]
fn a_server_that_sends_garbage_is_an_error() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Garbage);
    let error = runtime().unwrap().block_on(async {
        let mut connection = Connection::open(&server.uri(), 1).await.unwrap();
        connection.read(0, 512, 0);
        connection.next().await.unwrap_err()
    });
    assert!(error.message.contains("magic"), "{error}");
}

#[test]
fn a_disk_is_filled_once_and_known_again() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Structured);
    let regions = Regions::of(DISK_BYTES as u64).unwrap();
    runtime().unwrap().block_on(async {
        let mut connection = Connection::open(&server.uri(), 8).await.unwrap();
        assert_eq!(region::inspect(&mut connection, &regions).await, Ok(Content::ToFill));
        let bar = indicatif::ProgressBar::hidden();
        region::fill(&mut connection, &regions, 1, &bar).await.unwrap();
        assert_eq!(bar.position(), regions.fill_bytes());
        assert_eq!(region::inspect(&mut connection, &regions).await, Ok(Content::Filled));
        server.memory.lock().unwrap()[..BLOCK_BYTES].fill(7);
        assert_eq!(region::inspect(&mut connection, &regions).await, Ok(Content::Foreign));
    });
}

#[test]
fn a_second_run_works_too() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Structured);
    for _ in 0..2 {
        let report = measure(&server).unwrap();
        let phases: Vec<&str> = report.phases.iter().map(|phase| phase.name).collect();
        assert_eq!(phases, ["warm-up", "baseline", "snapshot", "commit", "after"]);
        assert!(report.phases.iter().all(|phase| phase.reads_s > 0.0 && phase.writes_s > 0.0), "{report:?}");
        assert_eq!(
            (report.take_stun_us, report.commit_stun_us),
            (support::state::STUN_US, Some(support::state::STUN_US))
        );
        assert_eq!(report.commit_bytes_moved, support::DELTA_BYTES);
        assert_eq!(report.reads_wrong, 0);
        assert!(report.attach.contains(&server.uri()));
    }
}

#[test]
fn a_run_is_recorded_as_the_lab_does_it() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Structured);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("shown");
    let (report, record) = recorded(&server, Some(&dir)).unwrap();
    let of_rows = |phase, quantity| {
        let mut rows = record.rows.iter().filter(|row| row.phase == phase && row.quantity == quantity);
        rows.next().and_then(|row| row.predicted).unwrap_or_else(|| panic!("no {quantity:?} in {phase:?}"))
    };
    for (name, phase) in [
        ("baseline", Part::Baseline),
        ("snapshot", Part::Snapshot),
        ("commit", Part::Commit),
        ("after", Part::After),
    ] {
        let shown = report.phases.iter().find(|phase| phase.name == name).unwrap();
        let ratio = of_rows(phase, Quantity::Iops) / (shown.reads_s + shown.writes_s);
        assert!((0.5..2.0).contains(&ratio), "{name}: {ratio}");
    }
    assert_eq!(of_rows(Part::Snapshot, Quantity::StunUs), report.take_stun_us as f64);
    assert_eq!(of_rows(Part::Commit, Quantity::HelperBytes), report.commit_bytes_moved as f64);
    let samples: u64 = record.samples.iter().map(|sample| sample.reads).sum();
    assert_eq!(samples, report.reads_checked, "every read is in one sample");
    assert_eq!(lab::runner::read(&dir.join("run.jsonl")).unwrap(), record);
}

#[test]
fn somebody_elses_disk_is_left_alone() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Simple);
    server.memory.lock().unwrap()[..3].copy_from_slice(b"mbr");
    let before = server.memory.lock().unwrap().clone();
    assert_eq!(measure(&server).unwrap_err().kind, ErrorKind::Refused);
    assert!(*server.memory.lock().unwrap() == before);
}

#[test]
fn a_misplaced_block_is_found() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Structured);
    measure(&server).unwrap();
    let copy = server.memory.lock().unwrap().clone();
    let misplacing = NbdServer::start(DISK_BYTES, Flavour::Misplacing);
    *misplacing.memory.lock().unwrap() = copy;
    let report = measure(&misplacing).unwrap();
    assert!(report.reads_wrong > 0 && report.reads_wrong < report.reads_checked / 50, "{report:?}");
}

#[test]
fn a_failing_disk_ends_the_demo() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Failing);
    let error = measure(&server).unwrap_err();
    assert!(error.message.contains("NBD Write of"), "{error}");
}
