//! The executor: one queue, first in first out, one core.
//!
//! Tasks are polled in wake order, which is a function of the reactor's completions alone; under the simulator a run
//! is therefore a function of its seed. Code between two awaits of one task is atomic for all others on the core.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::deadline::Deadline;
use crate::error::{Errno, Result};
use crate::memory::Memory;
use crate::meter::{PollFigures, PollMeter};
use crate::passed::Descriptor;
use crate::reactor::{self, Handle, OffloadedWork, Op, Outcome, Pending, Reactor, SharedDescriptor, Token};
use crate::sync::OneShot;

/// A boxed future of this core: what object-safe contracts return.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Polls between two turns of the reactor, so that many ready tasks cannot starve completions.
const POLLS_PER_TURN: usize = 64;

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Queue {
    ready: Mutex<VecDeque<u32>>,
    /// Set while the core may sleep in the kernel, so that only wakes from other threads need the system call.
    sleeping: AtomicBool,
    reactor: Arc<dyn reactor::Waker>,
}

impl Queue {
    fn next(&self) -> Option<u32> {
        self.ready.lock().expect("no panic inside").pop_front()
    }
}

struct TaskWaker {
    task: u32,
    queued: AtomicBool,
    queue: Arc<Queue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.queue.ready.lock().expect("no panic inside").push_back(self.task);
        if self.queue.sleeping.load(Ordering::SeqCst) {
            self.queue.reactor.wake();
        }
    }
}

struct Slot {
    /// Absent while the task is being polled.
    task: Option<Task>,
    waker: Arc<TaskWaker>,
    /// The source line that started the task. It names the task in figures of polls.
    started_at: &'static Location<'static>,
}

struct Core {
    reactor: Rc<dyn Reactor>,
    queue: Arc<Queue>,
    slots: RefCell<Vec<Option<Slot>>>,
    free: RefCell<Vec<u32>>,
    stopped: Cell<bool>,
    /// Number of turns of the reactor.
    turns: Cell<u64>,
    turn_waiters: RefCell<Vec<Waker>>,
    meter: PollMeter,
}

/// The core's executor. Dropping it drops every task.
pub struct Executor {
    core: Rc<Core>,
}

/// Handle of a core, for its tasks: I/O, time, random numbers, tasks. It is cheap to clone.
#[derive(Clone)]
pub struct Env {
    pub(crate) reactor: Rc<dyn Reactor>,
    core: Weak<Core>,
}

/// The result of a spawned task. If it is dropped, the task continues.
pub struct JoinHandle<T>(Rc<OneShot<T>>);

impl<T> JoinHandle<T> {
    /// Waits for the end of the task and returns its result. Never resolves for a task that the executor has dropped.
    pub async fn join(self) -> T {
        self.0.take().await
    }
}

impl Executor {
    /// Creates an executor without tasks over `reactor`, which must have no other executor.
    pub fn new(reactor: Rc<dyn Reactor>) -> Executor {
        let queue = Arc::new(Queue {
            ready: Mutex::default(),
            sleeping: AtomicBool::new(false),
            reactor: reactor.waker(),
        });
        let core = Core {
            reactor,
            queue,
            slots: RefCell::default(),
            free: RefCell::default(),
            stopped: Cell::new(false),
            turns: Cell::new(0),
            turn_waiters: RefCell::default(),
            meter: PollMeter::default(),
        };
        Executor { core: Rc::new(core) }
    }

    /// Returns the handle for code on this core.
    pub fn env(&self) -> Env {
        Env { reactor: self.core.reactor.clone(), core: Rc::downgrade(&self.core) }
    }

    /// Runs all tasks until `main` is done. Returns None if no task can make progress: a deadlock, or a power cut in
    /// the simulator.
    #[track_caller]
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let out = result.clone();
        self.core.spawn(Box::pin(async move {
            let value = main.await;
            *out.borrow_mut() = Some(value);
        }));
        loop {
            self.core.poll_ready();
            if let Some(value) = result.borrow_mut().take() {
                return Some(value);
            }
            if self.core.is_turn_awaited() {
                self.core.turn();
            } else if !self.core.sleep() {
                return None;
            }
        }
    }

    /// Polls up to `most` ready tasks, and returns how many. For a world of several executors, which turns its reactor
    /// itself.
    pub fn poll_some(&self, most: usize) -> usize {
        let mut polled = 0;
        while polled < most
            && let Some(id) = self.core.queue.next()
        {
            self.core.poll_task(id);
            polled += 1;
        }
        polled
    }

    /// Returns whether a task is ready.
    pub fn has_ready(&self) -> bool {
        !self.core.queue.ready.lock().expect("no panic inside").is_empty()
    }

    /// Returns whether a task waits for the next turn of the reactor.
    pub fn is_turn_awaited(&self) -> bool {
        self.core.is_turn_awaited()
    }

    /// Notes that the reactor has turned, as [`Env::next_turn`] awaits it.
    pub fn turned(&self) {
        self.core.turned();
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.core.stopped.set(true);
        let slots = std::mem::take(&mut *self.core.slots.borrow_mut());
        drop(slots);
    }
}

impl Core {
    #[track_caller]
    fn spawn(&self, task: Task) {
        let started_at = Location::caller();
        if self.stopped.get() {
            return;
        }
        let id = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut slots = self.slots.borrow_mut();
            slots.push(None);
            u32::try_from(slots.len() - 1).expect("fewer than 2^32 tasks")
        });
        let waker =
            Arc::new(TaskWaker { task: id, queued: AtomicBool::new(true), queue: self.queue.clone() });
        self.slots.borrow_mut()[id as usize] = Some(Slot { task: Some(task), waker, started_at });
        self.queue.ready.lock().expect("no panic inside").push_back(id);
    }

    fn poll_ready(&self) {
        let mut polls = 0;
        let mut began_ns = self.begin_polls();
        loop {
            let Some(id) = self.queue.next() else { return };
            let started_at = self.poll_task(id);
            began_ns = self.end_poll(began_ns, started_at);
            polls += 1;
            if polls % POLLS_PER_TURN == 0 {
                self.turn();
                began_ns = self.begin_polls();
            }
        }
    }

    fn begin_polls(&self) -> Option<u64> {
        let now_ns = self.reactor.poll_clock_ns()?;
        self.meter.refresh(now_ns, &*self.reactor);
        Some(now_ns)
    }

    /// Ends the measurement of one poll and begins that of the next, with one reading of the clock.
    fn end_poll(&self, began_ns: Option<u64>, task: Option<&'static Location<'static>>) -> Option<u64> {
        let (began_ns, now_ns) = (began_ns?, self.reactor.poll_clock_ns()?);
        self.meter.polled(task, began_ns, now_ns, &*self.reactor);
        Some(now_ns)
    }

    fn turn(&self) {
        self.reactor.turn();
        self.turned();
    }

    fn turned(&self) {
        self.turns.set(self.turns.get() + 1);
        self.turn_waiters.take().into_iter().for_each(Waker::wake);
    }

    fn is_turn_awaited(&self) -> bool {
        !self.turn_waiters.borrow().is_empty()
    }

    /// Polls a task. Returns the source line that started it, or None if it had ended.
    fn poll_task(&self, id: u32) -> Option<&'static Location<'static>> {
        let (mut task, waker, started_at) = {
            let mut slots = self.slots.borrow_mut();
            // A late wake of a finished task finds an empty slot, or another task, which is then polled once more than
            // necessary.
            let slot = slots[id as usize].as_mut()?;
            slot.waker.queued.store(false, Ordering::Release);
            (slot.task.take()?, slot.waker.clone(), slot.started_at)
        };
        let waker = Waker::from(waker);
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => {
                let slot = self.slots.borrow_mut()[id as usize].take();
                self.free.borrow_mut().push(id);
                drop((slot, task));
            }
            Poll::Pending => {
                if let Some(slot) = self.slots.borrow_mut().get_mut(id as usize).and_then(Option::as_mut) {
                    slot.task = Some(task);
                }
            }
        }
        Some(started_at)
    }

    fn sleep(&self) -> bool {
        self.queue.sleeping.store(true, Ordering::SeqCst);
        let foreign_wake = !self.queue.ready.lock().expect("no panic inside").is_empty();
        let alive = if foreign_wake {
            self.reactor.turn();
            true
        } else {
            self.reactor.wait()
        };
        self.queue.sleeping.store(false, Ordering::SeqCst);
        self.turned();
        alive
    }
}

impl Env {
    /// Starts a task. If the handle is dropped, the task continues.
    #[track_caller]
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let done = Rc::new(OneShot::default());
        let out = done.clone();
        self.spawn_detached(Box::pin(async move { out.set(future.await) }));
        JoinHandle(done)
    }

    /// Starts a boxed task without a join handle. This is the cheapest form, for requests.
    #[track_caller]
    pub fn spawn_detached(&self, task: Local<'static, ()>) {
        if let Some(core) = self.core.upgrade() {
            core.spawn(task);
        }
    }

    /// Returns the time of the reactor's monotonic clock in nanoseconds. Timers use the same clock. Its zero has no
    /// meaning.
    pub fn now_ns(&self) -> u64 {
        self.reactor.now_ns()
    }

    /// Returns the time in nanoseconds of a clock that also runs while the machine is suspended. It is not for timers.
    pub fn boot_ns(&self) -> u64 {
        self.reactor.boot_ns()
    }

    /// Returns microseconds since 1970 UTC, for names and records. It is not for ordering, because the clock may be
    /// set.
    pub fn unix_us(&self) -> i64 {
        self.reactor.unix_us()
    }

    /// Returns 64 unpredictable bits. In the simulator they follow from the seed.
    pub fn random(&self) -> u64 {
        self.reactor.random()
    }

    /// Returns the files that outlive this process, or None if the process keeps none.
    pub fn memory(&self) -> Option<Rc<dyn Memory>> {
        self.reactor.memory()
    }

    /// Returns the number of open descriptors of files, folders and locks, without sockets.
    pub fn open_files(&self) -> u64 {
        self.reactor.open_files()
    }

    /// Resolves when [`Env::now_ns`] has reached `at_ns`.
    pub async fn sleep_until(&self, at_ns: u64) {
        self.op(Op::Timer { at_ns }).await;
    }

    /// Resolves `us` microseconds after its first poll.
    pub async fn sleep_us(&self, us: u64) {
        self.sleep_until(self.now_ns() + us * 1000).await;
    }

    /// Returns how long polls have kept the core.
    pub fn polls(&self) -> PollFigures {
        self.core.upgrade().map_or_else(PollFigures::default, |core| core.meter.figures())
    }

    /// Returns how often the reactor has submitted operations and collected completions.
    pub fn turns(&self) -> u64 {
        self.core.upgrade().map_or(0, |core| core.turns.get())
    }

    /// Resolves after the reactor's next turn, so that other tasks run and completions are collected first. Long work
    /// that does not wait for I/O awaits this between its pieces.
    pub async fn next_turn(&self) {
        let seen = self.turns();
        poll_fn(|cx| match self.core.upgrade() {
            Some(core) if core.turns.get() == seen => {
                core.turn_waiters.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Whether file systems of this world may leave a question without an answer.
    pub fn can_hang(&self) -> bool {
        self.reactor.can_hang()
    }

    pub(crate) fn trust_owner(&self, dir: Handle) -> Result<(), Errno> {
        self.reactor.trust_owner(dir)
    }

    pub(crate) fn pending(&self, handle: Handle) -> Option<Pending> {
        self.reactor.pending(handle)
    }

    pub(crate) fn run_blocking(&self, call: OffloadedWork) {
        self.reactor.run_blocking(call);
    }

    /// Submits the operation now, not at the first poll. Dropping the future forgets the operation.
    pub fn op(&self, op: Op) -> OpFuture {
        self.outcome_of(self.reactor.submit(op))
    }

    /// The operation of a token that the reactor has returned.
    pub(crate) fn outcome_of(&self, token: Token) -> OpFuture {
        OpFuture { token: Some(token), reactor: self.reactor.clone() }
    }

    pub(crate) fn run_offloaded(&self, work: OffloadedWork) {
        self.reactor.run_offloaded(work);
    }

    /// Returns a handle for the same core's tasks over another reactor: one of several machines of a simulated world.
    pub fn over(&self, reactor: Rc<dyn Reactor>) -> Env {
        Env { reactor, core: self.core.clone() }
    }

    /// A moment within a poll at which another core may have acted; see [`Reactor::crossing`].
    pub fn crossing(&self) {
        self.reactor.crossing();
    }

    pub(crate) fn share(&self, file: Handle) -> Result<SharedDescriptor, Errno> {
        self.reactor.share(file)
    }

    pub(crate) fn adopt_shared(&self, descriptor: SharedDescriptor) -> Result<Handle, Errno> {
        self.reactor.adopt_shared(descriptor)
    }

    pub(crate) fn fence(&self, file: Handle, deadline: Arc<Deadline>) {
        self.reactor.fence(file, deadline);
    }

    pub(crate) fn adopt(&self, descriptor: Descriptor) -> Result<Handle, Errno> {
        self.reactor.adopt(descriptor)
    }

    pub(crate) fn close(&self, handle: Handle) {
        self.reactor.close(handle);
    }

    pub(crate) fn release_stream(&self, socket: Handle) -> Option<OwnedFd> {
        self.reactor.release_stream(socket)
    }

    pub(crate) fn adopt_stream(&self, fd: OwnedFd) -> Option<Handle> {
        self.reactor.adopt_stream(fd)
    }
}

/// An operation under way, from [`Env::op`]. It resolves once, with its outcome.
pub struct OpFuture {
    reactor: Rc<dyn Reactor>,
    token: Option<Token>,
}

impl Future for OpFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let token = self.token.expect("polled after completion");
        let outcome = std::task::ready!(self.reactor.poll(token, cx));
        self.token = None;
        Poll::Ready(outcome)
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.reactor.forget(token);
        }
    }
}
