//! Temporary errors: no descriptor is left for an opening, or an overwrite finds no space. Such an error proves no
//! damage. So nothing latches, nothing counts as absent, and the operation succeeds when it is repeated without a
//! restart.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use blk::volume::{Volume, ZeroMode};
use blk::{Errno, ErrorKind};
use engine::{Defect, Defects};
use sim::{Action, Fault, OpKind, SimWorld};

use super::script::{self, OPERATIONS, Operation};
use super::{IO_MAX, IoFault, ObservedState, PLANTED, look, open, undisturbed, world};

const OPENINGS: [OpKind; 3] = [OpKind::Create, OpKind::Open, OpKind::OpenDir];

/// Result of the operation, the first time and, after an error, the second time; and whether the fault struck.
type Results = (Result<(), String>, Result<(), String>, bool);

fn run_twice(world: &SimWorld, operation: &Operation, nth: u64, fault: IoFault) -> Results {
    let (armed, act, again) = (world.clone(), operation.act, script::again(operation));
    let struck = Rc::new(Cell::new(false));
    let noted = struck.clone();
    let result = world.run(|env| async move {
        let begun = async {
            script::create(&env).await?;
            let harness = open(&env).await?;
            script::prepare(&harness).await.map(|()| harness)
        };
        let harness = begun.await.expect("nothing disturbs the preparation");
        let before = fault.counted(&armed);
        armed.add_fault(fault.fault(nth));
        let first = act(&harness, &env).await;
        noted.set(fault.counted(&armed) - before >= nth);
        armed.clear_faults();
        match first.is_err() && noted.get() {
            true => (first, again(&harness, &env).await),
            false => (first, Ok(())),
        }
    });
    let (first, second) = result.expect("no power cut is scheduled");
    (first, second, struck.get())
}

/// Checks one failing I/O. Returns false if the operation has fewer such I/Os.
fn check(operation: &Operation, after: &ObservedState, nth: u64, fault: IoFault) -> Result<bool, String> {
    let world = world();
    let (first, second, struck) = run_twice(&world, operation, nth, fault);
    if !struck {
        return Ok(false);
    }
    world.kill();
    if let (Err(first), Err(second)) = (&first, &second) {
        return Err(format!("{first}; and again: {second}"));
    }
    look(&world, operation)?.must_equal(after, "though it succeeded in the end")?;
    Ok(true)
}

/// Returns all failures of one operation with one kind of trouble.
fn failures(operation: &Operation, after: &ObservedState, fault: IoFault) -> Vec<String> {
    let mut found = Vec::new();
    for nth in 1..=IO_MAX {
        match check(operation, after, nth, fault) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => found.push(format!("{}, I/O {nth} fails {fault:?}: {e}", operation.name)),
        }
    }
    found
}

/// Returns the failures of the chosen operations. Runs on all cores, with the defects planted in this thread.
fn all_failures(troubles: &[IoFault], of: impl Fn(&Operation) -> bool) -> Vec<String> {
    let only = std::env::var("FAULT_OPERATION").unwrap_or_default();
    let chosen: Vec<_> = OPERATIONS.iter().filter(|one| one.name.contains(&only) && of(one)).collect();
    let (next, found, planted) = (AtomicUsize::new(0), Mutex::new(Vec::new()), PLANTED.get());
    let work = || {
        PLANTED.set(planted);
        while let Some(operation) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (_, after) = undisturbed(operation);
            for fault in troubles {
                found.lock().unwrap().extend(failures(operation, &after, *fault));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap()
}

fn none(failures: &[String]) {
    let shown = failures[..failures.len().min(20)].join("\n");
    assert!(failures.is_empty(), "{} failures; FAULT_OPERATION=NAME runs one\n{shown}", failures.len());
}

fn without_descriptors(errno: Errno) -> [IoFault; 3] {
    OPENINGS.map(|kind| IoFault::Opening(kind, errno))
}

#[test]
fn an_opening_without_descriptors_is_tried_again_and_loses_nothing() {
    none(&all_failures(&without_descriptors(Errno::EMFILE), |_| true));
}

/// Returns the failures with a defect planted.
fn failures_with(defect: Defect, troubles: &[IoFault]) -> Vec<String> {
    PLANTED.set(Defects::only(defect));
    let found = all_failures(troubles, |one| ["take", "take, then writes and a flush"].contains(&one.name));
    PLANTED.set(Defects::default());
    found
}

#[test]
fn planted_doubts_are_found() {
    let shortage = failures_with(Defect::DoubtShortage, &without_descriptors(Errno::EMFILE));
    assert!(shortage.iter().any(|e| e.contains("restart unstun")), "{shortage:?}");
    let full = failures_with(Defect::DoubtFullDevice, &[IoFault::FullOnce]);
    assert!(full.iter().any(|e| e.contains("No space left")), "{full:?}");
}

#[test]
fn a_planted_misreading_of_a_shortage_of_descriptors_is_found() {
    for taken_for in [Errno::ENOENT, Errno::EIO] {
        let operations = |one: &Operation| ["take", "discard of the latest"].contains(&one.name);
        let found = all_failures(&without_descriptors(taken_for), operations);
        assert!(!found.is_empty(), "EMFILE taken for {taken_for} is found by nothing");
    }
}

/// With the default policy a guest's write waits.
#[test]
fn an_overwrite_that_finds_no_space_once_needs_no_restart() {
    let writes = |one: &Operation| {
        one.name.contains("writes and a flush")
            || one.name.starts_with("zeroes")
            || one.name.starts_with("take")
    };
    none(&all_failures(&[IoFault::FullOnce], writes));
}

/// "Fast" promises that no zeros are written. If space cannot be given back, the request fails as "unsupported".
#[test]
fn fast_zeros_are_refused_where_they_would_be_written() {
    let world = world();
    let counted = world.clone();
    let result = world.run(|env| async move {
        script::create(&env).await.unwrap();
        let harness = open(&env).await.unwrap();
        script::prepare(&harness).await.unwrap();
        let (disk, _client) = harness.vm.attach(2, "test").await.unwrap();
        assert!(disk.can_punch());
        let zero = async |fast_only: bool, no_hole: bool| {
            let before = counted.count(OpKind::Write).submitted;
            let zeroed = disk.clone().write_zeroes(0..64 << 10, ZeroMode { no_hole, fast_only }).await;
            (zeroed.map_err(|e| e.kind), counted.count(OpKind::Write).submitted - before)
        };
        assert_eq!(zero(true, true).await, (Err(ErrorKind::Unsupported), 0));
        assert_eq!(zero(true, false).await, (Ok(()), 0));
        let keeps = Fault::nth(1, Action::Fail(Errno::EOPNOTSUPP)).and_all_later();
        counted.add_fault(keeps.of(OpKind::GiveBack));
        assert_eq!(zero(true, false).await, (Err(ErrorKind::Unsupported), 0));
        counted.clear_faults();
        // The first refusal is remembered for the file.
        let asked = counted.count(OpKind::GiveBack).submitted;
        assert_eq!(zero(true, false).await, (Err(ErrorKind::Unsupported), 0));
        assert_eq!(counted.count(OpKind::GiveBack).submitted, asked);
    });
    result.expect("no power cut is scheduled");
}
