//! Handle of a VM that a core runs. The control side uses the VM only through it: every operation runs on the VM's core
//! and returns plain values.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use api::VmClient;
use api::error::Result;
use blk::manifest::{ContentGeneration, SnapshotState, VmState};
use engine::native::NativeVm;
use engine::{
    CommitWhat, DefragmentRequest, DiffRequest, Differences, DiskLayers, Job, JobControl, Machine, Options,
    SpaceUsage,
};
use export::IoLimits;

use crate::daemon::cores::CoreLink;
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::running::home_files::{HomeFiles, HomePlan};
use crate::daemon::running::kept::GuardNumber;
use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::running::vm::{ClientSettings, RunningVm, VmView};

pub(crate) struct VmHandle {
    pub(super) core: Rc<CoreLink>,
    vm: Location,
    pub(super) native: Option<NativeHere>,
    /// The core that has the connections of clients from before the VM came here, if it was another one.
    pub(super) relaying: RefCell<Option<Rc<CoreLink>>>,
}

/// A native VM whose clients are on another core than the control side's, where its store is. Its operations run here.
pub(super) struct NativeHere {
    machine: Rc<dyn Machine>,
    own: Rc<RunningVms>,
}

enum Location {
    Here(Rc<RunningVm>),
    Elsewhere {
        /// Number of the VM among those that the core keeps for the control side.
        number: u64,
        /// The VM's jobs, finished ones included. An answer that may have changed them brings them along.
        jobs: RefCell<Vec<Arc<JobControl>>>,
    },
}

/// Keeps something on a VM's core until it is dropped: a closed client gate, a sealed state, writes that are held back.
pub(crate) struct Guard {
    number: GuardNumber,
    here: Option<Rc<RunningVms>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Elsewhere the drop of the number releases it.
        if let Some(running) = &self.here {
            running.kept.release(self.number.number);
        }
    }
}

impl Drop for VmHandle {
    fn drop(&mut self) {
        if let Location::Elsewhere { number, .. } = self.vm {
            self.core.tell(move |running| running.forget(number));
        }
    }
}

fn jobs_of(machine: &dyn Machine) -> Vec<Arc<JobControl>> {
    machine.jobs().iter().map(|job| job.control().clone()).collect()
}

impl VmHandle {
    /// Returns the handle of a VM of the control side's own core.
    pub(crate) fn here(core: &Rc<CoreLink>, vm: Rc<RunningVm>) -> VmHandle {
        assert!(core.own().is_some(), "a VM of core{} is not here", core.number);
        VmHandle { core: core.clone(), vm: Location::Here(vm), native: None, relaying: RefCell::default() }
    }

    /// Serves the clients of a native VM on another core than the control side's, under `name`. `own` is the control side's core.
    pub(crate) async fn native_elsewhere(
        core: &Rc<CoreLink>,
        own: &Rc<CoreLink>,
        name: &str,
        vm: Rc<NativeVm>,
        settings: ClientSettings,
    ) -> VmHandle {
        let store_side = core.store_side().expect("the core is not the stores'");
        // The store may have another name of the VM.
        let (name, ticket) = (name.to_owned(), store_side.serve_vm(vm.clone()));
        let open = async move |running: Rc<RunningVms>| {
            running.kept.keep_vm(running.open_native(&name, ticket, settings))
        };
        let vm_there = Location::Elsewhere { number: core.run(open).await, jobs: RefCell::default() };
        let own = own.own().expect("the control side is on the stores' core").clone();
        let native = Some(NativeHere { machine: vm, own });
        VmHandle { core: core.clone(), vm: vm_there, native, relaying: RefCell::default() }
    }

    /// Opens a VM with files on another core than the control side's.
    pub(crate) async fn open_elsewhere(
        core: &Rc<CoreLink>,
        name: &str,
        plan: HomePlan,
        options: Options,
        settings: ClientSettings,
    ) -> blk::Result<VmHandle> {
        let name = name.to_owned();
        let open = async move |running: Rc<RunningVms>| {
            let folders = running.folders.all();
            let files = HomeFiles::open_planned(&running.env, &running.descriptors, plan, folders).await?;
            let vm = running.open_redo(&name, files, options, settings).await?;
            let jobs = jobs_of(&*vm.machine);
            Ok::<_, blk::Error>((running.kept.keep_vm(vm), jobs))
        };
        let (number, jobs) = core.run(open).await?;
        let vm = Location::Elsewhere { number, jobs: RefCell::new(jobs) };
        Ok(VmHandle { core: core.clone(), vm, native: None, relaying: RefCell::default() })
    }

    /// Returns the number of the VM's core.
    pub(crate) fn core(&self) -> usize {
        self.core.number
    }

    /// Returns the VM if it is on the control side's own core.
    pub(crate) fn own(&self) -> Option<&Rc<RunningVm>> {
        match &self.vm {
            Location::Here(vm) => Some(vm),
            Location::Elsewhere { .. } => None,
        }
    }

    /// Returns the machine if it is on the control side's own core.
    pub(crate) fn own_machine(&self) -> Option<&Rc<dyn Machine>> {
        match (&self.native, &self.vm) {
            (Some(native), _) => Some(&native.machine),
            (None, Location::Here(vm)) => Some(&vm.machine),
            (None, Location::Elsewhere { .. }) => None,
        }
    }

    /// Returns the number by which messages of another core name the VM.
    pub(crate) fn number(&self) -> Option<u64> {
        match self.vm {
            Location::Here(_) => None,
            Location::Elsewhere { number, .. } => Some(number),
        }
    }

    /// Runs `work` on the core of the VM's clients. Where that is another core, `work` goes on if the caller stops waiting.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<RunningVms>, Rc<RunningVm>) -> T + Send + 'static,
    ) -> T {
        match (&self.vm, self.core.own()) {
            (Location::Here(vm), Some(running)) => work(running.clone(), vm.clone()).await,
            (Location::Elsewhere { number, .. }, None) => {
                let number = *number;
                let work = async move |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
                    vm.refresh().await;
                    work(running, vm).await
                };
                self.core.run_on(move |running| running.kept.vm(number), work).await
            }
            _ => unreachable!("a VM is where its core is"),
        }
    }

    pub(super) async fn on_machine<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<dyn Machine>) -> T + Send + 'static,
    ) -> T {
        match self.own_machine() {
            Some(machine) => work(machine.clone()).await,
            None => self.run(async move |_, vm| work(vm.machine.clone()).await).await,
        }
    }

    /// Runs `work`, which may be refused because of clients: those that have left do not count any more.
    pub(super) async fn on_machine_without_clients<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<dyn Machine>) -> T + Send + 'static,
    ) -> T {
        if self.native.is_some() {
            // The departures have been sent to the stores' core before, in order.
            self.run(async |_, _| ()).await;
        }
        self.on_machine(work).await
    }

    /// Runs `work` with the files of a VM that has files.
    pub(crate) async fn with_files<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&HomeFiles) -> T + Send + 'static,
    ) -> T {
        self.run(async move |_, vm| work(vm.files.as_ref().expect("the VM has files")).await).await
    }

    pub(super) fn guard(&self, number: GuardNumber) -> Guard {
        Guard { number, here: self.core.own().cloned() }
    }

    /// Keeps something of the machine's, on its core.
    pub(super) async fn keep_of_machine<T: Send + 'static, Kept: 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<dyn Machine>) -> blk::Result<(T, Kept)> + Send + 'static,
    ) -> blk::Result<(T, Guard)> {
        if let Some(NativeHere { machine, own }) = &self.native {
            let (value, kept) = work(machine.clone()).await?;
            return Ok((value, Guard { number: own.kept.keep(kept), here: Some(own.clone()) }));
        }
        let keep = async move |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            let (value, kept) = work(vm.machine.clone()).await?;
            Ok::<_, blk::Error>((value, running.kept.keep(kept)))
        };
        let (value, number) = self.run(keep).await?;
        Ok((value, self.guard(number)))
    }

    /// Serves the VM to clients under its name.
    pub(crate) fn serve(&self) {
        match &self.vm {
            Location::Here(vm) => {
                let vm = vm.clone();
                self.core.own().expect("the VM is here").serve(vm);
            }
            Location::Elsewhere { number, .. } => {
                let number = *number;
                self.core.tell(move |running| running.serve(running.kept.vm(number)));
            }
        }
    }

    /// Ends the VM's service under its name.
    pub(crate) fn unserve(&self) {
        match &self.vm {
            Location::Here(vm) => self.core.own().expect("the VM is here").unserve(vm),
            Location::Elsewhere { number, .. } => {
                let number = *number;
                self.core.tell(move |running| running.unserve(&running.kept.vm(number)));
            }
        }
    }

    /// Lets the sockets of the VM's disks follow a change of its disks or of their content.
    pub(crate) fn follow_exports(&self) {
        match &self.vm {
            Location::Here(vm) => self.core.own().expect("the VM is here").follow_exports(vm.clone()),
            Location::Elsewhere { number, .. } => {
                let number = *number;
                self.core.tell(move |running| running.follow_exports(running.kept.vm(number)));
            }
        }
    }

    /// Lets the VM's core send the VM's events and notices, those so far first. They have arrived when this returns.
    pub(crate) async fn send_events(&self) {
        let Some(number) = self.number() else { return };
        let find = move |running: &RunningVms| running.kept.vm(number);
        self.core.run_on(find, async move |running, vm| running.send_events(&vm, number)).await;
    }

    // State.

    pub(crate) async fn view(&self) -> VmView {
        let view = self.run(async |running: Rc<RunningVms>, vm| running.view(&vm)).await;
        self.with_counters_of_store(view)
    }

    /// Adds what the stores' core counts of a native VM's disks.
    fn with_counters_of_store(&self, mut view: VmView) -> VmView {
        let Some(native) = &self.native else { return view };
        for shown in &mut view.disks {
            if let Ok(disk) = native.machine.disk(shown.number) {
                shown.first_writes = disk.stats().first_writes.get();
                shown.map_loads = disk.stats().map_loads.get();
                shown.device = disk.device_counters();
            }
        }
        view
    }

    /// Tells the VM's vhost-user clients the present sizes of its disks. Returns the names of clients that are told.
    pub(crate) async fn tell_sizes(&self) -> Vec<String> {
        let told = self.run(async |running, _| running.vhost.front_end.sizes_changed()).await;
        told.into_iter().map(|session| session.peer).collect()
    }

    pub(crate) async fn state(&self) -> VmState {
        self.on_machine(async |vm| vm.state()).await
    }

    /// Returns the view, and the layers of the running disks.
    pub(crate) async fn view_with_layers(&self) -> (VmView, blk::Result<Vec<DiskLayers>>) {
        if self.native.is_some() {
            return (self.view().await, self.listing().await);
        }
        let look = async |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            let layers = vm.machine.listing().await;
            (running.view(&vm), layers)
        };
        self.run(look).await
    }

    pub(crate) async fn generation(&self) -> ContentGeneration {
        self.on_machine(async |vm| vm.generation()).await
    }

    pub(crate) async fn expect_disk(&self, number: u32) -> blk::Result<()> {
        self.on_machine(async move |vm| vm.disk(number).map(drop)).await
    }

    pub(crate) async fn waiting_writes(&self) -> u64 {
        self.run(async |_, vm| vm.gate.guests.waiting()).await
    }

    pub(crate) async fn guest_latency_us(&self) -> Option<u64> {
        self.run(async |_, vm| vm.guest_latency_us()).await
    }

    /// Returns how much all disks can still allocate if their guests write everything, in bytes.
    pub(crate) async fn worst_growth_bytes(&self) -> blk::Result<u64> {
        let sum = async |vm: Rc<dyn Machine>| {
            let mut bytes: u64 = 0;
            for disk in vm.disks() {
                bytes = bytes.saturating_add(disk.worst_growth_bytes().await?);
            }
            Ok(bytes)
        };
        self.on_machine(sum).await
    }

    pub(crate) async fn listing(&self) -> blk::Result<Vec<DiskLayers>> {
        self.on_machine(async |vm| vm.listing().await).await
    }

    pub(crate) async fn unowned_bytes(&self) -> blk::Result<u64> {
        self.on_machine(async |vm| vm.unowned_bytes().await).await
    }

    pub(crate) async fn delta_bytes(&self) -> blk::Result<BTreeMap<u128, u64>> {
        self.on_machine(async |vm| vm.delta_bytes().await).await
    }

    pub(crate) async fn used(&self) -> blk::Result<SpaceUsage> {
        self.on_machine(async |vm| vm.used().await).await
    }

    pub(crate) async fn differences(&self, between: DiffRequest<'_>) -> blk::Result<Differences> {
        let DiffRequest { disk, from, to, start, end } = between;
        let (from, to) = (from.to_owned(), to.map(str::to_owned));
        let compare = async move |vm: Rc<dyn Machine>| {
            vm.differences(DiffRequest { disk, from: &from, to: to.as_deref(), start, end }).await
        };
        self.on_machine(compare).await
    }

    pub(crate) async fn binned_bytes(&self, id: u64) -> blk::Result<u64> {
        self.on_machine(async move |vm| vm.binned_bytes(id).await).await
    }

    // Jobs. Their state and their figures are shared, so they need no message.

    /// Returns the VM's jobs, finished ones included.
    pub(crate) fn jobs(&self) -> Vec<Arc<JobControl>> {
        match (self.own_machine(), &self.vm) {
            (None, Location::Elsewhere { jobs, .. }) => jobs.borrow().clone(),
            (Some(machine), _) => jobs_of(&**machine),
            (None, Location::Here(_)) => unreachable!("a VM that is here has its machine here"),
        }
    }

    pub(crate) fn has_open_job(&self) -> bool {
        self.jobs().iter().any(|job| !job.state().is_over())
    }

    pub(crate) async fn commit(&self, what: &CommitWhat) -> blk::Result<Arc<JobControl>> {
        let what = what.clone();
        self.start_job(async move |vm| vm.commit(&what).await).await
    }

    pub(crate) async fn defragment(&self, request: DefragmentRequest) -> blk::Result<Arc<JobControl>> {
        self.start_job(async move |vm| vm.defragment(request).await).await
    }

    async fn start_job(
        &self,
        start: impl AsyncFnOnce(Rc<dyn Machine>) -> blk::Result<Rc<Job>> + Send + 'static,
    ) -> blk::Result<Arc<JobControl>> {
        if let Some(native) = &self.native {
            return Ok(start(native.machine.clone()).await?.control().clone());
        }
        let start = async move |_, vm: Rc<RunningVm>| {
            let job = start(vm.machine.clone()).await?;
            Ok::<_, blk::Error>((job.control().clone(), jobs_of(&*vm.machine)))
        };
        let (job, now) = self.run(start).await?;
        if let Location::Elsewhere { jobs, .. } = &self.vm {
            jobs.replace(now);
        }
        Ok(job)
    }

    pub(crate) async fn average_run_bytes(&self, number: u32) -> blk::Result<Option<u64>> {
        self.on_machine(async move |vm| vm.average_run_bytes(number).await).await
    }

    // Clients.

    pub(crate) async fn present(&self, who: Who) -> Vec<VmClient> {
        self.run(async move |_, vm| vm.present(who)).await
    }

    /// Returns the clients that read the VM's sealed states.
    pub(crate) async fn readers(&self) -> Vec<VmClient> {
        self.run(async |_, vm| vm.readers()).await
    }

    pub(crate) async fn set_shared_writers(&self, shared: bool) {
        self.run(async move |_, vm| vm.gate.guests.shared_writers.set(shared)).await;
    }

    /// Sets the limits. If there are none now, all requests that waited have begun when this returns.
    pub(crate) async fn set_limits(&self, limits: IoLimits) {
        if let (Some(relaying), Some(vm)) = (self.relaying(), self.own()) {
            let name = vm.name.clone();
            relaying.tell(move |running| running.front_end.limiter(&name).set(limits));
        }
        let set = async move |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            vm.limiter.set(limits);
            while limits.ios.is_none() && limits.bytes.is_none() && vm.limiter.delayed() > 0 {
                running.env.next_turn().await;
            }
        };
        self.run(set).await;
    }

    /// Closes the client gate. The caller has seen to the clients.
    pub(crate) async fn shut(&self) -> Guard {
        let number = self.run(async |running, vm| running.kept.keep(vm.gate.shut())).await;
        self.guard(number)
    }

    /// Closes the client gate of an idle VM. Refused while a client is connected or connecting, or a job is open.
    pub(crate) async fn shut_idle(&self, purpose: &str) -> Result<Guard> {
        let purpose = purpose.to_owned();
        let shut = async move |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            running.shut_idle(&vm, &purpose).map(|shut| running.kept.keep(shut))
        };
        Ok(self.guard(self.run(shut).await?))
    }

    /// Waits a short time for clients that have ended. Returns whether none is left.
    pub(crate) async fn await_ended(&self, who: Who) -> bool {
        self.run(async move |running, vm| running.await_ended(&vm, who).await).await
    }

    /// Disconnects the clients `who`, and waits until none of their requests is under way. Returns these clients. The
    /// client gate stays closed as long as the guard lives.
    pub(crate) async fn disconnect(&self, who: Who) -> Result<(Vec<VmClient>, Guard)> {
        if let (Some(relaying), Some(vm)) = (self.relaying(), self.own()) {
            let name = vm.name.clone();
            relaying.tell(move |running| running.cut(&name, who));
        }
        let disconnect = async move |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            let (clients, shut) = running.disconnect(&vm, who).await?;
            Ok::<_, api::error::Error>((clients, running.kept.keep(shut)))
        };
        let (clients, number) = self.run(disconnect).await?;
        Ok((clients, self.guard(number)))
    }

    /// Holds back guest writes that may take space of the file system, until the guard is dropped.
    pub(crate) async fn hold_writes(&self) -> Guard {
        let hold = async |vm: Rc<dyn Machine>| Ok(((), vm.hold_writes().await));
        let held: blk::Result<((), Guard)> = self.keep_of_machine(hold).await;
        held.expect("holding writes back does not fail").1
    }

    /// Returns a sealed snapshot, whose content stays in place until the guard is dropped.
    pub(crate) async fn hold(&self, snapshot: &str, client: &str) -> blk::Result<(SnapshotState, Guard)> {
        let (snapshot, client) = (snapshot.to_owned(), client.to_owned());
        self.keep_of_machine(async move |vm| vm.hold(&snapshot, &client).await).await
    }
}
