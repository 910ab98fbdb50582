//! Wakes a core that sleeps in the kernel, from any thread, with an eventfd that the ring reads.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::descriptor::Fd;
use super::work::Work;
use crate::reactor::Waker;

thread_local! {
    /// Its address identifies a thread, at the cost of one addition.
    static HERE: u8 = const { 0 };
}

fn here() -> usize {
    HERE.with(|h| std::ptr::from_ref(h).addr())
}

#[derive(Debug)]
pub(super) struct EventWaker {
    event: Arc<OwnedFd>,
    /// The core's own thread, which is awake when it wakes the core.
    owner: usize,
    /// A wake is under way that the core has not seen yet; one is enough.
    signalled: AtomicBool,
}

impl EventWaker {
    /// Creates the waker of the calling thread's core.
    pub(super) fn new() -> rustix::io::Result<EventWaker> {
        // Without O_NONBLOCK, because the ring would answer its read with EAGAIN instead of waiting.
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        Ok(EventWaker { event: Arc::new(event), owner: here(), signalled: AtomicBool::new(false) })
    }

    /// Returns the read that a wake completes.
    pub(super) fn work(&self) -> Work {
        Work::Wake { fd: Fd::clone(&self.event), count: Box::new(0) }
    }

    /// Lets later wakes signal again. Called before the core looks for work.
    pub(super) fn acknowledge(&self) {
        self.signalled.store(false, Ordering::SeqCst);
    }

    /// Wakes the core, also from its own thread: for what the core has not looked for since it came.
    pub(super) fn rouse(&self) {
        if self.signalled.swap(true, Ordering::SeqCst) {
            return;
        }
        // This cannot fail: the counter is read long before it reaches 2^64 - 1, and `self` keeps the descriptor open.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Waker for EventWaker {
    fn wake(&self) {
        if here() != self.owner {
            self.rouse();
        }
    }
}
