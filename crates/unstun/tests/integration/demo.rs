//! The whole demo against the daemon as a process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::location::Datastore;
use api::output::Output;
use blk::Buf;
use lab::compare::Work;
use lab::demo::{self, report::Report};
use lab::real::{UringExecutor, open_disk};
use lab::run::{End, Record};
use rustix::process::Signal;

use crate::support::{Daemon, json};

/// Place of one sector of other data, on a disk that begins with zeros, as one with a file system does.
const OTHER_AT: u64 = 12_345 * 512;

fn work() -> Work {
    Work { disk_bytes: 16 << 20, phase_seconds: 0.4, ..Work::default() }
}

fn measure(folder: &Path, output: Option<&Path>) -> Result<(Report, Vec<Record>)> {
    let client = Client::new(&Datastore::for_client(Some(&folder.join("unstun-data")))?);
    demo::measure(&client, Output::new(true), &work(), output, &Arc::new(AtomicBool::new(false)))
}

#[test]
fn both_stores_are_measured_and_a_second_run_works_too() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), &[]);
    let kept = folder.path().join("kept");
    for _ in 0..2 {
        let (report, records) = measure(folder.path(), Some(&kept)).unwrap();
        assert!(records.iter().all(|record| record.end == End::Complete), "{report:?}");
        let stores: Vec<&str> = report.runs.iter().map(|run| run.store.as_str()).collect();
        assert_eq!(stores, ["native", "redo"]);
        for run in &report.runs {
            let names: Vec<&str> = run.phases.iter().map(|phase| phase.name).collect();
            assert_eq!(names, ["baseline", "snapshot", "commit", "after"], "{run:?}");
            assert!(run.reads_checked > 0 && run.commit_seconds.is_some(), "{run:?}");
        }
        let names: Vec<&str> = report.operations.iter().map(|operation| operation.name).collect();
        assert_eq!(names, ["take", "clone", "revert", "drop"]);
        for (record, name) in records.iter().zip(["native.jsonl", "redo.jsonl"]) {
            assert_eq!(lab::runner::read(&kept.join(name)).unwrap(), *record);
        }
        let uri = report.attach.split("file=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let executor = UringExecutor::new().unwrap();
        assert!(open_disk(&executor, uri).is_ok(), "QEMU can attach as shown: {uri}");
    }
    assert_eq!(daemon.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn a_vm_with_other_data_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), &[]);
    let vm = json(folder.path(), "vm create demo-native --disk 16M --json");
    let uri = vm["disks"][0]["nbd_uri"].as_str().unwrap();
    let write = |uri: &str| {
        let executor = UringExecutor::new().unwrap();
        let disk = open_disk(&executor, uri).unwrap();
        let mut data = Buf::alloc(512);
        data[..3].copy_from_slice(b"own");
        executor.run(async move { disk.write(OTHER_AT, data.freeze()).await }).unwrap();
    };
    write(uri);
    let refused: Error = measure(folder.path(), None).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
    let executor = UringExecutor::new().unwrap();
    let disk = open_disk(&executor, uri).unwrap();
    let (data, result) = executor.run(async move { disk.read(OTHER_AT, Buf::alloc(512)).await });
    result.unwrap();
    assert_eq!(data[..3], *b"own");
    drop(executor);
    assert_eq!(daemon.stop(Signal::TERM).code(), Some(0));
}
