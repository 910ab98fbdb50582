//! The basis of the figures: constants and their sources, what the model leaves out, the machine, the command that
//! repeats the run.

use maud::{Markup, html};

use crate::report::table::Comparison;
use crate::report::words;
use crate::run::{Constant, ConstantSource, Record};

/// A statement, with the runs that contain it.
struct Said<'a, T> {
    what: &'a T,
    by: Vec<&'a Record>,
}

fn once<'a, T: PartialEq>(records: &[&'a Record], of: impl Fn(&'a Record) -> &'a [T]) -> Vec<Said<'a, T>> {
    let mut said: Vec<Said<'a, T>> = Vec::new();
    for record in records {
        for what in of(record) {
            match said.iter_mut().find(|s| s.what == what) {
                Some(there) => there.by.push(record),
                None => said.push(Said { what, by: vec![record] }),
            }
        }
    }
    said
}

/// Returns the labels of the runs that contain the statement; empty where all of them do.
fn by<T>(said: &Said<'_, T>, all: usize) -> String {
    if said.by.len() == all {
        return String::new();
    }
    said.by.iter().map(|record| words::label(record)).collect::<Vec<_>>().join(", ")
}

pub(super) fn of_group(group: &Comparison<'_>) -> Markup {
    let records = &group.records;
    html! {
        (constants(&once(records, |r| &r.constants), records.len()))
        (sentences("What the model leaves out", &once(records, |r| &r.left_out), records.len()))
        (sentences("Notes", &once(records, |r| &r.notes), records.len()))
        (machine(group))
        (repeat(records))
    }
}

fn constants(constants: &[Said<'_, Constant>], all: usize) -> Markup {
    if constants.is_empty() {
        return html! {};
    }
    let fitted = constants.iter().filter(|c| c.what.source == ConstantSource::FittedToBaseline).count();
    let shared = constants.iter().any(|said| said.by.len() < all);
    html! {
        h3 { "Constants and their sources" }
        p {
            (constants.len()) " constants, of them " b { (fitted) " fitted" }
            " to the baseline row and to no other."
        }
        div.scroll { table {
            thead { tr { th { "constant" } th.n { "value" } th { "source" } th { "where from" } @if shared { th { "of" } } } }
            tbody { @for said in constants {
                @let constant = said.what;
                tr class={ @if constant.source == ConstantSource::FittedToBaseline { "fitted" } } {
                    th scope="row" { (constant.name) }
                    td.n { (words::exact(constant.value)) " " (constant.unit) }
                    td { (words::source(constant.source)) }
                    td { (constant.note) }
                    @if shared { td { (by(said, all)) } }
                }
            } }
        } }
    }
}

fn sentences(heading: &str, said: &[Said<'_, String>], all: usize) -> Markup {
    html! {
        @if !said.is_empty() {
            h3 { (heading) }
            ul { @for sentence in said {
                @let by = by(sentence, all);
                li { (sentence.what) @if !by.is_empty() { " (" (by) ")" } }
            } }
        }
    }
}

fn machine(group: &Comparison<'_>) -> Markup {
    let facts = once(&group.records, |r| &r.machine);
    html! {
        @if !facts.is_empty() {
            h3 { "Machine" }
            div.scroll { table.facts { tbody { @for said in &facts {
                tr { th scope="row" { (said.what.name) } td { (said.what.value) } td { (by(said, group.records.len())) } }
            } } } }
        }
    }
}

fn repeat(records: &[&Record]) -> Markup {
    html! {
        h3 { "How to repeat it" }
        div.scroll { table.facts { tbody { @for record in records {
            tr {
                th scope="row" { (words::label(record)) }
                td { @if !record.command.is_empty() { code { (record.command) } } @else { "-" } }
                td { "seed " (record.seed) }
                td { (words::began(record.began_unix_us)) }
                td { (words::end(&record.end)) }
            }
        } } } }
    }
}
