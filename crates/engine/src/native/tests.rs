//! Tests of a whole store, in the simulated world.

use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::{STATUS_PIECES_MAX, Volume};
use blk::{Buf, Env, Result};
use sim::SimWorld;

use super::backing::SECTOR;
use super::change::Op;
use super::space::Growth;
use super::*;
use crate::options::SpacePolicy;

const TERMS: DiskOptions = DiskOptions { policy: SpacePolicy::Wait, space_retry_us: 1000 };
const NEW: NewStore = NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT };

pub(super) async fn open_store(env: &Env) -> Result<Rc<Store>> {
    open_store_with(env, StoreOptions { reserve_blocks: 64, ..StoreOptions::default() }).await
}

pub(super) async fn open_store_with(env: &Env, options: StoreOptions) -> Result<Rc<Store>> {
    let dir = env.open_root("/")?;
    let file = match dir.create_new("store").await {
        Ok(file) => {
            Store::format(env, &file, NEW).await?;
            dir.sync().await?;
            file
        }
        Err(_) => dir.open("store", blk::reactor::OpenMode::Write).await?,
    };
    Store::open(env.clone(), file, options, Growth::default(), true).await
}

pub(super) fn disk(store: &Rc<Store>, node: u64) -> Rc<NativeDisk> {
    NativeDisk::new(store, store.node(node).unwrap(), format!("node{node}"), 0, TERMS)
}

pub(super) async fn fill(disk: &Rc<NativeDisk>, block: u64, count: usize, byte: u8) {
    let mut buf = Buf::alloc(count * 4096);
    buf.fill(byte);
    disk.clone().write(block * 4096, buf.freeze()).await.unwrap();
}

pub(super) async fn write_sectors(disk: &Rc<NativeDisk>, first: u64, count: u64, byte: u8) {
    let mut buf = Buf::alloc((count * SECTOR) as usize);
    buf.fill(byte);
    disk.clone().write(first * SECTOR, buf.freeze()).await.unwrap();
}

pub(super) async fn shows(disk: &Rc<NativeDisk>, block: u64) -> u8 {
    let (buf, result) = disk.clone().read(block * 4096, Buf::alloc(4096)).await;
    result.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "block {block} is mixed");
    buf[0]
}

pub(super) fn run<F: Future<Output = ()> + 'static>(world: &SimWorld, work: impl FnOnce(Env) -> F) {
    world.run(work).expect("nothing cuts the power");
}

#[test]
fn snapshots_and_branches_share_blocks_and_dropped_nodes_free_them() {
    let world = SimWorld::new(1, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
        let base = disk(&store, 1);
        for n in 0..100 {
            fill(&base, n * 50, 3, 1).await;
        }
        store.flush().await.unwrap();
        let used = store.space.totals().used;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        for n in 0..50 {
            fill(&base, n * 50 + 1, 1, 2).await;
        }
        store.checkpoint().await.unwrap();
        assert_eq!((shows(&base, 0).await, shows(&base, 1).await, shows(&base, 4951).await), (1, 2, 1));
        let sealed = disk(&store, 2);
        assert_eq!((shows(&sealed, 1).await, shows(&sealed, 3).await), (1, 0));
        store.change(&[Op::Branch { from: 2, node: 3 }]).unwrap();
        let branch = disk(&store, 3);
        fill(&branch, 0, 1, 3).await;
        assert_eq!((shows(&branch, 0).await, shows(&branch, 1).await, shows(&base, 0).await), (3, 1, 1));
        assert!(store.space.totals().used > used);
        store.change(&[Op::Drop { node: 3 }, Op::Drop { node: 2 }]).unwrap();
        while !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        assert_eq!((shows(&base, 0).await, shows(&base, 1).await, shows(&base, 4951).await), (1, 2, 1));
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let base = disk(&store, 1);
        for n in 0..100 {
            let expected = if n < 50 { 2 } else { 1 };
            assert_eq!((shows(&base, n * 50).await, shows(&base, n * 50 + 1).await), (1, expected), "{n}");
        }
        store.close().await.unwrap();
    });
}

#[test]
fn a_cut_keeps_what_was_flushed() {
    for event in (5..400).step_by(7) {
        let world = SimWorld::new(event, sim::Options::default());
        run(&world, |env| async move { drop(open_store(&env).await.unwrap()) });
        world.cut_at(sim::Cut::Event(event));
        let flushed: Rc<RefCell<u8>> = Rc::default();
        let seen = flushed.clone();
        world.run(move |env| async move {
            let store = open_store(&env).await.unwrap();
            store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
            let base = disk(&store, 1);
            for round in 1..40 {
                for n in 0..8 {
                    fill(&base, n * 700, 2, round).await;
                }
                store.flush().await.unwrap();
                *seen.borrow_mut() = round;
                if round % 5 == 0 {
                    store.change(&[Op::Take { running: 1, sealed: 100 + u64::from(round) }]).unwrap();
                }
                if round % 7 == 0 {
                    store.checkpoint().await.unwrap();
                }
            }
        });
        world.power_cut();
        let flushed = *flushed.borrow();
        run(&world, move |env| async move {
            let store = open_store(&env).await.unwrap();
            if flushed > 0 {
                let base = disk(&store, 1);
                for n in 0..8 {
                    let (buf, result) = base.clone().read(n * 700 * 4096, Buf::alloc(8192)).await;
                    result.unwrap();
                    let strange = buf.iter().find(|byte| **byte != flushed && **byte != flushed + 1);
                    assert_eq!(strange, None, "event {event}: after {flushed}");
                }
            }
            store.close().await.unwrap();
        });
    }
}

/// Places all metadata blocks.
async fn exhaust(store: &Rc<Store>) -> Vec<space::Extent> {
    let mut placed = Vec::new();
    while let Ok(extent) = store.space.place_meta(1000).await {
        placed.push(extent);
    }
    placed
}

#[test]
fn a_checkpoint_that_ran_out_of_space_is_completed_by_the_next_one() {
    let world = SimWorld::new(1, sim::Options::default());
    let key = change::Key { kind: stored::USER_KINDS, major: 7, minor: 7 };
    let inside = world.clone();
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
        let base = disk(&store, 1);
        for n in 0..50 {
            fill(&base, n * 300, 1, 1).await;
        }
        store
            .change(&[Op::Put { key, value: b"kept".to_vec() }, Op::Take { running: 1, sealed: 2 }])
            .unwrap();
        inside.set_capacity(Some(inside.used_bytes()));
        let all = exhaust(&store).await;
        assert!(store.checkpoint().await.unwrap_err().is_no_space());
        assert_eq!(store.items(key.kind), [(key, b"kept".to_vec())]);
        inside.set_capacity(None);
        store.freed.borrow_mut().extend(all);
        store.checkpoint().await.unwrap();
        let report = store.check_committed().await.unwrap();
        assert!(report.is_sound(), "{report:?}");
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!(store.items(key.kind), [(key, b"kept".to_vec())]);
        let base = disk(&store, 2);
        for n in 0..50 {
            assert_eq!(shows(&base, n * 300).await, 1);
        }
        store.close().await.unwrap();
    });
}

#[test]
fn an_unflushed_redirect_is_flushed_in_the_background() {
    let world = SimWorld::new(3, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        store.flush().await.unwrap();
        // One interval for the flush, one to carry its number, one to spare.
        let in_time_us = 3 * store.options.flush_us;
        env.sleep_us(in_time_us).await;
        fill(&disk(&store, 1), 0, 1, 1).await;
        assert!(store.journal.durable_flushed_lsn() < store.journal.last_lsn());
        env.sleep_us(in_time_us).await;
        assert_eq!(store.journal.durable_flushed_lsn(), store.journal.last_lsn());
        store.close().await.unwrap();
    });
}

#[test]
fn numbers_and_sizes_out_of_range_are_refused() {
    let world = SimWorld::new(4, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        for op in
            [Op::Create { node: u64::MAX, size_blocks: 1 }, Op::Create { node: 1, size_blocks: u64::MAX }]
        {
            assert!(store.change(&[op]).unwrap_err().cause.contains("expected at most"));
        }
        assert!(store.node(1).is_err());
        store.close().await.unwrap();
    });
}

/// Returns what some work cost: (reads, writes) of tables, and all writes.
async fn table_cost(store: &Store, work: impl Future<Output = ()>) -> (u64, u64, u64) {
    let before = store.file.counters();
    work.await;
    let after = store.file.counters();
    let tables = (after.table_reads - before.table_reads, after.table_writes - before.table_writes);
    (tables.0, tables.1, after.writes - before.writes)
}

#[test]
fn reads_and_writes_of_tables_are_counted_apart_from_data() {
    let world = SimWorld::new(6, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        let base = disk(&store, 1);
        // Groups and space for the next writes exist then, and all records are confirmed.
        fill(&base, 0, 1, 1).await;
        env.sleep_us(10_000_000).await;
        store.flush().await.unwrap();
        store.flush().await.unwrap();
        assert_eq!(table_cost(&store, fill(&base, 8, 1, 2)).await, (0, 0, 1), "data, elsewhere");
        let flush = async || store.flush().await.unwrap();
        assert_eq!(table_cost(&store, flush()).await, (0, 1, 1), "a batch of the journal");
        assert_eq!(table_cost(&store, flush()).await, (0, 1, 1), "which says that it is durable");
        assert_eq!(table_cost(&store, fill(&base, 8, 1, 3)).await, (0, 0, 1), "in place");
        assert_eq!(table_cost(&store, flush()).await, (0, 0, 0));
        let (reads, tables, all) = table_cost(&store, async { store.checkpoint().await.unwrap() }).await;
        assert!(reads == 0 && tables == all && tables > 3, "{tables} of {all}: pages, bitmaps, superblock");
        let (buf, result) = base.clone().read(8 * 4096, Buf::alloc(4096)).await;
        assert!(result.is_ok() && buf[0] == 3);
        store.close().await.unwrap();
    });
}

/// Writes a range that covers parts of blocks only; returns the number of read I/Os.
async fn write_part(disk: &Rc<NativeDisk>, model: &mut [u8], range: std::ops::Range<usize>, byte: u8) -> u64 {
    let before = disk.store.file.counters().reads;
    let mut data = Buf::alloc(range.len());
    data.fill(byte);
    disk.clone().write(range.start as u64, data.freeze()).await.unwrap();
    model[range].fill(byte);
    disk.store.file.counters().reads - before
}

#[test]
fn partial_blocks_cost_a_read_where_there_is_one_and_neighbours_are_one_io() {
    const BLOCKS: usize = 64;
    let world = SimWorld::new(5, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1000 }]).unwrap();
        let base = disk(&store, 1);
        let mut model = vec![0; BLOCKS * 4096];
        for n in 0..BLOCKS / 8 {
            fill(&base, n as u64 * 8, 8, 1 + n as u8).await;
            model[n * 8 * 4096..(n + 1) * 8 * 4096].fill(1 + n as u8);
        }
        store.flush().await.unwrap();
        let show = async |model: &[u8], reads: u64| {
            let before = store.file.counters().reads;
            let (buf, result) = base.clone().read(0, Buf::alloc(model.len())).await;
            result.unwrap();
            assert!(buf[..] == *model);
            assert_eq!(store.file.counters().reads - before, reads);
        };
        // Eight records, one range of the store.
        show(&model, 1).await;
        store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
        let (sector, block) = (512, 4096);
        let inside = 3 * block + sector..3 * block + 2 * sector;
        assert_eq!(write_part(&base, &mut model, inside, 21).await, 1);
        let short = 6 * block + sector..12 * block + sector;
        assert_eq!(write_part(&base, &mut model, short, 22).await, 1, "the blocks between are read, too");
        assert_eq!(write_part(&base, &mut model, 16 * block..17 * block + sector, 23).await, 1, "one edge");
        let long = 30 * block + sector..60 * block + sector;
        assert_eq!(write_part(&base, &mut model, long, 24).await, 2, "both edges, apart");
        show(&model, 9).await;
        store.close().await.unwrap();
    });
}

#[test]
fn a_block_status_answer_is_bounded_and_its_memory_is_freed() {
    let world = SimWorld::new(8, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        store.change(&[Op::Create { node: 1, size_blocks: 1 << 20 }]).unwrap();
        let disk = disk(&store, 1);
        for n in 0..10_000 {
            fill(&disk, n * 2, 1, 1).await;
        }
        let (mut at, mut pieces, mut answers) = (0, 0, 0);
        while at < 4 << 30 {
            let turns = env.turns();
            let found = disk.clone().status(at..4 << 30).await.unwrap();
            assert!(found.len() < STATUS_PIECES_MAX + 8192, "{} pieces", found.len());
            at += found.iter().map(|piece| piece.len).sum::<u64>();
            pieces += found.len();
            answers += 1;
            assert!(found.len() <= 8192 * (1 + env.turns() - turns) as usize, "others had their turns");
        }
        assert_eq!((at, pieces), (4 << 30, 20_000));
        assert!(answers >= 3, "{answers} answers");
        let (_, read) = disk.clone().read(0, Buf::alloc(32 << 20)).await;
        read.unwrap();
        assert!(disk.kept_scratch().all(|small| small), "what a large range needed is kept");
        store.close().await.unwrap();
    });
}
