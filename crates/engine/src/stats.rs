//! Counters of one disk. Plain cells, because one core owns them.

use std::cell::Cell;

use blk::file::FileCounters;

use crate::latencies::Latencies;

/// Time in nanoseconds from which on a guest's request is slow: guests' drivers and applications notice it.
pub const SLOW_NS: u64 = 1_000_000_000;
/// New samples weigh 1/16 in the moving mean of latency.
const MEAN_SHIFT: u32 = 4;

/// Counters of one disk's requests and latencies.
#[derive(Default)]
pub struct DiskStats {
    /// Number of reads that ended, failed ones included.
    pub reads: Cell<u64>,
    /// Number of writes that ended, failed ones included.
    pub writes: Cell<u64>,
    /// Number of flushes that ended, failed ones included.
    pub flushes: Cell<u64>,
    /// Of all these, the requests that failed.
    pub errors: Cell<u64>,
    /// Requests that took `SLOW_NS` or longer.
    pub slow: Cell<u64>,
    /// Bytes that `reads` asked for.
    pub bytes_read: Cell<u64>,
    /// Bytes that `writes` carried.
    pub bytes_written: Cell<u64>,
    /// Ranges placed in a layer for the first time.
    pub first_writes: Cell<u64>,
    /// Native: blocks that were placed with some of their sectors; the others stayed where they were.
    pub partial_blocks: Cell<u64>,
    /// Native: blocks that got further sectors at their place.
    pub extended_blocks: Cell<u64>,
    /// Writes that went to both layers because their region was being moved.
    pub mirrored_writes: Cell<u64>,
    /// Regions of the map that were built from tables.
    pub map_loads: Cell<u64>,
    /// Moving means, in nanoseconds.
    pub read_latency_ns: Cell<u64>,
    /// See `read_latency_ns`.
    pub write_latency_ns: Cell<u64>,
    /// See `read_latency_ns`.
    pub flush_latency_ns: Cell<u64>,
    /// Latency of the slowest request since it was last taken, in nanoseconds.
    longest_ns: Cell<u64>,
    /// Requests by latency.
    pub read_times: Latencies,
    /// See `read_times`.
    pub write_times: Latencies,
    /// See `read_times`.
    pub flush_times: Latencies,
}

/// I/O that reached the files of one layer, its tables included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCounters {
    /// Name of the layer in the manifest.
    pub name: String,
    /// The I/O of all its files since they were opened.
    pub counters: FileCounters,
}

fn add(cell: &Cell<u64>, n: u64) {
    cell.set(cell.get() + n);
}

/// Adds a sample to a moving mean.
fn average(cell: &Cell<u64>, sample: u64) {
    let mean = cell.get();
    cell.set(if mean == 0 { sample } else { mean - (mean >> MEAN_SHIFT) + (sample >> MEAN_SHIFT) });
}

impl DiskStats {
    pub(crate) fn read_done(&self, bytes: usize, latency_ns: u64, ok: bool) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes as u64);
        self.done(latency_ns, ok);
        average(&self.read_latency_ns, latency_ns);
        self.read_times.count(latency_ns);
    }

    pub(crate) fn write_done(&self, bytes: usize, latency_ns: u64, ok: bool) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes as u64);
        self.done(latency_ns, ok);
        average(&self.write_latency_ns, latency_ns);
        self.write_times.count(latency_ns);
    }

    pub(crate) fn flush_done(&self, latency_ns: u64, ok: bool) {
        add(&self.flushes, 1);
        self.done(latency_ns, ok);
        average(&self.flush_latency_ns, latency_ns);
        self.flush_times.count(latency_ns);
    }

    /// Counts without a branch: this is on the path of every request.
    fn done(&self, latency_ns: u64, ok: bool) {
        add(&self.errors, u64::from(!ok));
        add(&self.slow, u64::from(latency_ns >= SLOW_NS));
        self.longest_ns.update(|longest| longest.max(latency_ns));
    }

    /// Returns the latency of the slowest request since the last call, in nanoseconds. The recorder alone calls it.
    pub fn take_longest_ns(&self) -> u64 {
        self.longest_ns.take()
    }

    /// Returns the number of guest requests completed so far. The mover reads it to see whether the guest is active.
    pub fn requests(&self) -> u64 {
        self.reads.get() + self.writes.get() + self.flushes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_a_second_is_slow_whether_it_succeeds_or_not() {
        let stats = DiskStats::default();
        stats.read_done(512, SLOW_NS - 1, true);
        stats.write_done(512, SLOW_NS, true);
        stats.flush_done(2 * SLOW_NS, false);
        assert_eq!((stats.slow.get(), stats.errors.get(), stats.requests()), (2, 1, 3));
        assert_eq!((stats.take_longest_ns(), stats.take_longest_ns()), (2 * SLOW_NS, 0));
    }
}
