//! A grid of small runs: the share of a rate that remains with snapshots, over the share of reads, the depth and the
//! layers.

use serde::Serialize;

use crate::experiment::{Experiment, Format, ModelledRun, Stack};
use crate::run::{End, Phase, Quantity, Record};
use crate::runner::{Action, RunObserver, Step};
use crate::storage::StorageModel;
use crate::vmware;
use crate::vmware::spec::Version;
use crate::workload::Worker;

/// Large enough that the disk's tables do not fit a table page, and small enough to simulate thousands of disks.
const DISK_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 4096;
/// Simulated length of each measured phase: some hundred I/Os on one disk, a hundred thousand on flash.
const MEASURED_S: f64 = 0.5;
/// Simulated time between two layers, in which each layer is filled; less for many layers, whose filling takes so long
/// together.
const FILLED_S: f64 = 0.1;
const FILLED_ALL_S: f64 = 3.2;

/// A point of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Point {
    pub read_percent: u8,
    pub outstanding: u32,
    pub layers: u32,
}

/// What holds for all points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// The release whose rules and format VMware's model follows.
    pub esx: Version,
    /// The newest layer is filled before the measurement, so that writes overwrite it.
    pub filled: bool,
}

/// The result at one point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub point: Point,
    pub baseline_iops: Option<f64>,
    pub iops: Option<f64>,
    /// Share of the baseline's rate.
    pub share: Option<f64>,
    /// Host reads and writes per guest I/O.
    pub host_ios: Option<f64>,
    pub latency_us: Option<f64>,
    /// Why the run ended early, if it did.
    pub failure: Option<String>,
}

/// Returns the points: reads in steps of 25 %, depths doubling. The ends of both ranges are always included.
pub(crate) fn grid(read: (u32, u32), depth: (u32, u32), layers: &[u32]) -> Vec<Point> {
    let mut reads: Vec<u32> =
        (read.0..=read.1).filter(|r| r % 25 == 0 || *r == read.0 || *r == read.1).collect();
    reads.dedup();
    let doubling = std::iter::successors(Some(depth.0.max(1)), |depth| depth.checked_mul(2));
    let mut depths: Vec<u32> = doubling.take_while(|d| *d < depth.1).collect();
    depths.push(depth.1.max(1));
    let mut points = Vec::new();
    for &layers in layers {
        for &outstanding in &depths {
            points.extend(reads.iter().map(|&read| Point { read_percent: read as u8, outstanding, layers }));
        }
    }
    points
}

/// Runs one point.
pub(crate) fn measure(
    point: Point,
    way: Way,
    stack: Stack,
    storage: &StorageModel,
    seed: u64,
    observer: RunObserver,
) -> Found {
    let play = ModelledRun::new(experiment(point, way, &storage.name), stack, storage.clone(), seed);
    found(point, &play.run(observer))
}

fn experiment(point: Point, way: Way, storage: &str) -> Experiment {
    let worker = Worker::aligned("load", BLOCK_BYTES, point.read_percent, point.outstanding);
    let run = |phase, seconds| Step::new(phase, Action::run(seconds));
    let mut steps = vec![Step::new(Phase::Prepare, Action::FILL), run(Phase::Baseline, MEASURED_S)];
    for layer in 1..=point.layers {
        steps.push(Step::new(Phase::Prepare, Action::take(&format!("layer-{layer}"))));
        steps.push(run(Phase::Prepare, FILLED_S.min(FILLED_ALL_S / f64::from(point.layers))));
    }
    if way.filled {
        steps.push(Step::new(Phase::Prepare, Action::FILL));
    }
    steps.push(run(Phase::Snapshot, MEASURED_S));
    let mut bare = Experiment::bare("sweep", storage, way.esx, DISK_BYTES, vec![worker], steps);
    bare.esx.format = match way.esx.format() {
        vmware::Format::VmfsSparse => Format::VmfsSparse,
        vmware::Format::SeSparse => Format::SeSparse,
    };
    bare
}

fn found(point: Point, record: &Record) -> Found {
    let [baseline, iops] =
        [Phase::Baseline, Phase::Snapshot].map(|phase| record.figure(phase, Quantity::Iops));
    let host = |quantity| record.figure(Phase::Snapshot, quantity);
    let host_ios = host(Quantity::HostReadsPerS).zip(host(Quantity::HostWritesPerS)).map(|(r, w)| r + w);
    Found {
        point,
        baseline_iops: baseline,
        iops,
        share: iops.zip(baseline).filter(|(_, before)| *before > 0.0).map(|(now, before)| now / before),
        host_ios: host_ios.zip(iops).filter(|(_, guest)| *guest > 0.0).map(|(host, guest)| host / guest),
        latency_us: record.figure(Phase::Snapshot, Quantity::LatencyUs),
        failure: match &record.end {
            End::Failed(why) => Some(why.clone()),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use blk::manifest::CHAIN_LAYERS_MAX;

    use super::*;
    use crate::modelled::Engine;
    use crate::peers::Kind;
    use crate::vmware::rules::Hypothesis;

    /// Returns the layers of the deep chains: 1,000 in `make test-all`, where they take minutes.
    fn deep() -> u32 {
        std::env::var("SWEEP_LAYERS").map_or(10, |layers| layers.parse().expect("SWEEP_LAYERS: a number"))
    }

    #[test]
    fn deep_chains_are_swept() {
        let point = Point { read_percent: 70, outstanding: 4, layers: deep() };
        let storage = StorageModel::named("nvme").unwrap();
        let stacks = [
            Stack::Engine(Engine::Native),
            Stack::Engine(Engine::Redo),
            Stack::Esx(Hypothesis::ConcurrentCached),
            Stack::Peer(Kind::Qcow2),
        ];
        for stack in stacks {
            let way = Way { esx: Version::Esx55, filled: false };
            let found = measure(point, way, stack, &storage, 1, RunObserver::none());
            match stack {
                Stack::Engine(Engine::Redo) if point.layers as usize >= CHAIN_LAYERS_MAX => {
                    let why = found.failure.expect("a chain of redo has a limit");
                    assert!(why.contains(&format!("{CHAIN_LAYERS_MAX} layers")), "{why}");
                }
                _ => {
                    assert_eq!(found.failure, None, "{}", stack.name());
                    assert!(found.share.is_some_and(|share| share > 0.0), "{}", stack.name());
                }
            }
        }
    }

    /// What tells the two hypotheses of SEsparse apart: a serial section limits everything, journal records only first
    /// writes.
    #[test]
    fn a_serial_section_limits_what_a_journal_does_not() {
        let storage = StorageModel::named("powerstore-nvme").unwrap();
        let iops = |hypothesis, read_percent, filled| {
            let point = Point { read_percent, outstanding: 32, layers: 1 };
            let way = Way { esx: Version::Esx70, filled };
            let found = measure(point, way, Stack::Esx(hypothesis), &storage, 1, RunObserver::none());
            found.iops.unwrap_or_else(|| panic!("{hypothesis}: {:?}", found.failure))
        };
        let kinds = [(100, false), (0, true), (0, false)];
        let [reads, overwrites, first_writes] =
            kinds.map(|(read, filled)| iops(Hypothesis::JournalEach, read, filled));
        assert!(reads > 40_000.0 && overwrites > 40_000.0, "{reads} and {overwrites}");
        assert!(first_writes < 20_000.0, "{first_writes}");
        for (read, filled) in kinds {
            let limited = iops(Hypothesis::SerialSection, read, filled);
            assert!((10_000.0..=20_000.0).contains(&limited), "{read} % reads, filled {filled}: {limited}");
        }
    }

    #[test]
    fn a_grid_has_both_ends_of_everything() {
        let points = grid((0, 100), (1, 64), &[1, 32]);
        assert_eq!(points.len(), 5 * 7 * 2);
        let odd = grid((70, 80), (3, 10), &[1]);
        let reads: Vec<u8> = odd.iter().take(3).map(|p| p.read_percent).collect();
        assert_eq!(reads, [70, 75, 80]);
        let depths: Vec<u32> = odd.iter().step_by(3).map(|p| p.outstanding).collect();
        assert_eq!(depths, [3, 6, 10]);
    }
}
