//! Differences between two states in a tree of random writes: the answer has every sector that reads differently.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind, SECTOR};
use engine::{DiffRequest, Differences, Vm};
use sim::SimWorld;

use super::support::{self, Growth};

/// Two and a half of the largest regions, so that answers cross their edges.
const DISK_BYTES: u64 = 5 << 20;
const GROWTH: Growth = support::growth(64 << 10);
const WRITES: u64 = 30;

async fn scribble(env: &Env, vm: &Rc<Vm>) {
    let (disk, _client) = vm.attach(0, "test").await.unwrap();
    for _ in 0..WRITES {
        let sector = env.random() % (DISK_BYTES / SECTOR);
        let data = Buf::copy_of(&[env.random() as u8 | 1; SECTOR as usize]).freeze();
        disk.clone().write(sector * SECTOR, data).await.unwrap();
    }
}

async fn content(vm: &Rc<Vm>, state: Option<&str>) -> Buf {
    let disk = match state {
        Some(name) => vm.open_view(name, 0, "test").await.unwrap().0,
        None => vm.disk(0).unwrap(),
    };
    let (buf, result) = disk.read(0, Buf::alloc(DISK_BYTES as usize)).await;
    result.unwrap();
    buf
}

async fn differences(vm: &Rc<Vm>, from: &str, to: Option<&str>) -> Differences {
    let found = vm.differences(DiffRequest { disk: 0, from, to, start: 0, end: u64::MAX }).await.unwrap();
    assert_eq!((found.end, found.size_bytes), (DISK_BYTES, DISK_BYTES));
    assert!(found.ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{from} to {to:?}");
    found
}

/// Makes `a` and `b` in a row, `c` on a branch from `a`, and the running state on `b`.
async fn grow(env: &Env) -> Rc<Vm> {
    support::create(env, "web", GROWTH, &[DISK_BYTES]).await;
    let vm = support::open(env, "web", GROWTH, support::options()).await;
    scribble(env, &vm).await;
    for (name, onto) in [("a", None), ("c", Some("a")), ("b", None)] {
        scribble(env, &vm).await;
        vm.take(name, "").await.unwrap();
        if let Some(onto) = onto {
            vm.revert(Some(onto), None, false).await.unwrap();
        }
    }
    scribble(env, &vm).await;
    vm
}

#[test]
fn every_sector_that_differs_is_in_the_answer() {
    for seed in 0..10 {
        let world = SimWorld::new(seed, sim::Options::default());
        let missing = world.run(|env| async move {
            let vm = grow(&env).await;
            let mut missing = Vec::new();
            let states = [Some("a"), Some("b"), Some("c"), None];
            for from in ["a", "b", "c"] {
                for to in states {
                    let found = differences(&vm, from, to).await;
                    let (older, newer) = (content(&vm, Some(from)).await, content(&vm, to).await);
                    let sectors = older.chunks(SECTOR as usize).zip(newer.chunks(SECTOR as usize));
                    let differing = (0..).zip(sectors).filter(|(_, (a, b))| a != b).map(|(n, _)| n * SECTOR);
                    let covered = |at: u64| found.ranges.iter().any(|range| range.contains(&at));
                    missing.extend(differing.filter(|at| !covered(*at)).map(|at| (from, to, at)));
                    assert!(from != to.unwrap_or("") || found.ranges.is_empty(), "{from} to itself");
                }
            }
            missing
        });
        assert_eq!(missing.unwrap(), [], "seed {seed}");
    }
}

#[test]
fn differences_may_start_anywhere_and_invalid_requests_are_refused() {
    let world = SimWorld::new(1, sim::Options::default());
    let done = world.run(|env| async move {
        let vm = grow(&env).await;
        let all = differences(&vm, "a", None).await;
        let start = DISK_BYTES / 2;
        let rest =
            vm.differences(DiffRequest { disk: 0, from: "a", to: None, start, end: u64::MAX }).await.unwrap();
        let later = all.ranges.iter().filter(|range| range.end > start);
        let later: Vec<_> = later.map(|range| range.start.max(start)..range.end).collect();
        assert_eq!(rest.ranges, later);
        let short = DiffRequest { disk: 0, from: "a", to: None, start: 0, end: SECTOR };
        let short = vm.differences(short).await.unwrap();
        assert!(short.end >= SECTOR && short.end < DISK_BYTES, "{}", short.end);
        let before = all.ranges.iter().filter(|range| range.start < short.end);
        let before: Vec<_> = before.map(|range| range.start..range.end.min(short.end)).collect();
        assert_eq!(short.ranges, before, "it ends where nothing more is needed");
        for (between, kind) in [
            (DiffRequest { disk: 1, from: "a", to: None, start: 0, end: u64::MAX }, ErrorKind::NotFound),
            (DiffRequest { disk: 0, from: "nope", to: None, start: 0, end: u64::MAX }, ErrorKind::NotFound),
            (
                DiffRequest { disk: 0, from: "a", to: Some("nope"), start: 0, end: u64::MAX },
                ErrorKind::NotFound,
            ),
            (DiffRequest { disk: 0, from: "a", to: None, start: 7, end: u64::MAX }, ErrorKind::Invalid),
            (
                DiffRequest { disk: 0, from: "a", to: None, start: DISK_BYTES + SECTOR, end: u64::MAX },
                ErrorKind::Invalid,
            ),
        ] {
            assert_eq!(vm.differences(between).await.unwrap_err().kind, kind, "{between:?}");
        }
    });
    assert!(done.is_some());
}
