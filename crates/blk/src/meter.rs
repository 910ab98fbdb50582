//! Measures for how long one poll of a task occupies the core. Everything else waits meanwhile.

use std::cell::Cell;
use std::panic::Location;

use crate::reactor::Reactor;

/// A poll that takes longer is counted, because guests notice it as latency.
pub(crate) const POLL_LIMIT_NS: u64 = 1_000_000;
/// A poll that is shorter than this by the wall clock needs no reading of the thread's own time, which is a system
/// call. The last reading before a poll may also be this old.
const LOOK_NS: u64 = 200_000;

/// Polls of one core since its start, in time for which its thread ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollFigures {
    /// The longest poll in microseconds.
    pub longest_us: u64,
    /// The source line that started the task of the longest poll.
    pub longest_task: Option<&'static Location<'static>>,
    /// Number of polls that took more than a millisecond.
    pub over_limit: u64,
}

/// Measures polls in the thread's own time, with an error of at most 0.4 ms. While the kernel does not run the thread,
/// its polls hold nothing up.
#[derive(Default)]
pub(crate) struct PollMeter {
    /// The last reading: the wall clock, and the thread's own time.
    seen: Cell<(u64, u64)>,
    longest_ns: Cell<u64>,
    longest_task: Cell<Option<&'static Location<'static>>>,
    over_limit: Cell<u64>,
}

impl PollMeter {
    /// Prepares the measurement of the next polls.
    pub(crate) fn refresh(&self, now_ns: u64, reactor: &dyn Reactor) {
        if now_ns.saturating_sub(self.seen.get().0) > LOOK_NS {
            self.seen.set((now_ns, reactor.thread_ns()));
        }
    }

    /// Measures a poll of the task that the line `task` started.
    pub(crate) fn polled(
        &self,
        task: Option<&'static Location<'static>>,
        began_ns: u64,
        now_ns: u64,
        reactor: &dyn Reactor,
    ) {
        let wall_ns = now_ns.saturating_sub(began_ns);
        if wall_ns < LOOK_NS {
            return self.refresh(now_ns, reactor);
        }
        let thread_ns = reactor.thread_ns();
        let ran_ns = wall_ns.min(thread_ns.saturating_sub(self.seen.get().1));
        self.seen.set((now_ns, thread_ns));
        if ran_ns > self.longest_ns.get() {
            self.longest_ns.set(ran_ns);
            self.longest_task.set(task);
        }
        if ran_ns > POLL_LIMIT_NS {
            self.over_limit.set(self.over_limit.get() + 1);
        }
    }

    pub(crate) fn figures(&self) -> PollFigures {
        PollFigures {
            longest_us: self.longest_ns.get() / 1000,
            longest_task: self.longest_task.get(),
            over_limit: self.over_limit.get(),
        }
    }
}
