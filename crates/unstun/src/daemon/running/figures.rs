//! Figures of the VMs of a core, for the metrics.

use std::collections::BTreeMap;

use blk::file::FileCounters;
use engine::RunningDisk;
use engine::latencies::LatencyFigures;

use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::running::vm::RunningVm;

/// VMs whose figures are copied in one turn of the core, so that guests do not wait for it.
const VMS_PER_TURN: usize = 64;

/// Figures of a running VM.
pub(crate) struct VmFigures {
    pub disks: Vec<DiskFigures>,
    /// Time of the oldest snapshot, microseconds since 1970.
    pub oldest_snapshot_us: Option<i64>,
    /// Requests that the VM's limits have delayed.
    pub delayed_requests: u64,
}

/// Requests of a running VM since it was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct VmCounters {
    /// Reads and writes of the guest.
    pub requests: LatencyFigures,
    /// Reads and writes of the disks' files; of native disks those of their whole store.
    pub device: u64,
}

/// Figures of a running disk since it was opened.
pub(crate) struct DiskFigures {
    pub number: u32,
    pub size_bytes: u64,
    pub reads: LatencyFigures,
    pub writes: LatencyFigures,
    pub flushes: LatencyFigures,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub errors: u64,
    pub first_writes: u64,
    /// Number of layers that a read may have to look into.
    pub layers: u64,
    /// What reached the files; of a native disk those of its whole store.
    pub device: FileCounters,
}

impl DiskFigures {
    fn of(number: u32, size_bytes: u64, disk: &dyn RunningDisk) -> DiskFigures {
        let guest = disk.stats();
        DiskFigures {
            number,
            size_bytes,
            reads: guest.read_times.figures(),
            writes: guest.write_times.figures(),
            flushes: guest.flush_times.figures(),
            bytes_read: guest.bytes_read.get(),
            bytes_written: guest.bytes_written.get(),
            errors: guest.errors.get(),
            first_writes: guest.first_writes.get(),
            layers: disk.layer_counters().len() as u64,
            device: disk.device_counters(),
        }
    }
}

impl RunningVm {
    fn counters(&self) -> VmCounters {
        let mut counters = VmCounters::default();
        let (disks, is_native) = (self.machine.disks(), self.files.is_none());
        for disk in &disks {
            let (guest, device) = (disk.stats(), disk.device_counters());
            counters.requests.add(&guest.read_times.figures());
            counters.requests.add(&guest.write_times.figures());
            let of_disk = device.reads + device.writes;
            // All native disks have the counters of their store.
            counters.device = if is_native { of_disk } else { counters.device + of_disk };
        }
        counters
    }

    fn figures(&self) -> VmFigures {
        let state = self.machine.state();
        let figures = |number, size_bytes| {
            let disk = self.machine.disk(number).ok()?;
            Some(DiskFigures::of(number, size_bytes, &*disk))
        };
        VmFigures {
            disks: state.disks.iter().filter_map(|disk| figures(disk.number, disk.size_bytes)).collect(),
            oldest_snapshot_us: state.snapshots.iter().map(|snapshot| snapshot.created_unix_us).min(),
            delayed_requests: self.limiter.delayed(),
        }
    }
}

impl RunningVms {
    /// Returns the figures of this core's VMs, by name.
    pub(crate) async fn vm_figures(&self) -> BTreeMap<String, VmFigures> {
        let mut figures = BTreeMap::new();
        for (at, vm) in self.all().into_iter().enumerate() {
            if at % VMS_PER_TURN == 0 {
                self.env.next_turn().await;
            }
            figures.insert(vm.name.clone(), vm.figures());
        }
        figures
    }

    /// Returns the counters of this core's VMs, by name. It costs less than the figures, which have copies of the states.
    pub(crate) async fn vm_counters(&self) -> BTreeMap<String, VmCounters> {
        let mut counters = BTreeMap::new();
        for (at, vm) in self.all().into_iter().enumerate() {
            if at % VMS_PER_TURN == 0 {
                self.env.next_turn().await;
            }
            counters.insert(vm.name.clone(), vm.counters());
        }
        counters
    }
}
