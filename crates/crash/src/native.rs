//! Power cuts over the native store, in virtual time: a run is a function of its seed.
//!
//! One run: a store with one machine of one to three disks is made, then booted several times. In each boot guests
//! write, read, flush and discard, while snapshots are taken, looked at and removed, machines branch off, are reverted
//! and removed, disks grow and checkpoints are forced, until the power is cut. The cut falls into this work or into the
//! recovery from the cut before. Every boot begins by comparing everything with the oracle. The last boot has no cut:
//! every request must complete, everything dropped must give its space back, and the store must be exact.
//!
//! In some runs sectors whose write was under way at a cut cannot be read, and the newest superblock is lost between
//! boots: the store may then refuse to open, but must never show wrong content. In some runs one flush fails.
//!
//! Not covered: devices that lie about flushes, more than one store on a core. `corruption` covers damage to what was
//! flushed, and `script` covers failing I/O.

mod boot;
pub mod corruption;
mod guest;
mod harness;
mod media;
mod model;
mod places;
mod plan;
pub mod script;
mod snapshot_check;
mod space_audit;
mod user;
pub mod vms;

use std::cell::RefCell;
use std::rc::Rc;

use engine::native::change::Op;
use engine::{Defect, Defects};
use sim::SimWorld;

use crate::campaign::{Outcome, caught};
use crate::trouble::{TROUBLE_TASK, Trouble};
use crate::watch;
use harness::{Harness, MACHINE, put};
use model::{ExpectedDisk, ExpectedMachine, Model, Standing};
use plan::{Part, Plan};
use sim::oracle::DiskModel;

/// Number of the first machine, which is never removed; branches have greater numbers.
const FIRST_MACHINE: u64 = 0;

/// Plays one run. An error is a broken promise, with the seed and the command to replay it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    let replay = format!("seed {seed}: ");
    caught(|| run_plan(&Rc::new(Plan::draw(seed, defects).on_bad_media())))
        .map_err(|e| format!("{replay}{e}\n  replay: make crash CRASH_SEED={seed}"))
}

/// Plays a run on a tree of up to 64 snapshots and six machines, without power cuts.
pub fn run_tree(seed: u64) -> Result<Outcome, String> {
    caught(|| run_plan(&Rc::new(Plan::tree(seed)))).map_err(|e| format!("tree {seed}: {e}"))
}

fn run_plan(plan: &Rc<Plan>) -> Result<Outcome, String> {
    let world = SimWorld::new(plan.seed, plan.world.clone());
    world.lie_about_memory(plan.options.defects.has(Defect::ForgetMemory));
    let model: Rc<RefCell<Model>> = Rc::default();
    create(&world, plan, &model)?;
    let mut cuts = 0;
    for number in 0..plan.boots {
        let (last, trouble) = (number + 1 == plan.boots, Trouble::none(&world));
        plan.arm(&world, number, Part::Recovery);
        match boot::boot(&world, plan, &model, number, last) {
            Some(result) => {
                model.borrow_mut().store = None;
                result.map_err(|e| format!("boot {number}: {e}"))?;
            }
            None => {
                watch::tell(|| format!("POWER CUT {}", world.place_and_time()));
                model.borrow_mut().mark_cut(&world);
                cuts += 1;
                let all_there = trouble.end(plan.rng(number, TROUBLE_TASK));
                model.borrow_mut().ended(all_there, &world);
            }
        }
    }
    Ok(Outcome { cuts, event_hash: world.event_hash(), events: world.events(), marks: world.marks() })
}

/// Makes the store and its first machine, without cuts or faults.
fn create(world: &SimWorld, plan: &Rc<Plan>, model: &Rc<RefCell<Model>>) -> Result<(), String> {
    let (plan, model, outside) = (plan.clone(), model.clone(), world.clone());
    let made = world.run(|env| async move {
        harness::format(&env, &plan).await?;
        let harness = Harness::open(&env, &outside, &plan, &model, 0).await?;
        let nodes: Vec<u64> = plan.disks.iter().map(|_| harness.store.new_node_id()).collect();
        let sizes = nodes.iter().zip(&plan.disks);
        let mut ops: Vec<Op> =
            sizes.map(|(node, places)| Op::Create { node: *node, size_blocks: places.size_blocks }).collect();
        ops.push(put(MACHINE, FIRST_MACHINE, &nodes));
        harness.store.change(&ops)?;
        let disks = nodes.iter().zip(&plan.disks).enumerate().map(|(n, (node, places))| ExpectedDisk {
            node: *node,
            model: DiskModel::new(n as u32),
            places: places.clone(),
            growing: None,
        });
        let machine = ExpectedMachine { disks: disks.collect(), standing: Standing::There, moving: None };
        model.borrow_mut().machines.insert(FIRST_MACHINE, machine);
        harness.store.flush().await
    });
    made.expect("nothing is cut while the store is made").map_err(|e: blk::Error| format!("making it: {e}"))
}
