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

/// Parts of equal width into which each of the times between two bounds is divided.
const PARTS: usize = 4;
/// Number of counts: those between the bounds, and one above all of them.
pub const COUNTS: usize = BOUNDS_NS.len() * PARTS + 1;

/// Requests by latency. Plain cells, because one core owns them.
pub struct Latencies {
    /// Requests up to each `upper_ns` and above the one before; the last are above all bounds.
    counts: [Cell<u64>; COUNTS],
    sum_ns: Cell<u64>,
}

/// Values of `Latencies` at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyFigures {
    /// See `Latencies::counts`.
    pub counts: [u64; COUNTS],
    /// Sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: [const { Cell::new(0) }; COUNTS], sum_ns: Cell::new(0) }
    }
}

impl Default for LatencyFigures {
    fn default() -> LatencyFigures {
        LatencyFigures { counts: [0; COUNTS], sum_ns: 0 }
    }
}

impl LatencyFigures {
    /// Adds the requests of another place.
    pub fn add(&mut self, other: &LatencyFigures) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Returns the requests up to each of `BOUNDS_NS` and above the one before; the last are above all of them.
    pub fn by_bound(&self) -> [u64; BOUNDS_NS.len() + 1] {
        let mut sums = [0; BOUNDS_NS.len() + 1];
        for (sum, parts) in sums.iter_mut().zip(self.counts.chunks(PARTS)) {
            *sum = parts.iter().sum();
        }
        sums
    }
}

/// Returns the highest latency of a count, in nanoseconds; None for the last one, which has no bound.
pub const fn upper_ns(count: usize) -> Option<u64> {
    let (between, part) = (count / PARTS, count % PARTS);
    if between >= BOUNDS_NS.len() {
        return None;
    }
    let lower = if between == 0 { 0 } else { BOUNDS_NS[between - 1] };
    Some(lower + (BOUNDS_NS[between] - lower) * (part as u64 + 1) / PARTS as u64)
}

/// The time below each bound, and `PARTS / width` of the time between the two, as a fraction of 2^32.
const LOWER: [(u64, u64); BOUNDS_NS.len()] = {
    let mut lower = [(0, 0); BOUNDS_NS.len()];
    let mut at = 0;
    while at < BOUNDS_NS.len() {
        let below = if at == 0 { 0 } else { BOUNDS_NS[at - 1] };
        lower[at] = (below, ((PARTS as u64) << 32) / (BOUNDS_NS[at] - below));
        at += 1;
    }
    lower
};

impl Latencies {
    /// Counts with one branch: this is on the path of every request.
    pub fn count(&self, latency_ns: u64) {
        let between: usize = BOUNDS_NS.iter().map(|&bound_ns| usize::from(latency_ns > bound_ns)).sum();
        let part = match LOWER.get(between) {
            // The fraction is rounded down, so that the upper bound itself is in the last part.
            Some((below, parts)) => (((latency_ns - below).saturating_sub(1) * parts) >> 32) as usize,
            None => 0,
        };
        self.counts[between * PARTS + part].update(|n| n + 1);
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
        let counts = latencies.figures().by_bound();
        assert_eq!((counts[0], counts[1], counts[11], counts[12]), (2, 1, 1, 2));
        assert!(BOUNDS_NS.is_sorted());
    }

    #[test]
    fn each_part_contains_the_latencies_up_to_its_upper_bound() {
        for count in 0..COUNTS - 1 {
            let upper = upper_ns(count).unwrap();
            for (ns, expected) in [(upper - 1, count), (upper, count), (upper + 1, count + 1)] {
                let latencies = Latencies::default();
                latencies.count(ns);
                let found = latencies.figures().counts.iter().position(|&n| n == 1).unwrap();
                // A fraction that is rounded down moves a bound by a few nanoseconds in a second.
                let near = upper_ns(found).is_some_and(|bound| bound.abs_diff(ns) <= 1 + (bound >> 30));
                assert!(found == expected || near, "{ns} ns: {found}, expected {expected}");
            }
        }
        assert_eq!(upper_ns(COUNTS - 1), None);
    }
}
