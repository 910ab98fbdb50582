//! Operations of a native VM, in the simulated world.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind};

use super::super::tests::{open_store, run};
use super::super::{NativeVm, NewNativeVm, Store};
use crate::job::{Job, JobState, MOVE};
use crate::operations::CommitWhat;
use crate::options::Options;
use crate::relocate::Relocation;

const DISK_BYTES: u64 = 64 << 20;

fn disk(mode: DiskMode) -> NewDisk {
    NewDisk { size_bytes: DISK_BYTES, mode, folder: None, source: None }
}

async fn make(env: &Env, modes: &[DiskMode]) -> (Rc<Store>, Rc<NativeVm>) {
    let store = open_store(env).await.unwrap();
    let disks: Vec<NewDisk> = modes.iter().map(|mode| disk(*mode)).collect();
    let id = store.create_vm(NewNativeVm { name: "web", disks: &disks, slots: &[] }).await.unwrap();
    let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
    (store, vm)
}

async fn write(vm: &NativeVm, number: u32, byte: u8) {
    let mut buf = Buf::alloc(64 << 10);
    buf.fill(byte);
    vm.disk(number).unwrap().write(1 << 20, buf.freeze()).await.unwrap();
}

async fn shows(vm: &NativeVm, number: u32) -> u8 {
    let (buf, result) = vm.disk(number).unwrap().read((1 << 20) + 512, Buf::alloc(512)).await;
    result.unwrap();
    buf[0]
}

#[test]
fn disks_have_the_slots_that_were_requested() {
    let world = sim::SimWorld::new(3, sim::Options::default());
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let disks = vec![disk(DiskMode::Persistent); 4];
        let slots = [None, Some("sata0:1".to_owned()), Some("scsi0:0".to_owned())];
        let new = NewNativeVm { name: "web", disks: &disks, slots: &slots };
        let id = store.create_vm(new.clone()).await.unwrap();
        let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
        let found: Vec<_> = vm.state().disks.into_iter().map(|disk| disk.slot).collect();
        assert_eq!(found, ["scsi0:1", "sata0:1", "scsi0:0", "scsi0:2"]);
        let twice = [slots[1].clone(), slots[1].clone()];
        let refused = store.create_vm(NewNativeVm { slots: &twice, ..new }).await.unwrap_err();
        assert!(refused.cause.contains("sata0:1 is the slot of two disks"), "{refused}");
    });
}

#[test]
fn takes_reverts_discards_and_commits() {
    let world = sim::SimWorld::new(3, sim::Options::default());
    run(&world, |env| async move {
        let (store, vm) = make(&env, &[DiskMode::Persistent, DiskMode::Persistent]).await;
        write(&vm, 0, 1).await;
        vm.take("one", "first").await.unwrap();
        write(&vm, 0, 2).await;
        write(&vm, 1, 2).await;
        vm.take("two", "").await.unwrap();
        write(&vm, 0, 3).await;
        assert_eq!(vm.revert_preview(Some("one"), false).await.unwrap().bytes, 64 << 10);
        vm.store.checkpoint().await.unwrap();
        assert_eq!(vm.revert_preview(Some("one"), false).await.unwrap().bytes, 64 << 10);
        vm.revert(Some("one"), Some("three"), false).await.unwrap();
        assert_eq!((shows(&vm, 0).await, shows(&vm, 1).await), (1, 0));
        write(&vm, 0, 4).await;
        vm.revert(Some("three"), None, false).await.unwrap();
        assert_eq!((shows(&vm, 0).await, shows(&vm, 1).await), (3, 2));
        let loss = vm.discard("two", false).await.unwrap();
        assert_eq!(loss.snapshots, ["two", "three"]);
        assert_eq!((shows(&vm, 0).await, shows(&vm, 1).await), (2, 2));
        let job = vm.commit(&CommitWhat::One("one".into())).await.unwrap();
        assert_eq!(job.wait().await, JobState::Done);
        assert_eq!((shows(&vm, 0).await, shows(&vm, 1).await), (2, 2));
        assert!(vm.state().snapshots.is_empty() && vm.state().current.is_none());
        let refused = vm.commit(&CommitWhat::All).await.err().map(|e| e.kind);
        assert_eq!(refused, Some(ErrorKind::Refused));
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let (id, name) = store.vms().await.unwrap().remove(0);
        assert_eq!(name, "web");
        let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
        assert_eq!((shows(&vm, 0).await, shows(&vm, 1).await), (2, 2));
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn clones_keep_their_content_when_their_parent_is_removed() {
    let world = sim::SimWorld::new(4, sim::Options::default());
    run(&world, |env| async move {
        let (store, vm) = make(&env, &[DiskMode::Persistent]).await;
        write(&vm, 0, 1).await;
        vm.take("gold", "").await.unwrap();
        write(&vm, 0, 2).await;
        let mut clones = Vec::new();
        for n in 0..20 {
            let id = vm.clone_to("gold", &format!("test{n}")).await.unwrap();
            clones.push(NativeVm::open(&store, id, Options::default()).await.unwrap());
        }
        write(&clones[3], 0, 3).await;
        let id = vm.id();
        vm.close().await.unwrap();
        drop(vm);
        store.remove_vm(id).await.unwrap();
        for (n, clone) in clones.iter().enumerate() {
            assert_eq!(shows(clone, 0).await, if n == 3 { 3 } else { 1 });
        }
        let used = store.space.totals().used;
        for clone in &clones[1..] {
            clone.close().await.unwrap();
            store.remove_vm(clone.id()).await.unwrap();
        }
        while !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        assert_eq!(shows(&clones[0], 0).await, 1);
        assert!(store.space.totals().used < used);
        store.close().await.unwrap();
    });
}

#[test]
fn modes_resets_growth_and_added_and_removed_disks() {
    let world = sim::SimWorld::new(5, sim::Options::default());
    run(&world, |env| async move {
        let modes = [DiskMode::IndependentNonpersistent, DiskMode::Persistent];
        let (store, vm) = make(&env, &modes).await;
        write(&vm, 0, 7).await;
        vm.reset(false).await.unwrap();
        assert_eq!(shows(&vm, 0).await, 0);
        vm.set_mode(0, DiskMode::IndependentPersistent).await.unwrap();
        write(&vm, 0, 8).await;
        vm.take("one", "").await.unwrap();
        vm.grow_disk(1, 2 * DISK_BYTES).await.unwrap();
        let added = vm.add_disk(&disk(DiskMode::Persistent)).await.unwrap();
        assert_eq!((added.number, added.slot.as_str()), (2, "scsi0:2"));
        vm.remove_disk(1, true).await.unwrap();
        vm.revert(Some("one"), None, false).await.unwrap();
        assert_eq!(vm.disks().len(), 3);
        assert_eq!(vm.disk(1).unwrap().size_bytes(), DISK_BYTES);
        assert_eq!(shows(&vm, 0).await, 8);
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_restored_reset_does_not_change_the_current_snapshot() {
    let world = sim::SimWorld::new(5, sim::Options::default());
    run(&world, |env| async move {
        let modes = [DiskMode::IndependentNonpersistent, DiskMode::Persistent];
        let (store, vm) = make(&env, &modes).await;
        vm.take("a", "").await.unwrap();
        write(&vm, 0, 7).await;
        vm.reset(true).await.unwrap();
        vm.take("b", "").await.unwrap();
        let runs_from = vm.state().current;
        for byte in [7, 0] {
            let entry = vm.state().bin.last().unwrap().id;
            vm.restore(entry, true).await.unwrap();
            assert_eq!((shows(&vm, 0).await, vm.state().current), (byte, runs_from));
        }
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn differences_and_exclusive_bytes_of_a_state() {
    let world = sim::SimWorld::new(6, sim::Options::default());
    run(&world, |env| async move {
        let (store, vm) = make(&env, &[DiskMode::Persistent]).await;
        write(&vm, 0, 1).await;
        vm.take("one", "").await.unwrap();
        let nodes = |name: &str| {
            let state = vm.state();
            let snapshot = state.snapshots.iter().find(|s| s.name == name).unwrap().clone();
            vec![super::items::node_of(&snapshot.disks[0].1)]
        };
        write(&vm, 0, 2).await;
        let one = nodes("one");
        assert!((64 << 10..80 << 10).contains(&store.exclusive_bytes(&one).await.unwrap()));
        let running = vm.disk(0).unwrap().node.id;
        let (mut ranges, end) = store.differences(Some(one[0]), running, 0, 100).await.unwrap();
        assert_eq!((ranges.pop(), end), (Some(1 << 20..(1 << 20) + (64 << 10)), DISK_BYTES));
        assert!(ranges.is_empty());
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
}

/// A take that is under way when the move begins seals a state that only the source has.
#[test]
fn a_move_ends_if_a_snapshot_is_taken_meanwhile() {
    let world = sim::SimWorld::new(6, sim::Options::default());
    run(&world, |env| async move {
        let (store, vm) = make(&env, &[DiskMode::Persistent]).await;
        write(&vm, 0, 1).await;
        let id = store.new_vm_id();
        store.create_vm_like(id, "other", &vm.state().disks).await.unwrap();
        let target = NativeVm::open(&store, id, Options::default()).await.unwrap();
        let job = Job::new(env.clone(), 1, MOVE, String::new());
        let moving = Relocation::new(vm.clone(), target.clone(), job);
        moving.copy_snapshots().await.unwrap();
        vm.take("late", "").await.unwrap();
        let moved = async {
            moving.mirrors().await?;
            moving.copy_running().await?;
            moving.finish(async || Ok(())).await
        };
        let refused = moved.await.err().map(|e| e.kind);
        assert_eq!(refused, Some(ErrorKind::Refused), "the target shows {}", shows(&target, 0).await);
        vm.close().await.unwrap();
        target.close().await.unwrap();
        store.close().await.unwrap();
    });
}

/// A record of a move in a home may be elsewhere; the store's own record is always with the VM.
#[test]
fn the_store_records_a_moving_vm_until_the_move_ends_or_the_vm_is_removed() {
    let world = sim::SimWorld::new(7, sim::Options::default());
    run(&world, |env| async move {
        let (store, vm) = make(&env, &[DiskMode::Persistent]).await;
        let (stays, arrives) = (vm.id(), store.new_vm_id());
        store.create_vm_like(arrives, "other", &vm.state().disks).await.unwrap();
        assert_eq!((store.is_moving(stays), store.is_moving(arrives)), (false, true));
        store.set_moving(stays, true).await.unwrap();
        store.checkpoint().await.unwrap();
    });
    world.power_cut();
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let vms: Vec<u128> = store.vms().await.unwrap().into_iter().map(|(id, _)| id).collect();
        assert!(vms.len() == 2 && vms.iter().all(|id| store.is_moving(*id)));
        store.set_moving(vms[0], false).await.unwrap();
        store.remove_vm(vms[1]).await.unwrap();
    });
    world.power_cut();
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        assert_eq!(store.items(super::items::MOVING), []);
        assert_eq!(store.vms().await.unwrap().len(), 1);
    });
}

#[test]
fn discarded_states_are_restored_from_the_bin() {
    let world = sim::SimWorld::new(6, sim::Options::default());
    run(&world, |env| async move {
        let (store, vm) = make(&env, &[DiskMode::Persistent]).await;
        write(&vm, 0, 1).await;
        vm.take("one", "first").await.unwrap();
        write(&vm, 0, 2).await;
        vm.take("two", "").await.unwrap();
        write(&vm, 0, 3).await;
        let loss = vm.discard("one", true).await.unwrap();
        assert_eq!((shows(&vm, 0).await, vm.state().snapshots.len()), (1, 0));
        write(&vm, 0, 4).await;
        vm.take("two", "").await.unwrap();
        assert!(vm.binned_bytes(loss.kept.unwrap()).await.unwrap() >= 64 << 10);
        vm.close().await.unwrap();
        store.close().await.unwrap();
    });
    run(&world, |env| async move {
        let store = open_store(&env).await.unwrap();
        let (id, _) = store.vms().await.unwrap().remove(0);
        let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
        let entry = vm.state().bin[0].id;
        vm.restore(entry, true).await.unwrap();
        let state = vm.state();
        let names: Vec<&str> = state.snapshots.iter().map(|s| s.name.as_str()).collect();
        assert_eq!((shows(&vm, 0).await, &names[..]), (3, &["two", "one", "two-2"][..]));
        assert_eq!(state.current, Some(state.snapshots[2].id));
        // This restores what the previous restore threw away.
        vm.restore(state.bin[0].id, false).await.unwrap();
        assert_eq!((shows(&vm, 0).await, vm.state().bin.len()), (4, 0));
        vm.discard("one", true).await.unwrap();
        let entries: Vec<u64> = vm.state().bin.iter().map(|binned| binned.id).collect();
        assert!(vm.empty_bin(&entries).await.unwrap() > 0);
        vm.revert(Some("two"), None, true).await.unwrap();
        vm.close().await.unwrap();
        drop(vm);
        store.remove_vm(id).await.unwrap();
        while !store.dropped_nodes().is_empty() {
            store.progress.wait().await;
        }
        let report = store.check().await.unwrap();
        assert!(report.states.is_empty(), "{:?}", report.states);
        store.close().await.unwrap();
    });
}
