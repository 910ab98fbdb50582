//! Random reads of a native disk whose map is fragmented, with caches of three sizes, beside a disk in the same store whose
//! map is not: in virtual time, on modelled storage. Prints the table of `docs/performance.md`.
//!
//! `cargo run -p lab --release --example fragmented_reads -- [GiB of a disk]`
//!
//! With disks of 2 GiB it takes half a minute in release, on a machine with two cores and other load. With the 25 GiB of
//! the table it needs 7 GiB of memory and more than 7 minutes there; it is silent until the first storage is done.

#![allow(clippy::disallowed_methods)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Dir, Env};
use engine::native::space::Growth;
use engine::native::{NativeVm, NewNativeVm, Store, StoreOptions};
use engine::{Machine, Options, RunningDisk};
use hdrhistogram::Histogram;
use lab::modelled::native_store::new_store;
use lab::storage::StorageModel;
use sim::{ContentMode, SimWorld};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const STORAGE: [&str; 3] = ["nvme", "sata-ssd", "sas-10k-stripe"];
/// An eighth of 64 MiB, 256 MiB and 1 GiB, for disks of an eighth of 200 GiB.
const CACHES_MIB: [u64; 3] = [8, 32, 128];
const DEPTHS: [u64; 2] = [32, 1];
/// Reads that fill the cache before the measured ones: after so many random ones, nearly each of 26,000 leaves was read.
const WARM_READS: u64 = 300_000;
const READS: u64 = 50_000;
const WRITES_UNDER_WAY: u64 = 64;

/// The two disks, in the order of their numbers.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Whole,
    Fragmented,
}

/// What some reads of one disk took.
struct Measured {
    iops: f64,
    latency_us: Histogram<u64>,
    map_reads: f64,
}

struct Disk {
    env: Env,
    volume: Rc<dyn Volume>,
    blocks: u64,
}

impl Disk {
    /// Writes every block once: in order in large pieces, or in a random order.
    async fn fill(self: &Rc<Disk>, kind: Kind) {
        let piece = if kind == Kind::Whole { MIB / BLOCK } else { 1 };
        let (next, order) = (Rc::new(Cell::new(0)), Rc::new(Order::of(self.blocks / piece, kind)));
        let writers = (0..WRITES_UNDER_WAY).map(|_| {
            let (disk, next, order) = (self.clone(), next.clone(), order.clone());
            self.env.spawn(async move {
                while let Some(at) = Some(next.replace(next.get() + 1)).filter(|at| *at < order.count) {
                    disk.write(order.place(at) * piece, piece).await;
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.join().await;
        }
        self.volume.clone().flush().await.expect("flushes");
    }

    /// Each block repeats its own number.
    async fn write(&self, block: u64, count: u64) {
        let mut buf = Buf::alloc((count * BLOCK) as usize);
        for (number, bytes) in (block..).zip(buf.chunks_exact_mut(BLOCK as usize)) {
            bytes.as_chunks_mut::<8>().0.fill(number.to_le_bytes());
        }
        self.volume.clone().write(block * BLOCK, buf.freeze()).await.expect("writes");
    }

    async fn read(&self, block: u64) {
        let (buf, read) = self.volume.clone().read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
        read.expect("reads");
        let same = buf.as_chunks::<8>().0.iter().all(|bytes| *bytes == block.to_le_bytes());
        assert!(same, "block {block} shows other content");
    }

    /// Reads random blocks, `depth` at a time. Returns the latencies in microseconds.
    async fn read_some(self: &Rc<Disk>, reads: u64, depth: u64) -> Histogram<u64> {
        let latency_us = Rc::new(RefCell::new(Histogram::<u64>::new(3).expect("3 digits")));
        let readers = (0..depth).map(|_| {
            let (disk, latency_us) = (self.clone(), latency_us.clone());
            self.env.spawn(async move {
                let mut rng = sim::Rng::new(disk.env.random());
                for _ in 0..reads / depth {
                    let began_ns = disk.env.now_ns();
                    disk.read(rng.below(disk.blocks)).await;
                    latency_us.borrow_mut().record((disk.env.now_ns() - began_ns) / 1000).expect("in range");
                }
            })
        });
        for reader in readers.collect::<Vec<_>>() {
            reader.join().await;
        }
        latency_us.borrow().clone()
    }
}

/// A permutation of `0..count`: the rounds of a Feistel network over the next power of 4, and again where a number is not
/// below `count`.
struct Order {
    count: u64,
    /// Half of the bits of a number; 0 for the identity.
    half: u32,
}

impl Order {
    fn of(count: u64, kind: Kind) -> Order {
        let half = if kind == Kind::Whole { 0 } else { (64 - count.leading_zeros()).div_ceil(2) };
        Order { count, half }
    }

    fn place(&self, mut at: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let mix = |half: u64, round: u64| {
            let mixed = (half + round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
        };
        if self.half == 0 {
            return at;
        }
        loop {
            let (mut left, mut right) = (at >> self.half, at & mask);
            for round in 1..=4 {
                (left, right) = (right, left ^ (mix(right, round << 40) & mask));
            }
            at = left << self.half | right;
            if at < self.count {
                return at;
            }
        }
    }
}

async fn open(env: &Env, dir: &Dir, cache_mib: u64) -> Rc<Store> {
    let file = dir.open("store", OpenMode::Write).await.expect("the store's file");
    let map_cache_bytes = usize::try_from(cache_mib * MIB).expect("fits");
    let options = StoreOptions { map_cache_bytes, ..StoreOptions::default() };
    Store::open(env.clone(), file, options, Growth::default(), true).await.expect("the store")
}

/// Makes a VM with both disks, and returns its ID.
async fn make(env: &Env, dir: &Dir, disk_bytes: u64) -> u128 {
    drop(new_store(dir, "store").await.expect("a store"));
    let store = open(env, dir, CACHES_MIB[2]).await;
    let disk = || NewDisk { size_bytes: disk_bytes, mode: DiskMode::Persistent, folder: None, source: None };
    let new = NewNativeVm { name: "vm", disks: &[disk(), disk()], slots: &[] };
    let id = store.create_vm(new).await.expect("a VM");
    let vm = NativeVm::open(&store, id, Options::default()).await.expect("open");
    for kind in [Kind::Whole, Kind::Fragmented] {
        let (volume, _client) = vm.attach(kind as u32, "load").await.expect("attached");
        Rc::new(Disk { env: env.clone(), volume, blocks: disk_bytes / BLOCK }).fill(kind).await;
    }
    vm.close().await.expect("closed");
    store.close().await.expect("closed");
    id
}

async fn measure(env: &Env, vm: &Rc<NativeVm>, kind: Kind, depth: u64, disk_bytes: u64) -> Measured {
    let (volume, _client) = vm.attach(kind as u32, "load").await.expect("attached");
    let disk = Rc::new(Disk { env: env.clone(), volume, blocks: disk_bytes / BLOCK });
    let (before, began_ns) = (vm.disks()[0].device_counters().table_reads, env.now_ns());
    let latency_us = disk.read_some(READS, depth).await;
    let seconds = (env.now_ns() - began_ns) as f64 / 1e9;
    let map_reads = (vm.disks()[0].device_counters().table_reads - before) as f64 / latency_us.len() as f64;
    Measured { iops: latency_us.len() as f64 / seconds, latency_us, map_reads }
}

fn row(storage: &str, cache_mib: u64, depth: u64, whole: &Measured, fragmented: &Measured) -> String {
    let p = |of: &Measured, quantile: f64| of.latency_us.value_at_quantile(quantile) as f64;
    let ratio = |quantile: f64| p(fragmented, quantile) / p(whole, quantile);
    format!(
        "| {storage} | {cache_mib} MiB | {depth} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} |",
        whole.iops,
        fragmented.iops / whole.iops,
        ratio(0.5),
        ratio(0.99),
        fragmented.map_reads
    )
}

async fn rows(env: Env, storage: &str, disk_bytes: u64) -> Vec<String> {
    let dir = env.open_root("/").expect("a root");
    let id = make(&env, &dir, disk_bytes).await;
    let mut rows = Vec::new();
    for cache_mib in CACHES_MIB {
        let store = open(&env, &dir, cache_mib).await;
        let vm = NativeVm::open(&store, id, Options::default()).await.expect("open");
        let mut measured = Vec::new();
        for kind in [Kind::Whole, Kind::Fragmented] {
            let (volume, _client) = vm.attach(kind as u32, "load").await.expect("attached");
            let disk = Rc::new(Disk { env: env.clone(), volume, blocks: disk_bytes / BLOCK });
            disk.read_some(WARM_READS, DEPTHS[0]).await;
            for depth in DEPTHS {
                measured.push(measure(&env, &vm, kind, depth, disk_bytes).await);
            }
        }
        for (at, depth) in DEPTHS.into_iter().enumerate() {
            rows.push(row(storage, cache_mib, depth, &measured[at], &measured[DEPTHS.len() + at]));
        }
        vm.close().await.expect("closed");
        store.close().await.expect("closed");
    }
    rows
}

fn on_storage(storage: &'static str, disk_bytes: u64) -> Vec<String> {
    let model = StorageModel::named(storage).expect("ships").storage();
    let options = sim::Options {
        storage: Some(model),
        content: ContentMode::Applied,
        events_max: u64::MAX,
        ..sim::Options::default()
    };
    let world = SimWorld::new(1, options);
    world.run(|env| rows(env, storage, disk_bytes)).expect("runs to its end")
}

fn main() {
    let gib = std::env::args().nth(1).map_or(25, |arg| arg.parse::<u64>().expect("a number of GiB"));
    println!(
        "| storage | cache of map pages | depth | IOPS, not fragmented | IOPS | p50 | p99 | map page reads for each read |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let runs = STORAGE.map(|storage| std::thread::spawn(move || on_storage(storage, gib << 30)));
    for run in runs {
        run.join().expect("runs to its end").iter().for_each(|row| println!("{row}"));
    }
}
