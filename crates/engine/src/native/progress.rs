//! Progress of the checkpoint under way.

use std::cell::Cell;

/// What the checkpoint under way has merged, and what it will free. All zero: no checkpoint is under way.
#[derive(Default)]
pub(super) struct Progress {
    /// Runs of the view under way that are in new pages already.
    pub merged: Cell<u64>,
    /// Runs of the checkpoint, and those that are in new pages already.
    frozen: Cell<u64>,
    done: Cell<u64>,
    /// Pages of the journal that the checkpoint will free.
    frozen_pages: Cell<u64>,
}

impl Progress {
    /// Begins a checkpoint of `runs`, which frees `pages` of the journal.
    pub(super) fn begin(&self, runs: usize, pages: u64) {
        self.merged.set(0);
        self.frozen.set(runs as u64);
        self.done.set(0);
        self.frozen_pages.set(pages);
    }

    /// Notes that `runs` more runs are in new pages.
    pub(super) fn add(&self, runs: usize) {
        self.merged.update(|merged| merged + runs as u64);
        self.done.update(|done| done + runs as u64);
    }

    /// Notes that the view under way is merged, or will be merged again from its start.
    pub(super) fn end_view(&self) {
        self.merged.set(0);
    }

    /// Notes that the checkpoint has ended.
    pub(super) fn end(&self) {
        self.begin(0, 0);
    }

    /// Returns the pages of the journal that count as free: their share of what is merged.
    pub(super) fn freed_pages(&self) -> u64 {
        self.frozen_pages.get() * self.done.get() / self.frozen.get().max(1)
    }
}
