//! Phases that the user marks: `--phase NAME=FROM..TO`.

use blk::{Error, Result};

use super::base::at_clock;
use super::text;
use crate::report::{extent, phase_name};
use crate::run::{Phase, PhaseSpan, Record};

/// A marked phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseMark {
    phase: Phase,
    from: Moment,
    to: Moment,
    /// As the user wrote it.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Microseconds since the begin of the record, which is zero on the axis of its charts.
    Since(u64),
    /// Calendar time, microseconds since 1970.
    At(i64),
}

impl Moment {
    fn parse(text: &str) -> Option<Moment> {
        if text == "0" {
            return Some(Moment::Since(0));
        }
        if let Ok(seconds) = api::units::parse_duration_s(text) {
            return seconds.checked_mul(1_000_000).map(Moment::Since);
        }
        text.parse::<jiff::Timestamp>().ok().map(|at| Moment::At(at.as_microsecond()))
    }

    /// Returns the moment on the clock of the record; None before its begin, and where its begin is unknown.
    fn on_clock(self, record: &Record) -> Option<u64> {
        match self {
            Moment::Since(us) => Some(us),
            Moment::At(_) if record.began_unix_us == 0 => None,
            Moment::At(unix_us) => u64::try_from(unix_us.checked_sub(record.began_unix_us)?).ok(),
        }
    }
}

impl PhaseMark {
    /// Parses `snapshot=10m..25m` or `commit=2016-02-05T22:57:00Z..2016-02-05T23:10:00Z`. Errors: `Invalid`.
    pub fn parse(text: &str) -> Result<PhaseMark> {
        let invalid = |cause: String| Error::invalid(format!("--phase {text}"), cause);
        let expected = || {
            invalid(
                "expected NAME=FROM..TO with times since the begin, such as snapshot=0..90s or snapshot=10m..1h, or \
                 of the calendar, such as commit=2016-02-05T22:57:00Z..2016-02-05T23:10:00Z"
                    .into(),
            )
        };
        let (name, times) = text.split_once('=').ok_or_else(expected)?;
        let phase = Phase::ALL.into_iter().find(|phase| phase_name(*phase) == name).ok_or_else(|| {
            let known = Phase::ALL.map(phase_name).join(", ");
            invalid(format!("{name:?} is no phase; there are {known}"))
        })?;
        let (from, to) = times.split_once("..").ok_or_else(expected)?;
        let (from, to) = Moment::parse(from).zip(Moment::parse(to)).ok_or_else(expected)?;
        let is_backward = match (from, to) {
            (Moment::Since(from), Moment::Since(to)) => from >= to,
            (Moment::At(from), Moment::At(to)) => from >= to,
            _ => false,
        };
        match is_backward {
            true => Err(invalid("the phase ends before it begins; FROM must be before TO".into())),
            false => Ok(PhaseMark { phase, from, to, text: text.into() }),
        }
    }

    /// Returns the span in this record, or why the record cannot contain it.
    fn span(&self, record: &Record) -> std::result::Result<PhaseSpan, String> {
        let (_, end_us) = extent(record);
        let moments = self.from.on_clock(record).zip(self.to.on_clock(record));
        match moments.filter(|(from, to)| from < to && *to <= end_us) {
            Some((from, to)) => Ok(PhaseSpan::new(self.phase, String::new(), from, to)),
            None => Err(format!("outside the data of {}", described(record))),
        }
    }
}

/// Returns the name of a record's file, and the time that it covers.
fn described(record: &Record) -> String {
    let Record { experiment, began_unix_us, .. } = record;
    let (_, end_us) = extent(record);
    let seconds = end_us as f64 / 1e6;
    let clock = match began_unix_us.checked_add_unsigned(end_us).filter(|_| *began_unix_us != 0) {
        Some(end) => format!(", {} to {}", at_clock(*began_unix_us), at_clock(end)),
        None => ", of which the calendar time is unknown".into(),
    };
    format!("{}: 0 to {seconds} s{clock}", text(experiment))
}

/// Sets the phases of the records to the marked ones. Returns a message for each mark that a record cannot contain.
///
/// Errors: `Invalid` for a mark that no record contains, and for marks that overlap.
pub fn mark_phases(records: &mut [Record], marks: &[PhaseMark]) -> Result<Vec<String>> {
    let mut messages = Vec::new();
    let mut all: Vec<Vec<(&PhaseMark, PhaseSpan)>> = vec![Vec::new(); records.len()];
    for mark in marks {
        let (mut outside, mut is_set) = (Vec::new(), false);
        for (record, spans) in records.iter().zip(&mut all) {
            match mark.span(record) {
                Ok(span) => {
                    spans.push((mark, span));
                    is_set = true;
                }
                // The VMs of one file have the same times.
                Err(why) if outside.contains(&why) => {}
                Err(why) => outside.push(why),
            }
        }
        if !is_set {
            return Err(Error::invalid(format!("--phase {}", mark.text), outside.join("; ")));
        }
        messages
            .extend(outside.into_iter().map(|why| format!("--phase {}: {why}; not marked there", mark.text)));
    }
    for (record, spans) in records.iter_mut().zip(&mut all).filter(|(_, spans)| !spans.is_empty()) {
        spans.sort_by_key(|(_, span)| span.begin_us);
        let pairs = spans.iter().zip(spans.iter().skip(1));
        if let Some(((one, _), (other, _))) = pairs.into_iter().find(|((_, a), (_, b))| b.begin_us < a.end_us)
        {
            let cause = format!("overlaps --phase {}; each moment has one phase", one.text);
            return Err(Error::invalid(format!("--phase {}", other.text), cause));
        }
        record.phases = spans.iter().map(|(_, span)| span.clone()).collect();
        record.notes.extend(spans.iter().map(|(mark, _)| format!("Marked: --phase {}.", mark.text)));
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::super::base;
    use super::*;
    use crate::run::Sample;

    fn record(name: &str, seconds: u64) -> Record {
        let sample =
            |n| Sample { at_us: n * 1_000_000, interval_us: 1_000_000, reads: n, ..Sample::default() };
        Record {
            began_unix_us: 1_454_713_020_000_000,
            samples: (0..seconds).map(sample).collect(),
            ..base::record(name, "t")
        }
    }

    fn marked(records: &mut [Record], marks: &[&str]) -> Result<Vec<String>> {
        let marks: Vec<_> = marks.iter().map(|mark| PhaseMark::parse(mark)).collect::<Result<_>>()?;
        mark_phases(records, &marks)
    }

    #[test]
    fn times_are_since_the_begin_or_of_the_calendar() {
        let mut records = [record("esxtop.csv", 120)];
        let calendar = "commit=2016-02-05T22:58:00Z..2016-02-05T22:58:30Z";
        assert_eq!(
            marked(&mut records, &[calendar, "baseline=0..10s", "snapshot=10s..1m"]).unwrap(),
            [""; 0]
        );
        let spans = records[0].phases.iter().map(|p| (p.phase, p.begin_us / 1_000_000, p.end_us / 1_000_000));
        let expected = [(Phase::Baseline, 0, 10), (Phase::Snapshot, 10, 60), (Phase::Commit, 60, 90)];
        assert_eq!(spans.collect::<Vec<_>>(), expected);
        let figures = crate::figures::phases(&records[0]);
        assert_eq!(figures[0].reads_per_s, Some(4.5), "samples 0 to 9");
    }

    #[test]
    fn bad_marks_are_refused_with_what_is_wrong() {
        let cases: [(&[&str], &str); 9] = [
            (
                &["snapshots=0..9s"],
                "is no phase; there are prepare, baseline, prepare-snapshot, snapshot, commit",
            ),
            (&["snapshot=9s..9s"], "FROM must be before TO"),
            (&["commit=2016-02-05T22:58:00Z..2016-02-05T22:57:30Z"], "FROM must be before TO"),
            (&["snapshot"], "expected NAME=FROM..TO"),
            (&["snapshot=10..20"], "expected NAME=FROM..TO"),
            (&["snapshot=1m..3m"], "0 to 120 s, 2016-02-05T22:57:00Z to 2016-02-05T22:59:00Z"),
            (&["commit=2016-02-05T22:56:00Z..2016-02-05T22:58:00Z"], "outside the data of esxtop.csv: 0 to"),
            (&["commit=1m..2016-02-05T22:57:30Z"], "outside the data"),
            (&["snapshot=0..1m", "commit=59s..90s"], "overlaps --phase snapshot=0..1m"),
        ];
        for (marks, words) in cases {
            let error = marked(&mut [record("esxtop.csv", 120)], marks).unwrap_err();
            assert_eq!(error.kind, blk::ErrorKind::Invalid);
            assert!(error.to_string().contains(words), "{marks:?}: {error}");
        }
    }

    #[test]
    fn a_mark_is_set_where_it_fits() {
        let mut records = [record("short.csv", 30), record("long.csv", 120)];
        let said = marked(&mut records, &["snapshot=0..1m"]).unwrap();
        assert_eq!((records[0].phases.len(), records[1].phases.len()), (0, 1));
        assert!(said[0].contains("short.csv") && said[0].ends_with("not marked there"), "{said:?}");
        records[1].began_unix_us = 0;
        let error =
            marked(&mut records[1..], &["commit=2016-02-05T22:58:00Z..2016-02-05T22:58:30Z"]).unwrap_err();
        assert!(error.cause.contains("the calendar time is unknown"), "{error}");
    }
}
