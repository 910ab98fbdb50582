//! Failing I/Os in each scripted operation, once or from then on. The machine then starts again, and everything must be
//! as before the operation or as after it. If the operation succeeded, everything must be as after it.
//!
//! Only errors of the device are planted here; the campaign in `redo.rs` covers power cuts and full datastores.

mod moment;
mod observed;
mod script;

use std::cell::Cell;

use blk::Errno;
use crash::home;
use engine::{Defects, Options, Vm};
use sim::{Action, Fault, OpKind, SimWorld};

use observed::ObservedState;
use script::{Harness, OPERATIONS, Operation};

/// More I/Os than any operation of the script has. It bounds the loop.
const IO_MAX: u64 = 6000;
const SEED: u64 = 77;
/// One I/O of this many fails, and each operation begins with another one; `FAULT_STRIDE=1` fails every I/O.
const STRIDE_DEFAULT: u64 = 3;
const GROWTH_BYTES: u64 = 64 << 10;

/// Way in which one I/O fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IoFault {
    Once,
    FromThenOn,
    /// A write finds no space, once. A file system that never overwrites in place may refuse any write so.
    FullOnce,
    /// An opening of that kind fails, once.
    Opening(OpKind, Errno),
}

impl IoFault {
    fn fault(self, nth: u64) -> Fault {
        match self {
            IoFault::Once => Fault::nth(nth, Action::Fail(Errno::EIO)),
            IoFault::FromThenOn => Fault::nth(nth, Action::Fail(Errno::EIO)).and_all_later(),
            IoFault::FullOnce => Fault::nth(nth, Action::Fail(Errno::ENOSPC)).of(OpKind::Write),
            IoFault::Opening(kind, errno) => Fault::nth(nth, Action::Fail(errno)).of(kind),
        }
    }

    /// Returns how many of the I/Os submitted so far its rule counts.
    fn counted(self, world: &SimWorld) -> u64 {
        match self {
            IoFault::FullOnce => world.count(OpKind::Write).submitted,
            IoFault::Opening(kind, _) => world.count(kind).submitted,
            _ => world.ios(),
        }
    }
}

thread_local! {
    static PLANTED: Cell<Defects> = Cell::default();
}

fn options() -> Options {
    Options { defects: PLANTED.get(), reserve_bytes: 1 << 20, ..Options::default() }
}

async fn open(env: &blk::Env) -> Result<Harness, String> {
    let home = home::open(env, GROWTH_BYTES, false).map_err(|e| e.to_string())?;
    let vm = Vm::open(env.clone(), home.clone(), options()).await.map_err(|e| e.to_string())?;
    Ok(Harness { vm, home })
}

/// Runs the script's preparation in a fresh world, then the operation with the n-th of its I/Os failing. Returns the
/// operation's result, and whether there was such an I/O.
fn run(world: &SimWorld, operation: &Operation, fault: Option<(u64, IoFault)>) -> (Result<(), String>, bool) {
    let armed = world.clone();
    let begun = std::rc::Rc::new(std::cell::Cell::new(0));
    let prepared = begun.clone();
    let act = operation.act;
    let result = world.run(|env| async move {
        script::create(&env).await?;
        let harness = open(&env).await?;
        script::prepare(&harness).await?;
        if let Some((nth, fault)) = fault {
            prepared.set(fault.counted(&armed));
            armed.add_fault(fault.fault(nth));
        }
        act(&harness, &env).await
    });
    let struck = fault.is_some_and(|(nth, fault)| fault.counted(world) - begun.get() >= nth);
    world.clear_faults();
    (result.expect("no power cut is scheduled"), struck)
}

/// Starts again, looks at everything, and checks that no layer is left behind. Lets every commit end, and compares
/// again.
fn look(world: &SimWorld, operation: &Operation) -> Result<ObservedState, String> {
    let clones = operation.clones;
    let looked = world.run(|env| async move {
        let harness = open(&env).await.map_err(|e| format!("opening it again: {e}"))?;
        let mut observed = ObservedState::of(&harness.vm).await?;
        home::nothing_leaked(&harness.vm).await?;
        for job in harness.vm.jobs() {
            job.wait().await;
        }
        ObservedState::of(&harness.vm).await?.must_equal(&observed, "once its commits have ended")?;
        observed.add_clones(&env, clones).await?;
        harness.vm.close().await.map_err(|e| format!("closing: {e}"))?;
        home::is_sound(&env).await?;
        Ok(observed)
    });
    looked.expect("no power cut is scheduled")
}

fn world() -> SimWorld {
    SimWorld::new(SEED, sim::Options::default())
}

/// Returns what everything looks like before and after an operation without faults.
fn undisturbed(operation: &Operation) -> (ObservedState, ObservedState) {
    let idle = Operation { act: |_, _| Box::pin(async { Ok(()) }), ..*operation };
    let before = world();
    run(&before, &idle, None).0.unwrap_or_else(|e| panic!("preparing {}: {e}", operation.name));
    before.power_cut();
    let after = world();
    run(&after, operation, None).0.unwrap_or_else(|e| panic!("{} undisturbed: {e}", operation.name));
    after.power_cut();
    let observed =
        |world: &SimWorld| look(world, operation).unwrap_or_else(|e| panic!("{}: {e}", operation.name));
    (observed(&before), observed(&after))
}

fn check(
    operation: &Operation,
    before: &ObservedState,
    after: &ObservedState,
    nth: u64,
    fault: IoFault,
) -> Result<bool, String> {
    let world = world();
    let (said, struck) = run(&world, operation, Some((nth, fault)));
    if !struck {
        return Ok(false);
    }
    // In half of the cases the machine also fails, and loses what was not flushed.
    if nth.is_multiple_of(2) {
        world.power_cut();
    } else {
        world.kill();
    }
    let observed = look(&world, operation)?;
    if said.is_ok() && !operation.unflushed {
        observed.must_equal(after, "though it was answered with success")?;
    }
    observed.must_be_between(before, after)?;
    Ok(true)
}

#[test]
fn every_failing_io_of_every_operation_loses_nothing() {
    let only = std::env::var("FAULT_OPERATION").unwrap_or_default();
    let stride = crash::campaign::setting("FAULT_STRIDE").unwrap_or(STRIDE_DEFAULT).max(1);
    let failures = std::sync::Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(operation) = OPERATIONS.get(index) else { return };
            if !operation.name.contains(&only) {
                continue;
            }
            let (before, after) = undisturbed(operation);
            let waits = operation.name.starts_with("commit");
            let full = waits.then_some(IoFault::FullOnce);
            for fault in [IoFault::Once, IoFault::FromThenOn].into_iter().chain(full) {
                let mut ios = 0;
                for nth in (1 + index as u64 % stride..=IO_MAX).step_by(stride as usize) {
                    match check(operation, &before, &after, nth, fault) {
                        Ok(true) => ios = nth,
                        Ok(false) => break,
                        Err(e) => {
                            let name = operation.name;
                            let replay = format!("FAULT_OPERATION={name:?} FAULT_STRIDE=1 make crash");
                            let failure =
                                format!("{name}, I/O {nth} fails {fault:?}: {e}\n  replay: {replay}");
                            failures.lock().unwrap().push(failure);
                        }
                    }
                }
                println!("{}: {ios} I/Os failing {fault:?}, in steps of {stride}", operation.name);
                assert!(ios > 0 && ios < IO_MAX, "{}: {ios} I/Os", operation.name);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures[..failures.len().min(10)].join("\n")
    );
}

/// Proves that the checker can fail.
#[test]
fn a_lost_snapshot_and_a_changed_sector_are_detected() {
    let world = world();
    run(&world, &Operation { act: |_, _| Box::pin(async { Ok(()) }), ..OPERATIONS[0] }, None).0.unwrap();
    world.kill();
    let observed = look(&world, &OPERATIONS[0]).unwrap();
    let mut lost = observed.clone();
    lost.snapshots.pop_first();
    assert!(lost.must_be_between(&observed, &observed).unwrap_err().contains("snapshots"));
    let mut changed = observed.clone();
    std::rc::Rc::make_mut(changed.disks.get_mut(&0).unwrap())[700] ^= 1;
    assert!(changed.must_be_between(&observed, &observed).unwrap_err().contains("disk0"));
}
