//! Guests on one core, the store with its operations on another: random work, takes, drops and checkpoints, power cuts.
//!
//! Each sector is written by one guest task, so what it may show is known exactly: between the last completed and the last
//! issued value. A snapshot shows for each sector a value of the moment of its take, and never changes.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Env, Result};
use sim::{Action, Cut, Fault, OpKind, SimWorld};

use super::super::change::Op;
use super::super::defragment::{DefragmentJob, DefragmentScope};
use super::super::disk::{DiskOptions, NativeDisk};
use super::super::recover::NewStore;
use super::super::space::Growth;
use super::super::store::{Store, StoreOptions};
use super::tests::TwoCores;
use super::*;
use crate::job::{DEFRAGMENT, Job, JobState};
use crate::options::{Defect, Defects, SpacePolicy};

const TERMS: DiskOptions = DiskOptions { policy: SpacePolicy::Wait, space_retry_us: 1000 };
const NEW: NewStore = NewStore { journal_pages: 1024, group_blocks: 128, ..NewStore::DEFAULT };
const SECTOR: u64 = 512;
/// Sectors of the guests: some windows of disk 1.
const SECTORS: Range<u64> = 8 * 30..8 * 126;
const GUESTS: u64 = 6;
/// Sectors that one guest writes: 20 blocks, so that guests share windows.
const OWN_SECTORS: u64 = (SECTORS.end - SECTORS.start) / GUESTS;
/// The disks on whose first sector a guest counts, one after the other.
const PAIR: [u64; 2] = [1, 2];
const SNAPSHOTS_FROM: u64 = 10;

struct Rng(u64);

impl Rng {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Values of a sector, oldest first; 0: discarded, or never written.
#[derive(Clone)]
struct Sector {
    issued: Vec<u64>,
    /// Index of the last value whose write has completed.
    done: usize,
    /// Index of the last value that was durable.
    flushed: usize,
}

impl Sector {
    fn may_show(&self, value: u64, from: usize, to: usize) -> bool {
        self.issued[from..=to].contains(&value)
    }
}

struct Snapshot {
    node: u64,
    /// What each sector may show: indexes of values.
    bounds: Vec<(usize, usize)>,
    content: Vec<u64>,
    /// It exists after a crash.
    durable: bool,
}

struct Model {
    sectors: Vec<Sector>,
    snapshots: Vec<Snapshot>,
    next: u64,
    stopped: bool,
    guests: u64,
}

impl Model {
    fn new() -> Rc<RefCell<Model>> {
        let sector = Sector { issued: vec![0], done: 0, flushed: 0 };
        let sectors = vec![sector; (SECTORS.end - SECTORS.start) as usize];
        let model = Model { sectors, snapshots: Vec::new(), next: SNAPSHOTS_FROM, stopped: false, guests: 0 };
        Rc::new(RefCell::new(model))
    }

    fn sectors(&mut self, range: &Range<u64>) -> &mut [Sector] {
        &mut self.sectors[(range.start - SECTORS.start) as usize..(range.end - SECTORS.start) as usize]
    }

    fn bounds(&self) -> Vec<(usize, usize)> {
        self.sectors.iter().map(|sector| (sector.done, sector.issued.len() - 1)).collect()
    }
}

async fn open(env: &Env, defects: Defects) -> Result<Rc<Store>> {
    let dir = env.open_root("/")?;
    let file = match dir.list().await?.is_empty() {
        true => {
            let file = dir.create_new("store").await?;
            Store::format(env, &file, NEW).await?;
            dir.sync().await?;
            file
        }
        false => dir.open("store", OpenMode::Write).await?,
    };
    let options = StoreOptions {
        reserve_blocks: 40,
        map_cache_bytes: 20_000,
        pending_runs_max: 200,
        pending_depth_max: 3,
        reclaim_pages: 3,
        flush_us: 20_000,
        handed_out_blocks: 8,
        defects,
        ..StoreOptions::default()
    };
    let growth = Growth { ahead_blocks: 64, chunk_blocks: 16 };
    Store::open(env.clone(), file, options, growth, true).await
}

fn disk_of(store: &Rc<Store>, node: u64) -> Rc<NativeDisk> {
    NativeDisk::new(store, store.node(node).unwrap(), format!("node{node}"), 0, TERMS)
}

/// Returns the value of each sector of a buffer.
fn values(buf: &[u8], what: &str) -> Vec<u64> {
    let value = |sector: &[u8]| {
        let words: Vec<u64> =
            sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert!(words.iter().all(|word| *word == words[0]), "{what}: a sector is mixed: {words:x?}");
        words[0]
    };
    buf.chunks_exact(SECTOR as usize).map(value).collect()
}

async fn read(disk: Rc<dyn Volume>, sectors: &Range<u64>, what: &str) -> Vec<u64> {
    let buf = Buf::alloc(((sectors.end - sectors.start) * SECTOR) as usize);
    let (buf, result) = disk.read(sectors.start * SECTOR, buf).await;
    result.unwrap_or_else(|e| panic!("{what}: {e}"));
    values(&buf, what)
}

fn data_of(values: &[u64]) -> blk::Slice {
    let mut buf = Buf::alloc(values.len() * SECTOR as usize);
    for (sector, value) in buf.chunks_exact_mut(SECTOR as usize).zip(values) {
        sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    }
    buf.freeze()
}

/// One guest task: writes its own sectors and reads them back, until the model stops it.
async fn guest(disk: Rc<RemoteDisk>, model: Rc<RefCell<Model>>, number: u64, mut rng: Rng, what: String) {
    let own = SECTORS.start + number * OWN_SECTORS..SECTORS.start + (number + 1) * OWN_SECTORS;
    while !model.borrow().stopped {
        let start = own.start + rng.next(OWN_SECTORS);
        let mut range = start..(start + 1 + rng.next(40)).min(own.end);
        let discards = rng.next(8) == 0;
        if discards || rng.next(2) == 0 {
            range = range.start / 8 * 8..range.end.next_multiple_of(8);
        }
        let issued: Vec<u64> = {
            let mut model = model.borrow_mut();
            let value = |(sector, at): (&mut Sector, u64)| {
                let value = if discards { 0 } else { at << 32 | sector.issued.len() as u64 };
                sector.issued.push(value);
                value
            };
            let first = range.start;
            model.sectors(&range).iter_mut().zip(first..).map(value).collect()
        };
        let result = match discards {
            true => disk.clone().discard(range.start * SECTOR..range.end * SECTOR).await,
            false => disk.clone().write(range.start * SECTOR, data_of(&issued)).await,
        };
        result.unwrap_or_else(|e| panic!("{what}: {e}"));
        model
            .borrow_mut()
            .sectors(&range)
            .iter_mut()
            .for_each(|sector| sector.done = sector.issued.len() - 1);
        if rng.next(3) == 0 {
            assert_eq!(read(disk.clone(), &range, &what).await, issued, "{what}: guest {number}, {range:?}");
        }
        if rng.next(16) == 0 {
            let done: Vec<usize> = model.borrow().sectors.iter().map(|sector| sector.done).collect();
            disk.clone().flush().await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut model = model.borrow_mut();
            model
                .sectors
                .iter_mut()
                .zip(done)
                .for_each(|(sector, done)| sector.flushed = sector.flushed.max(done));
        }
    }
    model.borrow_mut().guests -= 1;
}

/// A guest that counts on two disks, always on the first one first.
async fn pair_guest(disks: [Rc<RemoteDisk>; 2], model: Rc<RefCell<Model>>) {
    for count in 1.. {
        for disk in &disks {
            disk.clone().write(0, data_of(&[count])).await.unwrap();
        }
        if model.borrow().stopped {
            break;
        }
    }
    model.borrow_mut().guests -= 1;
}

struct Operator {
    store: Rc<Store>,
    cores: Rc<TwoCores>,
    /// The running disk that the guests write.
    disk: Rc<NativeDisk>,
    defragmentation: RefCell<Option<Rc<Job>>>,
    model: Rc<RefCell<Model>>,
    what: String,
}

impl Operator {
    async fn take(&self, rng: &mut Rng) {
        let (store, what) = (&self.store, &self.what);
        let (node, from) = {
            let mut model = self.model.borrow_mut();
            model.next += 2;
            (model.next, model.bounds())
        };
        let ops = PAIR.map(|running| Op::Take { running, sealed: node + running - 1 });
        if let Err(e) = store.change(&ops) {
            assert!(e.is_no_space(), "{what}: {e}");
            return;
        }
        let to = self.model.borrow().bounds();
        store.drain_writes().await;
        let bounds: Vec<_> = from.iter().zip(&to).map(|(from, to)| (from.0, to.1)).collect();
        let [first, second] = [node, node + 1].map(|node| disk_of(store, node));
        let content = match rng.next(2) {
            0 => read(first.clone(), &SECTORS, what).await,
            _ => read(self.cores.bridged(first.clone()), &SECTORS, what).await,
        };
        let snapshot = Snapshot { node, bounds, content, durable: false };
        self.check_bounds(&snapshot, &snapshot.content);
        let counts = (read(first, &(0..1), what).await[0], read(second, &(0..1), what).await[0]);
        assert!(counts.0 == counts.1 || counts.0 == counts.1 + 1, "{what}: one instant shows {counts:?}");
        self.model.borrow_mut().snapshots.push(snapshot);
        store.flush().await.unwrap();
        let mut model = self.model.borrow_mut();
        model.snapshots.iter_mut().filter(|kept| kept.node == node).for_each(|kept| kept.durable = true);
    }

    fn check_bounds(&self, snapshot: &Snapshot, content: &[u64]) {
        let model = self.model.borrow();
        for (at, (value, (from, to))) in content.iter().zip(&snapshot.bounds).enumerate() {
            let sector = &model.sectors[at];
            let place =
                format!("{}: node {}, sector {}", self.what, snapshot.node, SECTORS.start + at as u64);
            assert!(
                sector.may_show(*value, *from, *to),
                "{place}: {value:x}, one of {:x?}",
                &sector.issued[*from..=*to]
            );
        }
    }

    /// Checks that a snapshot shows what it showed at first.
    async fn check(&self, rng: &mut Rng) {
        let known = {
            let model = self.model.borrow();
            let at = rng.next(model.snapshots.len().max(1) as u64) as usize;
            model.snapshots.get(at).map(|snapshot| (snapshot.node, snapshot.content.clone()))
        };
        let Some((node, content)) = known else { return };
        let now = read(disk_of(&self.store, node), &SECTORS, &self.what).await;
        assert_eq!(now, content, "{}: snapshot {node} has changed", self.what);
    }

    fn drop_one(&self, rng: &mut Rng) {
        let model = self.model.borrow_mut();
        if model.snapshots.len() < 3 {
            return;
        }
        let at = rng.next(model.snapshots.len() as u64) as usize;
        let node = model.snapshots[at].node;
        let drops = [Op::Drop { node }, Op::Drop { node: node + 1 }];
        drop(model);
        if self.store.change(&drops).is_ok() {
            self.model.borrow_mut().snapshots.remove(at);
        }
    }

    /// Starts a defragmentation of the guests' disk, unless one is under way.
    fn defragment(&self, rng: &mut Rng) {
        let mut last = self.defragmentation.borrow_mut();
        if last.as_ref().is_some_and(|job| !job.state().is_over()) {
            return;
        }
        let scope = if rng.next(2) == 0 { DefragmentScope::SharedToo } else { DefragmentScope::Exclusive };
        let (env, disk) = (self.store.env.clone(), self.disk.clone());
        let job = Job::new(env.clone(), 1, DEFRAGMENT, String::new());
        *last = Some(job.clone());
        env.spawn_detached(Box::pin(async move {
            let part = DefragmentJob { job: &job, before: 0, after: 0 };
            let result = disk.defragment(scope, part).await;
            job.end(result.map(drop));
        }));
    }

    async fn step(&self, rng: &mut Rng) {
        match rng.next(15) {
            12..=14 => self.defragment(rng),
            0..=2 => self.take(rng).await,
            3 | 4 => self.check(rng).await,
            5 | 6 => self.drop_one(rng),
            7 => drop(self.store.checkpoint().await),
            8 => drop(self.store.flush().await),
            _ => self.store.env.sleep_us(rng.next(3000)).await,
        }
    }
}

async fn work(envs: Vec<Env>, model: Rc<RefCell<Model>>, seed: u64, defects: Defects) {
    let what = format!("seed {seed}");
    let store = open(&envs[0], defects).await.unwrap();
    store.change(&PAIR.map(|node| Op::Create { node, size_blocks: 5000 })).unwrap();
    store.flush().await.unwrap();
    let cores = TwoCores::start(&envs);
    let natives = PAIR.map(|node| disk_of(&store, node));
    let disks = natives.clone().map(|disk| cores.open(disk));
    let mut rng = Rng(seed * 0x9E37_79B9 + 7);
    model.borrow_mut().guests = GUESTS + 1;
    for number in 0..GUESTS {
        let own = Rng(rng.next(u64::MAX) | 1);
        let task = guest(disks[0].clone(), model.clone(), number, own, what.clone());
        drop(cores.vm_env.spawn(task));
    }
    drop(cores.vm_env.spawn(pair_guest(disks.clone(), model.clone())));
    let [disk, _] = natives;
    let (defragmentation, model_of) = (RefCell::default(), model.clone());
    let operator =
        Operator { store: store.clone(), cores, disk, defragmentation, model: model_of, what: what.clone() };
    for _ in 0..80 {
        operator.step(&mut rng).await;
    }
    model.borrow_mut().stopped = true;
    while model.borrow().guests > 0 {
        store.env.sleep_us(1000).await;
    }
    let last = operator.defragmentation.take();
    if let Some(job) = last {
        assert_eq!(job.wait().await, JobState::Done, "{what}: {:?}", job.error());
    }
    let now = read(disk_of(&store, 1), &SECTORS, &what).await;
    let expected: Vec<u64> = model.borrow().sectors.iter().map(|sector| sector.issued[sector.done]).collect();
    assert_eq!(now, expected, "{what}: the running disk");
    for _ in 0..10 {
        operator.check(&mut rng).await;
    }
    drop(disks);
    store.close().await.unwrap();
}

/// Checks a store after a crash.
async fn look_again(env: Env, model: Rc<RefCell<Model>>, seed: u64) {
    // The guests of the model ended with the power.
    let model = Rc::into_inner(model).expect("no task is left").into_inner();
    let what = format!("seed {seed} after the cut");
    let store = open(&env, Defects::default()).await.unwrap();
    if store.node(1).is_err() {
        return;
    }
    let now = read(disk_of(&store, 1), &SECTORS, &what).await;
    for (at, (value, sector)) in now.iter().zip(&model.sectors).enumerate() {
        let shown = sector.may_show(*value, sector.flushed, sector.issued.len() - 1);
        assert!(
            shown,
            "{what}: sector {}: {value:x}, one of {:x?}",
            SECTORS.start + at as u64,
            &sector.issued[sector.flushed..]
        );
    }
    for snapshot in model.snapshots.iter().filter(|snapshot| snapshot.durable) {
        // A drop that was not flushed, or was, may have happened.
        if store.node(snapshot.node).is_ok_and(|node| !node.dropped.get()) {
            let now = read(disk_of(&store, snapshot.node), &SECTORS, &what).await;
            assert_eq!(now, snapshot.content, "{what}: snapshot {} has changed", snapshot.node);
        }
    }
    store.close().await.unwrap();
}

/// Returns a world in which some I/Os are slow.
fn world_of(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed, sim::Options { events_max: 1_000_000, ..sim::Options::default() });
    let mut rng = Rng(seed * 77 + 5);
    for kind in [OpKind::Read, OpKind::Write] {
        for _ in 0..12 {
            let delay = Action::Delay { ns: 1_000_000 + rng.next(20_000_000) };
            world.add_fault(Fault::nth(100 + rng.next(3000), delay).of(kind));
        }
    }
    world
}

fn runs(seeds: Range<u64>, defects: Defects) {
    for seed in seeds {
        let model = Model::new();
        let world = world_of(seed);
        world.run_cores(2, |envs| work(envs, model, seed, defects)).expect("nothing cuts the power");
    }
}

fn cuts(seeds: Range<u64>, defects: Defects) {
    for seed in seeds {
        let (model, world) = (Model::new(), world_of(seed));
        world.cut_at(Cut::Event(200 + seed * 97 % 4000));
        let kept = model.clone();
        if world.run_cores(2, |envs| work(envs, kept, seed, defects)).is_none() {
            world.power_cut();
            world.clear_faults();
            world.run(|env| look_again(env, model, seed)).expect("nothing cuts the power");
        }
    }
}

#[test]
fn guests_of_another_core_see_what_they_wrote_and_snapshots_stay() {
    runs(1..25, Defects::default());
}

#[test]
fn a_cut_loses_nothing_that_another_core_had_flushed() {
    cuts(1..60, Defects::default());
}

/// Returns whether one of some runs finds the defect.
fn is_found(defect: Defect) -> bool {
    (1..40).any(|seed| {
        let run = std::panic::AssertUnwindSafe(|| runs(seed..seed + 1, Defects::only(defect)));
        std::panic::catch_unwind(run).is_err()
    })
}

#[test]
fn defects_of_the_grants_are_found() {
    for defect in [Defect::KeepGrants, Defect::ForgetRemoteIo, Defect::WriteSealedInPlace] {
        assert!(is_found(defect), "{defect:?} is not found");
    }
}
