//! Fair shares of the core: what each group may have begun between two turns of the reactor.
//!
//! A group is all clients of one VM (`Exports::client_group`). Before a connection begins a piece of work it takes that work's
//! cost from its group's credit. Each turn of the reactor grants every group the same credit, so that groups with
//! work to do get equal shares of the core however many connections each has. Within a group the connections that wait
//! are served in order of arrival; each waits for one piece at a time, so they take turns.
//!
//! A group that stays below its credit never waits, and pays for the look alone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use blk::Env;
use blk::sync::TaskMutex;

/// Cost of a request beside its bytes: its tasks and system calls take the core as long as copying this much.
pub(super) const REQUEST_COST: u64 = 8 << 10;
/// Credit of a group for one turn when one group waits: 53 requests of 4 KiB, or half of the largest piece of a
/// request. Copying that much takes about 0.1 ms.
pub(super) const TURN_CREDIT: u64 = 640 << 10;
/// Credit however many wait. A hundred groups begin 6 MiB a turn, which takes about 1 ms.
pub(super) const TURN_CREDIT_MIN: u64 = 64 << 10;

/// Credit of a group that has been the only one for [`ALONE_TURNS`]: its requests are limited by nothing else then, and a
/// newcomer waits for 1 ms of work at most.
pub(super) const ALONE_CREDIT: u64 = 8 << 20;
const ALONE_TURNS: u64 = 256;

/// Every group that has connections, and those whose connections wait.
pub(super) struct FairScheduler {
    groups: RefCell<BTreeMap<String, Weak<ClientGroup>>>,
    /// Groups with waiting connections; a task grants them credit as long as there are any.
    waiting: RefCell<Vec<Rc<ClientGroup>>>,
    /// The group that took last, as a name only, and the turn in which it followed another.
    last: Cell<*const ClientGroup>,
    shared_at: Cell<u64>,
}

/// The connections that share one credit.
pub(super) struct ClientGroup {
    /// What may still be begun in turn `turn`; a piece that began with little credit left makes it negative.
    credit: Cell<i64>,
    turn: Cell<u64>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
    /// Held by the BLOCK_STATUS that is at work: looking a large range up takes the core long, so that a group does it once
    /// at a time.
    pub status_turn: TaskMutex,
}

/// A connection's place in its group's queue.
struct Waiter {
    cost: u64,
    state: RefCell<WaiterState>,
}

enum WaiterState {
    New,
    Waiting(Waker),
    Granted,
    /// The connection has ended meanwhile.
    Gone,
}

struct WaiterGuard(Rc<Waiter>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        *self.0.state.borrow_mut() = WaiterState::Gone;
    }
}

impl ClientGroup {
    fn new() -> ClientGroup {
        ClientGroup {
            credit: Cell::new(TURN_CREDIT as i64),
            turn: Cell::new(0),
            queue: RefCell::default(),
            status_turn: TaskMutex::default(),
        }
    }

    /// Credit is not saved: a group that was idle has one turn's.
    fn renew(&self, turn: u64, credit: u64) {
        let turns = turn.saturating_sub(self.turn.replace(turn));
        let earned = turns.saturating_mul(credit).min(i64::MAX as u64 / 2) as i64;
        self.credit.set((self.credit.get() + earned).min(credit as i64));
    }

    fn spend(&self, cost: u64) {
        self.credit.set(self.credit.get() - cost as i64);
    }

    /// Lets connections begin, first come first served, while there is credit. False when none waits any more.
    fn serve(&self) -> bool {
        let mut queue = self.queue.borrow_mut();
        while self.credit.get() > 0
            && let Some(waiter) = queue.pop_front()
        {
            match std::mem::replace(&mut *waiter.state.borrow_mut(), WaiterState::Granted) {
                WaiterState::Gone => continue,
                WaiterState::Waiting(waker) => waker.wake(),
                WaiterState::New | WaiterState::Granted => {}
            }
            self.spend(waiter.cost);
        }
        !queue.is_empty()
    }
}

impl Default for FairScheduler {
    fn default() -> Self {
        FairScheduler {
            groups: RefCell::default(),
            waiting: RefCell::default(),
            last: Cell::new(std::ptr::null()),
            shared_at: Cell::new(0),
        }
    }
}

impl FairScheduler {
    pub(super) fn group(&self, name: &str) -> Rc<ClientGroup> {
        let mut known = self.groups.borrow_mut();
        if let Some(group) = known.get(name).and_then(Weak::upgrade) {
            return group;
        }
        known.retain(|_, group| group.strong_count() > 0);
        let group = Rc::new(ClientGroup::new());
        known.insert(name.to_string(), Rc::downgrade(&group));
        group
    }

    fn note(&self, group: &Rc<ClientGroup>, turn: u64) {
        let now = Rc::as_ptr(group);
        let last = self.last.replace(now);
        if last != now && !last.is_null() {
            self.shared_at.set(turn);
        }
    }

    /// The more groups wait, the less each may begin in a turn, so that turns stay short.
    fn turn_credit(&self, turn: u64) -> u64 {
        let waiting = self.waiting.borrow().len() as u64;
        if waiting <= 1 && turn > self.shared_at.get() + ALONE_TURNS {
            return ALONE_CREDIT;
        }
        (2 * TURN_CREDIT / (1 + waiting.max(1))).max(TURN_CREDIT_MIN)
    }

    /// Waits until `group` may begin work of this cost, and spends it.
    pub(super) async fn take(self: &Rc<Self>, env: &Env, group: &Rc<ClientGroup>, cost: u64) {
        let turn = env.turns();
        self.note(group, turn);
        if group.queue.borrow().is_empty() {
            group.renew(turn, self.turn_credit(turn));
            if group.credit.get() > 0 {
                return group.spend(cost);
            }
        }
        let waiter = Rc::new(Waiter { cost, state: RefCell::new(WaiterState::New) });
        let first = group.queue.borrow().is_empty();
        group.queue.borrow_mut().push_back(waiter.clone());
        if first {
            self.attend(env, group);
        }
        let queued = WaiterGuard(waiter);
        poll_fn(|cx| {
            let mut state = queued.0.state.borrow_mut();
            if matches!(*state, WaiterState::Granted) {
                return Poll::Ready(());
            }
            *state = WaiterState::Waiting(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Has `group`'s queue served with each turn.
    fn attend(self: &Rc<Self>, env: &Env, group: &Rc<ClientGroup>) {
        let mut waiting = self.waiting.borrow_mut();
        // It may still be listed: all its connections may have gone while they waited.
        if waiting.iter().any(|known| Rc::ptr_eq(known, group)) {
            return;
        }
        waiting.push(group.clone());
        if waiting.len() == 1 {
            env.spawn_detached(Box::pin(serve_waiting(self.clone(), env.clone())));
        }
    }
}

/// Serves every waiting group once with each turn, until none waits.
async fn serve_waiting(scheduler: Rc<FairScheduler>, env: Env) {
    loop {
        env.next_turn().await;
        let turn = env.turns();
        let credit = scheduler.turn_credit(turn);
        let mut waiting = scheduler.waiting.borrow_mut();
        waiting.retain(|group| {
            group.renew(turn, credit);
            group.serve()
        });
        if waiting.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
