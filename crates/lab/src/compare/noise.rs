//! Noise of a comparison: the difference of two runs of one subject in the same round.

use super::summary::Summary;
use crate::run::{Phase, Quantity};

/// Ends the name of a subject's second run in each round.
const AGAIN: &str = " again";

/// Returns the name of a subject's second run in each round.
pub fn again(subject: &str) -> String {
    format!("{subject}{AGAIN}")
}

/// Returns the subject behind the name of a run.
pub fn subject_of(name: &str) -> &str {
    name.strip_suffix(AGAIN).unwrap_or(name)
}

/// Adds the noise to each cell, if a subject ran twice, and whether the cell's difference to that subject is within it.
pub(super) fn add(summaries: &mut [Summary]) {
    let is_pair = |one: &Summary, other: &Summary| other.subject == again(&one.subject);
    let pair = summaries.iter().find_map(|one| {
        let other = summaries.iter().find(|other| is_pair(one, other))?;
        Some((one.clone(), other.clone()))
    });
    let Some((one, other)) = pair else { return };
    for summary in summaries {
        let is_same = subject_of(&summary.subject) == one.subject;
        for cell in &mut summary.cells {
            cell.noise = noise(&one, &other, cell.phase, cell.quantity);
            let same = one.find(cell.phase, cell.quantity).filter(|_| !is_same);
            let apart = same.map(|same| difference(same.compared().median, cell.compared().median));
            cell.within_noise = apart.zip(cell.noise).map(|(apart, noise)| apart <= noise);
        }
    }
}

/// Returns the largest difference in any round.
fn noise(one: &Summary, other: &Summary, phase: Phase, quantity: Quantity) -> Option<f64> {
    let (a, b) = (one.find(phase, quantity)?, other.find(phase, quantity)?);
    a.rounds.iter().zip(&b.rounds).map(|(a, b)| difference(*a, *b)).reduce(f64::max)
}

/// Returns the difference of two figures as a share of their mean.
fn difference(a: f64, b: f64) -> f64 {
    let mean = (a.abs() + b.abs()) / 2.0;
    if mean > 0.0 { (a - b).abs() / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{summarize, text};
    use crate::run::{Clock, Record, Row};

    /// Returns runs of one subject, each with this stun.
    fn runs(name: &str, stuns_us: &[f64]) -> Vec<Record> {
        let run = |us: &f64| {
            let mut record = Record::head("compare", name, "", Clock::Real, 0);
            record.rows.push(Row::measured("compare", Phase::Snapshot, Quantity::HelperBytes, *us));
            record
        };
        stuns_us.iter().map(run).collect()
    }

    #[test]
    fn differences_of_equal_subjects_are_the_noise() {
        let mut records = runs("a", &[100.0, 100.0]);
        records.extend(runs(&again("a"), &[110.0, 100.0]));
        records.extend(runs("b", &[104.0, 104.0]));
        records.extend(runs("c", &[200.0, 200.0]));
        let summaries = summarize(&records);
        let cells: Vec<_> = summaries.iter().map(|summary| &summary.cells[0]).collect();
        assert!((cells[0].noise.unwrap() - 10.0 / 105.0).abs() < 1e-9, "the largest of both rounds");
        let within: Vec<_> = cells.iter().map(|cell| cell.within_noise).collect();
        assert_eq!(within, [None, None, Some(true), Some(false)]);
        assert!(text(&summaries).contains("a again"));
    }

    #[test]
    fn without_a_second_run_there_is_no_noise() {
        let mut records = runs("a", &[100.0]);
        records.extend(runs("b", &[100.0]));
        assert!(summarize(&records).iter().all(|summary| summary.cells[0].noise.is_none()));
        assert_eq!((subject_of("redo again"), subject_of("redo")), ("redo", "redo"));
    }
}
