//! Figures of each subject over the rounds of a comparison, or over the runs of a report.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::figures::{Figures, converged, few_samples, phases};
use crate::run::{End, Phase, Quantity, Record, Row};

/// One figure of one subject, over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    pub phase: Phase,
    pub quantity: Quantity,
    pub value: Spread,
    /// Ratio to the same quantity in the baseline of the same run; None where the baseline has none.
    pub of_baseline: Option<Spread>,
    /// Largest relative difference of two runs of one subject in one round; None where no subject ran twice.
    pub noise: Option<f64>,
    /// Whether the difference to the subject that ran twice is within the noise; None for that subject itself.
    pub within_noise: Option<bool>,
    /// The figure of each round: the ratio where there is one.
    #[serde(skip)]
    pub(super) rounds: Vec<f64>,
}

/// The results of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub subject: String,
    /// Number of runs that completed.
    pub rounds: u32,
    pub cells: Vec<Cell>,
    /// What limits the figures, such as few samples.
    pub warnings: Vec<String>,
    /// The reasons of the runs that did not complete.
    pub failures: Vec<String>,
}

/// Result of a commit under load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CommitResult<'a> {
    /// The time until its end, in seconds.
    Ended(&'a Cell),
    /// At least one run's commit did not end under the load.
    NotEnded,
    None,
}

/// Runs whose figures enter a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Only runs that completed.
    Complete,
    /// Those, or where no run of a name completed all of them, as far as each came.
    Any,
}

/// Summarizes records by name, in the order of each one's first run.
pub(super) fn by_name(
    records: &[&Record],
    counted: Counted,
    name: impl Fn(&Record) -> String,
) -> Vec<Summary> {
    let mut groups: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records {
        let name = name(record);
        match groups.iter_mut().find(|(other, _)| *other == name) {
            Some((_, group)) => group.push(record),
            None => groups.push((name, vec![record])),
        }
    }
    groups.into_iter().map(|(name, records)| summary(name, &records, counted)).collect()
}

fn summary(subject: String, records: &[&Record], counted: Counted) -> Summary {
    let complete: Vec<_> = records.iter().copied().filter(|record| record.end == End::Complete).collect();
    let failures = records.iter().filter_map(|record| match &record.end {
        End::Complete => None,
        End::Interrupted => Some("interrupted".to_string()),
        End::Failed(why) => Some(why.clone()),
    });
    let shown = if complete.is_empty() && counted == Counted::Any { records } else { &complete };
    let runs: Vec<Run<'_>> = shown.iter().map(|record| Run { record, phases: phases(record) }).collect();
    let cells = kinds(&runs).into_iter().filter_map(|(phase, quantity)| cell(&runs, phase, quantity));
    let cells = cells.collect();
    let (rounds, warning) = (complete.len() as u32, few_samples(runs.iter().flat_map(|run| &run.phases)));
    let warnings = warning.into_iter().collect();
    Summary { subject, rounds, cells, warnings, failures: failures.collect() }
}

/// Returns the quantities of each phase that any run has, in a fixed order.
fn kinds(runs: &[Run<'_>]) -> Vec<(Phase, Quantity)> {
    let of_rows = runs.iter().flat_map(|run| &run.record.rows).map(|row: &Row| (row.phase, row.quantity));
    let phases = runs.iter().flat_map(|run| &run.phases);
    let of_phases = phases.flat_map(|f| f.phase.into_iter().flat_map(|phase| of_phase(f, phase)));
    let kinds: BTreeSet<_> = of_rows.chain(of_phases).collect();
    kinds.into_iter().collect()
}

/// Returns the quantities of a verdict, which a run has without rows too.
fn of_phase(figures: &Figures, phase: Phase) -> impl Iterator<Item = (Phase, Quantity)> {
    let is_commit = [Phase::Commit, Phase::Drain].contains(&phase);
    let wanted = [
        (Quantity::Iops, figures.iops().is_some()),
        (Quantity::StunUs, figures.stuns > 0),
        (Quantity::Converged, is_commit),
        (Quantity::Seconds, is_commit),
    ];
    wanted.into_iter().filter(|(_, has)| *has).map(move |(quantity, _)| (phase, quantity))
}

/// A run, and the figures of its phases.
struct Run<'a> {
    record: &'a Record,
    phases: Vec<Figures>,
}

fn cell(runs: &[Run<'_>], phase: Phase, quantity: Quantity) -> Option<Cell> {
    let values: Vec<f64> = runs.iter().filter_map(|run| run.figure(phase, quantity)).collect();
    let ratios = runs.iter().filter_map(|run| {
        let before = run.figure(Phase::Baseline, quantity).filter(|before| *before > 0.0)?;
        Some(run.figure(phase, quantity)? / before)
    });
    let ratios: Vec<f64> = ratios.filter(|_| phase != Phase::Baseline).collect();
    let of_baseline = spread(ratios.clone());
    let rounds = if of_baseline.is_some() { ratios } else { values.clone() };
    let value = spread(values)?;
    Some(Cell { phase, quantity, value, of_baseline, noise: None, within_noise: None, rounds })
}

impl Run<'_> {
    /// Returns the figure of a whole phase. A quantity that samples do not show, such as the size of a helper, comes
    /// from the phase's last row.
    fn figure(&self, phase: Phase, quantity: Quantity) -> Option<f64> {
        let figures = self.phases.iter().find(|figures| figures.phase == Some(phase));
        let of_phase = |row: &&Row| row.phase == phase && row.quantity == quantity;
        let mut rows = self.record.rows.iter().filter(of_phase).filter_map(|row| row.predicted);
        match quantity {
            Quantity::StunUs => figures.map(|f| f.stun_longest_us as f64),
            Quantity::PingsLost => figures.map(|f| f.beats_lost as f64),
            Quantity::Seconds if phase == Phase::Commit => {
                let ended = self.figure(phase, Quantity::Converged) != Some(0.0);
                figures.filter(|_| ended).map(|f| f.lasts_us as f64 / 1e6)
            }
            Quantity::Converged => converged(self.record, phase).map(|ended| f64::from(u8::from(ended))),
            Quantity::Seconds | Quantity::HelperBytes => rows.next_back(),
            sampled => figures?.value(sampled),
        }
    }
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let (lowest, highest) = (*values.first()?, *values.last()?);
    Some(Spread { median: median(&values), lowest, highest })
}

/// Returns the median of sorted values; there is at least one.
pub(super) fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

impl Cell {
    /// Returns the ratio where there is one, otherwise the figure itself.
    pub(crate) fn compared(&self) -> Spread {
        self.of_baseline.unwrap_or(self.value)
    }
}

impl Summary {
    pub fn find(&self, phase: Phase, quantity: Quantity) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.phase == phase && cell.quantity == quantity)
    }

    pub(crate) fn commit(&self) -> CommitResult<'_> {
        match self.find(Phase::Commit, Quantity::Converged) {
            Some(cell) if cell.value.lowest < 1.0 => CommitResult::NotEnded,
            _ => self.find(Phase::Commit, Quantity::Seconds).map_or(CommitResult::None, CommitResult::Ended),
        }
    }

    /// Returns the time until the end of the commit; None without one that ended.
    pub(crate) fn commit_time(&self) -> Option<&Cell> {
        match self.commit() {
            CommitResult::Ended(cell) => Some(cell),
            _ => None,
        }
    }

    /// Returns whether a subject ran twice in each round, so that the noise is known.
    pub(crate) fn has_noise(&self) -> bool {
        self.cells.iter().any(|cell| cell.noise.is_some())
    }

    /// Returns the cell of the phase with the longest stun of all rounds.
    pub(crate) fn longest_stun(&self) -> Option<&Cell> {
        let stuns = self.cells.iter().filter(|cell| cell.quantity == Quantity::StunUs);
        stuns.max_by(|a, b| a.value.highest.total_cmp(&b.value.highest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{summarize, text};
    use crate::run::{Clock, PhaseSpan, Sample};

    fn empty(subject: &str) -> Record {
        Record::head("compare", subject, "", Clock::Real, 0)
    }

    /// Returns a record with one second for each phase.
    fn ran(subject: &str, iops: &[(Phase, u64)]) -> Record {
        const SECOND_US: u64 = 1_000_000;
        let mut record = empty(subject);
        for ((phase, reads), at_us) in iops.iter().zip((0..).step_by(SECOND_US as usize)) {
            record.phases.push(PhaseSpan::new(*phase, String::new(), at_us, at_us + SECOND_US));
            let sample = Sample { at_us, interval_us: SECOND_US, reads: *reads, ..Sample::default() };
            record.samples.push(sample);
            record.rows.push(Row::measured("compare", *phase, Quantity::Iops, *reads as f64));
        }
        record
    }

    #[test]
    fn ratios_are_to_the_baseline_of_the_same_run() {
        let runs = [(100, 90), (10, 5), (1000, 800)];
        let run =
            |(before, with): (u64, u64)| ran("a", &[(Phase::Baseline, before), (Phase::Snapshot, with)]);
        let summaries = summarize(&runs.map(run));
        let cell = summaries[0].find(Phase::Snapshot, Quantity::Iops).unwrap();
        assert_eq!(cell.value, Spread { median: 90.0, lowest: 5.0, highest: 800.0 });
        assert_eq!(cell.of_baseline, Some(Spread { median: 0.8, lowest: 0.5, highest: 0.9 }));
    }

    #[test]
    fn a_run_that_failed_is_reported_and_not_counted() {
        let failed = Record { end: End::Failed("no qemu".into()), ..ran("b", &[(Phase::Baseline, 1)]) };
        let summaries = summarize(&[ran("b", &[(Phase::Baseline, 7)]), failed]);
        assert_eq!((summaries[0].rounds, summaries[0].cells[0].value.median), (1, 7.0));
        assert!(text(&summaries).contains("no qemu"));
    }

    #[test]
    fn one_round_has_no_range_and_few_samples_a_warning() {
        let run = || ran("a", &[(Phase::Baseline, 100), (Phase::Snapshot, 90)]);
        let one = text(&summarize(&[run()]));
        assert!(one.contains(" 90 (0.90)") && one.contains("1 round: no range"), "{one}");
        assert!(one.contains("warning: a, few samples (baseline 1, snapshot 1)"), "{one}");
        let two = text(&summarize(&[run(), run()]));
        assert!(two.contains(" 90 (0.90, 0.90-0.90)") && !two.contains("no range"), "{two}");
    }
}
