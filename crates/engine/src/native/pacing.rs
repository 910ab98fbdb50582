//! Pace of changes to the maps: writers are delayed by how far the merge of earlier changes is behind, early and a
//! little, so that they never meet a wall.
//!
//! The backlog is the share of the memory for runs, or of the journal, that is used by changes which the checkpoint
//! under way has not merged yet. Guests whose writes change the map add to it; merges reduce it page by page. From
//! `DELAYED_FROM` on, such writes take turns, and the time between two turns grows with the backlog. So the rate of
//! first writes converges to the rate of merges, which is the device's.

use blk::Result;

use super::store::Store;
use crate::options::Defect;

/// The unit of a backlog: this much is the whole.
const WHOLE: u64 = 1_000_000;

/// Backlog at which a checkpoint is due.
const CHECKPOINT_FROM: u64 = WHOLE / 2;

/// Backlog from which writers are delayed.
const DELAYED_FROM: u64 = WHOLE / 10 * 6;

/// Time between two turns at the backlog halfway between `DELAYED_FROM` and the whole: 10,000 writes a second. Storage
/// that merges faster settles at a smaller backlog, slower storage at a greater one: 1,000 a second at 0.96.
const HALFWAY_NS: u64 = 100_000;

/// Turns that are due within this time are taken at once: timers are for longer waits.
const EARLY_NS: u64 = 500_000;

/// Longest wait for a turn, whatever the number of writers.
const WAIT_NS_MAX: u64 = 1_000_000_000;

/// Time after which a writer that waits looks whether the backlog is gone.
const LOOK_NS: u64 = 10_000_000;

/// Longest time between two turns. Storage that merges fewer than 20 runs a second makes writers wait for room.
const TURN_NS_MAX: u64 = 50_000_000;

impl Store {
    /// Returns the backlog of changes, in parts of `WHOLE`; more than that if writers were admitted beside it.
    fn backlog(&self) -> u64 {
        let runs = (self.pending.get() as u64).saturating_sub(self.merging.merged.get());
        let used = self.journal.used_pages().saturating_sub(self.merging.freed_pages());
        // The rest of the ring is for what comes while the changes before are merged.
        let pages_max = self.journal.pages_max() / 2;
        let of_runs = runs * WHOLE / self.options.pending_runs_max.max(1) as u64;
        of_runs.max(used * WHOLE / pages_max)
    }

    /// Returns whether a checkpoint is due.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.backlog() > CHECKPOINT_FROM
            || self.is_full()
            || self.deepest.get() > self.options.pending_depth_max
    }

    /// Returns whether writers that change a map have to wait, for a turn or for room.
    pub(super) fn is_behind(&self) -> bool {
        self.backlog() > DELAYED_FROM || self.is_full()
    }

    /// Returns whether only the end of a checkpoint makes room. Its progress does not count here: the journal and the
    /// memory are free when it ends.
    fn is_full(&self) -> bool {
        !self.journal.has_room() || self.pending.get() > 2 * self.options.pending_runs_max
    }

    /// Returns the pause of a merge that has worked for some time, in microseconds: as long, and less when writers are
    /// about to be delayed.
    pub(super) fn rest_us(&self, worked_us: u64) -> u64 {
        if self.is_full() {
            return 0;
        }
        let left = DELAYED_FROM.saturating_sub(self.backlog());
        worked_us * left.min(DELAYED_FROM - CHECKPOINT_FROM) / (DELAYED_FROM - CHECKPOINT_FROM)
    }

    /// Waits for a turn to change a map, and for room.
    pub(super) async fn pace(&self) -> Result<()> {
        if !self.options.defects.has(Defect::UnpacedWriters) {
            self.wait_for_turn().await;
        }
        self.wait_for_room().await
    }

    async fn wait_for_turn(&self) {
        let (backlog, now_ns) = (self.backlog(), self.env.now_ns());
        if backlog <= DELAYED_FROM {
            return;
        }
        self.work.notify();
        let left = WHOLE.saturating_sub(backlog).max(1);
        let gap_ns = (HALFWAY_NS * (backlog - DELAYED_FROM) / left).min(TURN_NS_MAX);
        let turn_ns = (self.turn_ns.get().max(now_ns) + gap_ns).min(now_ns + WAIT_NS_MAX);
        self.turn_ns.set(turn_ns);
        loop {
            let now_ns = self.env.now_ns();
            if turn_ns <= now_ns + EARLY_NS {
                return;
            }
            if self.backlog() <= DELAYED_FROM || self.broken().is_some() {
                self.turn_ns.set(now_ns);
                return;
            }
            self.env.sleep_until((turn_ns - EARLY_NS).min(now_ns + LOOK_NS)).await;
        }
    }

    /// Waits while the journal or the memory is full, so that only a checkpoint makes room.
    pub(super) async fn wait_for_room(&self) -> Result<()> {
        while self.is_full() {
            self.refuse_when_broken()?;
            let progress = self.progress.wait();
            self.work.notify();
            progress.await;
        }
        self.refuse_when_broken()
    }
}
