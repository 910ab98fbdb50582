//! A defragmentation of a disk whose guests are on another core.

use std::cell::Cell;
use std::rc::Rc;

use blk::volume::Volume;
use sim::{Action, Fault, OpKind, SimWorld};

use super::super::defragment::{DefragmentJob, DefragmentScope};
use super::super::disk::NativeDisk;
use super::super::tests::{disk, shows};
use super::tests::{get, put, run_two};
use crate::job::{DEFRAGMENT, Job};
use crate::operations::DefragmentOutcome;
use crate::options::{Defect, Defects};

const BLOCKS: u64 = 300;
const LAST: u8 = 2;

async fn defragment(disk: Rc<NativeDisk>) -> DefragmentOutcome {
    let job = Job::new(disk.store.env.clone(), 1, DEFRAGMENT, String::new());
    let part = DefragmentJob { job: &job, before: 0, after: 0 };
    disk.defragment(DefragmentScope::Exclusive, part).await.unwrap()
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
        for n in 0..BLOCKS {
            put(&seen, n * 7 % BLOCKS, 1).await;
        }
        for _ in 0..2 {
            seen.clone().flush().await.unwrap();
        }
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

/// The other core sends the record of a write while the last look-up of the window reads a page of the map.
#[test]
fn a_record_that_comes_during_the_last_look_up_of_a_window_is_kept() {
    let world = SimWorld::new(8, sim::Options::default());
    let slow = world.clone();
    run_two(&world, Defects::default(), |store, cores| async move {
        let native = disk(&store, 1);
        let seen = cores.bridged(native.clone());
        for n in 0..BLOCKS {
            put(&seen, n * 7 % BLOCKS, 1).await;
        }
        store.checkpoint().await.unwrap();
        let root = native.node.current_view().trees_below().places.expect("blocks are mapped");
        // The copy is written slowly.
        for nth in 1..9 {
            slow.add_fault(Fault::nth(nth, Action::Delay { ns: 100_000_000 }).of(OpKind::Write));
        }
        let work = store.env.spawn(defragment(native.clone()));
        while !native.changes.are_noted(&(0..BLOCKS)) {
            store.env.next_turn().await;
        }
        store.env.sleep_us(50_000).await;
        // The grant of this read lets the other core redirect the block.
        assert_eq!(get(&seen, 6).await, 1);
        store.nodes.forget(root.pointer.addr);
        let loads = store.nodes.loads();
        slow.add_fault(Fault::nth(1, Action::Delay { ns: 500_000_000 }).of(OpKind::Read));
        while store.nodes.loads() == loads {
            store.env.sleep_us(1000).await;
        }
        slow.clear_faults();
        put(&seen, 6, LAST).await;
        assert!(native.changes.are_noted(&(0..BLOCKS)), "the window is still being moved");
        assert!(work.join().await.moved_bytes > 0);
        assert_eq!((get(&seen, 6).await, shows(&native, 6).await), (LAST, LAST));
        assert_eq!(get(&seen, 7).await, 1);
    });
}
