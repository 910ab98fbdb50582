//! Power cuts under concurrent writers on one flat file: every sector shows its last flushed value or one issued
//! later. `SIM_SEED=n cargo test -p sim --release --test integration power_cut` replays one seed, `SIM_SEEDS=n` runs more of them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::support::oracle::Oracle;
use crate::support::{self, SECTOR, open};
use blk::{Env, File};
use sim::{Cut, Device, OpKind, Options, Phase, Rng, SimWorld};

const CUTS_PER_SEED: u64 = 4;
/// 6,000 cuts in every run of the tests.
const CAMPAIGN_SEEDS: u64 = 1_500;
/// Number of seeds within which a flush that makes nothing durable must be detected.
const DEFECT_SEEDS: u64 = 20;

/// The mix of operations of one seed.
#[derive(Debug, Clone, Copy)]
struct Mix {
    sectors: usize,
    logical_block: u32,
    lanes: u32,
    writers: u64,
    /// Longest write in sectors.
    write_max: u64,
    /// Positions and lengths of writes are multiples of this, in sectors.
    unit: u64,
    /// One operation in this many is a flush.
    flush_one_in: u64,
    zeroes: bool,
    /// The file is empty at first and grows with the writes.
    grows: bool,
}

impl Mix {
    fn draw(rng: &mut Rng) -> Mix {
        Mix {
            sectors: 128 << rng.below(5),
            logical_block: *rng.pick(&[512, 512, 4096]).expect("not empty"),
            lanes: *rng.pick(&[1, 4, 32]).expect("not empty"),
            writers: rng.between(1, 12),
            write_max: rng.between(1, 32),
            unit: *rng.pick(&[1, 8]).expect("not empty"),
            flush_one_in: rng.between(2, 30),
            zeroes: rng.coin(),
            grows: rng.coin(),
        }
    }

    fn range(&self, rng: &mut Rng) -> (usize, usize) {
        let count = rng.between(1, self.write_max.div_ceil(self.unit)) * self.unit;
        let first = rng.below((self.sectors as u64 - count) / self.unit + 1) * self.unit;
        (first as usize, count as usize)
    }
}

fn cut(rng: &mut Rng) -> Cut {
    let phase = *rng.pick(&[Phase::Submitted, Phase::Completing, Phase::Completed]).expect("not empty");
    match rng.below(3) {
        0 => Cut::Kind { kind: OpKind::Flush, nth: rng.between(1, 12), phase },
        1 => Cut::After { ns: rng.below(4_000_000) },
        _ => Cut::Event(rng.between(1, 800)),
    }
}

async fn writer(file: File, oracle: Rc<RefCell<Oracle>>, mix: Mix, mut rng: Rng) {
    loop {
        let (first, count) = mix.range(&mut rng);
        let (offset, len) = ((first * SECTOR) as u64, (count * SECTOR) as u64);
        if rng.below(mix.flush_one_in) == 0 {
            let submitted = oracle.borrow_mut().flush();
            file.flush().await.expect("no fault is scheduled");
            oracle.borrow_mut().flushed(submitted);
        } else if mix.zeroes && rng.below(8) == 0 {
            let ticket = oracle.borrow_mut().zero(first, count);
            file.zero(offset, len, rng.coin()).await.expect("no fault is scheduled");
            oracle.borrow_mut().completed(&ticket);
        } else {
            let (ticket, data) = oracle.borrow_mut().write(first, count);
            file.write(offset, data).await.expect("no fault is scheduled");
            oracle.borrow_mut().completed(&ticket);
        }
    }
}

async fn write_until_cut(env: Env, oracle: Rc<RefCell<Oracle>>, mix: Mix, mut rng: Rng) {
    let file = open(&env, "disk").await;
    for _ in 1..mix.writers {
        let _detached = env.spawn(writer(file.clone(), oracle.clone(), mix, rng.fork()));
    }
    writer(file, oracle, mix, rng).await;
}

/// Runs a campaign. Returns the number of cuts, or what was wrong after one.
fn campaign(seed: u64, ignores_flushes: bool) -> Result<u64, String> {
    let mut rng = Rng::new(seed);
    let mix = Mix::draw(&mut rng);
    let options = Options {
        logical_block: mix.logical_block,
        device: Device { lanes: mix.lanes, ..Device::scrambled() },
        ..Options::default()
    };
    let world = support::world_with_disk(seed, options, if mix.grows { 0 } else { mix.sectors * SECTOR });
    world.ignore_flushes(ignores_flushes);
    let oracle = Rc::new(RefCell::new(Oracle::new(seed, mix.sectors)));
    for round in 0..CUTS_PER_SEED {
        world.cut_at(cut(&mut rng));
        let (writers_oracle, writers_rng) = (oracle.clone(), rng.fork());
        let outcome = world.run(|env| write_until_cut(env, writers_oracle, mix, writers_rng));
        assert!(outcome.is_none(), "writers never end");
        world.power_cut();
        verify(&world, &oracle).map_err(|found| format!("seed {seed}, cut {round}, {mix:?}: {found}"))?;
    }
    Ok(CUTS_PER_SEED)
}

fn verify(world: &SimWorld, oracle: &RefCell<Oracle>) -> Result<(), String> {
    let content = world.run(|env| async move { open(&env, "disk").await.read_all(1 << 30).await });
    let mut content = content.expect("no cut is scheduled").map_err(|e| e.to_string())?;
    // Sectors beyond the end of the file count as zeros, which is allowed exactly if no write was flushed.
    let mut oracle = oracle.borrow_mut();
    content.resize(content.len().max(oracle.len() * SECTOR), 0);
    oracle.check(&content)
}

#[test]
fn every_sector_shows_its_last_flushed_value_or_a_later_one() {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let only = number("SIM_SEED");
    let seeds = only.map_or(0..number("SIM_SEEDS").unwrap_or(CAMPAIGN_SEEDS), |seed| seed..seed + 1);
    let mut cuts = 0;
    for seed in seeds {
        match campaign(seed, false) {
            Ok(survived) => cuts += survived,
            Err(found) => {
                panic!(
                    "{found}\nreplay: SIM_SEED={seed} cargo test -p sim --release --test integration power_cut"
                )
            }
        }
    }
    println!("{cuts} cuts");
}

#[test]
fn an_ignored_flush_is_detected() {
    let caught = (0..DEFECT_SEEDS).filter(|&seed| campaign(seed, true).is_err()).count();
    assert!(caught as u64 >= DEFECT_SEEDS / 2, "caught in {caught} of {DEFECT_SEEDS} seeds");
}
