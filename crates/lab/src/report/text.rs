//! Results as tables for a terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::table::{Cell, Comparison, Line};
use super::words;
use crate::figures::phases_and_steps;
use crate::run::{Quantity, Record};

/// Returns one table per experiment: the published figures, then prediction and error for each record.
pub fn rows(records: &[Record]) -> String {
    let groups = super::comparisons(records);
    let with_rows = groups.iter().filter(|group| !group.lines.is_empty());
    with_rows
        .map(|group| format!("{}\n{}\n", words::plain(group.experiment), table_of(group)))
        .collect::<Vec<_>>()
        .join("\n")
}

fn table_of(group: &Comparison<'_>) -> String {
    let wide = group.has_published();
    let mut header = vec!["phase".to_owned(), "figure".into()];
    if wide {
        header.extend(["published".into(), "kind".into()]);
    }
    for record in &group.records {
        header.push(words::plain(&words::label(record)));
        header.extend(wide.then(|| "error".into()));
    }
    let mut table = aligned(header, if wide { 4 } else { 2 });
    if let Some(published) = table.column_mut(2) {
        published.set_cell_alignment(CellAlignment::Right);
    }
    for line in &group.lines {
        table.add_row(cells(group, line, wide));
    }
    let mut text = trimmed(&table);
    for (column, record) in group.records.iter().enumerate() {
        let (within, all) = group.score(column);
        if all > 0 {
            text += &format!(
                "\n{}: {within} of {all} predicted figures within 25 %",
                words::plain(&words::label(record))
            );
        }
    }
    text
}

fn cells(group: &Comparison<'_>, line: &Line<'_>, wide: bool) -> Vec<String> {
    let mut cells = vec![words::phase(line.phase).to_owned(), words::plain(&name(group, line))];
    let value = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| words::value(line.quantity, v));
    if wide {
        cells.extend([line.published_text(), words::kind(line.r#use).to_owned()]);
    }
    for cell in &line.cells {
        let band = cell.band.map(|(low, high)| format!(" ({} - {})", value(Some(low)), value(Some(high))));
        cells.push(value(cell.predicted) + &band.unwrap_or_default());
        cells.extend(wide.then(|| error(line, cell)));
    }
    cells
}

/// Returns the figure's name. A name that several figures have is followed by the beginning of the figure's note.
fn name(group: &Comparison<'_>, line: &Line<'_>) -> String {
    let name = line.name(group.experiment);
    let key = |line: &Line<'_>| (line.phase, line.name(group.experiment));
    let is_repeated = group.lines.iter().filter(|other| key(other) == key(line)).count() > 1;
    let note = line.notes.first().filter(|_| is_repeated).and_then(|note| note.split([';', ':']).next());
    note.map_or(name.clone(), |note| format!("{name}, {note}"))
}

/// Returns the error, with a mark where a prediction missed.
fn error(line: &Line<'_>, cell: &Cell) -> String {
    let missed = line.counted(cell) == Some(false);
    let text = match (line.quantity, cell.within) {
        (Quantity::Converged, Some(true)) => "right".into(),
        (Quantity::Converged, Some(false)) => "wrong".into(),
        _ if cell.judged => cell.error.map(words::percent).unwrap_or_default(),
        _ => cell.error.map(words::times).unwrap_or_default(),
    };
    if missed { format!("{text} *") } else { text }
}

/// Returns a table with a line per phase, and the events of the run.
pub fn summary(record: &Record) -> String {
    let header =
        ["phase", "lasts", "reads/s", "writes/s", "host r/s", "host w/s", "99 %", "max", "stuns", "lost"];
    let mut table = aligned(header.map(str::to_owned).into(), 1);
    let number = |value| words::or_dash(value, words::number);
    let time = |value| words::or_dash(value, words::time);
    for f in phases_and_steps(record) {
        let stuns = if f.stuns == 0 {
            "-".into()
        } else {
            format!("{} ({})", f.stuns, words::time(f.stun_total_us as f64))
        };
        let phase = f.name();
        let lost = if f.beats == 0 { "-".into() } else { format!("{}/{}", f.beats_lost, f.beats) };
        table.add_row([
            f.step.map_or_else(|| phase.into(), |step| format!("  {}", words::plain(&step))),
            words::time(f.lasts_us as f64),
            number(f.reads_per_s),
            number(f.writes_per_s),
            number(f.host_reads_per_s),
            number(f.host_writes_per_s),
            time(f.p99_us),
            time(f.max_us),
            stuns,
            lost,
        ]);
    }
    let (title, label) = (words::plain(&record.title), words::plain(&words::label(record)));
    let storage =
        if record.storage.is_empty() { "" } else { &format!(" on {}", words::plain(&record.storage)) };
    let head = format!("{title}: {label}{storage}, {} time", words::json_name(record.clock));
    let model =
        if record.model.is_empty() { "" } else { &format!("; model {}", words::plain(&record.model)) };
    let verdict: String = super::verdict::text(record).iter().map(|line| words::plain(line) + "\n").collect();
    format!("{head}\n{}\n{}{model}\n{verdict}", trimmed(&table), words::plain(&words::end(&record.end)))
}

/// Returns a table with the first `words` columns aligned to the left and figures to the right.
fn aligned(header: Vec<String>, words: usize) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
