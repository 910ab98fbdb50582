//! A VM moves between stores while its guest writes: every state of it reads the same on the other side.

use std::rc::Rc;

use blk::manifest::DiskMode;
use blk::volume::{Volume, ZeroMode};
use blk::{Buf, Env, Errno, ErrorKind, SECTOR};
use engine::Mirror;
use engine::native::space::Growth as StoreGrowth;
use engine::native::{NativeVm, NewStore, Store, StoreOptions};
use engine::relocate::Relocation;
use engine::{CommitWhat, Job, Machine, Options, SpacePolicy, Vm};
use sim::{Action, Fault, OpKind, SimWorld};

use super::support::{self, Growth};

const DISK_BYTES: u64 = 4 << 20;
const GROWTH: Growth = support::growth(64 << 10);
const WRITES: u64 = 40;
const GUEST_WRITES: u64 = 300;
/// The longest that a move may hold back a write for another's sake: twice what it does at most.
const HELD_NS_MAX: u64 = 4_000_000_000;

async fn redo(env: &Env, name: &str) -> Rc<Vm> {
    redo_with(env, name, SpacePolicy::Wait).await
}

async fn redo_with(env: &Env, name: &str, space_policy: SpacePolicy) -> Rc<Vm> {
    support::create(env, name, GROWTH, &[DISK_BYTES, DISK_BYTES]).await;
    support::open(env, name, GROWTH, Options { space_policy, ..support::options() }).await
}

async fn native_like(env: &Env, source: &dyn Machine) -> (Rc<Store>, Rc<NativeVm>) {
    let file = env.open_root("/").unwrap().create_new("store").await.unwrap();
    Store::format(env, &file, NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT })
        .await
        .unwrap();
    let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
    let store = Store::open(env.clone(), file, options, StoreGrowth::default(), true).await.unwrap();
    let id = store.new_vm_id();
    store.create_vm_like(id, "moved", &source.state().disks).await.unwrap();
    let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
    (store, vm)
}

async fn scribble(env: &Env, disk: &Rc<dyn Volume>, writes: u64) {
    for _ in 0..writes {
        let sectors = 1 + env.random() % 40;
        let sector = env.random() % (DISK_BYTES / SECTOR - sectors);
        let data = Buf::copy_of(&vec![env.random() as u8 | 1; (sectors * SECTOR) as usize]).freeze();
        match env.random() % 8 {
            0 => {
                let range = sector * SECTOR..(sector + sectors) * SECTOR;
                disk.clone().write_zeroes(range, Default::default()).await.unwrap();
            }
            _ => disk.clone().write(sector * SECTOR, data).await.unwrap(),
        }
    }
}

/// Makes `a`, and on it `b` and `c`. Sometimes commits `a`, so that both are roots. The running state is on `b`.
async fn grow(env: &Env, vm: Rc<dyn Machine>) {
    for (name, onto) in [("a", None), ("c", Some("a")), ("b", None)] {
        for number in 0..2 {
            let (disk, _client) = vm.attach(number, "test").await.unwrap();
            scribble(env, &disk, WRITES).await;
        }
        vm.clone().take(name, name).await.unwrap();
        if let Some(onto) = onto {
            vm.clone().revert(Some(onto), None, false).await.unwrap();
        }
    }
    if env.random().is_multiple_of(2) {
        vm.clone().commit(&CommitWhat::One("a".into())).await.unwrap().wait().await;
    }
}

async fn content(volume: &Rc<dyn Volume>) -> Buf {
    let (buf, result) = volume.clone().read(0, Buf::alloc(DISK_BYTES as usize)).await;
    result.unwrap();
    buf
}

async fn assert_same(a: &dyn Machine, b: &dyn Machine) {
    let (before, after) = (a.state(), b.state());
    assert_eq!(before.current, after.current);
    for (old, new) in before.snapshots.iter().zip(&after.snapshots) {
        assert_eq!((old.id, old.parent, &old.name), (new.id, new.parent, &new.name));
        assert_eq!((old.created_unix_us, &old.description), (new.created_unix_us, &new.description));
        for number in 0..2 {
            let (old, _view) = a.open_view(&old.name, number, "test").await.unwrap();
            let (new, _view) = b.open_view(&new.name, number, "test").await.unwrap();
            assert!(content(&old).await[..] == content(&new).await[..], "disk{number}");
        }
    }
    for number in 0..2 {
        let (old, _client) = a.attach(number, "test").await.unwrap();
        let (new, _client) = b.attach(number, "test").await.unwrap();
        assert!(content(&old).await[..] == content(&new).await[..], "running disk{number}");
    }
}

/// Moves everything while a guest writes each disk through its mirror.
async fn relocate(env: &Env, source: Rc<dyn Machine>, target: Rc<dyn Machine>) {
    let job = Job::new(env.clone(), 1, "move", String::new());
    let moving = Relocation::new(source.clone(), target.clone(), job);
    moving.copy_snapshots().await.unwrap();
    let mirrors = moving.mirrors().await.unwrap();
    let guest = |mirror: Rc<Mirror>| {
        let env = env.clone();
        async move { scribble(&env, &(mirror as Rc<dyn Volume>), GUEST_WRITES).await }
    };
    let guests: Vec<_> = mirrors.iter().map(|(_, mirror)| env.spawn(guest(mirror.clone()))).collect();
    moving.copy_running().await.unwrap();
    let (from, to) = (source.clone(), target.clone());
    let same = async move || {
        assert_same(&*from, &*to).await;
        Ok(())
    };
    moving.finish(same).await.unwrap();
    for guest in guests {
        guest.join().await;
    }
    for (number, mirror) in mirrors {
        let (disk, _client) = target.attach(number, "test").await.unwrap();
        assert!(content(&disk).await[..] == content(&(mirror as Rc<dyn Volume>)).await[..]);
    }
}

#[test]
fn a_vmware_chain_is_moved_into_a_native_store_and_back() {
    for seed in 0..6 {
        let world = SimWorld::new(seed, sim::Options::default());
        let moved = world.run(|env| async move {
            let source: Rc<dyn Machine> = redo(&env, "web").await;
            grow(&env, source.clone()).await;
            let (store, vm) = native_like(&env, &*source).await;
            let native: Rc<dyn Machine> = vm;
            relocate(&env, source.clone(), native.clone()).await;
            let back: Rc<dyn Machine> = redo(&env, "back").await;
            relocate(&env, native.clone(), back.clone()).await;
            assert!(back.state().disks.iter().all(|disk| disk.mode == DiskMode::Persistent));
            for vm in [source, native, back] {
                vm.close().await.unwrap();
            }
            store.close().await.unwrap();
        });
        assert!(moved.is_some());
    }
}

async fn write(volume: &Rc<dyn Volume>, at: u64, bytes: usize) {
    volume.clone().write(at, Buf::copy_of(&vec![7; bytes]).freeze()).await.unwrap();
}

/// Returns the longest time of several writes, one after the other.
async fn longest_ns(env: &Env, volume: &Rc<dyn Volume>, writes: u64) -> u64 {
    let mut longest = 0;
    for _ in 0..writes {
        let began_ns = env.now_ns();
        write(volume, 0, 4096).await;
        longest = longest.max(env.now_ns() - began_ns);
        env.sleep_us(10_000).await;
    }
    longest
}

/// A guest's write finds the source full, either after the copy (`copied`) or before it.
async fn get_stuck(world: SimWorld, env: Env, copied: bool) {
    let source: Rc<dyn Machine> = redo(&env, "web").await;
    source.clone().take("a", "").await.unwrap();
    let (disk, _client) = source.attach(0, "test").await.unwrap();
    write(&disk, 0, 4096).await;
    write(&disk, 1 << 20, 4096).await;
    let (store, target) = native_like(&env, &*source).await;
    let job = Job::new(env.clone(), 1, "move", String::new());
    let moving = Relocation::new(source.clone(), target.clone(), job.clone());
    moving.copy_snapshots().await.unwrap();
    let mirror: Rc<dyn Volume> = moving.mirrors().await.unwrap()[0].1.clone();
    if copied {
        moving.copy_running().await.unwrap();
    }
    let full = Fault::nth(1, Action::Fail(Errno::ENOSPC)).of(OpKind::Allocate).named("web").and_all_later();
    world.add_fault(full);
    let stuck = mirror.clone();
    let stuck = env.spawn(async move { write(&stuck, 1 << 20, 1 << 20).await });
    let ended = env.spawn(async move {
        if !copied {
            moving.copy_running().await?;
        }
        moving.finish(async || Ok(())).await
    });
    let longest_ns = longest_ns(&env, &mirror, 1000).await;
    assert!(longest_ns < HELD_NS_MAX, "{longest_ns}");
    job.cancel().unwrap();
    assert_eq!(ended.join().await.unwrap_err().kind, ErrorKind::Cancelled);
    world.clear_faults();
    stuck.join().await;
    target.close().await.unwrap();
    source.close().await.unwrap();
    store.close().await.unwrap();
}

#[test]
fn a_write_that_waits_for_space_delays_neither_other_writes_nor_a_cancel() {
    for copied in [false, true] {
        let world = SimWorld::new(1, sim::Options::default());
        let outside = world.clone();
        assert!(world.run(|env| get_stuck(outside, env, copied)).is_some());
    }
}

/// A guest's write finds no space on the source, and its zeros are refused as too slow; the target could do both.
async fn refuse_changes(world: SimWorld, env: Env) {
    let source: Rc<dyn Machine> = redo_with(&env, "web", SpacePolicy::Error).await;
    let (disk, _client) = source.attach(0, "test").await.unwrap();
    write(&disk, 0, 2 << 20).await;
    source.clone().take("a", "").await.unwrap();
    let (store, target) = native_like(&env, &*source).await;
    let target: Rc<dyn Machine> = target;
    let job = Job::new(env.clone(), 1, "move", String::new());
    let moving = Relocation::new(source.clone(), target.clone(), job);
    moving.copy_snapshots().await.unwrap();
    let mirror: Rc<dyn Volume> = moving.mirrors().await.unwrap()[0].1.clone();
    moving.copy_running().await.unwrap();
    let fast = ZeroMode { fast_only: true, ..ZeroMode::default() };
    let refused = mirror.clone().write_zeroes(0..64 << 10, fast).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Unsupported);
    let full = Fault::nth(1, Action::Fail(Errno::ENOSPC)).of(OpKind::Allocate).named("web").and_all_later();
    world.add_fault(full);
    let data = Buf::copy_of(&[9; 1 << 20]).freeze();
    assert!(mirror.clone().write(1 << 20, data).await.unwrap_err().is_no_space());
    world.clear_faults();
    moving.finish(async || Ok(())).await.unwrap();
    let (moved, _client) = target.attach(0, "test").await.unwrap();
    assert!(content(&moved).await[..] == content(&disk).await[..], "what was refused came with the move");
    target.close().await.unwrap();
    source.close().await.unwrap();
    store.close().await.unwrap();
}

#[test]
fn writes_that_the_source_refused_are_not_moved() {
    let world = SimWorld::new(1, sim::Options::default());
    let outside = world.clone();
    assert!(world.run(|env| refuse_changes(outside, env)).is_some());
}
