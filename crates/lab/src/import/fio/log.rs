//! fio's logs: a line for each I/O, or for each interval with `log_avg_msec`.
//!
//! Fields: `time ms, value, direction, block size, offset, priority`. The file does not contain the kind of the value.
//! fio puts it into the file's name (`_bw`, `_iops`, `_lat`, `_clat`, `_slat`); nothing else is taken from a name.

use super::super::{Lines, SAMPLES_MAX, Skips, base, text};
use crate::run::{Record, Sample, Spread};

const SECOND_US: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// KiB/s.
    Bandwidth,
    Iops,
    /// Nanoseconds.
    Latency,
}

/// Title that distinguishes a record of a log from those of other formats.
pub(crate) const TITLE: &str = "A fio log";

/// Returns `job` of `job_clat.1.log`, with its folder and its number.
pub(crate) fn job(name: &str) -> Option<String> {
    let kinds = ["_iops", "_bw", "_clat", "_slat", "_lat"];
    let (at, kind) = kinds.iter().find_map(|kind| Some((name.rfind(kind)?, kind)))?;
    Some(format!("{}{}", &name[..at], &name[at + kind.len()..]))
}

fn kind(name: &str) -> Option<Kind> {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let kinds = [("_iops", Kind::Iops), ("_bw", Kind::Bandwidth), ("lat", Kind::Latency)];
    kinds.into_iter().find(|(word, _)| name.contains(word)).map(|(_, kind)| kind)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    time_ms: u64,
    value: u64,
    /// 0 read, 1 write, 2 trim.
    direction: u64,
    block_bytes: u64,
}

fn parse(line: &str) -> Option<Entry> {
    let mut numbers = line.split(',').map(|part| part.trim().parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let entry = Entry { time_ms: next()?, value: next()?, direction: next()?, block_bytes: next()? };
    (entry.direction <= 2).then_some(entry)
}

pub(crate) fn is_line(line: &str) -> bool {
    parse(line).is_some()
}

/// Entries of one direction within one second.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    entries: u64,
    value: f64,
    max: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, entry: Entry) {
        self.entries += 1;
        self.value += entry.value as f64;
        self.max = self.max.max(entry.value);
        self.bytes = self.bytes.saturating_add(entry.block_bytes);
    }

    fn mean(&self) -> f64 {
        if self.entries == 0 { 0.0 } else { self.value / self.entries as f64 }
    }

    /// Returns the latency, microseconds. An entry of an averaged log is a mean, so the maximum is the largest mean.
    fn spread(&self) -> Spread {
        Spread { mean_us: self.mean() / 1e3, max_us: self.max as f64 / 1e3, ..Spread::default() }
    }
}

/// Sums by second. fio's entries are in order except for a few late ones.
type Seconds = std::collections::BTreeMap<u64, [Sum; 2]>;

pub(crate) fn read(name: &str, lines: &mut Lines<'_>, skips: &mut Skips) -> Vec<Record> {
    let Some(kind) = kind(name) else {
        skips.file(
            "a fio log does not say what it holds; its name should have _iops, _bw or _lat, as fio wrote it",
        );
        return Vec::new();
    };
    let mut seconds = Seconds::new();
    let mut averaged = true;
    while let Some((number, line)) = lines.next() {
        match parse(line) {
            Some(entry) if entry.direction == 2 => skips.at(number, "a trim"),
            Some(entry) => {
                averaged &= entry.block_bytes == 0;
                let second = entry.time_ms / 1_000;
                if seconds.len() < SAMPLES_MAX || seconds.contains_key(&second) {
                    seconds.entry(second).or_default()[entry.direction as usize].add(entry);
                }
            }
            None if line.trim().is_empty() => {}
            None => skips.at(number, format!("no entry of a log: {:?}", text(line))),
        }
    }
    if seconds.is_empty() { Vec::new() } else { vec![record(name, kind, averaged, &seconds)] }
}

fn record(name: &str, kind: Kind, averaged: bool, seconds: &Seconds) -> Record {
    let mut record = base::record(name, TITLE);
    record.samples = seconds.iter().map(|(second, sums)| sample(kind, *second, sums)).collect();
    record.notes.push(match kind {
        Kind::Iops => "IOPS as logged, by second; latencies are in another log.".into(),
        Kind::Bandwidth => "Bytes as logged, by second; the I/Os are counted in another log.".into(),
        Kind::Latency if averaged => {
            "Latencies averaged by fio (log_avg_msec): their maximum is one of means, and I/Os are not counted.".to_owned()
        }
        Kind::Latency => "I/Os counted by their latencies, by the second in which they completed.".into(),
    });
    record
}

fn sample(kind: Kind, second: u64, [reads, writes]: &[Sum; 2]) -> Sample {
    const KIB: f64 = 1024.0;
    let mut sample =
        Sample { at_us: second.saturating_mul(SECOND_US), interval_us: SECOND_US, ..Sample::default() };
    match kind {
        Kind::Iops => {
            (sample.reads, sample.writes) = (reads.mean().round() as u64, writes.mean().round() as u64);
        }
        Kind::Bandwidth => {
            let bytes = |sum: &Sum| (sum.mean() * KIB).round() as u64;
            (sample.read_bytes, sample.written_bytes) = (bytes(reads), bytes(writes));
        }
        Kind::Latency => {
            (sample.read_latency, sample.write_latency) = (reads.spread(), writes.spread());
            (sample.read_bytes, sample.written_bytes) = (reads.bytes, writes.bytes);
            if reads.bytes > 0 || writes.bytes > 0 {
                (sample.reads, sample.writes) = (reads.entries, writes.entries);
            }
        }
    }
    sample
}
