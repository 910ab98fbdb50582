//! What each phase of a run comes to.

use super::series::{end_us, latency};
use crate::run::{Counters, LayerHost, PhaseSpan, Record, Sample, Spread};

/// Of one phase. Counts are of the intervals whose middle lies within it; None where nothing was sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    pub phase: &'static str,
    pub label: String,
    pub begin_us: u64,
    pub end_us: u64,
    pub reads_per_s: Option<f64>,
    pub writes_per_s: Option<f64>,
    /// Millions of bytes.
    pub mb_per_s: Option<f64>,
    pub host_reads_per_s: Option<f64>,
    pub host_writes_per_s: Option<f64>,
    /// Of those; None in runs that do not tell them apart.
    pub table_reads_per_s: Option<f64>,
    pub table_writes_per_s: Option<f64>,
    /// Over all completions.
    pub mean_us: Option<f64>,
    /// The median of the intervals' 99th percentiles, the worse of reads and writes: percentiles do not add up.
    pub p99_us: Option<f64>,
    pub max_us: Option<f64>,
    pub stuns: usize,
    pub stun_total_us: u64,
    pub stun_longest_us: u64,
    pub beats: usize,
    pub beats_lost: usize,
    pub gap_us: u64,
}

impl Figures {
    pub fn iops(&self) -> Option<f64> {
        Some(self.reads_per_s? + self.writes_per_s?)
    }

    pub fn host_read_ratio(&self) -> Option<f64> {
        self.host_reads_per_s
            .zip(self.reads_per_s)
            .filter(|(_, guest)| *guest > 0.0)
            .map(|(host, guest)| host / guest)
    }

    pub fn host_write_ratio(&self) -> Option<f64> {
        let both = self.host_writes_per_s.zip(self.writes_per_s);
        both.filter(|(_, guest)| *guest > 0.0).map(|(host, guest)| host / guest)
    }
}

/// One per phase, in the order of time; one for everything where no phases are known.
pub fn figures(record: &Record) -> Vec<Figures> {
    if record.phases.is_empty() {
        let (begin, end) = super::series::extent(record);
        return vec![of_span(record, "all", "", begin, end)];
    }
    let span = |p: &PhaseSpan| of_span(record, super::words::phase(p.phase), &p.label, p.begin_us, p.end_us);
    record.phases.iter().map(span).collect()
}

/// Sums over the intervals of one phase.
#[derive(Default)]
struct Sums {
    interval_us: f64,
    reads: f64,
    writes: f64,
    bytes: f64,
    host_us: f64,
    host_reads: f64,
    host_writes: f64,
    table_reads: f64,
    table_writes: f64,
    latency_us: f64,
    latencies: f64,
    p99s: Vec<f64>,
    max_us: f64,
    gap_us: u64,
}

impl Sums {
    fn add(&mut self, sample: &Sample) {
        let us = sample.interval_us as f64;
        self.interval_us += us;
        self.reads += sample.reads as f64;
        self.writes += sample.writes as f64;
        self.bytes += sample.read_bytes as f64 + sample.written_bytes as f64;
        if let Some(Counters { reads, writes, table_reads, table_writes, .. }) = sample.host {
            self.host_us += us;
            self.host_reads += reads as f64;
            self.host_writes += writes as f64;
            self.table_reads += table_reads as f64;
            self.table_writes += table_writes as f64;
        }
        let mut p99 = 0f64;
        for (spread, count) in [(&sample.read_latency, sample.reads), (&sample.write_latency, sample.writes)]
        {
            if let Some(mean) = latency(spread, |s| s.mean_us) {
                self.latency_us += mean * count as f64;
                self.latencies += count as f64;
            }
            p99 = p99.max(latency(spread, |s| s.p99_us).unwrap_or(0.0));
            self.max_us = self.max_us.max(latency(spread, |s: &Spread| s.max_us).unwrap_or(0.0));
        }
        if p99 > 0.0 {
            self.p99s.push(p99);
        }
        self.gap_us = self.gap_us.max(sample.gap_us);
    }

    fn per_s(&self, count: f64) -> Option<f64> {
        (self.interval_us > 0.0).then(|| count * 1e6 / self.interval_us)
    }

    fn host_per_s(&self, count: f64) -> Option<f64> {
        (self.host_us > 0.0).then(|| count * 1e6 / self.host_us)
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn of_span(record: &Record, phase: &'static str, label: &str, begin_us: u64, end_us: u64) -> Figures {
    let within = |at: u64| (begin_us..end_us).contains(&at) || (at == begin_us && begin_us == end_us);
    let mut sums = Sums::default();
    record.samples.iter().filter(|s| within(middle(s))).for_each(|s| sums.add(s));
    let tables = record.tells_tables();
    let stuns: Vec<u64> = record.stuns.iter().filter(|s| within(s.at_us)).map(|s| s.stun_us).collect();
    let beats: Vec<bool> = record.beats.iter().filter(|b| within(b.at_us)).map(|b| b.lost).collect();
    Figures {
        phase,
        label: label.into(),
        begin_us,
        end_us,
        reads_per_s: sums.per_s(sums.reads),
        writes_per_s: sums.per_s(sums.writes),
        mb_per_s: sums.per_s(sums.bytes / 1e6),
        host_reads_per_s: sums.host_per_s(sums.host_reads),
        host_writes_per_s: sums.host_per_s(sums.host_writes),
        table_reads_per_s: sums.host_per_s(sums.table_reads).filter(|_| tables),
        table_writes_per_s: sums.host_per_s(sums.table_writes).filter(|_| tables),
        mean_us: (sums.latencies > 0.0).then(|| sums.latency_us / sums.latencies),
        p99_us: median(sums.p99s),
        max_us: Some(sums.max_us).filter(|us| *us > 0.0),
        stuns: stuns.len(),
        stun_total_us: stuns.iter().fold(0, |sum, us| sum.saturating_add(*us)),
        stun_longest_us: stuns.iter().copied().max().unwrap_or(0),
        beats: beats.len(),
        beats_lost: beats.iter().filter(|lost| **lost).count(),
        gap_us: sums.gap_us,
    }
}

/// What the layers at one height were asked for in one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFigures {
    pub phase: &'static str,
    pub label: String,
    /// "base", "delta 1"...
    pub layer: String,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub table_reads_per_s: f64,
    pub table_writes_per_s: f64,
    /// Millions of bytes, read and written.
    pub mb_per_s: f64,
}

/// Of the phases that lasted, in the order of time, base first.
pub fn layers(record: &Record) -> Vec<LayerFigures> {
    let lasting = record.phases.iter().filter(|span| span.end_us > span.begin_us);
    lasting.flat_map(|span| span.layers.iter().map(|layer| of_layer(span, layer))).collect()
}

fn of_layer(span: &PhaseSpan, LayerHost { layer, host }: &LayerHost) -> LayerFigures {
    let per_s = |count: u64| count as f64 * 1e6 / (span.end_us - span.begin_us) as f64;
    LayerFigures {
        phase: super::words::phase(span.phase),
        label: span.label.clone(),
        layer: super::words::layer(*layer),
        reads_per_s: per_s(host.reads),
        writes_per_s: per_s(host.writes),
        table_reads_per_s: per_s(host.table_reads),
        table_writes_per_s: per_s(host.table_writes),
        mb_per_s: per_s(host.read_bytes.saturating_add(host.written_bytes)) / 1e6,
    }
}

fn middle(sample: &Sample) -> u64 {
    sample.at_us / 2 + end_us(sample) / 2
}
