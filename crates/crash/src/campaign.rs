//! Common parts of campaigns: their settings, their threads, and the checks that apply to all runs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use engine::{Defect, Defects};
use sim::SimWorld;

/// Interval, in seeds, at which a run is repeated and its event hash compared.
const REPEAT_EVERY: u64 = 20;
/// Number of broken promises after which a campaign stops.
const FAILURES_MAX: usize = 5;

/// Result of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub cuts: u64,
    pub event_hash: u64,
    pub events: u64,
    /// Labels of cases that must occur at least once in a campaign, with their counts.
    pub marks: BTreeMap<&'static str, u64>,
}

impl Outcome {
    pub fn of(world: &SimWorld, cuts: u64) -> Outcome {
        Outcome { cuts, event_hash: world.event_hash(), events: world.events(), marks: world.marks() }
    }
}

/// A run, a function of its seed. An error is a broken promise.
pub type Run = fn(seed: u64, defects: Defects) -> Result<Outcome, String>;

/// When a campaign, or the search for a planted defect, ends.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    Runs(u64),
    Cuts(u64),
}

impl Bound {
    fn allows(self, runs: u64, cuts: u64) -> bool {
        match self {
            Bound::Runs(most) => runs < most,
            Bound::Cuts(most) => cuts < most,
        }
    }
}

/// Returns a number from the environment; None where the variable is absent or empty.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .filter(|v| !v.is_empty())
        .map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v}")))
}

/// Returns the result of `work`, and a panic as an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

thread_local! {
    /// Whether this thread runs with a planted defect, whose panics are expected.
    static PLANTED: Cell<bool> = const { Cell::new(false) };
}

/// Suppresses the output of panics of this thread. Other threads are not affected, because campaigns share a process
/// with other tests.
fn expect_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !PLANTED.get() {
                print(info);
            }
        }));
    });
    PLANTED.set(true);
}

/// Calls `run` with rising seeds from as many threads as there are cores, until it returns false.
pub fn on_all_cores(run: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| while run(next.fetch_add(1, Ordering::Relaxed)) {});
        }
    });
}

#[derive(Default)]
struct Progress {
    runs: u64,
    cuts: u64,
    marks: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

impl Progress {
    fn add(&mut self, result: Result<Outcome, String>) {
        self.runs += 1;
        match result {
            Ok(outcome) => {
                for (label, n) in outcome.marks {
                    *self.marks.entry(label).or_insert(0) += n;
                }
                self.cuts += outcome.cuts;
            }
            Err(e) => self.failures.push(e),
        }
    }
}

/// Returns the power cuts of a campaign: `default`, or the number in `CRASH_CUTS` divided by `share`.
pub fn cuts_wanted(default: u64, share: u64) -> Bound {
    Bound::Cuts(setting("CRASH_CUTS").map_or(default, |all| all / share))
}

/// Runs a campaign within `bound`; with `CRASH_SEED` runs that seed alone. Panics if a promise is broken, if a repeated
/// run differs, or if a label of `must_happen` never occurred: that case was not tested.
pub fn assert_promises_hold(run: Run, bound: Bound, must_happen: &[&str]) {
    if let Some(seed) = setting("CRASH_SEED") {
        let outcome = run(seed, Defects::default()).unwrap_or_else(|e| panic!("{e}"));
        println!("seed {seed}: {outcome:?}");
        return;
    }
    let progress = Mutex::new(Progress::default());
    on_all_cores(|seed| {
        let result = run(seed, Defects::default());
        let repeated = (seed % REPEAT_EVERY == 0).then(|| run(seed, Defects::default()));
        let mut progress = progress.lock().unwrap();
        if let Some(repeated) = repeated.filter(|repeated| *repeated != result) {
            progress.failures.push(format!("seed {seed}: two runs differ: {result:?} and {repeated:?}"));
        }
        progress.add(result);
        progress.failures.len() < FAILURES_MAX && bound.allows(progress.runs, progress.cuts)
    });
    let Progress { runs, cuts, marks, failures } = progress.into_inner().unwrap();
    println!("{runs} runs, {cuts} power cuts; {marks:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for label in must_happen {
        assert!(marks.get(label).is_some_and(|&n| n > 0), "{label:?} never happened: {marks:?}");
    }
}

/// Panics if a planted defect breaks no promise within `bound`. With `CRASH_DEFECT` plants only the defects whose names
/// contain its value; with `CRASH_SEED` plants none. `CRASH_FIRST` is the seed with which each search begins.
///
/// The search for a defect in `first` begins at the given seed, near which an earlier search found that rare defect. The
/// seed only saves time while the runs stay as they were.
pub fn assert_defects_are_found(run: Run, defects: &[Defect], bound: Bound, first: &[(Defect, u64)]) {
    if setting("CRASH_SEED").is_some() {
        return;
    }
    let only = std::env::var("CRASH_DEFECT").unwrap_or_default();
    let planted = defects.iter().filter(|defect| format!("{defect:?}").contains(&only));
    let first_of = |wanted: Defect| {
        let known = || first.iter().find(|(defect, _)| *defect == wanted).map_or(0, |(_, seed)| *seed);
        setting("CRASH_FIRST").unwrap_or_else(known)
    };
    let missed: Vec<&Defect> =
        planted.filter(|defect| !is_found(run, **defect, bound, first_of(**defect))).collect();
    assert!(missed.is_empty(), "defects that no run found: {missed:?}");
}

fn is_found(run: Run, defect: Defect, bound: Bound, first: u64) -> bool {
    let found = Mutex::new(None::<(u64, String)>);
    let cuts = AtomicU64::new(0);
    on_all_cores(|runs| {
        expect_panics();
        let seed = first + runs;
        match run(seed, Defects::only(defect)) {
            Ok(outcome) => drop(cuts.fetch_add(outcome.cuts, Ordering::Relaxed)),
            Err(e) => drop(found.lock().unwrap().get_or_insert((seed, e))),
        }
        found.lock().unwrap().is_none() && bound.allows(runs, cuts.load(Ordering::Relaxed))
    });
    let found = found.into_inner().unwrap();
    if let Some((seed, e)) = &found {
        let cuts = cuts.load(Ordering::Relaxed);
        println!("{defect:?}: run {seed}, {cuts} cuts: {}", e.lines().next().unwrap_or_default());
    }
    found.is_some()
}
