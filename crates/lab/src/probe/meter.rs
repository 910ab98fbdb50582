use std::cell::RefCell;

use hdrhistogram::Histogram;

use crate::run::{Sample, Spread};

/// Precision of percentiles: three digits.
const DIGITS: u8 = 3;

/// Counts a load's I/Os, for the interval under way and since its creation. Cheap enough for millions of I/Os a second.
pub struct Meter(RefCell<Counts>);

/// I/Os completed since the meter was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub reads: u64,
    pub writes: u64,
}

struct Counts {
    began_ns: u64,
    totals: Totals,
    reads: Direction,
    writes: Direction,
    in_flight: u64,
    /// When the last I/O completed, or when one was issued after a time with none under way.
    last_ns: u64,
    gap_ns: u64,
}

struct Direction {
    count: u64,
    bytes: u64,
    sum_ns: u64,
    max_ns: u64,
    latency_ns: Histogram<u64>,
}

impl Direction {
    fn new() -> Direction {
        let latency_ns = Histogram::new(DIGITS).expect("three digits are allowed");
        Direction { count: 0, bytes: 0, sum_ns: 0, max_ns: 0, latency_ns }
    }

    fn done(&mut self, bytes: u32, ns: u64) {
        self.count += 1;
        self.bytes += u64::from(bytes);
        self.sum_ns += ns;
        self.max_ns = self.max_ns.max(ns);
        self.latency_ns.record(ns).expect("it grows to any value");
    }

    fn cut(&mut self) -> (u64, u64, Spread) {
        if self.count == 0 {
            return (0, 0, Spread::default());
        }
        let us = |ns: u64| ns as f64 / 1000.0;
        // A bucket reports its upper end.
        let at = |quantile| us(self.latency_ns.value_at_quantile(quantile).min(self.max_ns));
        let mean_us = us(self.sum_ns) / self.count as f64;
        let spread =
            Spread { mean_us, p50_us: at(0.5), p95_us: at(0.95), p99_us: at(0.99), max_us: us(self.max_ns) };
        let counts = (self.count, self.bytes, spread);
        self.latency_ns.clear();
        (self.count, self.bytes, self.sum_ns, self.max_ns) = (0, 0, 0, 0);
        counts
    }
}

impl Meter {
    pub fn new(now_ns: u64) -> Meter {
        Meter(RefCell::new(Counts {
            began_ns: now_ns,
            totals: Totals::default(),
            reads: Direction::new(),
            writes: Direction::new(),
            in_flight: 0,
            last_ns: now_ns,
            gap_ns: 0,
        }))
    }

    pub fn issued(&self, now_ns: u64) {
        let counts = &mut *self.0.borrow_mut();
        if counts.in_flight == 0 {
            counts.last_ns = now_ns;
        }
        counts.in_flight += 1;
    }

    /// Counts a completed I/O. Its latency is measured from `due_ns`.
    pub fn done(&self, read: bool, bytes: u32, due_ns: u64, now_ns: u64) {
        let counts = &mut *self.0.borrow_mut();
        counts.completed(now_ns);
        match read {
            true => {
                counts.totals.reads += 1;
                counts.reads.done(bytes, now_ns - due_ns);
            }
            false => {
                counts.totals.writes += 1;
                counts.writes.done(bytes, now_ns - due_ns);
            }
        }
    }

    pub fn failed(&self, now_ns: u64) {
        self.0.borrow_mut().completed(now_ns);
    }

    pub fn totals(&self) -> Totals {
        self.0.borrow().totals
    }

    /// Ends the interval under way and begins the next. The sample's times are those passed by the callers; the sample
    /// has no host counts. A gap that continues counts in each interval with its whole length so far.
    pub fn cut(&self, now_ns: u64) -> Sample {
        let counts = &mut *self.0.borrow_mut();
        if counts.in_flight > 0 {
            counts.gap_ns = counts.gap_ns.max(now_ns - counts.last_ns);
        }
        let (reads, read_bytes, read_latency) = counts.reads.cut();
        let (writes, written_bytes, write_latency) = counts.writes.cut();
        let sample = Sample {
            at_us: counts.began_ns / 1000,
            interval_us: now_ns / 1000 - counts.began_ns / 1000,
            reads,
            writes,
            read_bytes,
            written_bytes,
            read_latency,
            write_latency,
            host: None,
            gap_us: counts.gap_ns / 1000,
        };
        counts.began_ns = now_ns;
        counts.gap_ns = 0;
        sample
    }
}

impl Counts {
    fn completed(&mut self, now_ns: u64) {
        self.in_flight -= 1;
        self.gap_ns = self.gap_ns.max(now_ns - self.last_ns);
        self.last_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn an_interval_has_its_counts_and_latencies_and_the_next_begins_empty() {
        let meter = Meter::new(0);
        for n in 1..=100 {
            meter.issued(0);
            meter.done(true, 4096, 0, n * 100 * US);
        }
        meter.issued(0);
        meter.done(false, 512, 0, 10_000 * US);
        let sample = meter.cut(20_000 * US);
        assert_eq!(
            (sample.reads, sample.writes, sample.read_bytes, sample.written_bytes),
            (100, 1, 409_600, 512)
        );
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.002, "{found}");
        near(sample.read_latency.p50_us, 5000.0);
        near(sample.read_latency.p99_us, 9900.0);
        assert_eq!((sample.read_latency.mean_us, sample.read_latency.max_us), (5050.0, 10_000.0));
        assert_eq!((sample.at_us, sample.interval_us), (0, 20_000));
        let next = meter.cut(30_000 * US);
        assert_eq!(next, Sample { at_us: 20_000, interval_us: 10_000, ..Sample::default() });
        assert_eq!(meter.totals(), Totals { reads: 100, writes: 1 });
    }

    #[test]
    fn a_gap_is_time_without_completions_while_one_is_under_way() {
        let meter = Meter::new(0);
        meter.issued(500 * US);
        meter.issued(550 * US);
        meter.done(true, 512, 500 * US, 600 * US);
        assert_eq!(meter.cut(1000 * US).gap_us, 400, "still waiting for the second");
        meter.done(true, 512, 550 * US, 1300 * US);
        // No I/O is under way, so there is no gap.
        meter.issued(5000 * US);
        meter.done(true, 512, 5000 * US, 5010 * US);
        assert_eq!(meter.cut(6000 * US).gap_us, 700);
    }
}
