//! Tests every writer with a record that has something in every field, and with names that contain markup and paths.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

use calamine::{Data, Reader, Xlsx};
use serde_json::Value;

use super::side_by_side::{columns, figure_lines};
use super::{comparisons, csv, html, json, svg, text, xlsx};
use crate::run::*;

const HOSTILE: &str = "<script>alert(1)</script>\"' onload=x & \u{0} \u{1b}[31m =cmd|' /C calc'!A0";

fn row(phase: Phase, quantity: Quantity, published: f64, predicted: f64, r#use: Use) -> Row {
    Row {
        experiment: "zandboer-saturated".into(),
        phase,
        quantity,
        published: Some(published),
        bound: None,
        stun: None,
        predicted: Some(predicted),
        r#use,
        hypothesis: Some("io-lock-blind".into()),
        default: true,
        band: None,
        note: String::new(),
    }
}

fn samples() -> Vec<Sample> {
    let sample = |n: u64| {
        let slow = (300..700).contains(&n);
        let (reads, writes) = if slow { (110, 100) } else { (510, 250) };
        let us = if slow { 36_000.0 } else { 7_800.0 };
        let spread =
            Spread { mean_us: us, p50_us: us * 0.9, p95_us: us * 2.0, p99_us: us * 3.0, max_us: us * 9.0 };
        let host = Counters { reads: reads * 2, writes, table_reads: reads, ..Counters::default() };
        Sample {
            at_us: n * 1_000_000,
            interval_us: 1_000_000,
            reads: reads + n % 7,
            writes: writes + n % 5,
            read_bytes: reads * 4096,
            written_bytes: writes * 4096,
            read_latency: spread,
            write_latency: spread,
            host: Some(host),
            gap_us: 40_000,
        }
    };
    (0..1_000).map(sample).collect()
}

/// Returns a span with a chain of two layers.
fn span(phase: Phase, label: &str, begin: u64, end: u64) -> PhaseSpan {
    let base = Counters { reads: 110, ..Counters::default() };
    let delta = Counters { writes: 100, table_writes: 50, written_bytes: 4 << 20, ..Counters::default() };
    PhaseSpan {
        phase,
        label: label.into(),
        begin_us: begin * 1_000_000,
        end_us: end * 1_000_000,
        counted_from_us: 0,
        layers: vec![LayerHost { layer: 0, host: base }, LayerHost { layer: 1, host: delta }],
    }
}

fn rows() -> Vec<Row> {
    let mut rows = vec![
        row(Phase::Baseline, Quantity::ReadsPerS, 510.0, 515.0, Use::Baseline),
        row(Phase::Snapshot, Quantity::ReadsPerS, 110.0, 94.0, Use::Predict),
        row(Phase::Commit, Quantity::Converged, 0.0, 1.0, Use::Predict),
        row(Phase::Commit, Quantity::StunUs, 843_578.0, 900_000.0, Use::Predict),
        row(Phase::Commit, Quantity::StunUs, 1_224_454.0, 400_000.0, Use::Predict),
        row(Phase::After, Quantity::Iops, 760.0, 756.0, Use::Check),
    ];
    rows[1].note = "the text says a factor 5; its numbers give 3.6".into();
    rows[1].band = Some((72.0, 126.0));
    rows
}

/// Returns a run with something in every field.
pub(super) fn example() -> Record {
    let constant = |name: &str, value, source| Constant {
        name: name.into(),
        value,
        unit: "us".into(),
        source,
        note: "public figures of 10K drives".into(),
    };
    Record {
        schema: SCHEMA,
        experiment: "zandboer-saturated".into(),
        title: "A saturated guest on a 10K mirror".into(),
        source: "vmdamentals.com, E. Zandboer, 2009".into(),
        subject: "esx".into(),
        hypothesis: Some("io-lock-blind".into()),
        storage: "sas-10k-pair".into(),
        model: "fifth (2026-11-29, 012345abcdef)".into(),
        clock: Clock::Virtual,
        time_scale: 1,
        seed: 7,
        command: "unstun lab run zandboer-saturated".into(),
        began_unix_us: 1_785_000_000_000_000,
        machine: vec![Fact { name: "kernel".into(), value: "6.1".into() }],
        constants: vec![
            constant("revolution", 6_000.0, ConstantSource::DataSheet),
            constant("seek offset", 250.0, ConstantSource::FittedToBaseline),
        ],
        left_out: vec!["Growth of the delta is not zeroed.".into()],
        notes: vec!["828436 us is printed where the lines sum up to 827626.".into()],
        phases: vec![
            span(Phase::Baseline, "no snapshot", 0, 300),
            span(Phase::Snapshot, "snapshot present", 300, 500),
            span(Phase::Commit, "delete under load", 500, 700),
            span(Phase::After, "", 700, 1_000),
        ],
        samples: samples(),
        stuns: (0..13u32)
            .map(|n| Stun {
                at_us: 690_000_000 + u64::from(n) * 500_000,
                stun_us: 400_000 - u64::from(n) * 20_000,
                disk: (n > 0).then_some(n),
                cause: "close".into(),
            })
            .collect(),
        beats: (0..1_000u64).map(|n| Beat { at_us: n * 1_000_000, lost: (692..696).contains(&n) }).collect(),
        marks: vec![Mark { at_us: 300_000_000, text: "take".into() }],
        rows: rows(),
        end: End::Complete,
    }
}

fn hostile() -> Record {
    let mut record = example();
    let name = || HOSTILE.to_owned();
    for text in [&mut record.experiment, &mut record.title, &mut record.source, &mut record.subject] {
        *text = name();
    }
    record.storage = name();
    record.command = name();
    record.hypothesis = Some(name());
    record.end = End::Failed(name());
    record.machine[0].value = name();
    record.constants[0].note = name();
    record.left_out.push(name());
    record.notes.push(name());
    record.phases[0].label = name();
    record.stuns[0].cause = name();
    record.marks[0].text = name();
    record.rows[0].note = name();
    record
}

/// Returns a record with values that are never measured but that a file may contain.
pub(super) fn absurd() -> Record {
    let mut record = example();
    let spread =
        Spread { mean_us: f64::NAN, p50_us: f64::INFINITY, p95_us: -1.0, p99_us: 1e300, max_us: 1e-300 };
    let all = Sample {
        at_us: u64::MAX,
        interval_us: u64::MAX,
        reads: u64::MAX,
        writes: u64::MAX,
        read_bytes: u64::MAX,
        written_bytes: u64::MAX,
        read_latency: spread,
        write_latency: spread,
        host: None,
        gap_us: u64::MAX,
    };
    record.samples = vec![Sample::default(), all.clone(), all, Sample::default()];
    record.stuns.push(Stun { at_us: u64::MAX, stun_us: u64::MAX, disk: None, cause: String::new() });
    let host =
        Counters { reads: u64::MAX, read_bytes: u64::MAX, written_bytes: u64::MAX, ..Counters::default() };
    let layers = vec![LayerHost { layer: u32::MAX, host }];
    record.phases.push(PhaseSpan { layers, ..PhaseSpan::new(Phase::Drain, String::new(), 9, 3) });
    record.rows.push(row(Phase::Drain, Quantity::Iops, f64::NAN, f64::INFINITY, Use::Predict));
    record.rows.push(row(Phase::Drain, Quantity::Iops, 0.0, 1e300, Use::Predict));
    record
}

fn empty() -> Record {
    let mut record = example();
    record.samples.clear();
    record.phases.clear();
    record.rows.clear();
    record.beats.clear();
    record.stuns.clear();
    record
}

#[test]
fn the_page_has_every_part_and_asks_nobody() {
    let page = html::page(&[example()]);
    let parts = [
        "Guest IOPS",
        "Host IOPS",
        "Host I/O per layer",
        "delta 1",
        "Read latency",
        "Write latency",
        "Published against predicted",
        "Constants and their sources",
        "What the model leaves out",
        "How to repeat it",
        "828436",
        "class=\"phase commit\"",
        "class=\"stun\"",
        "class=\"lost\"",
        "prefers-color-scheme: dark",
        "2 constants, of them <b>1 fitted</b>",
    ];
    for part in parts {
        assert!(page.contains(part), "{part}");
    }
    for foreign in ["<script", "<link", "<img", "<iframe", "@import", "url(", "src="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count());
    assert!(page.len() < 400_000, "{} bytes", page.len());
}

#[test]
fn names_of_strangers_are_text() {
    let records = [hostile(), example()];
    let page = html::page(&records);
    assert!(!page.contains("<script") && !page.contains("\" onload"), "escaped");
    for (name, drawing) in svg::files(&records) {
        assert!(name.ends_with(".svg") && !name.contains(['/', '\\', '<', ' ']), "{name}");
        assert!(!drawing.contains("<script") && !drawing.contains(['\u{0}', '\u{1b}']), "{name}");
    }
    assert!(!text::rows(&records).contains('\u{1b}') && !text::summary(&records[0]).contains('\u{1b}'));
    let mut formula = example();
    formula.storage = "=1+1".into();
    assert!(csv::rows(&[formula]).unwrap().contains(",'=1+1,"), "no formula");
}

#[test]
fn absurd_values_are_survived_by_every_writer() {
    for records in [vec![], vec![absurd()], vec![empty()], vec![absurd(), hostile(), empty(), example()]] {
        let page = html::page(&records);
        assert!(!page.contains("=\"NaN") && !page.contains("=\"inf"), "coordinates");
        svg::files(&records);
        csv::samples(&records).unwrap();
        csv::layers(&records).unwrap();
        csv::rows(&records).unwrap();
        text::rows(&records);
        records.iter().for_each(|record| _ = text::summary(record));
        xlsx::workbook(&records).unwrap();
    }
}

#[test]
fn drawings_are_xml() {
    for (name, drawing) in svg::files(&[hostile(), example()]) {
        let opened = drawing.matches("<g ").count() + drawing.matches("<svg").count();
        assert_eq!(opened, drawing.matches("</g>").count() + drawing.matches("</svg>").count(), "{name}");
        assert!(drawing.starts_with("<?xml") && drawing.contains("xmlns="), "{name}");
    }
}

#[test]
fn a_record_comes_back_from_its_json() {
    let (one, other) = (example(), hostile());
    let alone = std::slice::from_ref(&one);
    assert_eq!(json::read("f", json::write(alone).unwrap().as_bytes()).unwrap(), alone);
    let both = [one, other];
    assert_eq!(json::read("f", json::write(&both).unwrap().as_bytes()).unwrap(), both);
    let newer = json::write(&both).unwrap().replacen("\"schema\": 1", "\"schema\": 99", 1);
    assert!(json::read("f", newer.as_bytes()).unwrap_err().cause.contains("newer"));
    assert!(json::read("f", b"{\"schema\":1}").unwrap_err().cause.contains("experiment"));
}

#[test]
fn errors_are_relative_and_counted_for_predictions_alone() {
    let mut second = example();
    second.hypothesis = Some("concurrent".into());
    second.rows[1].predicted = Some(263.0);
    second.rows.remove(4);
    let records = [example(), second];
    let groups = comparisons(&records);
    let group = &groups[0];
    assert_eq!((groups.len(), group.lines.len()), (1, 6), "two stuns are two lines");
    let snapshot = &group.lines[1];
    assert!((snapshot.cells[0].error.unwrap() + 0.145).abs() < 0.001);
    assert_eq!((snapshot.cells[0].within, snapshot.cells[1].within), (Some(true), Some(false)));
    assert_eq!(group.lines[4].cells[1].predicted, None);
    assert_eq!((group.score(0), group.score(1)), ((2, 4), (1, 3)));
    let text = text::rows(&records);
    assert!(
        text.contains("-15 %") && text.contains("+139 % *") && text.contains("2 of 4 predicted"),
        "{text}"
    );
}

#[test]
fn figures_of_one_name_are_told_apart_on_a_terminal() {
    let mut record = example();
    let mut other = record.rows[1].clone();
    record.rows[0].note = "the only one of its name".into();
    record.rows[1].note = "clusters of 16 KiB; the first of them".into();
    other.note = "clusters of 32 KiB".into();
    record.rows.push(other);
    let text = text::rows(&[record]);
    assert!(text.contains(", clusters of 16 KiB ") && text.contains(", clusters of 32 KiB "), "{text}");
    assert!(!text.contains("the only one") && !text.contains("the first"), "{text}");
}

#[test]
fn what_a_run_does_not_come_to_is_a_miss() {
    let mut stopped = example();
    stopped.rows[1].predicted = None;
    let records = [stopped];
    assert_eq!(comparisons(&records)[0].score(0), (1, 4));
    let text = text::rows(&records);
    assert!(text.contains("1 of 4 predicted") && text.contains(" *"), "{text}");
}

#[test]
fn runs_are_shown_side_by_side() {
    let mut ours = example();
    ours.subject = "native".into();
    ours.hypothesis = None;
    ours.rows[1].predicted = Some(510.0);
    ours.rows.iter_mut().for_each(|row| row.default = false);
    for sample in &mut ours.samples {
        (sample.reads, sample.writes) = (510, 250);
    }
    let records = [example(), ours];
    let lines = figure_lines(&columns(&records.iter().collect::<Vec<_>>()));
    let of_baseline = lines.iter().find(|l| l.phase == "snapshot" && l.figure == "of its baseline");
    let medians = of_baseline.unwrap().values.iter().map(|value| value.median.as_str());
    assert_eq!(medians.collect::<Vec<_>>(), ["28 %", "100 %"], "{lines:?}");
    let page = html::page(&records);
    assert!(page.contains("Side by side") && page.contains("Guest IOPS by phase"));
    assert!(page.contains("x 4.64"), "another stack is no prediction");
    assert!(!html::page(&records[..1]).contains("Side by side"));
}

#[test]
fn csv_has_a_line_for_each_sample_and_each_figure() {
    let samples = csv::samples(&[example()]).unwrap();
    assert_eq!(samples.lines().count(), 1 + 1_000);
    let layers = csv::layers(&[example()]).unwrap();
    assert_eq!(layers.lines().count(), 1 + 4 * 2);
    assert!(layers.contains(",baseline,no snapshot,delta 1,300,0,100,0,50,0,4194304"), "{layers}");
    let rows = csv::rows(&[example()]).unwrap();
    assert_eq!(rows.lines().count(), 1 + 6);
    assert!(rows.contains("snapshot,reads_per_s,110,94,-0.145"), "{rows}");
}

#[test]
fn the_workbook_is_read_back_with_its_charts() {
    let bytes = xlsx::workbook(&[example(), hostile()]).unwrap();
    assert_eq!(bytes, xlsx::workbook(&[example(), hostile()]).unwrap(), "a function of its records");
    let mut book: Xlsx<_> = Xlsx::new(Cursor::new(bytes.clone())).expect("a workbook");
    assert_eq!(
        book.sheet_names(),
        ["Runs", "Figures", "Phases", "Layers", "Stuns", "Constants", "Run 1", "Run 2"]
    );
    let figures = book.worksheet_range("Figures").expect("the sheet");
    assert_eq!(figures.get_value((2, 6)), Some(&Data::Float(94.0)));
    let run = book.worksheet_range("Run 1").expect("the sheet");
    assert_eq!(run.height(), 1 + 1_000);
    assert_eq!(run.get_value((1, 2)), Some(&Data::Float(510.0)));
    assert_eq!(run.get_value((1, 6)), Some(&Data::Float(510.0)), "table reads");
    let layers = book.worksheet_range("Layers").expect("the sheet");
    assert_eq!((layers.height(), layers.get_value((2, 7))), (1 + 2 * 8, Some(&Data::Float(50.0 / 300.0))));
    let runs = book.worksheet_range("Runs").expect("the sheet");
    assert!(
        matches!(runs.get_value((2, 3)), Some(Data::String(text)) if text.contains("<script>")),
        "as text"
    );
    for part in ["xl/charts/chart1.xml", "xl/charts/chart8.xml"] {
        assert!(bytes.windows(part.len()).any(|w| w == part.as_bytes()), "{part}");
    }
}

/// Returns the first column of the table under each `### Type` of the page.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = include_str!("../../../../docs/lab-json.md");
    let section = |section: &str| {
        let fields = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let name = section.lines().next().unwrap_or_default().to_owned();
        (name, fields.map(|(field, _)| field.to_owned()).collect())
    };
    page.split("\n### ").skip(1).map(section).collect()
}

#[test]
fn every_field_of_the_json_is_documented_and_there() {
    let record = example();
    let document = json::Document { schema: SCHEMA, records: vec![record] };
    let value = serde_json::to_value(&document).unwrap();
    let of_record = |path: &str| value.pointer(&format!("/records/0{path}")).cloned().unwrap();
    let types = [
        ("Document", value.clone()),
        ("Record", of_record("")),
        ("Fact", of_record("/machine/0")),
        ("Constant", of_record("/constants/0")),
        ("PhaseSpan", of_record("/phases/0")),
        ("LayerHost", of_record("/phases/0/layers/0")),
        ("Sample", of_record("/samples/0")),
        ("Spread", of_record("/samples/0/read_latency")),
        ("Counters", of_record("/samples/0/host")),
        ("Stun", of_record("/stuns/0")),
        ("Beat", of_record("/beats/0")),
        ("Mark", of_record("/marks/0")),
        ("Row", of_record("/rows/0")),
    ];
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect();
    let actual: BTreeMap<_, BTreeSet<String>> =
        types.iter().map(|(name, v)| ((*name).to_owned(), fields(v))).collect();
    assert_eq!(documented(), actual);
}
