//! An index of what the articles say, as Markdown: each claim with its experiment, its kind and the model's result.

use super::table::{self, Line};
use super::words;
use crate::experiment::Experiment;
use crate::experiment::claims::Claim;
use crate::run::Record;

/// Names of the articles, by their numbers.
const ARTICLES: [(&str, &str); 8] = [
    ("000", "E. Zandboer, vmdamentals.com ?p=332, about 2009-10, with its comments"),
    ("001", "virtualtothecore.com, data by T. Sightler, 2016-02-05"),
    ("002", "T. Nahumi, Dell EMC, PowerStore snapshots with vVols and VMFS, 2021"),
    ("003", "kanap.net, Performance impact of snapshots, 2015-02"),
    ("004", "Russian translation of 000"),
    ("005", "K. Elatov, virtuallyhyper.com, 2012-06-14, with which nothing was chosen"),
    (
        "006",
        "A. Garcia, qemu-devel, qcow2 with and without subclusters, 2019-10-15, with which nothing was chosen",
    ),
    ("007", "A. Theurer, linux-kernel, snapshots of LVM2 beta, 2002-07-12, with which nothing was chosen"),
];

const HEAD: &str =
    "| what it says | experiment | figure | kind | published | result |\n|---|---|---|---|---|---|\n";

/// Returns the index. `records` are those of a whole `lab reproduce`.
pub(crate) fn markdown(claims: &[Claim], experiments: &[Experiment], records: &[Record]) -> String {
    let mut text = String::new();
    for (number, name) in ARTICLES {
        text += &format!("\n## Article {number}: {name}\n\n{HEAD}");
        for claim in claims.iter().filter(|claim| claim.article == number) {
            text += &line(claim, experiments, records);
        }
    }
    text
}

fn line(claim: &Claim, experiments: &[Experiment], records: &[Record]) -> String {
    let experiment = experiments.iter().find(|e| Some(&e.name) == claim.experiment.as_ref());
    let figure = experiment.and_then(|experiment| figure(claim, experiment, records));
    let name = claim.experiment.as_deref().unwrap_or("-");
    let rest = match figure {
        Some(rest) => rest,
        None => format!("- | not scored: {} | - | -", claim.why.as_deref().unwrap_or("no run")),
    };
    let basis = if claim.basis == "page" { String::new() } else { format!(" ({})", claim.basis) };
    format!("| {}{basis} | {name} | {rest} |\n", claim.said.replace('|', "/"))
}

/// Returns the figure's columns; None for a claim without one.
fn figure(claim: &Claim, experiment: &Experiment, records: &[Record]) -> Option<String> {
    let of =
        |record: &&Record| record.experiment == experiment.name && record.rows.iter().any(|row| row.default);
    let record = records.iter().find(of)?;
    let cells = experiment.published.iter().zip(&record.rows);
    let rows: Vec<_> = cells.filter(|(cell, _)| claim.is_of(experiment, cell)).map(|(_, row)| row).collect();
    let lines = table::lines_of_rows(record, &rows);
    let first = lines.first()?;
    let name = words::figure(first.phase, first.quantity, None);
    let kind = words::kind(first.r#use);
    let published = join(&lines, |line| line.published_text());
    let result = join(&lines, |line| {
        line.cells[0].predicted.map_or("not reached".into(), |value| words::value(line.quantity, value))
    });
    let right = lines.iter().map(|line| line.counted(&line.cells[0])).collect::<Option<Vec<bool>>>();
    let mark = match right {
        Some(all) if all.iter().all(|is| *is) => ", **within**",
        Some(_) => ", missed",
        None => "",
    };
    Some(format!("{name} | {kind} | {published} | {result}{mark}"))
}

/// Returns the first and the last of a series, or the only one.
fn join(lines: &[Line<'_>], text: impl Fn(&Line<'_>) -> String) -> String {
    match lines {
        [one] => text(one),
        [first, .., last] => format!("{} to {}", text(first), text(last)),
        [] => "-".into(),
    }
}
