use std::fmt::Write;

use serde::Serialize;

use crate::figures::{Figures, phases};
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
}

/// The results of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub subject: String,
    /// Number of runs that completed.
    pub rounds: u32,
    pub cells: Vec<Cell>,
    /// The reasons of the runs that did not complete.
    pub failures: Vec<String>,
}

/// Summarizes records by subject, in the order of each one's first run.
pub fn summarize(records: &[Record]) -> Vec<Summary> {
    let mut names: Vec<&str> = Vec::new();
    for record in records {
        if !names.contains(&record.subject.as_str()) {
            names.push(&record.subject);
        }
    }
    let of = |name: &str| records.iter().filter(|record| record.subject == name).collect::<Vec<_>>();
    names.into_iter().map(|name| summary(name, &of(name))).collect()
}

fn summary(subject: &str, records: &[&Record]) -> Summary {
    let complete: Vec<_> = records.iter().copied().filter(|record| record.end == End::Complete).collect();
    let failures = records.iter().filter_map(|record| match &record.end {
        End::Complete => None,
        End::Interrupted => Some("interrupted".to_string()),
        End::Failed(why) => Some(why.clone()),
    });
    let mut kinds: Vec<(Phase, Quantity)> = Vec::new();
    for row in complete.iter().flat_map(|record| &record.rows) {
        if !kinds.contains(&(row.phase, row.quantity)) {
            kinds.push((row.phase, row.quantity));
        }
    }
    kinds.sort();
    let runs: Vec<Run<'_>> = complete.iter().map(|record| Run { record, phases: phases(record) }).collect();
    let cells = kinds.into_iter().filter_map(|(phase, quantity)| cell(&runs, phase, quantity)).collect();
    Summary { subject: subject.into(), rounds: complete.len() as u32, cells, failures: failures.collect() }
}

/// A run, and the figures of its phases.
struct Run<'a> {
    record: &'a Record,
    phases: Vec<Figures>,
}

fn cell(runs: &[Run<'_>], phase: Phase, quantity: Quantity) -> Option<Cell> {
    let values = runs.iter().filter_map(|run| run.figure(phase, quantity));
    let ratios = runs.iter().filter_map(|run| {
        let before = run.figure(Phase::Baseline, quantity).filter(|before| *before > 0.0)?;
        Some(run.figure(phase, quantity)? / before)
    });
    let of_baseline = if phase == Phase::Baseline { None } else { spread(ratios.collect()) };
    Some(Cell { phase, quantity, value: spread(values.collect())?, of_baseline })
}

impl Run<'_> {
    /// Returns the figure of a whole phase. A quantity that samples do not show, such as the duration of an operation,
    /// comes from the phase's last row.
    fn figure(&self, phase: Phase, quantity: Quantity) -> Option<f64> {
        let figures = self.phases.iter().find(|figures| figures.phase == Some(phase));
        match quantity {
            Quantity::StunUs => figures.map(|f| f.stun_longest_us as f64),
            Quantity::PingsLost => figures.map(|f| f.beats_lost as f64),
            Quantity::Seconds | Quantity::Converged | Quantity::HelperBytes => {
                let of_phase = |row: &&Row| row.phase == phase && row.quantity == quantity;
                self.record.rows.iter().rev().filter(of_phase).find_map(|row| row.predicted)
            }
            sampled => figures?.value(sampled),
        }
    }
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let (lowest, highest) = (*values.first()?, *values.last()?);
    Some(Spread { median: median(&values), lowest, highest })
}

/// Returns the median of sorted values, of which there is at least one.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// Returns a table for a terminal: a line per subject, with the IOPS of each phase and the ratio to the subject's own
/// baseline.
pub fn text(summaries: &[Summary]) -> String {
    let phases = [Phase::Baseline, Phase::Snapshot, Phase::Commit, Phase::After];
    let mut out = format!("{:<16}", "subject");
    for head in ["IOPS before", "with snapshot", "committing", "after", "commit s", "worst stun us"] {
        let _ = write!(out, " {head:>20}");
    }
    out.push('\n');
    for summary in summaries {
        let _ = write!(out, "{:<16}", summary.subject);
        for phase in phases {
            let _ = write!(out, " {:>20}", rate(summary, phase));
        }
        let _ = write!(out, " {:>20}", commit(summary));
        let stun = [Phase::PrepareSnapshot, Phase::Snapshot, Phase::Commit]
            .map(|phase| summary.find(phase, Quantity::StunUs));
        let stun = stun.into_iter().flatten().map(|cell| cell.value.highest).reduce(f64::max);
        let _ = writeln!(out, " {:>20}", stun.map_or("-".into(), |us| format!("{us:.0}")));
        for failure in &summary.failures {
            let _ = writeln!(out, "  a run failed: {failure}");
        }
    }
    out
}

fn rate(summary: &Summary, phase: Phase) -> String {
    let Some(cell) = summary.find(phase, Quantity::Iops) else { return "-".into() };
    match cell.of_baseline {
        None => format!("{:.0}", cell.value.median),
        Some(ratio) => format!(
            "{:.0} ({:.2}, {:.2}-{:.2})",
            cell.value.median, ratio.median, ratio.lowest, ratio.highest
        ),
    }
}

fn commit(summary: &Summary) -> String {
    match summary.find(Phase::Commit, Quantity::Converged) {
        Some(cell) if cell.value.lowest < 1.0 => "not converged".into(),
        _ => summary
            .find(Phase::Commit, Quantity::Seconds)
            .map_or("-".into(), |cell| format!("{:.2}", cell.value.median)),
    }
}

impl Summary {
    pub fn find(&self, phase: Phase, quantity: Quantity) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.phase == phase && cell.quantity == quantity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
