//! Threads for calls on paths whose file system is unknown, or is not the core's to open, and for other calls that may
//! block. Each call has its own thread, so that a file system that does not answer holds up no other call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls at the same time; further ones wait. There are so many only if file systems hang.
const CALLS_MAX: usize = 64;

/// A call, which may block.
type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Calls {
    threads: usize,
    waiting: VecDeque<Call>,
}

#[derive(Clone, Default)]
pub(super) struct Blocking(Arc<Mutex<Calls>>);

impl Blocking {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the call on a thread that ends with it. The threads are never joined: one that hangs is left behind.
    pub(super) fn run(&self, call: Call) {
        assert!(self.start(call), "a thread for a path");
    }

    /// Like `run`. Returns false if the system has no thread for it and none runs: the call waits for the next one.
    pub(super) fn start(&self, call: Call) -> bool {
        let mut calls = self.lock();
        calls.waiting.push_back(call);
        if calls.threads == CALLS_MAX {
            return true;
        }
        let shared = self.clone();
        let builder = std::thread::Builder::new().name("unstun-paths".to_string());
        // Counted before the thread can end.
        calls.threads += usize::from(builder.spawn(move || shared.work_off()).is_ok());
        calls.threads > 0
    }

    fn work_off(&self) {
        loop {
            let mut calls = self.lock();
            let Some(call) = calls.waiting.pop_front() else {
                calls.threads -= 1;
                return;
            };
            drop(calls);
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_blocked_call_does_not_delay_other_calls() {
        let blocking = Blocking::default();
        let (release, hangs) = channel::<()>();
        let (sender, received) = channel();
        blocking.run(Box::new(move || hangs.recv().unwrap_or_default()));
        for number in 0..3 * CALLS_MAX {
            let sender = sender.clone();
            blocking.run(Box::new(move || sender.send(number).unwrap()));
        }
        let mut seen: Vec<_> = received.iter().take(3 * CALLS_MAX).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..3 * CALLS_MAX));
        drop(release);
    }
}
