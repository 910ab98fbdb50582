//! Sequential reads of a native disk after random writes between snapshots, and after a defragmentation, on modelled
//! storage in virtual time: 1 MiB, depth 4, as a ratio to the reads before the first snapshot.
//!
//! `cargo run -p lab --release --example sequential_reads -- [MiB] [writes between two takes]`

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use engine::Job;
use engine::job::DEFRAGMENT;
use engine::native::change::Op;
use engine::native::{DefragmentJob, DefragmentScope, NativeDisk, Store};
use lab::modelled::native_store::store_with_disk;
use lab::modelled::world_options;
use lab::storage::StorageModel;
use sim::SimWorld;

const STORAGE: [&str; 3] = ["nvme", "sata-ssd", "sas-10k-stripe"];
const SNAPSHOTS: [u64; 3] = [1, 10, 100];
const BLOCK: u64 = 4096;
const READ_BYTES: u64 = 1 << 20;
const READS_AT_ONCE: u64 = 4;
const WRITES_AT_ONCE: u64 = 8;

/// When the disk is defragmented.
#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    /// The snapshots are there, and their blocks are copied.
    Beside,
    /// The snapshots were removed.
    Behind,
}

struct Figures {
    fragmented: f64,
    defragmented: f64,
    pass_s: f64,
    moved_bytes: u64,
}

async fn make(env: &Env, bytes: u64) -> (Rc<Store>, Rc<NativeDisk>) {
    let (store, disk) = store_with_disk(env, bytes).await.expect("a disk");
    for at in (0..bytes).step_by(READ_BYTES as usize) {
        write(&disk, at, READ_BYTES).await;
    }
    store.flush().await.expect("flushes");
    store.checkpoint().await.expect("a checkpoint");
    (store, disk)
}

async fn write(disk: &Rc<NativeDisk>, at: u64, len: u64) {
    let mut buf = Buf::alloc(len as usize);
    buf.fill(1);
    disk.clone().write(at, buf.freeze()).await.expect("writes");
}

/// Returns the bytes a second of reads of the whole disk in order.
async fn read_in_order(env: &Env, disk: &Rc<NativeDisk>) -> f64 {
    let (began_ns, bytes) = (env.now_ns(), disk.size_bytes());
    let workers: Vec<_> = (0..READS_AT_ONCE)
        .map(|worker| {
            let disk = disk.clone();
            env.spawn(async move {
                for n in (worker..bytes / READ_BYTES).step_by(READS_AT_ONCE as usize) {
                    let read = disk.clone().read(n * READ_BYTES, Buf::alloc(READ_BYTES as usize));
                    read.await.1.expect("reads");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().await;
    }
    bytes as f64 * 1e9 / (env.now_ns() - began_ns) as f64
}

async fn write_at_random(env: &Env, disk: &Rc<NativeDisk>, count: u64) {
    let workers: Vec<_> = (0..WRITES_AT_ONCE)
        .map(|_| {
            let (disk, mut rng) = (disk.clone(), sim::Rng::new(env.random()));
            env.spawn(async move {
                for _ in 0..count / WRITES_AT_ONCE {
                    write(&disk, rng.below(disk.size_bytes() / BLOCK) * BLOCK, BLOCK).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().await;
    }
}

async fn remove_all(store: &Rc<Store>, sealed: &[u64]) {
    let ops: Vec<Op> = sealed.iter().rev().map(|node| Op::Drop { node: *node }).collect();
    store.change(&ops).expect("dropped");
    while !store.dropped_nodes().is_empty() {
        store.checkpoint().await.expect("a checkpoint");
    }
}

async fn measure(env: Env, bytes: u64, snapshots: u64, writes: u64, when: When) -> Figures {
    let (store, disk) = make(&env, bytes).await;
    let before = read_in_order(&env, &disk).await;
    let mut all = Vec::new();
    for _ in 0..snapshots {
        let sealed = store.new_node_id();
        store.change(&[Op::Take { running: disk.node.id, sealed }]).expect("taken");
        store.flush().await.expect("flushes");
        write_at_random(&env, &disk, writes).await;
        all.push(sealed);
    }
    store.checkpoint().await.expect("a checkpoint");
    let fragmented = read_in_order(&env, &disk).await / before;
    let scope = match when {
        When::Beside => DefragmentScope::SharedToo,
        When::Behind => {
            remove_all(&store, &all).await;
            DefragmentScope::Exclusive
        }
    };
    let began_ns = env.now_ns();
    let job = Job::new(env.clone(), 1, DEFRAGMENT, String::new());
    let done = disk.defragment(scope, DefragmentJob { job: &job, before: 0, after: 0 }).await.expect("done");
    let pass_s = (env.now_ns() - began_ns) as f64 / 1e9;
    let defragmented = read_in_order(&env, &disk).await / before;
    store.close().await.expect("closes");
    Figures { fragmented, defragmented, pass_s, moved_bytes: done.moved_bytes }
}

fn row(storage: &str, bytes: u64, snapshots: u64, writes: u64, when: When) -> Figures {
    let model = StorageModel::named(storage).expect("ships");
    let below = sim::Options { storage: Some(model.storage()), ..sim::Options::default() };
    let world = SimWorld::new(1, world_options(below));
    world.run(move |env| measure(env, bytes, snapshots, writes, when)).expect("runs to its end")
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let bytes = numbers.next().unwrap_or(1024) << 20;
    let writes = numbers.next().unwrap_or(2000);
    for storage in STORAGE {
        for snapshots in SNAPSHOTS {
            for when in [When::Beside, When::Behind] {
                let Figures { fragmented, defragmented, pass_s, moved_bytes } =
                    row(storage, bytes, snapshots, writes, when);
                let moved = moved_bytes >> 20;
                let how = match when {
                    When::Beside => "with copies of shared blocks",
                    When::Behind => "when they are removed",
                };
                println!(
                    "{storage:<15} {snapshots:>3} snapshots: {fragmented:.2}; defragmented {how}: {defragmented:.2} \
                     ({moved} MiB in {pass_s:.1} s)"
                );
            }
        }
    }
}
