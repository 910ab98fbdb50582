//! The figures of a run as each output shows them, read back from the output itself.

use std::collections::BTreeMap;
use std::io::Cursor;

use calamine::{Data, Reader, Xlsx};

use crate::report::{html, json, text, words, xlsx};
use crate::run::{Phase, PhaseSpan, Quantity, Record};

/// Texts by phase and quantity: "commit lasts" is "320 s".
pub(super) type View = BTreeMap<String, String>;

/// Rates that the workbook and the page name alike.
const RATES: [&str; 4] = ["reads/s", "writes/s", "host reads/s", "host writes/s"];

fn key(phase: &str, quantity: &str) -> String {
    format!("{phase} {quantity}")
}

/// Returns the text between two marks, and what follows.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(begin)?.1.split_once(end)
}

/// Returns the text without its tags; a nested element is set off by a space.
fn plain(markup: &str) -> String {
    let pieces = markup.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text));
    pieces.filter(|piece| !piece.trim().is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns the cells of each row of the first table after `heading`, header first.
pub(super) fn table_of(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, after) = page.split_once(heading).unwrap_or_else(|| panic!("{heading} is not on the page"));
    let (table, _) = between(after, "<table", "</table>").expect("a table");
    let rows = table.split("<tr").skip(1);
    let cell = |cell: &str| cell.split_once('>').map(|(_, rest)| plain(rest)).unwrap_or_default();
    rows.map(|row| row.replace("<td", "<th").split("<th").skip(1).map(cell).collect()).collect()
}

/// Returns the view of a page's table of phases and of its verdict.
pub(super) fn page(record: &Record) -> View {
    let page = html::page(std::slice::from_ref(record));
    let rows = table_of(&page, "Phase by phase");
    let place = |name: &str| rows[0].iter().position(|head| head == name).expect("a column");
    let mut view = View::new();
    let is_phase = |row: &&Vec<String>| record.phases.iter().any(|span| words::phase(span.phase) == row[0]);
    for row in rows[1..].iter().filter(is_phase) {
        for name in ["lasts", "reads/s", "writes/s"] {
            view.insert(key(&row[0], name), row[place(name)].clone());
        }
        for name in ["host reads/s", "host writes/s"] {
            let (rate, each) = row[place(name)].split_once(' ').unwrap_or((&row[place(name)], ""));
            view.insert(key(&row[0], name), rate.into());
            view.insert(key(&row[0], &format!("{name} ratio")), each.replace(" a guest's", ""));
        }
        view.insert(key(&row[0], "latency"), row[place("mean latency")].clone());
        view.insert(key(&row[0], "99 %"), row[place("99 %")].clone());
        view.insert(key(&row[0], "max"), row[place("maximum")].clone());
    }
    let mut rest = page.as_str();
    while let Some((name, after)) = between(rest, "<dt>", "</dt>") {
        let (value, after) = between(after, "<dd>", "</dd>").expect("a value");
        view.insert(format!("verdict {name}"), plain(value));
        rest = after;
    }
    of_rows(&mut view, table_of(&page, "All figures"));
    view
}

/// Adds whether commits converged, from a table of figures with a header.
fn of_rows(view: &mut View, rows: Vec<Vec<String>>) {
    for row in rows.iter().filter(|row| row.get(1).is_some_and(|figure| figure.starts_with("converged"))) {
        view.insert(key(&row[0], "converged"), row[row.len() - 1].clone());
    }
}

/// Returns the view of the terminal's tables.
pub(super) fn terminal(record: &Record) -> View {
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let summary = text::summary(record);
    let names = ["lasts", "reads/s", "writes/s", "host reads/s", "host writes/s", "99 %", "max"];
    let mut view = View::new();
    for line in summary.lines().skip(2).filter(|line| !line.starts_with("   ")) {
        let row = cells(line);
        if row.len() > names.len() {
            names
                .iter()
                .zip(&row[1..])
                .for_each(|(name, cell)| _ = view.insert(key(&row[0], name), cell.clone()));
        }
    }
    let verdict = super::super::verdict::verdicts(&[record]).remove(0);
    assert!(summary.contains(&verdict.sentence), "{summary}");
    for number in &verdict.numbers {
        view.insert(format!("verdict {}", number.name), number.value.clone());
    }
    let rows = text::rows(std::slice::from_ref(record));
    of_rows(&mut view, rows.lines().map(cells).collect());
    view
}

/// Returns the view of the workbook's sheets of phases and figures.
pub(super) fn workbook(record: &Record) -> View {
    let bytes = xlsx::workbook(std::slice::from_ref(record)).unwrap();
    let mut book: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).unwrap();
    let mut view = View::new();
    let sheet = book.worksheet_range("Phases").unwrap();
    let heads: Vec<String> = sheet.rows().next().unwrap().iter().map(ToString::to_string).collect();
    let place = |name: &str| heads.iter().position(|head| head == name).expect("a column");
    for row in sheet.rows().skip(1).filter(|row| row[place("step")].to_string().is_empty()) {
        let phase = row[place("phase")].to_string();
        let number = |name: &str| match row[place(name)] {
            Data::Float(value) => Some(value),
            _ => None,
        };
        let mut put = |name: &str, value: Option<f64>, show: fn(f64) -> String| {
            view.insert(key(&phase, name), words::or_dash(value, show));
        };
        put("lasts", number("lasts s"), |s| words::time(s * 1e6));
        RATES.iter().for_each(|name| put(name, number(name), words::number));
        for (name, column) in [("latency", "mean ms"), ("99 %", "99 % ms"), ("max", "max ms")] {
            put(name, number(column), |ms| words::time(ms * 1e3));
        }
        for (name, column) in [("reads", "host reads a guest read"), ("writes", "host writes a guest write")]
        {
            let ratio = number(column).map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            view.insert(key(&phase, &format!("host {name}/s ratio")), ratio);
        }
    }
    for row in book.worksheet_range("Figures").unwrap().rows().filter(|row| row[2] == "converged") {
        let value = if row[6] == Data::Float(1.0) { "yes" } else { "no" };
        view.insert(key(&row[1].to_string(), "converged"), value.into());
    }
    view
}

/// Returns the view of the JSON's phases and rows.
pub(super) fn document(record: &Record) -> View {
    let text = json::write(std::slice::from_ref(record)).unwrap();
    let record = json::read("run", text.as_bytes()).unwrap().remove(0);
    let mut view = View::new();
    let mut lasts: BTreeMap<Phase, u64> = BTreeMap::new();
    record
        .phases
        .iter()
        .for_each(|span: &PhaseSpan| *lasts.entry(span.phase).or_default() += span.lasts_us());
    for (phase, us) in &lasts {
        view.insert(key(words::phase(*phase), "lasts"), words::time(*us as f64));
    }
    let longest_us = record.stuns.iter().map(|stun| stun.stun_us).max();
    let longest = longest_us.map_or_else(|| "none".into(), |us| words::time(us as f64));
    view.insert("verdict longest stun".into(), longest);
    for row in &record.rows {
        let Some(value) = row.predicted else { continue };
        let (name, text) = match row.quantity {
            Quantity::ReadsPerS => ("reads/s", words::number(value)),
            Quantity::WritesPerS => ("writes/s", words::number(value)),
            Quantity::HostReadsPerS => ("host reads/s", words::number(value)),
            Quantity::HostWritesPerS => ("host writes/s", words::number(value)),
            Quantity::HostReadRatio => ("host reads/s ratio", format!("{value:.2}")),
            Quantity::HostWriteRatio => ("host writes/s ratio", format!("{value:.2}")),
            Quantity::LatencyUs => ("latency", words::time(value)),
            Quantity::Converged => ("converged", words::value(row.quantity, value)),
            Quantity::Seconds if row.phase == Phase::Commit => {
                view.insert("verdict time of the commit".into(), words::time(value * 1e6));
                continue;
            }
            _ => continue,
        };
        view.insert(key(words::phase(row.phase), name), text);
    }
    view
}

/// Returns each quantity that two views show differently.
pub(super) fn disagreements(views: &[View]) -> Vec<String> {
    let mut found = Vec::new();
    let mut shown: BTreeMap<&String, &String> = BTreeMap::new();
    for (quantity, text) in views.iter().flatten() {
        let before = *shown.entry(quantity).or_insert(text);
        if before != text {
            found.push(format!("{quantity}: {before} and {text}"));
        }
    }
    found
}
