use crate::figures::{self, Figures};
use crate::run::{Beat, PhaseSpan, Quantity, Record, Row};

/// Figures of the guest.
const GUEST: [Quantity; 5] =
    [Quantity::ReadsPerS, Quantity::WritesPerS, Quantity::Iops, Quantity::MbPerS, Quantity::LatencyUs];
/// Figures of the host.
const HOST: [Quantity; 4] =
    [Quantity::HostReadsPerS, Quantity::HostWritesPerS, Quantity::HostReadRatio, Quantity::HostWriteRatio];

/// A span under way.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub span: PhaseSpan,
    /// The load ran: a rate of zero is a figure then.
    pub loaded: bool,
}

/// Returns a measured figure as a row of the record, without a published one.
pub(super) fn row(record: &Record, span: &PhaseSpan, quantity: Quantity, value: f64, note: &str) -> Row {
    Row {
        hypothesis: record.hypothesis.clone(),
        note: if note.is_empty() { span.label.clone() } else { note.to_string() },
        ..Row::measured(&record.experiment, span.phase, quantity, value)
    }
}

/// Returns the figures of the samples, stuns and beats within a span, as rows.
pub(super) fn measure(record: &Record, Span { span, loaded }: &Span, beats: Option<&[Beat]>) -> Vec<Row> {
    let figures = figures::of(record, &[span]);
    let guest = GUEST.iter().filter(|_| *loaded);
    let mut rows: Vec<Row> = guest.chain(&HOST).filter_map(|q| sampled(record, span, &figures, *q)).collect();
    if let Some(beats) = beats {
        let lost = beats.iter().filter(|beat| beat.lost && span.holds(beat.at_us)).count();
        rows.push(row(record, span, Quantity::PingsLost, lost as f64, ""));
    }
    let stuns = record.stuns.iter().filter(|stun| span.holds(stun.at_us));
    rows.extend(stuns.map(|stun| row(record, span, Quantity::StunUs, stun.stun_us as f64, &stun.cause)));
    rows
}

fn sampled(record: &Record, span: &PhaseSpan, figures: &Figures, quantity: Quantity) -> Option<Row> {
    Some(row(record, span, quantity, figures.value(quantity)?, ""))
}
