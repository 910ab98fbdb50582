//! What campaigns of many runs have in common: their settings, and the cores they run on.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number from the environment; None where it is absent or empty.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .filter(|v| !v.is_empty())
        .map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v}")))
}

/// Calls `run` with rising seeds from as many threads as there are cores, until it answers false.
pub fn on_all_cores(run: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| while run(next.fetch_add(1, Ordering::Relaxed)) {});
        }
    });
}
