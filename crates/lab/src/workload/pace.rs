use std::cell::Cell;

use blk::Env;
use blk::sync::TaskMutex;

use super::{Pacing, Worker};

/// Longest sleep between two checks whether the load was stopped.
pub(super) const NAP_NS: u64 = 100_000_000;

/// The time at which a worker's next I/O may be issued. The worker's slots share it and queue for their turn.
pub(super) struct Pace {
    pacing: Pacing,
    delay_ns: u64,
    burst: u32,
    /// I/Os left of the current burst.
    left: Cell<u32>,
    /// Due time of the next burst.
    due_ns: Cell<u64>,
    turn: TaskMutex,
}

impl Pace {
    pub(super) fn new(worker: &Worker) -> Pace {
        let delay_ns = match worker.pacing {
            Pacing::Closed => worker.delay_us * 1000,
            Pacing::Open { interval_us } => interval_us * 1000,
        };
        Pace {
            pacing: worker.pacing,
            delay_ns,
            burst: worker.burst,
            left: Cell::new(0),
            due_ns: Cell::new(0),
            turn: TaskMutex::default(),
        }
    }

    pub(super) fn begin(&self, now_ns: u64) {
        self.left.set(0);
        self.due_ns.set(match self.pacing {
            Pacing::Closed => now_ns + self.delay_ns,
            Pacing::Open { .. } => now_ns,
        });
    }

    /// Resolves when an I/O may be issued or the load is stopped. Returns the time from which the I/O's latency counts.
    pub(super) async fn next(&self, env: &Env, stopping: &Cell<bool>) -> u64 {
        if self.delay_ns == 0 {
            return env.now_ns();
        }
        let _turn = self.turn.lock().await;
        if self.left.get() == 0 {
            while env.now_ns() < self.due_ns.get() && !stopping.get() {
                env.sleep_until(self.due_ns.get().min(env.now_ns() + NAP_NS)).await;
            }
            self.left.set(self.burst);
        }
        self.left.set(self.left.get() - 1);
        let now_ns = env.now_ns();
        match self.pacing {
            Pacing::Closed => {
                // The delay begins with the burst's last I/O.
                self.due_ns.set(now_ns + self.delay_ns);
                now_ns
            }
            Pacing::Open { .. } => {
                let due_ns = self.due_ns.get();
                if self.left.get() == 0 {
                    self.due_ns.set(due_ns + self.delay_ns);
                }
                due_ns
            }
        }
    }
}
