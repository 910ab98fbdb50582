//! Flash: fixed latencies, a number of concurrent requests, and limits of the rates of requests and bytes. Models an
//! SSD, an NVMe drive, or an all-flash array.
//!
//! A limit is no part of the latency: latencies are measured on a device, and contain its cable. Each limit is a clock
//! of its own, so that the slower one decides and they do not add up.

use std::ops::Range;

use super::server::{Access, NEVER_NS, Request, Serial, Server, earliest};

/// Parameters of flash. Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flash {
    pub read_ns: u64,
    pub write_ns: u64,
    pub flush_ns: u64,
    /// Additional time by size.
    pub read_per_kib_ns: u64,
    pub write_per_kib_ns: u64,
    /// Reads served concurrently; further ones wait in order.
    pub lanes: u32,
    /// Writes and flushes served concurrently, in lanes of their own; 0 means that they share the lanes of reads.
    pub write_lanes: u32,
    /// Shortest mean time between two requests: 1 / gap is the maximum rate of requests.
    pub gap_ns: u64,
    /// The same by size: 1 / gap_per_kib is the maximum throughput. No request is done before its bytes could pass.
    pub gap_per_kib_ns: u64,
}

/// Maximum number of lanes; the earliest free one is searched linearly.
const LANES_MAX: u32 = 1024;

pub(crate) struct Lanes {
    flash: Flash,
    /// Times at which the lanes become free, those of reads first.
    free_at_ns: Vec<u64>,
    requests: Serial,
    bytes: Serial,
}

impl Lanes {
    pub(super) fn new(flash: Flash) -> Lanes {
        let (lanes, writes) = (flash.lanes, flash.write_lanes);
        assert!((1..=LANES_MAX).contains(&lanes), "{lanes} lanes, 1 to {LANES_MAX} can be simulated");
        assert!(writes <= LANES_MAX, "{writes} lanes of writes, {LANES_MAX} at most can be simulated");
        Lanes {
            flash,
            free_at_ns: vec![0; (lanes + writes) as usize],
            requests: Serial::default(),
            bytes: Serial::default(),
        }
    }

    fn lanes_for(&self, access: Access) -> Range<usize> {
        let reads = self.flash.lanes as usize;
        match access {
            Access::Write | Access::Flush if self.flash.write_lanes > 0 => reads..self.free_at_ns.len(),
            _ => 0..reads,
        }
    }

    fn service_ns(&self, access: Access, kib: u64) -> u64 {
        match access {
            Access::Read => self.flash.read_ns + self.flash.read_per_kib_ns * kib,
            Access::Write => self.flash.write_ns + self.flash.write_per_kib_ns * kib,
            Access::Flush => self.flash.flush_ns,
        }
    }
}

impl Server for Lanes {
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        let kib = request.len.div_ceil(1024);
        let (gap_ns, transfer_ns) = (self.flash.gap_ns, self.flash.gap_per_kib_ns * kib);
        let transferred_ns = self.bytes.pass(now_ns, transfer_ns);
        let admitted_ns = (self.requests.pass(now_ns, gap_ns) - gap_ns).max(transferred_ns - transfer_ns);
        let lanes = self.lanes_for(request.access);
        let lane = lanes.start + earliest(&self.free_at_ns[lanes], admitted_ns);
        let served_ns = self.free_at_ns[lane].max(admitted_ns) + self.service_ns(request.access, kib);
        let done_ns = served_ns.max(transferred_ns);
        self.free_at_ns[lane] = done_ns;
        Some(done_ns)
    }

    fn next_ns(&self) -> u64 {
        NEVER_NS
    }

    fn advance(&mut self, _now_ns: u64, _done: &mut Vec<u32>) {}

    fn reset(&mut self) {
        self.free_at_ns.fill(0);
        (self.requests, self.bytes) = (Serial::default(), Serial::default());
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::super::trial::*;
    use super::*;

    const FLASH: Flash = Flash {
        read_ns: 350_000,
        write_ns: 350_000,
        flush_ns: 50_000,
        read_per_kib_ns: 0,
        write_per_kib_ns: 0,
        lanes: 32,
        write_lanes: 0,
        gap_ns: 0,
        gap_per_kib_ns: 0,
    };

    /// Requests under way equal rate times latency.
    #[test]
    fn little_s_law_holds_at_every_depth() {
        for depth in [1, 8, 32, 128] {
            let found = load(&Model::Flash(FLASH), depth, 50_000, random(Access::Read, 8192, GIB));
            assert_near(found.per_s * found.mean_ns / 1e9, f64::from(depth), 0.01, "under way");
            let busy = depth.min(32);
            assert_near(found.per_s, f64::from(busy) / 350e-6, 0.01, "reads/s");
        }
    }

    #[test]
    fn writes_may_have_lanes_of_their_own() {
        let flash = Flash { write_lanes: 4, ..FLASH };
        let per_s = |access| load(&Model::Flash(flash), 32, 50_000, random(access, 8192, GIB)).per_s;
        assert_near(per_s(Access::Read), 32.0 / 350e-6, 0.01, "reads/s");
        assert_near(per_s(Access::Write), 4.0 / 350e-6, 0.01, "writes/s");
    }

    #[test]
    fn the_caps_on_requests_and_on_bytes_hold() {
        let per_s =
            |flash, len| load(&Model::Flash(flash), 128, 50_000, random(Access::Write, len, GIB)).per_s;
        let few = Flash { lanes: 128, gap_ns: 20_000, ..FLASH };
        assert_near(per_s(few, 4096), 50_000.0, 0.01, "writes/s");
        // 1 GB/s is 1024 ns a KiB.
        let narrow = Flash { lanes: 128, gap_per_kib_ns: 1024, ..FLASH };
        assert_near(per_s(narrow, 65_536) * 65_536.0 / 1e9, 1.0, 0.01, "GB/s");
    }

    /// Two limits do not add up, and neither lengthens a request that is alone.
    #[test]
    fn a_cap_is_reached_where_the_lanes_allow_it() {
        let nvme = Flash { read_ns: 57_000, lanes: 64, gap_ns: 2_000, gap_per_kib_ns: 305, ..FLASH };
        let read = |depth, len| load(&Model::Flash(nvme), depth, 50_000, random(Access::Read, len, GIB));
        assert_near(read(64, 4096).per_s, 500_000.0, 0.01, "reads/s");
        assert_near(read(1, 4096).mean_ns, 57_000.0, 0.001, "one alone, ns");
        assert_near(read(1, 1 << 20).mean_ns, 1024.0 * 305.0, 0.001, "one that the cable bounds, ns");
    }
}
