//! Power cuts over the native store, in virtual time: a run is a function of its seed.
//!
//! One run: a store with one machine of one to three disks is made, then booted several times; in each boot guests
//! write, read, flush and discard while snapshots are taken, looked at and removed, machines branch off, are reverted
//! and removed, disks grow and checkpoints are forced, until the power goes - during work, or during the recovery from the
//! cut before. Every boot begins by comparing everything with the oracle. The last boot is left alone: every request
//! must complete, everything dropped must give its space back, and the store must be exact.
//!
//! In some runs sectors whose write was under way at a cut cannot be read, and the newest superblock is lost between boots:
//! the store may then be refused, and never be wrong. In some a flush fails, once.
//!
//! Not covered: devices that lie about flushes, more than one store on a core. Damage to what was flushed is in `rot`, I/O
//! that fails in `script`.

mod boot;
mod exact;
mod guest;
mod look;
mod media;
mod places;
mod plan;
pub mod rot;
mod scene;
pub mod script;
mod truth;
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
use plan::{Part, Plan};
use scene::{MACHINE, Scene, put};
use sim::oracle::DiskModel;
use truth::{DiskTruth, MachineTruth, Standing, Truth};

/// It stays; branches have greater numbers.
const FIRST_MACHINE: u64 = 0;

/// One run. An error is a broken promise, with the seed and the way to repeat it.
pub fn run(seed: u64, defects: Defects) -> Result<Outcome, String> {
    let replay = format!("seed {seed}: ");
    caught(|| run_plan(&Rc::new(Plan::draw(seed, defects).on_bad_media())))
        .map_err(|e| format!("{replay}{e}\n  replay: make crash CRASH_SEED={seed}"))
}

/// A tree of up to 64 snapshots and six machines, that nothing disturbs.
pub fn run_tree(seed: u64) -> Result<Outcome, String> {
    caught(|| run_plan(&Rc::new(Plan::tree(seed)))).map_err(|e| format!("tree {seed}: {e}"))
}

fn run_plan(plan: &Rc<Plan>) -> Result<Outcome, String> {
    let world = SimWorld::new(plan.seed, plan.world.clone());
    world.lie_about_memory(plan.options.defects.has(Defect::ForgetMemory));
    let truth: Rc<RefCell<Truth>> = Rc::default();
    create(&world, plan, &truth)?;
    let mut cuts = 0;
    for number in 0..plan.boots {
        let (last, trouble) = (number + 1 == plan.boots, Trouble::none(&world));
        plan.arm(&world, number, Part::Recovery);
        match boot::boot(&world, plan, &truth, number, last) {
            Some(result) => {
                truth.borrow_mut().store = None;
                result.map_err(|e| format!("boot {number}: {e}"))?;
            }
            None => {
                watch::tell(|| format!("POWER CUT {}", world.place_and_time()));
                truth.borrow_mut().mark_cut(&world);
                cuts += 1;
                let all_there = trouble.end(plan.rng(number, TROUBLE_TASK));
                truth.borrow_mut().ended(all_there, &world);
            }
        }
    }
    Ok(Outcome { cuts, event_hash: world.event_hash(), events: world.events(), marks: world.marks() })
}

/// Makes the store and its first machine, undisturbed.
fn create(world: &SimWorld, plan: &Rc<Plan>, truth: &Rc<RefCell<Truth>>) -> Result<(), String> {
    let (plan, truth, outside) = (plan.clone(), truth.clone(), world.clone());
    let made = world.run(|env| async move {
        scene::format(&env, &plan).await?;
        let scene = Scene::open(&env, &outside, &plan, &truth, 0).await?;
        let nodes: Vec<u64> = plan.disks.iter().map(|_| scene.store.new_node_id()).collect();
        let sizes = nodes.iter().zip(&plan.disks);
        let mut ops: Vec<Op> =
            sizes.map(|(node, places)| Op::Create { node: *node, size_blocks: places.size_blocks }).collect();
        ops.push(put(MACHINE, FIRST_MACHINE, &nodes));
        scene.store.change(&ops)?;
        let disks = nodes.iter().zip(&plan.disks).enumerate().map(|(n, (node, places))| DiskTruth {
            node: *node,
            model: DiskModel::new(n as u32),
            places: places.clone(),
            growing: None,
        });
        let machine = MachineTruth { disks: disks.collect(), standing: Standing::There, moving: None };
        truth.borrow_mut().machines.insert(FIRST_MACHINE, machine);
        scene.store.flush().await
    });
    made.expect("nothing is cut while the store is made").map_err(|e: blk::Error| format!("making it: {e}"))
}
