//! A VM that a core runs, and the clients of its disks and sealed states.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use api::{ClientAccess, VmClient};
use blk::file::FileCounters;
use blk::manifest::VmState;
use engine::native::RemoteVm;
use engine::stats::LayerCounters;
use engine::{Machine, RunningDisk};
use export::nbd::FrontEnd;
use export::{IoLimits, Limiter};

use crate::daemon::running::client::client_gate::{ClientGate, Who};
use crate::daemon::running::client::client_volume::Connections;
use crate::daemon::running::home_files::HomeFiles;

pub(crate) struct RunningVm {
    /// Name of the VM in the daemon; the first part of its exports' names.
    pub name: String,
    pub id: u128,
    pub machine: Rc<dyn Machine>,
    /// Files of the VM's home; None for a native VM.
    pub files: Option<Rc<HomeFiles>>,
    pub gate: Rc<ClientGate>,
    /// Connections to the running disks.
    pub connections: Rc<Connections>,
    /// Delays the requests of all clients when the VM has reached its limits. A move keeps it.
    pub limiter: Rc<Limiter>,
    /// The machine, if it is the clients' side of a native VM whose store is on another core.
    pub remote: Option<Rc<RemoteVm>>,
}

/// Settings of a VM that its clients notice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientSettings {
    pub limits: IoLimits,
    pub shared_writers: bool,
    pub waits_for_space: bool,
}

/// State and figures of a VM at one moment, in plain values.
pub(crate) struct VmView {
    pub state: VmState,
    /// IDs of the snapshots whose content can no longer change.
    pub sealed: BTreeSet<u128>,
    pub disks: Vec<DiskView>,
    pub clients: Vec<VmClient>,
    pub shared_writers: bool,
    pub waiting_writes: u64,
    pub delayed_requests: u64,
}

/// Counters of a running disk at one moment.
pub(crate) struct DiskView {
    pub number: u32,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub first_writes: u64,
    pub map_loads: u64,
    pub device: FileCounters,
    pub layers: Vec<LayerCounters>,
    /// Path of the disk's socket for vhost-user clients.
    pub vhost_user_socket: Option<PathBuf>,
}

impl DiskView {
    fn of(number: u32, disk: &dyn RunningDisk) -> DiskView {
        let guest = disk.stats();
        DiskView {
            number,
            reads: guest.reads.get(),
            writes: guest.writes.get(),
            flushes: guest.flushes.get(),
            first_writes: guest.first_writes.get(),
            map_loads: guest.map_loads.get(),
            device: disk.device_counters(),
            layers: disk.layer_counters(),
            vhost_user_socket: None,
        }
    }
}

impl RunningVm {
    /// Creates the running side of an open machine, which `front_end` does not serve yet.
    pub(crate) fn new(
        front_end: &FrontEnd,
        name: &str,
        machine: Rc<dyn Machine>,
        files: Option<Rc<HomeFiles>>,
        settings: ClientSettings,
    ) -> Rc<RunningVm> {
        let limiter = front_end.limiter(name);
        limiter.set(settings.limits);
        let (name, id) = (name.to_owned(), machine.state().id);
        let (gate, connections) = (Rc::default(), Rc::default());
        let vm = RunningVm { name, id, machine, files, gate, connections, limiter, remote: None };
        vm.gate.guests.shared_writers.set(settings.shared_writers);
        vm.gate.guests.waits_for_space.set(settings.waits_for_space);
        Rc::new(vm)
    }

    /// Creates the running side of a native VM whose store is on another core.
    pub(crate) fn of_store_elsewhere(
        front_end: &FrontEnd,
        name: &str,
        remote: Rc<RemoteVm>,
        settings: ClientSettings,
    ) -> Rc<RunningVm> {
        let vm = RunningVm::new(front_end, name, remote.clone(), None, settings);
        let mut vm = Rc::into_inner(vm).expect("it was made just now");
        vm.remote = Some(remote);
        Rc::new(vm)
    }

    /// Brings the copy of the machine's state up to date, where the store is on another core.
    pub(crate) async fn refresh(&self) {
        if let Some(remote) = &self.remote {
            remote.refresh().await;
        }
    }

    pub(crate) fn view(&self) -> VmView {
        let state = self.machine.state();
        let sealed = state.snapshots.iter().map(|s| s.id).filter(|id| self.machine.is_sealed(*id)).collect();
        let running = |number: u32| Some(DiskView::of(number, &*self.machine.disk(number).ok()?));
        let disks = state.disks.iter().filter_map(|disk| running(disk.number)).collect();
        VmView {
            sealed,
            disks,
            clients: self.present(Who::All),
            shared_writers: self.gate.guests.shared_writers.get(),
            waiting_writes: self.gate.guests.waiting(),
            delayed_requests: self.limiter.delayed(),
            state,
        }
    }

    pub(crate) fn has_open_job(&self) -> bool {
        self.machine.jobs().iter().any(|job| !job.state().is_over())
    }

    /// Returns the highest mean latency of a disk's reads or writes in microseconds; None if there was no request.
    pub(crate) fn guest_latency_us(&self) -> Option<u64> {
        let disks = self.machine.disks();
        disks
            .iter()
            .map(|d| d.stats().read_latency_ns.get().max(d.stats().write_latency_ns.get()) / 1000)
            .max()
            .filter(|&us| us > 0)
    }

    pub(crate) fn present(&self, who: Who) -> Vec<VmClient> {
        let mut clients = self.writers();
        if who == Who::All {
            clients.extend(self.readers());
        }
        clients
    }

    /// Returns the clients that may write to the VM's running disks, or that read a disk while another client writes
    /// it.
    pub(crate) fn writers(&self) -> Vec<VmClient> {
        let clients = self.machine.clients().into_iter();
        let shown = |(disk, client): (u32, String)| {
            let access = self.gate.guests.access(disk, &client).shown();
            VmClient { disk: Some(disk), snapshot: None, client, access }
        };
        clients.map(shown).collect()
    }

    /// Returns the clients that read the VM's sealed states.
    pub(crate) fn readers(&self) -> Vec<VmClient> {
        let state = self.machine.state();
        let name = |id: u128| state.snapshots.iter().find(|s| s.id == id).map(|s| s.name.clone());
        let viewers = self.machine.viewers().into_iter();
        viewers
            .map(|(id, client)| VmClient {
                disk: None,
                snapshot: Some(name(id).unwrap_or_else(|| format!("{id:032x}"))),
                client,
                access: ClientAccess::ReadOnly,
            })
            .collect()
    }
}
