//! Counts that the load threads add to, and that the screen takes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::error::Error;
use api::units::as_us;
use hdrhistogram::Histogram;

/// Longest latency of the histograms: an hour, at two digits of precision. Longer latencies count as an hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;
const PRECISION_DIGITS: u8 = 2;
const SAME_BOUNDS: &str = "all histograms of the demo have the same bounds";

/// Counts of a phase, or of a part of one.
#[derive(Debug, Clone)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    /// Reads that showed another block's data, or older data than was acknowledged.
    pub wrong: u64,
    /// Longest time between two answers to the depth-1 writer, microseconds.
    pub longest_gap_us: u64,
    pub read_latency_us: Histogram<u32>,
    pub write_latency_us: Histogram<u32>,
}

impl Default for Counts {
    fn default() -> Self {
        let latency_us = Histogram::new_with_max(LATENCY_US_MAX, PRECISION_DIGITS)
            .expect("an hour at two digits are valid bounds of a histogram");
        let (read_latency_us, write_latency_us) = (latency_us.clone(), latency_us);
        Self { reads: 0, writes: 0, wrong: 0, longest_gap_us: 0, read_latency_us, write_latency_us }
    }
}

impl Counts {
    pub fn read(&mut self, latency: Duration) {
        self.reads += 1;
        self.read_latency_us.saturating_record(as_us(latency));
    }

    pub fn written(&mut self, latency: Duration) {
        self.writes += 1;
        self.write_latency_us.saturating_record(as_us(latency));
    }

    pub fn record_gap(&mut self, gap: Duration) {
        self.longest_gap_us = self.longest_gap_us.max(as_us(gap));
    }

    pub fn operations(&self) -> u64 {
        self.reads + self.writes
    }

    /// Returns the 99th percentile of the latencies of reads and writes together, microseconds.
    pub fn p99_us(&self) -> u64 {
        let mut all = self.read_latency_us.clone();
        all.add(&self.write_latency_us).expect(SAME_BOUNDS);
        all.value_at_quantile(0.99)
    }

    pub fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.wrong += other.wrong;
        self.longest_gap_us = self.longest_gap_us.max(other.longest_gap_us);
        self.read_latency_us.add(&other.read_latency_us).expect(SAME_BOUNDS);
        self.write_latency_us.add(&other.write_latency_us).expect(SAME_BOUNDS);
    }
}

/// Counts shared by both load threads and the screen.
#[derive(Default)]
pub struct Meter {
    counts: Mutex<Counts>,
    failure: Mutex<Option<Error>>,
}

impl Meter {
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts since the last call.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut *self.counts())
    }

    /// Keeps the first failure, because it explains the others.
    pub fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_add_up_to_a_phase() {
        let meter = Meter::default();
        let mut phase = Counts::default();
        for gap_ms in [1, 9, 3] {
            for _ in 0..7 {
                meter.counts().read(Duration::from_micros(500));
            }
            meter.counts().record_gap(Duration::from_millis(gap_ms));
            phase.add(&meter.take());
        }
        assert_eq!((phase.reads, phase.longest_gap_us), (21, 9_000));
        assert!((495..=505).contains(&phase.p99_us()));
        assert_eq!(meter.take().reads, 0);
    }

    #[test]
    fn the_first_failure_is_kept() {
        let meter = Meter::default();
        meter.fail(Error::failed("first"));
        meter.fail(Error::failed("second"));
        assert_eq!(meter.failure().unwrap().message, "first");
    }
}
