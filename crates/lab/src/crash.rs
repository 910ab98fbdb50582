//! Power cuts over the real engine and formats, in virtual time: a run is a function of its seed.
//!
//! One run: a VM is made, then booted several times; in each boot guests write, read and flush while snapshots are
//! taken, looked at, committed, cancelled, reverted to and discarded, until the power goes - during work, or during the recovery from the cut
//! before. Every boot begins by comparing everything with the oracle. The last boot is left alone: every request must
//! complete, every commit must end, and the home must be clean.
//!
//! In some runs a flush fails, once, and the guests go on asking for others until the machine or the process ends.
//!
//! Not covered: devices that lie about flushes, damage to what was flushed, more than one VM on a core.

mod binned;
mod boot;
mod clones;
mod control;
mod guest;
mod looker;
mod moves;
mod origin;
pub(crate) mod plan;
pub(crate) mod request_gate;
pub(crate) mod trouble;
mod truth;
pub(crate) mod watch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use engine::{Defect, Defects};
use sim::SimWorld;

pub use plan::Plan;
use plan::{Part, TREE_SEEDS, TROUBLE_TASK};
use trouble::Trouble;
use truth::Truth;

/// What one run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub cuts: u64,
    pub event_hash: u64,
    pub events: u64,
    /// Things that must have happened at least once in a campaign.
    pub marks: BTreeMap<&'static str, u64>,
}

/// One run. An error is a broken promise, with the seed and the way to repeat it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    let replay = |cause: String| format!("seed {seed}: {cause}\n  replay: make crash CRASH_SEED={seed}");
    match catch_unwind(AssertUnwindSafe(|| run_plan(&Rc::new(Plan::draw(seed, defects))))) {
        Ok(result) => result.map_err(replay),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
            Err(replay(format!("panic: {}", text.unwrap_or_default())))
        }
    }
}

/// The run of a seed that is about the tree.
pub fn run_of_tree(seed: u64, defects: Defects) -> Result<Outcome, String> {
    run(seed | TREE_SEEDS, defects)
}

fn run_plan(plan: &Rc<Plan>) -> Result<Outcome, String> {
    assert_eq!(engine::unwritten_bytes(), 0, "the run before this one has left layers behind");
    let world = SimWorld::new(plan.seed, plan.world.clone());
    world.lie_about_memory(plan.engine.defects.has(Defect::ForgetMemory));
    let truth = Rc::new(RefCell::new(Truth::new(plan)));
    origin::create(&world, plan, &truth)?;
    origin::complete(&world, plan)?;
    let mut cuts = 0;
    for number in 0..plan.boots {
        let (last, trouble) = (number + 1 == plan.boots, Trouble::none(&world));
        plan.arm(&world, number, Part::Recovery);
        let result = boot::boot(&world, plan, &truth, number, last);
        match result {
            Some(result) => result.map_err(|e| format!("boot {number}: {e}"))?,
            None => {
                watch::tell(|| format!("POWER CUT {}", world.place_and_time()));
                truth.borrow_mut().mark_cut(&world);
                cuts += 1;
                let all_there = trouble.end(plan.rng(number, TROUBLE_TASK));
                truth.borrow_mut().ended(all_there, trouble.has_struck(), &world);
            }
        }
    }
    origin::check_source(&world, &truth.borrow())?;
    Ok(Outcome { cuts, event_hash: world.event_hash(), events: world.events(), marks: world.marks() })
}
