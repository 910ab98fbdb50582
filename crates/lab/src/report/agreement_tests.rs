//! Checks that a figure of a phase is the same on the page, in the workbook, in the JSON and on the terminal.

mod views;

use std::io::Cursor;

use calamine::{Data, Reader, Xlsx};

use super::{html, json, text, words, xlsx};
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
        Run::scaled(subject, 1)
    }

    fn scaled(subject: &str, time_scale: u32) -> Run {
        let head = Record { time_scale, ..Record::head("compare", subject, "", Clock::Virtual, 0) };
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

/// Returns a run with a load, latencies, stuns and a commit, simulated smaller by that factor.
fn whole(time_scale: u32, converged: bool) -> Record {
    let mut run = Run::scaled("esx", time_scale);
    run.step(Phase::Baseline, "before", Some(0), &[1000; 8]);
    run.step(Phase::Snapshot, "with a snapshot", Some(1), &[5000, 310, 290, 300, 320, 280, 300, 300]);
    let commit_us = run.at_us;
    run.recorder.begin(Phase::Commit, "commit", commit_us, Some(0), true);
    for reads in [200, 210, 190, 200, 220, 180] {
        let spread = Spread { mean_us: 900.0, p50_us: 800.0, p95_us: 2e3, p99_us: 3e3, max_us: 41_000.0 };
        let host = Some(Counters { reads: 5 * reads, writes: 3 * reads, ..Counters::default() });
        let sample = Sample {
            at_us: run.at_us,
            interval_us: SECOND_US,
            reads,
            writes: reads,
            host,
            ..Sample::default()
        };
        run.recorder.sample(Sample { read_latency: spread, write_latency: spread, gap_us: 40_000, ..sample });
        run.at_us += SECOND_US;
    }
    for (at_us, stun_us) in [(commit_us + 10, 150_000), (run.at_us - SECOND_US, 402_000)] {
        run.recorder.stun(Stun { at_us, stun_us, disk: None, cause: "close".into() });
    }
    if converged {
        run.recorder.figure(Quantity::Seconds, (run.at_us - commit_us) as f64 / 1e6, "");
    }
    run.recorder.figure(Quantity::Converged, f64::from(u8::from(converged)), "commit");
    run.recorder.finish(run.at_us);
    run.step(Phase::After, "after", Some(0), &[1000; 6]);
    run.recorder.end(run.at_us, End::Complete)
}

fn views(record: &Record) -> [views::View; 4] {
    [views::page(record), views::workbook(record), views::document(record), views::terminal(record)]
}

#[test]
fn all_outputs_show_the_same_figures_of_runs_in_full_size_and_scaled() {
    for (time_scale, converged) in [(1, true), (1, false), (64, true), (256, false)] {
        let record = whole(time_scale, converged);
        let views = views(&record);
        assert_eq!(views::disagreements(&views), [] as [String; 0], "scale {time_scale}");
        let lasts = words::time(6e6 * f64::from(time_scale));
        for view in &views {
            assert_eq!(view["commit lasts"], lasts, "at full scale");
            assert_eq!(view["commit host reads/s"], "1,000", "{view:?}");
            assert_eq!(view["commit converged"], if converged { "yes" } else { "no" }, "{view:?}");
        }
        for view in [&views[0], &views[3]] {
            let commit = if converged { lasts.as_str() } else { "no end" };
            assert_eq!(view["verdict time of the commit"], commit);
            assert_eq!(view["verdict guest I/O kept with a snapshot"], "30 %");
            assert_eq!(view["verdict longest stun"], "402 ms");
        }
        let page = html::page(std::slice::from_ref(&record));
        let is_said = page.contains(&format!("Simulated at 1/{time_scale} of the time"));
        assert_eq!(is_said, time_scale > 1);
    }
}

#[test]
fn an_output_that_differs_is_found() {
    let record = whole(64, true);
    let mut simulated = record.clone();
    simulated
        .phases
        .iter_mut()
        .for_each(|span| span.end_us = span.begin_us + (span.end_us - span.begin_us) / 64);
    let mut shown = views(&record);
    shown[2] = views::document(&simulated);
    let found = views::disagreements(&shown);
    assert!(found.contains(&"commit lasts: 384 s and 6 s".to_owned()), "{found:?}");
    let mut other = record.clone();
    other.stuns[1].stun_us = 403_000;
    other.samples.iter_mut().for_each(|sample| sample.read_latency.mean_us *= 2.0);
    shown = views(&record);
    shown[0] = views::page(&other);
    let found = views::disagreements(&shown).join("\n");
    assert!(found.contains("verdict longest stun") && found.contains("commit latency"), "{found}");
}

#[test]
fn charts_and_marks_of_a_scaled_run_are_at_full_scale() {
    let record = whole(256, false);
    let drawing = super::svg::files(std::slice::from_ref(&record)).remove(0).1;
    assert!(drawing.contains(">60 min<") || drawing.contains(">90 min<"), "29 s are two hours: {drawing}");
    let samples = super::csv::samples(std::slice::from_ref(&record)).unwrap();
    assert!(samples.lines().nth(2).unwrap().contains(",256000000,256000000,128000,"), "{samples}");
}
