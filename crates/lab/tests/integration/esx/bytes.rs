//! Checks that no data is lost: stamped sectors through takes, writes and every way of committing, in virtual time and
//! on files.

use std::rc::Rc;

use blk::layer::{Layer, Where};
use blk::reactor::OpenMode;
use blk::uring::UringReactor;
use blk::{Buf, Dir, Env, Executor, SECTOR};
use lab::subject::{CommitEnd, Subject};
use lab::vmware::rules::{Hypothesis, Rules};
use lab::vmware::spec::{AtLimit, CommitWay, HelperRule, LastRound, Spec, Version, Waits};
use lab::vmware::{Esx, Format};
use sim::Device;

use super::support::{Load, SNAPSHOT, disk, read, run_loads, spec, world};

const DISK: u64 = 20 << 20;

/// Returns a rule that merges helpers below 32 KiB, or with the VM stopped in the fourth round.
fn eager() -> CommitWay {
    let last = LastRound::Bytes(32 << 10);
    let (waits, at_limit) = (Waits::Nothing, AtLimit::MergeStopped);
    CommitWay::Helper(HelperRule { last, waits, rounds_max: Some(4), at_limit })
}

fn of(format: Format, rules: Rules, commit: CommitWay) -> Spec {
    Spec { format, rules, commit, ..spec(Version::Esx55, DISK) }
}

/// Takes two snapshots under load and commits the older one, then the newer one. It does so twice and then reads
/// everything.
async fn churn(env: Env, dir: Dir, spec: Spec, seed: u64) {
    let esx = Rc::new(Esx::create(env.clone(), dir.clone(), dir, spec).await.unwrap());
    let load = Load::new(disk(&esx), 40);
    run_loads(&env, &load, seed, 3, 20).await;
    for names in [["a", "b"], ["c", "d"]] {
        let running = {
            let (load, env) = (load.clone(), env.clone());
            env.clone().spawn(async move { run_loads(&env, &load, seed + 1, 5, 120).await })
        };
        for name in names {
            esx.take(name).await.unwrap();
            run_loads(&env, &load, seed + 2, 1, 30).await;
        }
        for name in names {
            assert_eq!(esx.commit(name).await.unwrap(), CommitEnd::Done);
            run_loads(&env, &load, seed + 3, 1, 20).await;
        }
        running.join().await;
        load.check_all().await;
    }
    esx.close().await.unwrap();
}

fn every_way() -> Vec<Spec> {
    let mut all = Vec::new();
    for format in [Format::VmfsSparse, Format::SeSparse] {
        for commit in [eager(), CommitWay::Mirror] {
            all.extend(Hypothesis::ALL.map(|hypothesis| of(format, hypothesis.rules(), commit)));
            all.push(of(format, Rules::redo(), commit));
            for hypothesis in [Hypothesis::DeltaLock, Hypothesis::ConcurrentCached] {
                let many = Rules { pieces_at_once: 32, ..hypothesis.rules() };
                all.push(of(format, many, commit));
            }
        }
    }
    all.push(Spec {
        linked_clone: true,
        ..of(Format::SeSparse, Hypothesis::ConcurrentCached.rules(), CommitWay::Mirror)
    });
    all
}

#[test]
fn no_byte_is_lost_in_virtual_time() {
    for (seed, spec) in every_way().into_iter().enumerate() {
        let world = world(Device::scrambled());
        world.run(|env| async move {
            let dir = env.open_root("/").unwrap();
            churn(env, dir.clone(), spec, seed as u64).await;
            assert!(dir.list().await.unwrap().is_empty(), "what a subject made goes with it");
        });
    }
}

#[test]
fn no_byte_is_lost_on_real_files() {
    for (seed, spec) in every_way().into_iter().enumerate().step_by(3) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_string();
        let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
        let env = executor.env();
        let done = executor.run(async move {
            let dir = env.open_root(&path).unwrap();
            churn(env, dir, spec, seed as u64).await;
        });
        assert!(done.is_some());
    }
}

/// Checks that the file is valid: `vmdk`'s reader finds the delta sound, with the same bytes.
#[test]
fn a_vmfssparse_delta_opens_elsewhere() {
    let world = world(Device::scrambled());
    world.run(|env| async move {
        let dir = env.open_root("/").unwrap();
        let spec = of(Format::VmfsSparse, Hypothesis::Concurrent.rules(), eager());
        let esx = Rc::new(Esx::create(env.clone(), dir.clone(), dir.clone(), spec).await.unwrap());
        esx.take(SNAPSHOT).await.unwrap();
        let load = Load::new(disk(&esx), 40);
        run_loads(&env, &load, 1, 8, 100).await;
        let file = dir.open("disk0-000001-delta.vmdk", OpenMode::Read).await.unwrap();
        let growth = vmdk::delta::Growth { step_bytes: 1 << 20, chunk_bytes: 1 << 20 };
        let facts = vmdk::delta::DeltaParams {
            name: "disk0-000001.vmdk",
            capacity_sectors: DISK / SECTOR,
            writable: false,
            growth,
        };
        let delta = vmdk::delta::VmfsSparse::open(env.clone(), file, facts).await.unwrap();
        assert!(delta.check().await.unwrap().is_empty());
        compare(&delta, &esx).await;
    });
}

async fn compare(delta: &vmdk::delta::VmfsSparse, esx: &Rc<Esx>) {
    let mut at = 0;
    let mut held = 0;
    while at < DISK {
        for run in delta.lookup(at..DISK).await.unwrap() {
            if let Where::Data { file, offset } = run.place {
                let buf = Buf::alloc(run.len as usize);
                let (theirs, result) = delta.files()[file as usize].read(offset, buf).await;
                result.unwrap();
                assert_eq!(theirs[..], read(&disk(esx), at, run.len as usize).await[..]);
                held += run.len;
            }
            at += run.len;
        }
    }
    assert!(held > 1 << 20, "only {held} bytes were compared");
}
