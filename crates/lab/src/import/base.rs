//! Common parts of all imports: the initial record, and intervals of counts.

use super::{SAMPLES_MAX, Skipped, Skips, text};
use crate::run::{Clock, Phase, Quantity, Record, Row, Sample};

/// Returns an imported record without measurements.
pub(super) fn record(name: &str, title: &str) -> Record {
    Record {
        title: title.into(),
        source: format!("imported from {}", text(name)),
        command: format!("unstun lab import {}", text(name)),
        ..Record::head(&text(name), "imported", "", Clock::Real, 0)
    }
}

/// Returns a measured figure without a published one.
pub(super) fn measured(experiment: &str, quantity: Quantity, value: f64, note: &str) -> Row {
    Row { note: note.into(), ..Row::measured(&text(experiment), Phase::Baseline, quantity, value) }
}

pub(super) fn note_skipped(record: &mut Record, skipped: &[Skipped]) {
    record.notes.extend(skipped.iter().map(|skipped| format!("Skipped: {skipped}")));
}

/// Converts a rate to a count. Imported rates may have any value.
pub(super) fn count(per_s: f64, interval_us: u64) -> u64 {
    let count = per_s * interval_us as f64 / 1e6;
    // The cast saturates, and gives 0 for NaN.
    count.round() as u64
}

/// Keeps a sample while there is space; reports once that there is none.
pub(super) fn push(record: &mut Record, sample: Sample, line: u64, skips: &mut Skips) {
    match record.samples.len().cmp(&SAMPLES_MAX) {
        std::cmp::Ordering::Less => record.samples.push(sample),
        _ if record.notes.iter().any(|note| note.starts_with(FULL)) => {}
        _ => {
            skips.at(line, format!("only the first {SAMPLES_MAX} intervals are kept"));
            record.notes.push(format!("{FULL} after {SAMPLES_MAX} intervals."));
        }
    }
}

const FULL: &str = "The import ends";
