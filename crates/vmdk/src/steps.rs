//! Counts steps of work over untrusted files, so that tests can compare its growth with that of the files. It costs
//! nothing outside of tests.

#[cfg(not(test))]
pub(crate) fn count(_steps: u64) {}

#[cfg(test)]
pub(crate) use counted::{count, within};

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn count(steps: u64) {
        STEPS.set(STEPS.get() + steps);
    }

    /// Returns the number of steps that `work` takes on this thread.
    pub(crate) fn within(work: impl FnOnce()) -> u64 {
        let before = STEPS.get();
        work();
        STEPS.get() - before
    }
}
