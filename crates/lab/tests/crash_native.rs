//! The crash campaign over the native store of every CI run. `CRASH_SEED=n` repeats one run, `CRASH_CUTS=n` asks for more.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Defect, Defects};
use lab::campaign::{on_all_cores, setting};
use lab::native;

const CUTS_DEFAULT: u64 = 10_000;
/// Every so many seeds a run is repeated and its event hash compared.
const REPEAT_EVERY: u64 = 20;

/// Power cuts within which a planted defect must show.
const DEFECT_CUTS_MAX: u64 = 10_000;

/// What must have happened at least once, or the campaign has not tested it.
const MUST_HAPPEN: [&str; 22] = [
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
];

/// Each must show within `DEFECT_CUTS_MAX` cuts.
const DEFECTS: [Defect; 8] = [
    Defect::EarlyFlushedLsn,
    Defect::EarlyReuse,
    Defect::WrongBirth,
    Defect::IgnoreSuccessor,
    Defect::CheckpointBeforeJournal,
    Defect::SuperblockBeforePages,
    Defect::ForgetVoids,
    Defect::SealWithoutDrain,
];

#[test]
fn power_cuts_break_no_promise() {
    if let Some(seed) = setting("CRASH_SEED") {
        match native::run(seed, Defects::default()) {
            Ok(outcome) => println!("seed {seed}: {outcome:?}"),
            Err(e) => panic!("{e}"),
        }
        return;
    }
    let wanted = setting("CRASH_CUTS").unwrap_or(CUTS_DEFAULT);
    let cuts = AtomicU64::new(0);
    let seen = Mutex::new((BTreeMap::new(), Vec::new(), 0u64));
    on_all_cores(|seed| {
        let result = native::run(seed, Defects::default());
        let repeated = (seed % REPEAT_EVERY == 0).then(|| native::run(seed, Defects::default()));
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
    let mut missed = Vec::new();
    for defect in DEFECTS.into_iter().filter(|d| format!("{d:?}").contains(&only)) {
        let found = Mutex::new(None::<(u64, String)>);
        let cuts = AtomicU64::new(0);
        on_all_cores(|seed| {
            match native::run(seed, Defects::only(defect)) {
                Ok(outcome) => drop(cuts.fetch_add(outcome.cuts, Ordering::Relaxed)),
                Err(e) => drop(found.lock().unwrap().get_or_insert((seed, e))),
            }
            found.lock().unwrap().is_none() && cuts.load(Ordering::Relaxed) < DEFECT_CUTS_MAX
        });
        let cuts = cuts.load(Ordering::Relaxed);
        match found.into_inner().unwrap() {
            Some((seed, e)) => {
                println!("{defect:?}: run {seed}, {cuts} cuts: {}", e.lines().next().unwrap_or_default());
            }
            None => missed.push(defect),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "defects that no run found: {missed:?}");
}
