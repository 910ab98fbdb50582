//! The crash campaign of every CI run. `CRASH_SEED=n` repeats one run, `CRASH_CUTS=n` asks for more.

use engine::Defect;
use lab::campaign::{Bound, assert_defects_are_found_from, assert_promises_hold};
use lab::crash;

const CUTS_DEFAULT: u64 = 3_000;
/// Runs in which a planted defect must show.
const DEFECT_SEEDS_MAX: u64 = 3000;

/// What must have happened at least once, or the campaign has not tested it.
const MUST_HAPPEN: [&str; 26] = [
    "cut",
    "cut in recovery",
    "cut in a take",
    "cut in a commit",
    "cut in a take during a commit",
    "datastore full",
    "cut in a revert",
    "cut in a discard",
    "reverted",
    "discarded the running branch",
    "discarded a side branch",
    "folded on a side branch",
    "only a name went",
    "cloned",
    "a clone worked",
    "cut in a clone",
    "committed in a chain with grains larger than a sector below its top",
    "reset",
    "cut in a reset",
    "a flush failed",
    "only the process ended",
    "restored what ran",
    "restored a side branch",
    "cut in a restore",
    "a commit evicted what the bin kept",
    "emptied the bin",
];

/// Each must show within `DEFECT_SEEDS_MAX` runs.
const DEFECTS: [Defect; 26] = [
    Defect::TablesBeforeData,
    Defect::StagesAfterFlush,
    Defect::NoTableFlush,
    Defect::FlushTopOnly,
    Defect::SealWithoutDrain,
    Defect::FoldWithoutDrain,
    Defect::ReleaseBeforeParentFlush,
    Defect::ReleaseBeforeShadowFlush,
    Defect::MirrorParentOnly,
    Defect::MirrorDeltaOnly,
    Defect::CopyWithoutLock,
    Defect::PlaceWithoutGrains,
    Defect::ShowWholeGrain,
    Defect::PunchBeforeRelease,
    Defect::FoldByNameOnly,
    Defect::ReadUnsteady,
    Defect::SwapBeforePublish,
    Defect::FoldIntoShared,
    Defect::SkipAcrossBranches,
    Defect::ForgetClones,
    Defect::RaiseApart,
    Defect::BinUnflushed,
    Defect::FoldUnderBin,
    Defect::FlushRetried,
    Defect::ForgetMemory,
    Defect::OpenWithoutFlush,
];

/// Seeds at which the rarest of them showed.
const FIRST_SEEDS: [(Defect, u64); 2] =
    [(Defect::ReleaseBeforeShadowFlush, 1560), (Defect::SkipAcrossBranches, 520)];

#[test]
fn power_cuts_break_no_promise() {
    assert_promises_hold(crash::run, CUTS_DEFAULT, &MUST_HAPPEN);
}

#[test]
fn planted_defects_are_found() {
    assert_defects_are_found_from(crash::run, &DEFECTS, Bound::Runs(DEFECT_SEEDS_MAX), &FIRST_SEEDS);
}
