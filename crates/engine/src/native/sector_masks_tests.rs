//! First writes of some sectors of a block.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use sim::SimWorld;

use super::NativeDisk;
use super::backing::SECTOR;
use super::change::Op;
use super::journal::{Record, SectorsRecord};
use super::layout::{BLOCK, checksum};
use super::store::Store;
use super::tests::{disk, fill, open_store, run, write_sectors};

const SECTORS: u64 = BLOCK / SECTOR;

fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
    run(&SimWorld::new(1, sim::Options::default()), |env| async move { test(env).await });
}

/// Returns the first byte of each sector of a block.
async fn sectors(disk: &Rc<NativeDisk>, block: u64) -> [u8; SECTORS as usize] {
    let (buf, result) = disk.clone().read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
    result.unwrap();
    std::array::from_fn(|n| buf[n * SECTOR as usize])
}

/// Makes a disk with 1000 blocks of ones and a snapshot, all of it merged and without doubt.
async fn with_snapshot(env: &Env) -> (Rc<Store>, Rc<NativeDisk>) {
    let store = open_store(env).await.unwrap();
    store.change(&[Op::Create { node: 1, size_blocks: 100_000 }]).unwrap();
    let base = disk(&store, 1);
    fill(&base, 0, 1000, 1).await;
    store.change(&[Op::Take { running: 1, sealed: 2 }]).unwrap();
    store.checkpoint().await.unwrap();
    (store, base)
}

async fn settle(store: &Store) {
    store.flush().await.unwrap();
    store.flush().await.unwrap();
}

async fn drop_and_reclaim(store: &Store, nodes: &[u64]) {
    let ops: Vec<Op> = nodes.iter().map(|node| Op::Drop { node: *node }).collect();
    store.change(&ops).unwrap();
    while store.has_to_reclaim() {
        store.progress.wait().await;
    }
    store.checkpoint().await.unwrap();
    let report = store.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_first_write_of_some_sectors_reads_nothing() {
    in_world(async |env| {
        let (store, base) = with_snapshot(&env).await;
        sectors(&base, 100).await;
        let reads = store.file.counters().reads;
        for n in 0..50 {
            write_sectors(&base, (100 + n * 4) * SECTORS + 7, 8, 2).await;
        }
        assert_eq!(store.file.counters().reads, reads);
        assert_eq!((base.stats.partial_blocks.get(), base.stats.extended_blocks.get()), (100, 0));
        assert_eq!(sectors(&base, 100).await, [1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(sectors(&base, 101).await, [2, 2, 2, 2, 2, 2, 2, 1]);
        assert_eq!(sectors(&disk(&store, 2), 101).await, [1; 8]);
        store.close().await.unwrap();
    });
}

#[test]
fn a_record_with_an_impossible_backing_block_is_damage() {
    for (addr, birth) in [(5000, 1 << 40), (1 << 47, 0), (3, 0)] {
        let world = SimWorld::new(1, sim::Options::default());
        run(&world, move |env| async move {
            let (store, _) = with_snapshot(&env).await;
            let place = store.place(1, None).await.unwrap();
            store.journal.append(Record::Sectors(SectorsRecord {
                node: 1,
                block: 5,
                addr: place.addr,
                birth: store.generation.get(),
                present: 1,
                added: 1,
                backing: (addr, birth),
                checksum: checksum(&[0; SECTOR as usize]),
            }));
            store.flush().await.unwrap();
            store.flush().await.unwrap();
        });
        let opened = world.run(async |env| open_store(&env).await.err());
        let error = opened.unwrap().expect("it is refused");
        assert!(error.cause.contains("backing block"), "{error}");
    }
}

#[test]
fn later_sectors_go_to_the_same_place_until_the_block_has_all() {
    in_world(async |env| {
        let (store, base) = with_snapshot(&env).await;
        write_sectors(&base, 100 * SECTORS + 7, 1, 2).await;
        let used = store.store_usage().used;
        write_sectors(&base, 100 * SECTORS, 3, 3).await;
        assert_eq!(sectors(&base, 100).await, [3, 3, 3, 1, 1, 1, 1, 2]);
        store.checkpoint().await.unwrap();
        assert!(store.node(1).unwrap().roots().unwrap().backings.is_some());
        write_sectors(&base, 100 * SECTORS + 3, 4, 4).await;
        assert_eq!(sectors(&base, 100).await, [3, 3, 3, 4, 4, 4, 4, 2]);
        assert_eq!((base.stats.partial_blocks.get(), base.stats.extended_blocks.get()), (1, 2));
        store.checkpoint().await.unwrap();
        assert!(store.node(1).unwrap().roots().unwrap().backings.is_none(), "the block is whole");
        assert!(store.store_usage().used <= used + 8 * BLOCK, "no other place was taken");
        drop_and_reclaim(&store, &[2]).await;
        assert_eq!(sectors(&base, 100).await, [3, 3, 3, 4, 4, 4, 4, 2]);
        store.close().await.unwrap();
    });
}

#[test]
fn a_sector_in_doubt_is_not_written_again() {
    in_world(async |env| {
        let (store, base) = with_snapshot(&env).await;
        write_sectors(&base, 100 * SECTORS + 6, 2, 2).await;
        write_sectors(&base, 100 * SECTORS + 7, 1, 3).await;
        assert_eq!(base.stats.first_writes.get(), 1 + 2, "both were redirected");
        assert_eq!(sectors(&base, 100).await, [1, 1, 1, 1, 1, 1, 2, 3]);
        write_sectors(&base, 200 * SECTORS + 6, 2, 2).await;
        settle(&store).await;
        write_sectors(&base, 200 * SECTORS + 5, 2, 3).await;
        assert_eq!(base.stats.first_writes.get(), 1 + 3);
        assert_eq!(sectors(&base, 200).await, [1, 1, 1, 1, 1, 3, 3, 2]);
        store.close().await.unwrap();
    });
}

#[test]
fn a_sealed_block_keeps_its_sectors_and_the_next_write_is_whole() {
    in_world(async |env| {
        let (store, base) = with_snapshot(&env).await;
        write_sectors(&base, 100 * SECTORS + 7, 1, 2).await;
        store.change(&[Op::Take { running: 1, sealed: 3 }]).unwrap();
        settle(&store).await;
        write_sectors(&base, 100 * SECTORS, 1, 3).await;
        assert_eq!(sectors(&base, 100).await, [3, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(sectors(&disk(&store, 3), 100).await, [1, 1, 1, 1, 1, 1, 1, 2]);
        store.checkpoint().await.unwrap();
        assert!(store.node(1).unwrap().roots().unwrap().backings.is_none(), "depth stays one");
        assert!(store.node(3).unwrap().roots().unwrap().backings.is_some());
        store.close().await.unwrap();
    });
}

#[test]
fn a_commit_of_the_parent_keeps_backing_blocks_and_the_job_counts_right() {
    for nodes in [&[2][..], &[2, 3], &[3]] {
        in_world(async move |env| {
            let (store, base) = with_snapshot(&env).await;
            for n in 0..300 {
                write_sectors(&base, n * 3 * SECTORS + 7, 8, 2).await;
            }
            store.change(&[Op::Take { running: 1, sealed: 3 }]).unwrap();
            settle(&store).await;
            for n in 0..150 {
                write_sectors(&base, n * 5 * SECTORS + 4, 4, 3).await;
            }
            fill(&base, 900, 20, 4).await;
            store.checkpoint().await.unwrap();
            let mut expected = Vec::new();
            for block in 0..1000 {
                expected.push(sectors(&base, block).await);
            }
            let (foretold, used) = (store.exclusive_bytes(nodes).await.unwrap(), store.store_usage().used);
            drop_and_reclaim(&store, nodes).await;
            let freed = used - store.store_usage().used;
            assert_eq!(freed, foretold, "{nodes:?}");
            for block in 0..1000 {
                assert_eq!(sectors(&base, block).await, expected[block as usize], "block {block}");
            }
            store.close().await.unwrap();
        });
    }
}
