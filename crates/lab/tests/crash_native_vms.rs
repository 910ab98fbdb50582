//! The verbs of native VMs under power cuts and failing I/O: a campaign of every CI run, and every event of each verb.
//! `CRASH_SEED=n` repeats one run of the campaign, `CRASH_CUTS=n` asks for more.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Defect, Defects};
use lab::campaign::{on_all_cores, setting};
use lab::native::vms::{self, DISTURBANCES, Disturbance, VERBS};

const CUTS_DEFAULT: u64 = 3000;
/// Every so many seeds a run is repeated and its event hash compared.
const REPEAT_EVERY: u64 = 20;
/// Power cuts within which a planted defect must show.
const DEFECT_CUTS_MAX: u64 = 3000;
const DEFECTS: [Defect; 5] = [
    Defect::EarlyFlushedLsn,
    Defect::WrongBirth,
    Defect::IgnoreSuccessor,
    Defect::ForgetVoids,
    Defect::SealWithoutDrain,
];
/// What a verb picks, drawn so many times.
const VARIANTS: u64 = 4;
/// More events than any verb has: a bound against a loop that never ends.
const EVENTS_MAX: u64 = 2000;

#[test]
fn power_cuts_in_any_verb_leave_a_vm_on_one_side_of_it() {
    if let Some(seed) = setting("CRASH_SEED") {
        match vms::run(seed, Defects::default()) {
            Ok(outcome) => println!("seed {seed}: {outcome:?}"),
            Err(e) => panic!("{e}"),
        }
        return;
    }
    let wanted = setting("CRASH_CUTS").unwrap_or(CUTS_DEFAULT);
    let cuts = AtomicU64::new(0);
    let seen = Mutex::new((BTreeMap::new(), Vec::new()));
    on_all_cores(|seed| {
        let result = vms::run(seed, Defects::default());
        let repeated = (seed % REPEAT_EVERY == 0).then(|| vms::run(seed, Defects::default()));
        let mut seen = seen.lock().unwrap();
        if repeated.as_ref().is_some_and(|repeated| *repeated != result) {
            seen.1.push(format!("seed {seed}: two runs differ: {result:?} and {repeated:?}"));
        }
        match result {
            Ok(outcome) => {
                for (label, n) in outcome.marks {
                    *seen.0.entry(label).or_insert(0u64) += n;
                }
                cuts.fetch_add(outcome.cuts, Ordering::Relaxed);
            }
            Err(e) => seen.1.push(e),
        }
        seen.1.len() < 5 && cuts.load(Ordering::Relaxed) < wanted
    });
    let (marks, failures) = seen.into_inner().unwrap();
    println!("{} power cuts; {marks:?}", cuts.load(Ordering::Relaxed));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for (_, _, label) in VERBS {
        assert!(marks.contains_key(label), "{label:?} never happened: {marks:?}");
    }
}

#[test]
fn planted_defects_are_found() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for defect in DEFECTS {
        let found = Mutex::new(None::<(u64, String)>);
        let cuts = AtomicU64::new(0);
        on_all_cores(|seed| {
            match vms::run(seed, Defects::only(defect)) {
                Ok(outcome) => drop(cuts.fetch_add(outcome.cuts, Ordering::Relaxed)),
                Err(e) => drop(found.lock().unwrap().get_or_insert((seed, e))),
            }
            found.lock().unwrap().is_none() && cuts.load(Ordering::Relaxed) < DEFECT_CUTS_MAX
        });
        match found.into_inner().unwrap() {
            Some((seed, e)) => {
                let cuts = cuts.load(Ordering::Relaxed);
                println!("{defect:?}: run {seed}, {cuts} cuts: {}", e.lines().next().unwrap_or_default());
            }
            None => missed.push(defect),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "defects that no run found: {missed:?}");
}

#[test]
fn every_event_of_every_verb_may_be_its_last() {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let failures = Mutex::new(Vec::new());
    let struck = Mutex::new(BTreeMap::<(Disturbance, &str), u64>::new());
    let jobs = VERBS.len() as u64 * VARIANTS;
    on_all_cores(|n| {
        let Some((verb, _, label)) = VERBS.get((n / VARIANTS) as usize).copied() else { return false };
        for disturbance in DISTURBANCES {
            let mut nth = 1;
            loop {
                match vms::run_disturbed(verb, n % VARIANTS, disturbance, nth) {
                    Ok(true) => nth += 1,
                    Ok(false) => break,
                    Err(e) => {
                        failures.lock().unwrap().push(e);
                        break;
                    }
                }
                assert!(nth < EVENTS_MAX, "{verb:?} never ends");
            }
            *struck.lock().unwrap().entry((disturbance, label)).or_default() += nth - 1;
        }
        n + 1 < jobs && failures.lock().unwrap().len() < 10
    });
    let _ = std::panic::take_hook();
    let (failures, struck) = (failures.into_inner().unwrap(), struck.into_inner().unwrap());
    println!("{struck:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(struck.values().all(|n| *n > 0), "a verb did nothing: {struck:?}");
}
