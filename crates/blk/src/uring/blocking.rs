//! Threads for calls on paths whose file system is unknown, or is not the core's to open. Each call has its own thread,
//! so that a file system that does not answer holds up no other call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::offload::lock;
use crate::reactor::OffloadedWork;

/// Calls at the same time; further ones wait. There are so many only if file systems hang.
const CALLS_MAX: usize = 64;

#[derive(Default)]
struct Calls {
    threads: usize,
    waiting: VecDeque<OffloadedWork>,
}

#[derive(Clone, Default)]
pub(super) struct Blocking(Arc<Mutex<Calls>>);

impl Blocking {
    /// Runs the call on a thread that ends with it. The threads are never joined: one that hangs is left behind.
    pub(super) fn run(&self, call: OffloadedWork) {
        let mut calls = lock(&self.0);
        calls.waiting.push_back(call);
        if calls.threads == CALLS_MAX {
            return;
        }
        let shared = self.clone();
        let builder = std::thread::Builder::new().name("unstun-paths".to_string());
        if builder.spawn(move || shared.work_off()).is_ok() {
            calls.threads += 1;
        }
        assert!(calls.threads > 0, "a thread for a path");
    }

    fn work_off(&self) {
        loop {
            let mut calls = lock(&self.0);
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
