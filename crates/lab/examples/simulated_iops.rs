//! Simulated guest I/Os a second on one core: 70 % reads, 4 KiB, random, depth 8, on modelled flash, every sector stamped
//! and verified. One row is the bare executor and device, and one row is for each of our stores.
//!
//! `cargo run -p lab --release --example simulated_iops -- [I/Os] [MiB]`

#![allow(clippy::disallowed_methods)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use blk::volume::Volume;
use blk::{Buf, Env};
use engine::native::Store;
use lab::modelled::Engine;
use lab::modelled::native_store::store_with_disk;
use lab::storage::StorageModel;
use sim::oracle::{NEVER, sequence_of, stamp};
use sim::{ContentMode, SimWorld};

const DEPTH: u64 = 8;
const BLOCK: u64 = 4096;
const SECTOR: usize = 512;
const READ_PERCENT: u64 = 70;

struct Load {
    disk: Rc<dyn Volume>,
    ios: u64,
    blocks: u64,
    /// Write number each block shows; a block is one worker's own, so there is one possible answer.
    shown: RefCell<Vec<u32>>,
    verified: bool,
}

impl Load {
    async fn write(&self, block: u64) {
        let number = {
            let shown = &mut self.shown.borrow_mut()[block as usize];
            *shown += 1;
            *shown
        };
        let mut buf = Buf::alloc(BLOCK as usize);
        if self.verified {
            for (sector, bytes) in (block * 8..).zip(buf.chunks_exact_mut(SECTOR)) {
                stamp(bytes, 0, sector, u64::from(number));
            }
        }
        self.disk.clone().write(block * BLOCK, buf.freeze()).await.expect("writes");
    }

    async fn read(&self, block: u64) {
        let (buf, result) = self.disk.clone().read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
        result.expect("reads");
        if !self.verified {
            return;
        }
        let shown = self.shown.borrow()[block as usize];
        let expected = if shown == 0 { NEVER } else { u64::from(shown) };
        for (sector, bytes) in (block * 8..).zip(buf.chunks_exact(SECTOR)) {
            assert_eq!(sequence_of(bytes, 0, sector).expect("its own stamp"), expected, "block {block}");
        }
    }

    async fn work(self: Rc<Load>, env: Env, worker: u64) {
        let mut rng = sim::Rng::new(env.random());
        for _ in 0..self.ios / DEPTH {
            let block = rng.below(self.blocks / DEPTH) * DEPTH + worker;
            if rng.below(100) < READ_PERCENT {
                self.read(block).await;
            } else {
                self.write(block).await;
            }
        }
    }

    /// Writes every block once, and a checkpoint where there is one, so that nothing is allocated later. Returns the
    /// seconds of the load alone: by the wall clock, and in the simulation.
    async fn run(self: Rc<Load>, env: &Env, store: Option<Rc<Store>>) -> (f64, f64) {
        for block in 0..self.blocks {
            self.write(block).await;
        }
        self.disk.clone().flush().await.expect("flushes");
        if let Some(store) = store {
            store.checkpoint().await.expect("a checkpoint");
        }
        let (began, began_ns) = (Instant::now(), env.now_ns());
        let workers: Vec<_> = (0..DEPTH).map(|n| env.spawn(self.clone().work(env.clone(), n))).collect();
        for worker in workers {
            worker.join().await;
        }
        (began.elapsed().as_secs_f64(), (env.now_ns() - began_ns) as f64 / 1e9)
    }
}

async fn native(env: &Env, bytes: u64) -> (Rc<dyn Volume>, Option<Rc<Store>>) {
    let (store, disk) = store_with_disk(env, bytes).await.expect("a disk");
    (disk, Some(store))
}

fn row(name: &str, engine: Engine, content: ContentMode, ios: u64, mib: u64) -> u64 {
    let model = StorageModel::named("nvme").expect("ships");
    let storage = Some(model.storage());
    let options = sim::Options { storage, content, events_max: u64::MAX, ..sim::Options::default() };
    let world = SimWorld::new(1, options);
    let inside = world.clone();
    let (bytes, verified) = (mib << 20, content == ContentMode::Applied);
    let main = |env: Env| async move {
        let (disk, store) = match engine {
            Engine::Native => native(&env, bytes).await,
            _ => (engine.make(&env, &inside, &[bytes]).await.expect("made").disks().remove(0), None),
        };
        let blocks = bytes / BLOCK;
        let shown = RefCell::new(vec![0; blocks as usize]);
        Rc::new(Load { disk, ios, blocks, shown, verified }).run(&env, store).await
    };
    let (real, simulated) = world.run(main).expect("runs to its end");
    let (real, simulated) = (ios as f64 / real / 1e6, ios as f64 / simulated / 1e3);
    println!("{name:<38} {real:6.2} M I/Os per second of one core; the device gave {simulated:.0} K/s");
    world.event_hash()
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let ios = numbers.next().unwrap_or(4_000_000);
    let mib = numbers.next().unwrap_or(256);
    row("executor and device, no content", Engine::Plain, ContentMode::Absent, ios, mib);
    row("executor and device, stamps verified", Engine::Plain, ContentMode::Applied, ios, mib);
    row("redo, a flat disk, stamps verified", Engine::Redo, ContentMode::Applied, ios, mib);
    let native = || row("native, stamps verified", Engine::Native, ContentMode::Applied, ios, mib);
    assert_eq!(native(), native(), "a seed repeats");
}
