//! Tests the length of stuns, `checkpoint + (closes + opens + creations) * file operation`, and that guest I/O waits.

use blk::Env;
use lab::run::Stun;
use lab::subject::Subject;
use lab::vmware::spec::{FileOperation, Spec, StunCost, Version};

use super::support::{MS, SNAPSHOT, create, disk, spec, steady, write};

const DISKS: u64 = 12;
const DISK: u64 = 16 << 20;
const CHECKPOINT_US: u64 = 7_000;
const FILE_US: u64 = 1_000;
/// Time to make a new delta: one I/O for its header, and naming and growing its file.
const MADE_US: u64 = 3_000;

fn twelve(version: Version) -> Spec {
    let base = spec(version, DISK);
    let stun = StunCost {
        checkpoint_us: CHECKPOINT_US,
        file_operation: FileOperation::DeclaredUs(FILE_US),
        touched: base.stun.touched,
    };
    Spec { stun, disks: vec![DISK; DISKS as usize], ..base }
}

async fn stuns(env: Env, version: Version) -> (Vec<Stun>, Vec<Stun>) {
    let esx = create(&env, twelve(version)).await;
    esx.take(SNAPSHOT).await.unwrap();
    let taken = esx.take_stuns();
    esx.commit(SNAPSHOT).await.unwrap();
    (taken, esx.take_stuns())
}

fn lengths(stuns: &[Stun]) -> Vec<u64> {
    stuns.iter().map(|stun| stun.stun_us).collect()
}

#[test]
fn a_take_reopens_every_disk() {
    let ((taken, _), _) = steady(|env| stuns(env, Version::Esx60));
    // Per disk, with two files a link: close the base, create a descriptor, open base and delta.
    assert_eq!(lengths(&taken), [CHECKPOINT_US + DISKS * (7 * FILE_US + MADE_US)]);
}

#[test]
fn steps_of_6_0_are_flat() {
    let ((_, removed), _) = steady(|env| stuns(env, Version::Esx60));
    let mut expected = vec![CHECKPOINT_US];
    // Per disk: close two links, open one.
    expected.extend([CHECKPOINT_US + 6 * FILE_US; DISKS as usize]);
    assert_eq!(lengths(&removed), expected);
}

#[test]
fn steps_of_5_5_fall_with_every_disk_that_is_done() {
    let ((_, removed), _) = steady(|env| stuns(env, Version::Esx55));
    let lengths = lengths(&removed);
    assert_eq!(lengths.len() as u64, DISKS + 1);
    // Each step between the first and the last reopens all disks twice. From step to step one more of them has a delta
    // less.
    let middle = &lengths[1..DISKS as usize];
    assert!(middle.windows(2).all(|pair| pair[0] - pair[1] == 8 * FILE_US), "{middle:?}");
    assert!(lengths[0] < middle[0] && lengths[DISKS as usize] < middle[middle.len() - 1]);
}

/// Closing, opening and creating have different costs where a datastore declares them. With `OfDirectory` each
/// operation costs what opening a file in the directory takes.
#[test]
fn file_operations_cost_what_they_are_said_to() {
    let of = |file_operation| {
        let base = twelve(Version::Esx60);
        let spec = Spec { stun: StunCost { file_operation, ..base.stun }, disks: vec![DISK], ..base };
        let (taken, _) = steady(|env| async move {
            let esx = create(&env, spec).await;
            esx.take(SNAPSHOT).await.unwrap();
            lengths(&esx.take_stuns())
        });
        taken[0] - CHECKPOINT_US - MADE_US
    };
    let calls = FileOperation::Calls { close_us: 3_000, open_us: 5_000, create_us: 7_000 };
    assert_eq!(of(calls), 2 * 3_000 + 4 * 5_000 + 7_000);
    assert_eq!(of(FileOperation::OfDirectory), 7 * 1_000);
}

#[test]
fn guest_writes_wait_for_the_end_of_a_stun() {
    let (waited_ns, _) = steady(|env| async move {
        let esx = create(&env, twelve(Version::Esx60)).await;
        let taking = {
            let esx = esx.clone();
            env.spawn(async move { esx.take(SNAPSHOT).await.unwrap() })
        };
        env.sleep_us(1).await;
        let begin = env.now_ns();
        write(&disk(&esx), 0, 4096).await;
        let waited_ns = env.now_ns() - begin;
        taking.join().await;
        waited_ns
    });
    assert!(waited_ns > CHECKPOINT_US * 1000 + DISKS * 7 * MS, "{waited_ns} ns");
}
