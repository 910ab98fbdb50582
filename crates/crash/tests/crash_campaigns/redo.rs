//! The crash campaign of every CI run. `CRASH_SEED=n` replays one run, `CRASH_CUTS=n` sets how many power cuts there
//! are.

use crash::campaign::{Bound, assert_defects_are_found, assert_promises_hold, cuts_wanted};
use crash::redo;
use engine::Defect;

const CUTS_DEFAULT: u64 = 3_000;
/// Power cuts of runs about the tree, where a cut costs twice as much.
const TREE_CUTS_DEFAULT: u64 = 1_000;
const TREE_SHARE: u64 = 10;
/// Runs in which a planted defect must show.
const DEFECT_SEEDS_MAX: u64 = 3000;

/// Labels of what must happen at least once, or the campaign has not tested it.
const MUST_HAPPEN: [&str; 28] = [
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
    "took SEsparse deltas",
    "committed in a chain with an SEsparse delta on another",
];

/// The same for runs that are about the tree.
const MUST_HAPPEN_IN_TREES: [&str; 13] = [
    "cut in a commit",
    "cut in a revert",
    "cut in a discard",
    "cut in a clone",
    "cut in a restore",
    "discarded the running branch",
    "discarded a side branch",
    "folded on a side branch",
    "a clone worked",
    "restored what ran",
    "restored a side branch",
    "a commit evicted what the bin kept",
    "emptied the bin",
];

/// Each must show within `DEFECT_SEEDS_MAX` runs.
const DEFECTS: [Defect; 21] = [
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
    Defect::SkipAcrossBranches,
    Defect::FlushRetried,
    Defect::ForgetMemory,
    Defect::OpenWithoutFlush,
];

/// The same in runs that are about the tree.
const DEFECTS_OF_TREES: [Defect; 5] = [
    Defect::FoldIntoShared,
    Defect::ForgetClones,
    Defect::RaiseApart,
    Defect::BinUnflushed,
    Defect::FoldUnderBin,
];

/// Seeds at which the rarest defects showed.
const FIRST_SEEDS: [(Defect, u64); 2] =
    [(Defect::ReleaseBeforeShadowFlush, 2794), (Defect::SkipAcrossBranches, 520)];

#[test]
fn power_cuts_break_no_promise() {
    assert_promises_hold(redo::run, cuts_wanted(CUTS_DEFAULT, 1), &MUST_HAPPEN);
}

#[test]
fn power_cuts_break_no_promise_of_branches_clones_and_the_bin() {
    let wanted = cuts_wanted(TREE_CUTS_DEFAULT, TREE_SHARE);
    assert_promises_hold(redo::run_of_tree, wanted, &MUST_HAPPEN_IN_TREES);
}

#[test]
fn planted_defects_are_found() {
    assert_defects_are_found(redo::run, &DEFECTS, Bound::Runs(DEFECT_SEEDS_MAX), &FIRST_SEEDS);
}

#[test]
fn planted_defects_of_branches_and_clones_are_found() {
    assert_defects_are_found(redo::run_of_tree, &DEFECTS_OF_TREES, Bound::Runs(DEFECT_SEEDS_MAX), &[]);
}
