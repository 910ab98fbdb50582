//! What TOML cannot say about an experiment: that its parts fit together.

use std::fmt;

use super::{Experiment, Input, Published, Unknown};
use crate::run::Quantity;
use crate::runner::{Action, Step};
use crate::workload::Workload;

/// Disks of one VM: four SCSI controllers of 15, VMware's limit of those years, and room for today's 4 x 64.
const DISKS_MAX: usize = 256;
/// VMware's largest disk.
const DISK_BYTES_MAX: u64 = 62 << 40;
/// Longest step: a month, far more than anybody sat beside.
const SECONDS_MAX: f64 = 31.0 * 86_400.0;
/// Values of one unknown; each is a whole run.
const VALUES_MAX: usize = 16;

/// What is wrong, and in which table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Empty: in the keys that stand alone.
    pub table: &'static str,
    pub index: usize,
    cause: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.table {
            "" => f.write_str(&self.cause),
            table => write!(f, "[[{table}]] number {}: {}", self.index + 1, self.cause),
        }
    }
}

fn found(table: &'static str, index: usize, cause: impl Into<String>) -> Found {
    Found { table, index, cause: cause.into() }
}

/// The first of what is wrong.
pub(super) fn check(experiment: &Experiment) -> Result<(), Found> {
    if experiment.interval_seconds == 0 {
        return Err(found("", 0, "interval_seconds = 0: at least 1"));
    }
    if experiment.scale.as_ref().is_some_and(|scale| scale.size == 0 || scale.time == 0) {
        return Err(found("", 0, "[scale]: size and time are at least 1"));
    }
    check_disks(experiment)?;
    let disk_bytes = experiment.disk_bytes();
    for (index, worker) in experiment.workers.iter().enumerate() {
        let alone = Workload { workers: vec![worker.clone()], ..Workload::default() };
        alone.check(&disk_bytes).map_err(|cause| found("worker", index, cause))?;
    }
    if experiment.steps.is_empty() {
        return Err(found("", 0, "no [[step]]: nothing would be done"));
    }
    each("step", &experiment.steps, check_step)?;
    each("published", &experiment.published, |cell| check_cell(cell, &experiment.steps))?;
    each("unknown", &experiment.unknowns, |unknown| check_unknown(unknown, experiment))
}

fn each<T>(table: &'static str, items: &[T], check: impl Fn(&T) -> Result<(), String>) -> Result<(), Found> {
    items
        .iter()
        .enumerate()
        .try_for_each(|(index, item)| check(item).map_err(|cause| found(table, index, cause)))
}

fn check_disks(experiment: &Experiment) -> Result<(), Found> {
    let count: usize = experiment.disks.iter().map(|disk| disk.times as usize).sum();
    if !(1..=DISKS_MAX).contains(&count) {
        return Err(found("", 0, format!("{count} disks: 1 to {DISKS_MAX} are possible")));
    }
    each("disk", &experiment.disks, |disk| {
        let fits =
            (1..=DISK_BYTES_MAX).contains(&disk.size_bytes) && disk.size_bytes.is_multiple_of(blk::SECTOR);
        let expected = format!("multiples of {} until {DISK_BYTES_MAX}", blk::SECTOR);
        fits.then_some(()).ok_or_else(|| format!("size_bytes = {}: {expected} are possible", disk.size_bytes))
    })
}

fn check_step(step: &Step) -> Result<(), String> {
    let seconds = match &step.action {
        Action::Run { seconds, warm_up_seconds } => vec![*seconds, *warm_up_seconds],
        Action::Idle { seconds } => vec![*seconds],
        Action::Commit { limit_seconds, .. }
        | Action::Drain { limit_seconds }
        | Action::Backup { limit_seconds, .. } => limit_seconds.iter().copied().collect(),
        Action::Prepare { .. } | Action::Take { .. } => Vec::new(),
    };
    match seconds.iter().find(|seconds| !(0.0..=SECONDS_MAX).contains(*seconds)) {
        Some(seconds) => Err(format!("{seconds} seconds: 0 to {SECONDS_MAX} are possible")),
        None => Ok(()),
    }
}

fn check_cell(cell: &Published, steps: &[Step]) -> Result<(), String> {
    let mut of_phase = steps.iter().filter(|step| step.phase == cell.phase).peekable();
    if of_phase.peek().is_none() {
        return Err(format!("phase = {:?}: no [[step]] has it", cell.phase));
    }
    if let Some(span) = &cell.span {
        let labels: Vec<String> = of_phase.map(label).collect();
        if !labels.contains(span) {
            return Err(format!("span = {span:?}: the steps of this phase are {}", labels.join("; ")));
        }
    }
    if cell.stun.is_some() && cell.quantity != Quantity::StunUs {
        return Err("stun: only figures in stun_us are of one stun".into());
    }
    if cell.part.is_some() && cell.quantity != Quantity::Seconds {
        return Err("part: only figures in seconds are of a part".into());
    }
    match cell.value {
        Some(value) if !value.is_finite() => Err(format!("value = {value}: not a number that was measured")),
        _ => Ok(()),
    }
}

/// As the runner names its span.
pub(super) fn label(step: &Step) -> String {
    match step.label.as_str() {
        "" => verb(&step.action).to_string(),
        label => label.to_string(),
    }
}

fn verb(action: &Action) -> &'static str {
    match action {
        Action::Prepare { .. } => "prepare",
        Action::Run { .. } => "run",
        Action::Idle { .. } => "idle",
        Action::Take { .. } => "take",
        Action::Commit { .. } => "commit",
        Action::Drain { .. } => "drain",
        Action::Backup { .. } => "backup",
    }
}

fn check_unknown(unknown: &Unknown, experiment: &Experiment) -> Result<(), String> {
    if !(1..=VALUES_MAX).contains(&unknown.values.len()) {
        return Err(format!("values: 1 to {VALUES_MAX} are possible"));
    }
    let disk_bytes = experiment.disk_bytes();
    for value in &unknown.values {
        let other = experiment.with(unknown.input, *value);
        let workload = Workload { workers: other.workers, ..Workload::default() };
        workload.check(&disk_bytes).map_err(|cause| format!("values: {value}: {cause}"))?;
    }
    let is_loaded = !experiment.workers.is_empty() || unknown.input == Input::SnapshotSeconds;
    is_loaded.then_some(()).ok_or_else(|| "input: there are no workers".to_string())
}
