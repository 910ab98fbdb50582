//! Several machines of one world. They share its clock and its files, and each can be paused or killed separately.
//!
//! A machine's operations wait in its own queue until the core submits them, as in the ring of a process until its next
//! system call. A pause holds back the queue and all completions, so that no task of the machine is notified. Submitted
//! operations continue, and so does the clock. Locks are not modelled, because they are local to a host.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use blk::fence::Deadline;
use blk::memory::Memory;
use blk::reactor::{self, Handle, Op, Outcome, Reactor, Token};
use blk::{Env, Errno};

use crate::memory::HostMemory;
use crate::reactor::{NoThreads, SimReactor};
use crate::reservations::HostNumber;

/// When a machine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    Now,
    /// At its n-th submission from now, counted from 1. That operation is in the machine's queue and not submitted.
    AtSubmission(u64),
    /// The same, counting writes only.
    AtWrite(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Running,
    /// Paused since this time of the world's clock.
    Paused(u64),
    Dead,
}

/// State of an operation of a machine.
enum Place {
    Queued(Option<Waker>),
    Submitted(Token),
}

/// One machine, as its tasks see the world.
pub(crate) struct Machine {
    world: Rc<SimReactor>,
    /// Its number, from 1 on.
    number: HostNumber,
    power: Cell<Power>,
    /// What has to happen before the machine pauses.
    pause_in: Cell<Option<Pause>>,
    /// Files behind a fence, and when the last change of one of them was submitted.
    fenced: RefCell<BTreeSet<Handle>>,
    changed_ns: Cell<u64>,
    queue: RefCell<Vec<(u32, Op)>>,
    places: RefCell<BTreeMap<u32, Place>>,
    next_token: Cell<u32>,
    /// Wakers of tasks that would have been notified during the pause.
    held: RefCell<Vec<Waker>>,
    /// Nanoseconds for which it has been paused; its monotonic clock stops meanwhile.
    paused_ns: Cell<u64>,
    memory: Rc<HostMemory>,
}

impl Machine {
    fn new(world: Rc<SimReactor>, number: HostNumber) -> Rc<Machine> {
        Rc::new(Machine {
            world,
            number,
            power: Cell::new(Power::Running),
            pause_in: Cell::new(None),
            fenced: RefCell::default(),
            changed_ns: Cell::new(0),
            queue: RefCell::default(),
            places: RefCell::default(),
            next_token: Cell::new(0),
            held: RefCell::default(),
            paused_ns: Cell::new(0),
            memory: Rc::new(HostMemory::new(number)),
        })
    }

    fn pause(&self) {
        if self.power.get() == Power::Running {
            self.power.set(Power::Paused(self.world.now_ns()));
        }
    }

    fn resume(&self) {
        let Power::Paused(since_ns) = self.power.get() else { return };
        self.paused_ns.set(self.paused_ns.get() + self.world.now_ns() - since_ns);
        self.power.set(Power::Running);
        self.held.take().into_iter().for_each(Waker::wake);
    }

    fn kill(&self) {
        self.power.set(Power::Dead);
        self.queue.borrow_mut().clear();
    }

    /// Submits the queue to the world, as a system call does.
    fn hand_over(&self) {
        if self.power.get() != Power::Running {
            return;
        }
        for (id, op) in self.queue.take() {
            let op = match op {
                Op::Timer { at_ns } => Op::Timer { at_ns: at_ns.saturating_add(self.paused_ns.get()) },
                op => op,
            };
            self.note_change(&op);
            let token = self.world.submit_from(self.number, op);
            let waited = self.places.borrow_mut().insert(id, Place::Submitted(token));
            if let Some(Place::Queued(Some(waker))) = waited {
                let asked = self.world.poll(token, &mut Context::from_waker(&waker));
                assert!(asked.is_pending(), "nothing completes at its submission");
            }
        }
    }

    fn count_submission(&self, op: &Op) {
        let left = match (self.pause_in.get(), op) {
            (Some(Pause::AtSubmission(nth)), _) => Pause::AtSubmission(nth - 1),
            (Some(Pause::AtWrite(nth)), Op::Write { .. }) => Pause::AtWrite(nth - 1),
            _ => return,
        };
        self.pause_in.set(Some(left));
        if matches!(left, Pause::AtSubmission(0) | Pause::AtWrite(0)) {
            self.pause_in.set(None);
            self.pause();
        }
    }

    /// Records a submitted change, for the test's check of fences. Whether the change takes effect is decided by the
    /// world.
    fn note_change(&self, op: &Op) {
        let (Op::Write { file, .. }
        | Op::Allocate { file, .. }
        | Op::Zero { file, .. }
        | Op::GiveBack { file, .. }
        | Op::SetLen { file, .. }) = op
        else {
            return;
        };
        if self.fenced.borrow().contains(file) && self.world.is_admitted(*file) {
            self.changed_ns.set(self.world.now_ns());
        }
    }
}

/// Calls of the reactor that the world answers.
macro_rules! world {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $out {
            self.world.$name($($arg),*)
        })*
    };
}

impl Reactor for Machine {
    world! {
        open_root(path: &str) -> Result<Handle, Errno>;
        boot_ns() -> u64;
        unix_us() -> i64;
        random() -> u64;
    }

    fn submit(&self, op: Op) -> Token {
        let id = self.next_token.get();
        self.next_token.set(id + 1);
        if self.power.get() != Power::Dead {
            self.places.borrow_mut().insert(id, Place::Queued(None));
            self.count_submission(&op);
            self.queue.borrow_mut().push((id, op));
        }
        Token(id)
    }

    fn poll(&self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.power.get() {
            Power::Running => {}
            Power::Paused(_) => {
                self.held.borrow_mut().push(cx.waker().clone());
                return Poll::Pending;
            }
            Power::Dead => return Poll::Pending,
        }
        let mut places = self.places.borrow_mut();
        let inner = match places.get_mut(&token.0) {
            Some(Place::Queued(waker)) => {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(Place::Submitted(inner)) => *inner,
            None => return Poll::Pending,
        };
        let outcome = std::task::ready!(self.world.poll(inner, cx));
        places.remove(&token.0);
        Poll::Ready(outcome)
    }

    fn forget(&self, token: Token) {
        match self.places.borrow_mut().remove(&token.0) {
            // The operation may be under way nevertheless.
            Some(Place::Queued(_)) | None => self.queue.borrow_mut().retain(|(id, _)| *id != token.0),
            Some(Place::Submitted(inner)) => self.world.forget(inner),
        }
    }

    fn close(&self, handle: Handle) {
        self.fenced.borrow_mut().remove(&handle);
        self.world.close(handle);
    }

    fn fence(&self, file: Handle, deadline: Arc<Deadline>) {
        self.fenced.borrow_mut().insert(file);
        self.world.fence(file, deadline);
    }

    fn now_ns(&self) -> u64 {
        let stopped_ns = match self.power.get() {
            Power::Paused(since_ns) => self.world.now_ns() - since_ns,
            _ => 0,
        };
        self.world.now_ns() - self.paused_ns.get() - stopped_ns
    }

    fn memory(&self) -> Option<Rc<dyn Memory>> {
        Some(self.memory.clone())
    }

    fn turn(&self) {
        unreachable!("the core turns the world, not one machine of it")
    }

    fn wait(&self) -> bool {
        unreachable!("the core waits for the world, not for one machine of it")
    }

    fn waker(&self) -> Arc<dyn reactor::Waker> {
        Arc::new(NoThreads)
    }
}

/// A machine as a test controls it.
#[derive(Clone)]
pub struct Host {
    /// Environment of its tasks.
    pub env: Env,
    machine: Rc<Machine>,
}

impl Host {
    pub(crate) fn new(core: &Env, machine: Rc<Machine>) -> Host {
        Host { env: core.over(machine.clone()), machine }
    }

    pub fn pause(&self, when: Pause) {
        match when {
            Pause::Now => self.machine.pause(),
            Pause::AtSubmission(nth) => self.machine.pause_in.set(Some(Pause::AtSubmission(nth.max(1)))),
            Pause::AtWrite(nth) => self.machine.pause_in.set(Some(Pause::AtWrite(nth.max(1)))),
        }
    }

    /// Continues the machine, and cancels a pause that has not begun.
    pub fn resume(&self) {
        self.machine.pause_in.set(None);
        self.machine.resume();
    }

    pub fn is_paused(&self) -> bool {
        matches!(self.machine.power.get(), Power::Paused(_))
    }

    /// Returns when the world last accepted a change of a file behind a fence from this machine, by the world's clock;
    /// 0 means never.
    pub fn changed_ns(&self) -> u64 {
        self.machine.changed_ns.get()
    }

    /// Kills the machine: it never continues. Operations that it has submitted take effect.
    pub fn kill(&self) {
        self.machine.kill();
    }
}

/// The reactor of the executor: the world under all machines.
pub(crate) struct Hosts {
    world: Rc<SimReactor>,
    machines: Vec<Rc<Machine>>,
}

impl Hosts {
    pub(crate) fn new(world: SimReactor, count: usize) -> Rc<Hosts> {
        let world = Rc::new(world);
        let machines = (1..=count as u64).map(|number| Machine::new(world.clone(), number)).collect();
        Rc::new(Hosts { world, machines })
    }

    pub(crate) fn machines(&self) -> impl Iterator<Item = Rc<Machine>> + '_ {
        self.machines.iter().cloned()
    }

    fn hand_over(&self) {
        self.machines.iter().for_each(|machine| machine.hand_over());
    }
}

impl Reactor for Hosts {
    world! {
        submit(op: Op) -> Token;
        poll(token: Token, cx: &mut Context<'_>) -> Poll<Outcome>;
        forget(token: Token) -> ();
        close(handle: Handle) -> ();
        open_root(path: &str) -> Result<Handle, Errno>;
        fence(file: Handle, deadline: Arc<Deadline>) -> ();
        now_ns() -> u64;
        boot_ns() -> u64;
        unix_us() -> i64;
        random() -> u64;
        waker() -> Arc<dyn reactor::Waker>;
    }

    fn turn(&self) {
        self.hand_over();
        self.world.turn();
    }

    fn wait(&self) -> bool {
        self.hand_over();
        self.world.wait()
    }
}
