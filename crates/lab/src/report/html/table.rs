//! Tables of figures: published beside predicted, or measured alone.

use maud::{Markup, html};

use super::percent_within;
use crate::report::side_by_side::figure_lines;
use crate::report::table::{Cell, Comparison, Line};
use crate::report::words;
use crate::run::Quantity;

pub(super) fn figures(group: &Comparison<'_>) -> Markup {
    let wide = group.has_published();
    let mut notes: Vec<&str> = Vec::new();
    let all = group.lines.iter().flat_map(|line| &line.notes);
    all.for_each(|note| {
        if !notes.contains(note) {
            notes.push(note);
        }
    });
    html! {
        @if wide { h3 { "Published against predicted" } }
        div.scroll {
            table.figures {
                thead { (head(group, wide)) }
                tbody { @for line in &group.lines { (row(group, line, wide, &notes)) } }
                @if wide { tfoot { (score(group)) } }
            }
        }
        @if wide { (legend(group)) }
        @if !notes.is_empty() { ol.footnotes { @for note in &notes { li { (note) } } } }
    }
}

/// Renders the figures of each phase in each run; nothing for a single run.
pub(super) fn side_by_side(group: &Comparison<'_>) -> Markup {
    let lines = figure_lines(&group.records);
    if group.records.len() < 2 || lines.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Side by side" }
        div.scroll { table.dense {
            thead { tr {
                th scope="col" { "phase" }
                th scope="col" { "figure" }
                @for record in &group.records { th.n scope="col" { (words::label(record)) small { (record.storage) } } }
            } }
            tbody { @for (n, line) in lines.iter().enumerate() {
                @let begins = n == 0 || lines[n - 1].phase != line.phase;
                tr class={ @if begins { "begins" } } {
                    td { @if begins { (line.phase) } }
                    th scope="row" { (line.figure) }
                    @for value in &line.values { td.n { (value) } }
                }
            } }
        } }
    }
}

fn head(group: &Comparison<'_>, wide: bool) -> Markup {
    let frozen = |column: usize| group.records[column].rows.iter().any(|row| row.default);
    html! {
        tr {
            th scope="col" { "phase" }
            th scope="col" { "figure" }
            @if wide { th.n scope="col" { "published" } th scope="col" { "kind" } }
            @for (column, record) in group.records.iter().enumerate() {
                th.n scope="col" colspan=[wide.then_some("2")] {
                    (words::label(record))
                    @if frozen(column) && group.records.len() > 1 { " " span.frozen { "frozen" } }
                }
            }
        }
    }
}

fn row(group: &Comparison<'_>, line: &Line<'_>, wide: bool, notes: &[&str]) -> Markup {
    html! {
        tr class=(words::json_name(line.r#use)) {
            td { (words::phase(line.phase)) }
            th scope="row" {
                (line.name(group.experiment))
                @for (n, note) in notes.iter().enumerate().filter(|(_, note)| line.notes.contains(note)) {
                    sup title=(note) { " " (n + 1) }
                }
            }
            @if wide {
                td.n { (line.published_text()) }
                td { (words::kind(line.r#use)) }
            }
            @for cell in &line.cells { (value(line, cell)) @if wide { (error(line, cell)) } }
        }
    }
}

fn optional(quantity: Quantity, value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| words::value(quantity, value))
}

fn value(line: &Line<'_>, cell: &Cell) -> Markup {
    html! {
        td.n {
            (optional(line.quantity, cell.predicted))
            @if let Some((low, high)) = cell.band {
                small { (words::value(line.quantity, low)) " to " (words::value(line.quantity, high)) }
            }
        }
    }
}

/// Renders the error. The model was fitted to baseline rows, so their error gets no mark.
fn error(line: &Line<'_>, cell: &Cell) -> Markup {
    let (class, mark) = match line.counted(cell) {
        Some(true) => ("n error hit", "\u{2713}"),
        Some(false) => ("n error miss", "\u{2717}"),
        None => ("n error", ""),
    };
    let text = match (line.quantity, cell.error, line.published.zip(cell.predicted)) {
        (Quantity::Converged, ..) => String::new(),
        (_, Some(error), _) if !cell.judged => words::times(error),
        (Quantity::PingsLost, _, Some((published, predicted))) => format!("{:+}", predicted - published),
        (_, Some(error), _) => words::percent(error),
        _ => String::new(),
    };
    html! { td class=(class) { (text) @if !mark.is_empty() { " " span.tick { (mark) } } } }
}

fn score(group: &Comparison<'_>) -> Markup {
    html! {
        tr {
            th scope="row" colspan="4" { "predicted rows within " (percent_within()) }
            @for column in 0..group.records.len() {
                @let (within, all) = group.score(column);
                td.n colspan="2" { @if all > 0 { (within) " of " (all) } @else { "-" } }
            }
        }
    }
}

fn legend(group: &Comparison<'_>) -> Markup {
    let bands = group.lines.iter().flat_map(|line| &line.cells).any(|cell| cell.band.is_some());
    html! {
        p.legend {
            b { "baseline" } ": the storage model is fitted to it, its error says nothing. "
            b { "input" } ": put into the model, its error says nothing. "
            b { "implied" } ": any storage yields it, or it follows one constant that no baseline fixes. "
            b { "predicted" } ": has to come out of the mechanism; \u{2713} within " (percent_within())
            " (pings and yes or no: exact), \u{2717} beyond. "
            @if group.lines.iter().flat_map(|line| &line.cells).any(|cell| cell.predicted.is_some() && !cell.judged) {
                "Subjects that are not the published one are given as multiples of it, and not judged. "
            }
            b { "not counted" } ": qualitative, or derived from what is counted elsewhere."
            @if bands { " Small figures below a value are its lowest and highest over an input that was not published." }
        }
    }
}
