//! A comparison as a table for a terminal.

use std::fmt::Write;

use super::summary::{Cell, CommitResult, Summary};
use crate::run::{Phase, Quantity};

const RATES: [(&str, Phase); 4] = [
    ("IOPS before", Phase::Baseline),
    ("with snapshot", Phase::Snapshot),
    ("committing", Phase::Commit),
    ("after", Phase::After),
];

/// Returns a line per subject, with the IOPS of each phase and the ratio to the subject's own baseline, and below them
/// the noise and what limits the figures.
pub fn text(summaries: &[Summary]) -> String {
    let heads = RATES.iter().map(|(head, _)| *head).chain(["commit s", "worst stun us"]);
    let mut rows = vec![row("subject", heads.map(str::to_owned))];
    for summary in summaries {
        let rates = RATES.map(|(_, phase)| rate(summary, phase));
        rows.push(row(&summary.subject, rates.into_iter().chain([commit(summary), stun(summary)])));
    }
    let noisy = summaries.iter().find(|summary| summary.has_noise());
    rows.extend(noisy.map(noise));
    let mut out = aligned(&rows);
    if let Some(Summary { subject, .. }) = noisy {
        let _ = writeln!(
            out,
            "noise: the largest difference of {subject} and {}, which are the same, in one round; ~: no further from \
             {subject}",
            super::again(subject)
        );
    }
    limits(&mut out, summaries);
    out
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

/// Returns the rows in columns: names to the left, figures to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        let _ = write!(out, "{:<width$}", row[0], width = width(0));
        row[1..].iter().zip(1..).for_each(|(cell, n)| _ = write!(out, "  {cell:>width$}", width = width(n)));
        out.push('\n');
    }
    out
}

/// Returns a figure with a mark where its difference to the subject that ran twice is noise.
fn marked(cell: &Cell, text: String) -> String {
    if cell.within_noise == Some(true) { format!("{text} ~") } else { text }
}

fn rate(summary: &Summary, phase: Phase) -> String {
    let Some(cell) = summary.find(phase, Quantity::Iops) else { return "-".into() };
    let median = format!("{:.0}", cell.value.median);
    let text = match cell.of_baseline {
        None => median,
        Some(ratio) if summary.rounds < 2 => format!("{median} ({:.2})", ratio.median),
        Some(ratio) => {
            format!("{median} ({:.2}, {:.2}-{:.2})", ratio.median, ratio.lowest, ratio.highest)
        }
    };
    marked(cell, text)
}

fn commit(summary: &Summary) -> String {
    match summary.commit() {
        CommitResult::NotEnded => "not converged".into(),
        CommitResult::Ended(cell) => marked(cell, format!("{:.2}", cell.value.median)),
        CommitResult::None => "-".into(),
    }
}

fn stun(summary: &Summary) -> String {
    let stun = summary.longest_stun();
    stun.map_or_else(|| "-".into(), |cell| marked(cell, format!("{:.0}", cell.value.highest)))
}

/// Returns the noise of each column.
fn noise(first: &Summary) -> Vec<String> {
    let percent = |cell: Option<&Cell>| {
        let noise = cell.and_then(|cell| cell.noise);
        noise.map_or_else(|| "-".into(), |noise| format!("{:.0} %", noise * 100.0))
    };
    let rates = RATES.map(|(_, phase)| first.find(phase, Quantity::Iops));
    row("noise", rates.into_iter().chain([first.commit_time(), first.longest_stun()]).map(percent))
}

/// Writes what limits the figures: failures, few rounds and few samples.
fn limits(out: &mut String, summaries: &[Summary]) {
    let rounds = summaries.iter().map(|summary| summary.rounds).filter(|rounds| *rounds > 0).min();
    if let Some(rounds) = rounds {
        let _ = writeln!(out, "{}", rounds_text(rounds));
    }
    for Summary { subject, warnings, failures, .. } in summaries {
        failures.iter().for_each(|failure| _ = writeln!(out, "{subject}, a run failed: {failure}"));
        warnings.iter().for_each(|warning| _ = writeln!(out, "warning: {subject}, {warning}"));
    }
}

/// Returns how far a number of rounds can be trusted. The range of n values contains the median of what they are samples
/// of with a probability of 1 - 2 / 2^n.
pub(crate) fn rounds_text(rounds: u32) -> String {
    match rounds {
        1 => "1 round: no range, because one run shows no spread; --rounds 6 gives one that holds the median in \
              96 of 100 cases"
            .into(),
        n => {
            let percent = 100.0 * (1.0 - 2.0 / 2f64.powi(n.min(64).cast_signed()));
            format!("{n} rounds: the range holds the median in {:.0} of 100 cases", percent.floor())
        }
    }
}
