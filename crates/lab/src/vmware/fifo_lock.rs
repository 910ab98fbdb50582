//! A first-come, first-served lock. `blk`'s range locks wake all waiters; here a disk's whole load waits in one queue,
//! so only the next waiter is woken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Default, Clone)]
pub(crate) struct FifoLock(Rc<Queue>);

#[derive(Default)]
struct Queue {
    next_ticket: Cell<u64>,
    /// In order of tickets; the first one holds the lock.
    waiting: RefCell<VecDeque<Waiter>>,
}

struct Waiter {
    ticket: u64,
    waker: Option<Waker>,
}

/// The held lock, or a place in the queue for it; dropping it leaves the queue.
pub(crate) struct FifoGuard {
    queue: Rc<Queue>,
    ticket: u64,
}

impl FifoLock {
    /// Joins the queue now, and resolves when all earlier holders have left.
    pub(crate) fn lock(&self) -> impl Future<Output = FifoGuard> + use<> {
        let ticket = self.0.next_ticket.get();
        self.0.next_ticket.set(ticket + 1);
        self.0.waiting.borrow_mut().push_back(Waiter { ticket, waker: None });
        let mut guard = Some(FifoGuard { queue: self.0.clone(), ticket });
        poll_fn(move |cx| {
            let mine = guard.as_ref().expect("polled after completion");
            let mut waiting = mine.queue.waiting.borrow_mut();
            if waiting.front().is_some_and(|first| first.ticket == ticket) {
                drop(waiting);
                return Poll::Ready(guard.take().expect("polled after completion"));
            }
            let at = waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket).expect("own entry");
            waiting[at].waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for FifoGuard {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting.borrow_mut();
        let at = waiting.binary_search_by_key(&self.ticket, |waiter| waiter.ticket).expect("own entry");
        waiting.remove(at);
        let next = if at == 0 { waiting.front_mut().and_then(|waiter| waiter.waker.take()) } else { None };
        drop(waiting);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
