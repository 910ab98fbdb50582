//! A mailbox from one core to another: messages arrive in order, and one wake-up serves all that arrived meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use crate::exec::Env;
use crate::sync::Signal;

/// Creates a mailbox. Both ends may go to their cores.
pub fn mailbox<T: Send>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared { state: Mutex::default(), batches: AtomicU64::new(0) });
    (Sender(shared.clone()), Receiver(shared))
}

struct Shared<T> {
    state: Mutex<State<T>>,
    batches: AtomicU64,
}

struct State<T> {
    messages: VecDeque<T>,
    waker: Option<Waker>,
    closed: bool,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        State { messages: VecDeque::new(), waker: None, closed: false }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no panic inside")
    }

    fn close(&self) {
        let woken = {
            let mut state = self.lock();
            state.closed = true;
            state.waker.take()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The sending end. Dropping it closes the mailbox.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends the messages in order. Returns false if the other end is gone; they are dropped then.
    pub fn send_all(&self, messages: impl IntoIterator<Item = T>) -> bool {
        let woken = {
            let mut state = self.0.lock();
            if state.closed {
                return false;
            }
            let was_empty = state.messages.is_empty();
            state.messages.extend(messages);
            if was_empty && !state.messages.is_empty() {
                self.0.batches.fetch_add(1, Ordering::Relaxed);
            }
            state.waker.take()
        };
        woken.into_iter().for_each(Waker::wake);
        true
    }

    /// Returns the number of batches so far: messages that were sent before the receiver took the earlier ones count to
    /// the same batch.
    pub fn batches(&self) -> u64 {
        self.0.batches.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The receiving end. Dropping it closes the mailbox.
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    /// Waits for messages and takes all of them, in order. None once the mailbox is closed and empty. One task receives.
    pub async fn receive(&mut self) -> Option<VecDeque<T>> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if !state.messages.is_empty() {
                return Poll::Ready(Some(std::mem::take(&mut state.messages)));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.close();
        let left = std::mem::take(&mut self.0.lock().messages);
        drop(left);
    }
}

/// Gathers the messages of a core's tasks: those of the tasks that are ready now are sent together.
pub struct Outbox<T> {
    sender: Sender<T>,
    queue: RefCell<Vec<T>>,
    queued: Signal,
    ended: Cell<bool>,
}

impl<T: Send + 'static> Outbox<T> {
    /// Starts to send on the core of `env`.
    pub fn start(env: &Env, sender: Sender<T>) -> Rc<Outbox<T>> {
        let outbox = Rc::new(Outbox {
            sender,
            queue: RefCell::default(),
            queued: Signal::default(),
            ended: Cell::new(false),
        });
        let sending = outbox.clone();
        env.spawn_detached(Box::pin(async move { sending.send().await }));
        outbox
    }

    /// Queues a message.
    pub fn push(&self, message: T) {
        let mut queue = self.queue.borrow_mut();
        queue.push(message);
        if queue.len() == 1 {
            drop(queue);
            self.queued.notify();
        }
    }

    /// Sends what is queued, and then ends.
    pub fn end(&self) {
        self.ended.set(true);
        self.queued.notify();
    }

    /// Returns the number of batches so far; see [`Sender::batches`].
    pub fn batches(&self) -> u64 {
        self.sender.batches()
    }

    async fn send(&self) {
        loop {
            if !self.queue.borrow().is_empty() {
                let messages = self.queue.take();
                self.sender.send_all(messages);
            } else if self.ended.get() {
                self.sender.0.close();
                return;
            } else {
                self.queued.wait().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_what_waits_is_one_batch() {
        let (sender, mut receiver) = mailbox();
        assert!(sender.send_all([1, 2]) && sender.send_all([3]) && sender.send_all([]));
        assert_eq!(sender.batches(), 1);
        let waker = Waker::noop();
        let mut cx = std::task::Context::from_waker(waker);
        let mut receive = || std::pin::pin!(receiver.receive()).as_mut().poll(&mut cx);
        assert_eq!(receive(), Poll::Ready(Some(VecDeque::from([1, 2, 3]))));
        assert_eq!(receive(), Poll::Pending);
        assert!(sender.send_all([4]));
        assert_eq!((receive(), sender.batches()), (Poll::Ready(Some(VecDeque::from([4]))), 2));
        drop(sender);
        assert_eq!(receive(), Poll::Ready(None));
    }

    #[test]
    fn a_receiver_that_is_gone_refuses_messages() {
        let (sender, receiver) = mailbox();
        drop(receiver);
        assert!(!sender.send_all([1]));
    }
}
