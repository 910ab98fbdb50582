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

use std::rc::Rc;

use blk::Env;
use blk::manifest::{DiskMode, NewDisk};
use engine::Defects;
use engine::native::NewNativeVm;
use engine::native::layout::BLOCK;
use sim::{Cut, Rng};

use self::guest::Guest;
use self::harness::VmHarness;
use self::model::{ExpectedVm, Outcome as Ahead, VmRun};
use self::shape::Shape;
use self::user::User;
pub use self::user::{VERBS, Verb};
use super::harness::format;
use super::plan::Plan;
use super::script::{IoFault, end_disturbed};
use crate::campaign::{Outcome, caught};
use crate::run::{BootPhase, all_joined, replayed};

/// Name of the VM that every run begins with.
const FIRST_VM: &str = "a";
const DISK_BLOCKS: [u64; 3] = [32, 16, 8];
/// Most requests of each guest and most verbs of the user in one boot.
const OPERATIONS_MAX: u64 = 60;
const STEPS_MAX: u64 = 12;
/// Requests of a guest before and between the verbs that prepare a disturbed one.
const PREPARED: u64 = 12;

/// Power cut or failing I/O under a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// The power is cut at the verb's n-th submission or completion.
    Cut,
    Io(IoFault),
}

pub const DISTURBANCES: [Disturbance; 3] =
    [Disturbance::Cut, Disturbance::Io(IoFault::Once), Disturbance::Io(IoFault::FromThenOn)];

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || run_plan(Plan::draw(seed, defects)))
}

/// Plays one run whose guests are on another core than the store.
pub fn run_on_two_cores(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || {
        let run: VmRun = Plan::draw(seed, defects).run();
        run.guests_core.is_second.set(true);
        play(&run)
    })
}

fn run_plan(plan: Plan) -> Result<Outcome, String> {
    play(&plan.run())
}

fn play(run: &VmRun) -> Result<Outcome, String> {
    create(run)?;
    run.play(run.plan.boots, |number| {
        run.plan.arm(&run.world, number, BootPhase::Recovery);
        let ended = boot(run, number);
        if ended.is_none() {
            run.world.mark(run.model.borrow_mut().doing.take().unwrap_or("cut between verbs"));
            run.world.power_cut();
        }
        ended
    })
}

/// Makes the store and its first VM, without cuts or faults.
fn create(run: &VmRun) -> Result<(), String> {
    let made = run.prepare(async |env, run| {
        format(&env, &run.plan).await.map_err(|e| e.to_string())?;
        let harness = VmHarness::open(&env, &run, 0).await?;
        let (mode, folder) = (DiskMode::Persistent, None);
        let disks = DISK_BLOCKS.map(|blocks| NewDisk {
            size_bytes: blocks * BLOCK,
            mode,
            folder: folder.clone(),
            source: None,
        });
        let made =
            harness.inner.store.create_vm(NewNativeVm { name: FIRST_VM, disks: &disks, slots: &[] }).await;
        made.map_err(|e| e.to_string())?;
        let mut now = Ahead { shape: Some(Shape::default()), ..Ahead::default() };
        disks.iter().for_each(|disk| create::add(&mut now, disk, &[]));
        let mut model = run.model.borrow_mut();
        model.vms.insert(FIRST_VM.into(), ExpectedVm { ahead: vec![now], ..ExpectedVm::default() });
        model.arrive(FIRST_VM, None);
        Ok(())
    });
    made.map_err(|e: String| format!("making it: {e}"))
}

/// Plays one boot. Returns None if the power was cut.
fn boot(run: &VmRun, number: u64) -> Option<Result<(), String>> {
    run.boot(async move |env, run| {
        let last = number + 1 == run.plan.boots;
        let harness = VmHarness::open(&env, &run, number).await?;
        let mut rng = run.plan.rng(number, 3);
        let cut_in = (!last && rng.below(4) > 0).then(|| rng.below(STEPS_MAX / 2));
        match cut_in {
            Some(_) => run.world.cancel_cut(),
            None => run.plan.arm(&run.world, number, BootPhase::Work),
        }
        work(&harness, number, cut_in).await?;
        if last {
            harness.check_exact().await?;
        }
        harness.close().await?;
        if last { finish(&env, &run).await } else { Ok(()) }
    })
}

/// Runs guests and user at the same time, to their end.
async fn work(harness: &Rc<VmHarness>, boot: u64, cut_in: Option<u64>) -> Result<(), String> {
    let (plan, env) = (&harness.plan, &harness.inner.env);
    harness.start_all().await?;
    let mut tasks = Vec::new();
    for n in 0..plan.guests {
        let guest = Guest { harness: harness.clone(), rng: plan.rng(boot, 100 + n) };
        let operations = plan.operations.min(OPERATIONS_MAX);
        tasks.push(env.spawn(guest.run(operations)));
    }
    let user = User { harness: harness.clone(), rng: plan.rng(boot, 1), only: None };
    tasks.push(env.spawn(user.run(STEPS_MAX, cut_in)));
    all_joined(tasks).await
}

/// Starts once more and checks everything, with nothing left to be done.
async fn finish(env: &Env, run: &VmRun) -> Result<(), String> {
    let harness = VmHarness::open(env, run, run.plan.boots).await?;
    harness.check_exact().await?;
    harness.close().await
}

/// Runs one verb after a fixed preparation, disturbed at `nth`; starts again, and compares. `variant` is the seed of
/// what the verb picks. Returns false if the verb was over before.
pub fn run_disturbed(verb: Verb, variant: u64, disturbance: Disturbance, nth: u64) -> Result<bool, String> {
    caught(|| {
        let run: VmRun = Plan { seed: variant, ..Plan::scripted() }.run();
        create(&run)?;
        let struck = disturbed(&run, verb, disturbance, nth)?;
        if end_disturbed(&run.world, nth) {
            run.model.borrow_mut().may_report_loss = disturbance != Disturbance::Cut;
        }
        run.prepare(async |env, run| finish(&env, &run).await)?;
        Ok(struck)
    })
    .map_err(|e| format!("{verb:?} {variant}, {disturbance:?} at {nth}: {e}"))
}

fn disturbed(run: &VmRun, verb: Verb, disturbance: Disturbance, nth: u64) -> Result<bool, String> {
    let ended = run.boot(async move |env, run| {
        let harness = VmHarness::open(&env, &run, 0).await?;
        let mut user = prepare(&harness).await?;
        user.rng = run.plan.rng(run.plan.seed, 7);
        let done = run.world.ios();
        match disturbance {
            Disturbance::Cut => run.world.cut_at(Cut::Event(nth)),
            Disturbance::Io(io_fault) => run.world.add_fault(io_fault.fault(nth)),
        }
        let said = user.act(verb).await;
        let struck = disturbance != Disturbance::Cut && run.world.ios() - done >= nth;
        match said {
            Err(e) if !struck => Err(e),
            _ => Ok(struck),
        }
    });
    run.world.cancel_cut();
    ended.unwrap_or(Ok(true))
}

/// Prepares a tree with a side branch, a clone, a nonpersistent disk that was written to and an entry in the bin. Some
/// of it is merged.
async fn prepare(harness: &Rc<VmHarness>) -> Result<User, String> {
    harness.start_all().await?;
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
