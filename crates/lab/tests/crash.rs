//! The crash campaign of every CI run. `CRASH_SEED=n` repeats one run, `CRASH_CUTS=n` asks for more.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Defect, Defects};
use lab::campaign::{on_all_cores, setting};
use lab::crash;

const CUTS_DEFAULT: u64 = 10_000;
/// Runs in which a planted defect must show.
const DEFECT_SEEDS_MAX: u64 = 3000;
/// Every so many seeds a run is repeated and its event hash compared.
const REPEAT_EVERY: u64 = 20;

/// What must have happened at least once, or the campaign has not tested it.
const MUST_HAPPEN: [&str; 18] = [
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
    "reset",
    "cut in a reset",
];

#[test]
fn power_cuts_break_no_promise() {
    if let Some(seed) = setting("CRASH_SEED") {
        match crash::run(seed, Defects::default()) {
            Ok(outcome) => println!("seed {seed}: {outcome:?}"),
            Err(e) => panic!("{e}"),
        }
        return;
    }
    let wanted = setting("CRASH_CUTS").unwrap_or(CUTS_DEFAULT);
    let cuts = AtomicU64::new(0);
    let seen = Mutex::new((BTreeMap::new(), Vec::new(), 0u64));
    on_all_cores(|seed| {
        let result = crash::run(seed, Defects::default());
        let repeated = (seed % REPEAT_EVERY == 0).then(|| crash::run(seed, Defects::default()));
        let mut seen = seen.lock().unwrap();
        seen.2 += 1;
        if let Some(repeated) = repeated
            && repeated != result
        {
            seen.1.push(format!("seed {seed}: two runs differ: {result:?} and {repeated:?}"));
        }
        match result {
            Ok(outcome) => {
                for (label, n) in outcome.marks {
                    *seen.0.entry(label).or_insert(0) += n;
                }
                cuts.fetch_add(outcome.cuts, Ordering::Relaxed);
            }
            Err(e) => seen.1.push(e),
        }
        seen.1.len() < 5 && cuts.load(Ordering::Relaxed) < wanted
    });
    let (marks, failures, runs) = seen.into_inner().unwrap();
    println!("{runs} runs, {} power cuts; {marks:?}", cuts.load(Ordering::Relaxed));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for label in MUST_HAPPEN {
        assert!(marks.get(label).is_some_and(|&n| n > 0), "{label:?} never happened: {marks:?}");
    }
}

#[test]
fn planted_defects_are_found() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let only = std::env::var("CRASH_DEFECT").unwrap_or_default();
    let defects = [
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
        Defect::PunchBeforeRelease,
        Defect::FoldByNameOnly,
        Defect::SwapBeforePublish,
        Defect::FoldIntoShared,
        Defect::SkipAcrossBranches,
        Defect::ForgetClones,
    ];
    let mut missed = Vec::new();
    for defect in defects.into_iter().filter(|d| format!("{d:?}").contains(&only)) {
        let found = Mutex::new(None::<(u64, String)>);
        on_all_cores(|seed| {
            if let Err(e) = crash::run(seed, Defects::only(defect)) {
                found.lock().unwrap().get_or_insert((seed, e));
            }
            found.lock().unwrap().is_none() && seed < DEFECT_SEEDS_MAX
        });
        match found.into_inner().unwrap() {
            Some((seed, e)) => println!("{defect:?}: run {seed}: {}", e.lines().next().unwrap_or_default()),
            None => missed.push(defect),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "defects that no run found: {missed:?}");
}
