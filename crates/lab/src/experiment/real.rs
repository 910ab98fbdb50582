//! The experiment as it runs on real storage: cut down to the time and the space that are available.
//!
//! Depths, mixes, block sizes and paces keep their values. Notes list the changes, one sentence each.

use std::ops::Range;

use super::Experiment;
use super::scale::{scaled_bytes, shorter};
use crate::runner::{Action, Protocol, Step};
use crate::workload::{Worker, Workload};

/// Part of the free space that the data may take: it is held three times (fill, snapshot, helper), and as much stays
/// free.
const SPACE_DIVISOR: u64 = 4;
/// Rate of one sequential writer that the fills are planned with, bytes a second; relevant storage reaches it.
const FILL_BYTES_PER_S: f64 = 64.0 * 1024.0 * 1024.0;
/// Share of the time that preparations may take in addition: a quarter.
const FILL_SHARE: f64 = 0.25;
/// Samples of a run: a minute has as many as ten minutes of one second each.
const SAMPLES: f64 = 600.0;
const INTERVAL_US_MAX: f64 = 1e6;
const INTERVAL_US_MIN: f64 = 1e5;

/// Time and space that are available for a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Seconds for all steps with a duration of their own.
    pub seconds: f64,
    pub space: Space,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Space {
    /// Bytes free where the disks will be made.
    Free(u64),
    /// Existing disks of the user, bytes of each.
    Disks(Vec<u64>),
}

/// An experiment scaled for real storage.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    /// Size of each disk, bytes.
    pub disk_bytes: Vec<u64>,
    pub workload: Workload,
    pub protocol: Protocol,
    pub notes: Vec<String>,
}

impl Experiment {
    /// Returns the article's sizes and durations, divided where `limits` do not suffice.
    pub fn scaled_to(&self, limits: &Limits) -> Scaled {
        let longer = (self.planned_seconds() / limits.seconds).max(1.0);
        let larger = self.size_excess(limits);
        let disk_bytes: Vec<u64> =
            self.disk_bytes().into_iter().map(|bytes| scaled_bytes(bytes, larger)).collect();
        let workers = self.workers.iter().map(|worker| smaller(worker, larger, &disk_bytes)).collect();
        let interval_us = (limits.seconds * 1e6 / SAMPLES).clamp(INTERVAL_US_MIN, INTERVAL_US_MAX) as u64;
        let steps = self.steps.iter().map(|step| bounded(shorter(step, longer), limits.seconds)).collect();
        Scaled {
            notes: self.scaling_notes(longer, larger, limits),
            disk_bytes,
            workload: Workload { workers, ..Workload::default() },
            protocol: Protocol { interval_us, heartbeat: None, steps },
        }
    }

    /// Returns the sum over all steps that have a duration or a limit. A drain has a time of its own after the commit's
    /// limit, and is left out.
    fn planned_seconds(&self) -> f64 {
        let timed = self.steps.iter().filter(|step| !matches!(step.action, Action::Drain { .. }));
        timed.map(|step| seconds_of(&step.action)).sum()
    }

    /// Returns the divisor of all sizes.
    fn size_excess(&self, limits: &Limits) -> u64 {
        let worked: u64 = self.worked_bytes().iter().map(|range| range.end - range.start).sum();
        let fills = self.steps.iter().filter(|step| matches!(step.action, Action::Prepare { .. })).count();
        let in_time = limits.seconds * FILL_SHARE * FILL_BYTES_PER_S / fills.max(1) as f64;
        let in_space = match &limits.space {
            Space::Free(bytes) => divisor(worked, bytes / SPACE_DIVISOR),
            Space::Disks(disks) => {
                let pairs = self.disk_bytes().into_iter().zip(disks);
                pairs.map(|(wanted, there)| divisor(wanted, *there)).max().unwrap_or(1)
            }
        };
        in_space.max(divisor(worked, in_time as u64))
    }

    /// Returns, for each disk with workers, the range from the first to the last byte that they access.
    fn worked_bytes(&self) -> Vec<Range<u64>> {
        let sizes = self.disk_bytes();
        let of_disk = |number: usize| {
            let workers = self.workers.iter().filter(|worker| worker.disk as usize == number);
            let ranges = workers.map(|worker| worker.range(sizes[number]));
            ranges.reduce(|all, range| all.start.min(range.start)..all.end.max(range.end))
        };
        (0..sizes.len()).filter_map(of_disk).collect()
    }

    fn scaling_notes(&self, longer: f64, larger: u64, limits: &Limits) -> Vec<String> {
        let mut notes = Vec::new();
        if longer > 1.0 {
            notes.push(format!(
                "Scaled: the protocol's {:.0} s to {:.0} s, each duration and limit divided by {longer:.2}.",
                self.planned_seconds(),
                limits.seconds
            ));
        }
        if larger > 1 {
            let space = match &limits.space {
                Space::Free(bytes) => format!("{} MiB free", bytes >> 20),
                Space::Disks(disks) => format!("disks of {} MiB", disks.iter().sum::<u64>() >> 20),
            };
            notes.push(format!(
                "Scaled: disks, and what is worked on of them, divided by {larger}, for {space} and for fills that \
                 are to take {:.1} s.",
                limits.seconds * FILL_SHARE
            ));
        }
        if self.esx.linked_clone {
            notes.push("The article's disks were linked clones; these are not.".into());
        }
        if self.esx.delta_storage.is_some() {
            notes
                .push("The article's deltas had a LUN of their own; here everything is in one place.".into());
        }
        if self.heartbeat.is_some() {
            notes.push(
                "The article pinged the VM; here the first disk is read once a second, and lost is what took longer.".into(),
            );
        }
        notes
    }
}

/// Returns the smallest whole number by which `wanted` must be divided to be at most `possible`.
fn divisor(wanted: u64, possible: u64) -> u64 {
    wanted.div_ceil(possible.max(1)).max(1)
}

fn seconds_of(action: &Action) -> f64 {
    match action {
        Action::Run { seconds, .. } | Action::Idle { seconds } => *seconds,
        Action::Commit { limit_seconds, .. } | Action::Backup { limit_seconds, .. } => {
            limit_seconds.unwrap_or(0.0)
        }
        Action::Drain { limit_seconds } => limit_seconds.unwrap_or(0.0),
        Action::Prepare { .. } | Action::Take { .. } => 0.0,
    }
}

/// Gives a limit to a step without one, because real stacks may hang.
fn bounded(mut step: Step, seconds: f64) -> Step {
    if let Action::Commit { limit_seconds, .. }
    | Action::Drain { limit_seconds }
    | Action::Backup { limit_seconds, .. } = &mut step.action
    {
        limit_seconds.get_or_insert(seconds);
    }
    step
}

/// Scales a worker. A part that extends to the end of the disk gets an explicit length, because the user's disk may be
/// larger.
fn smaller(worker: &Worker, larger: u64, disk_bytes: &[u64]) -> Worker {
    let first_byte = scaled_bytes(worker.first_byte, larger);
    let left_bytes = disk_bytes[worker.disk as usize].saturating_sub(first_byte);
    let working_set_bytes = match worker.working_set_bytes {
        0 => left_bytes,
        bytes => scaled_bytes(bytes, larger).min(left_bytes),
    };
    Worker { first_byte, working_set_bytes, ..worker.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{find, shipped};

    const GIB: u64 = 1 << 30;

    fn limits(seconds: f64, free: u64) -> Limits {
        Limits { seconds, space: Space::Free(free) }
    }

    #[test]
    fn every_experiment_that_ships_fits_a_little_time_and_room() {
        for experiment in shipped().unwrap() {
            let scaled = experiment.scaled_to(&limits(6.0, GIB));
            scaled.workload.check(&scaled.disk_bytes).unwrap_or_else(|e| panic!("{}: {e}", experiment.name));
            scaled.protocol.check().unwrap_or_else(|e| panic!("{}: {e}", experiment.name));
            let timed = |step: &&Step| !matches!(step.action, Action::Drain { .. });
            let seconds: f64 =
                scaled.protocol.steps.iter().filter(timed).map(|step| seconds_of(&step.action)).sum();
            // A limit that is not in the article is set to the whole time.
            assert!(seconds <= 12.01, "{}: {seconds} s", experiment.name);
        }
    }

    #[test]
    fn what_fits_stays_as_it_was_published() {
        let experiment = find("zandboer-saturated").unwrap();
        let scaled = experiment.scaled_to(&limits(3600.0, 100 * GIB));
        assert_eq!(scaled.notes, Vec::<String>::new());
        assert_eq!(
            (scaled.disk_bytes.as_slice(), &scaled.protocol.steps),
            (&[4 * GIB][..], &experiment.steps)
        );
        assert_eq!(scaled.workload.workers[0].working_set_bytes, 1_024_000_000);
    }

    #[test]
    fn what_was_divided_is_noted() {
        // The steps have 1,480 s of runs and limits; 976.6 MiB are filled twice.
        let scaled = find("zandboer-saturated").unwrap().scaled_to(&limits(148.0, GIB));
        assert!(scaled.notes[0].contains("divided by 10.00"), "{:?}", scaled.notes);
        assert!(scaled.notes[1].contains("divided by 4"), "{:?}", scaled.notes);
        assert_eq!(scaled.disk_bytes, [GIB]);
        let Action::Run { seconds, .. } = scaled.protocol.steps[1].action else { panic!("the baseline") };
        assert_eq!(seconds, 20.0);
    }

    #[test]
    fn the_disks_of_a_user_are_not_overrun_nor_worked_on_beyond_the_experiment() {
        let experiment = find("backup-window").unwrap();
        for (there, worked) in [(GIB, GIB), (3 * GIB / 2, GIB), (64 * GIB, 2 * GIB)] {
            let limits = Limits { seconds: 3600.0, space: Space::Disks(vec![there]) };
            let scaled = experiment.scaled_to(&limits);
            assert_eq!(scaled.workload.workers[0].working_set_bytes, worked);
            scaled.workload.check(&[there]).unwrap();
        }
    }
}
