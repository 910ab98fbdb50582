//! Checks that a figure of a phase is the same on the page, in the workbook, in the JSON and on the terminal.

use std::io::Cursor;

use calamine::{Data, Reader, Xlsx};

use super::{html, json, text, xlsx};
use crate::compare;
use crate::run::*;
use crate::runner::Recorder;

const SECOND_US: u64 = 1_000_000;

/// A run under construction, one second of load at a time.
struct Run {
    recorder: Recorder,
    at_us: u64,
}

impl Run {
    fn new(subject: &str) -> Run {
        let head = Record::head("compare", subject, "", Clock::Virtual, 0);
        Run { recorder: Recorder::new(head, None, None).unwrap(), at_us: 0 }
    }

    /// Adds a step. `warm_up_s` None: the step is over at once, and none of its samples counts.
    fn step(&mut self, phase: Phase, label: &str, warm_up_s: Option<u64>, reads: &[u64]) {
        let warm_up_us = warm_up_s.map(|s| s * SECOND_US);
        self.recorder.begin(phase, label, self.at_us, warm_up_us, warm_up_s.is_some());
        for reads in reads {
            let (reads, writes) = (reads / 2, reads - reads / 2);
            let host = Counters { reads: reads * 2, writes, ..Counters::default() };
            let sample =
                Sample { at_us: self.at_us, interval_us: SECOND_US, reads, writes, ..Sample::default() };
            self.recorder.sample(Sample { host: Some(host), ..sample });
            self.at_us += SECOND_US;
        }
        self.recorder.finish(self.at_us);
    }

    /// Returns a run whose phase with a snapshot begins with a take that has a rate of its own, then a load that warms up.
    fn compared(subject: &str, with_snapshot: u64) -> Record {
        let mut run = Run::new(subject);
        run.step(Phase::Baseline, "without a snapshot", Some(1), &[100, 1000, 1000]);
        run.step(Phase::Snapshot, "take", None, &[2410]);
        run.step(Phase::Snapshot, "with a snapshot", Some(1), &[5000, with_snapshot, with_snapshot]);
        run.step(Phase::Commit, "commit", Some(0), &[500, 700]);
        run.recorder.end(run.at_us, End::Complete)
    }
}

/// Returns the guest IOPS of the phase in the workbook, from the line without a step.
fn in_workbook(records: &[Record], phase: &str) -> f64 {
    let mut book: Xlsx<_> = Xlsx::new(Cursor::new(xlsx::workbook(records).unwrap())).unwrap();
    let sheet = book.worksheet_range("Phases").unwrap();
    let place = |name: &str| {
        let head = sheet.rows().next().unwrap();
        head.iter().position(|cell| *cell == Data::String(name.into())).unwrap()
    };
    let is_phase = |row: &&[Data]| {
        row[place("phase")] == Data::String(phase.into()) && row[place("step")].to_string().is_empty()
    };
    let row = sheet.rows().find(is_phase).unwrap();
    let number = |name: &str| match row[place(name)] {
        Data::Float(value) => value,
        ref other => panic!("{name}: {other:?}"),
    };
    number("reads/s") + number("writes/s")
}

/// Returns the words of the first line of a terminal's table that starts with `begin`.
fn line(text: &str, begin: &str) -> Vec<String> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(begin))
        .unwrap_or_else(|| panic!("{begin}: {text}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns whether the page's tables have these cells in sequence.
fn has_cells(page: &str, cells: &[&str]) -> bool {
    page.contains(&cells.iter().map(|cell| format!("<td class=\"n\">{cell}</td>")).collect::<String>())
}

#[test]
fn a_phase_has_one_figure_wherever_it_is_shown() {
    let records = [Run::compared("native", 850), Run::compared("redo", 600)];
    let page = html::page(&records);
    assert!(has_cells(&page, &["85 %", "60 %"]) && !page.contains("241 %"), "beside one another: {page}");
    assert!(page.contains("native, snapshot: 850 IOPS") && page.contains("redo, snapshot: 600 IOPS"), "bars");
    assert_eq!(in_workbook(&records[..1], "snapshot"), 850.0);

    let read = json::read("run", json::write(&records).unwrap().as_bytes()).unwrap();
    let rows = read[0].rows.iter().filter(|r| r.phase == Phase::Snapshot && r.quantity == Quantity::Iops);
    assert_eq!(rows.map(|row| row.predicted).collect::<Vec<_>>(), [Some(850.0)], "the JSON's row");
    assert_eq!(line(&text::summary(&read[0]), "snapshot")[3..5], ["425", "425"], "one run on a terminal");

    let summaries = compare::summarize(&read);
    let cell = summaries[0].find(Phase::Snapshot, Quantity::Iops).unwrap();
    assert_eq!((cell.value.median, cell.of_baseline.unwrap().median), (850.0, 0.85), "the JSON of compare");
    let terminal = line(&compare::text(&summaries), "native");
    assert_eq!(terminal[1..4], ["1000", "850", "(0.85)"], "compare on a terminal");
}

#[test]
fn a_phase_of_several_steps_is_all_of_them_and_each_is_shown() {
    let mut run = Run::new("native");
    run.step(Phase::Baseline, "before", Some(0), &[1000]);
    run.step(Phase::Snapshot, "1 layer", Some(0), &[900, 900, 900]);
    run.step(Phase::Snapshot, "8 layers", Some(0), &[100]);
    let record = run.recorder.end(run.at_us, End::Complete);
    let records = [record.clone(), Record { subject: "redo".into(), ..record.clone() }];
    assert!(has_cells(&html::page(&records), &["70 %", "70 %"]));
    assert_eq!(in_workbook(&records[..1], "snapshot"), 700.0);
    let summary = text::summary(&record);
    assert_eq!(line(&summary, "snapshot")[3..5], ["350", "350"], "{summary}");
    assert_eq!(line(&summary, "8 layers")[4..6], ["50", "50"], "{summary}");
    let summaries = compare::summarize(&records);
    assert_eq!(summaries[0].find(Phase::Snapshot, Quantity::Iops).unwrap().value.median, 700.0);
}
