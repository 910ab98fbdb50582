//! The begin of an experiment: its verdict as four numbers and a sentence, and a table of all subjects.

use maud::{Markup, html};

use crate::compare::rounds_text;
use crate::report::side_by_side::columns;
use crate::report::table::Comparison;
use crate::report::verdict::{Number, Verdict, noise, verdicts};
use crate::report::words;

/// Renders the verdict on the group's first or frozen run; with several subjects one line for each, first of all.
pub(super) fn block(group: &Comparison<'_>) -> Markup {
    let all = verdicts(&group.records);
    let default = words::label(group.records[group.default_column()]);
    let Some(shown) = all.iter().find(|verdict| verdict.label == default) else { return html! {} };
    html! {
        div.verdict {
            @if all.len() > 1 { (subjects(group, &all)) }
            p.sentence { @if all.len() > 1 { b { (shown.label) ": " } } (shown.sentence) }
            @if all.len() == 1 {
                dl.tiles { @for number in &shown.numbers { (tile(number)) } }
            }
            (limits(group, &all))
        }
    }
}

fn tile(number: &Number) -> Markup {
    html! { div { dt { (number.name) } dd { (number.value) } dd.small { (number.small) } } }
}

/// Renders a line for each subject.
fn subjects(group: &Comparison<'_>, all: &[Verdict]) -> Markup {
    let frozen = group.records.iter().find(|record| record.rows.iter().any(|row| row.default));
    let frozen = frozen.map(|record| words::label(record));
    html! {
        div.scroll { table.verdicts {
            thead { tr {
                th scope="col" { "subject" }
                th.n scope="col" { "IOPS before" }
                @for number in &all[0].numbers { th.n scope="col" { (number.name) } }
            } }
            tbody { @for verdict in all { tr {
                th scope="row" {
                    (verdict.label)
                    @if frozen.as_ref() == Some(&verdict.label) { " " span.frozen { "frozen" } }
                }
                td.n { (verdict.before) }
                @for number in &verdict.numbers {
                    td.n { (number.value) @if number.is_noise { span.noise title="within the noise" { " ~" } } small { (number.small) } }
                }
            } } }
            @if let Some(noise) = noise(&group.records) { tfoot { tr {
                th scope="row" { "noise" }
                @for noise in &noise[..] { td.n { (noise) } }
            } } }
        } }
        @if noise(&group.records).is_some() {
            p.legend {
                "noise: the largest difference of two runs of one subject (named \u{201c}again\u{201d}) in one round. "
                "~: the difference to that subject is not larger."
            }
        }
    }
}

/// Renders what limits the figures: the scale, few rounds, few samples, runs that failed.
fn limits(group: &Comparison<'_>, all: &[Verdict]) -> Markup {
    let mut scaling: Vec<String> = Vec::new();
    for sentence in group.records.iter().flat_map(|record| words::scaling(record)) {
        if !scaling.contains(&sentence) {
            scaling.push(sentence);
        }
    }
    let rounds = columns(&group.records).iter().map(|column| column.records.len()).max().unwrap_or(0);
    html! {
        @for sentence in &scaling { p.scaling { (sentence) } }
        @if rounds > 1 { p.legend { (rounds_text(rounds as u32)) "." } }
        @for (warning, labels) in &warnings(all) {
            p.few { (warning) @if labels.len() < all.len() { " (" (labels.join(", ")) ")" } }
        }
    }
}

/// Returns each warning once, with the subjects that have it.
fn warnings(all: &[Verdict]) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for verdict in all {
        for warning in &verdict.warnings {
            match found.iter_mut().find(|(text, _)| text == warning) {
                Some((_, labels)) => labels.push(&verdict.label),
                None => found.push((warning, vec![&verdict.label])),
            }
        }
    }
    found
}
