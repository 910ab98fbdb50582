//! Helpers of the contract tests: seeds, worlds, and sectors with a known value.

pub(crate) mod oracle;

use std::collections::BTreeSet;
use std::future::Future;

use blk::reactor::OpenMode;
use blk::{Buf, Dir, Env, File};
use sim::{Options, SimWorld};

pub(crate) const SECTOR: usize = 512;

/// Number of seeds that almost certainly show every outcome of a choice among a few.
pub(crate) const SEEDS: u64 = 300;

pub(crate) fn root(env: &Env) -> Dir {
    env.open_root("/").expect("the root exists")
}

pub(crate) async fn open(env: &Env, name: &str) -> File {
    root(env).open(name, OpenMode::Write).await.expect("the fixture made it")
}

/// Returns `count` sectors, each filled with `value`.
pub(crate) fn sectors(value: u8, count: usize) -> Buf {
    let mut buf = Buf::alloc(count * SECTOR);
    buf.fill(value);
    buf
}

/// Returns a world with one durable file "disk" of `len` zero bytes.
pub(crate) fn world_with_disk(seed: u64, options: Options, len: usize) -> SimWorld {
    let world = SimWorld::new(seed, options);
    world.write_file("disk", &vec![0; len]);
    world
}

/// Runs `main` in a new world for every seed, cuts the power afterwards, and collects the results of `observe`.
pub(crate) fn outcomes_after_cut<O, F>(
    make: impl Fn(u64) -> SimWorld,
    main: impl Fn(Env) -> F,
    observe: impl Fn(&SimWorld) -> O,
) -> BTreeSet<O>
where
    O: Ord,
    F: Future<Output = ()> + 'static,
{
    let outcome_of = |seed| {
        let world = make(seed);
        world.run(&main);
        world.power_cut();
        observe(&world)
    };
    (0..SEEDS).map(outcome_of).collect()
}

/// Returns the first byte of each sector of a file.
pub(crate) fn sector_values(world: &SimWorld, path: &str) -> Vec<u8> {
    let bytes = world.read_file(path, sim::View::Current).expect("the file is there");
    for sector in bytes.chunks(SECTOR) {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn inside");
    }
    bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
}
