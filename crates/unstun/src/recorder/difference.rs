//! The activity of disks between two looks at their counters.

use std::collections::BTreeMap;

use blk::file::FileCounters;
use engine::latencies::LatencyFigures;

use super::activity::{Activity, Requests};
use crate::daemon::{DiskCounters, VmCounters};

/// Counters of all disks of a VM, or of a store, at the last look.
pub(super) type Known = BTreeMap<u32, DiskCounters>;

/// Returns what the disks did since the last look, and keeps the counters for the next one. A disk whose counters are lower
/// than before has been opened again, and has counted from zero.
pub(super) fn since(known: &mut Known, vm: &VmCounters) -> Vec<(u32, Activity)> {
    let zero = DiskCounters::default();
    let activities = vm.disks.iter().map(|now| {
        let before = known.get(&now.number).unwrap_or(&zero);
        let activity = between(before, now).or_else(|| between(&zero, now));
        (now.number, activity.expect("counters are not below zero"))
    });
    let activities = activities.collect();
    *known = vm.disks.iter().map(|disk| (disk.number, *disk)).collect();
    activities
}

fn between(before: &DiskCounters, now: &DiskCounters) -> Option<Activity> {
    let host = |counters: Option<FileCounters>| counters.unwrap_or_default();
    let (host_before, host_now) = (host(before.files), host(now.files));
    let mut reads = requests(&before.reads, &now.reads)?;
    reads.bytes = now.bytes_read.checked_sub(before.bytes_read)?;
    reads.host_count = host_now.reads.checked_sub(host_before.reads)?;
    reads.host_bytes = host_now.bytes_read.checked_sub(host_before.bytes_read)?;
    let mut writes = requests(&before.writes, &now.writes)?;
    writes.bytes = now.bytes_written.checked_sub(before.bytes_written)?;
    writes.host_count = host_now.writes.checked_sub(host_before.writes)?;
    writes.host_bytes = host_now.bytes_written.checked_sub(host_before.bytes_written)?;
    let flushes = now.flushes.checked_sub(before.flushes)?;
    let longest_us = now.longest_ns.div_ceil(1000);
    Some(Activity { reads, writes, flushes, longest_us, layers: now.layers })
}

fn requests(before: &LatencyFigures, now: &LatencyFigures) -> Option<Requests> {
    let mut requests = Requests::default();
    let counts = now.counts.iter().zip(before.counts);
    for (latency, (now, before)) in requests.latencies.iter_mut().zip(counts) {
        let count = now.checked_sub(before)?;
        requests.count += count;
        *latency = u32::try_from(count).unwrap_or(u32::MAX);
    }
    Some(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(reads: u64) -> VmCounters {
        let mut disk = DiskCounters { number: 1, bytes_read: reads * 512, ..DiskCounters::default() };
        disk.reads.counts[3] = reads;
        disk.files = Some(FileCounters { reads: 2 * reads, ..FileCounters::default() });
        VmCounters { id: 7, disks: vec![disk], store: None }
    }

    #[test]
    fn activity_is_the_difference_of_two_looks_and_a_disk_that_was_opened_again_counts_from_zero() {
        let mut known = Known::new();
        let counts = [100, 150, 150, 20].map(|reads| {
            let activities = since(&mut known, &seen(reads));
            let (number, activity) = &activities[0];
            assert_eq!((*number, activity.reads.latencies[3]), (1, activity.reads.count as u32));
            assert_eq!(activity.reads.bytes, activity.reads.count * 512);
            assert_eq!(activity.reads.host_count, 2 * activity.reads.count);
            activity.reads.count
        });
        assert_eq!(counts, [100, 50, 0, 20]);
    }
}
