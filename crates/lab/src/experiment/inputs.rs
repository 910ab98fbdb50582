//! Published figures that do not test a model: those that are put into it, and those that any model would produce.

use super::{Experiment, Format, Published};
use crate::run::{Phase, Quantity};
use crate::workload::{Pacing, Worker};

impl Experiment {
    /// Returns whether the model takes this figure as its input: the time an array needs to remove a snapshot of its
    /// own.
    pub(super) fn is_put_in(&self, cell: &Published) -> bool {
        let is_operation = cell.phase == Phase::Commit && cell.quantity == Quantity::Seconds;
        self.esx.format == Format::VVol && is_operation && cell.part.is_none() && cell.value.is_some()
    }

    /// Returns the published time of an operation of the array, microseconds; 0 where the host keeps the snapshots.
    pub(super) fn array_operation_us(&self) -> u64 {
        let input = self.published.iter().find(|cell| self.is_put_in(cell));
        input.and_then(|cell| cell.value).map_or(0, |seconds| (seconds * 1e6) as u64)
    }

    /// Returns the published figures of the same quantity from before the snapshot.
    pub(super) fn baseline_of<'a>(&'a self, cell: &'a Published) -> impl Iterator<Item = f64> + 'a {
        let before = match cell.phase {
            Phase::Prepare | Phase::Baseline => None,
            Phase::PrepareSnapshot => Some(Phase::Prepare),
            _ => Some(Phase::Baseline),
        };
        let same = move |other: &&Published| {
            Some(other.phase) == before && other.quantity == cell.quantity && other.part == cell.part
        };
        self.published.iter().filter(same).filter_map(|other| other.value)
    }

    /// Returns the rate that the workers' delays set; None where a worker has none, and for other quantities.
    pub(super) fn timer_rate(&self, quantity: Quantity) -> Option<f64> {
        let each: Vec<f64> = self.workers.iter().map(timer_ios).collect::<Option<_>>()?;
        let share = |worker: &Worker| match quantity {
            Quantity::ReadsPerS => Some(f64::from(worker.read_percent) / 100.0),
            Quantity::WritesPerS => Some(1.0 - f64::from(worker.read_percent) / 100.0),
            Quantity::Iops => Some(1.0),
            Quantity::MbPerS => Some(f64::from(worker.block_bytes) / f64::from(1 << 20)),
            _ => None,
        };
        let parts = self.workers.iter().zip(each).map(|(worker, ios)| Some(ios * share(worker)?));
        let parts: Vec<f64> = parts.collect::<Option<_>>()?;
        (!parts.is_empty()).then(|| parts.iter().sum())
    }
}

/// Returns the I/Os a second of a worker that waits before each burst; None without a delay.
fn timer_ios(worker: &Worker) -> Option<f64> {
    let delay_us = match worker.pacing {
        Pacing::Closed => worker.delay_us,
        Pacing::Open { interval_us } => interval_us,
    };
    (delay_us > 0).then(|| f64::from(worker.burst) * 1e6 / delay_us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{find, parse};

    fn refusal(file: &str, from: &str, to: &str) -> String {
        let text =
            std::fs::read_to_string(format!("{}/../../experiments/{file}.toml", env!("CARGO_MANIFEST_DIR")));
        let text = text.unwrap();
        assert!(text.contains(from), "{file}: {from}");
        parse(file, file, &text.replacen(from, to, 1)).unwrap_err().cause
    }

    #[test]
    fn what_is_put_in_or_comes_out_of_anything_is_not_counted() {
        let put_in = refusal("powerstore-vvol", "use = \"input\"", "use = \"predict\"");
        assert!(put_in.contains("use = \"input\""), "{put_in}");
        let left_out = refusal("powerstore-vvol", "value = 2\n", "\n");
        assert!(left_out.contains("operation of the array"), "{left_out}");
        let not_taken = refusal("v7000-sas", "use = \"predict\"", "use = \"input\"");
        assert!(not_taken.contains("only figure that the model takes"), "{not_taken}");
        let timed = ("value = 32\nuse = \"implied\"", "value = 32.1\nuse = \"predict\"");
        let timed = refusal("zandboer-paced", timed.0, timed.1);
        assert!(timed.contains("baseline"), "{timed}");
        let saturated = ("value = 510\nuse = \"implied\"", "value = 510\nuse = \"predict\"");
        let saturated = refusal("zandboer-saturated", saturated.0, saturated.1);
        assert!(saturated.contains("baseline"), "{saturated}");
    }

    #[test]
    fn a_timer_sets_the_rate_of_paced_workers() {
        let paced = find("zandboer-paced").unwrap();
        assert_eq!(paced.timer_rate(Quantity::ReadsPerS), Some(32.0));
        assert_eq!(paced.timer_rate(Quantity::Iops), Some(64.0));
        assert_eq!(paced.timer_rate(Quantity::HostReadRatio), None);
        assert_eq!(find("zandboer-saturated").unwrap().timer_rate(Quantity::Iops), None);
        assert_eq!(find("powerstore-vvol").unwrap().array_operation_us(), 2_000_000);
    }
}
