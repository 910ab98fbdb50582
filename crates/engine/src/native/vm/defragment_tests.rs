//! Defragmentation as a job of a VM: its end by a revert, a close and a cancel, and what it reports.

use std::rc::Rc;

use blk::Env;
use blk::manifest::{DiskMode, NewDisk};
use sim::{Action, Fault, OpKind, SimWorld};

use super::super::tests::{fill, open_store, run};
use super::super::{NativeVm, NewNativeVm, Store};
use crate::job::{Job, JobState};
use crate::operations::DefragmentRequest;
use crate::options::Options;

const DISK_BYTES: u64 = 64 << 20;
const WINDOW_BLOCKS: u64 = 1024;
/// Blocks of a window that are written. A group of these stores has room for them in one run.
const WRITTEN_BLOCKS: u64 = 256;
/// Longer than anything else takes.
const SLOW_NS: u64 = 10_000_000_000;

/// Makes a VM whose disk has blocks in its first windows that were written in disorder.
async fn fragmented(env: &Env, windows: u64) -> (Rc<Store>, Rc<NativeVm>) {
    let store = open_store(env).await.unwrap();
    let disk = NewDisk { size_bytes: DISK_BYTES, mode: DiskMode::Persistent, folder: None, source: None };
    let id = store.create_vm(NewNativeVm { name: "web", disks: &[disk], slots: &[] }).await.unwrap();
    let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
    for window in 0..windows {
        for n in 0..WRITTEN_BLOCKS {
            let block = window * WINDOW_BLOCKS + n * 7 % WRITTEN_BLOCKS;
            fill(&vm.disk(0).unwrap(), block, 1, 1).await;
        }
    }
    store.flush().await.unwrap();
    (store, vm)
}

async fn start(vm: &Rc<NativeVm>) -> Rc<Job> {
    vm.defragment(DefragmentRequest::default()).await.unwrap()
}

/// Returns what the last event says.
fn said(vm: &NativeVm) -> String {
    vm.activity.events().last().unwrap().message.clone()
}

fn in_world(test: impl AsyncFnOnce(Env, SimWorld) + 'static) {
    let world = SimWorld::new(1, sim::Options::default());
    let inside = world.clone();
    run(&world, |env| async move { test(env, inside).await });
}

/// Waits until the job copies a window whose writes take long.
async fn slow_copy(vm: &Rc<NativeVm>, world: &SimWorld) -> Rc<Job> {
    vm.take("a", "").await.unwrap();
    for nth in 1..5 {
        world.add_fault(Fault::nth(nth, Action::Delay { ns: SLOW_NS }).of(OpKind::Read));
    }
    let disk = vm.disk(0).unwrap();
    let job = vm.defragment(DefragmentRequest { copy_shared: true, ..Default::default() }).await.unwrap();
    while !disk.changes.are_noted(&(0..1)) {
        vm.env.next_turn().await;
    }
    job
}

/// With a bin the replaced disk's node stays a running one.
#[test]
fn a_revert_ends_it_whether_the_replaced_state_is_kept_or_not() {
    for keeps in [false, true] {
        in_world(async move |env, world| {
            let (store, vm) = fragmented(&env, 1).await;
            let job = slow_copy(&vm, &world).await;
            vm.revert(Some("a"), None, keeps).await.unwrap();
            let until_ns = env.now_ns() + 10 * SLOW_NS;
            while !job.state().is_over() && env.now_ns() < until_ns {
                env.sleep_us(100_000).await;
            }
            assert_eq!(job.state(), JobState::Failed, "a state in the bin: {keeps}");
            assert!(job.error().unwrap().to_string().contains("a revert has replaced the disk"));
            // The next one works on the new disk.
            assert_eq!(start(&vm).await.wait().await, JobState::Done);
            vm.close().await.unwrap();
            store.close().await.unwrap();
        });
    }
}

#[test]
fn a_close_waits_for_the_copy_of_a_disk_that_a_revert_has_replaced() {
    in_world(async |env, world| {
        let (store, vm) = fragmented(&env, 1).await;
        let job = slow_copy(&vm, &world).await;
        vm.revert(Some("a"), None, false).await.unwrap();
        assert!(!job.state().is_over(), "the copy is under way");
        vm.close().await.unwrap();
        assert_eq!(job.state(), JobState::Cancelled);
        store.remove_vm(vm.id()).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn what_was_moved_before_a_cancel_is_reported() {
    in_world(async |env, _| {
        let (store, vm) = fragmented(&env, 3).await;
        let job = start(&vm).await;
        // The pass pauses for years behind the second window.
        job.set_limit(1).unwrap();
        let refused = vm.defragment(DefragmentRequest::default()).await.err().unwrap();
        assert!(refused.to_string().contains("job 1 is defragmenting it already"), "{refused}");
        while job.defragmented().moved_bytes < 2 << 20 {
            env.sleep_us(1000).await;
        }
        job.cancel().unwrap();
        assert_eq!(job.wait().await, JobState::Cancelled);
        assert!(said(&vm).starts_with("cancelled; 2 MiB moved"), "{}", said(&vm));
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn windows_that_stay_because_of_a_snapshot_are_reported() {
    in_world(async |env, _| {
        let (store, vm) = fragmented(&env, 1).await;
        vm.take("a", "").await.unwrap();
        let job = start(&vm).await;
        assert_eq!(job.wait().await, JobState::Done);
        assert_eq!((job.defragmented().moved_bytes, job.defragmented().shared_bytes), (0, 4 << 20));
        assert!(said(&vm).starts_with("0 MiB moved, 4 MiB stayed because snapshots"), "{}", said(&vm));
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}
