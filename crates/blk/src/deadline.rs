//! The moment until which operations on a file may start.

use std::sync::atomic::{AtomicU64, Ordering};

/// The moment itself, by `Env::boot_ns`; shared with whatever hands operations to the kernel.
#[derive(Debug, Default)]
pub struct Deadline(AtomicU64);

impl Deadline {
    /// Returns whether an operation may start at `boot_ns`.
    pub fn is_open(&self, boot_ns: u64) -> bool {
        boot_ns < self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, until_ns: u64) {
        self.0.store(until_ns, Ordering::Release);
    }
}
