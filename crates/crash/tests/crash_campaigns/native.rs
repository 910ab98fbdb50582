//! The crash campaign over the native store of every CI run. `CRASH_SEED=n` replays one run, `CRASH_CUTS=n` sets how
//! many power cuts there are.

use crash::campaign::{Bound, assert_defects_are_found, assert_promises_hold, cuts_wanted};
use crash::native;
use engine::Defect;

const CUTS_DEFAULT: u64 = 10_000;
/// Cuts of the campaign beside defragmentations.
const DEFRAGMENT_CUTS_DEFAULT: u64 = 3000;
/// Power cuts within which a planted defect must show.
const DEFECT_CUTS_MAX: u64 = 10_000;

/// Labels of what must happen at least once, or the campaign has not tested it.
const MUST_HAPPEN: [&str; 41] = [
    "cut",
    "cut in recovery",
    "cut in a take",
    "cut in a revert",
    "cut in a branch",
    "cut in a removal",
    "cut in a resize",
    "cut in a checkpoint",
    "cut while space is given back",
    "an interrupted take is there",
    "in place",
    "redirected",
    "redirected in part",
    "a block got further sectors",
    "sectors replayed",
    "datastore full",
    "a write found no space",
    "a replay across the ring's end",
    "redirects replayed",
    "discards replayed",
    "takes replayed",
    "branches replayed",
    "drops replayed",
    "voids replayed",
    "removed a machine",
    "made a machine over a source",
    "a source has landed",
    "a landing was cancelled",
    "cut in a landing",
    "sources replayed",
    "disks over sources replayed",
    "a source was removed",
    "a flush failed",
    "only the process ended",
    "sectors were unreadable",
    "a guest's sector was unreadable",
    "a page of the journal was unreadable",
    "a superblock was unreadable",
    "the newest superblock was unreadable",
    "an opening was refused",
    "opened all the same",
];

/// Each must show within `DEFECT_CUTS_MAX` cuts.
const DEFECTS: [Defect; 16] = [
    Defect::EarlyFlushedLsn,
    Defect::EarlyReuse,
    Defect::WrongBirth,
    Defect::IgnoreSuccessor,
    Defect::ForgetBackings,
    Defect::CountMissingSectors,
    Defect::ExtendShared,
    Defect::CheckpointBeforeJournal,
    Defect::SuperblockBeforePages,
    Defect::ForgetAborts,
    Defect::SealWithoutDrain,
    Defect::ReuseBeforeNamed,
    Defect::LandedBeforeFlush,
    Defect::DetachBeforeFlush,
    Defect::FlushRetried,
    Defect::ForgetMemory,
];

#[test]
fn power_cuts_break_no_promise() {
    assert_promises_hold(native::run, cuts_wanted(CUTS_DEFAULT, 1), &MUST_HAPPEN);
}

#[test]
fn power_cuts_break_no_promise_to_guests_of_another_core() {
    assert_promises_hold(
        native::run_on_two_cores,
        cuts_wanted(CUTS_DEFAULT / 4, 1),
        &["cut", "cut in a take"],
    );
}

/// Each must show where guests and store have a core each.
const CORE_DEFECTS: [Defect; 4] =
    [Defect::KeepGrants, Defect::ForgetRemoteIo, Defect::WriteSealedInPlace, Defect::EarlyFlushedLsn];

#[test]
fn planted_defects_of_grants_are_found() {
    assert_defects_are_found(native::run_on_two_cores, &CORE_DEFECTS, Bound::Cuts(DEFECT_CUTS_MAX), &[]);
}

#[test]
fn power_cuts_beside_a_defragmentation_break_no_promise() {
    let must_happen = ["cut", "cut in a defragmentation", "defragmented"];
    assert_promises_hold(native::run_defragmenting, cuts_wanted(DEFRAGMENT_CUTS_DEFAULT, 1), &must_happen);
}

#[test]
fn a_move_over_a_write_that_came_meanwhile_is_found() {
    let defects = [Defect::MoveUnwatched];
    assert_defects_are_found(native::run_defragmenting, &defects, Bound::Cuts(DEFECT_CUTS_MAX), &[]);
}

#[test]
fn planted_defects_are_found() {
    // Few cuts show it: the search begins near one.
    let first = [(Defect::CountMissingSectors, 1937), (Defect::LandedBeforeFlush, 3327)];
    assert_defects_are_found(native::run, &DEFECTS, Bound::Cuts(DEFECT_CUTS_MAX), &first);
}
