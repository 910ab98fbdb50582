//! Figures of the VMs of a core, for the metrics.

use std::collections::BTreeMap;
use std::rc::Rc;

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

/// Counters of a running VM.
#[derive(Debug, Clone)]
pub(crate) struct VmCounters {
    pub id: u128,
    pub disks: Vec<DiskCounters>,
    /// Native VM: what reached the file of its store from the VM's core.
    pub store: Option<FileCounters>,
}

/// Requests of a running disk since it was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskCounters {
    pub number: u32,
    pub reads: LatencyFigures,
    pub writes: LatencyFigures,
    pub flushes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Latency of the slowest request since the last look.
    pub longest_ns: u64,
    /// Number of layers of its chain; 0 for a native disk.
    pub layers: u64,
    /// What reached its own files; None for a native disk.
    pub files: Option<FileCounters>,
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
    /// Takes the latency of the slowest request: only one caller may look.
    fn counters(&self) -> VmCounters {
        let (disks, is_native) = (self.machine.disks(), self.files.is_none());
        let of_disk = |(disk, number): (&Rc<dyn RunningDisk>, u32)| {
            let guest = disk.stats();
            DiskCounters {
                number,
                reads: guest.read_times.figures(),
                writes: guest.write_times.figures(),
                flushes: guest.flushes.get(),
                bytes_read: guest.bytes_read.get(),
                bytes_written: guest.bytes_written.get(),
                longest_ns: guest.take_longest_ns(),
                layers: disk.layer_count() as u64,
                files: (!is_native).then(|| disk.device_counters()),
            }
        };
        VmCounters {
            id: self.id,
            disks: disks.iter().zip(self.machine.disk_numbers()).map(of_disk).collect(),
            store: is_native.then(|| self.machine.device_counters()),
        }
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

    /// Returns the counters of this core's VMs, by name, for the recorder alone.
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
