//! Stacks of this machine as subjects: data is correct, operations have their effect, and none of them hangs.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use blk::Buf;
use blk::volume::Volume;
use lab::real::{Hooks, Pool, Setup, Stack, UringExecutor, VolumeKind};
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

/// Reports that the running test cannot run here. `scripts/test.sh` counts it as skipped, and not as passed.
fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    // Unlike `println!`, this is not captured. With one test at a time the line has the test's name before it.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {reason}");
}

/// Checks that a snapshot shows its own state while the disk is written, twice in a chain.
async fn frozen_round_trip(subject: Rc<dyn Subject>) {
    let disk = subject.disks().remove(0);
    for (n, name) in ["one-1", "two.2"].into_iter().enumerate() {
        write(&disk, 0, n as u8 + 1).await;
        disk.clone().flush().await.unwrap();
        subject.take(name).await.unwrap();
        write(&disk, 0, n as u8 + 2).await;
        disk.clone().flush().await.unwrap();
        let (frozen, held) = subject.frozen(name).await.unwrap();
        assert_eq!(frozen[0].info().size_bytes, SIZE);
        assert!(shows(&frozen[0], 0, n as u8 + 1).await && shows(&disk, 0, n as u8 + 2).await, "{name}");
        drop((frozen, held));
    }
    assert!(subject.take("a/b").await.unwrap_err().cause.contains("letters, digits"));
    for name in ["one-1", "two.2"] {
        assert_eq!(subject.commit(name).await.unwrap(), CommitEnd::Done);
        assert!(shows(&disk, 0, 3).await);
        assert!(subject.frozen(name).await.is_err(), "{name} is gone");
    }
    drop(disk);
    subject.close().await.unwrap();
}

/// Runs both round trips on a stack, each in a folder of its own, which has nothing of the stack afterwards. Skips a
/// machine that lacks something.
fn plays(stack: &Stack) {
    if let Err(error) = stack.check() {
        assert!(error.cause.contains("this machine lacks"), "{error}");
        return skip(&error.to_string());
    }
    let executor = UringExecutor::new().unwrap();
    let folder = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (one, other) = (folder(), folder());
    executor.run(round_trip(open(stack, &executor, one.path())));
    executor.run(frozen_round_trip(open(stack, &executor, other.path())));
    for folder in [one, other] {
        assert!(!folder.path().join("pool.img").exists());
        let devices =
            Command::new("losetup").args(["--noheadings", "--output", "BACK-FILE"]).output().unwrap();
        let devices = String::from_utf8_lossy(&devices.stdout).into_owned();
        assert!(!devices.contains(folder.path().to_str().unwrap()), "{devices}");
        // Fails while something is mounted in it.
        folder.close().unwrap();
    }
}

#[test]
fn btrfs_takes_and_removes_snapshots_of_a_subvolume() {
    plays(&Stack::Volume(VolumeKind::Btrfs));
}

#[test]
fn lvm_takes_and_removes_thin_snapshots() {
    plays(&Stack::Volume(VolumeKind::LvmThin));
}

#[test]
fn zfs_takes_and_destroys_snapshots_of_a_zvol() {
    plays(&Stack::Volume(VolumeKind::Zfs));
}

/// A cluster of one node, until this is dropped.
struct Cluster(tempfile::TempDir);

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/ceph-cluster.sh");

impl Cluster {
    fn script(&self, verb: &str) {
        let status = Command::new(CLUSTER).arg(verb).arg(self.0.path().join("ceph")).status().unwrap();
        assert!(status.success(), "{CLUSTER} {verb}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.script("stop");
    }
}

#[test]
fn rbd_takes_and_removes_snapshots_of_an_image() {
    if Command::new("ceph-osd").arg("--version").output().is_err() {
        return skip("no ceph-osd; `make test-all` installs it");
    }
    let cluster = Cluster(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    cluster.script("start");
    let conf = cluster.0.path().join("ceph/ceph.conf").display().to_string();
    plays(&Stack::Rbd(Pool::parse(&format!("vms:conf={conf}")).unwrap()));
    let left = Command::new("rbd").args(["--conf", &conf, "ls", "vms"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "the images are gone");
    let absent = Stack::Rbd(Pool::parse(&format!("absent:conf={conf}")).unwrap()).check().unwrap_err();
    assert!(absent.cause.contains("absent does not answer") && absent.cause.contains("--rbd"), "{absent}");
}

#[test]
fn earlier_names_are_accepted() {
    assert_eq!(Stack::by_name("qemu:extended_l2").unwrap().name(), "qemu-extl2");
    let error = Stack::by_name("vsan").unwrap_err();
    for name in ["qemu-extl2", "btrfs", "lvm-thin", "zfs", "rbd", "hooks"] {
        assert!(error.cause.contains(name), "{error}");
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
