//! Simulated guest I/Os a second on one core: 70 % reads, 4 KiB, random, depth 8, on modelled flash, every sector stamped
//! and verified. A row for the bare executor and device, one for each of our stores.
//!
//! `cargo run -p lab --release --example simulated_iops -- [I/Os] [MiB]`

#![allow(clippy::disallowed_methods)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use blk::volume::Volume;
use blk::{Buf, Env, File, Slice};
use crash::home;
use engine::native::change::Op;
use engine::native::space::Growth;
use engine::native::{DiskOptions, NativeDisk, NewStore, Store, StoreOptions};
use engine::{Options, SpacePolicy, Vm};
use lab::storage::StorageModel;
use sim::oracle::{NEVER, sequence_of, stamp};
use sim::{ContentMode, SimWorld};

const DEPTH: u64 = 8;
const BLOCK: u64 = 4096;
const SECTOR: usize = 512;
const READ_PERCENT: u64 = 70;

/// What is measured: time goes by only while the load runs.
struct Load {
    ios: u64,
    blocks: u64,
    /// Write number each block shows; a block is one worker's own, so there is one possible answer.
    shown: RefCell<Vec<u32>>,
    verified: bool,
}

#[derive(Clone)]
enum Target {
    File(File),
    Volume(Rc<dyn Volume>),
}

impl Target {
    async fn read(&self, at: u64, buf: Buf) -> Buf {
        let (buf, result) = match self {
            Target::File(file) => file.read(at, buf).await,
            Target::Volume(volume) => volume.clone().read(at, buf).await,
        };
        result.expect("reads");
        buf
    }

    async fn write(&self, at: u64, data: Slice) {
        let result = match self {
            Target::File(file) => file.write(at, data).await,
            Target::Volume(volume) => volume.clone().write(at, data).await,
        };
        result.expect("writes");
    }
}

impl Load {
    fn stamped(&self, block: u64) -> Buf {
        let mut buf = Buf::alloc(BLOCK as usize);
        let number = {
            let shown = &mut self.shown.borrow_mut()[block as usize];
            *shown += 1;
            *shown
        };
        if self.verified {
            for (n, sector) in buf.chunks_exact_mut(SECTOR).enumerate() {
                stamp(sector, 0, block * 8 + n as u64, u64::from(number));
            }
        }
        buf
    }

    fn verify(&self, block: u64, buf: &[u8]) {
        if !self.verified {
            return;
        }
        let expected = self.shown.borrow()[block as usize];
        for (n, sector) in buf.chunks_exact(SECTOR).enumerate() {
            let found = sequence_of(sector, 0, block * 8 + n as u64).expect("its own stamp");
            let expected = if expected == 0 { NEVER } else { u64::from(expected) };
            assert_eq!(found, expected, "block {block}, sector {n}");
        }
    }

    /// Every block once, and a checkpoint where there is one, so that nothing is allocated while the time is taken.
    async fn prepare(&self, target: &Target, store: Option<Rc<Store>>) {
        for block in 0..self.blocks {
            target.write(block * BLOCK, self.stamped(block).freeze()).await;
        }
        if let Some(store) = store {
            store.flush().await.expect("flushed");
            store.checkpoint().await.expect("a checkpoint");
        }
    }

    async fn work(self: Rc<Load>, env: Env, target: Target, worker: u64) {
        let mut rng = sim::Rng::new(env.random());
        for _ in 0..self.ios / DEPTH {
            let block = rng.below(self.blocks / DEPTH) * DEPTH + worker;
            if rng.below(100) < READ_PERCENT {
                let buf = target.read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
                self.verify(block, &buf);
            } else {
                target.write(block * BLOCK, self.stamped(block).freeze()).await;
            }
        }
    }

    /// Wall-clock seconds of the load alone.
    async fn run(self: Rc<Load>, env: &Env, target: &Target) -> f64 {
        let began = Instant::now();
        let workers: Vec<_> = (0..DEPTH)
            .map(|worker| env.spawn(self.clone().work(env.clone(), target.clone(), worker)))
            .collect();
        for worker in workers {
            worker.join().await;
        }
        began.elapsed().as_secs_f64()
    }
}

async fn bare(env: &Env, bytes: u64) -> Target {
    let file = env.open_root("/").expect("a root").create_new("disk").await.expect("made");
    file.allocate(0, bytes).await.expect("room");
    Target::File(file)
}

async fn redo(env: &Env, bytes: u64) -> Target {
    home::create(env, &[bytes]).await.expect("a home");
    let home = home::open(env, 16 << 20, false).expect("opened");
    let vm = Vm::open(env.clone(), home, Options::default()).await.expect("a VM");
    Target::Volume(vm.disks()[0].clone())
}

async fn native(env: &Env, bytes: u64) -> (Target, Rc<Store>) {
    let file = env.open_root("/").expect("a root").create_new("store").await.expect("made");
    Store::format(env, &file, NewStore::default()).await.expect("a store");
    let store = Store::open(env.clone(), file, StoreOptions::default(), Growth::default(), true);
    let store = store.await.expect("opened");
    let node = store.new_node_id();
    store.change(&[Op::Create { node, size_blocks: bytes / BLOCK }]).expect("a disk");
    let terms = DiskOptions { policy: SpacePolicy::Error, space_retry_us: 500 };
    let node = store.node(node).expect("there");
    (Target::Volume(NativeDisk::new(&store, node, "disk".into(), 0, terms)), store)
}

fn row(name: &str, content: ContentMode, ios: u64, mib: u64, which: u8) -> u64 {
    let model = StorageModel::named("nvme").expect("ships");
    let storage = Some(model.storage());
    let options = sim::Options { storage, content, events_max: u64::MAX, ..sim::Options::default() };
    let world = SimWorld::new(1, options);
    let bytes = mib << 20;
    let load = Rc::new(Load {
        ios,
        blocks: bytes / BLOCK,
        shown: RefCell::new(vec![0; (bytes / BLOCK) as usize]),
        verified: content == ContentMode::Applied,
    });
    let clock = world.clone();
    let (seconds, virtual_ns) = world
        .run(|env| async move {
            let (target, store) = match which {
                0 => (bare(&env, bytes).await, None),
                1 => (redo(&env, bytes).await, None),
                _ => {
                    let (target, store) = native(&env, bytes).await;
                    (target, Some(store))
                }
            };
            load.prepare(&target, store).await;
            let began_ns = clock.now_ns();
            let seconds = load.clone().run(&env, &target).await;
            (seconds, clock.now_ns() - began_ns)
        })
        .expect("runs to its end");
    let (real, simulated) = (ios as f64 / seconds / 1e6, ios as f64 * 1e9 / virtual_ns as f64 / 1e3);
    println!("{name:<38} {real:6.2} M I/Os per second of one core; the device gave {simulated:.0} K/s");
    world.event_hash()
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let ios = numbers.next().unwrap_or(4_000_000);
    let mib = numbers.next().unwrap_or(256);
    row("executor and device, no content", ContentMode::Absent, ios, mib, 0);
    row("executor and device, stamps verified", ContentMode::Applied, ios, mib, 0);
    row("redo, a flat disk, stamps verified", ContentMode::Applied, ios, mib, 1);
    let native = || row("native, stamps verified", ContentMode::Applied, ios, mib, 2);
    assert_eq!(native(), native(), "a seed repeats");
}
