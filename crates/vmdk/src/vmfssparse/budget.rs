//! Count of the grain tables in a core's memory. A core is a thread, and the layers of all its VMs share its memory, so
//! the count belongs to the thread.

use std::cell::Cell;

thread_local! {
    static LOADED: Cell<usize> = const { Cell::new(0) };
}

/// One table in memory, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(());

impl Counted {
    pub(super) fn new() -> Counted {
        LOADED.set(LOADED.get() + 1);
        Counted(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LOADED.set(LOADED.get() - 1);
    }
}

/// Returns the number of tables in memory on this core.
pub(super) fn loaded() -> usize {
    LOADED.get()
}
