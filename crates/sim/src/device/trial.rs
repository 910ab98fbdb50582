//! Load for tests of models: a constant number of requests under way.

use super::disk::{Buffers, Disk, Tags};
use super::model::Model;
use super::seek::Seek;
use super::server::{Access, LowerDevice, NEVER_NS, Request};
use crate::rng::Rng;

pub(super) const GIB: u64 = 1 << 30;

/// A 10K SAS disk of about 2008.
pub(super) fn sas_10k() -> Disk {
    Disk {
        capacity_bytes: 146_000_000_000,
        revolution_ns: 6_000_000,
        track_bytes: 512 << 10,
        tracks_per_cylinder: 4,
        seek: Seek { base_ns: 250_000, stroke_ns: 6_300_000 },
        switch_ns: 150_000,
        write_settle_ns: 300_000,
        overhead_ns: 150_000,
        buffers: Buffers { count: 8, bytes: 64 << 10, per_kib_ns: 3_300 },
        tags: Tags { depth: 16, compared: 6, patience_ns: 500_000_000 },
    }
}

pub(super) struct TrialResult {
    pub per_s: f64,
    pub mean_ns: f64,
}

/// Returns a worker's next request: kind, position, length.
pub(super) type Next<'a> = Box<dyn FnMut(&mut Rng) -> (Access, u64, u64) + 'a>;

/// Uniformly random accesses of `len` bytes below `span`.
pub(super) fn random(access: Access, len: u64, span: u64) -> Next<'static> {
    Box::new(move |rng| (access, rng.below(span / len) * len, len))
}

/// Keeps `depth` requests under way until `count` are done.
pub(super) fn load(model: &Model, depth: u32, count: u64, next: Next<'_>) -> TrialResult {
    load_all(model, count, vec![(depth, next)]).remove(0)
}

/// Runs several workers, each with its depth, until `count` requests are done together.
pub(super) fn load_all(model: &Model, count: u64, workers: Vec<(u32, Next<'_>)>) -> Vec<TrialResult> {
    let mut rng = Rng::new(9);
    let mut below = LowerDevice::new(model.server(&mut rng));
    let mut nexts = Vec::new();
    let mut owner = Vec::new();
    for (worker, (depth, next)) in workers.into_iter().enumerate() {
        owner.extend(std::iter::repeat_n(worker, depth as usize));
        nexts.push(next);
    }
    let mut begun_ns = vec![0; owner.len()];
    let mut sums = vec![(0u64, 0u64); nexts.len()];
    let mut now_ns = 0;
    let mut ready: Vec<u32> = (0..owner.len() as u32).collect();
    while sums.iter().map(|(n, _)| n).sum::<u64>() < count {
        for tag in ready.drain(..) {
            let (access, at, len) = nexts[owner[tag as usize]](&mut rng);
            begun_ns[tag as usize] = now_ns;
            below.submit(now_ns, Request { tag, access, at, len });
        }
        assert_ne!(below.next_ns(), NEVER_NS, "requests are under way and nothing will happen");
        now_ns = now_ns.max(below.next_ns());
        below.advance(now_ns, &mut ready);
        for &tag in &ready {
            let sum = &mut sums[owner[tag as usize]];
            *sum = (sum.0 + 1, sum.1 + now_ns - begun_ns[tag as usize]);
        }
    }
    let found = |(n, ns): (u64, u64)| TrialResult {
        per_s: n as f64 * 1e9 / now_ns as f64,
        mean_ns: ns as f64 / n as f64,
    };
    sums.into_iter().map(found).collect()
}

pub(super) fn assert_near(found: f64, expected: f64, within: f64, what: &str) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= within, "{what}: {found:.1}, expected {expected:.1} within {:.1} %", within * 100.0);
}
