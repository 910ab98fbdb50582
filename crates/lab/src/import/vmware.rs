//! Imports stuns from vmware.log, in the four layouts it has had, with nearby lines that name the operation.

use super::{EVENTS_MAX, Skips, base, text};
use crate::run::{Mark, Quantity, Record, Stun};

/// The two counters of one stun. ESXi 8 writes both; the second is some 30 ms longer.
const STUNS: [&str; 2] = ["Checkpoint_Unstun: vm stopped for ", "CPT: vm was stunned for "];

/// Texts of lines that become marks.
const MARKS: [&str; 6] = [
    "SnapshotVMX_TakeSnapshot start",
    "SnapshotVMXTakeSnapshotComplete",
    "SnapshotVMX_Consolidate",
    "SnapshotVMXConsolidateOnlineCB: Done",
    "ConsolidateEnd",
    "ConsolidateItemComplete",
];

/// Largest distance between a stun and a line about the same stun, microseconds.
const SAME_US: i64 = 1_000_000;

pub(super) fn is_line(line: &str) -> bool {
    stun_us(line).is_some() || (time_of(line).is_some() && (line.contains("vcpu-") || line.contains("vmx")))
}

/// Returns the index of the counter, and its microseconds.
fn stun_us(line: &str) -> Option<(usize, u64)> {
    STUNS.iter().enumerate().find_map(|(kind, words)| {
        let rest = line.get(line.find(words)? + words.len()..)?;
        let (us, unit) = super::number::digits(rest)?;
        unit.trim_start().starts_with("us").then_some((kind, us))
    })
}

/// Returns calendar time in microseconds: `2016-02-05T22:57:02.783Z| ...`, `2025-10-28T13:33:06.256Z In(05) ...`.
fn time_of(line: &str) -> Option<i64> {
    let end = line.find(['|', ' '])?;
    let stamp: jiff::Timestamp = line.get(..end)?.parse().ok()?;
    Some(stamp.as_microsecond())
}

/// Returns a line's text from the mark on, without time, thread and level; the whole line where it has no mark.
fn words_of(line: &str) -> &str {
    MARKS.iter().find_map(|mark| line.get(line.find(mark)?..)).unwrap_or(line)
}

/// Returns the VM's name, which a log repeats from the configuration when the VM starts: `DICT displayName = "web"`.
fn display_name(line: &str) -> Option<&str> {
    let (_, entry) = line.split_once("DICT")?;
    let name = entry.trim_start().strip_prefix("displayName = \"")?.trim_end().strip_suffix('"')?;
    Some(name).filter(|name| !name.is_empty())
}

/// A stun as logged. Its end is the time of the line, which was written when the VM resumed.
struct Seen {
    end_unix_us: Option<i64>,
    stun_us: u64,
    kind: usize,
}

#[derive(Default)]
struct Log {
    stuns: Vec<Seen>,
    marks: Vec<(Option<i64>, String)>,
    first_us: Option<i64>,
    vm: Option<String>,
    twice: u64,
    is_full: bool,
}

impl Log {
    fn stun(&mut self, seen: Seen) {
        let same = |last: &mut Seen| {
            let apart = last.end_unix_us.zip(seen.end_unix_us).map(|(a, b)| a.abs_diff(b));
            seen.kind != last.kind && apart.is_some_and(|us| us <= SAME_US.unsigned_abs())
        };
        if self.stuns.last_mut().is_some_and(same) {
            self.twice += 1;
            return;
        }
        self.is_full |= self.stuns.len() >= EVENTS_MAX;
        if !self.is_full {
            self.stuns.push(seen);
        }
    }

    fn mark(&mut self, at: Option<i64>, line: &str) {
        self.is_full |= self.marks.len() >= EVENTS_MAX;
        if !self.is_full {
            self.marks.push((at, text(words_of(line))));
        }
    }
}

pub(super) fn read(name: &str, lines: &mut super::Lines<'_>, skips: &mut Skips) -> Vec<Record> {
    let mut log = Log::default();
    while let Some((number, line)) = lines.next() {
        let at = time_of(line);
        if let Some((kind, stun_us)) = stun_us(line) {
            let begin = at.map(|at| at.saturating_sub_unsigned(stun_us));
            log.first_us = log.first_us.or(begin);
            log.stun(Seen { end_unix_us: at, stun_us, kind });
        } else if STUNS.iter().any(|words| line.contains(words.trim_end())) {
            skips.at(number, "a stun without its microseconds: the line is cut");
        } else if MARKS.iter().any(|mark| line.contains(mark)) {
            log.first_us = log.first_us.or(at);
            log.mark(at, line);
        } else if let Some(name) = display_name(line) {
            log.vm = Some(text(name));
        }
    }
    if log.is_full {
        skips.file(format!("only the first {EVENTS_MAX} stuns and marks are kept"));
    }
    if log.stuns.is_empty() {
        skips.file("no line reports a stun: neither Checkpoint_Unstun nor CPT is there");
        return Vec::new();
    }
    vec![record(name, &log)]
}

/// Converts the log. Stuns without times are placed one after another: their lengths are known, the times between them
/// are not.
fn record(name: &str, log: &Log) -> Record {
    let mut record = base::record(name, "Stuns of a VM");
    if let Some(vm) = &log.vm {
        record.machine.push(base::vm(vm));
        record.subject.clone_from(vm);
    }
    let ends = log.stuns.iter().filter_map(|s| Some(s.end_unix_us?.saturating_sub_unsigned(s.stun_us)));
    let marks = log.marks.iter().filter_map(|(at, _)| *at);
    let first = ends.chain(marks).min();
    let since = |at: i64| u64::try_from(at.saturating_sub(first.unwrap_or(at))).unwrap_or(0);
    let mut clock_us = 0u64;
    for seen in &log.stuns {
        let begin = seen.end_unix_us.map_or(clock_us, |end| since(end.saturating_sub_unsigned(seen.stun_us)));
        clock_us = begin.saturating_add(seen.stun_us);
        let cause = STUNS[seen.kind].split(':').next().unwrap_or_default().to_owned();
        record.stuns.push(Stun { at_us: begin, stun_us: seen.stun_us, disk: None, cause });
    }
    record.marks =
        log.marks.iter().map(|(at, text)| Mark { at_us: at.map_or(0, since), text: text.clone() }).collect();
    record.began_unix_us = first.unwrap_or(0);
    notes(&mut record, log);
    let total = record.stuns.iter().fold(0u64, |sum, stun| sum.saturating_add(stun.stun_us));
    let note = format!("{} stuns together", record.stuns.len());
    record.rows.push(base::measured(name, Quantity::StunUs, total as f64, &note));
    record
}

fn notes(record: &mut Record, log: &Log) {
    record.notes.push(
        "A stun's line is written when the VM runs again; its begin is that time less its length.".into(),
    );
    if log.twice > 0 {
        record
            .notes
            .push(format!("{} stuns are logged by two counters; the first of them is shown.", log.twice));
    }
    if log.stuns.iter().any(|s| s.end_unix_us.is_none()) {
        record.notes.push("Lines without a time: those stuns are shown one after the other.".into());
    }
}
