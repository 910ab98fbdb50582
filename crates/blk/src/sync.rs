//! Synchronisation of tasks on one core: first come, first served, without atomics or locks. `SharedSignal` alone is for
//! tasks of several cores.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// Wakes all tasks that wait, on any core. Like [`Signal`], but for state that several cores use. It is not for the path
/// of a guest's request.
#[derive(Default)]
pub struct SharedSignal(Mutex<SharedWaiters>);

#[derive(Default)]
struct SharedWaiters {
    epoch: u64,
    /// Tasks in the order of their first poll. An abandoned wait stays listed until the next notification, whose wake
    /// of that task has no effect.
    wakers: Vec<Waker>,
}

impl SharedSignal {
    fn lock(&self) -> MutexGuard<'_, SharedWaiters> {
        self.0.lock().expect("no panic inside")
    }

    /// Wakes all present waiters, in the order of their first poll.
    pub fn notify(&self) {
        let mut waiters = self.lock();
        waiters.epoch += 1;
        let woken = std::mem::take(&mut waiters.wakers);
        drop(waiters);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Resolves at the first `notify` after this call (not after the first poll). A waiter calls it before it checks
    /// its condition, because the condition may change on another core. The future may be dropped at any time.
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.lock().epoch;
        poll_fn(move |cx| {
            let mut waiters = self.lock();
            if waiters.epoch != seen {
                return Poll::Ready(());
            }
            if !waiters.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}

/// Wakes all tasks that wait. A waiter checks its own condition again: `while !cond { signal.wait().await }`.
#[derive(Default)]
pub struct Signal {
    epoch: Cell<u64>,
    next_ticket: Cell<u64>,
    /// Waiting tasks by ticket, in the order of their first poll.
    waiters: RefCell<Vec<(u64, Waker)>>,
}

impl Signal {
    /// Wakes all present waiters, in the order of their first poll.
    pub fn notify(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for (_, waker) in self.waiters.take() {
            waker.wake();
        }
    }

    /// Resolves at the first `notify` after this call (not after the first poll). The future may be dropped at any
    /// time.
    pub fn wait(&self) -> SignalWait<'_> {
        SignalWait { signal: self, seen: self.epoch.get(), listed: None }
    }
}

/// One wait for a [`Signal`].
pub struct SignalWait<'a> {
    signal: &'a Signal,
    seen: u64,
    /// The ticket and waker of this wait in the signal's list.
    listed: Option<(u64, Waker)>,
}

impl SignalWait<'_> {
    fn is_over(&self) -> bool {
        self.signal.epoch.get() != self.seen
    }
}

impl Future for SignalWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_over() {
            return Poll::Ready(());
        }
        let (signal, waker) = (self.signal, cx.waker());
        let mut waiters = signal.waiters.borrow_mut();
        match &mut self.listed {
            // The task was polled for another reason; one entry is enough.
            Some((_, known)) if known.will_wake(waker) => {}
            Some((ticket, known)) => {
                known.clone_from(waker);
                let own = waiters.iter_mut().find(|(other, _)| other == ticket);
                own.expect("listed until the next notify").1.clone_from(waker);
            }
            None => {
                let ticket = signal.next_ticket.get();
                signal.next_ticket.set(ticket + 1);
                waiters.push((ticket, waker.clone()));
                self.listed = Some((ticket, waker.clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for SignalWait<'_> {
    fn drop(&mut self) {
        let Some((ticket, _)) = self.listed.take().filter(|_| !self.is_over()) else { return };
        let mut waiters = self.signal.waiters.borrow_mut();
        let own = waiters.iter().position(|(other, _)| *other == ticket).map(|at| waiters.remove(at));
        // Dropping a waker may drop a task that waits here too.
        drop(waiters);
        drop(own);
    }
}

/// A value that is handed over once.
pub struct OneShot<T> {
    value: RefCell<Option<T>>,
    signal: Signal,
}

impl<T> Default for OneShot<T> {
    fn default() -> Self {
        Self { value: RefCell::new(None), signal: Signal::default() }
    }
}

impl<T> OneShot<T> {
    /// Hands over `value` and wakes the taker.
    pub fn set(&self, value: T) {
        *self.value.borrow_mut() = Some(value);
        self.signal.notify();
    }

    /// Waits for the value and takes it. If several tasks wait, one gets it.
    pub async fn take(&self) -> T {
        loop {
            if let Some(value) = self.value.borrow_mut().take() {
                return value;
            }
            self.signal.wait().await;
        }
    }
}

/// Mutual exclusion of ranges in order of arrival: a later range waits for every earlier overlapping one.
///
/// There are no deadlocks as long as a holder takes no second range of the same lock.
#[derive(Default, Clone)]
pub struct RangeLock(Rc<RangeLockState>);

#[derive(Default)]
struct RangeLockState {
    next_ticket: Cell<u64>,
    /// Holders and waiters, oldest first.
    entries: RefCell<VecDeque<Entry>>,
}

struct Entry {
    ticket: u64,
    range: Range<u64>,
    /// Set while the owner waits.
    waker: Option<Waker>,
}

/// A range that is locked or waits to be locked. Dropping it lets later ranges proceed.
pub struct RangeGuard {
    lock: Rc<RangeLockState>,
    ticket: u64,
}

impl RangeLock {
    /// Returns whether no range is locked or waits.
    pub fn is_idle(&self) -> bool {
        self.0.entries.borrow().is_empty()
    }

    /// Queues for `range` now, and resolves when no earlier overlapping range is left.
    pub fn lock(&self, range: Range<u64>) -> impl Future<Output = RangeGuard> + use<> {
        let ticket = self.0.next_ticket.get();
        self.0.next_ticket.set(ticket + 1);
        self.0.entries.borrow_mut().push_back(Entry { ticket, range: range.clone(), waker: None });
        let mut guard = Some(RangeGuard { lock: self.0.clone(), ticket });
        poll_fn(move |cx| {
            let mine = guard.as_ref().expect("polled after completion");
            let mut entries = mine.lock.entries.borrow_mut();
            let blocked = entries
                .iter()
                .take_while(|e| e.ticket < ticket)
                .any(|e| e.range.start < range.end && range.start < e.range.end);
            if blocked {
                let entry = entries.iter_mut().find(|e| e.ticket == ticket).expect("own entry");
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            drop(entries);
            Poll::Ready(guard.take().expect("polled after completion"))
        })
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut entries = self.lock.entries.borrow_mut();
        let at = entries.iter().position(|e| e.ticket == self.ticket).expect("a held range is listed");
        let range = entries.remove(at).expect("position is inside").range;
        let mut wakers = Vec::new();
        for entry in entries.range_mut(at..) {
            if entry.range.start < range.end && range.start < entry.range.end {
                wakers.extend(entry.waker.take());
            }
            if entry.range.start <= range.start && range.end <= entry.range.end {
                // All that are left and overlap the range wait for this entry too.
                break;
            }
        }
        drop(entries);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A fair mutex for tasks of one core: a range lock of one point.
#[derive(Default, Clone)]
pub struct TaskMutex(RangeLock);

impl TaskMutex {
    /// Returns whether the mutex is free and no task waits for it.
    pub fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    /// Queues now, and resolves when all earlier holders have dropped their guards.
    pub fn lock(&self) -> impl Future<Output = RangeGuard> + use<> {
        self.0.lock(0..1)
    }
}

/// Counts work under way by epochs, so that a task can wait until everything admitted before now has completed.
///
/// The engine uses it for the seal (writes admitted under the old chain), and before freed space is punched (reads
/// too).
#[derive(Default)]
pub struct Admission {
    state: RefCell<AdmissionState>,
    drained: Signal,
}

#[derive(Default)]
struct AdmissionState {
    epoch: u64,
    /// Pairs of an epoch and its number of pieces under way, oldest first. Only epochs with work, and the newest.
    counts: VecDeque<(u64, usize)>,
}

/// One admitted piece of work. Dropping it ends the work.
pub struct Admitted {
    gate: Rc<Admission>,
    epoch: u64,
}

impl Admission {
    /// Admits one piece of work to the present epoch.
    pub fn enter(self: &Rc<Self>) -> Admitted {
        let mut state = self.state.borrow_mut();
        let epoch = state.epoch;
        match state.counts.back_mut() {
            Some((e, n)) if *e == epoch => *n += 1,
            _ => state.counts.push_back((epoch, 1)),
        }
        Admitted { gate: self.clone(), epoch }
    }

    /// Starts a new epoch. The returned future resolves when all work of earlier epochs has ended.
    pub fn drain(self: &Rc<Self>) -> impl Future<Output = ()> + use<> {
        let old = {
            let mut state = self.state.borrow_mut();
            state.epoch += 1;
            state.epoch - 1
        };
        let gate = self.clone();
        async move {
            while gate.state.borrow().counts.iter().any(|&(e, n)| e <= old && n > 0) {
                gate.drained.wait().await;
            }
        }
    }

    /// Returns the number of admitted pieces of work, of all epochs.
    pub fn in_flight(&self) -> usize {
        self.state.borrow().counts.iter().map(|&(_, n)| n).sum()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.gate.state.borrow_mut();
        let newest = state.epoch;
        let entry =
            state.counts.iter_mut().find(|(e, _)| *e == self.epoch).expect("an admitted epoch is counted");
        entry.1 -= 1;
        let emptied = entry.1 == 0 && self.epoch != newest;
        state.counts.retain(|&(e, n)| n > 0 || e == newest);
        drop(state);
        if emptied {
            self.gate.drained.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use super::*;

    /// Whether a waiter was woken since its last poll.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct Waiter {
        range: Range<u64>,
        woken: Arc<Woken>,
        lock: Pin<Box<dyn Future<Output = RangeGuard>>>,
        guard: Option<RangeGuard>,
    }

    impl Waiter {
        /// Polls as an executor does: only after the waiter was woken.
        fn poll_if_woken(&mut self) {
            if self.guard.is_none() && self.woken.0.swap(false, Ordering::Relaxed) {
                let waker = Waker::from(self.woken.clone());
                if let Poll::Ready(guard) = self.lock.as_mut().poll(&mut Context::from_waker(&waker)) {
                    self.guard = Some(guard);
                }
            }
        }
    }

    fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
        a.start < b.end && b.start < a.end
    }

    /// All waiters, oldest first. Each has its range exactly if no earlier one overlaps it.
    fn verify(waiters: &[Waiter]) {
        for (at, waiter) in waiters.iter().enumerate() {
            let is_free = waiters[..at].iter().all(|earlier| !overlap(&earlier.range, &waiter.range));
            assert_eq!(waiter.guard.is_some(), is_free, "{:?}, number {at}", waiter.range);
        }
    }

    #[test]
    fn a_range_is_locked_exactly_when_no_earlier_one_overlaps_it_and_no_wake_up_is_lost() {
        let (lock, mut state) = (RangeLock::default(), 1_u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut waiters: Vec<Waiter> = Vec::new();
        for _ in 0..20_000 {
            if waiters.len() < 12 && random(2) == 0 {
                let start = random(12);
                let range = start..start + 1 + random(8);
                let woken = Arc::new(Woken(AtomicBool::new(true)));
                let lock = Box::pin(lock.lock(range.clone()));
                waiters.push(Waiter { range, woken, lock, guard: None });
            } else if !waiters.is_empty() {
                // Holders end, and waiters are cancelled.
                let at = random(waiters.len() as u64);
                drop(waiters.remove(usize::try_from(at).expect("an index")));
            }
            waiters.iter_mut().for_each(Waiter::poll_if_woken);
            verify(&waiters);
        }
    }
}
