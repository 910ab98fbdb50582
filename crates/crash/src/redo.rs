//! Power cuts over the real engine and formats, in virtual time. A run is a function of its seed.
//!
//! One run: a VM is created, then booted several times. In each boot guests write, read and flush, while snapshots are
//! taken, read, committed, cancelled, reverted to and discarded, until the power is cut. The cut falls into this work
//! or into the recovery from the previous cut. Every boot begins by comparing everything with the oracle. The last boot
//! has no cut: every request must complete, every commit must end, and the home must be clean.
//!
//! In some runs one flush fails, and the guests continue to flush until the machine or the process ends.
//!
//! Not covered: devices that acknowledge flushes without performing them, damage to flushed data, more than one VM on a
//! core.

mod binned;
mod boot;
mod clones;
mod control;
mod guest;
mod harness;
mod model;
mod moves;
mod origin;
mod plan;
mod tree_reader;

use engine::{Defect, Defects};

use crate::campaign::Outcome;
use crate::flush_faults::{FAULT_TASK, FlushFaults};
use crate::run::{BootPhase, Run, replayed};
use model::Model;
use plan::{Plan, TREE_SEEDS};

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    replayed(seed, || run_plan(Plan::draw(seed, defects)))
}

/// Plays the run of a seed that exercises the snapshot tree.
pub fn run_of_tree(seed: u64, defects: Defects) -> Result<Outcome, String> {
    run(seed | TREE_SEEDS, defects)
}

fn run_plan(plan: Plan) -> Result<Outcome, String> {
    assert_eq!(engine::unwritten_bytes(), 0, "the run before this one has left layers behind");
    let model = Model::new(&plan);
    let run = Run::new(plan.seed, &plan.world.clone(), plan, model);
    run.world.ignore_memory_writes(run.plan.engine.defects.has(Defect::ForgetMemory));
    origin::create(&run)?;
    origin::complete(&run)?;
    let outcome = run.play(run.plan.boots, |number| {
        let faults = FlushFaults::none(&run.world);
        run.plan.arm(&run.world, number, BootPhase::Recovery);
        let ended = boot::boot(&run, number);
        if ended.is_none() {
            let mut model = run.model.borrow_mut();
            model.mark_cut(&run.world);
            model.ended(faults.end(run.plan.rng(number, FAULT_TASK)), faults.has_struck());
        }
        ended
    })?;
    origin::check_source(&run)?;
    Ok(outcome)
}
