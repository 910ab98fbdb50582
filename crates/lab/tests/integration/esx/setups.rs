//! Other setups of a VM, and refused operations.

use std::rc::Rc;

use blk::ErrorKind;
use lab::subject::{CommitEnd, Subject};
use lab::vmware::Esx;
use lab::vmware::spec::{AtLimit, CommitWay, HelperRule, LastRound, Snapshots, Spec, Version, Waits};

use super::support::{MS, SNAPSHOT, create, disk, read, spec, steady, write};

const DISK: u64 = 8 << 20;

#[test]
fn deltas_may_lie_elsewhere() {
    let ((bases, deltas), _) = steady(|env| async move {
        let root = env.open_root("/").unwrap();
        let (dir, other) =
            (root.open_dir("vm", true).await.unwrap(), root.open_dir("lun", true).await.unwrap());
        let spec = spec(Version::Esx35, DISK);
        let esx = Esx::create(env.clone(), dir.clone(), other.clone(), spec).await.unwrap();
        esx.take(SNAPSHOT).await.unwrap();
        (dir.list().await.unwrap(), other.list().await.unwrap())
    });
    assert_eq!(bases, ["disk0-flat.vmdk", "vmfs-records"]);
    assert_eq!(deltas, ["disk0-000001-delta.vmdk"]);
}

#[test]
fn a_vvol_costs_nothing_but_the_one_operation() {
    let ((ios, took_ns, stuns), _) = steady(|env| async move {
        let snapshots = Snapshots::Metadata { operation_us: 2_000 };
        let esx = create(&env, Spec { snapshots, ..spec(Version::Esx70, DISK) }).await;
        let before = esx.counters().unwrap();
        esx.take(SNAPSHOT).await.unwrap();
        write(&disk(&esx), 0, 4096).await;
        drop(read(&disk(&esx), 0, 4096).await);
        let begin = env.now_ns();
        assert_eq!(esx.commit(SNAPSHOT).await, Ok(CommitEnd::Done));
        let after = esx.counters().unwrap();
        let ios = (after.reads - before.reads, after.writes - before.writes);
        (ios, env.now_ns() - begin, esx.take_stuns().len())
    });
    assert_eq!((ios, took_ns, stuns), ((1, 1), 2 * MS, 0));
}

#[test]
fn a_linked_clone_pays_from_the_start() {
    let (ios, _) = steady(|env| async move {
        let esx = create(&env, Spec { linked_clone: true, ..spec(Version::Esx35, DISK) }).await;
        write(&disk(&esx), 0, 4096).await;
        let before = esx.counters().unwrap();
        write(&disk(&esx), 4096, 4096).await;
        drop(read(&disk(&esx), 0, 4096).await);
        let after = esx.counters().unwrap();
        (after.reads - before.reads, after.writes - before.writes)
    });
    assert_eq!(ios, (2, 2));
}

#[test]
fn a_frozen_disk_shows_the_snapshot_and_holds_commits_back() {
    steady(|env| async move {
        let esx = create(&env, spec(Version::Esx60, DISK)).await;
        write(&disk(&esx), 0, 4096).await;
        esx.take(SNAPSHOT).await.unwrap();
        let ones = blk::Buf::copy_of(&[1; 4096]).freeze();
        disk(&esx).write(0, ones).await.unwrap();
        let frozen = esx.frozen(SNAPSHOT).await.unwrap();
        assert!(read(&frozen.0[0], 0, 4096).await.iter().all(|&byte| byte == 0));
        assert_eq!(esx.commit(SNAPSHOT).await.unwrap_err().kind, ErrorKind::Refused);
        drop(frozen);
        assert_eq!(esx.commit(SNAPSHOT).await, Ok(CommitEnd::Done));
        assert!(read(&disk(&esx), 0, 4096).await.iter().all(|&byte| byte == 1));
    });
}

/// Returns a setup whose helpers may never be merged, so that the commit gives up after one round.
fn hopeless() -> Spec {
    let (last, at_limit) = (LastRound::EstimatedUs(0), AtLimit::GiveUp);
    let rule = HelperRule { last, waits: Waits::Nothing, rounds_max: Some(1), at_limit };
    let base = spec(Version::Esx55, DISK);
    Spec { commit: CommitWay::Helper(rule), disks: vec![DISK, DISK], ..base }
}

#[test]
fn after_giving_up_disks_are_served_and_snapshots_refused() {
    steady(|env| async move {
        let esx: Rc<Esx> = create(&env, hopeless()).await;
        esx.take(SNAPSHOT).await.unwrap();
        assert_eq!(esx.take(SNAPSHOT).await.unwrap_err().kind, ErrorKind::Refused);
        assert_eq!(esx.commit("other").await.unwrap_err().kind, ErrorKind::NotFound);
        write(&disk(&esx), 0, 1 << 20).await;
        let writing = {
            let esx = esx.clone();
            env.spawn(async move {
                for block in 0..100 {
                    write(&disk(&esx), block * 4096, 4096).await;
                }
            })
        };
        assert!(matches!(esx.commit(SNAPSHOT).await, Ok(CommitEnd::GaveUp(why)) if why.contains("disk 0")));
        writing.join().await;
        drop(read(&disk(&esx), 0, 1 << 20).await);
        let refused = esx.take("next").await.unwrap_err();
        assert!(refused.cause.contains("consolidation is needed"), "{refused}");
        esx.close().await.unwrap();
    });
}
