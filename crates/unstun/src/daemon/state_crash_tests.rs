//! A power cut, a kill of the process, or a failed I/O at events of the verbs that discard and restore states of a VM.
//! After the next start the VM shows one state and the bin has the other, as before the verb or as after it.

use std::cell::Cell;
use std::rc::Rc;

use api::{Reset, Revert, Store, VmCondition};
use crash::campaign::setting;
use sim::SimWorld;

use crate::daemon::crash_tests::{Trouble, all_cuts, end, strike, sweep};
use crate::daemon::defect::Defect;
use crate::daemon::simulated_tests::{
    Outcome, boot, create, evict, machine, read, served, take, text, world, write,
};
use crate::daemon::state::Daemon;
use crate::daemon::vm::labels::SnapshotLabel;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Revert,
    RevertAndPurge,
    Undo,
    EmptyBin,
}

const VERBS: [(Verb, Store); 8] = [
    (Verb::Revert, Store::Redo),
    (Verb::Revert, Store::Native),
    (Verb::RevertAndPurge, Store::Redo),
    (Verb::RevertAndPurge, Store::Native),
    (Verb::Undo, Store::Redo),
    (Verb::Undo, Store::Native),
    (Verb::EmptyBin, Store::Redo),
    (Verb::EmptyBin, Store::Native),
];
/// Upper bound on the number of events of a verb.
const EVENTS: u64 = 1500;
const STRIDE: u64 = 7;
const VM: &str = "web";
/// Content of the disk when the snapshot was taken, and content written since then.
const TAKEN: u8 = 3;
const SINCE: u8 = 9;

/// Content of the disk, and whether the bin has a state of the VM.
type Shown = (u8, bool);

impl Verb {
    fn before(self) -> Shown {
        match self {
            Verb::Revert | Verb::RevertAndPurge => (SINCE, false),
            Verb::Undo | Verb::EmptyBin => (TAKEN, true),
        }
    }

    fn after(self) -> Shown {
        match self {
            Verb::Revert => (TAKEN, true),
            Verb::Undo => (SINCE, true),
            Verb::RevertAndPurge | Verb::EmptyBin => (TAKEN, false),
        }
    }

    async fn prepare(self, daemon: Rc<Daemon>, store: Store) -> Outcome<()> {
        create(&daemon, VM, store, &[None]).await?;
        write(&daemon, VM, TAKEN).await?;
        take(&daemon, VM).await?;
        write(&daemon, VM, SINCE).await?;
        if self.before().1 { revert(&daemon, false).await } else { Ok(()) }
    }

    async fn act(self, daemon: &Rc<Daemon>) -> Outcome<()> {
        match self {
            Verb::Revert => revert(daemon, false).await,
            Verb::RevertAndPurge => revert(daemon, true).await,
            Verb::Undo => undo(daemon).await,
            Verb::EmptyBin => evict(daemon).await,
        }
    }
}

async fn revert(daemon: &Rc<Daemon>, purge: bool) -> Outcome<()> {
    let name = VM.parse().expect("a name");
    let snapshot = Some("s".parse().expect("a name"));
    let request = Revert { snapshot, take_first: None, disconnect: false, purge, keep: !purge };
    daemon
        .snapshot_revert(&name, request, SnapshotLabel::of_caller("test"))
        .await
        .map(drop)
        .map_err(text("snapshot revert"))
}

async fn undo(daemon: &Rc<Daemon>) -> Outcome<()> {
    let name = VM.parse().expect("a name");
    let request = Reset { disconnect: false, purge: false, keep: true };
    daemon.snapshot_undo(&name, request).await.map(drop).map_err(text("snapshot undo"))
}

async fn shown(daemon: &Rc<Daemon>) -> Outcome<Shown> {
    let listed = daemon.vm_list().await.map_err(text("vm list"))?;
    if listed.len() != 1 || listed[0].condition != VmCondition::Open {
        return Err(format!("listed are {listed:?}"));
    }
    if let Some(notice) = daemon.main.notices.borrow().first() {
        return Err(format!("a notice: {notice}"));
    }
    let states = machine(daemon, VM).map_err(|e| e.to_string())?.state().bin.len();
    if states > 1 {
        return Err(format!("the bin has {states} states"));
    }
    Ok((read(daemon, VM).await?, states == 1))
}

fn generation(daemon: &Rc<Daemon>) -> Outcome<u64> {
    Ok(machine(daemon, VM).map_err(|e| e.to_string())?.generation().present)
}

/// Checks the state after recovery. Other content has another generation. So may the same content after a failed flush,
/// because writes may be lost.
async fn check(
    daemon: &Rc<Daemon>,
    verb: Verb,
    trouble: Trouble,
    answered: bool,
    generation_before: u64,
) -> Outcome<()> {
    let found = shown(daemon).await?;
    if found != verb.after() && (answered || found != verb.before()) {
        let (before, after) = (verb.before(), verb.after());
        return Err(format!("found {found:?}, before {before:?}, after {after:?}, answered: {answered}"));
    }
    let raised = generation(daemon)? > generation_before;
    let is_other = found.0 != verb.before().0;
    if raised != is_other && !(raised && matches!(trouble, Trouble::Fails(_))) {
        return Err(format!("found {found:?}, and the generation was raised: {raised}"));
    }
    Ok(())
}

/// Checks that the bin has the other state: an undo shows it, and a second undo reverses that.
async fn undo_twice(daemon: &Rc<Daemon>) -> Outcome<()> {
    let (first, has_state) = shown(daemon).await?;
    if !has_state {
        return Ok(());
    }
    for expected in [TAKEN + SINCE - first, first] {
        undo(daemon).await?;
        let found = shown(daemon).await?;
        if found != (expected, true) {
            return Err(format!("after an undo: {found:?}, expected {expected}"));
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Case {
    verb: Verb,
    store: Store,
    defect: Option<Defect>,
}

/// Runs a case, and returns whether the trouble struck.
fn run(case: Case, nth: u64, trouble: Trouble, seed: u64) -> Outcome<bool> {
    let Case { verb, store, defect } = case;
    let world = world(seed);
    served(&world, None, move |daemon| verb.prepare(daemon, store)).expect("nothing is cut")?;
    let before = Rc::new(Cell::new(0));
    let (answered, struck) = troubled(&world, case, nth, trouble, before.clone())?;
    end(&world, trouble);
    for last in [false, true] {
        let before = before.get();
        let checked = served(&world, defect, move |daemon| async move {
            check(&daemon, verb, trouble, answered, before).await?;
            if last { undo_twice(&daemon).await } else { Ok(()) }
        });
        checked.expect("nothing is cut")?;
    }
    Ok(struck)
}

/// Returns whether the verb succeeded, and whether the trouble struck.
fn troubled(
    world: &SimWorld,
    case: Case,
    nth: u64,
    trouble: Trouble,
    generation_before: Rc<Cell<u64>>,
) -> Outcome<(bool, bool)> {
    let armed = world.clone();
    let ended = world.run(move |env| async move {
        let daemon = boot(env, case.defect).await?;
        generation_before.set(generation(&daemon)?);
        strike(&armed, trouble, nth, case.verb.act(&daemon)).await
    });
    ended.unwrap_or(Ok((false, true)))
}

/// Cuts a verb until it completes before a cut strikes; returns the number of cuts.
fn campaign(case: Case, stride: u64) -> Outcome<u64> {
    sweep(((case.verb as u64) << 8) ^ case.store as u64, stride, EVENTS, |nth, rng| {
        let trouble = *rng.pick(&Trouble::ALL).expect("some");
        run(case, nth, trouble, rng.u64()).map_err(|e| format!("{case:?} {trouble:?} at {nth}: {e}"))
    })
}

#[test]
fn a_state_is_shown_or_in_the_bin() {
    let stride = setting("CRASH_STRIDE").unwrap_or(STRIDE);
    let cases = VERBS.map(|(verb, store)| Case { verb, store, defect: None });
    let cuts = all_cuts(&cases, |case| campaign(case, stride));
    assert!(cuts * stride > 300, "{cuts} cuts, with a stride of {stride}: nothing was cut");
}

#[test]
fn planted_defects_are_found() {
    for verb in [Verb::Revert, Verb::Undo] {
        let defect = Some(Defect::Engine(engine::Defect::RaiseApart));
        let case = Case { verb, store: Store::Redo, defect };
        let found = campaign(case, 1);
        assert!(found.is_err(), "{case:?}: {found:?} cuts, and it was not found");
    }
}
