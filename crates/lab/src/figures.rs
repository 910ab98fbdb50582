//! Figures of a run's phases. This is the only module that computes figures from samples.
//!
//! Rows, pages, workbooks, terminals and comparisons show these figures, so they always agree.

use crate::run::{Counters, LayerHost, Phase, PhaseSpan, Quantity, Record, Row, Sample, Spread, Stun};

/// IOmeter's megabyte, which the articles use too: 90,000 I/Os of 8 KiB a second are "700 MB/s".
const MB: f64 = (1 << 20) as f64;

/// Fewest samples from which a figure of a phase is given without a warning. The range of n values contains the median
/// of what they are samples of with a probability of 1 - 2 / 2^n; six is the first n that passes 95 %.
pub(crate) const SAMPLES_MIN: usize = 6;

/// Figures of a phase, of one of its steps, or of a whole record without phases.
///
/// Rates and latencies cover the samples that count: those after a step's warm-up, and none of a step that is over at
/// once, such as a take. Maxima cover all samples. `None` means that the figure was not sampled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures {
    /// None: the record has no phases.
    pub phase: Option<Phase>,
    /// Label of a step; None: all steps of the phase together.
    pub step: Option<String>,
    pub begin_us: u64,
    /// Sum over the steps.
    pub lasts_us: u64,
    /// Number of samples that count.
    pub samples: usize,
    pub reads_per_s: Option<f64>,
    pub writes_per_s: Option<f64>,
    /// A megabyte is 2^20 bytes.
    pub mb_per_s: Option<f64>,
    pub host_reads_per_s: Option<f64>,
    pub host_writes_per_s: Option<f64>,
    /// Host reads per guest read; None where host reads were not observed or the guest did not read.
    pub host_read_ratio: Option<f64>,
    pub host_write_ratio: Option<f64>,
    /// The part of the host's reads and writes that went to tables; None in runs that do not count them separately.
    pub table_reads_per_s: Option<f64>,
    pub table_writes_per_s: Option<f64>,
    /// Mean over all completions whose latency is known.
    pub mean_us: Option<f64>,
    /// The median over the intervals of the 99th percentile; the worse of reads and writes. Percentiles cannot be
    /// added.
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
    pub(crate) fn iops(&self) -> Option<f64> {
        Some(self.reads_per_s? + self.writes_per_s?)
    }

    /// Returns the figure that rows call `quantity`; None also for quantities that samples do not contain.
    pub(crate) fn value(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::ReadsPerS => self.reads_per_s,
            Quantity::WritesPerS => self.writes_per_s,
            Quantity::Iops => self.iops(),
            Quantity::MbPerS => self.mb_per_s,
            Quantity::LatencyUs => self.mean_us,
            Quantity::HostReadsPerS => self.host_reads_per_s,
            Quantity::HostWritesPerS => self.host_writes_per_s,
            Quantity::HostReadRatio => self.host_read_ratio,
            Quantity::HostWriteRatio => self.host_write_ratio,
            Quantity::StunUs | Quantity::PingsLost | Quantity::Seconds => None,
            Quantity::Converged
            | Quantity::HelperBytes
            | Quantity::HelperGrowth
            | Quantity::HostOfSnapshot
            | Quantity::StunSpanUs
            | Quantity::StunGapUs => None,
        }
    }

    /// Returns whether the rate of a phase under load comes from fewer than `SAMPLES_MIN` samples.
    pub(crate) fn has_few_samples(&self) -> bool {
        self.iops().is_some_and(|iops| iops > 0.0) && self.samples < SAMPLES_MIN
    }

    /// Returns the name of the phase.
    pub(crate) fn name(&self) -> &'static str {
        self.phase.map_or("all", crate::report::phase_name)
    }
}

/// Returns the figures of each phase, in the order of time; those of the whole record where it has no phases.
pub(crate) fn phases(record: &Record) -> Vec<Figures> {
    let Some((begin_us, end_us)) = record.phases.is_empty().then(|| crate::report::extent(record)) else {
        return by_phase(record).into_iter().map(|spans| of(record, &spans)).collect();
    };
    let all = PhaseSpan::new(Phase::Prepare, String::new(), begin_us, end_us);
    vec![Figures { phase: None, step: None, ..of(record, &[&all]) }]
}

/// Returns the figures of each phase, followed by those of its steps where it has several.
pub(crate) fn phases_and_steps(record: &Record) -> Vec<Figures> {
    if record.phases.is_empty() {
        return phases(record);
    }
    let lines = by_phase(record).into_iter().flat_map(|spans| {
        let steps = if spans.len() > 1 { spans.as_slice() } else { &[] };
        let step = |span: &&PhaseSpan| Figures { step: Some(span.label.clone()), ..of(record, &[span]) };
        let steps: Vec<Figures> = steps.iter().map(step).collect();
        [of(record, &spans)].into_iter().chain(steps)
    });
    lines.collect()
}

/// Groups the spans by phase, in the order of each phase's first span.
fn by_phase(record: &Record) -> Vec<Vec<&PhaseSpan>> {
    let mut phases: Vec<Vec<&PhaseSpan>> = Vec::new();
    for span in &record.phases {
        match phases.iter_mut().find(|spans| spans[0].phase == span.phase) {
            Some(spans) => spans.push(span),
            None => phases.push(vec![span]),
        }
    }
    phases
}

/// Returns the figures of the samples, stuns and beats within these spans together. There must be at least one span.
pub(crate) fn of(record: &Record, spans: &[&PhaseSpan]) -> Figures {
    let within = |at_us: u64| spans.iter().any(|span| span.holds(at_us));
    let mut sums = Sums::default();
    for sample in &record.samples {
        let Some(span) = spans.iter().find(|span| span.holds(middle(sample))) else { continue };
        sums.add_extremes(sample);
        if sample.at_us >= span.counted_from_us {
            sums.add(sample);
        }
    }
    let stuns: Vec<&Stun> = record.stuns.iter().filter(|stun| within(stun.at_us)).collect();
    let beats: Vec<bool> = record.beats.iter().filter(|b| within(b.at_us)).map(|b| b.lost).collect();
    Figures {
        phase: Some(spans[0].phase),
        begin_us: spans[0].begin_us,
        lasts_us: spans.iter().fold(0, |sum: u64, span| sum.saturating_add(span.lasts_us())),
        stuns: stuns.len(),
        stun_total_us: stuns.iter().fold(0, |sum, stun| sum.saturating_add(stun.stun_us)),
        stun_longest_us: stuns.iter().map(|stun| stun.stun_us).max().unwrap_or(0),
        beats: beats.len(),
        beats_lost: beats.iter().filter(|lost| **lost).count(),
        ..sums.figures(record.tells_tables())
    }
}

fn middle(sample: &Sample) -> u64 {
    sample.at_us / 2 + sample.at_us.saturating_add(sample.interval_us) / 2
}

/// Sums over the samples that count.
#[derive(Default)]
struct Sums {
    samples: usize,
    interval_us: f64,
    reads: f64,
    writes: f64,
    bytes: f64,
    host: HostSums,
    latency_us: f64,
    latencies: f64,
    p99s: Vec<f64>,
    /// Maxima over all samples.
    max_us: f64,
    gap_us: u64,
}

/// Sums over the samples with host counts.
#[derive(Default)]
struct HostSums {
    interval_us: f64,
    reads: f64,
    writes: f64,
    table_reads: f64,
    table_writes: f64,
    /// The guest's I/Os in the same samples.
    guest_reads: f64,
    guest_writes: f64,
}

impl Sums {
    fn add_extremes(&mut self, sample: &Sample) {
        for spread in [&sample.read_latency, &sample.write_latency] {
            self.max_us = self.max_us.max(known(spread.max_us).unwrap_or(0.0));
        }
        self.gap_us = self.gap_us.max(sample.gap_us);
    }

    fn add(&mut self, sample: &Sample) {
        self.samples += 1;
        self.interval_us += sample.interval_us as f64;
        self.reads += sample.reads as f64;
        self.writes += sample.writes as f64;
        self.bytes += sample.read_bytes as f64 + sample.written_bytes as f64;
        if let Some(host) = &sample.host {
            self.host.add(sample, host);
        }
        let spreads: [(&Spread, u64); 2] =
            [(&sample.read_latency, sample.reads), (&sample.write_latency, sample.writes)];
        for (mean_us, count) in spreads.iter().filter_map(|(s, count)| Some((known(s.mean_us)?, *count))) {
            self.latency_us += mean_us * count as f64;
            self.latencies += count as f64;
        }
        self.p99s.extend(spreads.iter().filter_map(|(s, _)| known(s.p99_us)).reduce(f64::max));
    }

    fn figures(self, tables: bool) -> Figures {
        let per_s = |count: f64| (self.interval_us > 0.0).then(|| count * 1e6 / self.interval_us);
        let host = &self.host;
        let host_per_s = |count: f64| (host.interval_us > 0.0).then(|| count * 1e6 / host.interval_us);
        Figures {
            samples: self.samples,
            reads_per_s: per_s(self.reads),
            writes_per_s: per_s(self.writes),
            mb_per_s: per_s(self.bytes / MB),
            host_reads_per_s: host_per_s(host.reads),
            host_writes_per_s: host_per_s(host.writes),
            host_read_ratio: (host.guest_reads > 0.0).then(|| host.reads / host.guest_reads),
            host_write_ratio: (host.guest_writes > 0.0).then(|| host.writes / host.guest_writes),
            table_reads_per_s: host_per_s(host.table_reads).filter(|_| tables),
            table_writes_per_s: host_per_s(host.table_writes).filter(|_| tables),
            mean_us: (self.latencies > 0.0).then(|| self.latency_us / self.latencies),
            p99_us: median(self.p99s),
            max_us: Some(self.max_us).filter(|us| *us > 0.0),
            gap_us: self.gap_us,
            ..Figures::default()
        }
    }
}

impl HostSums {
    fn add(&mut self, sample: &Sample, host: &Counters) {
        self.interval_us += sample.interval_us as f64;
        self.reads += host.reads as f64;
        self.writes += host.writes as f64;
        self.table_reads += host.table_reads as f64;
        self.table_writes += host.table_writes as f64;
        self.guest_reads += sample.reads as f64;
        self.guest_writes += sample.writes as f64;
    }
}

/// Returns a latency that was measured; imports may contain zero or non-finite ones.
fn known(us: f64) -> Option<f64> {
    Some(us).filter(|us| us.is_finite() && *us > 0.0)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// I/O on the layers at one height in one step of a phase.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerFigures {
    pub phase: Phase,
    pub label: String,
    /// Number of layers below.
    pub layer: u32,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub table_reads_per_s: f64,
    pub table_writes_per_s: f64,
    /// Bytes read and written; a megabyte is 2^20 bytes.
    pub mb_per_s: f64,
}

/// Returns the figures of all spans with a length, in the order of time, base first.
pub(crate) fn layers(record: &Record) -> Vec<LayerFigures> {
    let lasting = record.phases.iter().filter(|span| span.end_us > span.begin_us);
    lasting.flat_map(|span| span.layers.iter().map(|layer| of_layer(span, layer))).collect()
}

fn of_layer(span: &PhaseSpan, LayerHost { layer, host }: &LayerHost) -> LayerFigures {
    let per_s = |count: u64| count as f64 * 1e6 / span.lasts_us() as f64;
    LayerFigures {
        phase: span.phase,
        label: span.label.clone(),
        layer: *layer,
        reads_per_s: per_s(host.reads),
        writes_per_s: per_s(host.writes),
        table_reads_per_s: per_s(host.table_reads),
        table_writes_per_s: per_s(host.table_writes),
        mb_per_s: per_s(host.read_bytes.saturating_add(host.written_bytes)) / MB,
    }
}

/// Returns a warning that names the phases with few samples; None where all have enough. Phases that write a test file
/// are not compared, and have none.
pub(crate) fn few_samples<'a>(phases: impl IntoIterator<Item = &'a Figures>) -> Option<String> {
    let is_compared = |f: &&Figures| ![Some(Phase::Prepare), Some(Phase::PrepareSnapshot)].contains(&f.phase);
    let mut few: Vec<(&'static str, usize)> = Vec::new();
    for f in phases.into_iter().filter(is_compared).filter(|f| f.has_few_samples()) {
        match few.iter_mut().find(|(name, _)| *name == f.name()) {
            Some((_, samples)) => *samples = f.samples.min(*samples),
            None => few.push((f.name(), f.samples)),
        }
    }
    let counts: Vec<String> = few.iter().map(|(name, samples)| format!("{name} {samples}")).collect();
    (!few.is_empty()).then(|| {
        format!(
            "few samples ({}): with fewer than {SAMPLES_MIN} a figure may differ by chance",
            counts.join(", ")
        )
    })
}

/// Begins of the marks of a commit that goes on after its phase.
const GOES_ON: [&str; 2] = ["commit not converged", "commit gave up"];

/// Returns whether the commits of a phase ended within it; None without one. The marks tell it where the rows are only
/// those of published figures.
pub(crate) fn converged(record: &Record, phase: Phase) -> Option<bool> {
    let of_phase = |row: &&Row| row.phase == phase && row.quantity == Quantity::Converged;
    let rows = record.rows.iter().filter(of_phase).filter_map(|row| row.predicted);
    let all = rows.reduce(f64::min).map(|lowest| lowest >= 1.0);
    all.or_else(|| {
        let spans = || record.phases.iter().filter(|span| span.phase == phase);
        let is_within = |at_us| spans().any(|span| span.begin_us < at_us && at_us <= span.end_us);
        let marks =
            || record.marks.iter().filter(|mark| is_within(mark.at_us)).map(|mark| mark.text.as_str());
        let goes_on = marks().any(|text| GOES_ON.iter().any(|begin| text.starts_with(begin)));
        (goes_on || marks().any(|text| text == "commit ended")).then_some(!goes_on)
    })
}
