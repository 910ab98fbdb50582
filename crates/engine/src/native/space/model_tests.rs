//! Random placements, frees, checkpoints and power cuts against a model of every block. Each placed block gets a stamp,
//! which must be there as long as the block is in use: no other write may reach it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Buf, Env, File};
use sim::{Cut, Options, Rng, SimWorld};

use super::*;
use crate::native::layout::BLOCK;

const FILE: &str = "store";
const GROWTH: Growth = Growth { ahead_blocks: 40, chunk_blocks: 16 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Is {
    Uncommitted,
    Committed,
    Waiting,
}

/// State that survives a power cut: the last superblock.
#[derive(Debug, Clone, Default)]
struct Durable {
    summaries: Vec<GroupSummary>,
    committed: BTreeMap<u64, u64>,
    checkpoint: u64,
    ready_to: u64,
}

struct Model {
    geometry: Geometry,
    durable: Durable,
    blocks: BTreeMap<u64, (Is, u64)>,
    stamp: u64,
    lsn: u64,
    marks: BTreeSet<&'static str>,
}

impl Model {
    fn set(&mut self, extent: Extent, from: Option<Is>, to: Option<Is>) {
        for addr in extent.addr..extent.end() {
            let before = self.blocks.remove(&addr);
            assert_eq!(before.map(|(is, _)| is), from, "block {addr}");
            if let Some(to) = to {
                self.blocks.insert(addr, (to, before.map_or(self.stamp, |(_, stamp)| stamp)));
            }
        }
    }

    fn count(&self, is: Is) -> u64 {
        self.blocks.values().filter(|(other, _)| *other == is).count() as u64
    }

    /// Returns a run of blocks in one state within one group.
    fn pick(&self, rng: &mut Rng, is: Is) -> Option<Extent> {
        let all: Vec<u64> =
            self.blocks.iter().filter(|(_, (other, _))| *other == is).map(|(a, _)| *a).collect();
        let start = *all.get(rng.below(all.len().max(1) as u64) as usize)?;
        let len = (0..=rng.below(30)).take_while(|at| self.is_at(start + at, is)).count();
        Some(Extent { addr: start, len: len as u64 })
    }

    fn is_at(&self, addr: u64, is: Is) -> bool {
        self.blocks.get(&addr).is_some_and(|(other, _)| *other == is)
    }
}

struct Run {
    env: Env,
    file: File,
    space: Rc<Space>,
    model: Rc<RefCell<Model>>,
    rng: Rng,
}

impl Run {
    async fn open(env: Env, model: Rc<RefCell<Model>>, seed: u64) -> Run {
        let file = env.open_root("/").unwrap().open(FILE, OpenMode::Write).await.unwrap();
        let (geometry, durable) = (model.borrow().geometry, model.borrow().durable.clone());
        let mut summaries = durable.summaries.clone();
        let groups = groups_within(&geometry, file.size().await.unwrap()) as usize;
        assert!(groups >= summaries.len(), "groups of a superblock are in the file");
        summaries.resize(groups, GroupSummary::default());
        let space =
            Space::open(env.clone(), file.clone(), geometry, summaries, durable.ready_to, GROWTH, true);
        space.resident_groups_max.set(2);
        model.borrow_mut().blocks =
            durable.committed.iter().map(|(addr, stamp)| (*addr, (Is::Committed, *stamp))).collect();
        Run { env, file, space, model, rng: Rng::new(seed) }
    }

    /// Checks that the bitmaps match the model, and that every block in use has its stamp.
    async fn verify(&self) {
        let mut found = BTreeSet::new();
        for group in 0..self.space.groups() {
            for run in self.space.committed_runs(group as u32).await.unwrap() {
                found.extend(run.addr..run.end());
            }
        }
        let blocks = self.model.borrow().blocks.clone();
        let expected: BTreeSet<u64> =
            blocks.iter().filter(|(_, (is, _))| *is == Is::Committed).map(|(addr, _)| *addr).collect();
        assert_eq!(found, expected);
        self.verify_sum();
        for (addr, (_, stamp)) in blocks {
            let (page, result) = self.file.read(addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
            result.unwrap();
            assert!(page.chunks(8).all(|word| word == stamp.to_le_bytes()), "block {addr} lost its stamp");
        }
    }

    /// Checks the sum over the bitmaps, which is kept page by page, through growth, repeated checkpoints and openings.
    fn verify_sum(&self) {
        assert_eq!(self.space.bitmaps_sum(), BitmapsSum::of((0..).zip(self.space.summaries())));
    }

    fn verify_totals(&self) {
        let (totals, model) = (self.space.totals(), self.model.borrow());
        assert_eq!(totals.used, model.count(Is::Uncommitted) + model.count(Is::Committed));
        assert_eq!(totals.waiting, model.count(Is::Waiting));
        let free = totals.held + totals.free_data + totals.free_meta;
        assert_eq!(totals.grown, totals.used + totals.waiting + free);
    }

    async fn stamp(file: File, model: Rc<RefCell<Model>>, placed: Extent, is: Is) {
        let stamp = {
            let mut model = model.borrow_mut();
            model.stamp += 1;
            model.set(placed, None, Some(is));
            model.stamp
        };
        let bytes = stamp.to_le_bytes().repeat((placed.len * BLOCK) as usize / 8);
        file.write(placed.addr * BLOCK, Buf::copy_of(&bytes)).await.unwrap();
    }

    async fn place(&mut self) {
        let placers: Vec<_> = (0..=self.rng.below(3)).map(|_| self.place_one()).collect();
        let placers: Vec<_> = placers.into_iter().map(|placer| self.env.spawn(placer)).collect();
        for placer in placers {
            placer.join().await;
        }
    }

    fn place_one(&mut self) -> impl Future<Output = ()> + use<> {
        let want = 1 + self.rng.below(40);
        let near = self.model.borrow().pick(&mut self.rng, Is::Uncommitted).map(|extent| extent.end());
        let near = near.filter(|_| self.rng.below(2) == 0);
        let (space, file, model) = (self.space.clone(), self.file.clone(), self.model.clone());
        async move {
            let placed = space.place(want, near).await.unwrap();
            assert!((1..=want).contains(&placed.len));
            Run::stamp(file, model, placed, Is::Uncommitted).await;
        }
    }

    async fn place_meta(&mut self) {
        let want = 1 + self.rng.below(20);
        let placed = if self.rng.below(4) == 0 {
            self.space.place_meta_run(want).await.unwrap()
        } else {
            self.space.place_meta(want).await.unwrap()
        };
        assert!((1..=want).contains(&placed.len));
        Run::stamp(self.file.clone(), self.model.clone(), placed, Is::Committed).await;
    }

    fn free_uncommitted(&mut self) {
        let mut model = self.model.borrow_mut();
        let Some(extent) = model.pick(&mut self.rng, Is::Uncommitted) else { return };
        if self.rng.below(5) == 0 {
            model.set(extent, Some(Is::Uncommitted), None);
            return self.space.unplace(extent);
        }
        model.lsn += 1;
        let lsn = model.lsn;
        model.set(extent, Some(Is::Uncommitted), Some(Is::Waiting));
        self.space.free_uncommitted(extent, lsn);
    }

    fn free_committed(&mut self) {
        let mut freed = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let picked = self.model.borrow().pick(&mut self.rng, Is::Committed);
            let Some(extent) = picked else { break };
            self.model.borrow_mut().set(extent, Some(Is::Committed), Some(Is::Waiting));
            freed.push(extent);
        }
        self.space.free_committed(&if self.rng.below(4) == 0 { freed } else { sorted(freed) });
    }

    fn release(&mut self) {
        let durable = {
            let model = self.model.borrow();
            model.lsn - self.rng.below(model.lsn + 1).min(3)
        };
        let batch = self.space.take_releasable(durable, u64::MAX);
        for extent in &batch {
            self.model.borrow_mut().set(*extent, Some(Is::Waiting), None);
        }
        self.space.release(&batch);
    }

    async fn checkpoint(&mut self) {
        self.space.freeze(&[]);
        for (is, _) in self.model.borrow_mut().blocks.values_mut() {
            *is = if *is == Is::Uncommitted { Is::Committed } else { *is };
        }
        for _ in 0..self.rng.below(8) {
            match self.rng.below(5) {
                0 => self.place_meta().await,
                1 => self.place().await,
                2 => self.free_committed(),
                3 => self.release(),
                _ => self.free_uncommitted(),
            }
        }
        let committed: BTreeMap<u64, u64> = {
            let model = self.model.borrow();
            let committed = model.blocks.iter().filter(|(_, (is, _))| *is == Is::Committed);
            committed.map(|(addr, (_, stamp))| (*addr, *stamp)).collect()
        };
        let checkpoint = self.model.borrow().durable.checkpoint + 1;
        let beside = self.place_one();
        let beside = self.env.spawn(beside);
        let written = self.space.write_pages(checkpoint).await.unwrap();
        let summaries = self.space.summaries();
        for (group, summary) in written {
            assert_eq!((summaries[group as usize], summary.version), (summary, checkpoint));
        }
        if self.rng.below(6) == 0 {
            // The superblock fails: the pages are written again, and the old ones are unchanged.
            self.model.borrow_mut().marks.insert("pages written twice");
            self.space.write_pages(checkpoint).await.unwrap();
        }
        self.verify_sum();
        let summaries = self.space.summaries();
        self.file.flush().await.unwrap();
        let ready_to = self.space.ready_to();
        self.model.borrow_mut().durable = Durable { summaries, committed, checkpoint, ready_to };
        self.space.committed(checkpoint);
        self.verify_sum();
        beside.join().await;
    }

    async fn steps(&mut self, count: u64) {
        for _ in 0..count {
            match self.rng.below(12) {
                0..4 => self.place().await,
                4..7 => self.free_uncommitted(),
                7 | 8 => self.release(),
                9 => drop(self.space.punch(2).await.unwrap()),
                10 => self.space.set_reserve(self.rng.below(30)),
                _ => self.checkpoint().await,
            }
            self.verify_totals();
        }
    }
}

fn campaign(seed: u64) -> BTreeSet<&'static str> {
    let world = SimWorld::new(seed, Options::default());
    world.write_file(FILE, &[]);
    let mut rng = Rng::new(seed);
    let group_blocks = [64, 100, 256, 600][rng.below(4) as usize];
    let geometry = Geometry { store_id: seed, journal_pages: 5, group_blocks };
    let durable = Durable::default();
    let (blocks, marks) = (BTreeMap::new(), BTreeSet::new());
    let model = Rc::new(RefCell::new(Model { geometry, durable, blocks, stamp: 0, lsn: 0, marks }));
    for round in 0..6 {
        let whole = round % 3 == 2;
        if !whole {
            world.cut_at(Cut::Event(1 + rng.below(600)));
        }
        let (theirs, run_seed) = (model.clone(), rng.below(u64::MAX));
        let ended = world.run(async move |env| {
            let mut run = Run::open(env, theirs, run_seed).await;
            run.verify().await;
            run.steps(60).await;
            run.verify().await;
        });
        let mark = if ended.is_some() { "ran to its end" } else { "cut" };
        model.borrow_mut().marks.insert(mark);
        world.cancel_cut();
        world.power_cut();
    }
    std::mem::take(&mut model.borrow_mut().marks)
}

#[test]
fn blocks_are_what_the_model_says_through_power_cuts() {
    let mut marks = BTreeSet::new();
    for seed in 0..60 {
        marks.extend(campaign(seed));
    }
    assert_eq!(marks.into_iter().collect::<Vec<_>>(), ["cut", "pages written twice", "ran to its end"]);
}
