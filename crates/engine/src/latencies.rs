//! Counts of requests by their latency.

use std::cell::Cell;

/// Upper bounds in nanoseconds, from a write cache's latency to that of a device that stands still.
pub const BOUNDS_NS: [u64; 12] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    100_000_000,
    500_000_000,
    2_500_000_000,
];

/// Requests by latency. Plain cells, because one core owns them.
#[derive(Default)]
pub struct Latencies {
    /// Requests up to each bound and above the one before; the last are above all bounds.
    counts: [Cell<u64>; BOUNDS_NS.len() + 1],
    sum_ns: Cell<u64>,
}

/// Values of `Latencies` at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatencyFigures {
    /// See `Latencies::counts`.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// Sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl LatencyFigures {
    /// Adds the requests of another place.
    pub fn add(&mut self, other: &LatencyFigures) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

impl Latencies {
    /// Counts without a branch: this is on the path of every request.
    pub fn count(&self, latency_ns: u64) {
        let bucket: usize = BOUNDS_NS.iter().map(|&bound_ns| usize::from(latency_ns > bound_ns)).sum();
        self.counts[bucket].update(|n| n + 1);
        self.sum_ns.update(|sum| sum.wrapping_add(latency_ns));
    }

    /// Returns the present values.
    pub fn figures(&self) -> LatencyFigures {
        LatencyFigures { counts: self.counts.each_ref().map(Cell::get), sum_ns: self.sum_ns.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_up_to_its_bound() {
        let latencies = Latencies::default();
        for ns in [0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[11], BOUNDS_NS[11] + 1, u64::MAX / 2] {
            latencies.count(ns);
        }
        let counts = latencies.figures().counts;
        assert_eq!((counts[0], counts[1], counts[11], counts[12]), (2, 1, 1, 2));
        assert!(BOUNDS_NS.is_sorted());
    }
}
