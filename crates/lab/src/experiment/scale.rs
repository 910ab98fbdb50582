//! The experiment as it is simulated: smaller where a run in full size would take too long.

use super::Experiment;
use crate::run::Phase;
use crate::runner::{Action, Protocol, Step};
use crate::workload::Workload;

/// Microseconds in a second.
const SECOND_US: u64 = 1_000_000;

impl Experiment {
    /// Returns the disk sizes that are simulated, bytes.
    pub fn scaled_disk_bytes(&self) -> Vec<u64> {
        self.disk_bytes().into_iter().map(|bytes| scaled_bytes(bytes, self.size_divisor())).collect()
    }

    pub fn size_divisor(&self) -> u64 {
        self.scale.as_ref().map_or(1, |scale| u64::from(scale.size))
    }

    pub fn time_divisor(&self) -> u32 {
        self.scale.as_ref().map_or(1, |scale| scale.time)
    }

    pub fn workload(&self) -> Workload {
        let divisor = self.size_divisor();
        let mut workers = self.workers.clone();
        for worker in &mut workers {
            worker.first_byte = scaled_bytes(worker.first_byte, divisor);
            worker.working_set_bytes = scaled_bytes(worker.working_set_bytes, divisor);
        }
        Workload { workers, repeating: true, ..Workload::default() }
    }

    pub fn protocol(&self) -> Protocol {
        let divisor = f64::from(self.time_divisor());
        let steps = self.steps.iter().map(|step| shorter(step, divisor)).collect();
        // Samples are at least a tenth of a second long, so that each has enough I/Os.
        let interval_us = (u64::from(self.interval_seconds) * SECOND_US / u64::from(self.time_divisor()))
            .max(SECOND_US / 10);
        Protocol { interval_us, heartbeat: self.heartbeat, steps }
    }
}

/// Divides a size and rounds it up to whole MiB, so that a smaller disk still has whole tables. A size below 1 MiB
/// stays.
pub(super) fn scaled_bytes(bytes: u64, divisor: u64) -> u64 {
    match divisor {
        1 => bytes,
        _ if bytes < 1 << 20 => bytes,
        _ => (bytes / divisor).next_multiple_of(1 << 20),
    }
}

pub(super) fn shorter(step: &Step, divisor: f64) -> Step {
    let mut step = step.clone();
    for seconds in durations(&mut step.action) {
        *seconds /= divisor;
    }
    step
}

/// Returns all times of an action, seconds.
fn durations(action: &mut Action) -> Vec<&mut f64> {
    match action {
        Action::Run { seconds, warm_up_seconds } => vec![seconds, warm_up_seconds],
        Action::Idle { seconds } => vec![seconds],
        Action::Commit { limit_seconds, .. }
        | Action::Drain { limit_seconds }
        | Action::Backup { limit_seconds, .. } => limit_seconds.iter_mut().collect(),
        Action::Prepare { .. } | Action::Take { .. } => Vec::new(),
    }
}

/// Sets the value of [`Input::SnapshotSeconds`].
pub(super) fn set_snapshot_seconds(steps: &mut [Step], value: u64) {
    for step in steps.iter_mut().filter(|step| step.phase == Phase::Snapshot) {
        if let Action::Run { seconds, .. } | Action::Idle { seconds } = &mut step.action {
            *seconds = value as f64;
        }
    }
}
