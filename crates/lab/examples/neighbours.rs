//! What one VM feels of another one in the same native store, on modelled storage in virtual time: the latency of a
//! writer of 4 KiB at depth 1 (median, 99th percentile), alone and beside each kind of work of its neighbour.
//!
//! The front ends are not part of it. They let a VM begin 4 MiB at once beside others, in pieces of 1 MiB, so the large
//! requests are four pieces at a time here; one row shows 64 for comparison. The default takes two minutes.
//!
//! `cargo run -p lab --release --example neighbours -- [MiB of the neighbour] [writes]`

use std::cell::Cell;
use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, Local};
use engine::job::{DEFRAGMENT, MOVE, SCRUB};
use engine::native::change::Op;
use engine::native::space::Growth;
use engine::native::{
    DefragmentJob, DefragmentScope, NativeDisk, NativeVm, NewNativeVm, NewStore, Store, StoreOptions,
};
use engine::relocate::Relocation;
use engine::{Job, Options};
use lab::modelled::world_options;
use lab::storage::StorageModel;
use sim::SimWorld;

const STORAGE: [&str; 3] = ["nvme", "sata-ssd", "sas-10k-stripe"];
const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const OWN_BYTES: u64 = 64 * MIB;
/// Pieces of 1 MiB that a front end lets a VM have under way beside others.
const PIECES_AT_ONCE: u64 = 4;
const UNBOUNDED_AT_ONCE: u64 = 64;
/// Writes before the measurement, while the neighbour's work begins.
const WARM_UP: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Nothing,
    UnboundedWrites,
    LargeWrites,
    FragmentedReads,
    Scrub,
    Move,
    Drop,
    Defragmentation,
}

const WORK: [(Work, &str); 8] = [
    (Work::Nothing, "alone"),
    (Work::UnboundedWrites, "64 writes of 1 MiB without a front end"),
    (Work::LargeWrites, "writes of 1 MiB"),
    (Work::FragmentedReads, "reads of 1 MiB of a fragmented disk"),
    (Work::Scrub, "a scrub of the store"),
    (Work::Move, "a move"),
    (Work::Drop, "the drop of a snapshot"),
    (Work::Defragmentation, "a defragmentation"),
];

/// A store with the measured VM and its neighbour.
struct Shared {
    env: Env,
    store: Rc<Store>,
    own: Rc<dyn Volume>,
    neighbour: Rc<NativeVm>,
    disk: Rc<NativeDisk>,
    stopped: Cell<bool>,
}

async fn make_vm(store: &Rc<Store>, name: &str, bytes: u64) -> Rc<NativeVm> {
    let disk = NewDisk { size_bytes: bytes, mode: DiskMode::Persistent, folder: None, source: None };
    let id = store.create_vm(NewNativeVm { name, disks: &[disk], slots: &[] }).await.expect("a VM");
    NativeVm::open(store, id, Options::default()).await.expect("opened")
}

async fn write(disk: Rc<dyn Volume>, at: u64, len: u64) {
    let mut buf = Buf::alloc(len as usize);
    buf.fill(1);
    disk.write(at, buf.freeze()).await.expect("writes");
}

impl Shared {
    async fn make(env: &Env, bytes: u64) -> Rc<Shared> {
        let file = env.open_root("/").expect("a root").create_new("store").await.expect("made");
        Store::format(env, &file, NewStore::default()).await.expect("a store");
        let store = Store::open(env.clone(), file, StoreOptions::default(), Growth::default(), true);
        let store = store.await.expect("opened");
        let (own, neighbour) =
            (make_vm(&store, "own", OWN_BYTES).await, make_vm(&store, "neighbour", bytes).await);
        let (own, disk) = (own.disk(0).expect("a disk"), neighbour.disk(0).expect("a disk"));
        for (disk, bytes) in [(&own, OWN_BYTES), (&disk, bytes)] {
            for at in (0..bytes).step_by(MIB as usize) {
                write(disk.clone(), at, MIB).await;
            }
        }
        let shared = Shared {
            env: env.clone(),
            store: store.clone(),
            own,
            neighbour,
            disk,
            stopped: Cell::new(false),
        };
        let mut rng = sim::Rng::new(env.random());
        // A snapshot whose removal frees blocks, and a fragmented disk.
        store
            .change(&[Op::Take { running: shared.disk.node.id, sealed: store.new_node_id() }])
            .expect("taken");
        for _ in 0..bytes / BLOCK / 4 {
            write(shared.disk.clone(), rng.below(bytes / BLOCK) * BLOCK, BLOCK).await;
        }
        store.flush().await.expect("flushes");
        store.checkpoint().await.expect("a checkpoint");
        Rc::new(shared)
    }

    fn job(&self, kind: &'static str) -> Rc<Job> {
        Job::new(self.env.clone(), 1, kind, String::new())
    }

    /// Starts the neighbour's work, which goes on until it is stopped, or done.
    fn begin(self: &Rc<Shared>, work: Work) {
        let shared = self.clone();
        let task: Local<'static, ()> = match work {
            Work::Nothing => return,
            Work::UnboundedWrites => return self.begin_large(UNBOUNDED_AT_ONCE, true),
            Work::LargeWrites => return self.begin_large(PIECES_AT_ONCE, true),
            Work::FragmentedReads => return self.begin_large(PIECES_AT_ONCE, false),
            Work::Scrub => Box::pin(async move {
                while !shared.stopped.get() {
                    shared.store.scrub(&shared.job(SCRUB)).await.expect("scrubbed");
                }
            }),
            Work::Move => Box::pin(async move { shared.move_neighbour().await }),
            Work::Drop => Box::pin(async move { shared.drop_snapshots().await }),
            Work::Defragmentation => Box::pin(async move {
                let job = shared.job(DEFRAGMENT);
                let limits = DefragmentJob { job: &job, before: 0, after: 0 };
                shared.disk.defragment(DefragmentScope::SharedToo, limits).await.expect("done");
            }),
        };
        self.env.spawn_detached(task);
    }

    fn begin_large(self: &Rc<Shared>, at_once: u64, writes: bool) {
        for worker in 0..at_once {
            let shared = self.clone();
            self.env.spawn_detached(Box::pin(async move {
                let pieces = shared.disk.size_bytes() / MIB;
                for n in (worker..).step_by(at_once as usize).take_while(|_| !shared.stopped.get()) {
                    let (disk, at) = (shared.disk.clone(), n % pieces * MIB);
                    match writes {
                        true => write(disk, at, MIB).await,
                        false => disk.read(at, Buf::alloc(MIB as usize)).await.1.expect("reads"),
                    }
                }
            }));
        }
    }

    async fn move_neighbour(&self) {
        let target = make_vm(&self.store, "target", self.disk.size_bytes()).await;
        let moving = Relocation::new(self.neighbour.clone(), target, self.job(MOVE));
        moving.copy_snapshots().await.expect("copied");
        let _mirrors = moving.mirrors().await.expect("mirrors");
        moving.copy_running().await.expect("copied");
    }

    async fn drop_snapshots(&self) {
        while !self.stopped.get() {
            let sealed = self.store.new_node_id();
            self.store.change(&[Op::Take { running: self.disk.node.id, sealed }]).expect("taken");
            for at in (0..self.disk.size_bytes()).step_by(16 * MIB as usize) {
                write(self.disk.clone(), at, MIB).await;
            }
            self.store.change(&[Op::Drop { node: sealed }]).expect("dropped");
            while !self.store.dropped_nodes().is_empty() && !self.stopped.get() {
                self.store.checkpoint().await.expect("a checkpoint");
            }
        }
    }

    /// Returns the median and the 99th percentile of the own writes, in microseconds.
    async fn measure(&self, writes: u64) -> (f64, f64) {
        let mut rng = sim::Rng::new(self.env.random());
        let mut all = Vec::new();
        for n in 0..WARM_UP + writes {
            let began_ns = self.env.now_ns();
            write(self.own.clone(), rng.below(OWN_BYTES / BLOCK) * BLOCK, BLOCK).await;
            if n >= WARM_UP {
                all.push(self.env.now_ns() - began_ns);
            }
        }
        all.sort_unstable();
        let at = |percent: usize| all[all.len() * percent / 100] as f64 / 1000.0;
        (at(50), at(99))
    }
}

fn row(storage: &str, work: Work, bytes: u64, writes: u64) -> (f64, f64) {
    let model = StorageModel::named(storage).expect("ships");
    let below = sim::Options { storage: Some(model.storage()), ..sim::Options::default() };
    let world = SimWorld::new(1, world_options(below));
    let run = move |env: Env| async move {
        let shared = Shared::make(&env, bytes).await;
        shared.begin(work);
        let figures = shared.measure(writes).await;
        shared.stopped.set(true);
        figures
    };
    world.run(run).expect("runs to its end")
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let bytes = numbers.next().unwrap_or(256) * MIB;
    let writes = numbers.next().unwrap_or(1000);
    for storage in STORAGE {
        let alone = row(storage, Work::Nothing, bytes, writes);
        for (work, name) in WORK {
            let (median, p99) = if work == Work::Nothing { alone } else { row(storage, work, bytes, writes) };
            println!(
                "{storage:<15} {name:<38} median {median:>9.1} us, p99 {p99:>9.1} us: {:.2} of alone",
                p99 / alone.1
            );
        }
    }
}
