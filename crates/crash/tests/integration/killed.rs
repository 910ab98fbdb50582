//! A killed process: the next one finds every acknowledged write, and what the next one has read outlives a power cut.

use std::rc::Rc;

use blk::manifest::Manifest;
use blk::volume::Volume;
use blk::{Buf, Env, SECTOR};
use engine::{CommitWhat, Defect, Defects, Options, Vm};
use sim::{Cut, OpKind, Phase, SimWorld};
use vmdk::home::{Folders, Home};

use super::support::{self, Growth};

const DISK_BYTES: u64 = 4 << 20;
const GROWTH: Growth = support::growth(1 << 20);
/// Removals of files at which a commit is killed, and events after the next opening at which the power is cut.
const UNLINKS: std::ops::RangeInclusive<u64> = 6..=14;
const EVENTS: std::ops::RangeInclusive<u64> = 100..=260;
/// A preview begins at each of this many moments of a revert, one every `STEP_US`.
const MOMENTS: u64 = 800;
const STEP_US: u64 = 5;

async fn open(env: &Env, defects: Defects) -> Rc<Vm> {
    support::open(env, "web", GROWTH, Options { defects, ..support::options() }).await
}

async fn create(env: &Env, disks: &[u64], defects: Defects) -> Rc<Vm> {
    support::create(env, "web", GROWTH, disks).await;
    open(env, defects).await
}

async fn write(vm: &Rc<Vm>, byte: u8) {
    let (disk, _client) = vm.attach(0, "test").await.unwrap();
    disk.clone().write(0, Buf::copy_of(&[byte; SECTOR as usize]).freeze()).await.unwrap();
}

async fn first_byte(vm: &Rc<Vm>) -> u8 {
    let (buf, result) = vm.disk(0).unwrap().read(0, Buf::alloc(SECTOR as usize)).await;
    result.unwrap();
    buf[0]
}

/// Returns whether a write that was acknowledged after a take is present after the process was killed. A preview begins
/// `delay_us` after a revert whose removed delta has the name of the take's new delta.
fn survives_a_preview(delay_us: u64, defects: Defects) -> bool {
    let world = SimWorld::new(delay_us, sim::Options::default());
    let worked = world.run(|env| async move {
        let vm = create(&env, &[DISK_BYTES; 2], defects).await;
        write(&vm, 1).await;
        vm.take("a", "").await.unwrap();
        write(&vm, 2).await;
        let (reader, clock) = (vm.clone(), env.clone());
        let preview = env.spawn(async move {
            clock.sleep_us(delay_us).await;
            reader.revert_preview(Some("a"), false).await.unwrap();
        });
        vm.revert(Some("a"), None, false).await.unwrap();
        vm.take("b", "").await.unwrap();
        write(&vm, 3).await;
        preview.join().await;
    });
    worked.unwrap();
    world.kill();
    world.run(|env| async move { first_byte(&open(&env, Defects::default()).await).await == 3 }).unwrap()
}

#[test]
fn a_preview_opens_no_layer_that_a_take_is_creating() {
    let lost =
        |defects| (0..MOMENTS).map(|n| n * STEP_US).filter(move |us| !survives_a_preview(*us, defects));
    let found: Vec<u64> = lost(Defects::default()).collect();
    assert!(found.is_empty(), "the write is lost where the preview begins after {found:?} us");
    assert!(
        lost(Defects::only(Defect::OpenDuringCreation)).next().is_some(),
        "the planted defect is not found"
    );
}

/// Kills a commit at its `unlink`-th removal of a file, and cuts the power `event` events after the next opening.
/// Returns whether both happened; panics if the home contradicts itself afterwards.
fn killed_and_cut(unlink: u64, event: u64) -> bool {
    let world = SimWorld::new(unlink << 16 | event, sim::Options::default());
    let prepared = world.run(|env| async move {
        let vm = create(&env, &[DISK_BYTES], Defects::default()).await;
        for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            write(&vm, byte).await;
            vm.take(name, "").await.unwrap();
        }
        write(&vm, 4).await;
        vm.close().await.unwrap();
    });
    prepared.unwrap();
    world.cut_at(Cut::Kind { kind: OpKind::Unlink, nth: unlink, phase: Phase::Completing });
    let killed = world.run(|env| async move {
        let vm = open(&env, Defects::default()).await;
        vm.commit(&CommitWhat::All).await.unwrap().wait().await;
    });
    world.kill();
    world.cut_at(Cut::Event(event));
    let cut = world.run(|env| async move {
        for job in open(&env, Defects::default()).await.jobs() {
            job.wait().await;
        }
    });
    world.cancel_cut();
    world.power_cut();
    let checked = world.run(|env| async move {
        let home = Home::new(env.open_root("/web").unwrap(), Folders::default(), GROWTH);
        Manifest::load(&home).await.map_err(|e| e.to_string())?;
        crash::home::is_sound(&env).await
    });
    checked.unwrap().unwrap_or_else(|e| panic!("killed at removal {unlink}, cut at event {event}: {e}"));
    killed.is_none() && cut.is_none()
}

/// The killed process may have left changes of names in the cache only, including the removal of a change's record. The
/// next process relies on the names that it finds, so these have to be durable first.
#[test]
fn a_power_cut_after_a_kill_replays_no_change_that_was_complete() {
    let runs = UNLINKS.flat_map(|unlink| EVENTS.map(move |event| (unlink, event)));
    let cut = runs.filter(|(unlink, event)| killed_and_cut(*unlink, *event)).count();
    assert!(cut > 500, "only {cut} runs were killed and cut");
}
