//! Results of a run beside the published figures.

use super::{Experiment, Part, Published};
use crate::figures;
use crate::probe::Heartbeat;
use crate::run::{Phase, PhaseSpan, Quantity, Record, Row, Stun};
use crate::runner::FIRST_ROUND;

/// Number of alignments of pings with a run, because the published pings were not aligned with the stuns.
const PING_OFFSETS: u64 = 10;

/// Column of the results that figures belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    pub name: &'a str,
    /// The column is the frozen default.
    pub default: bool,
}

impl Experiment {
    /// Returns one row for each published cell, in their order.
    pub fn rows(&self, record: &Record, column: Column<'_>) -> Vec<Row> {
        let row = |cell: &Published| {
            let (predicted, band) = self.measured(record, cell);
            Row {
                experiment: self.name.clone(),
                phase: cell.phase,
                quantity: cell.quantity,
                published: cell.value,
                bound: cell.bound,
                stun: cell.stun,
                predicted,
                r#use: cell.r#use,
                hypothesis: Some(column.name.to_string()),
                default: column.default,
                band,
                note: cell.note.clone(),
            }
        };
        self.published.iter().map(row).collect()
    }

    fn measured(&self, record: &Record, cell: &Published) -> (Option<f64>, Option<(f64, f64)>) {
        let spans: Vec<&PhaseSpan> = spans(record, cell).collect();
        if spans.is_empty() {
            return (None, None);
        }
        let value = match cell.quantity {
            Quantity::Seconds => Self::seconds(record, cell, &spans),
            Quantity::StunUs => stun_us(record, cell, &spans),
            Quantity::PingsLost => return self.pings(record, &spans),
            Quantity::StunSpanUs => stun_span_us(record, &spans),
            Quantity::StunGapUs => stun_gap_us(record, &spans),
            Quantity::HelperGrowth => helper_growth(record, cell.phase),
            Quantity::HostOfSnapshot => host_of_snapshot(record, &spans),
            Quantity::Converged | Quantity::HelperBytes => {
                spans.iter().rev().find_map(|span| figure(record, span, cell.quantity))
            }
            quantity => figures::of(record, &spans).value(quantity),
        };
        (value, None)
    }

    /// Returns seconds; None for a commit that did not end.
    fn seconds(record: &Record, cell: &Published, spans: &[&PhaseSpan]) -> Option<f64> {
        if cell.part == Some(Part::FirstRound) {
            return first_round_s(record, spans[0]);
        }
        if spans.iter().any(|span| figure(record, span, Quantity::Converged) == Some(0.0)) {
            return None;
        }
        let us: u64 = spans.iter().map(|span| span.end_us - span.begin_us).sum();
        Some(us as f64 / 1e6)
    }

    /// Returns the mean over all alignments of pings and stuns, rounded, with the fewest and the most.
    fn pings(&self, record: &Record, spans: &[&PhaseSpan]) -> (Option<f64>, Option<(f64, f64)>) {
        let Some(heartbeat) = self.heartbeat else { return (None, None) };
        let end_us = record.phases.last().map_or(0, |span| span.end_us);
        let lost = (0..PING_OFFSETS).map(|n| {
            let first_us = heartbeat.interval_us * n / PING_OFFSETS;
            let beats = Heartbeat { first_us, ..heartbeat }.beats(end_us, &record.stuns);
            beats.iter().filter(|beat| beat.lost && is_within(spans, beat.at_us)).count() as f64
        });
        let lost: Vec<f64> = lost.collect();
        let (fewest, most) = lost.iter().fold((f64::MAX, 0.0), |(low, high), &n| (n.min(low), n.max(high)));
        (Some((lost.iter().sum::<f64>() / PING_OFFSETS as f64).round()), Some((fewest, most)))
    }
}

fn spans<'a>(record: &'a Record, cell: &'a Published) -> impl Iterator<Item = &'a PhaseSpan> {
    let named = |span: &&PhaseSpan| cell.span.as_ref().is_none_or(|name| *name == span.label);
    record.phases.iter().filter(|span| span.phase == cell.phase).filter(named)
}

fn is_within(spans: &[&PhaseSpan], at_us: u64) -> bool {
    spans.iter().any(|span| span.holds(at_us))
}

/// Returns the figure that the runner measured within that span.
fn figure(record: &Record, span: &PhaseSpan, quantity: Quantity) -> Option<f64> {
    let alone = record.phases.iter().filter(|other| other.phase == span.phase).count() == 1;
    let of_span =
        |row: &&Row| row.phase == span.phase && row.quantity == quantity && (alone || row.note == span.label);
    record.rows.iter().find(of_span)?.predicted
}

/// Returns the length of the stun that the cell names, or of all stuns together.
fn stun_us(record: &Record, cell: &Published, spans: &[&PhaseSpan]) -> Option<f64> {
    let mut stuns =
        record.stuns.iter().filter(|stun| is_within(spans, stun.at_us)).map(|stun| stun.stun_us as f64);
    match cell.stun {
        Some(number) => stuns.nth(number.saturating_sub(1) as usize),
        None => Some(stuns.sum()),
    }
}

fn stuns_of<'a>(record: &'a Record, spans: &[&PhaseSpan]) -> Vec<&'a Stun> {
    record.stuns.iter().filter(|stun| is_within(spans, stun.at_us)).collect()
}

/// Returns the time from the begin of the first stun to the end of the last; None without one.
fn stun_span_us(record: &Record, spans: &[&PhaseSpan]) -> Option<f64> {
    let stuns = stuns_of(record, spans);
    let (first, last) = (stuns.first()?, stuns.last()?);
    Some((last.at_us + last.stun_us - first.at_us) as f64)
}

/// Returns the median time between two stuns; None for fewer than two.
fn stun_gap_us(record: &Record, spans: &[&PhaseSpan]) -> Option<f64> {
    let stuns = stuns_of(record, spans);
    let gap = |pair: &[&Stun]| pair[1].at_us.saturating_sub(pair[0].at_us + pair[0].stun_us);
    let mut gaps: Vec<u64> = stuns.windows(2).map(gap).collect();
    gaps.sort_unstable();
    let middle = gaps.len().checked_sub(1)?;
    Some((gaps[middle / 2] + gaps[middle.div_ceil(2)]) as f64 / 2.0)
}

/// Returns the smallest ratio of a helper's size to the one before; None for fewer than two helpers.
fn helper_growth(record: &Record, phase: Phase) -> Option<f64> {
    let is_helper = |row: &&Row| row.phase == phase && row.quantity == Quantity::HelperBytes;
    let sizes: Vec<f64> = record.rows.iter().filter(is_helper).filter_map(|row| row.predicted).collect();
    sizes.windows(2).map(|pair| pair[1] / pair[0]).min_by(f64::total_cmp)
}

/// Returns the host's rate of I/O in these spans, as a share of the rate of the whole phase with a snapshot.
fn host_of_snapshot(record: &Record, spans: &[&PhaseSpan]) -> Option<f64> {
    let rate = |spans: &[&PhaseSpan]| {
        let figures = figures::of(record, spans);
        Some(figures.host_reads_per_s? + figures.host_writes_per_s?)
    };
    let before: Vec<&PhaseSpan> =
        record.phases.iter().filter(|span| span.phase == Phase::Snapshot && span.lasts_us() > 0).collect();
    Some(rate(spans)? / rate(&before)?)
}

/// Returns the seconds of the run until the delta's content at the time of the commit's request was copied.
fn first_round_s(record: &Record, span: &PhaseSpan) -> Option<f64> {
    let of_round =
        |row: &&Row| row.phase == span.phase && row.quantity == Quantity::Seconds && row.note == FIRST_ROUND;
    record.rows.iter().find(of_round)?.predicted
}
