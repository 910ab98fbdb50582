//! The memory of a modelled run: an estimate beforehand, and an end of the run before the machine has none left.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::peers::Kind;
use crate::runner::RunObserver;

use super::{Experiment, Stack};
use crate::modelled::Engine;

/// Memory of a run apart from its disks: measured on a disk of 1 GiB that is hardly written.
const BASE_BYTES: u64 = 64 << 20;
/// Least memory that a run leaves to the machine.
const LEFT_BYTES: u64 = 256 << 20;
const GIB: u64 = 1 << 30;

/// Memory for each GiB of a disk that is written, and for each GiB of it in a snapshot.
struct PerGib {
    disk: u64,
    snapshot: u64,
    /// Whatever the size.
    fixed: u64,
}

impl PerGib {
    /// Returns the memory of a stack, MiB. For the engine: measured with every block rewritten at random, once without
    /// and once with a snapshot; the simulator keeps 16 bytes for each 4 KiB, the engine its maps and trees, and the
    /// tables of deltas are content too. For the models: the entries of their maps.
    fn of(stack: Stack) -> PerGib {
        let [disk, snapshot, fixed] = match stack {
            Stack::Engine(Engine::Plain) => [0, 0, 0],
            Stack::Engine(Engine::Redo) => [8, 48, 0],
            Stack::Engine(Engine::Native) => [48, 48, 0],
            // 8 bytes for each run of grains.
            Stack::Esx(_) => [1, 2, 0],
            Stack::Peer(Kind::Qcow2 | Kind::Qcow2ExtendedL2) => [1, 1, 0],
            Stack::Peer(Kind::Lvm | Kind::Fleecing) => [0, 2, 0],
            // An entry of the map, and one of the free space.
            Stack::Peer(Kind::Rbd) => [16, 4, 0],
            // What is not yet written, twice: in the open group and in the one that is being written.
            Stack::Peer(Kind::Zfs) => [4, 1, 800],
        };
        PerGib { disk: disk << 20, snapshot: snapshot << 20, fixed: fixed << 20 }
    }
}

/// Returns the most memory that a run takes, bytes: with all that its workers reach written, and written again in each
/// snapshot.
pub(super) fn most_bytes(experiment: &Experiment, stack: Stack) -> u64 {
    let (mut reached, disks) = (0u64, experiment.scaled_disk_bytes());
    for worker in &experiment.workload().workers {
        let disk_bytes = disks.get(worker.disk as usize).copied().unwrap_or(0);
        let range = worker.range(disk_bytes);
        reached = reached.saturating_add(range.end.saturating_sub(range.start));
    }
    let reached = reached.min(disks.iter().sum());
    let per_gib = PerGib::of(stack);
    let snapshots = experiment.protocol().snapshots_max();
    let of_disks = per_gib.disk.saturating_add(per_gib.snapshot.saturating_mul(snapshots));
    let of_disks = u128::from(of_disks) * u128::from(reached) / u128::from(GIB);
    u64::try_from(of_disks).unwrap_or(u64::MAX).saturating_add(BASE_BYTES + per_gib.fixed)
}

/// Returns the memory that the machine can give to programs; None where the system does not tell.
pub(super) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Ends a run when the machine has little memory left.
pub(super) struct Watch {
    low: Rc<Cell<Option<u64>>>,
}

impl Watch {
    /// Returns the watch, and the observer of the run: that of the user, which ends the run as well when `available`
    /// is low.
    pub(super) fn over(
        observer: RunObserver,
        available: impl Fn() -> Option<u64> + 'static,
    ) -> (Watch, RunObserver) {
        let low: Rc<Cell<Option<u64>>> = Rc::default();
        let (seen, ends) = (low.clone(), Arc::new(AtomicBool::new(false)));
        let flag = ends.clone();
        let progress = Rc::new(move |progress: &_| {
            let left = available().filter(|left| *left < LEFT_BYTES);
            seen.set(seen.get().or(left));
            if seen.get().is_some() || observer.interrupted.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
            (observer.progress)(progress);
        });
        (Watch { low }, RunObserver { progress, interrupted: ends })
    }

    /// Returns why the run was ended, if it was.
    pub(super) fn reason(&self, most_bytes: u64) -> Option<String> {
        let left = self.low.get()?;
        Some(format!(
            "the machine has {} MiB of memory left, and this run takes up to {} MiB; use smaller disks (--size, \
             size_bytes or working_set_bytes), or end other programs",
            left >> 20,
            most_bytes >> 20
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::ModelledRun;
    use crate::run::{End, Phase};
    use crate::runner::{Action, Step};
    use crate::storage::StorageModel;
    use crate::vmware::spec::Version;
    use crate::workload::Worker;

    fn experiment(disk_bytes: u64, snapshots: u32) -> Experiment {
        let take = Action::Take { name: "s".into(), count: Some(snapshots), load: true };
        let steps = vec![Step::new(Phase::Snapshot, take), Step::new(Phase::Snapshot, Action::run(2.0))];
        let worker = Worker::aligned("load", 4096, 50, 1);
        Experiment::bare("memory", "nvme", Version::Esx70, disk_bytes, vec![worker], steps)
    }

    #[test]
    fn an_estimate_grows_with_what_is_reached_and_with_snapshots() {
        let redo = Stack::Engine(Engine::Redo);
        let [one, two, deep] =
            [(100, 1), (200, 1), (100, 2)].map(|(gib, n)| most_bytes(&experiment(gib * GIB, n), redo));
        assert_eq!(two - one, 100 * (56 << 20));
        assert_eq!(deep - one, 100 * (48 << 20));
        assert_eq!(most_bytes(&experiment(1 << 50, 1), Stack::Engine(Engine::Plain)), BASE_BYTES);
    }

    /// A machine that has no memory left ends the run, and the reason names what is there and what is needed.
    #[test]
    fn a_run_ends_before_the_memory_does() {
        let (watch, observer) = Watch::over(RunObserver::none(), || Some(100 << 20));
        let storage = StorageModel::named("nvme").unwrap();
        let run = ModelledRun::new(experiment(GIB, 1), Stack::Engine(Engine::Plain), storage, 1);
        let record = run.run(observer);
        assert_eq!(record.end, End::Interrupted);
        let why = watch.reason(BASE_BYTES).unwrap();
        assert!(why.contains("100 MiB") && why.contains("64 MiB"), "{why}");
        let (watch, observer) = Watch::over(RunObserver::none(), || Some(GIB));
        assert_eq!(run.run(observer).end, End::Complete);
        assert_eq!(watch.reason(BASE_BYTES), None);
    }

    #[test]
    fn this_machine_tells_its_memory() {
        assert!(available_bytes().unwrap() > 1 << 20);
    }
}
