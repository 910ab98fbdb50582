//! Power cuts and failing I/Os while a VM moves between files and the store: at every event of the step and of its
//! preparation, and at drawn events of the copy. At the next start the VM is on the side that its mark names, with
//! every snapshot and every flushed write, and can be moved again. The store's own marks show as moving every VM that
//! is not, or may not be, on its side. Intent, mark and clean-up are the daemon's.

use std::cell::RefCell;
use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Dir, Env, Errno, SECTOR};
use crash::campaign::{on_all_cores, setting};
use crash::content::{Image, look, read_all};
use crash::requests::Target;
use engine::native::space::Growth as StoreGrowth;
use engine::native::{NativeVm, NewNativeVm, NewStore, Store, StoreOptions};
use engine::relocate::Relocation;
use engine::{Job, Machine, Options, Vm};
use sim::oracle::DiskModel;
use sim::{Action, Cut, Device, Fault, Rng, SimWorld};
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

const DISK_BYTES: u64 = 128 << 10;
const DISKS: usize = 2;
const GROWTH: Growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };
const WRITES: u64 = 6;
const GUEST_WRITES: u64 = 30;
const SECTORS_MAX: u64 = 16;
/// Files in the VM's own folder, as in the daemon: the target of a move, and the present side of the VM.
const INTENT: &str = "moving";
const MARK: &str = "native";
const WORD_BYTES_MAX: u64 = 64;
/// Runs that are disturbed anywhere in the copy.
const COPIES: u64 = 60;
/// Events of the copy, in either direction, among which one is disturbed.
const COPY_EVENTS: u64 = 1500;
/// Events that are disturbed one by one, from the step on and from its preparation on; more than each part has.
const STEP_EVENTS: u64 = 40;
const FINISH_EVENTS: u64 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Files,
    Store,
}

/// Point from which the events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Copy,
    Finish,
    Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Cut,
    Fails,
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    to: Side,
    place: Point,
    disturbance: Disturbance,
    nth: u64,
    seed: u64,
}

/// Expected state of the VM, on either side.
struct Model {
    models: Vec<Rc<DiskModel>>,
    /// Names of the snapshots with what their disks show.
    snapshots: Vec<(String, Vec<Image>)>,
}

type Shared = Rc<RefCell<Model>>;

/// Both sides of one VM, and the folder that records which side it is on.
struct Harness {
    env: Env,
    own: Dir,
    store: Rc<Store>,
}

fn text(what: &str) -> impl Fn(blk::Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

impl Harness {
    async fn open(env: &Env) -> Result<Harness, String> {
        let root = env.open_root("/").map_err(text("root"))?;
        let own = root.open_dir("own", true).await.map_err(text("own folder"))?;
        let file = match root.create_new("store").await {
            Ok(file) => {
                let new = NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT };
                Store::format(env, &file, new).await.map_err(text("making the store"))?;
                root.sync().await.map_err(text("making the store"))?;
                file
            }
            Err(_) => root.open("store", blk::reactor::OpenMode::Write).await.map_err(text("store"))?,
        };
        let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
        let store = Store::open(env.clone(), file, options, StoreGrowth::default(), true).await;
        Ok(Harness { env: env.clone(), own, store: store.map_err(text("opening the store"))? })
    }

    async fn word(&self, name: &str) -> Result<Option<u128>, String> {
        match self.own.read_file(name, WORD_BYTES_MAX).await {
            Ok(bytes) => {
                let word = String::from_utf8_lossy(&bytes).into_owned();
                Ok(Some(u128::from_str_radix(word.trim(), 16).map_err(|e| format!("{name} {word:?}: {e}"))?))
            }
            Err(e) if e.kind == blk::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }

    async fn say(&self, name: &str, id: Option<u128>) -> blk::Result<()> {
        match id {
            Some(id) => self.own.replace_file(name, format!("{id:032x}\n").as_bytes()).await,
            None => {
                self.own.unlink_if_present(name).await?;
                self.own.sync().await
            }
        }
    }

    /// Makes an empty VM on that side.
    async fn make(&self, side: Side) -> Result<Rc<dyn Machine>, String> {
        match side {
            Side::Files => {
                let dir = self.env.open_root("/web").map_err(text("home"))?;
                let new = NewVm::new("web", &[DISK_BYTES; DISKS]);
                Home::create(dir, Folders::default(), GROWTH, new).await.map_err(text("making files"))?;
                self.files().await
            }
            Side::Store => {
                let disk = NewDisk {
                    size_bytes: DISK_BYTES,
                    mode: DiskMode::Persistent,
                    folder: None,
                    source: None,
                };
                let disks = vec![disk; DISKS];
                let id = self.store.create_vm(NewNativeVm { name: "web", disks: &disks, slots: &[] }).await;
                self.native(id.map_err(text("making a native VM"))?).await
            }
        }
    }

    async fn files(&self) -> Result<Rc<dyn Machine>, String> {
        let dir = self.env.open_root("/web").map_err(text("home"))?;
        let options = Options { reserve_bytes: 1 << 20, ..Options::default() };
        let home = Rc::new(Home::new(dir, Folders::default(), GROWTH));
        Ok(Vm::open(self.env.clone(), home, options).await.map_err(text("opening the files"))?)
    }

    async fn native(&self, id: u128) -> Result<Rc<dyn Machine>, String> {
        let opened = NativeVm::open(&self.store, id, Options::default()).await;
        Ok(opened.map_err(text("opening the native VM"))?)
    }

    /// Opens the VM on its side, and clears the other side away.
    async fn settled(&self) -> Result<(Side, Rc<dyn Machine>), String> {
        let (mark, intent) = (self.word(MARK).await?, self.word(INTENT).await?);
        self.check_told(mark).await?;
        match (mark, intent) {
            (Some(id), Some(_)) => {
                self.store.set_moving(id, false).await.map_err(text("settling"))?;
                self.clear_files().await?;
            }
            (None, Some(id)) => match self.store.remove_vm(id).await {
                Err(e) if e.kind != blk::ErrorKind::NotFound => return Err(format!("clearing up: {e}")),
                _ => {}
            },
            _ => {}
        }
        self.say(INTENT, None).await.map_err(text("settling"))?;
        match mark {
            Some(id) => Ok((Side::Store, self.native(id).await?)),
            None => Ok((Side::Files, self.files().await?)),
        }
    }

    /// Checks that the store marks as moving every VM that is not on its side.
    async fn check_told(&self, mark: Option<u128>) -> Result<(), String> {
        let vms = self.store.vms().await.map_err(text("the store's VMs"))?;
        match vms.iter().find(|(id, _)| mark != Some(*id) && !self.store.is_moving(*id)) {
            Some((id, _)) => Err(format!("the store takes {id:032x} for a VM, the mark is {mark:x?}")),
            None => Ok(()),
        }
    }

    async fn clear_files(&self) -> Result<(), String> {
        let dir = self.env.open_root("/web").map_err(text("home"))?;
        for name in dir.list().await.map_err(text("home"))?.iter().filter(|name| !name.ends_with('/')) {
            dir.unlink_if_present(name).await.map_err(text("clearing up"))?;
        }
        dir.sync().await.map_err(text("clearing up"))
    }

    async fn close(&self, vm: &dyn Machine) -> Result<(), String> {
        vm.close().await.map_err(text("closing the VM"))?;
        self.store.close().await.map_err(text("closing the store"))
    }
}

fn target(volume: &Rc<dyn Volume>, model: &Shared, disk: usize, first: u64, count: u64) -> Target {
    Target::plain(volume.clone(), model.borrow().models[disk].clone(), first, count)
}

async fn write(volume: &Rc<dyn Volume>, model: &Shared, disk: usize, rng: &mut Rng) -> Result<(), String> {
    let count = rng.between(1, SECTORS_MAX);
    let first = rng.below(DISK_BYTES / SECTOR - count);
    match target(volume, model, disk, first, count).write().await? {
        true => Ok(()),
        false => Err("a write found no space".into()),
    }
}

async fn flush(volume: &Rc<dyn Volume>, model: &Shared, disk: usize) -> Result<(), String> {
    target(volume, model, disk, 0, 1).flush().await.map_err(text("a flush"))
}

/// Writes until the volume fails or all is done; the last request is a flush.
async fn guest(volume: Rc<dyn Volume>, model: Shared, disk: usize, mut rng: Rng) -> Result<(), String> {
    for _ in 0..GUEST_WRITES {
        match rng.below(4) {
            0 => flush(&volume, &model, disk).await?,
            _ => write(&volume, &model, disk, &mut rng).await?,
        }
    }
    flush(&volume, &model, disk).await
}

/// Makes a VM on the side that the move starts from: a tree with a side branch, all of it durable.
async fn prepare(harness: &Harness, plan: &Plan, model: &Shared) -> Result<(), String> {
    let from = if plan.to == Side::Store { Side::Files } else { Side::Store };
    let vm = harness.make(from).await?;
    if from == Side::Store {
        harness.say(MARK, Some(vm.state().id)).await.map_err(text("marking"))?;
    }
    let mut rng = Rng::new(plan.seed);
    for (name, onto) in [("a", None), ("c", Some("a")), ("b", None)] {
        for disk in 0..DISKS {
            let (volume, _client) = vm.attach(disk as u32, "test").await.map_err(text("attaching"))?;
            for _ in 0..WRITES {
                write(&volume, model, disk, &mut rng).await?;
            }
        }
        vm.clone().take(name, "").await.map_err(text("a take"))?;
        let shown = snapshot(&*vm, name).await?;
        model.borrow_mut().snapshots.push((name.to_string(), shown));
        if let Some(onto) = onto {
            vm.clone().revert(Some(onto), None, false).await.map_err(text("a revert"))?;
            let Model { models, snapshots } = &*model.borrow();
            let shown = &snapshots.iter().find(|(name, _)| name == onto).expect("taken").1;
            models.iter().zip(shown).for_each(|(model, bytes)| model.replace(bytes));
        }
    }
    harness.close(&*vm).await?;
    model.borrow().models.iter().for_each(|model| model.closed());
    Ok(())
}

async fn snapshot(vm: &dyn Machine, name: &str) -> Result<Vec<Image>, String> {
    let numbers: Vec<u32> = (0..DISKS as u32).collect();
    look(vm, name, &numbers, None).await?.ok_or_else(|| format!("snapshot {name} cannot be opened"))
}

/// Moves the VM as the daemon does, while guests write to it.
async fn relocate(
    harness: &Harness,
    to: Side,
    model: &Shared,
    seed: u64,
    reached: impl Fn(Point),
) -> Result<(), String> {
    let (_, source) = harness.settled().await?;
    reached(Point::Copy);
    let native = if to == Side::Store { harness.store.new_vm_id() } else { source.state().id };
    harness.say(INTENT, Some(native)).await.map_err(text("the intent"))?;
    let target = match to {
        Side::Store => {
            let disks = source.state().disks;
            harness.store.create_vm_like(native, "web", &disks).await.map_err(text("making a native VM"))?;
            harness.native(native).await?
        }
        Side::Files => {
            harness.store.set_moving(native, true).await.map_err(text("the store's mark"))?;
            harness.make(to).await?
        }
    };
    let from = if to == Side::Store { Side::Files } else { Side::Store };
    let mark = |side: Side| (side == Side::Store).then_some(native);
    let job = Job::new(harness.env.clone(), 1, "move", String::new());
    let moving = Relocation::new(source.clone(), target.clone(), job);
    moving.copy_snapshots().await.map_err(text("copying snapshots"))?;
    let mirrors = moving.mirrors().await.map_err(text("mirrors"))?;
    let guests: Vec<_> = mirrors
        .iter()
        .map(|(disk, mirror)| {
            let rng = Rng::new(seed + 1 + u64::from(*disk));
            let volume: Rc<dyn Volume> = mirror.clone();
            harness.env.spawn(guest(volume, model.clone(), *disk as usize, rng))
        })
        .collect();
    let moved = async {
        moving.copy_running().await?;
        reached(Point::Finish);
        let step = async || {
            reached(Point::Step);
            let stepped = harness.say(MARK, mark(to)).await;
            if stepped.is_err() && harness.say(MARK, mark(from)).await.is_err() {
                // The VM's side is now unknown: no write may be acknowledged any more.
                let _ = source.close().await;
            }
            stepped
        };
        moving.finish(step).await
    };
    let moved = moved.await;
    let mut ended = moved.map(drop).map_err(text("the move"));
    for guest in guests {
        ended = ended.and(guest.join().await.map_err(|e| format!("a guest: {e}")));
    }
    ended?;
    harness.close(&*target).await
}

/// Checks that the VM is whole on its side, and moves it if it is not on the side `to`. Returns the side it was found
/// on.
async fn verify(harness: &Harness, to: Side, model: &Shared, seed: u64) -> Result<Side, String> {
    let (side, vm) = harness.settled().await?;
    let names: Vec<String> = model.borrow().snapshots.iter().map(|(name, _)| name.clone()).collect();
    let found: Vec<String> = vm.state().snapshots.iter().map(|s| s.name.clone()).collect();
    if found.len() != names.len() {
        return Err(format!("on the side of {side:?} it has {found:?}"));
    }
    for name in names {
        let shown = snapshot(&*vm, &name).await?;
        if model.borrow().snapshots.iter().any(|(known, first)| *known == name && *first != shown) {
            return Err(format!("on the side of {side:?} snapshot {name} shows something else"));
        }
    }
    for disk in 0..DISKS {
        let (volume, _client) = vm.attach(disk as u32, "look").await.map_err(text("attaching"))?;
        let bytes = read_all(&volume).await?;
        let model = &model.borrow().models[disk];
        model.check_cut(&bytes).map_err(|e| format!("on the side of {side:?}: {e}"))?;
        model.replace(&bytes);
    }
    vm.close().await.map_err(text("closing"))?;
    drop(vm);
    if side != to {
        relocate(harness, to, model, seed, |_| {}).await?;
        return Ok(side);
    }
    harness.store.close().await.map_err(text("closing the store"))?;
    Ok(side)
}

/// Plays one run. Returns whether the disturbance struck before the move was over, and the side the VM was found on.
fn run(plan: Plan) -> Result<(bool, Side), String> {
    let device = Device::scrambled();
    let world = SimWorld::new(plan.seed, sim::Options { device, ..sim::Options::default() });
    let models = (0..DISKS).map(|n| Rc::new(DiskModel::new(n as u32))).collect();
    let model: Shared = Rc::new(RefCell::new(Model { models, snapshots: Vec::new() }));
    let known = model.clone();
    let prepared = world.run(|env| async move { prepare(&Harness::open(&env).await?, &plan, &known).await });
    prepared.expect("nothing is cut")?;
    let struck = disturbed(&world, &plan, &model)?;
    match world.is_off() || plan.nth.is_multiple_of(2) {
        true => world.power_cut(),
        false => world.kill(),
    }
    let known = model.clone();
    let found =
        world.run(|env| async move { verify(&Harness::open(&env).await?, plan.to, &known, plan.seed).await });
    let side = found.expect("nothing is cut")?;
    let again =
        world.run(|env| async move { verify(&Harness::open(&env).await?, plan.to, &model, plan.seed).await });
    match again.expect("nothing is cut")? {
        there if there == plan.to => Ok((struck, side)),
        _ => Err("it was moved, and is not there".into()),
    }
}

fn disturbed(world: &SimWorld, plan: &Plan, model: &Shared) -> Result<bool, String> {
    let (outside, plan, model) = (world.clone(), *plan, model.clone());
    let ended = world.run(|env| async move {
        let harness = Harness::open(&env).await?;
        let arm = |place: Point| match plan.disturbance {
            _ if place != plan.place => {}
            Disturbance::Cut => outside.cut_at(Cut::Event(plan.nth)),
            Disturbance::Fails => outside.add_fault(Fault::nth(plan.nth, Action::Fail(Errno::EIO))),
        };
        relocate(&harness, plan.to, &model, plan.seed, arm).await
    });
    world.cancel_cut();
    world.clear_faults();
    match (ended, plan.disturbance) {
        (None, _) => Ok(true),
        (Some(Ok(())), _) => Ok(false),
        (Some(Err(_)), Disturbance::Fails) => Ok(true),
        (Some(Err(e)), Disturbance::Cut) => Err(e),
    }
}

fn reported(plan: Plan, sides: &std::sync::Mutex<[u64; 2]>) -> Result<(), String> {
    let (struck, side) = run(plan).map_err(|e| format!("{plan:?}: {e}"))?;
    sides.lock().unwrap()[usize::from(side == plan.to)] += u64::from(struck);
    Ok(())
}

/// Disturbs every event from `place` on, one at a time.
fn everywhere(place: Point, n: u64, sides: &std::sync::Mutex<[u64; 2]>) -> Result<(), String> {
    let to = if n.is_multiple_of(2) { Side::Store } else { Side::Files };
    let disturbance = if (n / 2).is_multiple_of(2) { Disturbance::Cut } else { Disturbance::Fails };
    let events = if place == Point::Step { STEP_EVENTS } else { FINISH_EVENTS };
    for nth in 1..=events {
        reported(Plan { to, place, disturbance, nth, seed: n }, sides)?;
    }
    Ok(())
}

#[test]
fn a_vm_that_was_moving_is_whole_on_one_side() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let sides = std::sync::Mutex::new([0, 0]);
    let failures = std::sync::Mutex::new(Vec::new());
    on_all_cores(|n| {
        let mut rng = Rng::new(n);
        let plan = Plan {
            to: if rng.coin() { Side::Store } else { Side::Files },
            place: Point::Copy,
            disturbance: if rng.coin() { Disturbance::Cut } else { Disturbance::Fails },
            nth: rng.between(1, COPY_EVENTS),
            seed: n,
        };
        let done = match n {
            0..4 => everywhere(Point::Step, n, &sides),
            4..8 => everywhere(Point::Finish, n, &sides),
            _ => reported(plan, &sides),
        };
        done.unwrap_or_else(|e| failures.lock().unwrap().push(e));
        n < COPIES && failures.lock().unwrap().len() < 5
    });
    let (failures, [before, after]) = (failures.into_inner().unwrap(), sides.into_inner().unwrap());
    println!("{before} times it was where it had been, {after} times on the other side");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(before > 0 && after > 0);
}
