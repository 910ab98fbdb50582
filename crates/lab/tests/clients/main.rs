//! Stacks of this machine as subjects: data is correct, operations have their effect, and none of them hangs.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use blk::Buf;
use blk::volume::Volume;
use lab::real::{Hooks, Setup, Stack, UringExecutor};
use lab::subject::{CommitEnd, Subject};

const SIZE: u64 = 64 << 20;
const PIECE: u64 = 64 << 10;

fn open(stack: &Stack, executor: &UringExecutor, folder: &Path) -> Rc<dyn Subject> {
    let setup = Setup { folder, program: Path::new("unstun"), disk_bytes: &[SIZE] };
    stack.open(executor, &setup).unwrap_or_else(|e| panic!("{}: {e}", stack.name()))
}

async fn write(disk: &Rc<dyn Volume>, offset: u64, byte: u8) {
    let mut data = Buf::alloc(PIECE as usize);
    data.fill(byte);
    disk.clone().write(offset, data.freeze()).await.unwrap();
}

async fn shows(disk: &Rc<dyn Volume>, offset: u64, byte: u8) -> bool {
    let (data, result) = disk.clone().read(offset, Buf::alloc(PIECE as usize)).await;
    result.unwrap();
    data.iter().all(|b| *b == byte)
}

/// Writes, takes a snapshot, overwrites, commits, and checks the data after each step.
async fn round_trip(subject: Rc<dyn Subject>) {
    let disk = subject.disks().remove(0);
    assert_eq!(disk.info().size_bytes, SIZE);
    for n in 0..16 {
        write(&disk, n * PIECE, n as u8 + 1).await;
    }
    subject.take("first").await.unwrap();
    for n in 8..24 {
        write(&disk, n * PIECE, n as u8 + 101).await;
    }
    disk.clone().flush().await.unwrap();
    assert_eq!(subject.commit("first").await.unwrap(), CommitEnd::Done);
    for n in 0..24 {
        let byte = if n < 8 { n as u8 + 1 } else { n as u8 + 101 };
        assert!(shows(&disk, n * PIECE, byte).await, "piece {n}");
    }
    drop(disk);
    subject.close().await.unwrap();
}

#[test]
fn qemu_takes_and_commits_by_its_own_means() {
    for extended_l2 in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let executor = UringExecutor::new().unwrap();
        let subject = open(&Stack::Qemu { extended_l2 }, &executor, folder.path());
        executor.run(round_trip(subject));
        assert!(!folder.path().join("first.qcow2").exists(), "the overlay is gone after its commit");
    }
}

#[test]
fn reflinks_work_or_say_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let executor = UringExecutor::new().unwrap();
    let setup = Setup { folder: folder.path(), program: Path::new("unstun"), disk_bytes: &[SIZE] };
    match Stack::Reflink.open(&executor, &setup) {
        Ok(subject) => executor.run(round_trip(subject)),
        Err(error) => assert!(error.cause.contains("XFS"), "{error}"),
    }
}

fn hooks(folder: &Path, take: &str, commit: &str) -> Stack {
    let disk = folder.join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let limit = Duration::from_millis(300);
    let hooks = Hooks { take: take.into(), commit: commit.into(), frozen: Vec::new(), limit };
    Stack::Hooks { disks: vec![disk.display().to_string()], hooks }
}

#[test]
fn hooks_are_told_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let executor = UringExecutor::new().unwrap();
    let marker = folder.path().join("taken");
    let take = format!("echo $UNSTUN_SNAPSHOT > {}", marker.display());
    let subject = open(&hooks(folder.path(), &take, "true"), &executor, folder.path());
    executor.run(round_trip(subject));
    assert_eq!(std::fs::read_to_string(marker).unwrap(), "first\n");
}

#[test]
fn a_hook_that_hangs_or_fails_is_an_error_with_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let executor = UringExecutor::new().unwrap();
    let stack = hooks(folder.path(), "echo no such VM >&2; exit 2", "echo begun; sleep 1000");
    let subject = open(&stack, &executor, folder.path());
    executor.run(async move {
        let refused = subject.take("first").await.unwrap_err();
        assert!(refused.cause.contains("no such VM"), "{refused}");
        let hung = subject.commit("first").await.unwrap_err();
        assert!(hung.cause.contains("time limit") && hung.cause.contains("begun"), "{hung}");
    });
}

#[test]
fn a_server_that_goes_away_fails_what_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let socket = folder.path().join("nbd.sock");
    let mut server = Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&socket)
        // The delay keeps requests under way when the server is killed.
        .args(["--filter=delay", "file"])
        .arg(&disk)
        .arg("rdelay=60")
        .spawn()
        .unwrap();
    while !socket.exists() {
        std::thread::yield_now();
    }
    let executor = UringExecutor::new().unwrap();
    let target = format!("nbd+unix:///?socket={}", socket.display());
    let limit = Duration::from_secs(9);
    let hooks = Hooks { take: "true".into(), commit: "true".into(), frozen: Vec::new(), limit };
    let subject = open(&Stack::Hooks { disks: vec![target], hooks }, &executor, folder.path());
    executor.run(async move {
        let disk = subject.disks().remove(0);
        let reads = (0..8).map(|n| disk.clone().read(n * PIECE, Buf::alloc(4096)));
        let under_way = futures_util::future::join_all(reads);
        server.kill().unwrap();
        let ended = under_way.await;
        assert!(ended.iter().all(|(_, result)| result.is_err()));
        server.wait().unwrap();
        assert!(disk.clone().flush().await.is_err(), "nothing more is accepted");
    });
}
