//! Tests of the defragmentation of one disk, in the simulated world.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use sim::SimWorld;

use super::super::change::Op;
use super::super::store::{Store, StoreOptions};
use super::super::tests::{disk, fill, open_store, open_store_with, run, shows, write_sectors};
use super::super::view::Scratch;
use super::*;
use crate::job::{DEFRAGMENT, JobState};
use crate::options::{Defect, Defects};

const BLOCKS: u64 = 300;

/// Makes a disk whose blocks were written one by one in another order, block n with the byte n mod 200 + 1, and makes it
/// durable, so that guests overwrite the blocks in place.
async fn fragmented(store: &Rc<Store>) -> Rc<NativeDisk> {
    store.change(&[Op::Create { node: 1, size_blocks: BLOCKS }]).unwrap();
    let disk = disk(store, 1);
    for n in 0..BLOCKS {
        let block = n * 7 % BLOCKS;
        fill(&disk, block, 1, byte(block)).await;
    }
    for _ in 0..3 {
        store.flush().await.unwrap();
        fill(&disk, 0, 1, byte(0)).await;
    }
    disk
}

fn byte(block: u64) -> u8 {
    (block % 200 + 1) as u8
}

fn job(store: &Store) -> Rc<Job> {
    Job::new(store.env.clone(), 1, DEFRAGMENT, String::new())
}

fn alone(job: &Job) -> DefragmentJob<'_> {
    DefragmentJob { job, before: 0, after: 0 }
}

async fn defragment(disk: &NativeDisk, scope: DefragmentScope) -> DefragmentOutcome {
    disk.defragment(scope, alone(&job(&disk.store))).await.unwrap()
}

async fn runs(disk: &NativeDisk) -> u64 {
    disk.fragmentation().await.unwrap().runs
}

async fn verify(disk: &Rc<NativeDisk>, expected: impl Fn(u64) -> u8) {
    for block in 0..BLOCKS {
        assert_eq!(shows(disk, block).await, expected(block), "block {block}");
    }
}

fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move { test(env).await });
}

#[test]
fn a_disk_written_in_disorder_becomes_one_run() {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let disk = fragmented(&store).await;
        assert_eq!(runs(&disk).await, BLOCKS);
        let job = job(&store);
        let outcome = disk.defragment(DefragmentScope::Exclusive, alone(&job)).await.unwrap();
        assert_eq!(outcome.moved_bytes, BLOCKS * BLOCK);
        assert_eq!((job.bytes_done.get(), job.bytes_total.get()), (BLOCKS * BLOCK, BLOCKS * BLOCK));
        assert_eq!(runs(&disk).await, 1);
        verify(&disk, byte).await;
        assert_eq!(defragment(&disk, DefragmentScope::Exclusive).await, DefragmentOutcome::default());
        while store.space.totals().waiting > 0 {
            store.progress.wait().await;
        }
        let mapped = disk.mapped_bytes() / BLOCK;
        assert!(store.space.totals().used < mapped + 100, "the old places are free");
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        verify(&disk(&store, 1), byte).await;
        assert!(store.check().await.unwrap().is_sound());
        store.close().await.unwrap();
    });
}

#[test]
fn blocks_of_a_snapshot_move_only_on_request_and_the_snapshot_keeps_its_own() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let base = fragmented(&store).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        for block in (0..BLOCKS).step_by(3) {
            fill(&base, block, 1, 250).await;
        }
        store.checkpoint().await.unwrap();
        let expected = |block: u64| if block.is_multiple_of(3) { 250 } else { byte(block) };
        let between = defragment(&base, DefragmentScope::Exclusive).await;
        assert_eq!((between.moved_bytes, between.shared_bytes), (0, BLOCKS * BLOCK), "between shared blocks");
        let before = store.space.totals().used;
        assert_eq!(defragment(&base, DefragmentScope::SharedToo).await.moved_bytes, BLOCKS * BLOCK);
        assert_eq!(runs(&base).await, 1);
        verify(&base, expected).await;
        verify(&disk(&store, 2), byte).await;
        assert!(store.space.totals().used >= before + BLOCKS / 3 * 2, "the disk has copies of its own");
        store.close().await.unwrap();
    });
}

/// A block does not move while a replay may doubt its record.
#[test]
fn blocks_move_that_no_flush_has_covered_when_it_begins() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: BLOCKS }]).unwrap();
        let disk = disk(&store, 1);
        for n in 0..BLOCKS {
            fill(&disk, n * 7 % BLOCKS, 1, 1).await;
        }
        assert_eq!(defragment(&disk, DefragmentScope::Exclusive).await.moved_bytes, BLOCKS * BLOCK);
        store.close().await.unwrap();
    });
}

#[test]
fn masks_and_holes_are_kept() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let disk = fragmented(&store).await;
        disk.clone().discard(20 * BLOCK..30 * BLOCK).await.unwrap();
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        for block in 40..60 {
            write_sectors(&disk, block * 8 + 2, 3, 99).await;
        }
        store.checkpoint().await.unwrap();
        defragment(&disk, DefragmentScope::SharedToo).await;
        let (buf, result) = disk.clone().read(15 * BLOCK, Buf::alloc((45 * BLOCK) as usize)).await;
        result.unwrap();
        for (n, sector) in buf.chunks_exact(512).enumerate() {
            let (block, sector_of) = (15 + n as u64 / 8, n % 8);
            let expected = match block {
                20..30 => 0,
                40..60 if (2..5).contains(&sector_of) => 99,
                _ => byte(block),
            };
            assert!(sector.iter().all(|byte| *byte == expected), "block {block}, sector {sector_of}");
        }
        let mut scratch = Scratch::default();
        store.find(&disk.node, 0..BLOCKS, &mut scratch).await.unwrap();
        assert!(scratch.found.iter().all(|run| run.backing.is_none()), "a moved block is whole");
        store.close().await.unwrap();
    });
}

/// Overwrites or discards each block once while the disk is defragmented. Returns whether every block shows that.
async fn beside_writes(env: Env, defects: Defects) -> bool {
    let options = StoreOptions { reserve_blocks: 64, defects, ..StoreOptions::default() };
    let store = open_store_with(&env, options).await.unwrap();
    let disk = fragmented(&store).await;
    let expected = |block: u64| if block.is_multiple_of(5) { 0 } else { 240 };
    let guest = disk.clone();
    let written = env.spawn(async move {
        for n in 0..BLOCKS {
            let block = n * 13 % BLOCKS;
            match expected(block) {
                0 => guest.clone().discard(block * BLOCK..(block + 1) * BLOCK).await.unwrap(),
                value => fill(&guest, block, 1, value).await,
            }
        }
    });
    for _ in 0..4 {
        defragment(&disk, DefragmentScope::Exclusive).await;
    }
    written.join().await;
    let mut is_right = true;
    for block in 0..BLOCKS {
        is_right &= shows(&disk, block).await == expected(block);
    }
    store.close().await.unwrap();
    is_right
}

#[test]
fn guests_write_and_discard_beside_it() {
    in_world(async |env| assert!(beside_writes(env, Defects::default()).await));
}

#[test]
fn a_move_over_a_write_that_came_meanwhile_is_found() {
    in_world(async |env| assert!(!beside_writes(env, Defects::only(Defect::MoveUnwatched)).await));
}

#[test]
fn takes_and_drops_beside_it_change_nothing() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let base = fragmented(&store).await;
        let (pass, scan) = (base.clone(), job(&store));
        let work = env.spawn(async move { pass.defragment(DefragmentScope::SharedToo, alone(&scan)).await });
        for sealed in 2..8 {
            env.sleep_us(50).await;
            store.change(&[Op::Take { running: 1, sealed }]).unwrap();
            fill(&base, sealed, 1, 240).await;
        }
        work.join().await.unwrap();
        let expected =
            |upto: u64| move |block: u64| if (2..upto).contains(&block) { 240 } else { byte(block) };
        verify(&base, expected(8)).await;
        for sealed in 2..8 {
            verify(&disk(&store, sealed), expected(sealed)).await;
        }
        for node in 2..8 {
            store.change(&[Op::Drop { node }]).unwrap();
        }
        while !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        defragment(&base, DefragmentScope::Exclusive).await;
        verify(&base, expected(8)).await;
        assert!(runs(&base).await <= 2);
        store.close().await.unwrap();
    });
}

#[test]
fn a_pause_holds_it_and_a_cancel_ends_it() {
    in_world(async |env| {
        let store = open_store(&env).await.unwrap();
        let disk = fragmented(&store).await;
        let (job, pass) = (job(&store), disk.clone());
        job.pause().unwrap();
        let watched = job.clone();
        let work =
            env.spawn(async move { pass.defragment(DefragmentScope::Exclusive, alone(&watched)).await });
        env.sleep_us(100_000).await;
        assert_eq!((runs(&disk).await, job.state()), (BLOCKS, JobState::Paused));
        job.cancel().unwrap();
        assert_eq!(work.join().await.unwrap_err().kind, ErrorKind::Cancelled);
        store.change(&[Op::Drop { node: 1 }]).unwrap();
        let e = disk.defragment(DefragmentScope::Exclusive, alone(&self::job(&store))).await.unwrap_err();
        assert_eq!(e.kind, ErrorKind::Refused);
        store.close().await.unwrap();
    });
}
