//! Several machines and one device: pauses up to and beyond the bounds of the lease, machines that die, two that claim
//! together, power cuts. `CRASH_SEED=n` replays one run, `CRASH_RUNS=n` sets how many runs there are.

use crash::campaign::{Bound, assert_defects_are_found, on_all_cores, setting};
use crash::lease;
use engine::{Defect, Defects};
use std::collections::BTreeMap;
use std::sync::Mutex;

const RUNS_DEFAULT: u64 = 250;
/// Runs within which a planted defect must show.
const DEFECT_RUNS_MAX: u64 = 2_000;

/// Labels of what must happen at least once, or the campaign has not tested it.
const MUST_HAPPEN: [&str; 10] = [
    "went on after a pause",
    "claimed anew after a pause",
    "taken over while paused",
    "taken over from the dead",
    "lost it while opening",
    "a living owner was left alone",
    "two claimed together",
    "acknowledged late",
    "paused again while it claimed anew",
    "power cut",
];

const DEFECTS: [Defect; 5] = [
    Defect::HolderWithoutFence,
    Defect::HeartbeatCountedFromItsEnd,
    Defect::ClaimWithoutWait,
    Defect::ClaimWithoutReadback,
    Defect::LateClaim,
];

#[test]
fn one_machine_writes_and_nothing_flushed_is_lost() {
    if let Some(seed) = setting("CRASH_SEED") {
        println!("seed {seed}: {:?}", lease::run(seed, Defects::default()).unwrap_or_else(|e| panic!("{e}")));
        return;
    }
    let wanted = setting("CRASH_RUNS").unwrap_or(RUNS_DEFAULT);
    let seen = Mutex::new((BTreeMap::<&str, u64>::new(), Vec::<String>::new()));
    on_all_cores(|seed| {
        let result = lease::run(seed, Defects::default());
        let (marks, failures) = &mut *seen.lock().unwrap();
        match result {
            Ok(outcome) => outcome.marks.iter().for_each(|(label, n)| *marks.entry(label).or_insert(0) += n),
            Err(e) => failures.push(e),
        }
        seed < wanted && failures.len() < 5
    });
    let (marks, failures) = seen.into_inner().unwrap();
    println!("{wanted} runs; {marks:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for label in MUST_HAPPEN {
        assert!(marks.get(label).is_some_and(|&n| n > 0), "{label:?} never happened: {marks:?}");
    }
}

#[test]
fn planted_defects_are_found() {
    assert_defects_are_found(lease::run, &DEFECTS, Bound::Runs(DEFECT_RUNS_MAX));
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..5 {
        assert_eq!(lease::run(seed, Defects::default()), lease::run(seed, Defects::default()));
    }
}
