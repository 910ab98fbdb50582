//! Tables of figures: published beside predicted, or measured alone.

use std::ops::Range;

use maud::{Markup, html};

use super::percent_within;
use crate::report::side_by_side::{Column, figure_lines};
use crate::report::table::{Cell, Comparison, Line};
use crate::report::words;
use crate::run::Quantity;

/// Renders the figures that were published beside those of the runs.
pub(super) fn published(group: &Comparison<'_>) -> Markup {
    let lines: Vec<&Line<'_>> = group.lines.iter().filter(|line| line.published.is_some()).collect();
    html! {
        h3 { "Published against predicted" }
        (figures(group, &lines, true))
        (legend(group))
    }
}

/// Renders all other figures, folded.
pub(super) fn unpublished(group: &Comparison<'_>) -> Markup {
    let lines: Vec<&Line<'_>> = group.lines.iter().filter(|line| line.published.is_none()).collect();
    let others = if group.has_published() { "Figures without a published one" } else { "All figures" };
    html! {
        @if !lines.is_empty() {
            details.checks { summary { (others) " (" (lines.len()) ")" } (figures(group, &lines, false)) }
        }
    }
}

/// Most runs of one table: all hypotheses and both of our stores are two tables. With more, a column would be cut off
/// on A4.
const COLUMNS_MAX: usize = 6;

/// Most runs whose errors and notes have space beside their figures.
const FEW_RUNS: usize = 4;

/// Renders lines of figures. `wide`: with the published figure and the error.
fn figures(group: &Comparison<'_>, lines: &[&Line<'_>], wide: bool) -> Markup {
    let mut notes: Vec<&str> = Vec::new();
    let is_narrow = group.records.len() > FEW_RUNS;
    lines.iter().filter(|_| is_narrow).flat_map(|line| &line.notes).for_each(|note| {
        if !notes.contains(note) {
            notes.push(note);
        }
    });
    html! {
        @for first in (0..group.records.len()).step_by(COLUMNS_MAX) {
            @let shown = first..group.records.len().min(first + COLUMNS_MAX);
            div.scroll {
                table.figures.few-runs[shown.len() <= FEW_RUNS] {
                    thead { (head(group, shown.clone(), wide)) }
                    tbody { @for line in lines { (row(group, line, shown.clone(), wide, &notes)) } }
                    @if wide { tfoot { (score(group, shown)) } }
                }
            }
        }
        @if !notes.is_empty() { ol.footnotes { @for note in &notes { li { (note) } } } }
    }
}

/// Renders the figures of each phase of each subject; nothing for a single one.
pub(super) fn side_by_side(columns: &[Column<'_>]) -> Markup {
    let lines = figure_lines(columns);
    html! {
        div.scroll { table.dense {
            thead { tr {
                th scope="col" { "phase" }
                th scope="col" { "figure" }
                @for column in columns { th.n scope="col" { (column.label) } }
            } }
            tbody { @for (n, line) in lines.iter().enumerate() {
                @let begins = n == 0 || lines[n - 1].phase != line.phase;
                tr class={ @if begins { "begins" } } {
                    td { @if begins { (line.phase) } }
                    th scope="row" { (line.figure) }
                    @for value in &line.values { td.n {
                        (value.median)
                        @if let Some((low, high)) = &value.range { small { (low) " to " (high) } }
                    } }
                }
            } }
        } }
    }
}

fn head(group: &Comparison<'_>, shown: Range<usize>, wide: bool) -> Markup {
    let frozen = |column: usize| group.records[column].rows.iter().any(|row| row.default);
    html! {
        tr {
            th scope="col" { "phase" }
            th scope="col" { "figure" }
            @if wide { th.n scope="col" { "published" } th scope="col" { "kind" } }
            @for column in shown {
                th.n scope="col" {
                    (words::label(group.records[column]))
                    @if frozen(column) && group.records.len() > 1 { " " span.frozen { "frozen" } }
                }
            }
        }
    }
}

fn row(group: &Comparison<'_>, line: &Line<'_>, shown: Range<usize>, wide: bool, notes: &[&str]) -> Markup {
    html! {
        tr class=(words::json_name(line.r#use)) {
            td { (words::phase(line.phase)) }
            th scope="row" {
                (line.name(group.experiment))
                @for (n, note) in notes.iter().enumerate().filter(|(_, note)| line.notes.contains(note)) {
                    sup title=(note) { " " (n + 1) }
                }
                @if notes.is_empty() { @for note in &line.notes { small { (note) } } }
            }
            @if wide {
                td.n { (line.published_text()) }
                td { (words::kind(line.r#use)) }
            }
            @for cell in &line.cells[shown] { (value(line, cell, wide)) }
        }
    }
}

fn optional(quantity: Quantity, value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| words::value(quantity, value))
}

/// Renders a figure, with its error below it where one was published. The model was fitted to baseline rows, so their
/// error gets no mark.
fn value(line: &Line<'_>, cell: &Cell, wide: bool) -> Markup {
    let (class, mark) = match line.counted(cell) {
        Some(true) => ("n hit", " \u{2713}"),
        Some(false) => ("n miss", " \u{2717}"),
        None => ("n", ""),
    };
    let error = error(line, cell);
    html! {
        td class=(class) {
            (optional(line.quantity, cell.predicted))
            @if wide && !(error.is_empty() && mark.is_empty()) { small.error { (error) (mark) } }
            @if let Some((low, high)) = cell.band {
                small { (words::value(line.quantity, low)) " to " (words::value(line.quantity, high)) }
            }
        }
    }
}

fn error(line: &Line<'_>, cell: &Cell) -> String {
    match (line.quantity, cell.error, line.published.zip(cell.predicted)) {
        (Quantity::Converged, ..) => String::new(),
        (_, Some(error), _) if !cell.judged => words::times(error),
        (Quantity::PingsLost, _, Some((published, predicted))) => format!("{:+}", predicted - published),
        (_, Some(error), _) => words::percent(error),
        _ => String::new(),
    }
}

fn score(group: &Comparison<'_>, shown: Range<usize>) -> Markup {
    html! {
        tr {
            th scope="row" colspan="4" { "predicted rows within " (percent_within()) }
            @for column in shown {
                @let (within, all) = group.score(column);
                td.n { @if all > 0 { (within) " of " (all) } @else { "-" } }
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
