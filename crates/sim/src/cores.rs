//! Several cores of one process: an executor for each, over one world.
//!
//! One task is polled at a time, on a core that the seed selects. At a crossing (`Reactor::crossing`) other cores may be
//! polled in the middle of a poll, as threads of real cores run meanwhile.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use blk::fence::Deadline;
use blk::memory::Memory;
use blk::reactor::{self, Handle, Op, Outcome, Reactor, SharedDescriptor, Token};
use blk::{Env, Errno, Executor};

use crate::reactor::SimReactor;
use crate::rng::Rng;

/// Most tasks of one core that are polled before another core has its chance.
const POLLS_MAX: u64 = 6;
/// One of this many rounds turns the reactor although tasks are ready.
const TURN_EVERY: u64 = 16;

pub(crate) struct Cores {
    world: SimReactor,
    executors: OnceCell<Vec<Executor>>,
    /// Cores that are in a poll.
    polling: Vec<Cell<bool>>,
    rng: RefCell<Rng>,
}

impl Cores {
    pub(crate) fn new(world: SimReactor, count: usize) -> Rc<Cores> {
        let cores = Rc::new(Cores {
            executors: OnceCell::new(),
            polling: vec![Cell::new(false); count],
            rng: RefCell::new(Rng::new(world.random())),
            world,
        });
        let executor = |_| {
            Executor::new(Rc::new(CoreReactor { world: cores.world.clone(), cores: Rc::downgrade(&cores) }))
        };
        let executors = (0..count).map(executor).collect();
        assert!(cores.executors.set(executors).is_ok(), "set once");
        cores
    }

    pub(crate) fn envs(&self) -> Vec<Env> {
        self.executors().iter().map(Executor::env).collect()
    }

    fn executors(&self) -> &[Executor] {
        self.executors.get().expect("set by new")
    }

    /// Runs all cores until `main`, a task of the first, is done. Returns None if no task can make progress.
    pub(crate) fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let out = result.clone();
        self.executors()[0].env().spawn_detached(Box::pin(async move {
            let value = main.await;
            *out.borrow_mut() = Some(value);
        }));
        loop {
            if let Some(value) = result.borrow_mut().take() {
                return Some(value);
            }
            let polled = self.poll_one();
            let is_awaited = self.executors().iter().any(Executor::is_turn_awaited);
            match polled {
                true if !self.one_in(TURN_EVERY) => continue,
                false if !is_awaited => {
                    if !self.world.wait() {
                        return None;
                    }
                }
                _ => self.world.turn(),
            }
            self.executors().iter().for_each(Executor::turned);
        }
    }

    fn one_in(&self, n: u64) -> bool {
        self.rng.borrow_mut().below(n) == 0
    }

    /// Polls some tasks of one core that has ready ones and is not in a poll. Returns false if there is none.
    fn poll_one(&self) -> bool {
        let is_free = |at: &usize| !self.polling[*at].get() && self.executors()[*at].has_ready();
        let free: Vec<usize> = (0..self.polling.len()).filter(is_free).collect();
        if free.is_empty() {
            return false;
        }
        let (at, most) = {
            let mut rng = self.rng.borrow_mut();
            (free[rng.below(free.len() as u64) as usize], 1 + rng.below(POLLS_MAX))
        };
        self.polling[at].set(true);
        self.executors()[at].poll_some(most as usize);
        self.polling[at].set(false);
        true
    }

    fn cross(&self) {
        while self.one_in(2) && self.poll_one() {}
    }
}

/// The world as one core sees it.
struct CoreReactor {
    world: SimReactor,
    cores: Weak<Cores>,
}

/// Calls of the reactor that the world answers.
macro_rules! world {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $out {
            self.world.$name($($arg),*)
        })*
    };
}

impl Reactor for CoreReactor {
    world! {
        submit(op: Op) -> Token;
        forget(token: Token) -> ();
        close(handle: Handle) -> ();
        open_root(path: &str) -> Result<Handle, Errno>;
        share(file: Handle) -> Result<SharedDescriptor, Errno>;
        adopt_shared(descriptor: SharedDescriptor) -> Result<Handle, Errno>;
        fence(file: Handle, deadline: Arc<Deadline>) -> ();
        now_ns() -> u64;
        boot_ns() -> u64;
        unix_us() -> i64;
        random() -> u64;
        memory() -> Option<Rc<dyn Memory>>;
        waker() -> Arc<dyn reactor::Waker>;
    }

    fn poll(&self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.world.poll(token, cx)
    }

    fn crossing(&self) {
        if let Some(cores) = self.cores.upgrade() {
            cores.cross();
        }
    }

    fn turn(&self) {
        unreachable!("all cores turn the world together");
    }

    fn wait(&self) -> bool {
        unreachable!("all cores wait for the world together")
    }
}
