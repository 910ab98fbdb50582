//! An array of two tiers: a fast one for long-used data, and a slow one for new blocks.
//!
//! Arrays move extents between tiers about once a day, which is longer than any run. The tier therefore depends on the
//! address alone. A placement that gives a warmed-up disk the first addresses puts it on the fast tier, and later
//! allocations beyond it on the slow one.

use super::model::Model;
use super::server::{LowerDevice, Request, Server};
use crate::rng::Rng;

/// Two tiers in one address space.
#[derive(Debug, Clone, PartialEq)]
pub struct Tiered {
    /// Addresses below this are on the fast tier.
    pub fast_bytes: u64,
    pub fast: Box<Model>,
    pub slow: Box<Model>,
}

pub(crate) struct Tiers {
    fast_bytes: u64,
    fast: LowerDevice,
    slow: LowerDevice,
}

impl Tiers {
    pub(super) fn new(tiered: &Tiered, rng: &mut Rng) -> Tiers {
        let (fast, slow) =
            (LowerDevice::new(tiered.fast.server(rng)), LowerDevice::new(tiered.slow.server(rng)));
        Tiers { fast_bytes: tiered.fast_bytes, fast, slow }
    }
}

impl Server for Tiers {
    /// Submits a request. A request across the border is served by the tier in which it begins.
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        if request.at < self.fast_bytes {
            return self.fast.submit_known(now_ns, request);
        }
        self.slow.submit_known(now_ns, Request { at: request.at - self.fast_bytes, ..request })
    }

    fn next_ns(&self) -> u64 {
        self.fast.next_ns().min(self.slow.next_ns())
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>) {
        self.fast.advance(now_ns, done);
        self.slow.advance(now_ns, done);
    }

    fn reset(&mut self) {
        self.fast.reset();
        self.slow.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::super::flash::Flash;
    use super::super::server::Access;
    use super::super::trial::*;
    use super::*;

    #[test]
    fn old_blocks_are_fast_and_new_ones_are_not() {
        let flash = |ns| Flash {
            read_ns: ns,
            write_ns: ns,
            flush_ns: ns,
            read_per_kib_ns: 0,
            write_per_kib_ns: 0,
            lanes: 8,
            write_lanes: 0,
            gap_ns: 0,
            gap_per_kib_ns: 0,
        };
        let fast = Box::new(Model::Flash(flash(300_000)));
        let tiers = Model::Tiered(Tiered { fast_bytes: GIB, fast, slow: Box::new(Model::Disk(sas_10k())) });
        let old = load(&tiers, 1, 1000, random(Access::Read, 4096, GIB));
        assert_near(old.mean_ns, 300_000.0, 0.001, "old blocks, ns");
        let mut fresh = random(Access::Read, 4096, GIB);
        let new = load(
            &tiers,
            1,
            1000,
            Box::new(move |rng| {
                let (access, at, len) = fresh(rng);
                (access, GIB + at, len)
            }),
        );
        assert!(new.mean_ns > 3e6, "new blocks: {} ns", new.mean_ns);
    }
}
