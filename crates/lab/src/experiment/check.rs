//! Checks what TOML syntax cannot express: that the parts of an experiment fit together.

use std::fmt;

use super::{Esx, Experiment, Fit, Format, Input, Published, Unknown};
use crate::run::{Quantity, Use};
use crate::runner::{Protocol, Step};
use crate::vmware::rules::JOURNAL_RECORD_SECTORS;
use crate::vmware::spec::MARKS_MAX;
use crate::workload::{OUTSTANDING_MAX, Workload};

/// Most disks of one VM: more than the four SCSI controllers of 15 that VMware had then, and enough for today's 4 x 64.
const DISKS_MAX: usize = 256;
/// VMware's largest disk.
const DISK_BYTES_MAX: u64 = 62 << 40;
/// Caches of L2 tables: at least some tables of the largest clusters, at most the tables of a disk of 8 TiB.
const L2_CACHE_BYTES: std::ops::RangeInclusive<u64> = 8 << 20..=1 << 30;
/// Longest time of a request on its way to another stack: a second.
const REQUEST_US_MAX: f64 = 1_000_000.0;
/// Most values of one unknown; each costs a whole run.
const VALUES_MAX: usize = 16;

/// An error and the table that contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Empty: the error is in the keys outside of tables.
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

/// Returns the first error.
pub(super) fn check(experiment: &Experiment) -> Result<(), Found> {
    if experiment.interval_seconds == 0 {
        return Err(found("", 0, "interval_seconds = 0: at least 1"));
    }
    if experiment.scale.as_ref().is_some_and(|scale| scale.size == 0 || scale.time == 0) {
        return Err(found("", 0, "[scale]: size and time are at least 1"));
    }
    check_esx(&experiment.esx).map_err(|cause| found("", 0, cause))?;
    check_peer(experiment)?;
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
    each("published", &experiment.published, |cell| check_use(cell, experiment))?;
    check_input(experiment).map_err(|cause| found("", 0, cause))?;
    each("unknown", &experiment.unknowns, |unknown| check_unknown(unknown, experiment))?;
    each("fit", &experiment.fits, |fit| check_fit(fit, experiment))
}

fn each<T>(table: &'static str, items: &[T], check: impl Fn(&T) -> Result<(), String>) -> Result<(), Found> {
    items
        .iter()
        .enumerate()
        .try_for_each(|(index, item)| check(item).map_err(|cause| found(table, index, cause)))
}

fn check_esx(esx: &Esx) -> Result<(), String> {
    let counts = [
        ("committer_outstanding", esx.committer_outstanding, 1..=OUTSTANDING_MAX),
        ("block_marks", esx.block_marks, 0..=MARKS_MAX),
        ("journal_writes", esx.journal_writes, 1..=JOURNAL_RECORD_SECTORS),
    ];
    let wrong = counts.into_iter().find(|(_, count, possible)| !possible.contains(count));
    wrong.map_or(Ok(()), |(name, _, possible)| {
        Err(format!("[esx]: {name}: {} to {} are possible", possible.start(), possible.end()))
    })
}

fn check_peer(experiment: &Experiment) -> Result<(), Found> {
    let request_us = experiment.peer.as_ref().map_or(0.0, |peer| peer.request_us);
    if !(0.0..=REQUEST_US_MAX).contains(&request_us) {
        return Err(found("", 0, format!("[peer]: request_us: 0 to {REQUEST_US_MAX} are possible")));
    }
    let l2_cache_bytes = experiment.peer.as_ref().and_then(|peer| peer.l2_cache_bytes);
    if l2_cache_bytes.is_some_and(|bytes| !L2_CACHE_BYTES.contains(&bytes)) {
        let (low, high) = (L2_CACHE_BYTES.start(), L2_CACHE_BYTES.end());
        return Err(found("", 0, format!("[peer]: l2_cache_bytes: {low} to {high} are possible")));
    }
    let units = experiment.peer.as_ref().and_then(|peer| peer.kind.units());
    each("published", &experiment.published, |cell| match (cell.unit_bytes, &units) {
        (None, _) => Ok(()),
        (Some(bytes), Some(units)) if units.contains(&bytes) && bytes.is_power_of_two() => Ok(()),
        (Some(bytes), Some(units)) => Err(format!(
            "unit_bytes = {bytes}: powers of two from {} to {} are possible",
            units.start(),
            units.end()
        )),
        (Some(_), None) => Err("unit_bytes: only [peer] with a kind of qcow2 or lvm has a unit".into()),
    })
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
    Protocol::new(vec![step.clone()]).check()
}

fn check_cell(cell: &Published, steps: &[Step]) -> Result<(), String> {
    let mut of_phase = steps.iter().filter(|step| step.phase == cell.phase).peekable();
    if of_phase.peek().is_none() {
        return Err(format!("phase = {:?}: no [[step]] has it", cell.phase));
    }
    if let Some(span) = &cell.span {
        let labels: Vec<&str> = of_phase.map(Step::title).collect();
        if !labels.contains(&span.as_str()) {
            return Err(format!("span = {span:?}: the steps of this phase are {}", labels.join("; ")));
        }
    }
    if cell.stun.is_some() && cell.quantity != Quantity::StunUs {
        return Err("stun: only figures in stun_us are of one stun".into());
    }
    if cell.bound.is_some() && cell.value.is_none() {
        return Err("bound: a bound needs a value".into());
    }
    if cell.part.is_some() && cell.quantity != Quantity::Seconds {
        return Err("part: only figures in seconds are of a part".into());
    }
    match cell.value {
        Some(value) if !value.is_finite() => Err(format!("value = {value}: not a number that was measured")),
        _ => Ok(()),
    }
}

/// Refuses `use = "predict"` for a figure that any model would produce, and `use = "input"` for one that the model does
/// not take.
fn check_use(cell: &Published, experiment: &Experiment) -> Result<(), String> {
    let Some(value) = cell.value else { return Ok(()) };
    match cell.r#use {
        Use::Input if !experiment.is_put_in(cell) => {
            let takes = "a vvol's duration in the phase commit is the only figure that the model takes";
            Err(format!("use = \"input\": {takes}"))
        }
        Use::Predict if experiment.is_put_in(cell) => {
            Err("use = \"predict\": the model takes this duration as the array's; use = \"input\"".into())
        }
        Use::Predict if cell.stun.is_some() => {
            Err("use = \"predict\": the stuns of a phase are counted once, by their sum; use = \"check\""
                .into())
        }
        Use::Predict if experiment.baseline_of(cell).any(|baseline| is_same(value, baseline)) => {
            Err(format!("use = \"predict\": {value} is the value of its baseline; use = \"implied\""))
        }
        Use::Predict if experiment.timer_rate(cell.quantity).is_some_and(|rate| is_same(value, rate)) => {
            Err(format!("use = \"predict\": {value} a second is what delay_us sets; use = \"implied\""))
        }
        _ => Ok(()),
    }
}

/// Returns whether two figures agree in the two digits with which figures are printed.
fn is_same(value: f64, other: f64) -> bool {
    const DIGITS: f64 = 0.01;
    (value - other).abs() <= DIGITS * other.abs()
}

fn check_input(experiment: &Experiment) -> Result<(), String> {
    let has_input = experiment.published.iter().any(|cell| experiment.is_put_in(cell));
    if experiment.esx.format == Format::VVol && !has_input {
        let expected = "a [[published]] of phase commit in seconds with a value, and with use = \"input\"";
        return Err(format!(
            "[esx]: format = \"vvol\" needs what an operation of the array takes: {expected}"
        ));
    }
    Ok(())
}

fn check_unknown(unknown: &Unknown, experiment: &Experiment) -> Result<(), String> {
    if !(1..=VALUES_MAX).contains(&unknown.values.len()) {
        return Err(format!("values: 1 to {VALUES_MAX} are possible"));
    }
    let disk_bytes = experiment.disk_bytes();
    for value in &unknown.values {
        let other = experiment.with(unknown.input, *value);
        check_esx(&other.esx).map_err(|cause| format!("values: {value}: {cause}"))?;
        let workload = Workload { workers: other.workers, ..Workload::default() };
        workload.check(&disk_bytes).map_err(|cause| format!("values: {value}: {cause}"))?;
    }
    if unknown.input == Input::ReadFilter && unknown.values.iter().any(|value| *value > 1) {
        return Err("values: 0 and 1 are possible".into());
    }
    if unknown.input == Input::ReadCacheBytes && unknown.values.contains(&0) {
        return Err("values: 0: a cache has at least a byte".into());
    }
    let is_loaded = !experiment.workers.is_empty() || !unknown.input.moves_baseline();
    is_loaded.then_some(()).ok_or_else(|| "input: there are no workers".to_string())
}

/// Checks that a constant is fitted to a baseline cell, and that each such cell fits at most one constant.
fn check_fit(fit: &Fit, experiment: &Experiment) -> Result<(), String> {
    let is_cell = |cell: &&Published| cell.phase == fit.phase && cell.quantity == fit.quantity;
    let cell = experiment.published.iter().find(is_cell);
    if !cell.is_some_and(|cell| cell.r#use == Use::Baseline && cell.value.is_some()) {
        return Err("only a published figure whose use is \"baseline\" may be fitted to".into());
    }
    let of_cell = experiment.fits.iter().filter(|f| f.phase == fit.phase && f.quantity == fit.quantity);
    if of_cell.count() > 1 {
        return Err("two constants are fitted to one figure".into());
    }
    if !(fit.low.is_finite() && fit.high.is_finite() && fit.low < fit.high) {
        return Err(format!("low = {}, high = {}: a range is needed", fit.low, fit.high));
    }
    Ok(())
}
