//! One page with everything. It loads no script, font or image from elsewhere, so it opens anywhere and prints. `maud`
//! escapes every text; only the style sheets are inserted as markup.

mod facts;
mod run;
mod table;
mod verdict;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart;
use super::side_by_side;
use super::table::{Comparison, WITHIN, comparisons};
use super::words;
use crate::run::Record;

const CHART_STYLE: &str = include_str!("chart.css");
const PAGE_STYLE: &str = include_str!("page.css");

/// Returns the page of any number of runs; those of one experiment are compared.
pub fn page(records: &[Record]) -> String {
    let groups = comparisons(records);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title(&groups)) }
                style { (PreEscaped(CHART_STYLE)) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                main {
                    (masthead(&groups))
                    @for (n, group) in groups.iter().enumerate() { (experiment(n, group, groups.len())) }
                    footer { "Written by unstun lab. Charts and tables are made of the same samples." }
                }
            }
        }
    };
    page.into_string()
}

fn title(groups: &[Comparison<'_>]) -> String {
    match groups {
        [] => "No runs".into(),
        [one] => one.records[0].title.clone(),
        many => format!("{} experiments", many.len()),
    }
}

fn masthead(groups: &[Comparison<'_>]) -> Markup {
    html! {
        header {
            p.kind { "What a snapshot costs" }
            h1 { (title(groups)) }
        }
        @if groups.is_empty() { p { "There is no run to report." } }
        @if groups.len() > 1 { (contents(groups)) }
    }
}

/// Renders the verdicts on many experiments, with links.
fn contents(groups: &[Comparison<'_>]) -> Markup {
    html! {
        div.scroll { table.contents {
            thead { tr {
                th { "experiment" } th.n { "kept with a snapshot" } th.n { "kept while committing" } th.n { "longest stun" }
                th.n { "commit" } th.n { "within " (percent_within()) }
            } }
            tbody { @for (n, group) in groups.iter().enumerate() { (content(n, group)) } }
        } }
    }
}

fn content(n: usize, group: &Comparison<'_>) -> Markup {
    let (within, all) = group.score(group.default_column());
    let default = group.records[group.default_column()];
    let label = words::label(default);
    let of_default: Vec<&Record> =
        group.records.iter().copied().filter(|record| words::label(record) == label).collect();
    let verdict = super::verdict::verdicts(&of_default).swap_remove(0);
    html! {
        tr {
            td { a href={ "#e" (n) } { (group.experiment) } small { (label) @if group.records.len() > 1 { ", one of " (group.records.len()) " runs" } } }
            @for number in &verdict.numbers { td.n { @if verdict.has_phases { (number.value) } @else { "-" } } }
            td.n { @if all > 0 { (within) " of " (all) } @else { "-" } }
        }
    }
}

fn percent_within() -> String {
    format!("{:.0} %", WITHIN * 100.0)
}

/// Renders one experiment: verdict, graph, published figures, then what they rest on. `groups` is the number of
/// experiments on the page.
fn experiment(n: usize, group: &Comparison<'_>, groups: usize) -> Markup {
    let first = group.records[0];
    html! {
        section.experiment id={ "e" (n) } {
            @if groups > 1 { h2 { (first.title) } }
            p.lead { span.name { (group.experiment) } @if !first.source.is_empty() { " \u{b7} " (first.source) } (where_run(group)) }
            (verdict::block(group))
            (graph(group))
            @if group.has_published() { (table::published(group)) }
            (compared(group))
            @for (place, record) in group.records.iter().enumerate() { (run::section(record, &shown(group, place))) }
            (table::unpublished(group))
            (facts::of_group(group))
        }
    }
}

/// Returns storage and clock of the group's main run.
fn where_run(group: &Comparison<'_>) -> String {
    let record = group.records[group.default_column()];
    let storage = if record.storage.is_empty() { String::new() } else { format!(" on {}", record.storage) };
    format!(" \u{b7} {}{storage}, {} time", words::label(record), words::json_name(record.clock))
}

/// Returns whether all subjects share the graph below the verdict: where no run has published figures.
fn shares_graph(group: &Comparison<'_>) -> bool {
    side_by_side::columns(&group.records).len() > 1 && !group.has_published()
}

/// Renders the graph below the verdict: that of the main run, or that of all subjects.
fn graph(group: &Comparison<'_>) -> Markup {
    if shares_graph(group) {
        return charts_of_all(group);
    }
    run::graph(group.records[group.default_column()], group.records.len() > 1)
}

fn charts_of_all(group: &Comparison<'_>) -> Markup {
    let all = side_by_side::columns(&group.records);
    html! { div.charts { (figure(chart::bars(&all))) (figure(chart::overlay(&all))) } }
}

/// Renders all subjects phase by phase, folded; nothing for a single one.
fn compared(group: &Comparison<'_>) -> Markup {
    let all = side_by_side::columns(&group.records);
    html! {
        @if all.len() > 1 {
            details {
                summary { "Side by side, phase by phase" }
                @if !shares_graph(group) { (charts_of_all(group)) }
                (table::side_by_side(&all))
            }
        }
    }
}

/// Returns how a run's section is shown.
fn shown(group: &Comparison<'_>, place: usize) -> run::Shown {
    let is_main = place == group.default_column();
    let is_compared = shares_graph(group);
    let label = words::label(group.records[place]);
    let same = group.records.iter().filter(|record| words::label(record) == label).count();
    let before = group.records[..place].iter().filter(|record| words::label(record) == label).count();
    run::Shown {
        is_named: group.records.len() > 1,
        is_folded: is_compared || !is_main,
        has_graph: is_main && !is_compared,
        round: (same > 1).then_some(before + 1),
    }
}

fn figure(chart: Option<Markup>) -> Markup {
    html! { @if let Some(chart) = chart { figure { (chart) } } }
}
