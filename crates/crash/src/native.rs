//! Power cuts over the native store, in virtual time: a run is a function of its seed.
//!
//! One run: a store with one machine of one to three disks is made, then booted several times. In each boot guests
//! write, read, flush and discard, while snapshots are taken, looked at and removed, machines branch off, are reverted
//! and removed, disks grow and checkpoints are forced, until the power is cut. The cut falls into this work or into the
//! recovery from the cut before. Every boot begins by comparing everything with the oracle. The last boot has no cut:
//! every request must complete, everything dropped must give its space back, and the store must be exact.
//!
//! In some runs the first disk of a machine is over a source. Sources are landed while the guests run; an image is gone
//! from then on.
//!
//! In some runs sectors whose write was under way at a cut cannot be read, and the newest superblock is lost between
//! boots: the store may then refuse to open, but must never show wrong content. In some runs one flush fails.
//!
//! Not covered: devices that lie about flushes, more than one store on a core. `corruption` covers damage to what was
//! flushed, and `script` covers failing I/O.

mod boot;
pub mod corruption;
mod defragmentation;
mod disturbance;
mod guest;
mod harness;
mod images;
mod media;
mod model;
mod plan;
pub mod script;
mod second_core;
mod snapshot_check;
mod sources;
mod space_audit;
mod user;
pub mod vms;
mod windows;

use std::rc::Rc;

use engine::native::change::Op;
use engine::{Defect, Defects};
use sim::oracle::DiskModel;

use crate::campaign::{Outcome, caught};
use crate::flush_faults::{FAULT_TASK, FlushFaults};
use crate::run::{BootPhase, replayed};
use harness::{Harness, MACHINE, put};
use model::{Existence, ExpectedDisk, ExpectedMachine, NativeRun};
use plan::{Plan, SOURCES_TASK};

/// Number of the first machine, which is never removed; branches have greater numbers.
const FIRST_MACHINE: u64 = 0;

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || run_plan(Plan::draw(seed, defects).on_bad_media().with_sources()))
}

/// Plays one run whose guests are on another core than the store.
pub fn run_on_two_cores(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || {
        let run: NativeRun = Plan::draw(seed, defects).on_bad_media().with_sources().run();
        run.guests_core.is_second.set(true);
        play(&run)
    })
}

/// Plays one run in which disks are defragmented beside the guests.
pub fn run_defragmenting(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || {
        run_plan(Plan::draw(seed, defects).on_bad_media().with_sources().with_defragmentation())
    })
}

/// Plays a run on a tree of up to 64 snapshots and six machines, without power cuts.
pub fn run_tree(seed: u64) -> Result<Outcome, String> {
    caught(|| run_plan(Plan::tree(seed))).map_err(|e| format!("tree {seed}: {e}"))
}

fn run_plan(plan: Plan) -> Result<Outcome, String> {
    play(&plan.run())
}

fn play(run: &NativeRun) -> Result<Outcome, String> {
    run.world.ignore_memory_writes(run.plan.options.defects.has(Defect::ForgetMemory));
    create(run)?;
    run.play(run.plan.boots, |number| {
        let faults = FlushFaults::none(&run.world);
        run.plan.arm(&run.world, number, BootPhase::Recovery);
        let ended = boot::boot(run, number);
        let mut model = run.model.borrow_mut();
        if ended.is_none() {
            model.mark_cut(&run.world);
            model.ended(faults.end(run.plan.rng(number, FAULT_TASK)));
        }
        // The model has the store only while a boot lasts.
        model.store = None;
        ended
    })
}

/// Creates the store and its first machine, without cuts or faults.
fn create(run: &NativeRun) -> Result<(), String> {
    let made = run.prepare(async |env, run| {
        harness::format(&env, &run.plan).await?;
        let harness = Harness::open(&env, &run, 0).await?;
        let disks: Vec<ExpectedDisk> = (0..)
            .zip(&run.plan.disks)
            .map(|(n, windows)| {
                let (node, model) = (harness.store.new_node_id(), Rc::new(DiskModel::new(n)));
                ExpectedDisk { node, model, windows: windows.clone(), growing: None }
            })
            .collect();
        let nodes: Vec<u64> = disks.iter().map(|disk| disk.node).collect();
        let mut rng = run.plan.rng(0, SOURCES_TASK);
        let mut ops: Vec<Op> = Vec::new();
        for (n, ExpectedDisk { node, model, windows, .. }) in disks.iter().enumerate() {
            ops.push(match n == 0 && run.plan.over_sources {
                true => harness.plan_over(&mut rng, *node, model, windows).await?,
                false => Op::Create { node: *node, size_blocks: windows.size_blocks },
            });
        }
        ops.push(put(MACHINE, FIRST_MACHINE, &nodes));
        harness.store.change(&ops)?;
        let machine = ExpectedMachine { disks, existence: Existence::There, moving: None };
        run.model.borrow_mut().machines.insert(FIRST_MACHINE, machine);
        harness.store.flush().await
    });
    made.map_err(|e: blk::Error| format!("making it: {e}"))
}
