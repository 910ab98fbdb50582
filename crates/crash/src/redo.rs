//! Power cuts over the real engine and formats, in virtual time: a run is a function of its seed.
//!
//! One run: a VM is made, then booted several times. In each boot guests write, read and flush while snapshots are
//! taken, looked at, committed, cancelled, reverted to and discarded, until the power is cut. The cut falls into this
//! work or into the recovery from the cut before. Every boot begins by comparing everything with the oracle. The last
//! boot has no cut: every request must complete, every commit must end, and the home must be clean.
//!
//! In some runs one flush fails, and the guests go on flushing until the machine or the process ends.
//!
//! Not covered: devices that lie about flushes, damage to what was flushed, more than one VM on a core.

mod binned;
mod boot;
mod clones;
mod control;
mod guest;
mod looker;
mod model;
mod moves;
mod origin;
mod plan;

use std::cell::RefCell;
use std::rc::Rc;

use engine::{Defect, Defects};
use sim::SimWorld;

use crate::campaign::{Outcome, caught};
use crate::trouble::{TROUBLE_TASK, Trouble};
use crate::watch;
use model::Model;
use plan::{Part, Plan, TREE_SEEDS};

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    caught(|| run_plan(&Rc::new(Plan::draw(seed, defects))))
        .map_err(|e| format!("seed {seed}: {e}\n  replay: make crash CRASH_SEED={seed}"))
}

/// Plays the run of a seed that exercises the snapshot tree.
pub fn run_of_tree(seed: u64, defects: Defects) -> Result<Outcome, String> {
    run(seed | TREE_SEEDS, defects)
}

fn run_plan(plan: &Rc<Plan>) -> Result<Outcome, String> {
    assert_eq!(engine::unwritten_bytes(), 0, "the run before this one has left layers behind");
    let world = SimWorld::new(plan.seed, watch::options(&plan.world));
    world.lie_about_memory(plan.engine.defects.has(Defect::ForgetMemory));
    let model = Rc::new(RefCell::new(Model::new(plan)));
    origin::create(&world, plan, &model)?;
    origin::complete(&world, plan)?;
    let mut cuts = 0;
    for number in 0..plan.boots {
        let (last, trouble) = (number + 1 == plan.boots, Trouble::none(&world));
        plan.arm(&world, number, Part::Recovery);
        let result = boot::boot(&world, plan, &model, number, last);
        match result {
            Some(result) => result.map_err(|e| {
                watch::tell_end(&world, "ERROR");
                format!("boot {number}: {e}")
            })?,
            None => {
                watch::tell_end(&world, "POWER CUT");
                model.borrow_mut().mark_cut(&world);
                cuts += 1;
                let all_there = trouble.end(plan.rng(number, TROUBLE_TASK));
                model.borrow_mut().ended(all_there, trouble.has_struck(), &world);
            }
        }
    }
    origin::check_source(&world, &model.borrow())?;
    Ok(Outcome { cuts, event_hash: world.event_hash(), events: world.events(), marks: world.marks() })
}
