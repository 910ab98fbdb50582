//! What a disk did within an interval.

use engine::latencies::{COUNTS, upper_ns};

/// Reads or writes within an interval.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Requests {
    /// Of the guest.
    pub count: u64,
    pub bytes: u64,
    /// Of the files below the disk, tables and commits included. A native disk has none of its own: those of its store are
    /// another series.
    pub host_count: u64,
    pub host_bytes: u64,
    /// The guest's requests by latency; see `engine::latencies`.
    pub latencies: [u32; COUNTS],
}

/// What a disk did within an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Activity {
    pub reads: Requests,
    pub writes: Requests,
    pub flushes: u64,
    /// Latency of the slowest request that ended in the interval. No time without a completion while a request waited was
    /// longer.
    pub longest_us: u64,
    /// Number of layers of the disk's chain; 0 for a native disk.
    pub layers: u64,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests { count: 0, bytes: 0, host_count: 0, host_bytes: 0, latencies: [0; COUNTS] }
    }
}

impl Requests {
    fn add(&mut self, other: &Requests) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.host_count += other.host_count;
        self.host_bytes += other.host_bytes;
        for (sum, count) in self.latencies.iter_mut().zip(other.latencies) {
            *sum = sum.saturating_add(count);
        }
    }

    fn is_idle(&self) -> bool {
        self.count == 0 && self.host_count == 0
    }
}

impl Activity {
    /// Adds what happened in another interval, or on another disk.
    pub(crate) fn add(&mut self, other: &Activity) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.flushes += other.flushes;
        self.longest_us = self.longest_us.max(other.longest_us);
        self.layers = self.layers.max(other.layers);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.reads.is_idle() && self.writes.is_idle() && self.flushes == 0
    }

    /// Returns the guest's reads and writes by latency.
    pub(crate) fn latencies(&self) -> [u64; COUNTS] {
        std::array::from_fn(|at| u64::from(self.reads.latencies[at]) + u64::from(self.writes.latencies[at]))
    }
}

/// Returns the latency in microseconds that a part of the requests does not exceed, as if those between two bounds were
/// spread evenly; None without requests.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn quantile_us(counts: &[u64], part: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = total as f64 * part;
    let (mut passed, mut lower_ns) = (0.0, 0);
    for (at, &count) in counts.iter().enumerate() {
        let Some(upper_ns) = upper_ns(at) else { break };
        let count = count as f64;
        if count > 0.0 && passed + count >= wanted {
            let inside = (wanted - passed).max(0.0) / count;
            return Some((lower_ns as f64 + inside * (upper_ns - lower_ns) as f64) / 1000.0);
        }
        (passed, lower_ns) = (passed + count, upper_ns);
    }
    // Above the last bound nothing more is known.
    (total > 0).then_some(lower_ns as f64 / 1000.0)
}

/// Returns the mean latency in microseconds, as if each request were in the middle between two bounds.
#[allow(clippy::cast_precision_loss)]
pub(super) fn mean_us(counts: &[u64]) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let (mut sum, mut lower_ns) = (0.0, 0);
    for (at, &count) in counts.iter().enumerate() {
        let upper_ns = upper_ns(at).unwrap_or(lower_ns);
        sum += count as f64 * (lower_ns + upper_ns) as f64 / 2000.0;
        lower_ns = upper_ns;
    }
    (total > 0).then(|| sum / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_means_are_between_the_bounds_of_their_count() {
        let mut activity = Activity::default();
        assert_eq!((quantile_us(&activity.latencies(), 0.5), mean_us(&activity.latencies())), (None, None));
        // Between 62.5 and 75 us.
        activity.reads.latencies[5] = 60;
        activity.writes.latencies[5] = 40;
        assert_eq!(quantile_us(&activity.latencies(), 0.5), Some(68.75));
        assert_eq!(mean_us(&activity.latencies()), Some(68.75));
        activity.writes.latencies[COUNTS - 1] = 900;
        assert_eq!(quantile_us(&activity.latencies(), 0.99), Some(2_500_000.0));
    }
}
