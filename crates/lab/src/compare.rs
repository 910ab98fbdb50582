//! The same work on several subjects in turns: what a snapshot costs each subject, compared within the same minutes.
//!
//! A machine's speed drifts, so every round runs every subject once and begins with a different one. The results are
//! medians over the rounds, and each subject's ratio to its own baseline in the same round.

mod noise;
mod summary;
mod terminal;

use crate::run::{Phase, Record};
use crate::runner::{Action, Protocol, Step};
use crate::workload::{Worker, Workload};

pub use noise::{again, subject_of};
pub use summary::Summary;
pub(crate) use summary::{CommitResult, Counted};
pub(crate) use terminal::rounds_text;
pub use terminal::text;

/// The snapshot's name in every run.
pub const SNAPSHOT: &str = "compared";
/// Time limit of a commit under load, in phases. After it the load stops and the commit drains.
const COMMIT_PHASES: f64 = 6.0;
/// Least time limit of a commit, seconds: a busy machine delays the commit of a short phase's writes as well.
const SHORTEST_COMMIT_LIMIT_SECONDS: f64 = 30.0;
/// Share of a phase in which connections and caches warm up: a tenth. The load goes on through a take, so that the phase
/// after it has none, and counts the first writes.
const WARM_UP: f64 = 0.1;

/// The work of every subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    pub disk_bytes: u64,
    pub block_bytes: u32,
    pub read_percent: u8,
    pub outstanding: u32,
    /// Seconds of the baseline, of the time with the snapshot, and of the time after the commit.
    pub phase_seconds: f64,
}

impl Default for Work {
    /// Returns the load that design figures assume for virtual machines: 4 KiB, random, 70 percent reads, 32 under way.
    fn default() -> Work {
        Work {
            disk_bytes: 1 << 30,
            block_bytes: 4096,
            read_percent: 70,
            outstanding: 32,
            phase_seconds: 10.0,
        }
    }
}

impl Work {
    pub fn workload(&self) -> Workload {
        let worker = Worker {
            working_set_bytes: self.disk_bytes,
            ..Worker::aligned("load", self.block_bytes, self.read_percent, self.outstanding)
        };
        Workload { workers: vec![worker], ..Workload::default() }
    }

    pub fn protocol(&self) -> Protocol {
        let step = |phase, label: &str, action| Step { label: label.into(), ..Step::new(phase, action) };
        let seconds = self.phase_seconds;
        let commit_limit = (seconds * COMMIT_PHASES).max(SHORTEST_COMMIT_LIMIT_SECONDS);
        let run = |phase, label, warm_up| {
            step(phase, label, Action::Run { seconds, warm_up_seconds: seconds * warm_up })
        };
        Protocol::new(vec![
            // This is not part of the comparison.
            step(Phase::Prepare, "fill", Action::FILL),
            run(Phase::Baseline, "without a snapshot", WARM_UP),
            step(Phase::Snapshot, "take", Action::take(SNAPSHOT)),
            run(Phase::Snapshot, "with a snapshot", 0.0),
            step(Phase::Commit, "commit", Action::commit(SNAPSHOT, commit_limit)),
            step(Phase::Drain, "drain", Action::Drain { limit_seconds: Some(600.0) }),
            run(Phase::After, "after", WARM_UP),
        ])
    }
}

/// Runs every subject in every round. `run` receives a subject's name and the round, from 0. Returns all records in the
/// order of their runs; stops early when `continues` returns false.
pub fn alternate(
    subjects: &[String],
    rounds: u32,
    mut run: impl FnMut(&str, u32) -> Record,
    mut continues: impl FnMut() -> bool,
) -> Vec<Record> {
    let mut records = Vec::new();
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            if !continues() {
                return records;
            }
            let subject = &subjects[(turn + round as usize) % subjects.len()];
            records.push(run(subject, round));
        }
    }
    records
}

/// Summarizes records by subject.
pub fn summarize(records: &[Record]) -> Vec<Summary> {
    let records: Vec<&Record> = records.iter().collect();
    summarize_by(&records, Counted::Complete, |record| record.subject.clone())
}

/// Summarizes records by name, in the order of each one's first run, with the noise where a subject ran twice.
pub(crate) fn summarize_by(
    records: &[&Record],
    counted: Counted,
    name: impl Fn(&Record) -> String,
) -> Vec<Summary> {
    let mut summaries = summary::by_name(records, counted, name);
    noise::add(&mut summaries);
    summaries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Clock;

    fn empty(subject: &str) -> Record {
        Record::head("compare", subject, "", Clock::Real, 0)
    }

    #[test]
    fn every_subject_begins_a_round_in_its_turn() {
        let subjects = ["a".to_string(), "b".into(), "c".into()];
        let mut order = String::new();
        let record = |subject: &str, _: u32| {
            order.push_str(subject);
            empty(subject)
        };
        assert_eq!(alternate(&subjects, 3, record, || true).len(), 9);
        assert_eq!(order, "abcbcacab");
    }

    #[test]
    fn an_interruption_keeps_what_was_run() {
        let mut left = 2;
        let continues = || {
            left -= 1;
            left >= 0
        };
        let subjects = ["a".to_string(), "b".into()];
        assert_eq!(alternate(&subjects, 9, |subject, _| empty(subject), continues).len(), 2);
    }

    #[test]
    fn the_work_fits_its_disk() {
        let work = Work::default();
        work.workload().check(&[work.disk_bytes]).unwrap();
    }
}
