//! Tests which commits end.

use std::cell::Cell;
use std::rc::Rc;

use blk::Env;
use futures_util::future::{Either, select};
use lab::subject::{CommitEnd, CommitProgress, Subject};
use lab::vmware::Esx;
use lab::vmware::rules::{Hypothesis, Rules};
use lab::vmware::spec::{AtLimit, CommitWay, HelperRule, LastRound, Spec, Version, Waits};
use sim::Rng;

use super::support::{SNAPSHOT, create, disk, spec, steady, write};

const DISK: u64 = 256 << 20;
/// Number of 4 KiB blocks in the delta when the commit begins.
const BLOCKS: u64 = 2000;

/// A guest's writes of random blocks of 4 KiB.
#[derive(Clone, Copy)]
struct Load {
    writers: u64,
    /// Pause between two writes of one writer, microseconds.
    pause_us: u64,
}

/// At most 50 blocks a second; the copier moves 500 a second.
const SLOW: Load = Load { writers: 1, pause_us: 20_000 };
/// Each writer takes at most 3 ms for a block where nothing is serialised.
const FAST: Load = Load { writers: 4, pause_us: 0 };

/// Writes until the flag is set.
fn start(env: &Env, esx: &Rc<Esx>, load: Load) -> Rc<Cell<bool>> {
    let stop = Rc::new(Cell::new(false));
    for seed in 0..load.writers {
        let (stop, disk, own) = (stop.clone(), disk(esx), env.clone());
        env.spawn(async move {
            let mut rng = Rng::new(seed);
            while !stop.get() {
                write(&disk, rng.below(DISK / 4096) * 4096, 4096).await;
                if load.pause_us > 0 {
                    own.sleep_us(load.pause_us).await;
                }
            }
        });
    }
    stop
}

/// Commits under load. None: the commit had not ended after 60 s.
async fn commit(env: Env, spec: Spec, load: Load) -> (Option<CommitEnd>, CommitProgress) {
    let esx = create(&env, spec).await;
    esx.take(SNAPSHOT).await.unwrap();
    let mut rng = Rng::new(4);
    for _ in 0..BLOCKS {
        write(&disk(&esx), rng.below(DISK / 4096) * 4096, 4096).await;
    }
    let stop = start(&env, &esx, load);
    let end = match select(esx.commit(SNAPSHOT), Box::pin(env.sleep_us(60_000_000))).await {
        Either::Left((end, _)) => Some(end.unwrap()),
        Either::Right(_) => None,
    };
    stop.set(true);
    let progress = esx.progress();
    esx.close().await.unwrap();
    (end, progress)
}

fn helper(last: LastRound, rounds_max: Option<u32>, at_limit: AtLimit) -> CommitWay {
    CommitWay::Helper(HelperRule { last, waits: Waits::Nothing, rounds_max, at_limit })
}

/// Returns a setup whose rounds end below 64 KiB; a helper of 4 KiB random writes is moved at 2 ms a block.
fn small(rounds_max: Option<u32>, at_limit: AtLimit) -> Spec {
    let commit = helper(LastRound::Bytes(64 << 10), rounds_max, at_limit);
    let rules = Rules { pieces_at_once: 1, ..Hypothesis::Concurrent.rules() };
    Spec { commit, rules, ..spec(Version::Esx35, DISK) }
}

#[test]
fn helpers_shrink_when_writes_are_slower_than_the_copier() {
    let ((end, progress), _) = steady(|env| commit(env, small(None, AtLimit::GiveUp), SLOW));
    assert_eq!(end, Some(CommitEnd::Done));
    assert!(progress.helper_bytes.is_sorted_by(|a, b| a > b), "{:?}", progress.helper_bytes);
}

#[test]
fn helpers_never_shrink_when_writes_are_faster() {
    let ((end, progress), _) = steady(|env| commit(env, small(None, AtLimit::GiveUp), FAST));
    assert_eq!(end, None);
    assert!(progress.helper_bytes.iter().all(|&bytes| bytes > 1 << 20), "{:?}", progress.helper_bytes);
}

#[test]
fn a_limit_of_rounds_ends_it_one_way_or_the_other() {
    let of = |at_limit| steady(move |env| commit(env, small(Some(2), at_limit), FAST)).0;
    let (end, progress) = of(AtLimit::GiveUp);
    assert!(matches!(end, Some(CommitEnd::GaveUp(why)) if why.contains("2 rounds")));
    assert_eq!(progress.helper_bytes.len(), 2);
    assert_eq!(of(AtLimit::MergeStopped).0, Some(CommitEnd::Done));
}

#[test]
fn twelve_seconds_are_reckoned_with_the_last_rounds_rate() {
    let of = |us| {
        let commit_way = helper(LastRound::EstimatedUs(us), None, AtLimit::GiveUp);
        let spec = Spec { commit: commit_way, ..spec(Version::Esx55, DISK) };
        steady(move |env| commit(env, spec, SLOW)).0
    };
    // The first round takes 4 s, in which 200 blocks arrive: their round takes 0.4 s. A limit of half a second needs
    // one round, one of 100 ms needs two.
    assert_eq!(of(500_000).1.helper_bytes.len(), 1);
    assert_eq!(of(100_000).1.helper_bytes.len(), 2);
}

#[test]
fn a_mirrored_commit_always_ends() {
    for load in [SLOW, FAST] {
        let ((end, progress), _) = steady(move |env| commit(env, spec(Version::Esx60, DISK), load));
        assert_eq!(end, Some(CommitEnd::Done));
        assert!(progress.helper_bytes.is_empty());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for version in [Version::Esx35, Version::Esx70] {
        let run = || steady(move |env| commit(env, spec(version, DISK), FAST));
        assert_eq!(run(), run());
    }
}
