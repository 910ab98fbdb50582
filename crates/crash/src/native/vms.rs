//! Power cuts and failing I/O under the verbs of native VMs, as the daemon calls them: take, commit, discard, revert,
//! clone and reset; adding, growing and removing disks and changing their mode; creating, closing and removing VMs.
//!
//! `run` plays a campaign's run, a function of its seed: guests work all the time, and most power cuts fall into a
//! verb. `run_disturbed` runs one verb without other work, with a power cut at its n-th event or with its n-th I/O
//! failing. After every start each VM is, on all of its disks, what it was or what the verb leads to.
//!
//! Not covered: moves between stores, which the daemon makes.

mod binned;
mod create;
mod guest;
mod harness;
mod model;
mod shape;
mod user;

use std::cell::RefCell;
use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::{Env, Errno};
use engine::Defects;
use engine::native::NewNativeVm;
use engine::native::layout::BLOCK;
use sim::{Action, Cut, Fault, Rng, SimWorld};

use self::guest::Guest;
use self::harness::VmHarness;
use self::model::{ExpectedVm, Model, Outcome as Ahead};
use self::shape::{DiskShape, Shape};
use self::user::User;
pub use self::user::{VERBS, Verb};
use super::harness::format;
use super::plan::{Part, Plan};
use super::script::{Trouble, ios};
use crate::campaign::Outcome;
use crate::campaign::caught;
use crate::watch;

/// Name of the VM that every run begins with.
const FIRST_VM: &str = "a";
const DISK_BLOCKS: [u64; 3] = [32, 16, 8];
/// Most requests of each guest and most verbs of the user in one boot.
const OPERATIONS_MAX: u64 = 60;
const STEPS_MAX: u64 = 12;
/// Requests of a guest before and between the verbs that prepare a disturbed one.
const PREPARED: u64 = 12;

type Shared = Rc<RefCell<Model>>;

/// Power cut or failing I/O under a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// The power is cut at the verb's n-th submission or completion.
    Cut,
    Io(Trouble),
}

pub const DISTURBANCES: [Disturbance; 3] =
    [Disturbance::Cut, Disturbance::Io(Trouble::Once), Disturbance::Io(Trouble::FromThenOn)];

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    caught(|| run_plan(&Rc::new(Plan::draw(seed, defects))))
        .map_err(|e| format!("seed {seed}: {e}\n  replay: make crash CRASH_SEED={seed}"))
}

fn run_plan(plan: &Rc<Plan>) -> Result<Outcome, String> {
    let world = SimWorld::new(plan.seed, plan.world.clone());
    let model = Shared::default();
    create(&world, plan, &model)?;
    let mut cuts = 0;
    for number in 0..plan.boots {
        let last = number + 1 == plan.boots;
        plan.arm(&world, number, Part::Recovery);
        match boot(&world, plan, &model, number, last) {
            Some(result) => result.map_err(|e| format!("boot {number}: {e}"))?,
            None => {
                watch::tell(|| format!("POWER CUT {}", world.place_and_time()));
                world.mark(model.borrow_mut().doing.take().unwrap_or("cut between verbs"));
                cuts += 1;
                world.power_cut();
            }
        }
    }
    Ok(Outcome { cuts, event_hash: world.event_hash(), events: world.events(), marks: world.marks() })
}

/// Makes the store and its first VM, without cuts or faults.
fn create(world: &SimWorld, plan: &Rc<Plan>, model: &Shared) -> Result<(), String> {
    let (outside, plan, model) = (world.clone(), plan.clone(), model.clone());
    let made = world.run(|env| async move {
        format(&env, &plan).await.map_err(|e| e.to_string())?;
        let harness = VmHarness::open(&env, &outside, &plan, &model, 0).await?;
        let disks = DISK_BLOCKS.map(|blocks| NewDisk {
            size_bytes: blocks * BLOCK,
            mode: DiskMode::Persistent,
            folder: None,
        });
        let made = harness.inner.store.create_vm(NewNativeVm { name: FIRST_VM, disks: &disks }).await;
        made.map_err(|e| e.to_string())?;
        let shape = |(n, disk): (usize, &NewDisk)| {
            let slot = format!("scsi0:{n}");
            (n as u32, DiskShape { slot, mode: disk.mode, size_bytes: disk.size_bytes })
        };
        let disks = disks.iter().enumerate().map(shape).collect();
        let now = Ahead { shape: Some(Shape { disks, ..Shape::default() }), ..Ahead::default() };
        let mut model = model.borrow_mut();
        model.vms.insert(FIRST_VM.into(), ExpectedVm { ahead: vec![now], ..ExpectedVm::default() });
        model.arrive(FIRST_VM, None);
        Ok(())
    });
    made.expect("nothing is cut while the store is made").map_err(|e: String| format!("making it: {e}"))
}

/// Plays one boot. Returns None if the power was cut.
fn boot(
    world: &SimWorld,
    plan: &Rc<Plan>,
    model: &Shared,
    number: u64,
    last: bool,
) -> Option<Result<(), String>> {
    let (outside, plan, model) = (world.clone(), plan.clone(), model.clone());
    world.run(|env| async move {
        let harness = VmHarness::open(&env, &outside, &plan, &model, number).await?;
        let mut rng = plan.rng(number, 3);
        let cut_in = (!last && rng.below(4) > 0).then(|| rng.below(STEPS_MAX / 2));
        match cut_in {
            Some(_) => outside.cancel_cut(),
            None => plan.arm(&outside, number, Part::Work),
        }
        work(&harness, number, cut_in).await?;
        if last {
            harness.check_exact().await?;
        }
        harness.close().await?;
        if !last {
            return Ok(());
        }
        finish(&env, &outside, &plan, &model).await
    })
}

/// Runs guests and user at the same time, to their end.
async fn work(harness: &Rc<VmHarness>, boot: u64, cut_in: Option<u64>) -> Result<(), String> {
    let (plan, env) = (&harness.plan, &harness.env);
    let all: Vec<_> = harness.running.borrow().values().cloned().collect();
    for running in all {
        running.start().await?;
    }
    let mut tasks = Vec::new();
    for n in 0..plan.guests {
        let guest = Guest { harness: harness.clone(), rng: plan.rng(boot, 100 + n) };
        let operations = plan.operations.min(OPERATIONS_MAX);
        tasks.push(env.spawn(async move { guest.run(operations).await }));
    }
    let user = User { harness: harness.clone(), rng: plan.rng(boot, 1), only: None };
    tasks.push(env.spawn(async move { user.run(STEPS_MAX, cut_in).await }));
    let mut result = Ok(());
    for task in tasks {
        result = result.and(task.join().await);
    }
    result
}

/// Starts once more and checks everything, with nothing left to be done.
async fn finish(env: &Env, world: &SimWorld, plan: &Rc<Plan>, model: &Shared) -> Result<(), String> {
    let harness = VmHarness::open(env, world, plan, model, plan.boots).await?;
    harness.check_exact().await?;
    harness.close().await
}

/// Runs one verb after a fixed preparation, disturbed at `nth`; starts again, and compares. `variant` is the seed of
/// what the verb picks. Returns false if the verb was over before.
pub fn run_disturbed(verb: Verb, variant: u64, disturbance: Disturbance, nth: u64) -> Result<bool, String> {
    caught(|| {
        let plan = Rc::new(Plan { seed: variant, ..Plan::scripted() });
        let world = SimWorld::new(plan.seed, plan.world.clone());
        let model = Shared::default();
        create(&world, &plan, &model)?;
        let struck = disturbed(&world, &plan, &model, verb, disturbance, nth)?;
        match nth.is_multiple_of(2) || world.is_off() {
            true => world.power_cut(),
            false => {
                model.borrow_mut().may_be_told = disturbance != Disturbance::Cut;
                world.kill();
            }
        }
        let (outside, again) = (world.clone(), plan.clone());
        let found = world.run(|env| async move { finish(&env, &outside, &again, &model).await });
        found.expect("nothing is cut")?;
        Ok(struck)
    })
    .map_err(|e| format!("{verb:?} {variant}, {disturbance:?} at {nth}: {e}"))
}

fn disturbed(
    world: &SimWorld,
    plan: &Rc<Plan>,
    model: &Shared,
    verb: Verb,
    disturbance: Disturbance,
    nth: u64,
) -> Result<bool, String> {
    let (outside, plan, model) = (world.clone(), plan.clone(), model.clone());
    let ended = world.run(|env| async move {
        let harness = VmHarness::open(&env, &outside, &plan, &model, 0).await?;
        let mut user = prepare(&harness).await?;
        user.rng = plan.rng(plan.seed, 7);
        let done = ios(&outside);
        match disturbance {
            Disturbance::Cut => outside.cut_at(Cut::Event(nth)),
            Disturbance::Io(trouble) => outside.add_fault(fault(nth, trouble)),
        }
        let said = user.act(verb).await;
        let struck = disturbance != Disturbance::Cut && ios(&outside) - done >= nth;
        match said {
            Err(e) if !struck => Err(e),
            _ => Ok(struck),
        }
    });
    world.cancel_cut();
    world.clear_faults();
    ended.unwrap_or(Ok(true))
}

fn fault(nth: u64, trouble: Trouble) -> Fault {
    let fault = Fault::nth(nth, Action::Fail(Errno::EIO));
    if trouble == Trouble::FromThenOn { fault.and_all_later() } else { fault }
}

/// Prepares a tree with a side branch, a clone, a nonpersistent disk that was written to and an entry in the bin. Some
/// of it is merged.
async fn prepare(harness: &Rc<VmHarness>) -> Result<User, String> {
    let all: Vec<_> = harness.running.borrow().values().cloned().collect();
    for running in all {
        running.start().await?;
    }
    let mut user = User { harness: harness.clone(), rng: harness.plan.rng(0, 1), only: Some(FIRST_VM) };
    let first = harness.running(FIRST_VM);
    first.stop().await;
    user.change_mode(&first, 2, DiskMode::IndependentNonpersistent).await?;
    first.start().await?;
    let verbs = [Verb::Take, Verb::Take, Verb::Clone, Verb::Checkpoint, Verb::RevertKeeping];
    for verb in verbs.into_iter().chain([Verb::RevertAndBack, Verb::RevertAndBack, Verb::Take]) {
        Guest { harness: harness.clone(), rng: Rng::new(harness.plan.seed) }.run(PREPARED).await?;
        user.act(verb).await?;
    }
    Guest { harness: harness.clone(), rng: Rng::new(harness.plan.seed + 1) }.run(PREPARED).await?;
    Ok(user)
}
