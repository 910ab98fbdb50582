//! IOmeter's results: the summary of each access specification, and the instantaneous file with a time in each line.
//!
//! Columns are found by their names, because versions added and renamed some. The lines of ALL are read: those of
//! workers and disks are parts of them. The lines of several managers are read instead, a record for each, because each
//! runs on a machine of its own.

use super::super::base::{count, measured, record as new_record};
use super::super::fields::Fields;
use super::super::{Lines, SAMPLES_MAX, SERIES_MAX, Skips, number, text};
use crate::run::{Quantity, Record, Sample, Spread};

/// Columns that are read, each with the headings it has had.
const COLUMNS: [&[&str]; 14] = [
    &["TimeStamp"],
    &["'Target Type"],
    &["Target Name"],
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
const NAME: usize = 2;
const SPEC: usize = 3;
const READS: usize = 4;
const WRITES: usize = 5;
const READ_MB: usize = 6;
const WRITE_MB: usize = 7;
const READ_MIB: usize = 8;
const WRITE_MIB: usize = 9;
const READ_MEAN: usize = 10;
const WRITE_MEAN: usize = 11;
const READ_MAX: usize = 12;
const WRITE_MAX: usize = 13;
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

/// The lines of one target: of all managers together, or of one.
struct Part {
    record: Record,
    /// Time of the previous line, microseconds of the calendar.
    before: Option<i64>,
}

struct Reading<'a> {
    name: &'a str,
    columns: Option<Columns>,
    all: Part,
    managers: Vec<Part>,
    /// Intervals kept, of all parts together.
    samples: usize,
    skips: &'a mut Skips,
}

pub(crate) fn read(name: &str, lines: &mut Lines<'_>, skips: &mut Skips) -> Vec<Record> {
    let all = Part { record: new_record(name, TITLE), before: None };
    let mut reading = Reading { name, columns: None, all, managers: Vec::new(), samples: 0, skips };
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
    let Reading { all, managers, .. } = reading;
    let parts = if managers.len() > 1 { managers } else { vec![all] };
    let records: Vec<Record> = parts.into_iter().map(|part| part.record).collect();
    if records.iter().all(|record| record.rows.is_empty() && record.samples.is_empty()) {
        skips.file("no line of ALL: the results were saved without the totals of all managers");
        return Vec::new();
    }
    records
}

const TITLE: &str = "IOmeter results";

impl Reading<'_> {
    fn line(&mut self, fields: &Fields, number: u64) {
        let Some(columns) = self.columns.take() else { return };
        let part = match columns.get(fields, TARGET) {
            "ALL" => Some(&mut self.all),
            "MANAGER" => manager(&mut self.managers, self.name, columns.get(fields, NAME)),
            _ => None,
        };
        if let Some(part) = part {
            let why_not = match columns.0[TIME] {
                Some(_) => part.instant(&columns, fields, &mut self.samples),
                None => part.total(&columns, fields),
            };
            why_not.into_iter().for_each(|why| self.skips.at(number, why));
        }
        self.columns = Some(columns);
    }
}

/// Returns the part of a manager, or None where there are too many.
fn manager<'a>(managers: &'a mut Vec<Part>, file: &str, name: &str) -> Option<&'a mut Part> {
    let name = text(name);
    let place = match managers.iter().position(|part| part.record.subject == name) {
        Some(place) => place,
        None if managers.len() == SERIES_MAX => return None,
        None => {
            managers.push(Part { record: Record { subject: name, ..new_record(file, TITLE) }, before: None });
            managers.len() - 1
        }
    };
    managers.get_mut(place)
}

impl Part {
    /// Adds a whole test of one access specification: figures without a course over time. Returns why it does not.
    fn total(&mut self, columns: &Columns, fields: &Fields) -> Option<&'static str> {
        const ROWS_MAX: usize = 10_000;
        if fields.len() <= columns.0[WRITES].unwrap_or(0) || self.record.rows.len() >= ROWS_MAX {
            return Some("the line is cut before its figures, or there are too many tests");
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
        None
    }

    /// Adds a line of the instantaneous file. It covers the time since the previous line; the first line covers none.
    /// Returns why it does not.
    fn instant(&mut self, columns: &Columns, fields: &Fields, samples: &mut usize) -> Option<&'static str> {
        let time = number::date_time(columns.get(fields, TIME)).month_first;
        let Some(now) = time.filter(|_| fields.len() > columns.0[WRITES].unwrap_or(0)) else {
            return Some("the line is cut, or has no time");
        };
        match self.before.replace(now) {
            None => self.record.began_unix_us = now,
            Some(before) if now > before && *samples < SAMPLES_MAX => {
                let at = u64::try_from(before.saturating_sub(self.record.began_unix_us)).unwrap_or(0);
                self.record.samples.push(columns.sample(fields, at, now.abs_diff(before)));
                *samples += 1;
            }
            Some(before) if now > before => return Some("there are too many intervals"),
            Some(_) => return Some("its time is not after that of the line before"),
        }
        None
    }
}
