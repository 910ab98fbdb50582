//! Fair shares of the core: the amount of work that each party may begin between two turns of the reactor.
//!
//! A party is all clients of one VM (`Exports::party`). Before a connection begins a piece of work, it pays the cost
//! from its party's credit. Each turn of the reactor grants every party credit in proportion to its weight. Parties of
//! equal weight with work to do therefore get equal shares of the core, however many connections each has. Within a
//! party, waiting connections are served in order of arrival, and each waits for one piece at a time, so they take
//! turns.
//!
//! A party that stays below its credit never waits; it only pays for the check.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use blk::Env;
use blk::sync::TaskMutex;

use crate::limiter::{Limiter, Limiters};
use crate::limits::WEIGHT_DEFAULT;
use crate::under_way::{Sharing, UnderWay};

/// Cost of a request in addition to its bytes: its tasks and system calls occupy the core for as long as copying this
/// much.
pub(crate) const REQUEST_COST: u64 = 8 << 10;
/// Credit of a party of default weight for one turn if one party waits: 53 requests of 4 KiB, or half of the largest
/// piece of a request. Copying that much takes about 0.1 ms.
pub(crate) const TURN_CREDIT: u64 = 640 << 10;
/// Smallest credit of a party of average weight, however many parties wait. A hundred parties begin 6 MiB a turn, which
/// takes about 1 ms.
pub(crate) const TURN_CREDIT_MIN: u64 = 64 << 10;

/// Credit of a party that has been the only one for [`ALONE_TURNS`]. Nothing else limits its requests then, and a new
/// party waits for at most 1 ms of work.
pub(crate) const ALONE_CREDIT: u64 = 8 << 20;
const ALONE_TURNS: u64 = 256;

/// All parties with connections, and those whose connections wait.
pub(crate) struct FairScheduler {
    pub limiters: Limiters,
    /// Whether several parties use the core now.
    pub sharing: Sharing,
    groups: RefCell<BTreeMap<String, Weak<ClientGroup>>>,
    /// Parties with waiting connections. A task grants them credit as long as there are any.
    waiting: RefCell<Vec<Rc<ClientGroup>>>,
    /// Sum of the weights of `waiting`, so that the check of a request does not visit all of them.
    weights: Cell<u64>,
    /// The party that began work last (compared by address only), and the turn in which it followed another.
    last: Cell<*const ClientGroup>,
    shared_at: Cell<u64>,
}

/// Connections that share one credit.
pub(crate) struct ClientGroup {
    /// Credit left in turn `turn`. A piece that began with little credit left makes it negative.
    credit: Cell<i64>,
    turn: Cell<u64>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
    /// Held by a BLOCK_STATUS that is under way. The lookup of a large range occupies the core for long, so a party has
    /// one at a time.
    pub status_turn: TaskMutex,
    /// The party's limits, and its weight.
    pub limiter: Rc<Limiter>,
    /// What the party has under way at its devices.
    pub under_way: UnderWay,
}

/// What the parties that wait share in a turn.
enum Shares {
    /// The party has been the only one for long.
    Alone,
    /// Number of parties that wait, and the sum of their weights.
    Of { parties: u64, weights: u64 },
}

/// A connection's place in the queue of its party.
struct Waiter {
    cost: u64,
    state: RefCell<WaiterState>,
}

enum WaiterState {
    New,
    Waiting(Waker),
    Granted,
    /// The connection has ended.
    Gone,
}

struct WaiterGuard(Rc<Waiter>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        *self.0.state.borrow_mut() = WaiterState::Gone;
    }
}

impl ClientGroup {
    fn new(limiter: Rc<Limiter>) -> ClientGroup {
        ClientGroup {
            credit: Cell::new(TURN_CREDIT as i64),
            turn: Cell::new(0),
            queue: RefCell::default(),
            status_turn: TaskMutex::default(),
            limiter,
            under_way: UnderWay::default(),
        }
    }

    /// Starts a turn. Credit is not saved: a party that was idle has the credit of one turn.
    fn renew(&self, turn: u64, credit: u64) {
        let turns = turn.saturating_sub(self.turn.replace(turn));
        let earned = turns.saturating_mul(credit).min(i64::MAX as u64 / 2) as i64;
        self.credit.set((self.credit.get() + earned).min(credit as i64));
    }

    fn spend(&self, cost: u64) {
        self.credit.set(self.credit.get() - cost as i64);
    }

    /// Lets connections begin in order of arrival while there is credit. Returns false when none waits any more.
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

impl Shares {
    /// Returns the credit of a party for one turn. The more parties wait the smaller it is, so that turns stay short.
    fn credit(&self, weight: u64) -> u64 {
        let Shares::Of { parties, weights } = *self else { return ALONE_CREDIT };
        let default = u64::from(WEIGHT_DEFAULT);
        let share = 2 * TURN_CREDIT * weight / (default + weights.max(default));
        let least = TURN_CREDIT_MIN * weight * parties.max(1) / weights.max(default);
        share.max(least).max(1)
    }
}

impl Default for FairScheduler {
    fn default() -> Self {
        FairScheduler {
            limiters: Limiters::default(),
            sharing: Sharing::default(),
            groups: RefCell::default(),
            waiting: RefCell::default(),
            weights: Cell::new(0),
            last: Cell::new(std::ptr::null()),
            shared_at: Cell::new(0),
        }
    }
}

impl FairScheduler {
    pub(crate) fn group(&self, name: &str) -> Rc<ClientGroup> {
        let mut known = self.groups.borrow_mut();
        if let Some(group) = known.get(name).and_then(Weak::upgrade) {
            return group;
        }
        known.retain(|_, group| group.strong_count() > 0);
        let group = Rc::new(ClientGroup::new(self.limiters.of(name)));
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

    fn shares(&self, turn: u64) -> Shares {
        let parties = self.waiting.borrow().len() as u64;
        if parties <= 1 && turn > self.shared_at.get() + ALONE_TURNS {
            return Shares::Alone;
        }
        Shares::Of { parties, weights: self.weights.get() }
    }

    /// Waits until `group` may begin work of this cost, and spends it.
    pub(crate) async fn take(self: &Rc<Self>, env: &Env, group: &Rc<ClientGroup>, cost: u64) {
        let turn = env.turns();
        self.note(group, turn);
        if group.queue.borrow().is_empty() {
            group.renew(turn, self.shares(turn).credit(group.limiter.weight()));
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

    /// Puts `party` on the list whose queues are served in each turn.
    fn attend(self: &Rc<Self>, env: &Env, group: &Rc<ClientGroup>) {
        let mut waiting = self.waiting.borrow_mut();
        // The party may still be listed: all its connections may have ended while they waited.
        if waiting.iter().any(|known| Rc::ptr_eq(known, group)) {
            return;
        }
        waiting.push(group.clone());
        self.weights.update(|sum| sum + group.limiter.weight());
        if waiting.len() == 1 {
            env.spawn_detached(Box::pin(serve_waiting(self.clone(), env.clone())));
        }
    }
}

/// Serves every waiting party once in each turn, until none waits.
async fn serve_waiting(scheduler: Rc<FairScheduler>, env: Env) {
    loop {
        env.next_turn().await;
        let turn = env.turns();
        let shares = scheduler.shares(turn);
        let mut waiting = scheduler.waiting.borrow_mut();
        waiting.retain(|group| {
            group.renew(turn, shares.credit(group.limiter.weight()));
            group.serve()
        });
        // A weight that was changed applies from the next turn on.
        scheduler.weights.set(waiting.iter().map(|group| group.limiter.weight()).sum());
        if waiting.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "fair_tests.rs"]
mod tests;
