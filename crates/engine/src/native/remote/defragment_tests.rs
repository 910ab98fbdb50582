//! A defragmentation of a disk whose guests are on another core.

use std::cell::Cell;
use std::rc::Rc;

use blk::volume::Volume;
use sim::SimWorld;

use super::super::defragment::{DefragmentJob, DefragmentScope};
use super::super::tests::{disk, shows};
use super::tests::{get, put, run_two};
use crate::job::{DEFRAGMENT, Job};
use crate::options::{Defect, Defects};

const BLOCKS: u64 = 300;
const LAST: u8 = 2;

/// Overwrites every block from another core while the disk is defragmented. Returns whether the disk shows these
/// writes on both cores.
fn overwritten_meanwhile(defects: Defects) -> bool {
    let world = SimWorld::new(8, sim::Options::default());
    let is_right = Rc::new(Cell::new(true));
    let out = is_right.clone();
    run_two(&world, defects, |store, cores| async move {
        let native = disk(&store, 1);
        let seen = cores.bridged(native.clone());
        for n in 0..BLOCKS {
            put(&seen, n * 7 % BLOCKS, 1).await;
        }
        for _ in 0..2 {
            seen.clone().flush().await.unwrap();
        }
        let (pass, env) = (native.clone(), store.env.clone());
        let work = store.env.spawn(async move {
            let job = Job::new(env, 1, DEFRAGMENT, String::new());
            let part = DefragmentJob { job: &job, before: 0, after: 0 };
            pass.defragment(DefragmentScope::Exclusive, part).await
        });
        for n in 0..BLOCKS {
            put(&seen, n, LAST).await;
        }
        work.join().await.unwrap();
        for n in 0..BLOCKS {
            let both = (get(&seen, n).await, shows(&native, n).await);
            out.set(out.get() && both == (LAST, LAST));
        }
    });
    is_right.get()
}

#[test]
fn a_defragmentation_loses_no_write_of_another_core() {
    assert!(overwritten_meanwhile(Defects::default()));
    assert!(!overwritten_meanwhile(Defects::only(Defect::KeepGrants)), "the defect is found");
}
