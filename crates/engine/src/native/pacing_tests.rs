//! Writers while a checkpoint takes seconds, in virtual time: they become slower and slower, and none waits for its end.

use std::cell::Cell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use futures_util::future::join_all;
use sim::{Device, SimWorld};

use super::NativeDisk;
use super::change::Op;
use super::layout::BLOCK;
use super::store::StoreOptions;
use super::tests::{disk, open_store_with, run};
use crate::options::{Defect, Defects};

const WRITERS: u64 = 16;
const RUNS_MAX: usize = 4096;
/// The checkpoint begins its work after this time.
const HELD_NS: u64 = 4_000_000_000;

/// Writes every other block, so that each write is a run of its own, until the time is over. Returns the longest time
/// of a write.
async fn write_until(env: Env, disk: Rc<NativeDisk>, next: Rc<Cell<u64>>, until_ns: u64) -> u64 {
    let mut longest_ns = 0;
    while env.now_ns() < until_ns {
        let (at_ns, block) = (env.now_ns(), next.replace(next.get() + 2));
        disk.clone().write(block * BLOCK, Buf::zeroed(BLOCK as usize).freeze()).await.unwrap();
        longest_ns = longest_ns.max(env.now_ns() - at_ns);
    }
    longest_ns
}

/// Returns the longest time of a write, and the number of runs when the checkpoint began its work. `merged`: all but the
/// end of the checkpoint is done, so that what it has frozen does not count.
fn writes_beside_a_held_checkpoint(runs_max: usize, merged: bool, defects: Defects) -> (u64, usize) {
    let device = Device::steady(200_000);
    let world = SimWorld::new(1, sim::Options { device, ..sim::Options::default() });
    let seen = Rc::new(Cell::new((0, 0)));
    let noted = seen.clone();
    run(&world, |env| async move {
        let options = StoreOptions {
            pending_runs_max: runs_max,
            reserve_blocks: 64,
            defects,
            ..StoreOptions::default()
        };
        let store = open_store_with(&env, options).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1 << 20 }]).unwrap();
        let (base, next) = (disk(&store, 1), Rc::new(Cell::new(0)));
        let until_ns = env.now_ns() + HELD_NS;
        let turn = store.checkpoint_turn.lock().await;
        if merged {
            store.merging.begin(1, u64::from(u32::MAX));
            store.merging.add(1);
        }
        let holding = async {
            env.sleep_until(until_ns).await;
            let pending = store.pending.get();
            drop(turn);
            pending
        };
        let writers = (0..WRITERS).map(|_| write_until(env.clone(), base.clone(), next.clone(), until_ns));
        let (pending, times) = futures_util::future::join(holding, join_all(writers)).await;
        noted.set((times.into_iter().max().expect("writers"), pending));
        store.close().await.unwrap();
    });
    seen.get()
}

#[test]
fn no_write_waits_for_a_checkpoint() {
    let (longest_ns, pending) = writes_beside_a_held_checkpoint(RUNS_MAX, false, Defects::default());
    assert!(longest_ns < HELD_NS / 4, "a write took {longest_ns} ns");
    assert!(pending < RUNS_MAX + RUNS_MAX / 10, "{pending} runs");
}

#[test]
fn writers_that_are_not_delayed_wait_for_the_checkpoint() {
    let (longest_ns, pending) =
        writes_beside_a_held_checkpoint(RUNS_MAX, false, Defects::only(Defect::UnpacedWriters));
    assert!(longest_ns > HELD_NS / 2, "the longest write took {longest_ns} ns");
    assert!(pending > 2 * RUNS_MAX, "{pending} runs");
}

/// The journal has 612 pages for guests, of 83 records each.
#[test]
fn a_full_journal_stops_writers_until_the_checkpoint_ends() {
    let (longest_ns, pending) = writes_beside_a_held_checkpoint(1 << 30, true, Defects::default());
    assert!(longest_ns > HELD_NS / 4, "the longest write took {longest_ns} ns");
    assert!(pending > 40_000, "{pending} runs");
}

/// Fills nine tenths of the journal with changes all over a disk while nothing merges them, and loses power.
fn cut_with_a_journal_almost_full(world: &SimWorld) {
    run(world, |env| async move {
        let defects = Defects::only(Defect::UnpacedWriters);
        let options = StoreOptions {
            pending_runs_max: 1 << 20,
            reserve_blocks: 64,
            defects,
            ..StoreOptions::default()
        };
        let store = open_store_with(&env, options).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1 << 20 }]).unwrap();
        let (base, mut rng) = (disk(&store, 1), sim::Rng::new(5));
        let _turn = store.checkpoint_turn.lock().await;
        while store.journal.used_pages() < store.journal.pages_max() / 10 * 9 {
            let writes = (0..64).map(|_| {
                let data = Buf::zeroed(BLOCK as usize).freeze();
                base.clone().write(rng.below(1 << 20) * BLOCK, data)
            });
            join_all(writes).await.into_iter().for_each(|written| written.unwrap());
        }
        store.flush().await.unwrap();
        // Nothing of it is closed in order.
        std::mem::forget((store, base));
    });
    world.power_cut();
}

#[test]
fn writers_go_on_after_an_opening_with_a_journal_almost_full() {
    let device = Device::steady(2_000_000);
    let world = SimWorld::new(1, sim::Options { device, ..sim::Options::default() });
    cut_with_a_journal_almost_full(&world);
    let longest = Rc::new(Cell::new(0));
    let noted = longest.clone();
    run(&world, |env| async move {
        let options =
            StoreOptions { pending_runs_max: 1 << 20, reserve_blocks: 64, ..StoreOptions::default() };
        let store = open_store_with(&env, options).await.unwrap();
        let (base, next) = (disk(&store, 1), Rc::new(Cell::new(1)));
        let until_ns = env.now_ns() + HELD_NS;
        let writers = (0..WRITERS).map(|_| write_until(env.clone(), base.clone(), next.clone(), until_ns));
        noted.set(join_all(writers).await.into_iter().max().expect("writers"));
        eprintln!(
            "writes {} longest {} checkpoints {}",
            next.get() / 2,
            noted.get(),
            store.checkpoints.get()
        );
        store.close().await.unwrap();
    });
    assert!(longest.get() < HELD_NS / 8, "a write took {} ns", longest.get());
}
