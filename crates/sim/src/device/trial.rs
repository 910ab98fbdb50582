//! Load for tests of models: a constant number of requests under way.

use super::disk::{Buffers, Disk, Tags};
use super::load::{Rate, run};
use super::model::Model;
use super::seek::Seek;
use super::server::Access;

pub(super) use super::load::Next;

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
        tags: Tags { depth: 16, compared: 6, patience_ns: 2_000_000_000 },
    }
}

/// Uniformly random accesses of `len` bytes below `span`.
pub(super) fn random(access: Access, len: u64, span: u64) -> Next<'static> {
    Box::new(move |rng| (access, rng.below(span / len) * len, len))
}

/// Keeps `depth` requests under way until `count` are done.
pub(super) fn load(model: &Model, depth: u32, count: u64, next: Next<'_>) -> Rate {
    load_all(model, count, vec![(depth, next)]).remove(0)
}

/// Runs several workers, each with its depth, until `count` requests are done together.
pub(super) fn load_all(model: &Model, count: u64, workers: Vec<(u32, Next<'_>)>) -> Vec<Rate> {
    run(model, 9, 0..count, workers)
}

pub(super) fn assert_near(found: f64, expected: f64, within: f64, what: &str) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= within, "{what}: {found:.1}, expected {expected:.1} within {:.1} %", within * 100.0);
}
