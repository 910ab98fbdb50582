//! Our own engine as a subject on modelled storage, in virtual time, and a flat disk for comparison.
//!
//! Every run has a world of its own on the calling thread, so as many runs as threads can run concurrently. A run is a
//! function of its seed, which `Outcome::event_hash` proves.

mod flat;
mod machine;
pub mod native_store;

use std::rc::Rc;

use blk::{Env, Result};
pub use flat::Flat;
pub use machine::MachineSubject;
use serde::{Deserialize, Serialize};
use sim::{ContentMode, Options, SimWorld};

use crate::run::{Counters, End, Record};
use crate::runner::{self, Plan, RunObserver};
use crate::subject::Subject;

/// The software that serves the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// VMware-style delta chains of our engine.
    Redo,
    /// Our own native store.
    Native,
    /// One flat file each; snapshots cost nothing and are taken elsewhere, such as by an array.
    Plain,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Engine::Redo => "redo",
            Engine::Native => "native",
            Engine::Plain => "plain",
        }
    }

    /// Creates a VM with disks of these sizes (bytes, multiples of 4 KiB).
    pub async fn make(self, env: &Env, world: &SimWorld, disk_bytes: &[u64]) -> Result<Rc<dyn Subject>> {
        Ok(match self {
            Engine::Redo => Rc::new(MachineSubject::redo(env, world, disk_bytes).await?),
            Engine::Native => Rc::new(MachineSubject::native(env, world, disk_bytes).await?),
            Engine::Plain => Rc::new(Flat::make(env, world, disk_bytes).await?),
        })
    }
}

/// The result of a modelled run.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub record: Record,
    /// Hash over all events of the world.
    pub event_hash: u64,
}

/// Returns options for long runs: content takes effect at completion and no power cut can lose it. The number of I/Os
/// is unlimited.
pub fn world_options(below: Options) -> Options {
    Options { content: ContentMode::Applied, events_max: u64::MAX, ..below }
}

/// Runs a plan on the subject that `make` creates, in a world of its own. A subject that cannot be created gives a
/// failed run.
pub fn run<F>(
    options: Options,
    plan: Plan,
    observer: RunObserver,
    make: impl FnOnce(Env, SimWorld) -> F + 'static,
) -> Outcome
where
    F: Future<Output = Result<Rc<dyn Subject>>> + 'static,
{
    let world = SimWorld::new(plan.head.seed, options);
    let inside = world.clone();
    let record = world.run(move |env| async move {
        match make(env.clone(), inside).await {
            Ok(subject) => runner::run(&env, subject, plan, observer).await,
            Err(e) => Record { end: End::Failed(format!("making the VM: {e}")), ..plan.head },
        }
    });
    let record = record.expect("a modelled run has no power cut");
    Outcome { record, event_hash: world.event_hash() }
}

/// Runs a plan on one of our engines.
pub fn run_engine(
    engine: Engine,
    disk_bytes: Vec<u64>,
    options: Options,
    plan: Plan,
    observer: RunObserver,
) -> Outcome {
    run(
        options,
        plan,
        observer,
        move |env, world| async move { engine.make(&env, &world, &disk_bytes).await },
    )
}

/// Returns counts of all I/O that has reached the storage of a world.
pub fn storage_counters(world: &SimWorld) -> Counters {
    use sim::OpKind::{Flush, Read, SyncDir, Write};
    let (read, written) = (world.count(Read), world.count(Write));
    Counters {
        reads: read.submitted,
        writes: written.submitted,
        flushes: world.count(Flush).submitted + world.count(SyncDir).submitted,
        read_bytes: read.bytes,
        written_bytes: written.bytes,
        ..Counters::default()
    }
}

#[cfg(test)]
mod layers_tests;
#[cfg(test)]
mod slow_tests;
#[cfg(test)]
mod tests;
