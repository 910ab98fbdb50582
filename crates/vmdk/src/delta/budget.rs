//! Count of the grain tables in a core's memory. A core is a thread, and the layers of all its VMs share its memory, so
//! the count belongs to the thread.

use std::cell::Cell;

/// Maximum number of unused tables that all layers of a core keep: 3072 * 16 KiB = 48 MiB; they cover 6 GiB of disk.
/// Only layers that are written keep so many, because their first writes need them. Several cores of a process divide
/// the number.
pub const TABLES_CACHED_MAX: usize = 3072;

thread_local! {
    static LOADED: Cell<usize> = const { Cell::new(0) };
    static LOADED_MAX: Cell<usize> = const { Cell::new(TABLES_CACHED_MAX) };
}

/// Sets how many unused tables the layers of this core keep.
pub fn keep_tables(count: usize) {
    LOADED_MAX.set(count);
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

/// Returns whether the tables in memory on this core have reached their maximum.
pub(super) fn is_full() -> bool {
    LOADED.get() >= LOADED_MAX.get()
}

/// Returns the number of tables in memory on this core.
#[cfg(test)]
pub(super) fn loaded() -> usize {
    LOADED.get()
}
