//! The native store, one operation at a time: all short sequences, every I/O of each operation failing, corrupted pages
//! of metadata, and trees of many states.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crash::campaign::{on_all_cores, setting};
use crash::native::corruption::{CORRUPTIONS, run_corruption};
use crash::native::run_tree;
use crash::native::script::{IoFault, OPERATIONS, Operation, run_failing, run_full_once, run_sequence};
use engine::{Defect, Defects};

/// More I/Os than any operation has: a bound against an endless loop.
const IO_MAX: u64 = 2000;
/// Random trees, each of up to 64 snapshots.
const TREES: u64 = 24;
/// Snapshots that all trees together must have had.
const SNAPSHOTS_MIN: u64 = 100 * TREES;

/// Calls `run` with every index below `count`, on all cores; fails with the first errors.
fn all(count: u64, run: impl Fn(u64) -> Result<(), String> + Sync) {
    std::panic::set_hook(Box::new(|_| {}));
    let failures = Mutex::new(Vec::new());
    on_all_cores(|n| {
        if n < count
            && let Err(e) = run(n)
        {
            failures.lock().unwrap().push(e);
        }
        n < count && failures.lock().unwrap().len() < 10
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the n-th of all sequences of one to three operations.
fn sequence(mut n: u64) -> Vec<Operation> {
    let kinds = OPERATIONS.len() as u64;
    let mut length = 1;
    while n >= kinds.pow(length) {
        n -= kinds.pow(length);
        length += 1;
    }
    (0..length).map(|place| OPERATIONS[(n / kinds.pow(place) % kinds) as usize]).collect()
}

#[test]
fn every_sequence_of_three_operations_shows_the_expected_content() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let kinds = OPERATIONS.len() as u64;
    all(kinds + kinds.pow(2) + kinds.pow(3), |n| run_sequence(&sequence(n)));
}

#[test]
fn every_failing_io_of_every_operation_loses_nothing() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let ios = AtomicU64::new(0);
    let pairs = (OPERATIONS.len() * OPERATIONS.len()) as u64;
    all(pairs, |n| {
        let [before, operation] = [n / OPERATIONS.len() as u64, n % OPERATIONS.len() as u64];
        let (before, operation) = (OPERATIONS[before as usize], OPERATIONS[operation as usize]);
        if before.ends_boot() {
            return Ok(());
        }
        for trouble in [IoFault::Once, IoFault::FromThenOn] {
            let mut nth = 1;
            while run_failing(before, operation, nth, trouble)? {
                nth += 1;
                assert!(nth < IO_MAX, "{before:?}, {operation:?} never ends");
            }
            ios.fetch_add(nth - 1, Ordering::Relaxed);
        }
        Ok(())
    });
    println!("{} I/Os failed", ios.load(Ordering::Relaxed));
}

#[test]
fn a_write_that_finds_no_space_once_needs_no_restart() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let writes = AtomicU64::new(0);
    all(OPERATIONS.len() as u64, |n| {
        let operation = OPERATIONS[n as usize];
        if operation.ends_boot() {
            return Ok(());
        }
        for before in [Operation::Overwrite, Operation::Take] {
            let mut nth = 1;
            while run_full_once(Defects::default(), before, operation, nth)? {
                nth += 1;
                assert!(nth < IO_MAX, "{operation:?} never ends");
            }
            writes.fetch_add(nth - 1, Ordering::Relaxed);
        }
        Ok(())
    });
    let writes = writes.load(Ordering::Relaxed);
    println!("{writes} writes found no space");
    assert!(writes > 40, "{writes} writes");
}

#[test]
fn a_planted_doubt_about_a_full_device_is_found() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let defects = Defects::only(Defect::DoubtFullDevice);
    let found = (1..10)
        .find_map(|nth| run_full_once(defects, Operation::Overwrite, Operation::Checkpoint, nth).err());
    println!("{}", found.expect("a checkpoint has writes in place, and one that fails ends the store"));
}

#[test]
fn corrupted_metadata_is_an_error_and_never_data() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    all(CORRUPTIONS.len() as u64, |n| {
        let (pages, noticed) = run_corruption(CORRUPTIONS[n as usize])?;
        println!("{:?}: {pages} pages, {noticed} noticed", CORRUPTIONS[n as usize]);
        if noticed == 0 { Err(format!("{:?}: nothing was noticed", CORRUPTIONS[n as usize])) } else { Ok(()) }
    });
}

#[test]
fn trees_of_many_states_show_the_expected_content() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let taken = Mutex::new(0);
    all(TREES, |seed| {
        let outcome = run_tree(seed)?;
        *taken.lock().unwrap() += outcome.marks.get("taken").copied().unwrap_or(0);
        Ok(())
    });
    let taken = taken.into_inner().unwrap();
    assert!(taken >= SNAPSHOTS_MIN, "{taken} snapshots in {TREES} trees");
}
