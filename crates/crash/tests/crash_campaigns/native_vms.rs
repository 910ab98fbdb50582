//! The verbs of native VMs under power cuts and failing I/O: a campaign of every CI run, and every event of each verb.
//! `CRASH_SEED=n` replays one run of the campaign, `CRASH_CUTS=n` sets how many power cuts there are.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crash::campaign::{
    Bound, assert_defects_are_found, assert_promises_hold, cuts_wanted, on_all_cores, setting,
};
use crash::native::vms::{self, DISTURBANCES, Disturbance, VERBS};
use engine::Defect;

const CUTS_DEFAULT: u64 = 3000;
/// Power cuts within which a planted defect must show.
const DEFECT_CUTS_MAX: u64 = 10_000;
const DEFECTS: [Defect; 6] = [
    Defect::EarlyFlushedLsn,
    Defect::WrongBirth,
    Defect::IgnoreSuccessor,
    Defect::ForgetAborts,
    Defect::SealWithoutDrain,
    Defect::RaiseApart,
];
/// Number of draws of what a verb picks.
const VARIANTS: u64 = 4;
/// More events than any verb has: a bound against an endless loop.
const EVENTS_MAX: u64 = 2000;

#[test]
fn power_cuts_in_any_verb_leave_a_vm_on_one_side_of_it() {
    assert_promises_hold(vms::run, cuts_wanted(CUTS_DEFAULT, 1), &VERBS.map(|(_, _, label)| label));
}

#[test]
fn power_cuts_in_any_verb_leave_a_vm_of_another_core_on_one_side_of_it() {
    let cuts = cuts_wanted(CUTS_DEFAULT / 2, 1);
    assert_promises_hold(vms::run_on_two_cores, cuts, &VERBS.map(|(_, _, label)| label));
}

#[test]
fn planted_defects_are_found() {
    assert_defects_are_found(vms::run, &DEFECTS, Bound::Cuts(DEFECT_CUTS_MAX), &[]);
}

#[test]
fn a_cut_or_a_failing_io_at_any_event_of_any_verb_loses_nothing() {
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
