//! A VM with thousands of snapshots, hundreds of branches, and a thousand clones.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Env};

use super::super::space::Growth;
use super::super::tests::run;
use super::super::{NativeVm, NewNativeVm, NewStore, Store, StoreOptions};
use crate::job::JobState;
use crate::operations::CommitWhat;
use crate::options::Options;
use crate::tree::DESCRIPTION_BYTES_MAX;

/// Snapshots taken before any of them is merged: more than recursion on a stack of 2 MiB allows.
const UNMERGED: u64 = 5000;
const SNAPSHOTS: u64 = 10_000;
const BRANCHES: u64 = 300;
const CLONES: u64 = 1000;
const BLOCK: u64 = 4096;
const DISK_BYTES: u64 = SNAPSHOTS * BLOCK;

async fn open(env: &Env, options: StoreOptions) -> Rc<Store> {
    let dir = env.open_root("/").unwrap();
    let file = match dir.create_new("store").await {
        Ok(file) => {
            Store::format(env, &file, NewStore::default()).await.unwrap();
            dir.sync().await.unwrap();
            file
        }
        Err(_) => dir.open("store", OpenMode::Write).await.unwrap(),
    };
    Store::open(env.clone(), file, options, Growth::default(), true).await.unwrap()
}

async fn make(store: &Rc<Store>) -> Rc<NativeVm> {
    let disk = NewDisk { size_bytes: DISK_BYTES, mode: DiskMode::Persistent, folder: None, source: None };
    let id = store.create_vm(NewNativeVm { name: "web", disks: &[disk], slots: &[] }).await.unwrap();
    NativeVm::open(store, id, Options::default()).await.unwrap()
}

async fn find(store: &Rc<Store>) -> Rc<NativeVm> {
    let (id, _) = store.vms().await.unwrap().remove(0);
    NativeVm::open(store, id, Options::default()).await.unwrap()
}

async fn write(vm: &NativeVm, block: u64) {
    let mut buf = Buf::alloc(BLOCK as usize);
    buf.fill(block as u8 | 1);
    vm.disk(0).unwrap().write(block * BLOCK, buf.freeze()).await.unwrap();
}

async fn assert_shown(vm: &NativeVm, block: u64) {
    let (buf, read) = vm.disk(0).unwrap().read(block * BLOCK, Buf::alloc(BLOCK as usize)).await;
    read.unwrap();
    assert!(buf.iter().all(|byte| *byte == block as u8 | 1), "block {block}");
}

async fn take_many(vm: &NativeVm, count: u64) {
    for n in 0..count {
        write(vm, n).await;
        vm.take(&format!("s{n}"), "").await.unwrap();
    }
}

async fn wait_for_space(store: &Store) {
    while !store.dropped_nodes().is_empty() {
        store.progress.wait().await;
    }
    assert!(store.check().await.unwrap().is_sound());
}

#[test]
fn thousands_of_takes_before_a_checkpoint_keep_their_content() {
    let world = sim::SimWorld::new(1, sim::Options::default());
    // A checkpoint is due only when the journal is half full.
    let options = StoreOptions { pending_depth_max: usize::MAX, ..StoreOptions::default() };
    run(&world, |env| async move {
        let store = open(&env, options).await;
        let vm = make(&store).await;
        take_many(&vm, UNMERGED).await;
        for block in [0, UNMERGED / 2, UNMERGED - 1] {
            assert_shown(&vm, block).await;
        }
    });
    run(&world, |env| async move {
        let store = open(&env, options).await;
        let vm = find(&store).await;
        assert_shown(&vm, 0).await;
        store.checkpoint().await.unwrap();
        assert_shown(&vm, 0).await;
        assert_eq!(vm.state().snapshots.len() as u64, UNMERGED);
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn ten_thousand_snapshots_are_taken_and_committed() {
    let world = sim::SimWorld::new(2, sim::Options::default());
    run(&world, |env| async move {
        let store = open(&env, StoreOptions::default()).await;
        let vm = make(&store).await;
        take_many(&vm, SNAPSHOTS).await;
        let job = vm.commit(&CommitWhat::All).await.unwrap();
        assert!(vm.state().snapshots.is_empty() && vm.state().current.is_none());
        assert_eq!(job.wait().await, JobState::Done);
        wait_for_space(&store).await;
        assert_shown(&vm, 0).await;
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_snapshot_with_hundreds_of_branches_is_committed() {
    let world = sim::SimWorld::new(3, sim::Options::default());
    let long = "d".repeat(DESCRIPTION_BYTES_MAX);
    run(&world, |env| async move {
        let store = open(&env, StoreOptions::default()).await;
        let vm = make(&store).await;
        vm.take("above", "").await.unwrap();
        vm.take("root", "").await.unwrap();
        for n in 0..BRANCHES {
            write(&vm, n).await;
            vm.take(&format!("b{n}"), &long).await.unwrap();
            vm.revert(Some("root"), None, false).await.unwrap();
        }
        vm.commit(&CommitWhat::One("root".into())).await.unwrap();
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open(&env, StoreOptions::default()).await;
        let state = find(&store).await.state();
        let above = state.snapshots.iter().find(|s| s.name == "above").unwrap().id;
        assert_eq!((state.snapshots.len() as u64, state.current), (BRANCHES + 1, Some(above)));
        assert!(state.snapshots.iter().all(|s| s.id == above || s.parent == Some(above)));
        store.close().await.unwrap();
    });
}

#[test]
fn a_thousand_clones_are_made_and_removed() {
    let world = sim::SimWorld::new(4, sim::Options::default());
    run(&world, |env| async move {
        let store = open(&env, StoreOptions::default()).await;
        let vm = make(&store).await;
        write(&vm, 7).await;
        vm.take("gold", "").await.unwrap();
        let mut clones = Vec::new();
        for n in 0..CLONES {
            clones.push(vm.clone_to("gold", &format!("test{n}")).await.unwrap());
        }
        let one = NativeVm::open(&store, clones[0], Options::default()).await.unwrap();
        assert_shown(&one, 7).await;
        one.close().await.unwrap();
        store.checkpoint().await.unwrap();
        for id in clones {
            store.remove_vm(id).await.unwrap();
        }
        wait_for_space(&store).await;
        assert_shown(&vm, 7).await;
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}
