//! A first-come, first-served lock. `blk`'s range locks wake all waiters; here a disk's whole load waits in one queue,
//! so only the next waiter is woken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Default, Clone)]
pub(super) struct Turns(Rc<Queue>);

#[derive(Default)]
struct Queue {
    next_ticket: Cell<u64>,
    /// In order of tickets; the first place has the turn.
    waiting: RefCell<VecDeque<Place>>,
}

struct Place {
    ticket: u64,
    waker: Option<Waker>,
}

/// A held turn, or a place in the queue for it; dropping it leaves the queue.
pub(super) struct Turn {
    queue: Rc<Queue>,
    ticket: u64,
}

impl Turns {
    /// Joins the queue now, and resolves when all earlier turns have ended.
    pub(super) fn take(&self) -> impl Future<Output = Turn> + use<> {
        let ticket = self.0.next_ticket.get();
        self.0.next_ticket.set(ticket + 1);
        self.0.waiting.borrow_mut().push_back(Place { ticket, waker: None });
        let mut turn = Some(Turn { queue: self.0.clone(), ticket });
        poll_fn(move |cx| {
            let mine = turn.as_ref().expect("polled after completion");
            let mut waiting = mine.queue.waiting.borrow_mut();
            if waiting.front().is_some_and(|first| first.ticket == ticket) {
                drop(waiting);
                return Poll::Ready(turn.take().expect("polled after completion"));
            }
            let at = waiting.binary_search_by_key(&ticket, |place| place.ticket).expect("own place");
            waiting[at].waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting.borrow_mut();
        let at = waiting.binary_search_by_key(&self.ticket, |place| place.ticket).expect("own place");
        waiting.remove(at);
        let next = if at == 0 { waiting.front_mut().and_then(|place| place.waker.take()) } else { None };
        drop(waiting);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
