//! Delays requests of a party that has reached its limits, until the limits permit them.
//!
//! A request that may not begin waits in the party's queue, in order of arrival over all its connections. It holds its
//! place in its connection's memory, as a request does that waits for a slow disk; a read allocates its buffer when it
//! begins. The connection receives on until its requests have `DELAYED_BYTES_MAX` of memory, and other parties are not
//! involved. Flushes and questions about allocation are never delayed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use blk::Env;
use blk::sync::Signal;
use futures_util::future::select;

use crate::bucket::Buckets;
use crate::limits::{IoCost, IoLimits};

/// Shortest sleep in microseconds. Requests that may begin within this time begin together; the buckets hold more than
/// that.
const SLEEP_US_MIN: u64 = 100;
/// Longest sleep in microseconds. A longer wait is several sleeps, so that no point in time overflows.
const SLEEP_US_MAX: u64 = 60_000_000;

/// The limits of one party, and its requests that wait for them.
#[derive(Default)]
pub struct Limiter {
    limits: Cell<IoLimits>,
    ios: RefCell<Buckets>,
    bytes: RefCell<Buckets>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
    /// Whether a task serves the queue. It ends when the queue is empty.
    served: Cell<bool>,
    /// Signals that the limits or the queue's first request have changed.
    changed: Signal,
}

/// A request that waits.
struct Waiter {
    /// The connection of the request.
    connection: u64,
    cost: IoCost,
    state: RefCell<WaiterState>,
}

enum WaiterState {
    New,
    Waiting(Waker),
    /// The limits permit the request.
    Permitted,
    /// The connection has ended: the request must not begin.
    Dropped,
}

/// The wait of a request. Resolves to true when the request may begin, and to false when it must not begin any more.
pub(crate) struct Delay {
    limiter: Rc<Limiter>,
    waiter: Rc<Waiter>,
}

impl Limiter {
    /// Changes the limits. They apply at once to requests that wait, too.
    pub fn set(&self, limits: IoLimits) {
        self.limits.set(limits);
        self.ios.borrow_mut().set(limits.ios);
        self.bytes.borrow_mut().set(limits.bytes);
        self.changed.notify();
    }

    /// Returns the number of requests that wait now.
    pub fn delayed(&self) -> u64 {
        self.queue.borrow().len() as u64
    }

    pub(crate) fn weight(&self) -> u64 {
        u64::from(self.limits.get().weight.max(1))
    }

    fn is_limited(&self) -> bool {
        self.ios.borrow().is_limited() || self.bytes.borrow().is_limited()
    }

    /// Pays for a request that may begin now, or returns its wait.
    pub(crate) fn admit(self: &Rc<Self>, env: &Env, connection: u64, cost: IoCost) -> Option<Delay> {
        if self.queue.borrow().is_empty() {
            if !self.is_limited() {
                return None;
            }
            if self.wait_us(env, cost) == 0 {
                self.pay(env, cost);
                return None;
            }
        }
        let waiter = Rc::new(Waiter { connection, cost, state: RefCell::new(WaiterState::New) });
        self.queue.borrow_mut().push_back(waiter.clone());
        if !self.served.replace(true) {
            env.spawn_detached(Box::pin(serve(self.clone(), env.clone())));
        }
        Some(Delay { limiter: self.clone(), waiter })
    }

    /// Pays for a request that begins now without a wait. Later requests of the party wait the longer.
    pub(crate) fn pay(&self, env: &Env, cost: IoCost) {
        let now_ns = env.now_ns();
        self.ios.borrow_mut().take(now_ns, cost.ios);
        self.bytes.borrow_mut().take(now_ns, cost.bytes);
    }

    /// Returns the microseconds until a request of this cost may begin.
    fn wait_us(&self, env: &Env, cost: IoCost) -> u64 {
        let now_ns = env.now_ns();
        self.ios.borrow().wait_us(now_ns, cost.ios).max(self.bytes.borrow().wait_us(now_ns, cost.bytes))
    }

    /// Lets all waiting requests of a connection begin, because its client sends no more and waits for its answers.
    pub(crate) fn permit_all(&self, env: &Env, connection: u64) {
        for waiter in self.remove(connection) {
            self.pay(env, waiter.cost);
            waiter.end(WaiterState::Permitted);
        }
    }

    /// Ends the waits of a connection that is closed. Its requests do not begin.
    pub(crate) fn drop_all(&self, connection: u64) {
        self.remove(connection).into_iter().for_each(|waiter| waiter.end(WaiterState::Dropped));
    }

    fn remove(&self, connection: u64) -> VecDeque<Rc<Waiter>> {
        if self.queue.borrow().is_empty() {
            return VecDeque::new();
        }
        let (own, others) =
            self.queue.take().into_iter().partition(|waiter: &Rc<Waiter>| waiter.connection == connection);
        self.queue.replace(others);
        self.changed.notify();
        own
    }

    /// Lets requests begin in order of arrival. Returns the microseconds until the next one may, or None when none
    /// waits.
    fn serve_ready(&self, env: &Env) -> Option<u64> {
        loop {
            let cost = self.queue.borrow().front()?.cost;
            let wait_us = self.wait_us(env, cost);
            if wait_us > 0 {
                return Some(wait_us);
            }
            self.pay(env, cost);
            let first = self.queue.borrow_mut().pop_front();
            first.inspect(|waiter| waiter.end(WaiterState::Permitted));
        }
    }
}

/// Lets the waiting requests of a party begin when its limits permit, until none waits.
async fn serve(limiter: Rc<Limiter>, env: Env) {
    loop {
        // The wait for a change is registered before the queue is examined, so that no change is missed.
        let changed = limiter.changed.wait();
        let Some(wait_us) = limiter.serve_ready(&env) else { break };
        select(pin!(changed), pin!(env.sleep_us(wait_us.clamp(SLEEP_US_MIN, SLEEP_US_MAX)))).await;
    }
    limiter.served.set(false);
}

impl Waiter {
    fn end(&self, state: WaiterState) {
        if let WaiterState::Waiting(waker) = self.state.replace(state) {
            waker.wake();
        }
    }
}

impl Future for Delay {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.waiter.state.borrow_mut();
        match *state {
            WaiterState::Permitted => Poll::Ready(true),
            WaiterState::Dropped => Poll::Ready(false),
            WaiterState::New | WaiterState::Waiting(_) => {
                *state = WaiterState::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        if matches!(*self.waiter.state.borrow(), WaiterState::Permitted | WaiterState::Dropped) {
            return;
        }
        self.limiter.queue.borrow_mut().retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
        self.limiter.changed.notify();
    }
}

/// The limiters that are in use, by party.
#[derive(Default)]
pub(crate) struct Limiters {
    by_party: RefCell<BTreeMap<String, Weak<Limiter>>>,
    /// Number of limiters that were in use when the others were last removed.
    in_use: Cell<usize>,
}

/// Number of limiters that are kept without a search for those that are not in use.
const UNSEARCHED: usize = 64;

impl Limiters {
    /// Returns the limiter of a party, created without limits.
    pub(crate) fn of(&self, party: &str) -> Rc<Limiter> {
        let mut known = self.by_party.borrow_mut();
        if let Some(limiter) = known.get(party).and_then(Weak::upgrade) {
            return limiter;
        }
        // A search costs as much as there are: one for each doubling.
        if known.len() > 2 * self.in_use.get() + UNSEARCHED {
            known.retain(|_, limiter| limiter.strong_count() > 0);
            self.in_use.set(known.len());
        }
        let limiter = Rc::new(Limiter::default());
        known.insert(party.to_string(), Rc::downgrade(&limiter));
        limiter
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;
