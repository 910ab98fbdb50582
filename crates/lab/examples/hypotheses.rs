//! The saturated test of the 2009 article on a pair of 10K disks, one line per hypothesis: what each guess about the layer
//! of deltas makes of it. The pair is the one that ships, as it is declared; nothing is fitted here.
//!
//! `cargo run -p lab --release --example hypotheses -- [random 4 KiB I/Os under way per worker]`

use std::cell::Cell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use lab::storage::StorageModel;
use lab::subject::Subject;
use lab::vmware::Esx;
use lab::vmware::rules::Hypothesis;
use lab::vmware::spec::{Spec, Version};
use sim::{ContentMode, Options, Rng, SimWorld};

const DISK_BYTES: u64 = 4 << 30;
/// Both workers use one test file.
const FILE_BYTES: u64 = 2_000_000 * 512;
const BLOCK: u64 = 4096;
const RANDOM_PERCENT: u64 = 70;
const PHASE_US: u64 = 100_000_000;
const PATIENCE_US: u64 = 980_000_000;
const DRAIN_US: u64 = 2_000_000_000;

/// I/Os that ended, and whether the workers go on.
#[derive(Default)]
struct Load {
    reads: Cell<u64>,
    writes: Cell<u64>,
    stop: Cell<bool>,
}

async fn work(disk: Rc<dyn Volume>, load: Rc<Load>, is_read: bool, seed: u64) {
    let mut rng = Rng::new(seed);
    let blocks = FILE_BYTES / BLOCK;
    let mut block = rng.below(blocks);
    let mut buf = Buf::zeroed(BLOCK as usize);
    let data = Buf::zeroed(BLOCK as usize).freeze();
    while !load.stop.get() {
        block = if rng.below(100) < RANDOM_PERCENT { rng.below(blocks) } else { (block + 1) % blocks };
        if is_read {
            let (back, result) = disk.clone().read(block * BLOCK, buf).await;
            result.expect("no fault is planted");
            buf = back;
            load.reads.set(load.reads.get() + 1);
        } else {
            disk.clone().write(block * BLOCK, data.clone()).await.expect("no fault is planted");
            load.writes.set(load.writes.get() + 1);
        }
    }
}

fn start(env: &Env, disk: &Rc<dyn Volume>, depth: u64) -> Rc<Load> {
    let load = Rc::new(Load::default());
    for seed in 0..depth {
        env.spawn(work(disk.clone(), load.clone(), true, seed));
        env.spawn(work(disk.clone(), load.clone(), false, 1000 + seed));
    }
    load
}

/// Reads and writes a second within the next `us`.
async fn rates(env: &Env, load: &Load, us: u64) -> (f64, f64) {
    let before = (load.reads.get(), load.writes.get());
    env.sleep_us(us).await;
    let per_s = |now: u64, before: u64| (now - before) as f64 * 1e6 / us as f64;
    (per_s(load.reads.get(), before.0), per_s(load.writes.get(), before.1))
}

/// The file is written in order, one write at a time: the file system extends it so.
async fn prepare(disk: &Rc<dyn Volume>) {
    let data = Buf::zeroed(64 << 10).freeze();
    for at in (0..FILE_BYTES).step_by(64 << 10) {
        let len = (FILE_BYTES - at).min(64 << 10) as usize;
        disk.clone().write(at, data.slice(0..len)).await.expect("no fault is planted");
    }
}

async fn measure(env: Env, hypothesis: Hypothesis, depth: u64) -> String {
    let spec = Spec { rules: hypothesis.rules(), ..Spec::esx(Version::Esx35, vec![DISK_BYTES]) };
    let dir = env.open_root("/").expect("there is a root");
    let esx = Rc::new(Esx::create(env.clone(), dir.clone(), dir, spec).await.expect("an empty world"));
    let disk = esx.disks().remove(0);
    let load = start(&env, &disk, depth);
    let baseline = rates(&env, &load, PHASE_US).await;
    load.stop.set(true);
    esx.take("s").await.expect("nothing is in the way");
    prepare(&disk).await;
    let load = start(&env, &disk, depth);
    let snapshot = rates(&env, &load, PHASE_US).await;
    let (ended, begin) = (Rc::new(Cell::new(None)), env.now_ns());
    let task = {
        let (esx, ended, env) = (esx.clone(), ended.clone(), env.clone());
        async move {
            esx.commit("s").await.expect("no fault is planted");
            ended.set(Some((env.now_ns() - begin) / 1_000_000_000));
        }
    };
    env.spawn(task);
    let deleting = rates(&env, &load, PHASE_US).await;
    let (mut first_gib, mut waited) = (None, PHASE_US);
    while waited < PATIENCE_US && ended.get().is_none() {
        env.sleep_us(1_000_000).await;
        waited += 1_000_000;
        if esx.progress().done_bytes >= FILE_BYTES {
            first_gib.get_or_insert(waited / 1_000_000);
        }
    }
    let converged = ended.get();
    load.stop.set(true);
    let mut drained = 0;
    while ended.get().is_none() && drained < DRAIN_US {
        env.sleep_us(1_000_000).await;
        drained += 1_000_000;
    }
    let pair = |(reads, writes): (f64, f64)| format!("{reads:4.0} /{writes:4.0}");
    let end = converged.map_or(format!("no, drain {} s", drained / 1_000_000), |s| format!("in {s} s"));
    let first = first_gib.map_or("-".into(), |s| format!("{s} s"));
    format!(
        "{:>4} | {} | {} | {} | {first:>7} | {end:<20} | {} rounds",
        hypothesis.name(),
        pair(baseline),
        pair(snapshot),
        pair(deleting),
        esx.progress().helper_bytes.len(),
    )
}

fn main() {
    let depth: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(4);
    let pair = StorageModel::named("sas-10k-pair").expect("it ships");
    println!("     |  baseline  |  snapshot  |  deleting  | 1st GiB | converged            |");
    println!("2009 |  510 / 250 |  110 / 100 |   28 /   ? |   200 s | no, drain 560 s      |");
    for hypothesis in Hypothesis::ALL {
        let options = Options {
            storage: Some(pair.storage()),
            content: ContentMode::Absent,
            events_max: u64::MAX,
            ..Options::default()
        };
        let world = SimWorld::new(1, options);
        let line = world.run(|env| measure(env, hypothesis, depth));
        println!("{}", line.expect("no power cut"));
    }
}
