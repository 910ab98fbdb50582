//! Closed forms: host I/Os per guest I/O, and what runs concurrently. Every I/O takes 1 ms.

use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Buf, Env};
use futures_util::future::select;
use lab::run::Counters;
use lab::subject::Subject;
use lab::vmware::rules::{Hypothesis, TableCache};
use lab::vmware::spec::{Spec, Version};
use lab::vmware::{Esx, Zeroing};

use super::support::{MS, SNAPSHOT, create, disk, read, spec, steady, write};

const DISK: u64 = 64 << 20;
const BLOCK: usize = 4096;

/// Returns a VM with a snapshot whose delta holds the first 4 KiB of the first four tables' regions.
async fn prepared(env: &Env, spec: Spec) -> Rc<Esx> {
    let esx = create(env, spec).await;
    esx.take(SNAPSHOT).await.unwrap();
    for region in 0..4 {
        write(&disk(&esx), region * (2 << 20), BLOCK).await;
    }
    esx
}

fn under(hypothesis: Hypothesis) -> Spec {
    Spec { rules: hypothesis.rules(), ..spec(Version::Esx35, DISK) }
}

/// Returns the (host reads, host writes) that `work` costs.
async fn cost(esx: &Esx, work: impl Future<Output = ()>) -> (u64, u64) {
    let before = esx.counters().unwrap();
    work.await;
    let after = esx.counters().unwrap();
    (after.reads - before.reads, after.writes - before.writes)
}

async fn costs(env: Env, hypothesis: Hypothesis) -> [(u64, u64); 4] {
    let esx = prepared(&env, under(hypothesis)).await;
    let disk = disk(&esx);
    [
        cost(&esx, async { drop(read(&disk, 0, BLOCK).await) }).await,
        cost(&esx, write(&disk, 0, BLOCK)).await,
        cost(&esx, write(&disk, 64 << 10, BLOCK)).await,
        cost(&esx, async { drop(read(&disk, 32 << 20, BLOCK).await) }).await,
    ]
}

#[test]
fn host_ios_per_guest_io_are_the_articles() {
    let of = |hypothesis| steady(move |env| costs(env, hypothesis)).0;
    // In order: a read, an overwrite, a first write, and a read in a region without a table.
    assert_eq!(of(Hypothesis::IoLockBlind), [(2, 0), (0, 1), (0, 2), (1, 0)]);
    assert_eq!(of(Hypothesis::DeltaLock), [(2, 0), (0, 1), (0, 2), (1, 0)]);
    assert_eq!(of(Hypothesis::IoLock), [(2, 0), (1, 1), (1, 2), (1, 0)]);
    assert_eq!(of(Hypothesis::Concurrent), of(Hypothesis::IoLock));
    assert_eq!(of(Hypothesis::TableLock), of(Hypothesis::IoLock));
    assert_eq!(of(Hypothesis::TableLockCached), [(1, 0), (0, 1), (0, 2), (1, 0)]);
}

/// Returns the milliseconds until four I/Os that start together have all ended.
async fn four(env: Env, hypothesis: Hypothesis, is_read: bool) -> u64 {
    let esx = prepared(&env, under(hypothesis)).await;
    let begin = env.now_ns();
    let tasks: Vec<_> = (0..4)
        .map(|region| {
            let disk = disk(&esx);
            let at = region * (2 << 20);
            env.spawn(async move {
                match is_read {
                    true => drop(read(&disk, at, BLOCK).await),
                    false => write(&disk, at, BLOCK).await,
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().await;
    }
    (env.now_ns() - begin) / MS
}

#[test]
fn what_is_serial_takes_its_time() {
    let ms = |hypothesis, is_read| steady(move |env| four(env, hypothesis, is_read)).0;
    let both = |hypothesis| (ms(hypothesis, true), ms(hypothesis, false));
    assert_eq!(both(Hypothesis::Concurrent), (2, 2));
    // Four look-ups run in turn; the last one's data follows it.
    assert_eq!(both(Hypothesis::TableLock), (5, 5));
    assert_eq!(both(Hypothesis::IoLock), (8, 8));
    assert_eq!(both(Hypothesis::IoLockBlind), (8, 4));
    assert_eq!(both(Hypothesis::DeltaLock), (8, 1));
    assert_eq!(both(Hypothesis::TableLockCached), (1, 1));
}

#[test]
fn counters_are_what_the_guest_did() {
    let (counters, _) = steady(|env| async move {
        let esx = prepared(&env, under(Hypothesis::IoLockBlind)).await;
        let before = esx.counters().unwrap();
        for _ in 0..1024 {
            drop(read(&disk(&esx), 0, BLOCK).await);
            write(&disk(&esx), 0, BLOCK).await;
        }
        let after = esx.counters().unwrap();
        Counters {
            reads: after.reads - before.reads,
            writes: after.writes - before.writes,
            table_reads: after.table_reads - before.table_reads,
            table_writes: after.table_writes - before.table_writes,
            ..Counters::default()
        }
    });
    let expected = Counters { reads: 2048, writes: 1024, table_reads: 1024, ..Counters::default() };
    assert_eq!(counters, expected);
}

#[test]
fn a_request_that_is_given_up_leaves_the_queue() {
    let (took_ms, _) = steady(|env| async move {
        let esx = prepared(&env, under(Hypothesis::IoLock)).await;
        let disk = disk(&esx);
        let begin = env.now_ns();
        let first = {
            let disk = disk.clone();
            env.spawn(async move { drop(read(&disk, 0, BLOCK).await) })
        };
        // The first request has the turn by now. The second one waits for it and is dropped.
        env.sleep_us(100).await;
        let second = disk.clone().read(2 << 20, Buf::alloc(BLOCK));
        drop(select(second, Box::pin(env.sleep_us(100))).await);
        drop(read(&disk, 4 << 20, BLOCK).await);
        first.join().await;
        (env.now_ns() - begin) / MS
    });
    assert_eq!(took_ms, 4);
}

/// Returns (milliseconds, host writes) of a first write, of another one in the same block, and of a first write with a
/// snapshot.
async fn first_writes(env: Env, zeroing: Zeroing) -> [(u64, u64); 3] {
    let spec = Spec { zeroing, ..under(Hypothesis::IoLockBlind) };
    let esx = create(&env, spec).await;
    let disk = disk(&esx);
    let mut costs = [(0, 0); 3];
    for (n, at) in [5 << 20, (5 << 20) + (64 << 10), 9 << 20].into_iter().enumerate() {
        if n == 2 {
            esx.take(SNAPSHOT).await.unwrap();
            // This write extends the file and fills its first block.
            write(&disk, 0, 2 * BLOCK_OF_VMFS).await;
        }
        let begin = env.now_ns();
        let (_, writes) = cost(&esx, write(&disk, at, BLOCK)).await;
        costs[n] = ((env.now_ns() - begin) / MS, writes);
    }
    costs
}

const BLOCK_OF_VMFS: usize = 1 << 20;

#[test]
fn a_block_is_zeroed_before_it_is_first_written() {
    let of = |zeroing| steady(move |env| first_writes(env, zeroing)).0;
    // Zeros and two records precede the data. The delta's block is in use already; its first write pays for table and
    // directory.
    assert_eq!(of(Zeroing::Host), [(4, 4), (1, 1), (3, 3)]);
    assert_eq!(of(Zeroing::Storage), of(Zeroing::Host));
    assert_eq!(of(Zeroing::Nothing), [(1, 1), (1, 1), (3, 3)]);
}

#[test]
fn a_file_grows_in_steps_of_16_mib() {
    let ((counters, sizes), _) = steady(|env| async move {
        let esx = create(&env, under(Hypothesis::IoLockBlind)).await;
        esx.take(SNAPSHOT).await.unwrap();
        let before = esx.counters().unwrap();
        for n in 0..512 {
            write(&disk(&esx), n * (64 << 10), 64 << 10).await;
        }
        let dir = env.open_root("/").unwrap();
        let delta = dir.open("disk0-000001-delta.vmdk", OpenMode::Read).await.unwrap();
        let size = delta.size().await.unwrap();
        (esx.counters().unwrap().writes - before.writes, size)
    });
    // 32 MiB of data and 16 tables take three steps of 5 records each. Each region also writes its directory sector.
    assert_eq!(sizes, 4096 + (48 << 20));
    assert_eq!(counters, 512 * 2 + 16 + 3 * 5);
}

#[test]
fn redo_layers_write_their_tables_at_flushes() {
    let (costs, _) = steady(|env| async move {
        let esx = prepared(&env, Spec::redo(false, vec![DISK])).await;
        let disk = disk(&esx);
        [
            // Each of the four regions writes a table and a sector of its directory.
            cost(&esx, async { disk.clone().flush().await.unwrap() }).await,
            cost(&esx, write(&disk, 64 << 10, BLOCK)).await,
            cost(&esx, async { disk.clone().flush().await.unwrap() }).await,
            cost(&esx, async { drop(read(&disk, 64 << 10, BLOCK).await) }).await,
        ]
    });
    assert_eq!(costs, [(0, 8), (0, 1), (0, 1), (1, 0)]);
}

#[test]
fn sesparse_modifies_grains_that_a_write_covers_in_part() {
    let (costs, _) = steady(|env| async move {
        let esx = prepared(&env, spec(Version::Esx70, DISK)).await;
        let disk = disk(&esx);
        [
            // Two new grains, half of each: both other halves are read from below.
            cost(&esx, write(&disk, (1 << 20) + 2048, BLOCK)).await,
            // The same write again: the grains exist.
            cost(&esx, write(&disk, (1 << 20) + 2048, BLOCK)).await,
            cost(&esx, write(&disk, 1 << 19, BLOCK)).await,
            cost(&esx, async { drop(read(&disk, 1 << 19, BLOCK).await) }).await,
        ]
    });
    // The record of a first write is written together with the four sectors of the previous one: table, bitmap,
    // backmap, and once the directory. Sectors of one write are not neighbours.
    assert_eq!(costs, [(2, 2 + 3), (0, 1), (0, 2 + 3), (1, 0)]);
}

#[test]
fn a_filter_spares_reads_the_tables_of_what_is_not_held() {
    let of = |read_filter| {
        let costs = steady(move |env| async move {
            let mut spec = spec(Version::Esx70, DISK);
            (spec.rules.read_filter, spec.rules.table_cache) = (read_filter, TableCache::Nothing);
            let esx = prepared(&env, spec).await;
            let disk = disk(&esx);
            [
                cost(&esx, async { drop(read(&disk, 0, BLOCK).await) }).await,
                cost(&esx, async { drop(read(&disk, 64 << 10, BLOCK).await) }).await,
            ]
        });
        costs.0
    };
    assert_eq!(of(false), [(2, 0), (2, 0)]);
    assert_eq!(of(true), [(2, 0), (1, 0)]);
}

/// Returns the milliseconds until eight first writes that start together have all ended, and the number of host writes.
async fn eight_first_writes(env: Env, journal_writes: u32) -> (u64, u64) {
    let mut spec = spec(Version::Esx70, DISK);
    spec.rules.journal_writes = journal_writes;
    let esx = prepared(&env, spec).await;
    let (begin, before) = (env.now_ns(), esx.counters().unwrap().writes);
    let writes = (0..8).map(|n| {
        let disk = disk(&esx);
        env.spawn(async move { write(&disk, (8 << 20) + n * (256 << 10), BLOCK).await })
    });
    for write in writes.collect::<Vec<_>>() {
        write.join().await;
    }
    ((env.now_ns() - begin) / MS, esx.counters().unwrap().writes - before)
}

#[test]
fn first_writes_share_the_records_of_the_journal() {
    let of = |journal_writes| steady(move |env| eight_first_writes(env, journal_writes)).0;
    // The look-up and the data come first, then the record of the first write, then that of the seven others. Together
    // with the two records go three sectors of the previous write and three of the first.
    assert_eq!(of(24), (2 + 2, 8 + 2 + 3 + 3));
    assert_eq!(of(1), (2 + 8, 8 + 8 + 8 * 3));
}
