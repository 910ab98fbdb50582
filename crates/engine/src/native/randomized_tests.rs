//! Random work on one store, with power cuts and failing I/O at any point. Afterwards every state must show allowed
//! content, and the bitmaps must mark exactly the blocks that the trees and the catalogue refer to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Env, Errno, Result};
use futures_util::future::join_all;
use sim::{Action, Cut, Fault, OpKind, SimWorld};

use super::backing::SECTOR;
use super::change::{Key, Op};
use super::defragment::{DefragmentJob, DefragmentScope};
use super::disk::{DiskOptions, NativeDisk};
use super::layout::BLOCK;
use super::recover::NewStore;
use super::remote::tests::TwoCores;
use super::sources::tests::{IMAGE_BYTES, PatternImage, over_a_source, pattern};
use super::space::Growth;
use super::store::{Store, StoreOptions};
use super::tree::{WalkItem, gone};
use crate::job::{DEFRAGMENT, Job, LAND};
use crate::options::{Defects, SpacePolicy};

const TERMS: DiskOptions = DiskOptions { policy: SpacePolicy::Wait, space_retry_us: 1000 };
const NEW: NewStore = NewStore { journal_pages: 1024, group_blocks: 128, ..NewStore::DEFAULT };
const AHEAD: Growth = Growth { ahead_blocks: 64, chunk_blocks: 16 };
const DISK_BLOCKS: u64 = 70_000;
/// The first node of a disk; a source's landing map has a smaller number.
const FIRST: u64 = 5;
/// Blocks that the guests write: some leaves, near and far.
const PLACES: [u64; 6] = [0, 240, 500, 1000, 31_740, 69_000];
const PLACE_BLOCKS: u64 = 24;
const SECTORS: u64 = BLOCK / SECTOR;
/// More I/Os than an opening and the first change need: a failed flush makes either fail, regardless of its error.
const OPENING_IOS: u64 = 40;
const ITEM: Key = Key { kind: 116, major: 1, minor: 1 };

pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// What each sector may show: the last value flushed, and all values issued since.
type Content = BTreeMap<u64, Vec<u8>>;

#[derive(Clone, Default)]
struct Model {
    /// Present states by node: whether it runs, and what it shows.
    nodes: BTreeMap<u64, (bool, Content)>,
    /// Nodes that must exist after a crash.
    durable: BTreeSet<u64>,
    item: u64,
    durable_item: u64,
    next: u64,
    stamp: u8,
    /// The first disk is over a source.
    is_over: bool,
    /// All of the source has landed, durably: its image is gone.
    has_landed: bool,
}

impl Model {
    /// Returns a model of a disk that is over a source in every second run.
    fn of(seed: u64) -> Rc<RefCell<Model>> {
        Rc::new(RefCell::new(Model { is_over: seed.is_multiple_of(2), ..Model::default() }))
    }

    fn pick(&self, rng: &mut Rng, running: bool) -> Option<u64> {
        let all: Vec<u64> = self.nodes.iter().filter(|(_, n)| n.0 == running).map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| all[rng.next(all.len() as u64) as usize])
    }

    fn issue(&mut self, node: u64, sectors: std::ops::Range<u64>, value: u8) {
        let (content, is_over) = (&mut self.nodes.get_mut(&node).unwrap().1, self.is_over);
        let first = |sector| vec![initial(is_over, sector)];
        sectors.for_each(|sector| content.entry(sector).or_insert_with(|| first(sector)).push(value));
    }

    /// Notes that everything issued is durable.
    fn flushed(&mut self) {
        for (_, content) in self.nodes.values_mut() {
            content.values_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
        }
        self.durable = self.nodes.keys().copied().collect();
        self.durable_item = self.item;
    }
}

/// Returns what a sector shows that was never written.
fn initial(is_over: bool, sector: u64) -> u8 {
    if is_over { pattern(IMAGE_BYTES, sector) } else { 0 }
}

/// Attaches the image of the source, if there is one and the image is not gone.
fn attach(env: &Env, store: &Store, has_landed: bool) {
    for source in store.sources().iter().filter(|_| !has_landed) {
        store.attach_source(source.device, PatternImage::new(env, IMAGE_BYTES, 3000)).unwrap();
    }
}

/// Opens the store, or makes it first: a small one, whose limits are met often.
pub(super) async fn open(env: &Env, defects: Defects) -> Result<Rc<Store>> {
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
    Store::open(env.clone(), file, options, AHEAD, true).await
}

struct Guests {
    store: Rc<Store>,
    landing: Option<Rc<Job>>,
    defragmentation: Option<Rc<Job>>,
    /// Each disk where the store is, and as its guests see it.
    disks: BTreeMap<u64, (Rc<NativeDisk>, Rc<dyn Volume>)>,
    /// The guests are on another core.
    cores: Option<Rc<TwoCores>>,
}

impl Guests {
    fn disk(&mut self, node: u64) -> Rc<dyn Volume> {
        self.disks(node).1
    }

    fn disks(&mut self, node: u64) -> (Rc<NativeDisk>, Rc<dyn Volume>) {
        let (store, cores) = (&self.store, &self.cores);
        let made = || {
            let disk = NativeDisk::new(store, store.node(node).unwrap(), format!("node{node}"), 0, TERMS);
            let seen: Rc<dyn Volume> = match cores {
                None => disk.clone(),
                Some(cores) => cores.bridged(disk.clone()),
            };
            (disk, seen)
        };
        self.disks.entry(node).or_insert_with(made).clone()
    }

    async fn write_some(&mut self, model: &RefCell<Model>, rng: &mut Rng) {
        let Some(node) = model.borrow().pick(rng, true) else { return };
        let disk = self.disk(node);
        let mut places: BTreeSet<u64> = BTreeSet::new();
        for _ in 0..=rng.next(5) {
            places.insert(PLACES[rng.next(6) as usize]);
        }
        let mut works = Vec::new();
        for place in places {
            let start = place + rng.next(PLACE_BLOCKS);
            let len = 1 + rng.next(PLACE_BLOCKS - (start - place));
            let unmaps = rng.next(4) == 0;
            let (start, len) = (start * SECTORS, len * SECTORS);
            // Every other write begins and ends anywhere within its first and last block.
            let (from, less) = match unmaps || rng.next(2) == 0 {
                true => (0, 0),
                false => (rng.next(SECTORS), rng.next(SECTORS)),
            };
            let (start, len) = (start + from, len.saturating_sub(from + less).max(1));
            let value = {
                let mut model = model.borrow_mut();
                model.stamp = model.stamp % 250 + 1;
                let value = if unmaps { 0 } else { model.stamp };
                model.issue(node, start..start + len, value);
                value
            };
            let disk = disk.clone();
            works.push(async move {
                if unmaps {
                    return disk.discard(start * SECTOR..(start + len) * SECTOR).await;
                }
                let mut buf = Buf::alloc((len * SECTOR) as usize);
                buf.fill(value);
                disk.write(start * SECTOR, buf.freeze()).await
            });
        }
        for result in join_all(works).await {
            if let Err(e) = result {
                assert!(self.store.broken().is_some(), "{e}");
            }
        }
    }

    fn change(&mut self, model: &RefCell<Model>, rng: &mut Rng) {
        let mut model = model.borrow_mut();
        model.next += 1;
        let id = model.next + 10;
        let mut ops = Vec::new();
        let mut after = Vec::new();
        match rng.next(4) {
            0 | 1 => {
                let Some(running) = model.pick(rng, true) else { return };
                ops.push(Op::Take { running, sealed: id });
                after.push((id, Some((false, model.nodes[&running].1.clone()))));
            }
            2 => {
                let Some(from) = model.pick(rng, false) else { return };
                ops.push(Op::Branch { from, node: id });
                after.push((id, Some((true, model.nodes[&from].1.clone()))));
            }
            _ => {
                let running = rng.next(3) == 0;
                let Some(node) = model.pick(rng, running) else { return };
                if running && model.nodes.values().filter(|n| n.0).count() == 1 {
                    return;
                }
                ops.push(Op::Drop { node });
                after.push((node, None));
            }
        }
        ops.push(Op::Put { key: ITEM, value: model.next.to_le_bytes().to_vec() });
        if self.store.change(&ops).is_err() {
            return;
        }
        model.item = model.next;
        for (id, state) in after {
            match state {
                Some(state) => drop(model.nodes.insert(id, state)),
                None => {
                    model.nodes.remove(&id);
                    model.durable.remove(&id);
                }
            }
        }
    }

    /// Starts a landing, unless one is under way, which may be cancelled.
    fn land(&mut self, model: &Rc<RefCell<Model>>, rng: &mut Rng) {
        let under_way = self.landing.take_if(|job| job.state().is_over());
        if let Some(job) = self.landing.as_ref().filter(|_| under_way.is_none()) {
            if rng.next(3) == 0 {
                job.cancel().unwrap();
            }
            return;
        }
        let Some(source) = self.store.sources().first().cloned() else { return };
        let (store, model) = (self.store.clone(), model.clone());
        let job = Job::new(store.env.clone(), 1, LAND, String::new());
        self.landing = Some(job.clone());
        self.store.env.spawn(async move {
            if store.land(source.device, &job).await.is_ok() {
                model.borrow_mut().has_landed = true;
            }
        });
    }

    /// Starts a defragmentation of a running disk, unless one is under way, which may be cancelled.
    fn defragment(&mut self, model: &Rc<RefCell<Model>>, rng: &mut Rng) {
        let under_way = self.defragmentation.take_if(|job| job.state().is_over());
        if let Some(job) = self.defragmentation.as_ref().filter(|_| under_way.is_none()) {
            if rng.next(5) == 0 {
                job.cancel().unwrap();
            }
            return;
        }
        let Some(node) = model.borrow().pick(rng, true) else { return };
        let (disk, scope) = (
            self.disks(node).0,
            if rng.next(3) == 0 { DefragmentScope::SharedToo } else { DefragmentScope::Exclusive },
        );
        let job = Job::new(disk.store.env.clone(), 2, DEFRAGMENT, String::new());
        self.defragmentation = Some(job.clone());
        self.store.env.spawn(async move {
            let part = DefragmentJob { job: &job, before: 0, after: 0 };
            let result = disk.defragment(scope, part).await;
            job.end(result.map(drop));
        });
    }

    async fn step(&mut self, model: &Rc<RefCell<Model>>, rng: &mut Rng) {
        match rng.next(19) {
            16 => self.land(model, rng),
            17 | 18 => self.defragment(model, rng),
            0..=8 => self.write_some(model, rng).await,
            9..=11 => self.change(model, rng),
            12 => drop(self.store.checkpoint().await),
            13 => {
                let store = self.store.clone();
                self.store.env.spawn(async move { drop(store.checkpoint().await) });
            }
            14 => self.store.env.sleep_us(rng.next(60_000)).await,
            _ => {
                if self.store.flush().await.is_ok() {
                    model.borrow_mut().flushed();
                }
            }
        }
    }
}

/// Checks that every state shows allowed content.
async fn verify(store: &Rc<Store>, model: &Model, what: &str) {
    for (id, (_, content)) in &model.nodes {
        let disk = NativeDisk::new(store, store.node(*id).unwrap(), format!("node{id}"), 0, TERMS);
        for place in PLACES {
            let read = disk.clone().read(place * BLOCK, Buf::alloc((PLACE_BLOCKS * BLOCK) as usize));
            let (buf, result) = read.await;
            result.unwrap();
            for (n, sector) in buf.chunks_exact(SECTOR as usize).enumerate() {
                let at = place * SECTORS + n as u64;
                let may = content.get(&at).cloned().unwrap_or_else(|| vec![initial(model.is_over, at)]);
                let strange = sector.iter().find(|byte| !may.contains(byte));
                assert_eq!(strange, None, "{what}: node {id}, sector {at}: expected one of {may:?}");
            }
        }
    }
}

/// Checks that no block is leaked and none has two owners, once all space has been given back.
async fn exact(store: &Rc<Store>, what: &str) {
    while store.has_to_reclaim() && store.broken().is_none() {
        store.progress.wait().await;
    }
    for tries in 0.. {
        let Err(e) = store.checkpoint().await else { break };
        if store.broken().is_some() {
            return;
        }
        assert!(e.is_no_space() && tries < 10, "{what}: {e}");
    }
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let roots: Vec<_> =
        store.stored.borrow().all().flat_map(|(_, item)| [item.roots.places, item.roots.backings]).collect();
    for root in roots {
        let mut visit = |gone: WalkItem| match gone {
            WalkItem::Data(run) => (0..run.len).for_each(|n| {
                let block = used.entry(run.addr + n).or_insert(run.start + n);
                assert_eq!(*block, run.start + n, "{what}: address {} is two blocks", run.addr + n);
            }),
            WalkItem::Page { addr, .. } => drop(used.insert(addr, u64::MAX)),
            damage => panic!("{damage:?}"),
        };
        gone(&store.nodes, root.as_ref(), None, 0, u64::MAX, usize::MAX, &mut visit).await.unwrap();
    }
    let catalogue: Vec<_> = store.catalogue.borrow().extents().collect();
    for extent in catalogue {
        (extent.addr..extent.end()).for_each(|addr| assert!(used.insert(addr, u64::MAX).is_none(), "{what}"));
    }
    let mut committed = BTreeSet::new();
    for group in 0..store.space.groups() {
        for run in store.space.committed_runs(group as u32).await.unwrap() {
            committed.extend(run.addr..run.end());
        }
    }
    let used: BTreeSet<u64> = used.into_keys().collect();
    let leaked: Vec<_> = committed.difference(&used).collect();
    let lost: Vec<_> = used.difference(&committed).collect();
    assert!(leaked.is_empty() && lost.is_empty(), "{what}: leaked {leaked:?}, not marked {lost:?}");
}

async fn item(store: &Store) -> u64 {
    let items = store.items(ITEM.kind);
    items.first().map_or(0, |(_, value)| u64::from_le_bytes(value[..].try_into().unwrap()))
}

/// Works until the power is lost or `steps` are done.
async fn work(envs: Vec<Env>, model: Rc<RefCell<Model>>, seed: u64, steps: usize) {
    let env = envs[0].clone();
    let store = open(&env, Defects::default()).await.unwrap();
    let mut rng = Rng(seed * 0x9E37_79B9 + 1);
    if model.borrow().nodes.is_empty() {
        let is_over = model.borrow().is_over;
        let made = match is_over {
            true => over_a_source(&store, FIRST, DISK_BLOCKS, IMAGE_BYTES).await.map(drop),
            false => store.change(&[Op::Create { node: FIRST, size_blocks: DISK_BLOCKS }]).map(drop),
        };
        if made.is_err() && is_over {
            // The checkpoint that declares the sources found no space.
            return;
        }
        made.unwrap();
        store.flush().await.unwrap();
        model.borrow_mut().nodes.insert(FIRST, (true, Content::new()));
        model.borrow_mut().flushed();
    }
    attach(&env, &store, model.borrow().has_landed);
    let cores = (envs.len() > 1).then(|| TwoCores::start(&envs));
    let disks = BTreeMap::new();
    let mut guests = Guests { store: store.clone(), landing: None, defragmentation: None, disks, cores };
    for _ in 0..steps {
        guests.step(&model, &mut rng).await;
        if store.broken().is_some() {
            return;
        }
    }
    let jobs = guests.landing.take().into_iter().chain(guests.defragmentation.take());
    for job in jobs.filter(|job| !job.state().is_over()) {
        job.cancel().unwrap();
        while !job.state().is_over() {
            env.sleep_us(1000).await;
        }
    }
    let now = model.borrow().clone();
    verify(&store, &now, "at work").await;
    exact(&store, "at work").await;
    drop(guests);
    if store.close().await.is_ok() {
        model.borrow_mut().flushed();
    }
}

/// Works on a world, in every third run with the guests on another core than the store.
fn run_work(world: &SimWorld, model: &Rc<RefCell<Model>>, seed: u64, steps: usize) -> Option<()> {
    let model = model.clone();
    world.run_cores(if seed.is_multiple_of(3) { 2 } else { 1 }, move |envs| work(envs, model, seed, steps))
}

/// Checks that the state after a crash is one that the model allows.
async fn look_again(env: Env, model: Rc<RefCell<Model>>, what: String) {
    let store = open(&env, Defects::default()).await.unwrap();
    assert!(store.broken().is_none(), "{what}: {:?}", store.broken());
    let mut model = model.take();
    attach(&env, &store, model.has_landed);
    let durable = model.durable.clone();
    model.nodes.retain(|id, _| durable.contains(id));
    verify(&store, &model, &what).await;
    let found = item(&store).await;
    assert!(found >= model.durable_item, "{what}: item {found}, flushed was {}", model.durable_item);
    exact(&store, &what).await;
    verify(&store, &model, &what).await;
    store.close().await.unwrap();
}

fn crashes(world: &SimWorld, model: &Rc<RefCell<Model>>, seed: u64, what: &str) {
    let (kept, name) = (model.clone(), what.to_string());
    world.power_cut();
    // In some runs the power is lost again during the recovery.
    if seed.is_multiple_of(3) {
        world.cut_at(Cut::Event(1 + seed % 90));
        let ended = world.run(move |env| async move { drop(open(&env, Defects::default()).await) });
        world.cancel_cut();
        if ended.is_none() {
            world.power_cut();
        }
    }
    world.run(move |env| look_again(env, kept, name)).expect("nothing cuts the power");
}

#[test]
fn random_operations_leave_the_expected_content() {
    for seed in 1..40 {
        let world = SimWorld::new(seed, sim::Options { events_max: 400_000, ..sim::Options::default() });
        let model = Model::of(seed);
        let kept = model.clone();
        run_work(&world, &kept, seed, 150).expect("nothing cuts the power");
        world.run(move |env| look_again(env, model, format!("seed {seed}"))).expect("nothing cuts it");
    }
}

#[test]
fn a_cut_at_any_point_loses_nothing_that_was_flushed() {
    for seed in 1..400 {
        let world = SimWorld::new(seed, sim::Options { events_max: 400_000, ..sim::Options::default() });
        world.run(|env| async move { drop(open(&env, Defects::default()).await.unwrap()) }).unwrap();
        let model = Model::of(seed);
        let kept = model.clone();
        world.cut_at(Cut::Event(20 + seed * 37 % 2500));
        if run_work(&world, &kept, seed, 120).is_none() {
            crashes(&world, &model, seed, &format!("seed {seed}"));
        }
    }
}

#[test]
fn space_that_runs_out_at_any_point_loses_nothing() {
    for seed in 1..150 {
        let world = SimWorld::new(seed, sim::Options { events_max: 400_000, ..sim::Options::default() });
        world.run(|env| async move { drop(open(&env, Defects::default()).await.unwrap()) }).unwrap();
        let model = Model::of(seed);
        let (nth, full) = (seed * 13 % 700, Action::Fail(Errno::ENOSPC));
        world.add_fault(match seed % 2 {
            0 => Fault::nth(5 + nth, full).of(OpKind::Write),
            _ => Fault::nth(OPENING_IOS + nth, full),
        });
        let kept = model.clone();
        run_work(&world, &kept, seed, 120).expect("nothing cuts the power");
        world.clear_faults();
        let what = format!("seed {seed}");
        world.run(move |env| look_again(env, model, what)).expect("nothing cuts the power");
    }
}
