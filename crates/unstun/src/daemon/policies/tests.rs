//! Policies in virtual time: takes at their times, removals, downtime, clocks that jump, and power cuts.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use api::{
    Policy, PolicyAction, PolicyApply, PolicyBackup, PolicyProblem, Quiesce, Retention, Revert, SnapshotTake,
    Store, VmLabels,
};
use blk::manifest::DeltaFormat;
use crash::campaign::setting;
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use sim::SimWorld;

use super::backup_process::{What, Work};
use crate::daemon::crash_tests::{Trouble, all_cuts, end, strike, sweep};
use crate::daemon::defect::Defect;
use crate::daemon::simulated_tests::{Outcome, boot, create, served, take, text, world, write};
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::SnapshotLabel;

const VM: &str = "web";
const MINUTE_US: u64 = 60_000_000;
/// Snapshot that a person has taken.
const BY_HAND: &str = "s";

fn policy(schedule: &str, keep: Retention) -> Policy {
    let text = format!(r#"{{"name": "p", "schedule": ["{schedule}"], "keep": {{"last": 1}}, "vms": ["*"]}}"#);
    Policy { keep, ..serde_json::from_str(&text).expect("a policy") }
}

fn last(count: u32) -> Retention {
    Retention { last: count, ..Retention::default() }
}

async fn add(daemon: &Rc<Daemon>, policy: Policy) -> Outcome<()> {
    daemon.policy_create(policy, "a test".into()).await.map(drop).map_err(text("policy create"))
}

/// Does what the daemon's tasks do when their time has come.
async fn run_once(daemon: &Rc<Daemon>) {
    daemon.run_due_policies().await;
    for store in [Store::Native, Store::Redo] {
        daemon.remove_expired(store).await;
    }
}

/// Returns the snapshots of the VM, and the scheduled times of those of the policy.
async fn snapshots(daemon: &Rc<Daemon>) -> Outcome<(Vec<String>, Vec<Timestamp>)> {
    let entry = daemon.entry(VM).map_err(|e| e.to_string())?;
    let state = entry.running.state().await;
    let labels = entry.labels.get();
    let of_policy = |id| labels.of_snapshot(id).and_then(|label| Some(label.policy.as_ref()?.scheduled));
    let scheduled = state.snapshots.iter().filter_map(|s| of_policy(s.id)).collect();
    Ok((state.snapshots.iter().map(|s| s.name.clone()).collect(), scheduled))
}

fn in_world(work: impl AsyncFnOnce(Rc<Daemon>, Store) -> Outcome<()> + Copy + 'static) {
    for store in [Store::Native, Store::Redo] {
        let done = served(&world(3), None, move |daemon| async move {
            create(&daemon, VM, store, &[None]).await?;
            work(daemon, store).await
        });
        done.expect("nothing is cut").unwrap_or_else(|e| panic!("{store:?}: {e}"));
    }
}

#[test]
fn a_policy_takes_at_its_times_and_removes_its_own_alone() {
    in_world(async |daemon, _| {
        take(&daemon, VM).await?;
        add(&daemon, policy("*:* UTC", last(2))).await?;
        for _ in 0..5 {
            daemon.env.sleep_us(MINUTE_US).await;
            run_once(&daemon).await;
            run_once(&daemon).await;
        }
        let (names, scheduled) = snapshots(&daemon).await?;
        assert_eq!((names.len(), names[0].as_str()), (3, BY_HAND), "{names:?}");
        assert_eq!(scheduled[1].duration_since(scheduled[0]), SignedDuration::from_mins(1));
        let shown = daemon.policy_list().await.map_err(text("policy list"))?.remove(0);
        let run = shown.last.ok_or("no run")?;
        assert_eq!((run.taken, run.failed, shown.waiting, shown.problems.len()), (1, 0, 0, 0));
        assert!(shown.next > run.ended, "{:?}", shown.next);
        Ok(())
    });
}

#[test]
fn downtime_is_caught_up_once_or_not_at_all() {
    in_world(async |daemon, _| {
        add(&daemon, policy("hourly UTC", last(9))).await?;
        add(&daemon, Policy { name: "q".parse()?, catch_up: false, ..policy("*:30 UTC", last(9)) }).await?;
        // As if the daemon had not been running for a day.
        daemon.env.sleep_us(24 * 60 * MINUTE_US + 10 * MINUTE_US).await;
        run_once(&daemon).await;
        run_once(&daemon).await;
        let (names, _) = snapshots(&daemon).await?;
        assert!(names.len() <= 1 && names.iter().all(|name| name.starts_with("p-")), "{names:?}");
        daemon.env.sleep_us(60 * MINUTE_US).await;
        run_once(&daemon).await;
        let (names, _) = snapshots(&daemon).await?;
        assert_eq!(names.iter().filter(|name| name.starts_with("p-")).count(), 2, "{names:?}");
        Ok(())
    });
}

#[test]
fn a_clock_that_jumps_by_a_day_and_back_stops_no_policy() {
    in_world(async |daemon, _| {
        add(&daemon, policy("*:* UTC", last(9))).await?;
        let name = "p".parse()?;
        let day = SignedDuration::from_hours(24);
        daemon.policies.with_runs(&name, |runs| runs.handled = daemon.now() + day);
        for _ in 0..2 {
            daemon.env.sleep_us(MINUTE_US).await;
            run_once(&daemon).await;
        }
        let (names, _) = snapshots(&daemon).await?;
        assert!(!names.is_empty() && names.len() <= 2, "{names:?}");
        Ok(())
    });
}

#[test]
fn a_clock_that_is_set_ahead_removes_nothing_that_only_an_age_keeps() {
    for store in [Store::Native, Store::Redo] {
        let world = world(3);
        let clock = world.clone();
        let done = served(&world, None, move |daemon| async move {
            create(&daemon, VM, store, &[None]).await?;
            add(&daemon, policy("*:* UTC", Retention { min_age_s: 7 * 86_400, ..last(1) })).await?;
            for _ in 0..3 {
                daemon.env.sleep_us(MINUTE_US).await;
                run_once(&daemon).await;
            }
            let (before, _) = snapshots(&daemon).await?;
            assert_eq!(before.len(), 3);
            clock.set_clock_ahead(30 * 86_400 * 1_000_000);
            daemon.env.sleep_us(MINUTE_US).await;
            run_once(&daemon).await;
            let (after, _) = snapshots(&daemon).await?;
            assert!(before.iter().all(|name| after.contains(name)), "{before:?} {after:?}");
            Ok(())
        });
        done.expect("nothing is cut").unwrap_or_else(|e| panic!("{store:?}: {e}"));
    }
}

#[test]
fn policies_that_are_due_at_once_take_side_by_side() {
    in_world(async |daemon, _| {
        for name in ["p", "q", "r"] {
            let policy = Policy { name: name.parse()?, catch_up: false, ..policy("*:* UTC", last(9)) };
            add(&daemon, policy).await?;
        }
        daemon.env.sleep_us(MINUTE_US).await;
        run_once(&daemon).await;
        let (names, _) = snapshots(&daemon).await?;
        assert_eq!(names.len(), 3, "{names:?}");
        let listed = daemon.policy_list().await.map_err(text("policy list"))?;
        assert!(listed.iter().all(|policy| policy.problems.is_empty()), "{listed:?}");
        Ok(())
    });
}

#[test]
fn policies_that_wait_make_no_other_late() {
    in_world(async |daemon, _| {
        for name in ["a", "b", "c", "d", "e", "f", "p"] {
            let quiesce = if name == "p" { Quiesce::No } else { Quiesce::Try };
            let hourly = policy("hourly UTC", last(9));
            add(&daemon, Policy { name: name.parse()?, catch_up: false, quiesce, ..hourly }).await?;
        }
        let now_us = daemon.env.unix_us();
        let hour_us = 60 * MINUTE_US;
        daemon.env.sleep_us(hour_us - now_us.unsigned_abs() % hour_us).await;
        let entry = daemon.entry(VM).map_err(|e| e.to_string())?;
        // The takes of the first six wait, and each of them is waited for a minute.
        let freezes = entry.freezing.lock().await;
        run_once(&daemon).await;
        let (names, _) = snapshots(&daemon).await?;
        assert!(names.len() == 1 && names[0].starts_with("p-"), "{names:?}");
        drop(freezes);
        daemon.env.sleep_us(MINUTE_US).await;
        assert_eq!(snapshots(&daemon).await?.0.len(), 7);
        Ok(())
    });
}

#[test]
fn a_take_that_waits_for_its_guest_keeps_its_label_over_a_revert() {
    in_world(async |daemon, _| {
        take(&daemon, VM).await?;
        add(&daemon, Policy { quiesce: Quiesce::Try, ..policy("*:* UTC", last(9)) }).await?;
        let entry = daemon.entry(VM).map_err(|e| e.to_string())?;
        let freezes = entry.freezing.lock().await;
        daemon.env.sleep_us(MINUTE_US).await;
        run_once(&daemon).await;
        let (snapshot, take_first) = (Some(BY_HAND.parse()?), Some("before".parse()?));
        let revert = Revert { snapshot, take_first, disconnect: false, purge: false, keep: false };
        let reverted = daemon.snapshot_revert(&VM.parse()?, revert, SnapshotLabel::of_caller("test")).await;
        reverted.map_err(text("revert"))?;
        drop(freezes);
        daemon.env.sleep_us(MINUTE_US).await;
        assert_eq!(snapshots(&daemon).await?.1.len(), 1, "the policy knows its snapshot");
        Ok(())
    });
}

#[test]
fn tags_choose_vms_and_a_window_holds_commits_back() {
    in_world(async |daemon, store| {
        let mut tagged = policy("*:* UTC", last(1));
        (tagged.vms, tagged.tags) = (Vec::new(), vec!["prod".parse()?]);
        // A window that is closed now.
        let now = daemon.now();
        let begin = now.checked_add(SignedDuration::from_hours(6)).map_err(|e| e.to_string())?;
        let window = format!("{}-{} UTC", begin.strftime("%H:%M"), begin.strftime("%H:59"));
        tagged.commit_window = vec![window.parse()?];
        add(&daemon, tagged).await?;
        let minutes = async |count: u64| {
            for _ in 0..count {
                daemon.env.sleep_us(MINUTE_US).await;
                run_once(&daemon).await;
            }
        };
        minutes(2).await;
        assert!(snapshots(&daemon).await?.0.is_empty(), "the VM has no tag");
        let labels = VmLabels { tags: vec!["prod".parse()?], note: "a note".into() };
        let shown = daemon.vm_set_labels(&VM.parse()?, labels).await.map_err(text("vm set"))?;
        assert_eq!((shown.tags.len(), shown.note.as_str()), (1, "a note"));
        minutes(3).await;
        let expected = if store == Store::Redo { 3 } else { 1 };
        assert_eq!(snapshots(&daemon).await?.0.len(), expected);
        let preview = daemon.policy_list().await.map_err(text("policy list"))?.remove(0);
        assert_eq!(preview.waiting, expected as u64 - 1);
        daemon.env.sleep_us(6 * 60 * MINUTE_US).await;
        run_once(&daemon).await;
        assert_eq!(snapshots(&daemon).await?.0.len(), 1);
        // What could not be done is news for as long as the policy applies to the VM.
        let problem = PolicyProblem {
            vm: VM.parse()?,
            action: PolicyAction::Take,
            snapshot: None,
            cause: "full".into(),
            time: daemon.now(),
        };
        let name = "p".parse()?;
        daemon.policies.with_runs(&name, |runs| runs.not_taken.insert(problem.vm.clone(), problem));
        let problems = async || daemon.policy_show(&name).await.map(|shown| shown.problems.len());
        assert_eq!(problems().await.map_err(text("policy show"))?, 1);
        daemon.vm_set_labels(&VM.parse()?, VmLabels::default()).await.map_err(text("vm set"))?;
        assert_eq!(problems().await.map_err(text("policy show"))?, 0);
        Ok(())
    });
}

#[test]
fn a_policy_is_applied_at_once_and_says_what_it_could_not_do() {
    in_world(async |daemon, _| {
        add(&daemon, policy("yearly UTC", last(1))).await?;
        let name = "p".parse()?;
        let apply = async || daemon.policy_apply(&name, PolicyApply::default()).await.map_err(text("apply"));
        let applied = apply().await?;
        assert_eq!((applied.taken.len(), applied.problems.len()), (1, 0));
        // The same second has its snapshot.
        let applied = apply().await?;
        assert_eq!((applied.taken.len(), applied.problems.len()), (0, 0));
        let wrong = PolicyApply { vms: vec!["db".parse()?] };
        let refused = daemon.policy_apply(&name, wrong).await.expect_err("there is no such VM");
        assert!(refused.message.contains("it applies to: web"), "{refused}");
        // A name that is taken, by a person for example.
        let entry = daemon.entry(VM).map_err(|e| e.to_string())?;
        daemon.env.sleep_us(2_000_000).await;
        let at = daemon.now() + SignedDuration::from_secs(1);
        let taken =
            policy("yearly UTC", last(1)).snapshot_name(VM, at.round(jiff::Unit::Second).expect("a time"))?;
        let by_hand = engine::tree::new_snapshot(&daemon.env, taken.as_str(), "");
        entry.running.take(by_hand, DeltaFormat::Fitting).await.map_err(|e| e.to_string())?;
        daemon.env.sleep_us(1_000_000).await;
        let applied = apply().await?;
        assert!(applied.problems.iter().all(|problem| problem.cause.contains("exists")), "{applied:?}");
        Ok(())
    });
}

thread_local! {
    /// Number of the last backup that was made, and whether the repository is away.
    static BACKUPS: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

fn make_backup(work: &Work) -> api::error::Result<u32> {
    match (&work.what, BACKUPS.get()) {
        (_, (_, true)) => Err(api::error::Error::failed("the repository is away")),
        (What::Prune { .. }, _) => Ok(0),
        (What::Make { .. }, (number, false)) => {
            BACKUPS.set((number + 1, false));
            Ok(number + 1)
        }
    }
}

#[test]
fn the_last_snapshot_is_backed_up_and_the_one_before_stays_until_then() {
    in_world(async |daemon, store| {
        BACKUPS.set((0, false));
        daemon.policies.backup_maker.set(Some(make_backup));
        let backup = Some(PolicyBackup { repository: "offsite".parse()?, keep: last(1) });
        add(&daemon, Policy { backup, ..policy("*:* UTC", last(1)) }).await?;
        let minute = async || {
            daemon.env.sleep_us(MINUTE_US).await;
            run_once(&daemon).await;
        };
        let back_up = async || {
            daemon.start_backups().await;
            daemon.env.sleep_us(1_000_000).await;
        };
        let shown = async || daemon.policy_show(&"p".parse()?).await.map_err(text("policy show"));
        minute().await;
        back_up().await;
        back_up().await;
        let backups = shown().await?.backups.ok_or("no figures")?;
        assert_eq!((BACKUPS.get().0, backups.done, backups.waiting), (1, 1, 0), "each is made once");
        BACKUPS.set((1, true));
        minute().await;
        back_up().await;
        let kept = if store == Store::Native { 2 } else { 1 };
        assert_eq!(snapshots(&daemon).await?.0.len(), kept, "the next backup compares with the first one");
        let problems = shown().await?.problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].sentence().ends_with("was not backed up: the repository is away"),
            "{problems:?}"
        );
        BACKUPS.set((1, false));
        back_up().await;
        assert_eq!(BACKUPS.get().0, 1, "it is not tried again at once");
        daemon.env.sleep_us(16 * MINUTE_US).await;
        back_up().await;
        let now = shown().await?;
        assert_eq!((BACKUPS.get().0, now.problems.len()), (2, 0));
        assert_eq!(now.backups.ok_or("no figures")?.done, 1);
        daemon.remove_expired(store).await;
        assert_eq!(snapshots(&daemon).await?.0.len(), 1);
        Ok(())
    });
}

#[test]
fn takes_at_the_same_time_keep_the_label_of_each() {
    in_world(async |daemon, _| {
        take(&daemon, VM).await?;
        let takes = (0..4).map(|n| {
            let daemon = daemon.clone();
            async move {
                let name = format!("s{n}").parse()?;
                let request = SnapshotTake::named(name);
                let label = SnapshotLabel::of_caller(&format!("token t{n}"));
                let taken = daemon.snapshot_take(&VM.parse()?, request, label).await.map_err(text("take"))?;
                Ok::<_, String>((n, taken.snapshot.name))
            }
        });
        for taken in join_all(takes).await {
            let (n, name) = taken?;
            let entry = daemon.entry(VM).map_err(|e| e.to_string())?;
            let state = entry.running.state().await;
            let id = state.snapshots.iter().find(|s| s.name == name).map(|s| s.id).ok_or("no snapshot")?;
            let by = entry.labels.get().of_snapshot(id).map(|label| label.by.clone());
            assert_eq!(by, Some(format!("token t{n}")));
        }
        Ok(())
    });
}

#[test]
fn a_take_that_waits_holds_up_no_other_policy_and_is_not_begun_twice() {
    in_world(async |daemon, _| {
        add(&daemon, policy("*:* UTC", last(9))).await?;
        daemon.env.sleep_us(MINUTE_US).await;
        let scheduled = daemon.policies.enabled().remove(0).last_between(Timestamp::UNIX_EPOCH, daemon.now());
        let entry = daemon.entry(VM).map_err(|e| e.to_string())?;
        let label = SnapshotLabel::of_policy(&"p".parse()?, scheduled.ok_or("no time")?);
        let waits = entry.labels.begin_take(label);
        run_once(&daemon).await;
        let problems = daemon.policy_list().await.map_err(text("policy list"))?.remove(0).problems;
        assert!(problems[0].cause.contains("waits for space"), "{problems:?}");
        drop(waits);
        run_once(&daemon).await;
        assert_eq!(snapshots(&daemon).await?.0.len(), 1);
        Ok(())
    });
}

#[test]
fn damaged_policies_are_refused_and_the_disks_served() {
    let world = world(4);
    let made = served(&world, None, |daemon| async move {
        create(&daemon, VM, Store::Native, &[None]).await?;
        add(&daemon, policy("daily UTC", last(1))).await
    });
    made.expect("nothing is cut").expect("a policy");
    world.write_file("/ds/.unstun/policies", b"{\"name\": 1}\n");
    let checked = served(&world, None, |daemon| async move {
        let refused = daemon.policy_list().await.expect_err("the file is damaged").message;
        assert!(refused.contains("policies: line 1") && refused.contains("moved aside"), "{refused}");
        add(&daemon, policy("daily UTC", last(1))).await.expect_err("the file is damaged");
        write(&daemon, VM, 7).await
    });
    checked.expect("nothing is cut").expect("the VM is served");
}

#[derive(Debug, Clone, Copy)]
struct Case {
    store: Store,
    defect: Option<Defect>,
}

/// Upper bound on the number of events of a run.
const EVENTS: u64 = 3000;
const STRIDE: u64 = 11;

async fn prepare(daemon: Rc<Daemon>, store: Store) -> Outcome<()> {
    create(&daemon, VM, store, &[None]).await?;
    write(&daemon, VM, 3).await?;
    take(&daemon, VM).await?;
    add(&daemon, policy("*:* UTC", last(1))).await?;
    daemon.env.sleep_us(MINUTE_US).await;
    run_once(&daemon).await;
    write(&daemon, VM, 9).await?;
    daemon.env.sleep_us(MINUTE_US).await;
    Ok(())
}

/// Checks that each snapshot of the policy is known as its own, and that none was taken twice.
async fn check(daemon: &Rc<Daemon>) -> Outcome<usize> {
    let (names, scheduled) = snapshots(daemon).await?;
    let own: Vec<_> = names.iter().filter(|name| name.starts_with("p-")).collect();
    let different: BTreeSet<_> = scheduled.iter().collect();
    if !names.iter().any(|name| name == BY_HAND) {
        return Err(format!("the snapshot of a person was removed: {names:?}"));
    }
    if own.len() != scheduled.len() || own.len() != different.len() {
        return Err(format!("snapshots {names:?}, of the policy at {scheduled:?}"));
    }
    Ok(own.len())
}

/// Runs a case, and returns whether the trouble struck.
fn run(case: Case, nth: u64, trouble: Trouble, seed: u64) -> Outcome<bool> {
    let world = world(seed);
    served(&world, None, move |daemon| prepare(daemon, case.store)).expect("nothing is cut")?;
    let struck = troubled(&world, case, nth, trouble)?;
    end(&world, trouble);
    for last in [false, true] {
        let checked = served(&world, case.defect, move |daemon| async move {
            check(&daemon).await?;
            if last {
                daemon.env.sleep_us(MINUTE_US).await;
            }
            run_once(&daemon).await;
            match (check(&daemon).await?, last) {
                (1, _) | (2, false) => Ok(()),
                (found, _) => Err(format!("{found} snapshots of the policy, expected 1")),
            }
        });
        checked.expect("nothing is cut")?;
    }
    Ok(struck)
}

fn troubled(world: &SimWorld, case: Case, nth: u64, trouble: Trouble) -> Outcome<bool> {
    let armed = world.clone();
    let ended = world.run(move |env| async move {
        let daemon = boot(env, case.defect).await?;
        daemon.env.sleep_us(MINUTE_US).await;
        let act = async {
            run_once(&daemon).await;
            Ok(())
        };
        strike(&armed, trouble, nth, act).await.map(|(_, struck)| struck)
    });
    ended.unwrap_or(Ok(true))
}

fn campaign(case: Case, stride: u64) -> Outcome<u64> {
    sweep(case.store as u64, stride, EVENTS, |nth, rng| {
        let trouble = *rng.pick(&Trouble::ALL).expect("some");
        run(case, nth, trouble, rng.u64()).map_err(|e| format!("{case:?} {trouble:?} at {nth}: {e}"))
    })
}

#[test]
fn runs_that_were_cut_off_take_nothing_twice_and_remove_their_own_alone() {
    let stride = setting("CRASH_STRIDE").unwrap_or(STRIDE);
    let cases = [Store::Native, Store::Redo].map(|store| Case { store, defect: None });
    let cuts = all_cuts(&cases, |case| campaign(case, stride));
    assert!(cuts * stride > 200, "{cuts} cuts, with a stride of {stride}: nothing was cut");
}

#[test]
fn a_planted_defect_is_found() {
    for store in [Store::Native, Store::Redo] {
        let case = Case { store, defect: Some(Defect::LabelLate) };
        let found = campaign(case, 1);
        assert!(found.is_err(), "{case:?}: {found:?} cuts, and it was not found");
    }
}
