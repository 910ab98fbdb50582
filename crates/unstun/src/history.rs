//! Figures of the VMs over the last half hour, in memory, for the charts of the console.
//!
//! A point is made of the differences between two looks at the counters. No request of a guest waits for a look.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::latencies::BOUNDS_NS;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::daemon::{CoreHandle, Subject, VmCounters};

/// Interval between two looks.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// Time that a VM's points cover.
pub(crate) const SPAN: Duration = Duration::from_secs(1800);
/// Points of half an hour.
const POINTS_OF_VM_MAX: usize = (SPAN.as_secs() / INTERVAL.as_secs()) as usize;
/// Maximum number of points of all VMs: at 40 bytes each they take 16 MiB. With more than a thousand VMs each has fewer.
const POINTS_MAX: usize = 400_000;

/// What a VM did between two looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// The second look.
    pub at_ms: i64,
    /// Reads and writes of the guest, per second.
    pub guest_s: f32,
    /// Reads and writes of the files, per second; of a native VM those of its whole store.
    pub device_s: f32,
    /// Median of the guest's latency in microseconds; None without requests.
    pub median_us: Option<f32>,
    /// Latency that 99 of 100 requests do not exceed.
    pub p99_us: Option<f32>,
}

/// Counters of a VM at one look.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    at_ms: i64,
    counters: VmCounters,
}

#[derive(Default)]
struct OfVm {
    last: Look,
    points: VecDeque<Point>,
}

/// The points of all VMs.
#[derive(Default)]
pub(crate) struct History(Mutex<BTreeMap<String, OfVm>>);

impl History {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, OfVm>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a look at all open VMs. Others are forgotten.
    pub(crate) fn add(&self, at: Timestamp, counters: &BTreeMap<String, VmCounters>) {
        let mut all = self.all();
        all.retain(|vm, _| counters.contains_key(vm));
        let points_max = POINTS_OF_VM_MAX.min(POINTS_MAX / counters.len().max(1));
        for (vm, &counters) in counters {
            let look = Look { at_ms: at.as_millisecond(), counters };
            match all.get_mut(vm) {
                Some(known) => known.add(look, points_max),
                None => {
                    all.insert(vm.clone(), OfVm { last: look, points: VecDeque::new() });
                }
            }
        }
    }

    /// Returns the points of a VM, the oldest first.
    pub(crate) fn of(&self, vm: &str) -> Vec<Point> {
        self.all().get(vm).map(|of| of.points.iter().copied().collect()).unwrap_or_default()
    }
}

/// Looks at the counters of all VMs until `ends` changes.
pub(crate) async fn keep(history: Arc<History>, core: Arc<CoreHandle>, mut ends: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = ends.changed() => return,
        }
        // The daemon may be ending.
        if let Ok(counters) = core.ask(Subject::None, async |daemon| Ok(daemon.vm_counters().await)).await {
            history.add(Timestamp::now(), &counters);
        }
    }
}

impl OfVm {
    fn add(&mut self, look: Look, points_max: usize) {
        let point = point(&self.last, &look);
        self.last = look;
        self.points.extend(point);
        while self.points.len() > points_max {
            self.points.pop_front();
        }
    }
}

/// Returns what happened between two looks; None where the VM was opened in between, and counts from zero.
#[allow(clippy::cast_precision_loss)]
fn point(before: &Look, now: &Look) -> Option<Point> {
    let ms = u64::try_from(now.at_ms - before.at_ms).ok().filter(|&ms| ms > 0)?;
    let mut counts = [0; BOUNDS_NS.len() + 1];
    for (count, (now, before)) in
        counts.iter_mut().zip(now.counters.requests.counts.iter().zip(before.counters.requests.counts))
    {
        *count = now.checked_sub(before)?;
    }
    let device = now.counters.device.checked_sub(before.counters.device)?;
    let rate = |count: u64| count as f32 * 1000.0 / ms as f32;
    Some(Point {
        at_ms: now.at_ms,
        guest_s: rate(counts.iter().sum()),
        device_s: rate(device),
        median_us: quantile_us(&counts, 0.5),
        p99_us: quantile_us(&counts, 0.99),
    })
}

/// Returns the latency that a part of the requests does not exceed, as if those between two bounds were spread evenly.
#[allow(clippy::cast_precision_loss)]
fn quantile_us(counts: &[u64; BOUNDS_NS.len() + 1], part: f32) -> Option<f32> {
    let total: u64 = counts.iter().sum();
    let wanted = total as f32 * part;
    let (mut passed, mut lower_ns) = (0.0, 0);
    for (&count, &upper_ns) in counts.iter().zip(&BOUNDS_NS) {
        let count = count as f32;
        if count > 0.0 && passed + count >= wanted {
            let inside = (wanted - passed).max(0.0) / count;
            return Some((lower_ns as f32 + inside * (upper_ns - lower_ns) as f32) / 1000.0);
        }
        (passed, lower_ns) = (passed + count, upper_ns);
    }
    // Above the last bound nothing more is known.
    (total > 0).then_some(lower_ns as f32 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ms: i64, requests: u64) -> Look {
        let mut look = Look { at_ms, ..Look::default() };
        look.counters.device = 2 * requests;
        look.counters.requests.counts[1] = requests;
        look
    }

    #[test]
    fn a_point_is_the_difference_of_two_looks() {
        let point = point(&look(1000, 100), &look(6000, 600)).unwrap();
        assert_eq!((point.guest_s, point.device_s), (100.0, 200.0));
        assert_eq!((point.median_us, point.p99_us), (Some(75.0), Some(99.5)));
    }

    #[test]
    fn a_vm_that_counts_from_zero_or_a_clock_that_goes_back_makes_no_point() {
        assert_eq!(point(&look(1000, 100), &look(6000, 50)), None);
        assert_eq!(point(&look(6000, 100), &look(1000, 200)), None);
        let idle = point(&look(1000, 7), &look(6000, 7)).unwrap();
        assert_eq!((idle.guest_s, idle.median_us), (0.0, None));
    }

    #[test]
    fn quantiles_stay_within_the_bounds() {
        let mut counts = [0; BOUNDS_NS.len() + 1];
        counts[BOUNDS_NS.len()] = 3;
        assert_eq!(quantile_us(&counts, 0.99), Some(2_500_000.0));
        counts[0] = 300;
        assert!(quantile_us(&counts, 0.5).unwrap() <= 50.0);
    }

    #[test]
    fn memory_is_bounded_and_closed_vms_are_forgotten() {
        let history = History::default();
        let figures = |names: &[&str]| -> BTreeMap<String, VmCounters> {
            names.iter().map(|&name| (name.to_owned(), VmCounters::default())).collect()
        };
        for n in 0..500 {
            history.add(Timestamp::from_second(n * 5).unwrap(), &figures(&["web", "db"]));
        }
        assert_eq!(history.of("web").len(), POINTS_OF_VM_MAX);
        history.add(Timestamp::from_second(5000).unwrap(), &figures(&["db"]));
        assert!(history.of("web").is_empty() && !history.of("db").is_empty());
    }
}
