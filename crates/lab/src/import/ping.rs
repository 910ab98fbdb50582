//! Imports the output of `ping`, of Linux (with and without `-D`) and of Windows in any language.

use std::collections::BTreeSet;

use super::number::digits;
use super::{EVENTS_MAX, Skips, base};
use crate::run::{Beat, Quantity, Record};

const SECOND_US: u64 = 1_000_000;
/// Windows waits this long for an answer by default, and sends the next ping then.
const WINDOWS_WAIT_US: u64 = 4 * SECOND_US;
/// Sequence numbers have 16 bits and wrap. A gap of more than this many is not a loss but another run.
const HOLE_MAX: u64 = 3_600;

pub(super) fn is_line(line: &str) -> bool {
    sequence(line).is_some() || is_windows_answer(line)
}

/// Returns the number in `icmp_seq=3`, of an answer or of a missing one.
fn sequence(line: &str) -> Option<u64> {
    let at = line.find("icmp_seq=").map(|n| n + "icmp_seq=".len());
    digits(line.get(at?..)?).map(|(sequence, _)| sequence)
}

/// Recognises `Reply from 10.0.0.1: bytes=32 time<1ms TTL=62`; only TTL is the same in all languages.
fn is_windows_answer(line: &str) -> bool {
    line.contains(" TTL=") && line.contains(": ")
}

/// Returns the time of `[1355258963.123456] 64 bytes from ...`.
fn stamp_us(line: &str) -> Option<u64> {
    let (stamp, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = stamp.split_once('.').unwrap_or((stamp, "0"));
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(SECOND_US)?
        .checked_add(micros.get(..6).unwrap_or(micros).parse().ok()?)
}

#[derive(Default)]
struct Pings {
    beats: Vec<Beat>,
    /// Linux: sequence numbers seen, so that a late answer does not count as lost.
    last: Option<u64>,
    late: BTreeSet<u64>,
    begin_us: Option<u64>,
    clock_us: u64,
    is_full: bool,
}

impl Pings {
    fn beat(&mut self, at_us: u64, lost: bool) {
        self.is_full |= self.beats.len() >= EVENTS_MAX;
        if !self.is_full {
            self.beats.push(Beat { at_us, lost });
        }
    }

    fn linux(&mut self, line: &str, sequence: u64, number: u64, skips: &mut Skips) {
        if !line.contains("time=") && !line.contains("time<") {
            // The gap in the sequence numbers of "no answer yet" and "Destination Host Unreachable" has the same
            // meaning.
            return;
        }
        let stamp = stamp_us(line);
        let begin = *self.begin_us.get_or_insert(stamp.unwrap_or(0));
        let missing = match self.last {
            Some(last) if sequence <= last => return self.late_answer(line, last - sequence, number, skips),
            Some(last) => sequence - last - 1,
            None => 0,
        };
        let at = stamp.map_or(self.clock_us + (missing + u64::from(self.last.is_some())) * SECOND_US, |s| {
            s.saturating_sub(begin)
        });
        if missing > HOLE_MAX {
            skips.at(number, format!("{missing} sequence numbers are missing at once: taken for a new run"));
        } else {
            let first = self.last.map_or(sequence, |last| last + 1);
            (0..missing).for_each(|n| {
                self.late.insert(first + n);
                self.beat(at.saturating_sub((missing - n) * SECOND_US), true);
            });
        }
        self.beat(at, false);
        (self.last, self.clock_us) = (Some(sequence), at);
    }

    /// Handles an answer to an earlier sequence number: a late one, or a duplicate.
    fn late_answer(&mut self, line: &str, behind: u64, number: u64, skips: &mut Skips) {
        let sequence = sequence(line).unwrap_or(0);
        if !self.late.remove(&sequence) {
            skips.at(number, format!("icmp_seq={sequence} again"));
            return;
        }
        let at = self.clock_us.saturating_sub(behind * SECOND_US);
        let found = self.beats.iter_mut().rev().filter(|b| b.lost).min_by_key(|b| b.at_us.abs_diff(at));
        if let Some(beat) = found {
            beat.lost = false;
        }
    }

    fn windows(&mut self, lost: bool) {
        self.beat(self.clock_us, lost);
        self.clock_us += if lost { WINDOWS_WAIT_US } else { SECOND_US };
    }
}

pub(super) fn read(name: &str, lines: &mut super::Lines<'_>, skips: &mut Skips) -> Vec<Record> {
    let mut pings = Pings::default();
    let mut is_windows = false;
    while let Some((number, line)) = lines.next() {
        if let Some(sequence) = sequence(line) {
            pings.linux(line, sequence, number, skips);
        } else if is_windows_answer(line) {
            is_windows = true;
            pings.windows(false);
        } else if is_windows && line.trim().is_empty() {
            // The statistics follow after this line.
            break;
        } else if is_windows {
            pings.windows(true);
        } else if has_words(line) && number > 1 && !is_frame(line) {
            skips.at(number, format!("no answer of ping: {:?}", super::text(line)));
        }
    }
    if pings.is_full {
        skips.file(format!("only the first {EVENTS_MAX} pings are kept"));
    }
    if pings.beats.is_empty() { Vec::new() } else { vec![record(name, pings, is_windows)] }
}

/// Recognises the first line and the statistics of Linux.
fn is_frame(line: &str) -> bool {
    ["PING ", "--- ", "rtt ", "round-trip "].iter().any(|head| line.starts_with(head))
        || line.contains("packets transmitted")
}

fn has_words(line: &str) -> bool {
    line.contains(char::is_alphabetic)
}

fn record(name: &str, pings: Pings, is_windows: bool) -> Record {
    let mut record = base::record(name, "Pings once a second");
    let lost = pings.beats.iter().filter(|beat| beat.lost).count();
    record.rows.push(base::measured(name, Quantity::PingsLost, lost as f64, ""));
    record.beats = pings.beats;
    let stamped = pings.begin_us.filter(|us| *us > 0);
    record.began_unix_us = stamped.and_then(|us| i64::try_from(us).ok()).unwrap_or(0);
    if is_windows {
        record.notes.push("Windows' ping writes no times: an answer counts 1 s, a time-out its 4 s.".into());
    } else if stamped.is_none() {
        record.notes.push("Without -D ping writes no times: one a second is assumed.".into());
    }
    record
}
