//! Common parts of all imports: the initial record, and intervals of counts.

use super::{Skipped, text};
use crate::run::{Clock, Fact, Phase, Quantity, Record, Row};

/// Returns an imported record without measurements.
pub(super) fn record(name: &str, title: &str) -> Record {
    Record {
        title: title.into(),
        source: format!("imported from {}", text(name)),
        command: format!("unstun lab import {}", text(name)),
        ..Record::head(&text(name), "imported", "", Clock::Real, 0)
    }
}

/// Name of the fact that holds the name of the VM.
const VM: &str = "VM";

/// Returns the fact that a record is of this VM.
pub(super) fn vm(name: &str) -> Fact {
    Fact { name: VM.into(), value: text(name) }
}

/// Returns the VM of a record, where its file has the name.
pub(super) fn vm_of(record: &Record) -> Option<&str> {
    record.machine.iter().find(|fact| fact.name == VM).map(|fact| fact.value.as_str())
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

/// Returns whether two names are those of one VM: their case may differ, and a UUID may follow.
pub(super) fn same_name(one: &str, other: &str) -> bool {
    bare_name(one).eq_ignore_ascii_case(bare_name(other))
}

/// Returns `SQL01` of `SQL01 (104c07ff-3663-44fb-9d89-a563c801611c)`.
pub(super) fn bare_name(name: &str) -> &str {
    const UUID_CHARS: usize = 36;
    let parts = name.strip_suffix(')').and_then(|name| name.rsplit_once(" ("));
    let is_uuid =
        |text: &str| text.len() == UUID_CHARS && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    parts.filter(|(_, uuid)| is_uuid(uuid)).map_or(name, |(bare, _)| bare)
}

/// Returns a calendar time for a message, as `--phase` reads it.
pub(super) fn at_clock(unix_us: i64) -> String {
    jiff::Timestamp::from_microsecond(unix_us).map_or_else(|_| "an unknown time".into(), |at| at.to_string())
}
