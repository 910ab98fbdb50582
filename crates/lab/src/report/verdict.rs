//! The verdict: what a snapshot cost, in four numbers and one sentence. Its figures are those of `lab compare`.

use super::side_by_side::{Column, columns};
use super::words;
use crate::compare::{CommitResult, Counted, Summary, summarize_by};
use crate::figures::{Figures, phases};
use crate::run::{Phase, Quantity, Record};

/// The verdict on the runs with one label.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub label: String,
    pub sentence: String,
    /// False for a measurement without phases, whose numbers are not those of a snapshot.
    pub has_phases: bool,
    pub numbers: [Number; 4],
    /// Guest IOPS of the baseline.
    pub before: String,
    /// Limits of the figures: few samples, failed runs.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Number {
    pub name: &'static str,
    pub value: String,
    /// What the number consists of, or why there is none.
    pub small: String,
    /// The difference to the subject that ran twice is noise.
    pub is_noise: bool,
}

/// Returns the verdicts, one per label, in the order of each label's first run.
pub(super) fn verdicts(records: &[&Record]) -> Vec<Verdict> {
    let summaries = summarize_by(records, Counted::Any, words::label);
    let all = columns(records);
    all.iter().zip(&summaries).map(|(column, summary)| Part { column, summary }.verdict()).collect()
}

/// Returns the verdict on one run, and what limits its figures, as lines of a terminal.
pub(super) fn text(record: &Record) -> Vec<String> {
    let of_run = verdicts(&[record]).into_iter().flat_map(|verdict| {
        let warnings = verdict.warnings.into_iter().map(|warning| format!("warning: {warning}"));
        std::iter::once(verdict.sentence).chain(warnings)
    });
    words::scaling(record).into_iter().chain(of_run).collect()
}

/// Returns the noise of the IOPS before the snapshot and of each number, where a subject ran twice: "3 %".
pub(super) fn noise(records: &[&Record]) -> Option<[String; 5]> {
    let summaries = summarize_by(records, Counted::Any, words::label);
    let first = summaries.iter().find(|summary| summary.has_noise())?;
    let [before, with, committing] =
        [Phase::Baseline, Phase::Snapshot, Phase::Commit].map(|phase| first.find(phase, Quantity::Iops));
    let cells = [before, with, committing, first.longest_stun(), first.commit_time()];
    Some(cells.map(|cell| words::or_dash(cell.and_then(|cell| cell.noise), words::share)))
}

/// The runs with one label, and their figures.
struct Part<'a> {
    column: &'a Column<'a>,
    summary: &'a Summary,
}

impl Part<'_> {
    fn verdict(&self) -> Verdict {
        let before = self.summary.find(Phase::Baseline, Quantity::Iops).map(|cell| cell.value.median);
        let has_phases = self.column.records.iter().any(|record| !record.phases.is_empty());
        let (numbers, sentence) =
            if has_phases { (self.of_snapshot(), self.sentence()) } else { self.of_measurement() };
        let failed = self.summary.failures.iter().filter(|_| self.summary.rounds > 0);
        let failed =
            failed.map(|why| format!("a run is not counted, because it did not end by itself: {why}"));
        Verdict {
            label: self.column.label.clone(),
            sentence,
            has_phases,
            numbers,
            before: words::or_dash(before.filter(|iops| *iops > 0.0), words::number),
            warnings: self.summary.warnings.iter().cloned().chain(failed).collect(),
        }
    }

    fn of_snapshot(&self) -> [Number; 4] {
        [
            self.rate("guest I/O kept with a snapshot", Phase::Snapshot),
            self.rate("guest I/O kept while it is committed", Phase::Commit),
            self.stun(),
            self.commit(),
        ]
    }

    /// Returns the share of the baseline's IOPS, with both rates.
    fn rate(&self, name: &'static str, phase: Phase) -> Number {
        let iops = |phase| self.summary.find(phase, Quantity::Iops).filter(|cell| cell.value.median > 0.0);
        let (before, now) = (iops(Phase::Baseline), iops(phase));
        let (value, small) = match (before, now.and_then(|cell| Some((cell, cell.of_baseline?)))) {
            (Some(before), Some((now, ratio))) => {
                let rates = format!(
                    "{} of {} IOPS",
                    words::number(now.value.median),
                    words::number(before.value.median)
                );
                let range = format!("{} to {}; ", words::share(ratio.lowest), words::share(ratio.highest));
                let range = if self.summary.rounds > 1 { range } else { String::new() };
                (words::share(ratio.median), range + &rates)
            }
            (None, _) => ("-".into(), "no load before the snapshot".into()),
            (Some(_), None) => ("-".into(), self.why_no_rate(phase).into()),
        };
        Number { name, value, small, is_noise: now.and_then(|cell| cell.within_noise) == Some(true) }
    }

    fn why_no_rate(&self, phase: Phase) -> &'static str {
        let ran = self.phases().iter().flatten().any(|f| f.phase == Some(phase));
        if ran { "no load, or too short for a sample" } else { "not part of this run" }
    }

    fn phases(&self) -> Vec<Vec<Figures>> {
        self.column.records.iter().map(|record| phases(record)).collect()
    }

    fn stun(&self) -> Number {
        let stuns = || self.column.records.iter().flat_map(|record| &record.stuns);
        let total_us = stuns().fold(0, |sum: u64, stun| sum.saturating_add(stun.stun_us));
        let (value, small) = match (stuns().map(|stun| stun.stun_us).max(), stuns().count()) {
            (None, _) => ("none".into(), self.gap()),
            (Some(longest_us), 1) => (words::time(longest_us as f64), "the only one".into()),
            (Some(longest_us), count) => {
                let total = words::time(total_us as f64);
                (words::time(longest_us as f64), format!("of {count}, together {total}"))
            }
        };
        let is_noise = self.summary.longest_stun().and_then(|cell| cell.within_noise) == Some(true);
        Number { name: "longest stun", value, small, is_noise }
    }

    fn gap(&self) -> String {
        let samples = self.column.records.iter().flat_map(|record| &record.samples);
        let gap_us = samples.map(|sample| sample.gap_us).max().filter(|us| *us > 0);
        let text = gap_us.map(|us| format!("longest time without a completion: {}", words::time(us as f64)));
        text.unwrap_or_else(|| "none was recorded".into())
    }

    fn commit(&self) -> Number {
        let (value, small, is_noise) = match self.summary.commit() {
            CommitResult::None => ("-".into(), "not part of this run".into(), false),
            CommitResult::NotEnded => ("no end".into(), self.endless(), false),
            CommitResult::Ended(cell) => {
                let of = cell.value;
                let (low, high) = (words::time(of.lowest * 1e6), words::time(of.highest * 1e6));
                let small = if self.summary.rounds > 1 { format!("{low} to {high}") } else { "ended".into() };
                (words::time(of.median * 1e6), small, cell.within_noise == Some(true))
            }
        };
        Number { name: "time of the commit", value, small, is_noise }
    }

    /// Returns how long a commit went on that did not end under its load, and what became of it without load.
    fn endless(&self) -> String {
        let lasted = |phase| {
            let of_phase = |figures: &Vec<Figures>| figures.iter().find(|f| f.phase == Some(phase)).cloned();
            self.phases().iter().filter_map(of_phase).map(|f| f.lasts_us as f64).reduce(f64::max)
        };
        let under_load =
            lasted(Phase::Commit).map_or_else(String::new, |us| format!(" within {}", words::time(us)));
        let drained =
            self.summary.find(Phase::Drain, Quantity::Converged).map(|cell| cell.value.lowest >= 1.0);
        let drain = match (drained, lasted(Phase::Drain).map(words::time)) {
            (Some(true), Some(time)) => format!("; without load it ended after {time}"),
            (Some(false), Some(time)) => format!("; without load neither, within {time}"),
            _ => String::new(),
        };
        format!("not{under_load}{drain}")
    }

    fn sentence(&self) -> String {
        let [with, committing, stun, commit] = self.of_snapshot();
        let kept = match (with.value.as_str(), committing.value.as_str()) {
            ("-", "-") => "No rate of the guest is compared".into(),
            (with, "-") => format!("With a snapshot the guest kept {with} of its I/O rate"),
            ("-", committing) => {
                format!("While the snapshot was committed the guest kept {committing} of its I/O rate")
            }
            (with, committing) => format!(
                "With a snapshot the guest kept {with} of its I/O rate, and {committing} while it was committed"
            ),
        };
        let commit = match self.summary.commit() {
            CommitResult::None => "no commit was part of the run".into(),
            CommitResult::NotEnded => {
                format!("the commit did {}", self.endless()).replacen("not", "not end", 1)
            }
            CommitResult::Ended(_) => format!("the commit took {}", commit.value),
        };
        let stun = match stun.value.as_str() {
            "none" => "no stun was recorded".into(),
            time => format!("the longest stun was {time}"),
        };
        format!("{kept}; {commit}; {stun}.")
    }

    /// Returns the numbers of a measurement without phases, such as an import.
    fn of_measurement(&self) -> ([Number; 4], String) {
        let all = self.phases().into_iter().flatten().next().unwrap_or_default();
        let records = &self.column.records;
        let lost = records.iter().flat_map(|record| &record.beats).filter(|beat| beat.lost).count();
        let beats: usize = records.iter().map(|record| record.beats.len()).sum();
        let number = |name, value, small: &str| Number { name, value, small: small.into(), is_noise: false };
        let heartbeats = if beats == 0 { "-".into() } else { format!("{lost} of {beats}") };
        let latency = all.p99_us.map(|us| (us, "99 %, median of the intervals"));
        let (latency, small) = latency.or(all.mean_us.map(|us| (us, "mean"))).unzip();
        let numbers = [
            number(
                "guest IOPS",
                words::or_dash(all.iops().filter(|iops| *iops > 0.0), words::number),
                "mean",
            ),
            number("latency", words::or_dash(latency, words::time), small.unwrap_or("not measured")),
            self.stun(),
            number("heartbeats lost", heartbeats, if beats == 0 { "none was sent" } else { "" }),
        ];
        let sentence = "This measurement has no marked phases, so it has no figures before and with a snapshot to compare.";
        (numbers, sentence.into())
    }
}
