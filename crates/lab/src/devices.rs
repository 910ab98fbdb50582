//! A check of storage models: their rates over depth and block size beside upper bounds from first principles
//! (`sim::Limit`).
//!
//! A model is wrong if a rate is above a bound, falls when the load gets deeper, or stays below a cap that everything
//! else allows. No published figure enters.

use std::ops::Range;

use serde::Serialize;
use sim::{By, Cached, Group, Level, Limit, Load, Model, Rate};

use crate::run::Constant;
use crate::storage::StorageModel;

pub(crate) const BLOCKS: [u64; 3] = [4096, 65_536, 1 << 20];
pub(crate) const DEPTHS: [u32; 6] = [1, 2, 4, 16, 64, 256];
/// Depth at which a full write cache is measured: its own number of destages limits what follows.
const FULL_DEPTH: u32 = 64;
/// Range of addresses of a device whose rate does not depend on them: larger than any cache.
const WIDE_BYTES: u64 = 1 << 40;
/// Range of addresses that every read cache holds.
const HELD_BYTES: u64 = 64 << 20;
/// Requests for each measured rate: at least this, and some for each that is under way. On a disk, rates then scatter
/// by one percent.
const REQUESTS_MIN: u64 = 3000;
const REQUESTS_EACH: u64 = 32;
/// How far a rate may be on the wrong side of a bound, as a share: the scatter of a rate, and that of the order in which
/// the pieces of large requests meet on the disks of an array (up to 4 percent).
const TOLERANCE: f64 = 0.05;
/// Factor by which all other bounds exceed a cap that must be reached.
const CLEAR: f64 = 1.25;

/// What is read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    RandomReads,
    RandomWrites,
    SequentialReads,
    SequentialWrites,
    /// Reads of what a cache holds.
    CachedReads,
    /// Random writes while the write cache is full.
    FullCacheWrites,
}

impl Pattern {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Pattern::RandomReads => "random reads",
            Pattern::RandomWrites => "random writes",
            Pattern::SequentialReads => "sequential reads",
            Pattern::SequentialWrites => "sequential writes",
            Pattern::CachedReads => "cached reads",
            Pattern::FullCacheWrites => "writes, cache full",
        }
    }

    fn is_write(self) -> bool {
        matches!(self, Pattern::RandomWrites | Pattern::SequentialWrites | Pattern::FullCacheWrites)
    }

    fn is_sequential(self) -> bool {
        matches!(self, Pattern::SequentialReads | Pattern::SequentialWrites | Pattern::CachedReads)
    }
}

/// One load on one model: the rate found, and the lowest bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Point {
    pub pattern: Pattern,
    /// Part of the addresses, where they differ: a tier.
    pub region: &'static str,
    pub block_bytes: u64,
    pub depth: u32,
    pub iops: f64,
    pub latency_us: f64,
    pub bound_iops: f64,
    pub bound_by: &'static str,
    /// The lowest bound by anything but a cap, for a cap that must be reached.
    #[serde(skip)]
    cap_iops: Option<f64>,
}

/// A bound that a model breaks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Broken {
    pub pattern: Pattern,
    pub region: &'static str,
    pub block_bytes: u64,
    pub depth: u32,
    pub found_iops: f64,
    pub bound_iops: f64,
    /// `above the bound by heads`, `falls with depth`, `below the cap`.
    pub what: String,
}

/// The check of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Checked {
    pub model: String,
    pub title: String,
    /// Constants of data sheets and measurements.
    pub constants: Vec<Constant>,
    pub points: Vec<Point>,
    pub broken: Vec<Broken>,
}

/// A row of the table: all depths of a pattern and a block size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pattern: Pattern,
    region: &'static str,
    range: Range<u64>,
    block_bytes: u64,
}

/// Returns all series of a model. They are independent of one another.
pub(crate) fn series(model: &Model) -> Vec<Series> {
    use Pattern::{
        CachedReads, FullCacheWrites, RandomReads, RandomWrites, SequentialReads, SequentialWrites,
    };
    let wide = [RandomReads, RandomWrites, SequentialReads, SequentialWrites];
    let (is_cached, is_pooled) =
        cache(model).map_or((false, false), |cache| (cache.read_bytes >= HELD_BYTES, cache.dirty_bytes > 0));
    let mut all = Vec::new();
    for (region, range) in regions(model) {
        for pattern in wide.into_iter().chain(is_pooled.then_some(FullCacheWrites)) {
            all.extend(BLOCKS.map(|block_bytes| Series {
                pattern,
                region,
                range: range.clone(),
                block_bytes,
            }));
        }
    }
    if is_cached {
        let held =
            |block_bytes| Series { pattern: CachedReads, region: "", range: 0..HELD_BYTES, block_bytes };
        all.extend(BLOCKS.map(held));
    }
    all
}

/// Returns the ranges of addresses with a rate of their own.
fn regions(model: &Model) -> Vec<(&'static str, Range<u64>)> {
    match model {
        Model::Cached(cached) => regions(&cached.back),
        Model::Remote(remote) => regions(&remote.back),
        Model::Tiered(tiered) => {
            let fast = tiered.fast_bytes;
            vec![("fast tier", 0..fast), ("slow tier", fast..fast + size_bytes(&tiered.slow))]
        }
        other => vec![("", 0..size_bytes(other))],
    }
}

fn size_bytes(model: &Model) -> u64 {
    match model {
        Model::Disk(disk) => disk.capacity_bytes,
        Model::Flash(_) => WIDE_BYTES,
        Model::Group(Group { level, members, member, .. }) => match level {
            Level::Mirror => size_bytes(member),
            Level::Stripe => size_bytes(member) * u64::from(*members),
            Level::Parity => size_bytes(member) * u64::from(members - 1),
        },
        Model::Cached(cached) => size_bytes(&cached.back),
        Model::Tiered(tiered) => tiered.fast_bytes + size_bytes(&tiered.slow),
        Model::Remote(remote) => size_bytes(&remote.back),
    }
}

fn cache(model: &Model) -> Option<&Cached> {
    match model {
        Model::Cached(cached) => Some(cached),
        Model::Remote(remote) => cache(&remote.back),
        _ => None,
    }
}

/// Measures a series with `measure`, and returns its points.
pub(crate) fn points(model: &Model, series: &Series, measure: impl Fn(&Load) -> Rate) -> Vec<Point> {
    let Series { pattern, region, block_bytes, .. } = *series;
    let depths: &[u32] = if pattern == Pattern::FullCacheWrites { &[FULL_DEPTH] } else { &DEPTHS };
    let point = |&depth: &u32| {
        let load = load(model, series, depth);
        let rate = measure(&load);
        let limits = match pattern {
            Pattern::FullCacheWrites => model.destage_limits(&load),
            _ => model.limits(&load),
        };
        let lowest = limits.iter().min_by(|a, b| a.per_s.total_cmp(&b.per_s));
        let Limit { by, per_s } = lowest.copied().expect("every model has a limit");
        Point {
            pattern,
            region,
            block_bytes,
            depth,
            iops: rate.per_s,
            latency_us: rate.mean_ns / 1e3,
            bound_iops: per_s,
            bound_by: text(by),
            cap_iops: cap(&limits),
        }
    };
    depths.iter().map(point).collect()
}

fn load(model: &Model, series: &Series, depth: u32) -> Load {
    let Series { pattern, block_bytes, ref range, .. } = *series;
    let requests = REQUESTS_MIN.max(REQUESTS_EACH * u64::from(depth));
    let pool = cache(model).map_or(0, |cache| cache.dirty_bytes) / block_bytes;
    let (warm_up, requests) = match pattern {
        // The second pass finds everything in the cache.
        Pattern::CachedReads => (2 * HELD_BYTES / block_bytes, requests),
        // After two fillings, writing out is in its steady state.
        Pattern::FullCacheWrites => (2 * pool, requests.max(pool / 8)),
        _ if pattern.is_write() && pool > 0 => (0, requests.min((pool / 2).max(1))),
        _ => (requests / 10, requests),
    };
    Load {
        is_write: pattern.is_write(),
        is_sequential: pattern.is_sequential(),
        block_bytes,
        depth,
        range: range.clone(),
        warm_up,
        requests,
    }
}

/// Returns a cap that must be reached: all other limits are far above. Heads have an order that no limit contains.
fn cap(limits: &[Limit]) -> Option<f64> {
    if limits.iter().any(|limit| matches!(limit.by, By::Heads | By::Parity)) {
        return None;
    }
    let is_cap = |limit: &&Limit| matches!(limit.by, By::Requests | By::Bytes);
    let lowest = |caps: bool| {
        let of_kind = limits.iter().filter(|limit| is_cap(limit) == caps);
        of_kind.map(|limit| limit.per_s).fold(f64::INFINITY, f64::min)
    };
    Some(lowest(true)).filter(|cap| lowest(false) >= CLEAR * cap)
}

fn text(by: By) -> &'static str {
    match by {
        By::Lanes => "lanes",
        By::Latency => "latency",
        By::Requests => "cap of requests",
        By::Bytes => "cap of bytes",
        By::Heads => "heads",
        By::Parity => "parity",
    }
}

/// Returns the bounds that a series breaks. Its points are in order of depth.
pub(crate) fn broken(points: &[Point]) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut highest: f64 = 0.0;
    for point in points {
        let mut add = |bound_iops: f64, what: String| {
            let Point { pattern, region, block_bytes, depth, iops: found_iops, .. } = *point;
            broken.push(Broken { pattern, region, block_bytes, depth, found_iops, bound_iops, what });
        };
        if point.iops > point.bound_iops * (1.0 + TOLERANCE) {
            add(point.bound_iops, format!("above the bound by {}", point.bound_by));
        }
        if point.iops < highest * (1.0 - TOLERANCE) {
            add(highest, "falls with depth".into());
        }
        if let Some(cap) = point.cap_iops.filter(|cap| point.iops < cap * (1.0 - TOLERANCE)) {
            add(cap, "below a cap that everything else allows".into());
        }
        highest = highest.max(point.iops);
    }
    broken
}

/// Returns the check of a model from the points of its series.
pub(crate) fn checked(model: &StorageModel, series: Vec<Vec<Point>>) -> Checked {
    use crate::run::ConstantSource::{DataSheet, Measured};
    let published = |constant: &&Constant| matches!(constant.source, DataSheet | Measured);
    Checked {
        model: model.name.clone(),
        title: model.title.clone(),
        constants: model.constants().iter().filter(published).cloned().collect(),
        broken: series.iter().flat_map(|points| broken(points)).collect(),
        points: series.into_iter().flatten().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::Flash;

    const NVME: Flash = Flash {
        read_ns: 57_000,
        write_ns: 12_000,
        flush_ns: 0,
        read_per_kib_ns: 0,
        write_per_kib_ns: 0,
        lanes: 64,
        write_lanes: 0,
        gap_ns: 2_000,
        gap_per_kib_ns: 305,
    };

    /// Returns what is found of a device whose rates are those of `planted`, where `model` is checked.
    fn found(model: &Model, planted: impl Fn(&Load) -> Rate) -> Vec<Broken> {
        series(model).iter().flat_map(|series| broken(&points(model, series, &planted))).collect()
    }

    /// The small blocks of all models; a full cache only at 64 KiB, because a million writes of 4 KiB fill one.
    #[test]
    fn the_models_that_ship_keep_their_bounds() {
        let is_quick = |series: &Series| match series.pattern {
            Pattern::FullCacheWrites => series.block_bytes == BLOCKS[1],
            _ => series.block_bytes < BLOCKS[2],
        };
        for name in crate::storage::names() {
            let model = StorageModel::named(name).unwrap().storage().units[0].model.clone();
            for series in series(&model).iter().filter(|series| is_quick(series)) {
                let points = points(&model, series, |load| model.measure(load, 1));
                assert_eq!(broken(&points), [], "{name}");
            }
        }
    }

    #[test]
    fn a_device_within_its_bounds_passes() {
        let model = Model::Flash(NVME);
        assert_eq!(found(&model, |load| model.measure(load, 1)), []);
    }

    /// Caps of 500,000 requests and 3.3 GB a second make 310,000 where they add up.
    #[test]
    fn a_cap_that_is_not_reached_is_found() {
        let added = |load: &Load| {
            let gap_ns = NVME.gap_ns + NVME.gap_per_kib_ns * load.block_bytes / 1024;
            Model::Flash(Flash { gap_ns, ..NVME }).measure(load, 1)
        };
        let broken = found(&Model::Flash(NVME), added);
        let at = broken.iter().find(|b| b.depth == 64 && b.block_bytes == 4096).expect("found");
        assert!(at.what.contains("below a cap"), "{at:?}");
        assert!((at.found_iops / 310e3 - 1.0).abs() < 0.01 && at.bound_iops == 500e3, "{at:?}");
    }

    #[test]
    fn a_rate_above_a_bound_is_found() {
        let pair = StorageModel::named("sas-10k-pair").unwrap();
        let model = pair.storage().units[0].model.clone();
        let broken = found(&model, |load| {
            let Rate { per_s, mean_ns } = model.measure(load, 1);
            Rate { per_s: 1.4 * per_s, mean_ns }
        });
        let alone =
            broken.iter().find(|b| b.pattern == Pattern::RandomWrites && b.depth == 1).expect("found");
        assert_eq!(alone.what, "above the bound by heads");
    }

    #[test]
    fn a_rate_that_falls_with_depth_is_found() {
        let model = Model::Flash(NVME);
        let broken = found(&model, |load| {
            let Rate { per_s, mean_ns } = model.measure(load, 1);
            Rate { per_s: if load.depth > 64 { per_s / 2.0 } else { per_s }, mean_ns }
        });
        assert!(broken.iter().any(|b| b.depth == 256 && b.what == "falls with depth"), "{broken:?}");
    }
}
