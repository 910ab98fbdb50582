//! Several machines and one device: pauses up to and beyond the bounds of the lease, machines that die, two that claim
//! together, power cuts. `CRASH_SEED=n` replays one run, `CRASH_RUNS=n` sets how many runs there are.

use crash::campaign::{Bound, assert_defects_are_found, assert_promises_hold, setting};
use crash::lease;
use engine::{Defect, Defects};

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

const DEFECTS: [Defect; 6] = [
    Defect::HolderWithoutFence,
    Defect::HeartbeatCountedFromItsEnd,
    Defect::ClaimWithoutWait,
    Defect::ClaimWithoutReadback,
    Defect::LateClaim,
    Defect::ReservationLeft,
];

#[test]
fn one_machine_writes_and_nothing_flushed_is_lost() {
    let wanted = Bound::Runs(setting("CRASH_RUNS").unwrap_or(RUNS_DEFAULT));
    assert_promises_hold(lease::run, wanted, &MUST_HAPPEN);
}

#[test]
fn planted_defects_are_found() {
    assert_defects_are_found(lease::run, &DEFECTS, Bound::Runs(DEFECT_RUNS_MAX), &[]);
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..5 {
        assert_eq!(lease::run(seed, Defects::default()), lease::run(seed, Defects::default()));
    }
}
