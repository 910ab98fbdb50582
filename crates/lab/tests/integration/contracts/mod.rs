//! The contracts of every disk and every home, whatever the store and the world: one script for each contract, on
//! simulated files and on real ones.

mod home;
mod volume;

use std::rc::Rc;

use blk::uring::UringReactor;
use blk::{Dir, Env, Executor};
use sim::SimWorld;

/// Seed of the simulated world, and of the random choices in both worlds.
const SEED: u64 = 41;

/// Runs `test` in an empty folder on simulated files, then in one on real files.
fn in_both_worlds<F: Future<Output = ()> + 'static>(test: fn(Env, Dir) -> F) {
    let simulated = move |env: Env| async move {
        let root = env.open_root("/").unwrap();
        test(env, root).await;
    };
    SimWorld::new(SEED, sim::Options::default()).run(simulated).expect("no power cut is scheduled");

    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
    let env = executor.env();
    let root = env.open_root(folder.path().to_str().unwrap()).unwrap();
    executor.run(test(env, root)).expect("nothing is under way and the test is not done");
}
