//! Lines of counters as intervals.

use super::super::number::{self, Ambiguous};
use super::super::{SAMPLES_MAX, Skips, base, fields::Fields};
use super::column::{Layer, Role};
use super::header::{Header, Wanted};
use crate::run::{Counters, Record, Sample, Spread};

/// Rates per second, over all columns of a series together.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    reads: f64,
    writes: f64,
    read_bytes: f64,
    written_bytes: f64,
}

impl Rates {
    fn add(&mut self, role: Role, value: f64) {
        match role {
            Role::Reads => self.reads += value,
            Role::Writes => self.writes += value,
            Role::ReadBytes => self.read_bytes += value,
            Role::WriteBytes => self.written_bytes += value,
            Role::ReadLatency | Role::WriteLatency => {}
        }
    }
}

/// A mean over disks, weighted by their I/Os.
#[derive(Debug, Clone, Copy, Default)]
struct Weighted {
    sum_us: f64,
    weight: f64,
    max_us: f64,
}

impl Weighted {
    fn add(&mut self, us: f64, weight: f64) {
        self.sum_us += us * weight;
        self.weight += weight;
        self.max_us = self.max_us.max(us);
    }

    /// Returns the mean. Where disks have no count of their I/Os it is the largest latency.
    fn spread(&self) -> Spread {
        let mean_us = if self.weight > 0.0 { self.sum_us / self.weight } else { self.max_us };
        Spread { mean_us, ..Spread::default() }
    }
}

/// What one line counts of one series.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    guest: Rates,
    host: Option<Rates>,
    read_latency: Weighted,
    write_latency: Weighted,
    /// Whether any column has a value.
    has_values: bool,
}

pub(super) struct Row {
    time: Ambiguous,
    /// One for each series of the header.
    series: Vec<Interval>,
}

impl Row {
    /// Reads one line. Blanks are not samples; words are reported.
    pub(super) fn new(fields: &Fields, header: &Header, line: u64, skips: &mut Skips) -> Self {
        let mut series = vec![Interval::default(); header.series.len()];
        let mut weights = vec![(0.0, 0.0); header.disks];
        for column in &header.wanted {
            let text = fields.get(column.place);
            let value = number::parse(text).filter(|value| *value >= 0.0).map(|value| value * column.scale);
            let Some(value) = value else {
                if !text.is_empty() {
                    skips.at(
                        line,
                        format!("column {}: no number: {:?}", column.place + 1, super::super::text(text)),
                    );
                }
                continue;
            };
            series[column.series].add(column, value, &mut weights[column.disk]);
        }
        Self { time: number::date_time(fields.get(0)), series }
    }
}

impl Row {
    fn has_values(&self) -> bool {
        self.series.iter().any(|series| series.has_values)
    }

    /// Adds a sample to the record of each series that has values.
    fn samples(&self, at_us: u64, interval_us: u64, records: &mut [Record]) {
        for (series, record) in self.series.iter().zip(records) {
            if series.has_values {
                record.samples.push(series.sample(at_us, interval_us));
            }
        }
    }
}

impl Interval {
    /// Adds a value. `weight` is that of this disk's reads and writes so far; in the header's order latencies follow
    /// them.
    fn add(&mut self, column: &Wanted, value: f64, weight: &mut (f64, f64)) {
        self.has_values = true;
        if column.layer == Layer::Host {
            self.host.get_or_insert_default().add(column.role, value);
            return;
        }
        match column.role {
            Role::Reads => weight.0 += value,
            Role::Writes => weight.1 += value,
            Role::ReadLatency => self.read_latency.add(value, weight.0),
            Role::WriteLatency => self.write_latency.add(value, weight.1),
            Role::ReadBytes | Role::WriteBytes => {}
        }
        self.guest.add(column.role, value);
    }

    fn sample(&self, at_us: u64, interval_us: u64) -> Sample {
        let count = |per_s: f64| base::count(per_s, interval_us);
        let host = self.host.map(|host| Counters {
            reads: count(host.reads),
            writes: count(host.writes),
            read_bytes: count(host.read_bytes),
            written_bytes: count(host.written_bytes),
            ..Counters::default()
        });
        Sample {
            at_us,
            interval_us,
            reads: count(self.guest.reads),
            writes: count(self.guest.writes),
            read_bytes: count(self.guest.read_bytes),
            written_bytes: count(self.guest.written_bytes),
            read_latency: self.read_latency.spread(),
            write_latency: self.write_latency.spread(),
            host,
            gap_us: 0,
        }
    }
}

/// All lines. The last of them decides whether dates have days or months first.
pub(super) struct Rows {
    rows: Vec<Row>,
    /// Most lines kept, so that all series together stay within the bound of a file.
    rows_max: usize,
    is_full: bool,
}

impl Rows {
    pub(super) fn new(series: usize) -> Self {
        Self { rows: Vec::new(), rows_max: SAMPLES_MAX / series.max(1), is_full: false }
    }

    pub(super) fn add(&mut self, row: Row, line: u64, skips: &mut Skips) {
        if row.time.month_first.is_none() && row.time.day_first.is_none() {
            skips.at(line, "no time in the first column");
        } else if self.rows.len() < self.rows_max {
            self.rows.push(row);
        } else if !self.is_full {
            self.is_full = true;
            skips.at(line, format!("only the first {} lines are kept", self.rows_max));
        }
    }

    /// Converts the lines to samples, a record for each series. A rate belongs to the interval that ends at its time,
    /// so the first line only begins one.
    pub(super) fn into_records(self, records: &mut [Record], bias_minutes: i64, skips: &mut Skips) {
        let (order, is_day_first) = self.order();
        let mut before: Option<i64> = None;
        let mut first = 0;
        for (row, line) in self.rows.iter().zip(2..) {
            let Some(now) = order(&row.time) else {
                skips.at(line, "its date is not as those of the other lines");
                continue;
            };
            match before.replace(now) {
                None => first = now,
                Some(before) if now > before && row.has_values() => {
                    row.samples(before.abs_diff(first), now.abs_diff(before), records);
                }
                Some(before) if now > before => skips.at(line, "no sample in any of the columns"),
                Some(_) => skips.at(line, "its time is not after that of the line before"),
            }
        }
        for record in records {
            record.began_unix_us = first.saturating_add(bias_minutes.saturating_mul(60_000_000));
            record.notes.extend(is_day_first.then(|| "Dates are read with the day first.".to_owned()));
        }
        if self.rows.len() == 1 {
            skips.file("one line alone: a rate needs the time since the line before");
        }
    }

    /// Returns the order of dates. Counters are written month first, whatever the locale. If that gives invalid or
    /// decreasing dates and day first does not, the file was written by another tool: the flag is set.
    fn order(&self) -> (fn(&Ambiguous) -> Option<i64>, bool) {
        let sound = |of: fn(&Ambiguous) -> Option<i64>| {
            self.rows.iter().all(|row| of(&row.time).is_some())
                && self.rows.is_sorted_by_key(|row| of(&row.time))
        };
        if !sound(|t| t.month_first) && sound(|t| t.day_first) {
            return (|time| time.day_first, true);
        }
        (|time| time.month_first, false)
    }
}
