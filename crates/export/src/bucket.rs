//! A token bucket over the clock of `Env`: how many units may begin in any window of time.
//!
//! The bucket stores one time instead of a number of tokens: `due`, at which everything that has begun is paid for. A
//! unit costs one second divided by the rate. Times are picoseconds in 128 bits, so that rounding does not change a
//! rate noticeably, and no sum overflows.

use crate::limits::RateLimit;

const PS_PER_S: u128 = 1_000_000_000_000;
const PS_PER_NS: u128 = 1_000;
const PS_PER_US: u128 = 1_000_000;

/// Time for which a party may run ahead of its rate, as a part of a second. A timer that fires late then costs no
/// throughput. QEMU's throttling has the same value.
const AHEAD_PS: u128 = PS_PER_S / 10;

/// One rate, and how far a party may run ahead of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Units per second, at least 1.
    rate: u64,
    /// How far `due` may be in the future.
    depth_ps: u128,
    due_ps: u128,
}

impl Bucket {
    fn new(rate: u64, ahead_units: u128) -> Bucket {
        let rate = rate.max(1);
        let ahead_ps = ahead_units.saturating_mul(PS_PER_S) / u128::from(rate);
        let depth_ps = ahead_ps.saturating_add(AHEAD_PS);
        let mut bucket = Bucket { rate, depth_ps, due_ps: 0 };
        // At a low rate the bucket still holds one unit.
        bucket.depth_ps = depth_ps.max(bucket.cost_ps(1));
        bucket
    }

    fn cost_ps(&self, units: u64) -> u128 {
        (u128::from(units) * PS_PER_S).div_ceil(u128::from(self.rate))
    }

    /// Returns the time at which `units` may begin. More units than the bucket holds may begin when the bucket is full.
    fn ready_ps(&self, units: u64) -> u128 {
        self.due_ps.saturating_add(self.cost_ps(units).min(self.depth_ps)).saturating_sub(self.depth_ps)
    }

    fn take(&mut self, now_ps: u128, units: u64) {
        self.due_ps = self.due_ps.max(now_ps).saturating_add(self.cost_ps(units));
    }
}

/// The buckets of one limit: one for the rate, and one for the peak rate of its burst.
///
/// The first bucket holds what a burst has beyond the rate. It is empty after a burst of the permitted length, and
/// fills again while the party is below its rate.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Buckets {
    limit: Option<RateLimit>,
    buckets: Vec<Bucket>,
}

impl Buckets {
    /// Changes the limit. A limit that stays the same keeps its state; any other starts with full buckets.
    pub(crate) fn set(&mut self, limit: Option<RateLimit>) {
        if self.limit == limit {
            return;
        }
        self.buckets = limit.map_or_else(Vec::new, |limit| {
            let Some(burst) = limit.burst else { return vec![Bucket::new(limit.rate, 0)] };
            let ahead = u128::from(burst.rate.saturating_sub(limit.rate)) * u128::from(burst.seconds);
            vec![Bucket::new(limit.rate, ahead), Bucket::new(burst.rate, 0)]
        });
        self.limit = limit;
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns how long `units` have to wait from `now_ns` on, in microseconds. No units never wait.
    pub(crate) fn wait_us(&self, now_ns: u64, units: u64) -> u64 {
        let buckets = self.buckets.iter().filter(|_| units > 0);
        let ready_ps = buckets.map(|bucket| bucket.ready_ps(units)).max().unwrap_or(0);
        let wait_ps = ready_ps.saturating_sub(u128::from(now_ns) * PS_PER_NS);
        u64::try_from(wait_ps.div_ceil(PS_PER_US)).unwrap_or(u64::MAX)
    }

    /// Pays for `units` that begin now, whether or not they have waited. Units that begin early are paid for by those
    /// that follow.
    pub(crate) fn take(&mut self, now_ns: u64, units: u64) {
        if units > 0 {
            self.buckets.iter_mut().for_each(|bucket| bucket.take(u128::from(now_ns) * PS_PER_NS, units));
        }
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
