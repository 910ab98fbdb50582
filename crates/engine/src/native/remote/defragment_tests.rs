//! A defragmentation of a disk whose guests are on another core.

use std::cell::Cell;
use std::rc::Rc;

use blk::volume::Volume;
use sim::{Action, Bridge, Fault, OpKind, SimWorld};

use super::super::defragment::{DefragmentJob, DefragmentScope};
use super::super::disk::NativeDisk;
use super::super::tests::{disk, shows};
use super::tests::{get, put, run_two};
use crate::job::{DEFRAGMENT, Job};
use crate::options::{Defect, Defects};

const BLOCKS: u64 = 300;
const LAST: u8 = 2;

/// Writes every block, so that no two are neighbours and all may be overwritten in place.
async fn fragment(disk: &Rc<Bridge>) {
    for n in 0..BLOCKS {
        put(disk, n * 7 % BLOCKS, 1).await;
    }
    for _ in 0..2 {
        disk.clone().flush().await.unwrap();
    }
}

async fn defragment(disk: Rc<NativeDisk>) {
    let job = Job::new(disk.store.env.clone(), 1, DEFRAGMENT, String::new());
    let part = DefragmentJob { job: &job, before: 0, after: 0 };
    disk.defragment(DefragmentScope::Exclusive, part).await.unwrap();
}

/// Overwrites every block from another core while the disk is defragmented. Returns whether the disk shows these
/// writes on both cores.
fn overwritten_meanwhile(defects: Defects) -> bool {
    let world = SimWorld::new(8, sim::Options::default());
    let is_right = Rc::new(Cell::new(true));
    let out = is_right.clone();
    run_two(&world, defects, |store, cores| async move {
        let native = disk(&store, 1);
        let seen = cores.bridged(native.clone());
        fragment(&seen).await;
        let work = store.env.spawn(defragment(native.clone()));
        for n in 0..BLOCKS {
            put(&seen, n, LAST).await;
        }
        work.join().await;
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

#[test]
fn a_redirect_of_another_core_is_seen_although_the_map_is_being_read() {
    let world = SimWorld::new(9, sim::Options::default());
    let slow = world.clone();
    run_two(&world, Defects::default(), |store, cores| async move {
        let native = disk(&store, 1);
        let seen = cores.bridged(native.clone());
        fragment(&seen).await;
        store.checkpoint().await.unwrap();
        slow.add_fault(Fault::nth(1, Action::Delay { ns: 50_000_000 }).of(OpKind::Read));
        let work = store.env.spawn(defragment(native.clone()));
        store.env.sleep_us(1000).await;
        // The answer brings blocks in advance, and a grant without the permission to overwrite.
        put(&seen, 5, LAST).await;
        let range = native.writes.lock(0..BLOCKS).await;
        store.env.sleep_us(100_000).await;
        // The copy has ended. The next look-up has to read the map, and a redirect is recorded meanwhile.
        let roots = native.node.roots().expect("the checkpoint has merged all");
        store.nodes.forget(roots.places.expect("the disk has blocks").pointer.addr);
        slow.add_fault(Fault::nth(1, Action::Delay { ns: 50_000_000 }).of(OpKind::Read));
        drop(range);
        store.env.sleep_us(1000).await;
        put(&seen, 9, LAST).await;
        work.join().await;
        for block in [5, 9] {
            assert_eq!((get(&seen, block).await, shows(&native, block).await), (LAST, LAST), "block {block}");
        }
    });
}
