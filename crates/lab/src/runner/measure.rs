use crate::run::{Beat, Counters, PhaseSpan, Quantity, Record, Row, Sample};

/// IOmeter's megabyte, and that of the articles: 90,000 I/Os of 8 KiB a second are "700 MB/s".
const MB: f64 = (1 << 20) as f64;

/// A span of a record, and which part of it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub span: PhaseSpan,
    /// After the warm-up; None: no sample counts.
    pub counted_from_us: Option<u64>,
    /// The load ran: that nothing completed is a figure then.
    pub loaded: bool,
}

/// A measured figure, as a row of the record without anything published.
pub fn row(record: &Record, span: &PhaseSpan, quantity: Quantity, value: f64, note: &str) -> Row {
    Row {
        hypothesis: record.hypothesis.clone(),
        note: if note.is_empty() { span.label.clone() } else { note.to_string() },
        ..Row::measured(&record.experiment, span.phase, quantity, value)
    }
}

/// What the samples, stuns and beats within a span come to. A sample lies within one span, or in none.
pub fn measure(record: &Record, span: &Span, beats: Option<&[Beat]>) -> Vec<Row> {
    let sums = Sums::of(record, span);
    let mut figures = Vec::new();
    if sums.seconds > 0.0 && span.loaded {
        sums.guest(&mut figures);
    }
    if sums.host.seconds > 0.0 {
        sums.host.figures(&mut figures);
    }
    if let Some(beats) = beats {
        let lost = beats.iter().filter(|beat| beat.lost && span.span.holds(beat.at_us)).count();
        figures.push((Quantity::PingsLost, lost as f64));
    }
    let mut rows: Vec<Row> = Vec::with_capacity(figures.len());
    rows.extend(figures.into_iter().map(|(quantity, value)| row(record, &span.span, quantity, value, "")));
    let stuns = record.stuns.iter().filter(|stun| span.span.holds(stun.at_us));
    rows.extend(
        stuns.map(|stun| row(record, &span.span, Quantity::StunUs, stun.stun_us as f64, &stun.cause)),
    );
    rows
}

#[derive(Default)]
struct Sums {
    seconds: f64,
    reads: f64,
    writes: f64,
    bytes: f64,
    latency_us: f64,
    host: HostSums,
}

/// Over the samples in which the host was seen.
#[derive(Default)]
struct HostSums {
    seconds: f64,
    reads: f64,
    writes: f64,
    /// Those of the guest within them.
    guest_reads: f64,
    guest_writes: f64,
}

impl Sums {
    fn of(record: &Record, span: &Span) -> Sums {
        let mut sums = Sums::default();
        let from_us = span.counted_from_us.unwrap_or(u64::MAX);
        // A phase has the latest samples at most, so they are looked for from the end.
        let counted = record.samples.iter().rev().take_while(|sample| sample.at_us >= from_us);
        for sample in counted.filter(|s| s.at_us + s.interval_us <= span.span.end_us) {
            sums.seconds += sample.interval_us as f64 / 1e6;
            sums.reads += sample.reads as f64;
            sums.writes += sample.writes as f64;
            sums.bytes += (sample.read_bytes + sample.written_bytes) as f64;
            sums.latency_us += sample.read_latency.mean_us * sample.reads as f64;
            sums.latency_us += sample.write_latency.mean_us * sample.writes as f64;
            if let Some(host) = sample.host {
                sums.host.add(sample, &host);
            }
        }
        sums
    }

    fn guest(&self, figures: &mut Vec<(Quantity, f64)>) {
        let ios = self.reads + self.writes;
        figures.extend([
            (Quantity::ReadsPerS, self.reads / self.seconds),
            (Quantity::WritesPerS, self.writes / self.seconds),
            (Quantity::Iops, ios / self.seconds),
            (Quantity::MbPerS, self.bytes / MB / self.seconds),
        ]);
        if ios > 0.0 {
            figures.push((Quantity::LatencyUs, self.latency_us / ios));
        }
    }
}

impl HostSums {
    fn add(&mut self, sample: &Sample, host: &Counters) {
        self.seconds += sample.interval_us as f64 / 1e6;
        self.reads += host.reads as f64;
        self.writes += host.writes as f64;
        self.guest_reads += sample.reads as f64;
        self.guest_writes += sample.writes as f64;
    }

    fn figures(&self, figures: &mut Vec<(Quantity, f64)>) {
        figures.push((Quantity::HostReadsPerS, self.reads / self.seconds));
        figures.push((Quantity::HostWritesPerS, self.writes / self.seconds));
        if self.guest_reads > 0.0 {
            figures.push((Quantity::HostReadRatio, self.reads / self.guest_reads));
        }
        if self.guest_writes > 0.0 {
            figures.push((Quantity::HostWriteRatio, self.writes / self.guest_writes));
        }
    }
}
