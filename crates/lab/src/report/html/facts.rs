//! The basis of the figures: constants and their sources, what the model leaves out, the machine, the command that
//! repeats the run.

use maud::{Markup, html};

use crate::report::table::Comparison;
use crate::report::words;
use crate::run::{Constant, ConstantSource, Record};

/// A statement, with the runs that contain it.
struct Statement<'a, T> {
    what: &'a T,
    by: Vec<&'a Record>,
}

fn once<'a, T: PartialEq>(
    records: &[&'a Record],
    of: impl Fn(&'a Record) -> &'a [T],
) -> Vec<Statement<'a, T>> {
    let mut statement: Vec<Statement<'a, T>> = Vec::new();
    for record in records {
        for what in of(record) {
            match statement.iter_mut().find(|s| s.what == what) {
                Some(there) => there.by.push(record),
                None => statement.push(Statement { what, by: vec![record] }),
            }
        }
    }
    statement
}

/// Returns the labels of the runs that contain the statement; empty where all of them do.
fn by<T>(statement: &Statement<'_, T>, all: usize) -> String {
    if statement.by.len() == all {
        return String::new();
    }
    statement.by.iter().map(|record| words::label(record)).collect::<Vec<_>>().join(", ")
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

fn constants(constants: &[Statement<'_, Constant>], all: usize) -> Markup {
    if constants.is_empty() {
        return html! {};
    }
    let fitted = constants.iter().filter(|c| c.what.source == ConstantSource::FittedToBaseline).count();
    let shared = constants.iter().any(|statement| statement.by.len() < all);
    html! {
        details { summary {
            "Constants and their sources: " (constants.len()) " constants, of them " b { (fitted) " fitted" }
            " to the baseline row and to no other"
        }
        div.scroll { table {
            thead { tr { th { "constant" } th.n { "value" } th { "source" } th { "where from" } @if shared { th { "of" } } } }
            tbody { @for statement in constants {
                @let constant = statement.what;
                tr class={ @if constant.source == ConstantSource::FittedToBaseline { "fitted" } } {
                    th scope="row" { (constant.name) }
                    td.n { (words::exact(constant.value)) " " (constant.unit) }
                    td { (words::source(constant.source)) }
                    td { (constant.note) }
                    @if shared { td { (by(statement, all)) } }
                }
            } }
        } } }
    }
}

fn sentences(heading: &str, statement: &[Statement<'_, String>], all: usize) -> Markup {
    html! {
        @if !statement.is_empty() {
            details { summary { (heading) " (" (statement.len()) ")" }
                ul { @for sentence in statement {
                    @let by = by(sentence, all);
                    li { (sentence.what) @if !by.is_empty() { " (" (by) ")" } }
                } }
            }
        }
    }
}

fn machine(group: &Comparison<'_>) -> Markup {
    let facts = once(&group.records, |r| &r.machine);
    html! {
        @if !facts.is_empty() {
            details { summary { "Machine" }
                div.scroll { table.facts { tbody { @for statement in &facts {
                    tr { th scope="row" { (statement.what.name) } td { (statement.what.value) } td { (by(statement, group.records.len())) } }
                } } } }
            }
        }
    }
}

/// Returns the states of the models behind the records, each of them once.
fn models<'a>(records: &[&'a Record]) -> Vec<&'a str> {
    let mut models: Vec<&str> = records.iter().map(|r| r.model.as_str()).filter(|m| !m.is_empty()).collect();
    models.sort_unstable();
    models.dedup();
    models
}

/// Renders each command once, with the runs that it made.
fn repeat(records: &[&Record]) -> Markup {
    let mut commands: Vec<(&str, Vec<&Record>)> = Vec::new();
    for record in records {
        match commands.iter_mut().find(|(command, _)| *command == record.command) {
            Some((_, runs)) => runs.push(record),
            None => commands.push((&record.command, vec![record])),
        }
    }
    html! {
        h3 { "How to repeat it" }
        @for model in models(records) { p { "Frozen state of the models: " code { (model) } "." } }
        div.scroll { table.facts { tbody { @for (command, runs) in &commands { tr {
            th scope="row" { (distinct(runs, words::label)) }
            td { @if !command.is_empty() { code { (command) } } @else { "-" } }
            td { "seed " (distinct(runs, |record| record.seed.to_string())) }
            td { (words::began(runs[0].began_unix_us)) }
            td { (distinct(runs, |record| words::end(&record.end))) }
        } } } } }
    }
}

/// Returns the texts of the runs, each of them once.
fn distinct(runs: &[&Record], text: fn(&Record) -> String) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in runs.iter().map(|run| text(run)) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(", ")
}
