//! Upper bounds of a device's rate from first principles, to check models against.
//!
//! Each bound is a [`Limit`]. None contains the order in which a model serves its requests:
//!
//! * **Lanes, latency**: requests under way = rate x latency (Little's law).
//! * **Caps**: requests a second, bytes a second on the medium or on a cable.
//! * **Heads**: an access takes its command (if it is alone), a seek, a turn, its transfer. A disk that chooses among `k`
//!   commands at independent, uniform places gains at most the expected minimum of `k` accesses that begin in the middle
//!   of the range. A mirror of `m` disks chooses among `m` heads as well.
//! * **Parity**: a small write is two reads and two writes, and its write waits for a revolution after its read. A write
//!   of more strips reads the old strips and the parity, or the rest of the row; a whole row reads nothing.
//! * **Destaging** of a write cache, when it is full: the same accesses in order of address, with as many under way as
//!   the cache has destages. In order of address a seek takes at least its shortest time, and the turn is that to the
//!   nearest of the `k` commands at the disk, `revolution / (k + 1)`, or the distance to the next place, if that is
//!   shorter. A cache of `P` bytes with random writes over `S` bytes holds the share `P / S` of all blocks, just ahead
//!   of the sweep twice as many, since what it has swept is clean. Neighbours leave together and a row's parity is
//!   updated once for all of them, so dense writes cost less than four accesses each; a write to a block that is still
//!   in the cache costs none.

use super::cached::Cached;
use super::disk::{Disk, Drive};
use super::flash::Flash;
use super::group::{Group, Level};
use super::load::Load;
use super::model::Model;
use super::remote::Remote;
use super::tiered::Tiered;

/// What limits a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Lanes,
    Latency,
    /// A cap on requests a second.
    Requests,
    /// A cap on bytes a second: a medium, a cable, a network.
    Bytes,
    Heads,
    Parity,
}

/// One upper bound of a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    pub by: By,
    /// Requests of the load a second.
    pub per_s: f64,
}

/// A load as one part of a model sees it. Numbers are means.
#[derive(Debug, Clone, Copy)]
struct Demand {
    is_write: bool,
    is_sequential: bool,
    block_bytes: f64,
    depth: f64,
    from: f64,
    /// Size of the range of addresses.
    bytes: f64,
    /// Heads that could serve each request.
    heads: f64,
    /// The access may return to a place that the head has just left: over parity.
    returns: bool,
    /// Distance between places that are accessed in order of address, bytes.
    spacing_bytes: Option<f64>,
}

impl Demand {
    fn of(load: &Load) -> Demand {
        Demand {
            is_write: load.is_write,
            is_sequential: load.is_sequential,
            block_bytes: load.block_bytes as f64,
            depth: f64::from(load.depth),
            from: load.range.start as f64,
            bytes: (load.range.end - load.range.start) as f64,
            heads: 1.0,
            returns: false,
            spacing_bytes: None,
        }
    }

    /// Returns the time of this size on a medium or cable.
    fn transfer_ns(&self, per_kib_ns: u64) -> f64 {
        per_kib_ns as f64 * (self.block_bytes / 1024.0).ceil()
    }
}

impl Model {
    /// Returns upper bounds of the load's rate, before a write cache is full.
    pub fn limits(&self, load: &Load) -> Vec<Limit> {
        limits(self, &Demand::of(load))
    }

    /// Returns upper bounds of the rate of random writes into a write cache that is full. Empty without a write cache.
    pub fn destage_limits(&self, load: &Load) -> Vec<Limit> {
        let demand = Demand::of(load);
        let mut all = limits(self, &demand);
        let cached = match self {
            Model::Cached(cached) => cached,
            Model::Remote(Remote { back, .. }) => match &**back {
                Model::Cached(cached) => cached,
                _ => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        if cached.dirty_bytes == 0 {
            return Vec::new();
        }
        all.extend(destaged(cached, &demand));
        all
    }
}

fn limit(by: By, per_s: f64) -> Limit {
    Limit { by, per_s }
}

/// Returns the limit of something that takes `ns` for each request, for `many` at once.
fn each(by: By, many: f64, ns: f64) -> Limit {
    limit(by, if ns > 0.0 { many * 1e9 / ns } else { f64::INFINITY })
}

fn least(limits: &[Limit]) -> f64 {
    limits.iter().map(|limit| limit.per_s).fold(f64::INFINITY, f64::min)
}

fn limits(model: &Model, demand: &Demand) -> Vec<Limit> {
    match model {
        Model::Disk(disk) => vec![disk_limit(disk, demand)],
        Model::Flash(flash) => flash_limits(flash, demand),
        Model::Group(group) => group_limits(group, demand),
        Model::Cached(cached) => cached_limits(cached, demand),
        Model::Tiered(tiered) => tier(tiered, demand),
        Model::Remote(remote) => remote_limits(remote, demand),
    }
}

fn disk_limit(disk: &Disk, demand: &Demand) -> Limit {
    let drive = Drive::new(disk.clone());
    let revolution_ns = disk.revolution_ns as f64;
    let track_ns = revolution_ns + drive.skew_ns() as f64;
    let media_ns = demand.block_bytes * track_ns / disk.track_bytes as f64;
    let settle_ns = if demand.is_write { disk.write_settle_ns as f64 } else { 0.0 };
    let cable_ns = demand.transfer_ns(disk.buffers.per_kib_ns);
    let busy = demand.depth.min(1.0);
    if demand.is_sequential {
        let alone_ns = disk.overhead_ns as f64 + cable_ns;
        // A write that is alone has just missed its place, unless it begins on the next track.
        let delay_ns = disk.overhead_ns + disk.write_settle_ns;
        let same_track = (1.0 - demand.block_bytes / disk.track_bytes as f64).max(0.0);
        let missed = if delay_ns > 0 { same_track } else { 0.0 };
        let alone_ns = match demand.is_write {
            true => media_ns + missed * revolution_ns,
            false => alone_ns,
        };
        let least_ns = if demand.depth <= 1.0 || !demand.is_write { alone_ns / demand.depth } else { 0.0 };
        return each(By::Heads, 1.0, media_ns.max(cable_ns).max(least_ns));
    }
    // Aligned blocks cross the fewest ends of tracks.
    let crossings = (demand.block_bytes / disk.track_bytes as f64).ceil() - 1.0;
    let transfer_ns =
        demand.block_bytes * revolution_ns / disk.track_bytes as f64 + crossings * drive.skew_ns() as f64;
    each(By::Heads, busy, position_ns(disk, demand) + settle_ns + transfer_ns)
}

/// Returns the least mean time to a place, from the start of the seek on.
fn position_ns(disk: &Disk, demand: &Demand) -> f64 {
    let revolution_ns = disk.revolution_ns as f64;
    let seen = f64::from(disk.tags.depth);
    if let Some(spacing_bytes) = demand.spacing_bytes {
        let cylinder_bytes = (disk.track_bytes * disk.tracks_per_cylinder) as f64;
        let moved = (spacing_bytes / cylinder_bytes).min(1.0);
        let next = (spacing_bytes / disk.track_bytes as f64).min(1.0);
        let turn = next.min(1.0 / (demand.depth.clamp(1.0, seen) + 1.0));
        return moved * disk.seek.base_ns as f64 + turn * revolution_ns;
    }
    let share = (demand.bytes / disk.capacity_bytes as f64).min(1.0);
    let compared = seen.min(f64::from(disk.tags.compared));
    let choices = demand.depth.clamp(1.0, compared) * demand.heads;
    if choices <= 1.0 {
        let seek_ns =
            disk.seek.base_ns as f64 + (disk.seek.mean_ns() - disk.seek.base_ns as f64) * share.sqrt();
        return disk.overhead_ns as f64 + seek_ns + revolution_ns / 2.0;
    }
    let most_ns = if demand.returns { revolution_ns } else { f64::INFINITY };
    least_access_ns(disk, share, choices).min(most_ns)
}

/// Returns the expected minimum of `choices` accesses from the middle of `share` of the stroke: the integral over the
/// probability that all of them take longer than a time.
fn least_access_ns(disk: &Disk, share: f64, choices: f64) -> f64 {
    const PLACES: u32 = 64;
    const STEPS: u32 = 256;
    let revolution_ns = disk.revolution_ns as f64;
    let place = |n: u32| (f64::from(n) + 0.5) / f64::from(PLACES) * share / 2.0;
    let seeks_ns: Vec<f64> = (0..PLACES).map(|n| disk.seek.time_ns(place(n)) as f64).collect();
    let most_ns = seeks_ns.last().copied().unwrap_or(0.0) + revolution_ns;
    let step_ns = most_ns / f64::from(STEPS);
    let longer = |ns: f64| {
        let of_place = |seek_ns: &f64| (1.0 - (ns - seek_ns) / revolution_ns).clamp(0.0, 1.0);
        seeks_ns.iter().map(of_place).sum::<f64>() / f64::from(PLACES)
    };
    (0..STEPS).map(|n| longer((f64::from(n) + 0.5) * step_ns).powf(choices) * step_ns).sum()
}

fn flash_limits(flash: &Flash, demand: &Demand) -> Vec<Limit> {
    let (latency_ns, per_kib_ns) = match demand.is_write {
        true => (flash.write_ns, flash.write_per_kib_ns),
        false => (flash.read_ns, flash.read_per_kib_ns),
    };
    let lanes = if demand.is_write && flash.write_lanes > 0 { flash.write_lanes } else { flash.lanes };
    let wire_ns = demand.transfer_ns(flash.gap_per_kib_ns);
    let service_ns = (latency_ns as f64 + demand.transfer_ns(per_kib_ns)).max(wire_ns);
    vec![
        each(By::Lanes, demand.depth.min(f64::from(lanes)), service_ns),
        each(By::Requests, 1.0, flash.gap_ns as f64),
        each(By::Bytes, 1.0, wire_ns),
    ]
}

/// Returns the demand on one member out of `members`, of which each request uses `used`, for a share of its bytes.
fn on_member(demand: &Demand, members: f64, used: f64) -> Demand {
    Demand {
        depth: demand.depth * used / members,
        block_bytes: demand.block_bytes / used,
        from: 0.0,
        bytes: demand.bytes / members,
        ..*demand
    }
}

fn group_limits(group: &Group, demand: &Demand) -> Vec<Limit> {
    let members = f64::from(group.members);
    let times = |limits: Vec<Limit>, factor: f64| -> Vec<Limit> {
        limits.into_iter().map(|Limit { by, per_s }| limit(by, per_s * factor)).collect()
    };
    let strips = (demand.block_bytes / group.strip_bytes.max(1) as f64).max(1.0);
    match (group.level, demand.is_write) {
        (Level::Mirror, true) => limits(&group.member, demand),
        (Level::Mirror, false) => {
            let heads = demand.heads * members;
            let one = Demand { bytes: demand.bytes, heads, ..on_member(demand, members, 1.0) };
            times(limits(&group.member, &one), members)
        }
        (Level::Parity, true) => vec![parity_limit(group, demand, 1.0)],
        (level, _) => {
            let data = members - f64::from(u8::from(level == Level::Parity));
            let used = strips.min(data);
            let busy = if demand.is_sequential { data } else { members };
            let one = Demand { bytes: demand.bytes / members, ..on_member(demand, busy, used) };
            times(limits(&group.member, &one), busy / used)
        }
    }
}

/// Returns the limit of writes over parity. `parity` is the share of a parity update that each write pays.
fn parity_limit(group: &Group, demand: &Demand, parity: f64) -> Limit {
    let members = f64::from(group.members);
    let data = members - 1.0;
    let strips = demand.block_bytes / group.strip_bytes as f64;
    let rows = strips / data;
    let (reads, writes, bytes) = match rows >= 1.0 {
        true => (0.0, members, demand.block_bytes / data),
        false => {
            let own = strips.max(1.0);
            let old = (own + parity).min(data - own);
            (old.max(0.0), own + parity, demand.block_bytes / own)
        }
    };
    // Reads of a sequence come from the disks' buffers.
    let reads = if demand.is_sequential { 0.0 } else { reads };
    let depth = demand.depth * writes / members;
    let access = |is_write| {
        let from_one = Demand {
            is_write,
            depth,
            block_bytes: bytes,
            from: 0.0,
            bytes: demand.bytes / data,
            returns: true,
            is_sequential: false,
            ..*demand
        };
        members * least(&limits(&group.member, &from_one))
    };
    limit(By::Parity, 1.0 / (reads / access(false) + writes / access(true)))
}

/// Returns the limit of the time from a read of old content to the write over it.
fn parity_latency(model: &Model, demand: &Demand) -> Option<Limit> {
    match model {
        Model::Group(group) if group.level == Level::Parity => {
            let Model::Disk(disk) = &*group.member else { return None };
            let row_bytes = (group.strip_bytes * u64::from(group.members - 1)) as f64;
            let is_small = demand.block_bytes < row_bytes;
            is_small.then(|| each(By::Latency, demand.depth, disk.revolution_ns as f64))
        }
        Model::Group(group) if group.level == Level::Stripe => parity_latency(&group.member, demand),
        _ => None,
    }
}

fn cached_limits(cached: &Cached, demand: &Demand) -> Vec<Limit> {
    let cable_ns = demand.transfer_ns(cached.per_kib_ns);
    let mut all = vec![each(By::Requests, 1.0, cached.gap_ns as f64), each(By::Bytes, 1.0, cable_ns)];
    if demand.is_write && cached.dirty_bytes > 0 {
        all.push(each(By::Latency, demand.depth, cached.write_ns as f64 + cable_ns));
        return all;
    }
    let answer_ns = cached.hit_ns as f64 + if demand.is_write { 0.0 } else { cable_ns };
    all.push(each(By::Latency, demand.depth, answer_ns));
    let held = (cached.read_bytes + cached.dirty_bytes) as f64;
    let missed = match (demand.is_write, held >= demand.bytes, demand.is_sequential) {
        (false, true, _) => 0.0,
        (false, false, false) => 1.0 - held / demand.bytes,
        _ => 1.0,
    };
    if missed > 0.0 {
        all.push(each(By::Latency, demand.depth, answer_ns + missed * alone_ns(&cached.back, demand)));
        let behind = limits(&cached.back, demand);
        all.extend(behind.into_iter().map(|Limit { by, per_s }| limit(by, per_s / missed)));
    }
    all
}

/// Returns the least mean latency of one request.
fn alone_ns(model: &Model, demand: &Demand) -> f64 {
    1e9 / least(&limits(model, &Demand { depth: 1.0, ..*demand }))
}

fn tier(tiered: &Tiered, demand: &Demand) -> Vec<Limit> {
    match demand.from < tiered.fast_bytes as f64 {
        true => limits(&tiered.fast, demand),
        false => limits(&tiered.slow, demand),
    }
}

fn remote_limits(remote: &Remote, demand: &Demand) -> Vec<Limit> {
    let wire_ns = demand.transfer_ns(remote.per_kib_ns);
    let call_ns = (remote.round_trip_ns + remote.server_ns) as f64 + wire_ns;
    let mut all = limits(&remote.back, demand);
    all.push(each(By::Latency, demand.depth, call_ns + alone_ns(&remote.back, demand)));
    all.push(each(By::Lanes, f64::from(remote.threads), remote.server_ns as f64));
    all.push(each(By::Bytes, 1.0, wire_ns));
    all
}

/// Returns the limits of writing out a full cache.
fn destaged(cached: &Cached, demand: &Demand) -> Vec<Limit> {
    let held = (cached.dirty_bytes as f64 / demand.bytes).min(1.0);
    let ahead = (2.0 * held).min(1.0);
    // Mean run of neighbours, in blocks, and writes for each block that leaves.
    let run =
        (1.0 / (1.0 - ahead).max(1e-9)).min((cached.destage_bytes as f64 / demand.block_bytes).max(1.0));
    let absorbed = 1.0 / (1.0 - held).max(1e-9);
    let destage = Demand {
        block_bytes: demand.block_bytes * run,
        depth: f64::from(cached.destages),
        spacing_bytes: Some(demand.block_bytes * run / ahead.max(1e-9)),
        ..*demand
    };
    let mut all = sorted_limits(&cached.back, &destage);
    all.extend(parity_latency(&cached.back, &destage));
    all.into_iter().map(|Limit { by, per_s }| limit(by, per_s * run * absorbed)).collect()
}

/// Returns the limits of writes in order of address.
fn sorted_limits(model: &Model, demand: &Demand) -> Vec<Limit> {
    match model {
        Model::Group(group) if group.level == Level::Stripe => {
            // The places are spread over the members; so is the distance between them.
            let members = f64::from(group.members);
            let one = Demand { depth: demand.depth / members, from: 0.0, ..*demand };
            let one = Demand { bytes: demand.bytes / members, ..one };
            let all = sorted_limits(&group.member, &one);
            all.into_iter().map(|Limit { by, per_s }| limit(by, per_s * members)).collect()
        }
        Model::Group(group) if group.level == Level::Parity => {
            let row_bytes = (group.strip_bytes * u64::from(group.members - 1)) as f64;
            let spacing = demand.spacing_bytes.unwrap_or(row_bytes);
            let in_row = (row_bytes / spacing).max(1.0);
            // A disk holds a part of the data's range, and as many places of parity as there are rows with a write.
            let places = 1.0 + 1.0 / in_row;
            let spacing_bytes = Some(spacing / places);
            vec![parity_limit(group, &Demand { spacing_bytes, ..*demand }, 1.0 / in_row)]
        }
        Model::Tiered(tiered) => match demand.from < tiered.fast_bytes as f64 {
            true => sorted_limits(&tiered.fast, demand),
            false => sorted_limits(&tiered.slow, demand),
        },
        other => limits(other, demand),
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::*;
    use super::*;

    const DISK_BYTES: u64 = 146_000_000_000;

    fn disks(level: Level) -> Model {
        let member = Box::new(Model::Disk(sas_10k()));
        let disks = Group { level, members: 5, strip_bytes: 64 << 10, member };
        Model::Cached(Cached {
            read_bytes: 0,
            page_bytes: 4096,
            dirty_bytes: 64 << 20,
            hit_ns: 100_000,
            write_ns: 150_000,
            per_kib_ns: 0,
            gap_ns: 0,
            destages: 16,
            destage_bytes: 256 << 10,
            back: Box::new(Model::Group(disks)),
        })
    }

    fn random_load(is_write: bool, block_bytes: u64, depth: u32, bytes: u64) -> Load {
        Load {
            is_write,
            is_sequential: false,
            block_bytes,
            depth,
            range: 0..bytes,
            warm_up: 0,
            requests: 10_000,
        }
    }

    fn full(block_bytes: u64, bytes: u64) -> Load {
        let held = (64 << 20) / block_bytes;
        let load = random_load(true, block_bytes, 64, bytes);
        Load { warm_up: 2 * held, requests: held.max(3000), ..load }
    }

    /// Writes far from each other, and so near that neighbours are in the cache together.
    #[test]
    fn no_destaging_beats_sorted_writes() {
        for bytes in [4 * DISK_BYTES, 4 << 30, 512 << 20] {
            for block_bytes in [4096, 65_536, 256 << 10] {
                let load = full(block_bytes, bytes);
                let (model, found) = (disks(Level::Parity), disks(Level::Parity).measure(&load, 1).per_s);
                let bound = least(&model.destage_limits(&load));
                assert!(found < 1.05 * bound, "{block_bytes} of {bytes}: {found}, bound {bound}");
                assert!(
                    found > 0.15 * bound,
                    "{block_bytes} of {bytes}: {found}, the bound {bound} says nothing"
                );
            }
        }
    }

    /// Planted: disks without parity.
    #[test]
    fn destaging_that_is_too_fast_is_found() {
        let load = full(4096, 4 * DISK_BYTES);
        let (found, bound) = (
            disks(Level::Stripe).measure(&load, 1).per_s,
            least(&disks(Level::Parity).destage_limits(&load)),
        );
        assert!(found > 1.05 * bound, "{found}, bound {bound}");
    }

    /// Seek, half a turn, transfer, overhead; four accesses over parity, and a revolution between them.
    #[test]
    fn bounds_equal_their_closed_forms() {
        let disk = sas_10k();
        let alone_ns = disk.seek.mean_ns() + 3e6 + 150e3 + 6e6 / 128.0;
        let read = Model::Disk(disk).limits(&random_load(false, 4096, 1, DISK_BYTES));
        assert_near(least(&read), 1e9 / alone_ns, 0.001, "reads/s of one disk");
        let destaged = disks(Level::Parity).destage_limits(&full(4096, 4 * DISK_BYTES));
        let latency = destaged.iter().filter(|limit| limit.by == By::Latency).map(|limit| limit.per_s);
        assert_near(latency.fold(f64::INFINITY, f64::min), 16.0 / 6e-3, 0.01, "16 destages in a revolution");
    }

    /// The same requests are served no faster by slower arms.
    #[test]
    fn slower_seeks_make_nothing_faster() {
        let model = |base: f64, stroke: f64| {
            let Disk { seek, .. } = sas_10k();
            let slower = |ns: u64, factor: f64| (ns as f64 * factor) as u64;
            let seek = super::super::Seek {
                base_ns: slower(seek.base_ns, base),
                stroke_ns: slower(seek.stroke_ns, stroke),
            };
            let Model::Cached(mut cached) = disks(Level::Parity) else { unreachable!("a cache") };
            let Model::Group(group) = &mut *cached.back else { unreachable!("a group") };
            *group.member = Model::Disk(Disk { seek, ..sas_10k() });
            Model::Cached(cached)
        };
        for load in [
            random_load(false, 4096, 1, DISK_BYTES),
            random_load(false, 4096, 64, 4 << 30),
            full(4096, 4 << 30),
        ] {
            let rate = |(base, stroke)| model(base, stroke).measure(&load, 1).per_s;
            for order in [[(1.0, 1.0), (1.5, 1.0), (3.0, 1.0)], [(1.0, 1.0), (1.0, 1.5), (1.0, 3.0)]] {
                let rates = order.map(rate);
                assert!(rates.windows(2).all(|two| two[1] < 1.01 * two[0]), "{load:?}: {rates:?}");
            }
        }
    }

    /// The minimum of `k` uniform turns is 1 / (k + 1) of a revolution.
    #[test]
    fn the_best_of_many_accesses_without_seeks_is_a_turn() {
        let still = Disk { seek: super::super::Seek { base_ns: 0, stroke_ns: 0 }, ..sas_10k() };
        for choices in [1.0, 3.0, 7.0] {
            let found = least_access_ns(&still, 1.0, choices);
            assert_near(found, 6e6 / (choices + 1.0), 0.01, "turn, ns");
        }
    }
}
