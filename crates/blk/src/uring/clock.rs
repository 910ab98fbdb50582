//! The kernel's clocks, and the longest wait for the kernel when a core ends.

// This is where real time comes from.
#![allow(clippy::disallowed_methods)]

use std::time::Duration;

/// How long a dropped core waits for devices and file systems. Past that memory and threads are left behind: memory is never
/// freed under the kernel.
pub(super) const DROP_WAIT: Duration = Duration::from_secs(10);

/// CLOCK_MONOTONIC.
pub(super) fn now_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Monotonic)
}

/// CLOCK_BOOTTIME: what CLOCK_MONOTONIC shows, and the time in which the machine was suspended.
pub(super) fn boot_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Boottime)
}

pub(super) fn clock_ns(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    // Both parts are non-negative, and 2^64 ns are 584 years of uptime.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
