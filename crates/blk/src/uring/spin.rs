//! A bounded spin before sleeping, while the disk is busy and only as long as it pays.
//!
//! A core that sleeps wakes late, finds a crowd of completions, and sends the device as large a crowd of requests: guest
//! and device then idle in turns. Watching the ring for a moment breaks that lockstep. With a single request under way,
//! or none, there is nothing to keep in step and the spin would only burn the guest's CPU.

use std::time::Duration;

use super::ring::Ring;
use super::{SPIN_US, now_ns};

/// Transfers under way from which lockstep is possible.
const IN_FLIGHT_MIN: u32 = 2;
/// Looks at the ring between two readings of the clock: about 0.5 us.
const LOOKS: u32 = 16;
/// Fruitless spins in a row after which the device is taken to be slower than a spin is long.
const MISSES_MAX: u32 = 8;
/// Waits without a spin after that, before it is tried again: at most 2 % of the waits of a slow disk spin.
const REST_WAITS: u32 = 50;

#[derive(Default)]
pub(super) struct Spin {
    misses: u32,
    resting: u32,
}

impl Spin {
    pub(super) fn is_worth_it(&mut self, transfers: u32) -> bool {
        if transfers < IN_FLIGHT_MIN {
            return false;
        }
        if self.resting > 0 {
            self.resting -= 1;
            return false;
        }
        true
    }

    /// True when something completed in time.
    pub(super) fn run(&mut self, ring: &mut Ring, limit: Option<Duration>) -> bool {
        ring.counters.spins += 1;
        let longest = Duration::from_micros(SPIN_US);
        let deadline = now_ns() + limit.map_or(longest, |l| l.min(longest)).as_nanos() as u64;
        while now_ns() < deadline {
            for _ in 0..LOOKS {
                if ring.has_news() {
                    ring.counters.spin_hits += 1;
                    self.misses = 0;
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            // One more miss after the rest is enough for the next.
            self.misses = MISSES_MAX - 1;
            self.resting = REST_WAITS;
        }
        false
    }
}
