//! IOmeter's results: the summary of each access specification, and the instantaneous file with a time in each line.
//!
//! Columns are found by their names, because versions added and renamed some. Only the lines of ALL are read: those of
//! managers, workers and disks are parts of them.

use super::super::base::{count, measured, push, record as new_record};
use super::super::fields::Fields;
use super::super::{Lines, Skips, number, text};
use crate::run::{Quantity, Record, Sample, Spread};

/// Columns that are read, each with the headings it has had.
const COLUMNS: [&[&str]; 13] = [
    &["TimeStamp"],
    &["'Target Type"],
    &["Access Specification Name"],
    &["Read IOps"],
    &["Write IOps"],
    &["Read MBps (Decimal)"],
    &["Write MBps (Decimal)"],
    &["Read MBps", "Read MBps (Binary)", "Read MiBps (Binary)"],
    &["Write MBps", "Write MBps (Binary)", "Write MiBps (Binary)"],
    &["Average Read Response Time"],
    &["Average Write Response Time"],
    &["Maximum Read Response Time"],
    &["Maximum Write Response Time"],
];
const TIME: usize = 0;
const TARGET: usize = 1;
const SPEC: usize = 2;
const READS: usize = 3;
const WRITES: usize = 4;
const READ_MB: usize = 5;
const WRITE_MB: usize = 6;
const READ_MIB: usize = 7;
const WRITE_MIB: usize = 8;
const READ_MEAN: usize = 9;
const WRITE_MEAN: usize = 10;
const READ_MAX: usize = 11;
const WRITE_MAX: usize = 12;
const MIB: f64 = 1_048_576.0;

#[derive(Default)]
struct Columns([Option<usize>; COLUMNS.len()]);

impl Columns {
    fn new(header: &Fields) -> Self {
        let place =
            |names: &[&str]| names.iter().find_map(|name| header.iter().position(|field| field == *name));
        Self(COLUMNS.map(place))
    }

    fn get<'a>(&self, fields: &'a Fields, column: usize) -> &'a str {
        self.0[column].map_or("", |place| fields.get(place))
    }

    fn number(&self, fields: &Fields, column: usize) -> f64 {
        number::parse(self.get(fields, column)).filter(|value| *value >= 0.0).unwrap_or(0.0)
    }

    /// Returns a rate in bytes per second.
    fn bytes(&self, fields: &Fields, decimal: usize, binary: usize) -> f64 {
        match self.0[decimal] {
            Some(_) => self.number(fields, decimal) * 1e6,
            None => self.number(fields, binary) * MIB,
        }
    }

    /// Returns one line's rates as an interval; the line's times are milliseconds.
    fn sample(&self, fields: &Fields, at_us: u64, interval_us: u64) -> Sample {
        let spread = |mean, max| Spread {
            mean_us: self.number(fields, mean) * 1e3,
            max_us: self.number(fields, max) * 1e3,
            ..Spread::default()
        };
        Sample {
            at_us,
            interval_us,
            reads: count(self.number(fields, READS), interval_us),
            writes: count(self.number(fields, WRITES), interval_us),
            read_bytes: count(self.bytes(fields, READ_MB, READ_MIB), interval_us),
            written_bytes: count(self.bytes(fields, WRITE_MB, WRITE_MIB), interval_us),
            read_latency: spread(READ_MEAN, READ_MAX),
            write_latency: spread(WRITE_MEAN, WRITE_MAX),
            host: None,
            gap_us: 0,
        }
    }
}

struct Reading<'a> {
    record: Record,
    columns: Option<Columns>,
    /// Time of the previous line, microseconds of the calendar.
    before: Option<i64>,
    skips: &'a mut Skips,
}

pub(crate) fn read(name: &str, lines: &mut Lines<'_>, skips: &mut Skips) -> Vec<Record> {
    let mut reading =
        Reading { record: new_record(name, "IOmeter results"), columns: None, before: None, skips };
    let mut fields = Fields::default();
    while let Some((number, line)) = lines.next() {
        if line.starts_with("'Target Type,") || line.starts_with("TimeStamp,'Target Type,") {
            fields.split(line, b',');
            reading.columns = Some(Columns::new(&fields));
        } else if line.starts_with("'End Test") {
            reading.columns = None;
        } else if reading.columns.is_some() && !line.starts_with('\'') && !line.trim().is_empty() {
            fields.split(line, b',');
            reading.line(&fields, number);
        }
    }
    let record = reading.record;
    if record.rows.is_empty() && record.samples.is_empty() {
        skips.file("no line of ALL: the results were saved without the totals of all managers");
        return Vec::new();
    }
    vec![record]
}

impl Reading<'_> {
    fn line(&mut self, fields: &Fields, number: u64) {
        let Some(columns) = self.columns.take() else { return };
        if columns.get(fields, TARGET) == "ALL" {
            match columns.0[TIME] {
                Some(_) => self.instant(&columns, fields, number),
                None => self.total(&columns, fields, number),
            }
        }
        self.columns = Some(columns);
    }

    /// Adds a whole test of one access specification: figures without a course over time.
    fn total(&mut self, columns: &Columns, fields: &Fields, number: u64) {
        const ROWS_MAX: usize = 10_000;
        if fields.len() <= columns.0[WRITES].unwrap_or(0) || self.record.rows.len() >= ROWS_MAX {
            self.skips.at(number, "the line is cut before its figures, or there are too many tests");
            return;
        }
        let spec = text(columns.get(fields, SPEC));
        let rates = [(Quantity::ReadsPerS, READS), (Quantity::WritesPerS, WRITES)];
        let times = [("of reads", READ_MEAN), ("of writes", WRITE_MEAN)];
        let rates =
            rates.map(|(quantity, column)| measured(&spec, quantity, columns.number(fields, column), ""));
        let times = times.map(|(note, column)| {
            measured(&spec, Quantity::LatencyUs, columns.number(fields, column) * 1e3, note)
        });
        self.record.rows.extend(rates.into_iter().chain(times));
    }

    /// Adds a line of the instantaneous file. It covers the time since the previous line; the first line covers none.
    fn instant(&mut self, columns: &Columns, fields: &Fields, number: u64) {
        let time = number::date_time(columns.get(fields, TIME)).month_first;
        let Some(now) = time.filter(|_| fields.len() > columns.0[WRITES].unwrap_or(0)) else {
            self.skips.at(number, "the line is cut, or has no time");
            return;
        };
        match self.before.replace(now) {
            None => self.record.began_unix_us = now,
            Some(before) if now > before => {
                let at = u64::try_from(before.saturating_sub(self.record.began_unix_us)).unwrap_or(0);
                let sample = columns.sample(fields, at, now.abs_diff(before));
                push(&mut self.record, sample, number, self.skips);
            }
            Some(_) => self.skips.at(number, "its time is not after that of the line before"),
        }
    }
}
