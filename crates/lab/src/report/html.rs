//! One page with everything. It loads no script, font or image from elsewhere, so it opens anywhere and prints. `maud`
//! escapes every text; only the style sheets are inserted as markup.

mod facts;
mod run;
mod table;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart;
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

/// Renders the results of many experiments, with links.
fn contents(groups: &[Comparison<'_>]) -> Markup {
    html! {
        div.scroll { table.contents {
            thead { tr { th { "experiment" } th { "runs" } th { "source" } th { "within " (percent_within()) } } }
            tbody {
                @for (n, group) in groups.iter().enumerate() {
                    @let (within, all) = group.score(group.default_column());
                    tr {
                        td { a href={ "#e" (n) } { (group.experiment) } }
                        td.n { (group.records.len()) }
                        td { (group.records[0].source) }
                        td.n { @if all > 0 { (within) " of " (all) } @else { "-" } }
                    }
                }
            }
        } }
    }
}

fn percent_within() -> String {
    format!("{:.0} %", WITHIN * 100.0)
}

/// Renders one experiment. `groups` is the number of experiments on the page.
fn experiment(n: usize, group: &Comparison<'_>, groups: usize) -> Markup {
    let first = group.records[0];
    html! {
        section.experiment id={ "e" (n) } {
            @if groups > 1 { h2 { (first.title) } }
            p.lead { span.name { (group.experiment) } @if !first.source.is_empty() { " \u{b7} " (first.source) } }
            (tiles(group))
            @if group.has_published() { (table::figures(group)) }
            @if group.records.len() > 1 {
                div.charts { (figure(chart::bars(&group.records))) (figure(chart::overlay(&group.records))) }
                (table::side_by_side(group))
            }
            @for (place, record) in group.records.iter().enumerate() {
                @let folded = group.records.len() > 2 && place != group.default_column();
                (run::section(record, group.records.len() > 1, folded))
            }
            @if !group.has_published() && !group.lines.is_empty() {
                details { summary { "All figures" } (table::figures(group)) }
            }
            (facts::of_group(group))
        }
    }
}

/// Renders the most important figures as tiles.
fn tiles(group: &Comparison<'_>) -> Markup {
    let record = group.records[group.default_column()];
    let (within, all) = group.score(group.default_column());
    let stunned: u64 = record.stuns.iter().fold(0, |sum, stun| sum.saturating_add(stun.stun_us));
    let longest = record.stuns.iter().map(|stun| stun.stun_us).max();
    let lost = record.beats.iter().filter(|beat| beat.lost).count();
    html! {
        dl.tiles {
            (tile("subject", &words::label(record)))
            (tile("storage", &record.storage))
            (tile("time", &words::json_name(record.clock)))
            @if all > 0 { (tile(&format!("predicted within {}", percent_within()), &format!("{within} of {all}"))) }
            @if let Some(longest) = longest {
                (tile("longest stun", &words::time(longest as f64)))
                @if record.stuns.len() > 1 { (tile(&format!("{} stuns together", record.stuns.len()), &words::time(stunned as f64))) }
            }
            @if !record.beats.is_empty() { (tile("heartbeats lost", &format!("{lost} of {}", record.beats.len()))) }
        }
    }
}

fn tile(name: &str, value: &str) -> Markup {
    html! { @if !value.is_empty() { div { dt { (name) } dd { (value) } } } }
}

fn figure(chart: Option<Markup>) -> Markup {
    html! { @if let Some(chart) = chart { figure { (chart) } } }
}
