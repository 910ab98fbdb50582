//! The handle of a world, with which tests run code in it, schedule faults, and inspect the result.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use blk::{Env, Executor};

use crate::cores::Cores;
use crate::fault::{Cut, Fault};
use crate::hosts::{Host, Hosts};
use crate::kind::OpKind;
use crate::machine::{Machine, Power};
use crate::options::{ContentMode, Options};
use crate::reactor::SimReactor;
use crate::trace::{KindCount, TraceEvent};

/// The durable medium, its file system and its faults. Outlives power cuts. Cloning shares it.
///
/// ```
/// let world = sim::SimWorld::new(7, sim::Options::default());
/// world.cut_at(sim::Cut::Event(5));
/// let outcome = world.run(|env| async move {
///     let dir = env.open_root("/").unwrap();
///     dir.replace_file("name", b"content").await.unwrap();
/// });
/// assert!(outcome.is_none());
/// world.power_cut();
/// let names = world.run(|env| async move { env.open_root("/").unwrap().list().await.unwrap() });
/// assert!(!names.unwrap().contains(&"name".to_string()));
/// ```
#[derive(Clone)]
pub struct SimWorld {
    pub(crate) machine: Rc<RefCell<Machine>>,
}

impl SimWorld {
    pub fn new(seed: u64, options: Options) -> SimWorld {
        SimWorld { machine: Rc::new(RefCell::new(Machine::new(seed, options))) }
    }

    // Runs.

    /// Boots, runs `main` to its end and ends its process. Returns None if the power was cut before that.
    ///
    /// Panics with the seed if nothing is under way and `main` is not done: a request was never answered.
    pub fn run<T, F>(&self, main: impl FnOnce(Env) -> F) -> Option<T>
    where
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        let executor = Executor::new(Rc::new(self.boot()));
        let main = main(executor.env());
        self.run_on(executor, main)
    }

    /// Runs several machines like `run`. They share the world's files as hosts share a LUN: one clock, one medium, and
    /// each has its own tasks and its own queue of operations. `env` belongs to none of them and is never paused.
    pub fn run_hosts<T, F>(&self, count: usize, main: impl FnOnce(Env, Vec<Host>) -> F) -> Option<T>
    where
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        let hosts = Hosts::new(self.boot(), count);
        let executor = Executor::new(hosts.clone());
        let env = executor.env();
        let machines = hosts.machines().map(|machine| Host::new(&env, machine)).collect();
        self.run_on(executor, main(env, machines))
    }

    /// Runs several cores of one machine like `run`: each has an executor, and the seed interleaves their tasks. `main`
    /// runs on the first core and gets the handles of all.
    pub fn run_cores<T, F>(&self, count: usize, main: impl FnOnce(Vec<Env>) -> F) -> Option<T>
    where
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        let cores = Cores::new(self.boot(), count);
        let outcome = cores.run(main(cores.envs()));
        self.check_end(outcome, || drop(cores))
    }

    fn run_on<T: 'static>(&self, executor: Executor, main: impl Future<Output = T> + 'static) -> Option<T> {
        let outcome = executor.run(main);
        self.check_end(outcome, || drop(executor))
    }

    fn check_end<T>(&self, outcome: Option<T>, end: impl FnOnce()) -> Option<T> {
        let cut = self.is_off();
        end();
        let where_and_when = self.place_and_time();
        assert!(cut || outcome.is_some(), "{where_and_when}: nothing is under way and the run is not done");
        outcome.filter(|_| !cut)
    }

    /// Boots. Operations that an earlier boot left under way without a power cut take effect first, as when a process
    /// is killed. Panics after a cut that no `power_cut` or `kill` followed: call the intended one.
    pub fn boot(&self) -> SimReactor {
        assert!(!self.is_off(), "{}: the power is off: power_cut() or kill()?", self.place_and_time());
        if !self.machine.borrow().is_settled() {
            self.kill();
        }
        SimReactor::new(self.machine.clone())
    }

    /// Loses the power, if it is not off already. The seed decides what remains on the medium. Called between runs.
    pub fn power_cut(&self) {
        self.must_keep_books();
        self.machine.borrow_mut().lose_power();
    }

    fn must_keep_books(&self) {
        let mode = self.machine.borrow().options.content;
        assert!(mode == ContentMode::Durable, "{mode:?} content does not know what a power cut would leave");
    }

    /// Ends the process alone: all submitted operations take effect, and handles and locks are gone. Called between
    /// runs.
    pub fn kill(&self) {
        self.machine.borrow_mut().kill();
    }

    /// Returns true from the moment of a scheduled cut until `power_cut` or `kill`.
    pub fn is_off(&self) -> bool {
        self.machine.borrow().power == Power::Off
    }

    // Faults.

    /// Schedules the next cut, and replaces an earlier schedule.
    pub fn cut_at(&self, cut: Cut) {
        self.must_keep_books();
        let mut machine = self.machine.borrow_mut();
        let (events, now_ns) = (machine.events, machine.now_ns);
        machine.faults.arm(cut, events, now_ns);
    }

    /// Cuts the power now. Called from inside a run, which then returns None.
    pub fn switch_off(&self) {
        self.machine.borrow_mut().power = Power::Off;
    }

    pub fn cancel_cut(&self) {
        self.machine.borrow_mut().faults.disarm();
    }

    pub fn add_fault(&self, fault: Fault) {
        self.machine.borrow_mut().faults.add(fault);
    }

    pub fn clear_faults(&self) {
        self.machine.borrow_mut().faults.clear();
    }

    /// Sets the clock that shows dates ahead of the time that passes, or right again with 0.
    pub fn set_clock_ahead(&self, us: i64) {
        self.machine.borrow_mut().clock_ahead_us = us;
    }

    /// Sets the space of the file system; None means 1 PiB. If more is in use, every further allocation fails.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.machine.borrow_mut().fs.set_capacity(bytes);
    }

    /// Plants a defect: flushes complete and make nothing durable.
    pub fn ignore_flushes(&self, ignore: bool) {
        self.machine.borrow_mut().ignores_flushes = ignore;
    }

    /// Plants a defect: syncs of directories complete and make nothing durable.
    pub fn ignore_dir_syncs(&self, ignore: bool) {
        self.machine.borrow_mut().ignores_dir_syncs = ignore;
    }

    /// Plants a defect: files in the host's memory are not kept.
    pub fn ignore_memory_writes(&self, ignore: bool) {
        self.machine.borrow_mut().ignores_memory_writes = ignore;
    }

    // Observations.

    /// Returns a hash of all submissions and completions. The same seed and program give the same hash.
    pub fn event_hash(&self) -> u64 {
        self.machine.borrow().trace.hash()
    }

    /// Returns the number of submissions and completions so far, without timers: the range of `Cut::Event`.
    pub fn events(&self) -> u64 {
        self.machine.borrow().events
    }

    /// Returns the operations submitted so far, without timers, as a fault rule of any kind counts them.
    pub fn ios(&self) -> u64 {
        self.machine.borrow().trace.ios()
    }

    pub fn count(&self, kind: OpKind) -> KindCount {
        self.machine.borrow().trace.count(kind)
    }

    /// Counts an occurrence under a label, for checks at the end of a campaign that it happened at least once.
    pub fn mark(&self, label: &'static str) {
        *self.machine.borrow_mut().trace.marks.entry(label).or_default() += 1;
    }

    pub fn marks(&self) -> BTreeMap<&'static str, u64> {
        self.machine.borrow().trace.marks.clone()
    }

    /// Returns the last events, oldest first; as many as the options keep.
    pub fn recent_events(&self) -> Vec<TraceEvent> {
        self.machine.borrow().trace.recent.iter().cloned().collect()
    }

    pub fn now_ns(&self) -> u64 {
        self.machine.borrow().now_ns
    }

    /// Returns "seed, event, time" for failure messages.
    pub fn place_and_time(&self) -> String {
        self.machine.borrow().place_and_time()
    }
}
