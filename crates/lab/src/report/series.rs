//! Samples as lines of a chart, thinned so that every minimum and maximum is kept.

use crate::run::{Record, Sample, Spread};

/// Most points of one line. A chart has about 830 units of width, and a page should open at once.
pub(super) const BINS_MAX: usize = 400;

/// Adjacent samples as one point: their mean and their extremes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bin {
    pub begin_us: u64,
    pub end_us: u64,
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

impl Bin {
    pub(super) fn middle_us(&self) -> f64 {
        (self.begin_us as f64 + self.end_us as f64) / 2.0
    }
}

/// A line as pieces, each without a hole.
pub(super) type Pieces = Vec<Vec<Bin>>;

pub(super) fn end_us(sample: &Sample) -> u64 {
    sample.at_us.saturating_add(sample.interval_us)
}

/// Returns a rate per second; None for an interval without a length.
pub(super) fn rate(count: u64, sample: &Sample) -> Option<f64> {
    (sample.interval_us > 0).then(|| count as f64 * 1e6 / sample.interval_us as f64)
}

/// Returns one of a latency's figures; None where no I/O completed or the latency was not measured.
pub(super) fn latency(spread: &Spread, figure: fn(&Spread) -> f64) -> Option<f64> {
    Some(figure(spread)).filter(|us| us.is_finite() && *us > 0.0)
}

/// Returns `value` of each sample in at most `bins_max` points. Samples without a value and times without samples are
/// holes.
pub(super) fn thin(samples: &[Sample], bins_max: usize, value: impl Fn(&Sample) -> Option<f64>) -> Pieces {
    let each = samples.len().div_ceil(bins_max).max(1);
    let mut pieces: Pieces = Vec::new();
    let mut before: Option<u64> = None;
    for group in samples.chunks(each) {
        let Some(bin) = bin(group, &value) else {
            before = None;
            continue;
        };
        let slack = group[0].interval_us.saturating_mul(HOLE_INTERVALS);
        match pieces.last_mut() {
            Some(piece) if before.is_some_and(|end| bin.begin_us <= end.saturating_add(slack)) => {
                piece.push(bin);
            }
            _ => pieces.push(vec![bin]),
        }
        before = Some(bin.end_us);
    }
    pieces
}

/// Longest delay between two samples, in intervals, that is not a hole.
const HOLE_INTERVALS: u64 = 2;

fn bin(group: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Option<Bin> {
    let (mut weight, mut sum) = (0.0, 0.0);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for sample in group {
        let Some(value) = value(sample).filter(|v| v.is_finite()) else { continue };
        let us = sample.interval_us.max(1) as f64;
        weight += us;
        sum += value * us;
        low = low.min(value);
        high = high.max(value);
    }
    let (first, last) = (group.first()?, group.last()?);
    (weight > 0.0).then(|| Bin { begin_us: first.at_us, end_us: end_us(last), mean: sum / weight, low, high })
}

/// Returns begin and end of everything in a record, microseconds.
pub fn extent(record: &Record) -> (u64, u64) {
    let samples = record.samples.iter().map(|s| (s.at_us, end_us(s)));
    let phases = record.phases.iter().map(|p| (p.begin_us, p.end_us));
    let stuns = record.stuns.iter().map(|s| (s.at_us, s.at_us.saturating_add(s.stun_us)));
    let beats = record.beats.iter().map(|b| (b.at_us, b.at_us));
    let all = samples.chain(phases).chain(stuns).chain(beats);
    let (begin, end) = all.fold((u64::MAX, 0), |(low, high), (begin, end)| (low.min(begin), high.max(end)));
    if begin < end { (begin, end) } else { (0, end.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: u64) -> Vec<Sample> {
        (0..count)
            .map(|n| Sample {
                at_us: n * 1_000_000,
                interval_us: 1_000_000,
                reads: n % 10,
                ..Sample::default()
            })
            .collect()
    }

    #[test]
    fn thinning_keeps_extremes_and_totals() {
        let mut samples = samples(100_000);
        samples[77_777].reads = 5_000;
        let pieces = thin(&samples, BINS_MAX, |s| rate(s.reads, s));
        assert_eq!(pieces.len(), 1);
        assert!(pieces[0].len() <= BINS_MAX);
        assert!(pieces[0].iter().any(|bin| bin.high == 5_000.0));
        assert!(pieces[0].iter().all(|bin| bin.low == 0.0));
        let total: f64 = pieces[0].iter().map(|b| b.mean * (b.end_us - b.begin_us) as f64 / 1e6).sum();
        let exact: u64 = samples.iter().map(|s| s.reads).sum();
        assert!((total - exact as f64).abs() < 1.0, "{total} of {exact}");
    }

    #[test]
    fn a_hole_is_not_bridged() {
        let mut samples = samples(20);
        samples.drain(5..10);
        assert_eq!(thin(&samples, BINS_MAX, |s| rate(s.reads, s)).len(), 2);
        assert_eq!(thin(&samples, BINS_MAX, |_| None).len(), 0);
    }
}
