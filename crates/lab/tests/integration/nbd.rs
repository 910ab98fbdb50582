//! The lab's NBD client, and runs over it, against a server in memory that has defects.

use std::path::Path;
use std::time::Duration;

use blk::Buf;
use lab::compare::Work;
use lab::real::{Hooks, Setup, Stack, UringExecutor, open_disk};
use lab::run::{Clock, End, Record};
use lab::runner::{Plan, RunObserver};
use lab::workload::Workload;

use crate::nbd_server::{Flavour, NbdServer};

const DISK_BYTES: usize = 8 << 20;

/// Runs the standard work on the server's disk, with every read checked.
fn run(server: &NbdServer) -> Record {
    let work = Work { disk_bytes: DISK_BYTES as u64, phase_seconds: 0.3, ..Work::default() };
    let hooks = Hooks {
        take: "true".into(),
        commit: "true".into(),
        frozen: Vec::new(),
        limit: Duration::from_secs(60),
    };
    let stack = Stack::Hooks { disks: vec![server.uri()], hooks };
    let setup = Setup { folder: Path::new("/"), program: Path::new("unstun"), disk_bytes: &[] };
    let mut workload = Workload { verify: true, ..work.workload() };
    workload.workers.iter_mut().for_each(|worker| worker.flush_interval_us = 50_000);
    let head = Record::head("test", "hooks", "memory", Clock::Real, 1);
    let plan = Plan { head, workload, protocol: work.protocol(), path: None };
    lab::real::run(&stack, &setup, plan, RunObserver::none())
}

#[test]
fn a_sound_server_passes() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Sound);
    let record = run(&server);
    assert_eq!(record.end, End::Complete);
    assert!(record.samples.iter().map(|sample| sample.reads).sum::<u64>() > 0);
}

#[test]
fn a_misplaced_block_is_found() {
    let record = run(&NbdServer::start(DISK_BYTES, Flavour::Misplacing));
    let End::Failed(why) = record.end else { panic!("{:?}", record.end) };
    assert!(why.contains("shows the stamp of disk 0 sector"), "{why}");
}

#[test]
fn a_disk_that_fails_ends_the_run() {
    let record = run(&NbdServer::start(DISK_BYTES, Flavour::Failing));
    let End::Failed(why) = record.end else { panic!("{:?}", record.end) };
    assert!(why.contains("writing"), "{why}");
}

#[test]
fn a_server_that_sends_garbage_is_an_error() {
    let server = NbdServer::start(DISK_BYTES, Flavour::Garbage);
    let executor = UringExecutor::new().unwrap();
    let disk = open_disk(&executor, &server.uri()).unwrap();
    let (_, result) = executor.run(disk.read(0, Buf::alloc(512)));
    let error = result.unwrap_err();
    assert!(error.cause.contains("magic") || error.cause.contains("reply"), "{error}");
}
