//! Times of a run that was simulated smaller, at full scale: the only place that multiplies them.
//!
//! Durations, times and counts grow by one factor, so rates stay. Latencies, gaps and stuns are those of the simulated
//! size: only what a stun copies is smaller there, not what it costs to stop a VM.

use super::{Beat, Counters, LayerHost, Mark, Quantity, Record, Row, Sample, Stun};

/// An entry of a record.
pub trait FullScale {
    /// Multiplies its durations, times and counts by `factor`.
    fn grow(&mut self, factor: u64);
}

impl FullScale for u64 {
    fn grow(&mut self, factor: u64) {
        *self = self.saturating_mul(factor);
    }
}

impl FullScale for Counters {
    fn grow(&mut self, factor: u64) {
        self.fields().into_iter().for_each(|count| count.grow(factor));
    }
}

impl FullScale for Sample {
    fn grow(&mut self, factor: u64) {
        let times = [&mut self.at_us, &mut self.interval_us];
        let counts = [&mut self.reads, &mut self.writes, &mut self.read_bytes, &mut self.written_bytes];
        times.into_iter().chain(counts).for_each(|value| value.grow(factor));
        self.host.iter_mut().for_each(|host| host.grow(factor));
    }
}

impl FullScale for Vec<LayerHost> {
    fn grow(&mut self, factor: u64) {
        self.iter_mut().for_each(|layer| layer.host.grow(factor));
    }
}

impl FullScale for Stun {
    fn grow(&mut self, factor: u64) {
        self.at_us.grow(factor);
    }
}

impl FullScale for Beat {
    fn grow(&mut self, factor: u64) {
        self.at_us.grow(factor);
    }
}

impl FullScale for Mark {
    fn grow(&mut self, factor: u64) {
        self.at_us.grow(factor);
    }
}

impl FullScale for Row {
    fn grow(&mut self, factor: u64) {
        if let (Quantity::Seconds | Quantity::HelperBytes, Some(value)) = (self.quantity, &mut self.predicted)
        {
            *value *= factor as f64;
        }
    }
}

impl Record {
    /// Returns the factor from the simulated to the full scale; 1 for a run in full size.
    pub fn scale(&self) -> u64 {
        u64::from(self.time_scale.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Phase;

    #[test]
    fn rates_stay_and_durations_grow() {
        let host = Counters { reads: 3, written_bytes: 5, ..Counters::default() };
        let mut sample = Sample {
            at_us: 7,
            interval_us: 100_000,
            reads: 11,
            host: Some(host),
            gap_us: 13,
            ..Sample::default()
        };
        let before = sample.clone();
        sample.grow(256);
        assert_eq!((sample.at_us, sample.interval_us, sample.reads), (7 * 256, 25_600_000, 11 * 256));
        assert_eq!(sample.host.map(|host| (host.reads, host.written_bytes)), Some((3 * 256, 5 * 256)));
        assert_eq!((sample.gap_us, sample.read_latency), (before.gap_us, before.read_latency));
        let mut stun = Stun { at_us: 2, stun_us: 9, disk: None, cause: String::new() };
        stun.grow(256);
        assert_eq!((stun.at_us, stun.stun_us), (512, 9));
    }

    #[test]
    fn of_rows_only_durations_and_sizes_grow() {
        let grown = |quantity| {
            let mut row = Row::measured("e", Phase::Commit, quantity, 2.0);
            row.grow(64);
            row.predicted
        };
        assert_eq!((grown(Quantity::Seconds), grown(Quantity::HelperBytes)), (Some(128.0), Some(128.0)));
        assert_eq!((grown(Quantity::Iops), grown(Quantity::StunUs)), (Some(2.0), Some(2.0)));
    }

    #[test]
    fn nothing_overflows() {
        let mut at_us = u64::MAX / 2;
        at_us.grow(3);
        assert_eq!(at_us, u64::MAX);
    }
}
