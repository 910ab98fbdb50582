//! A constant number of requests under way at a device, without files: the load that a data sheet states rates for.

use std::ops::Range;

use super::model::Model;
use super::server::{Access, LowerDevice, NEVER_NS, Request};
use crate::rng::Rng;

/// A load on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    pub is_write: bool,
    /// In order of address, or uniformly at random over the range.
    pub is_sequential: bool,
    pub block_bytes: u64,
    pub depth: u32,
    /// Addresses of the load. A sequential load begins again at their end.
    pub range: Range<u64>,
    /// Requests that complete before the measurement begins, for example to fill a write cache.
    pub warm_up: u64,
    pub requests: u64,
}

/// The rate and the mean latency of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_s: f64,
    pub mean_ns: f64,
}

/// Returns a worker's next request: kind, position, length.
pub(super) type Next<'a> = Box<dyn FnMut(&mut Rng) -> (Access, u64, u64) + 'a>;

impl Load {
    fn next(&self) -> Next<'_> {
        let Load { block_bytes, range, .. } = self;
        let access = if self.is_write { Access::Write } else { Access::Read };
        let blocks = (range.end - range.start) / block_bytes;
        assert!(blocks > 0, "a range smaller than a block: {self:?}");
        let mut turn = 0;
        Box::new(move |rng| {
            turn += 1;
            let block = if self.is_sequential { (turn - 1) % blocks } else { rng.below(blocks) };
            (access, range.start + block * block_bytes, *block_bytes)
        })
    }
}

impl Model {
    /// Measures the device under a load, from an empty device on. The result depends on `seed` alone.
    pub fn measure(&self, load: &Load, seed: u64) -> Rate {
        let worker = vec![(load.depth, load.next())];
        run(self, seed, load.warm_up..load.warm_up + load.requests, worker).remove(0)
    }
}

/// Runs several workers, each with its depth. Measures from the first number of completed requests to the second.
pub(super) fn run(
    model: &Model,
    seed: u64,
    measured: Range<u64>,
    workers: Vec<(u32, Next<'_>)>,
) -> Vec<Rate> {
    let mut rng = Rng::new(seed);
    let mut below = LowerDevice::new(model.server(&mut rng));
    let (mut nexts, mut owner) = (Vec::new(), Vec::new());
    for (worker, (depth, next)) in workers.into_iter().enumerate() {
        owner.extend(std::iter::repeat_n(worker, depth as usize));
        nexts.push(next);
    }
    let mut begun_ns = vec![0; owner.len()];
    let mut sums = vec![(0u64, 0u64); nexts.len()];
    let (mut now_ns, mut from_ns, mut completed) = (0, 0, 0);
    let mut ready: Vec<u32> = (0..owner.len() as u32).collect();
    while completed < measured.end {
        for tag in ready.drain(..) {
            let (access, at, len) = nexts[owner[tag as usize]](&mut rng);
            begun_ns[tag as usize] = now_ns;
            below.submit(now_ns, Request { tag, access, at, len });
        }
        assert_ne!(below.next_ns(), NEVER_NS, "requests are under way and nothing will happen");
        now_ns = now_ns.max(below.next_ns());
        below.advance(now_ns, &mut ready);
        for &tag in &ready {
            completed += 1;
            let sum = &mut sums[owner[tag as usize]];
            *sum = (sum.0 + 1, sum.1 + now_ns - begun_ns[tag as usize]);
            if completed == measured.start {
                (from_ns, sums) = (now_ns, vec![(0, 0); nexts.len()]);
            }
        }
    }
    let rate = |(n, ns): (u64, u64)| Rate {
        per_s: n as f64 * 1e9 / (now_ns - from_ns) as f64,
        mean_ns: ns as f64 / n as f64,
    };
    sums.into_iter().map(rate).collect()
}
