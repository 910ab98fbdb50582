//! Power cuts under a journal with checkpoints: a replay returns a prefix of the appended records, with everything that
//! a flush covered, and vouches for no data that is missing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::sync::TaskMutex;
use blk::{Buf, Env, File};
use sim::{Cut, OpKind, Options, Phase, Rng, SimWorld};

use super::super::layout::{BLOCK, checksum};
use super::super::superblock::Superblock;
use super::tests::{GEOMETRY, open};
use super::*;

const SEEDS: u64 = 150;
const CUTS_PER_SEED: u64 = 4;
/// Each `Map` of one boot has a block of its own, as long as there are enough.
const DATA_BLOCKS: u64 = 2048;

/// The test's expected state.
#[derive(Default)]
struct Model {
    /// All records that may be found, with their numbers.
    appended: Vec<(u64, Record)>,
    /// A flush covered every record up to this one.
    flushed: u64,
    /// The greatest `durable_flushed_lsn` seen.
    confirmed: u64,
    data_blocks: u64,
}

struct Load {
    journal: Rc<Journal>,
    file: File,
    model: Rc<RefCell<Model>>,
    superblock: Cell<Superblock>,
    checkpoints: TaskMutex,
    world: SimWorld,
    laps: Cell<u64>,
}

fn first_superblock() -> Superblock {
    Superblock { epoch: 1, checkpoint: 1, ready_to: 0, clean: 0, ..Superblock::first(&GEOMETRY, 0) }
}

/// Returns the content of the block that a record's data fills: no two records have the same.
fn data(lsn: u64) -> Buf {
    Buf::copy_of(&lsn.to_le_bytes().repeat(BLOCK as usize / 8))
}

impl Load {
    /// Does what `recover` does: replays, compares, makes a new epoch durable, and continues behind the end.
    async fn recover(env: &Env, world: SimWorld, model: Rc<RefCell<Model>>) -> Result<Load, String> {
        let file = open(env).await;
        let mut superblock = Superblock::read(&file).await.map_err(|e| e.to_string())?.newest;
        let (from, geometry) = (superblock.journal, superblock.geometry());
        let begin = Begin { epoch: superblock.epoch, ..superblock.begin() };
        let found = replay(&file, &geometry, begin).await.map_err(|e| e.to_string())?;
        model.borrow().compare(from, &found)?;
        verify_data(&file, &found).await?;
        file.flush().await.map_err(|e| e.to_string())?;
        superblock.epoch = found.epoch + 1;
        superblock.checkpoint += 1;
        superblock.journal = found.end;
        superblock.flushed_lsn = found.end.lsn - 1;
        superblock.write(&file).await.map_err(|e| e.to_string())?;
        file.flush().await.map_err(|e| e.to_string())?;
        *model.borrow_mut() =
            Model { flushed: found.end.lsn - 1, confirmed: found.end.lsn - 1, ..Model::default() };
        let start = Start {
            epoch: superblock.epoch,
            at: found.end,
            tail: found.end.seq,
            flushed_lsn: superblock.flushed_lsn,
            checkpoint: superblock.checkpoint,
            catalogue_checkpoint: superblock.checkpoint,
            named: 0,
        };
        let journal = Journal::new(env.clone(), file.clone(), geometry, start, MemoryTail::new(env, 1, 1));
        let (superblock, checkpoints) = (Cell::new(superblock), TaskMutex::default());
        let laps = Cell::new(found.end.seq / geometry.journal_pages);
        Ok(Load { journal, file, model, superblock, checkpoints, world, laps })
    }

    async fn map(&self) {
        let block = self.model.borrow().data_blocks;
        if block == DATA_BLOCKS {
            return;
        }
        self.model.borrow_mut().data_blocks += 1;
        // The content is the block's own number, since the record has none yet.
        let addr = GEOMETRY.groups_start() + block;
        let data = data(addr);
        let checksum = checksum(&data);
        self.file.write(addr * BLOCK, data).await.unwrap();
        self.append(Record::Map { node: 1, start: addr, len: 1, addr, birth: 1, checksum }).await;
    }

    async fn append(&self, record: Record) {
        while !self.journal.has_room() {
            self.checkpoint().await;
        }
        self.model.borrow_mut().append(self.journal.last_lsn() + 1, record.clone());
        self.journal.append(record);
    }

    async fn change(&self, rng: &mut Rng) {
        let len = if rng.below(6) == 0 { CHANGE_BYTES_MAX as u64 } else { rng.below(3000) };
        let fill = rng.u64() as u8;
        self.append(Record::Change(vec![fill; len as usize])).await;
    }

    async fn flush(&self) {
        let last = self.journal.last_lsn();
        self.journal.flush().await.unwrap();
        assert!(self.journal.flushed_lsn() >= last);
        let mut model = self.model.borrow_mut();
        model.flushed = model.flushed.max(last);
        model.confirmed = model.confirmed.max(self.journal.durable_flushed_lsn());
    }

    async fn checkpoint(&self) {
        let _turn = self.checkpoints.lock().await;
        let position = self.journal.cut();
        self.flush().await;
        let mut superblock = self.superblock.get();
        superblock.checkpoint += 1;
        superblock.journal = position;
        superblock.flushed_lsn = self.journal.flushed_lsn();
        superblock.write(&self.file).await.unwrap();
        self.file.flush().await.unwrap();
        self.journal.trim(position.seq, superblock.checkpoint);
        self.superblock.set(superblock);
        if position.seq / GEOMETRY.journal_pages > self.laps.get() {
            self.laps.set(position.seq / GEOMETRY.journal_pages);
            self.world.mark("lap");
        }
    }

    async fn work(self: Rc<Self>, mut rng: Rng, flush_one_in: u64) {
        loop {
            match rng.below(10) {
                0..6 => self.map().await,
                6 => self.append(Record::Unmap { node: 2, start: rng.below(99), len: 7, birth: 3 }).await,
                7 => self.change(&mut rng).await,
                _ if rng.below(40) == 0 => self.checkpoint().await,
                _ => {}
            }
            if rng.below(flush_one_in) == 0 {
                self.flush().await;
            }
        }
    }
}

impl Model {
    fn append(&mut self, lsn: u64, record: Record) {
        self.appended.push((lsn, record));
    }

    fn compare(&self, from: Position, found: &Replayed) -> Result<(), String> {
        let end = found.end.lsn - 1;
        if end < self.flushed || found.flushed_lsn < self.confirmed || found.flushed_lsn > end {
            return Err(format!(
                "records to {end}, data to {}; a flush had covered {}, and {} was confirmed",
                found.flushed_lsn, self.flushed, self.confirmed
            ));
        }
        let wanted = self.appended.iter().filter(|(lsn, _)| (from.lsn..=end).contains(lsn));
        match wanted.eq(&found.records) {
            true => Ok(()),
            false => Err(format!("records {} to {end} are not those that were appended", from.lsn)),
        }
    }
}

async fn verify_data(file: &File, found: &Replayed) -> Result<(), String> {
    for (lsn, record) in found.records.iter().filter(|(lsn, _)| *lsn <= found.flushed_lsn) {
        let Record::Map { addr, checksum: expected, .. } = record else { continue };
        let (data, result) = file.read(addr * BLOCK, Buf::alloc(BLOCK as usize)).await;
        result.map_err(|e| e.to_string())?;
        if checksum(&data) != *expected {
            return Err(format!("the data of record {lsn} is lost, and replay vouches for it"));
        }
    }
    Ok(())
}

fn draw_cut(rng: &mut Rng) -> Cut {
    let phase = *rng.pick(&[Phase::Submitted, Phase::Completing, Phase::Completed]).expect("not empty");
    match rng.below(3) {
        0 => Cut::Kind { kind: OpKind::Flush, nth: rng.between(1, 60), phase },
        1 => Cut::Kind { kind: OpKind::Write, nth: rng.between(1, 400), phase },
        _ => Cut::Event(rng.between(1, 3000)),
    }
}

/// Returns the world after all cuts, or the first error after one.
fn campaign(seed: u64, flush_lies: bool) -> Result<SimWorld, String> {
    let mut rng = Rng::new(seed);
    let world = SimWorld::new(seed, Options::default());
    world.write_file("store", &vec![0; ((GEOMETRY.groups_start() + DATA_BLOCKS) * BLOCK) as usize]);
    world.write_at("store", BLOCK * 8, &first_superblock().encode(1));
    let model = Rc::new(RefCell::new(Model::default()));
    world.ignore_flushes(flush_lies);
    for round in 0..=CUTS_PER_SEED {
        world.cut_at(draw_cut(&mut rng));
        let (outer, model, mut rng) = (world.clone(), model.clone(), rng.fork());
        let failed = Rc::new(RefCell::new(None));
        let out = failed.clone();
        let ended = world.run(|env| async move {
            let load = match Load::recover(&env, outer, model).await {
                Ok(load) => Rc::new(load),
                Err(found) => return *out.borrow_mut() = Some(found),
            };
            let flush_one_in = rng.between(1, 60);
            for _ in 0..rng.below(6) {
                let _detached = env.spawn(load.clone().work(rng.fork(), flush_one_in));
            }
            load.work(rng, flush_one_in).await;
        });
        if let Some(found) = failed.take() {
            return Err(format!("seed {seed}, boot {round}: {found}"));
        }
        assert!(ended.is_none(), "the load never ends");
        world.power_cut();
    }
    Ok(world)
}

#[test]
fn replay_gives_a_prefix_with_all_that_was_flushed() {
    let worlds: Vec<_> =
        (0..SEEDS).map(|seed| campaign(seed, false).unwrap_or_else(|found| panic!("{found}"))).collect();
    let laps: u64 = worlds.iter().filter_map(|world| world.marks().get("lap").copied()).sum();
    assert!(laps > SEEDS / 4, "the ring wrapped {laps} times");
}

#[test]
fn an_ignored_flush_is_detected() {
    let caught = (0..20).filter(|&seed| campaign(seed, true).is_err()).count();
    assert!(caught >= 10, "caught in {caught} of 20 seeds");
}
