//! Commits into deltas whose grains are larger than a sector, as other products leave them.
//!
//! A grain is allocated once. Every writer that needs it meanwhile must find it, or the last one to publish hides what
//! the others wrote.

use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, SECTOR};
use engine::{CommitWhat, Disk, FoldOptions, JobState, Options, Vm};
use sim::{Rng, SimWorld};
use vmdk::home::{Folders, Home};

use super::support::{self, Growth};

/// Not a multiple of the largest grain, nor of 4 KiB.
const DISK_SECTORS: u64 = (5 << 11) + 13;
const GROWTH: Growth = support::growth(1 << 20);

/// Number of the last write to each sector, which the sector shows.
type Model = Rc<RefCell<Vec<u64>>>;

struct Harness {
    home: Rc<Home>,
    vm: Rc<Vm>,
    model: Model,
    rng: Rng,
}

/// Returns options with which all pieces of a commit are under way at once while the guest has nothing under way.
fn options() -> Options {
    Options { fold: FoldOptions { near_us: 0, ..FoldOptions::default() }, ..Options::default() }
}

async fn open(env: &Env) -> (Rc<Vm>, Rc<Home>) {
    support::open_with(env, "web", GROWTH, options(), Folders::default()).await
}

/// Makes a base and above it one delta for each of `grains`, each with `writes` random writes. Deltas that are
/// committed into have few writes, so that the commit has to allocate most of the grains.
async fn harness(env: &Env, seed: u64, grains: &[u32], writes: u64) -> Harness {
    support::create(env, "web", GROWTH, &[DISK_SECTORS * SECTOR]).await;
    let (vm, home) = open(env).await;
    let model = Rc::new(RefCell::new(vec![0; DISK_SECTORS as usize]));
    let mut harness = Harness { home, vm, model, rng: Rng::new(seed) };
    harness.scatter(writes).await;
    for (n, grain) in grains.iter().enumerate() {
        harness.home.set_grain(*grain);
        harness.vm.take(&format!("s{n}"), "").await.unwrap();
        let is_last = n + 1 == grains.len();
        harness.scatter(if is_last { writes } else { 2 }).await;
    }
    harness
}

async fn write(disk: &Rc<Disk>, model: &Model, at: u64, count: u64, stamp: u64) {
    let data = Buf::copy_of(&stamp.to_le_bytes().repeat((count * SECTOR / 8) as usize)).freeze();
    disk.clone().write(at * SECTOR, data).await.unwrap();
    model.borrow_mut()[at as usize..(at + count) as usize].fill(stamp);
}

/// Counts the sectors that do not show what was written last.
async fn wrong(disk: &Rc<Disk>, model: &Model) -> usize {
    let expected = model.borrow().clone();
    let (buf, result) = disk.clone().read(0, Buf::alloc((DISK_SECTORS * SECTOR) as usize)).await;
    result.unwrap();
    let shown = buf.chunks(SECTOR as usize).map(|sector| sector.as_chunks::<8>().0[0]);
    shown.zip(expected).filter(|(shown, expected)| u64::from_le_bytes(*shown) != *expected).count()
}

/// Makes random writes of up to 40 sectors as one writer. Numbers from `first` on distinguish them from other writes.
async fn scatter(disk: Rc<Disk>, model: Model, mut rng: Rng, first: u64, writes: u64) {
    for n in 0..writes {
        let count = rng.between(1, 40);
        let at = rng.below(DISK_SECTORS - count);
        write(&disk, &model, at, count, first + n).await;
    }
}

impl Harness {
    async fn scatter(&mut self, writes: u64) {
        let disk = self.vm.disk(0).unwrap();
        let (rng, first) = (Rng::new(self.rng.below(u64::MAX)), self.rng.below(u64::MAX / 2));
        scatter(disk, self.model.clone(), rng, first, writes).await;
    }

    /// Commits while as many `guests` write and read; then compares, closes, opens and compares again.
    async fn commit(mut self, env: &Env, what: CommitWhat, guests: u64, context: &str) {
        let disk = self.vm.disk(0).unwrap();
        let job = self.vm.commit(&what).await.unwrap();
        let tasks: Vec<_> = (0..guests)
            .map(|_| {
                let seed = self.rng.below(u64::MAX);
                let (vm, disk, model) = (self.vm.clone(), disk.clone(), self.model.clone());
                env.spawn(guest(vm, disk, model, seed, context.to_string()))
            })
            .collect();
        for task in tasks {
            task.join().await;
        }
        assert_eq!(job.wait().await, JobState::Done, "{context}: {:?}", job.error());
        assert_eq!(wrong(&disk, &self.model).await, 0, "{context}: sectors wrong after the commit");
        self.scatter(50).await;
        assert_eq!(wrong(&disk, &self.model).await, 0, "{context}: sectors wrong after further writes");
        for link in &disk.chain().links {
            assert_eq!(link.layer.check().await.unwrap(), Vec::<String>::new(), "{context}");
        }
        self.vm.close().await.unwrap();
        drop((disk, self.vm, self.home));
        let (vm, _) = open(env).await;
        assert_eq!(
            wrong(&vm.disk(0).unwrap(), &self.model).await,
            0,
            "{context}: sectors wrong after a restart"
        );
    }
}

/// Writes until the commit ends; every write is read back, alone and at the end.
async fn guest(vm: Rc<Vm>, disk: Rc<Disk>, model: Model, seed: u64, context: String) {
    let mut rng = Rng::new(seed);
    while vm.jobs().iter().any(|job| !job.state().is_over()) {
        let (at, first) = (rng.below(DISK_SECTORS - 1), rng.below(u64::MAX / 2));
        let count = rng.between(1, 4).min(DISK_SECTORS - at);
        write(&disk, &model, at, count, first).await;
        let (buf, result) = disk.clone().read(at * SECTOR, Buf::alloc(SECTOR as usize)).await;
        result.unwrap();
        let shown = u64::from_le_bytes(buf.as_chunks::<8>().0[0]);
        assert_eq!(shown, first, "{context}: sector {at} is read after it was written");
    }
}

fn in_world(seed: u64, test: impl AsyncFnOnce(Env) + 'static) {
    let world = SimWorld::new(seed, sim::Options::default());
    assert!(world.run(async move |env| test(env).await).is_some());
}

/// Returns the grains of the layer that is committed and of the one that it is committed into, powers of two.
fn pairs() -> impl Iterator<Item = (u32, u32)> {
    (0..=11).flat_map(|target| [0, 3, 11].map(|source| (1 << source, 1 << target)))
}

#[test]
fn a_commit_keeps_every_sector_at_any_grain_size() {
    for (seed, (source, target)) in pairs().enumerate() {
        in_world(seed as u64, async move |env| {
            let harness = harness(&env, seed as u64, &[target, source], 150).await;
            let context = format!("grains of {source} sectors into {target}, idle guest");
            harness.commit(&env, CommitWhat::One("s1".into()), 0, &context).await;
        });
    }
}

#[test]
fn a_guest_reads_its_writes_during_a_commit_at_any_grain_size() {
    for (seed, (source, target)) in pairs().enumerate() {
        in_world(seed as u64, async move |env| {
            let harness = harness(&env, seed as u64, &[target, source], 150).await;
            let context = format!("grains of {source} sectors into {target}, one guest");
            harness.commit(&env, CommitWhat::One("s1".into()), 1, &context).await;
        });
    }
}

#[test]
fn chains_of_all_grains_are_committed_under_a_guest() {
    for seed in 0..12 {
        in_world(seed, async move |env| {
            let mut rng = Rng::new(seed);
            let grains: Vec<u32> = (0..4).map(|_| 1 << rng.below(12)).collect();
            let context = format!("seed {seed}, grains {grains:?}");
            let harness = harness(&env, seed, &grains, 100).await;
            let what = if seed % 2 == 0 { CommitWhat::All } else { CommitWhat::One("s2".into()) };
            harness.commit(&env, what, 1, &context).await;
        });
    }
}
