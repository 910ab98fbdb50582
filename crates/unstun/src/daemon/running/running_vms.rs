//! VMs that one core runs, by name, and the front end that serves them.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use api::VmClient;
use api::error::{Error, Result};
use blk::Env;
use blk::meter::PollFigures;
use blk::volume::Exports;
use engine::native::{VmEnd, VmSide, VmTicket};
use engine::{Options, Vm};
use export::nbd::{self, FrontEnd};
use futures_util::future::{Either, select};
use tokio::sync::mpsc::WeakUnboundedSender;

use crate::daemon::running::client::client_gate::{Shut, Who};
use crate::daemon::running::client::export_name::lasting_name;
use crate::daemon::running::client::front_end::vhost_front_end;
use crate::daemon::running::client::vhost_sockets::VhostSockets;
use crate::daemon::running::descriptors::Descriptors;
use crate::daemon::running::folders::WatchedFolders;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::running::kept::{KeptObjects, ReleaseFromElsewhere};
use crate::daemon::running::messages::ControlSide;
use crate::daemon::running::vm::{ClientSettings, RunningVm, VmView};

/// Maximum time in microseconds until disconnected clients are gone: their requests run to their end first. A request
/// that waits for space on a full datastore may never end; the operation is refused then.
const GONE_WITHIN_US: u64 = 20_000_000;

/// Maximum time in microseconds until the connection of a client that has ended is closed.
const ENDED_WITHIN_US: u64 = 200_000;

/// Interval in microseconds between two checks. A client that has chosen its disk is not listed under it before its
/// first request.
const LOOK_AGAIN_US: u64 = 50_000;

/// Work that the control side sends to a core.
pub(crate) type CoreTask = Box<dyn FnOnce(&Rc<RunningVms>) + Send>;

pub(crate) struct RunningVms {
    pub core: CoreNumber,
    pub env: Env,
    pub front_end: Rc<FrontEnd>,
    pub vhost: VhostSockets,
    pub control: ControlSide,
    pub descriptors: Rc<Descriptors>,
    /// VMs that clients can open, by name.
    vms: RefCell<BTreeMap<String, Rc<RunningVm>>>,
    /// Folders of the datastores, by path: homes are opened and searched through them.
    pub folders: WatchedFolders,
    /// VMs and guards that the control side refers to by number.
    pub kept: KeptObjects,
    /// The catalogue that clients of this core see.
    pub exports: OnceCell<Rc<dyn Exports>>,
    /// Serves native VMs of the control side's core on another core.
    vm_side: OnceCell<Rc<VmSide>>,
    ended: Cell<bool>,
}

/// Place of a core among the cores of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoreNumber {
    pub own: usize,
    pub count: usize,
}

/// Figures of a core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreFigures {
    pub number: usize,
    pub nbd_clients: u64,
    /// Messages to the core of the native stores, and their batches.
    pub store_messages: (u64, u64),
    pub polls: PollFigures,
}

/// Returns a function that sends the release of a guard to a core. A core that has ended keeps nothing.
fn release_by_message(inbox: WeakUnboundedSender<CoreTask>) -> ReleaseFromElsewhere {
    Arc::new(move |number| {
        if let Some(inbox) = inbox.upgrade() {
            let _ = inbox.send(Box::new(move |running| running.kept.release(number)));
        }
    })
}

impl RunningVms {
    /// Creates a core without VMs. `inbox` receives the control side's work; the control side's own core has none.
    pub(crate) fn new(
        core: CoreNumber,
        env: Env,
        front_end: Rc<FrontEnd>,
        control: ControlSide,
        descriptors: Rc<Descriptors>,
        inbox: Option<WeakUnboundedSender<CoreTask>>,
    ) -> Rc<RunningVms> {
        let vhost = vhost_front_end(&front_end, descriptors.vhost_user() / core.count as u64);
        Rc::new(RunningVms {
            core,
            vhost: VhostSockets::new(env.clone(), vhost),
            env,
            front_end,
            control,
            descriptors,
            vms: RefCell::default(),
            folders: WatchedFolders::default(),
            kept: KeptObjects::new(inbox.map(release_by_message)),
            exports: OnceCell::new(),
            vm_side: OnceCell::new(),
            ended: Cell::new(false),
        })
    }

    /// Serves native VMs of the control side's core from now on, where this is another core.
    pub(crate) fn serve_native_vms(&self, end: VmEnd, grant_bytes_max: usize) {
        self.vm_side.get_or_init(|| VmSide::start(&self.env, end, grant_bytes_max));
    }

    /// Opens a native VM of the control side's core, and does not serve it yet.
    pub(crate) fn open_native(
        &self,
        name: &str,
        ticket: VmTicket,
        settings: ClientSettings,
    ) -> Rc<RunningVm> {
        RunningVm::of_store_elsewhere(&self.front_end, name, self.vm_side().open_vm(ticket), settings)
    }

    /// Returns this end of the connection with the control side's core.
    pub(crate) fn vm_side(&self) -> &Rc<VmSide> {
        self.vm_side.get().expect("a core beside the control side's is connected with the stores")
    }

    /// Brings the copies of the states of native VMs up to date.
    pub(crate) async fn refresh_all(&self) {
        for vm in self.all() {
            vm.refresh().await;
        }
    }

    pub(crate) fn figures(&self) -> CoreFigures {
        let nbd_clients = (self.front_end.sessions().len() + self.vhost.front_end.sessions().len()) as u64;
        let store_messages = self.vm_side.get().map(|side| side.messages()).unwrap_or_default();
        CoreFigures { number: self.core.own, nbd_clients, store_messages, polls: self.env.polls() }
    }

    /// Returns what the control side shows of a VM.
    pub(crate) fn view(&self, vm: &RunningVm) -> VmView {
        let mut view = vm.view();
        self.vhost.follow(vm);
        for disk in &mut view.disks {
            let export = lasting_name(&vm.name, disk.number, view.state.generation);
            disk.vhost_user_socket = self.vhost.path(&vm.name, &export);
        }
        view
    }

    /// Lets the sockets of a VM's disks follow a change of its disks or of their content.
    pub(crate) fn follow_exports(self: &Rc<Self>, vm: Rc<RunningVm>) {
        let running = self.clone();
        // The event may be recorded before the operation has changed its last field.
        self.env.spawn_detached(Box::pin(async move {
            running.env.next_turn().await;
            vm.refresh().await;
            if running.get(&vm.name).is_some_and(|present| Rc::ptr_eq(&present, &vm)) {
                running.vhost.follow(&vm);
                running.vhost.front_end.sizes_changed();
            }
        }));
    }

    /// Gives every running disk a socket for vhost-user clients in `folder`, now and later. Clients of other front ends
    /// are served meanwhile.
    pub(crate) async fn serve_vhost_user(&self, folder: PathBuf) {
        let Some(exports) = self.exports.get() else { return };
        self.vhost.open(folder, exports.clone());
        for vm in self.all() {
            if self.get(&vm.name).is_some_and(|served| Rc::ptr_eq(&served, &vm)) {
                self.vhost.follow(&vm);
                self.env.next_turn().await;
            }
        }
    }

    /// Waits until the connections of the core are closed, after its front ends were stopped.
    pub(crate) async fn end_connections(&self) {
        nbd::drain(&self.env, &self.front_end).await;
        self.vhost.front_end.ended(&self.env).await;
    }

    /// Ends the core, which has nothing open any more.
    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(crate) fn all(&self) -> Vec<Rc<RunningVm>> {
        self.vms.borrow().values().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Rc<RunningVm>> {
        self.vms.borrow().get(name).cloned()
    }

    /// Serves the VM under its name, in place of the one that had the name.
    pub(crate) fn serve(&self, vm: Rc<RunningVm>) {
        self.vms.borrow_mut().insert(vm.name.clone(), vm.clone());
        self.vhost.follow(&vm);
    }

    /// Opens a VM with files, and does not serve it yet.
    pub(crate) async fn open_redo(
        &self,
        name: &str,
        files: HomeFiles,
        options: Options,
        settings: ClientSettings,
    ) -> blk::Result<Rc<RunningVm>> {
        let files = Rc::new(files);
        let machine = Vm::open(self.env.clone(), files.manifest(), options).await?;
        Ok(RunningVm::new(&self.front_end, name, machine, Some(files), settings))
    }

    /// Ends the service of a VM under its name. Another VM that has got the name meanwhile is served on.
    pub(crate) fn unserve(&self, vm: &Rc<RunningVm>) {
        let mut vms = self.vms.borrow_mut();
        if vms.get(&vm.name).is_some_and(|served| Rc::ptr_eq(served, vm)) {
            vms.remove(&vm.name);
            self.vhost.forget(&vm.name);
        }
    }

    /// Forgets a VM of which the control side has no handle any more.
    pub(crate) fn forget(&self, number: u64) {
        if let Some(vm) = self.kept.take_vm(number) {
            self.unserve(&vm);
        }
    }

    /// Closes the client gate of an idle VM. Refused while a client is connected or connecting, or a job is open.
    pub(crate) fn shut_idle(&self, vm: &RunningVm, purpose: &str) -> Result<Shut> {
        let name = &vm.name;
        if vm.gate.is_entered() {
            return Err(Error::refused(format!("VM {name}: a client is connecting; try again")));
        }
        let clients = vm.present(Who::All);
        if !clients.is_empty() {
            let who: Vec<String> = clients.iter().map(ToString::to_string).collect();
            let who = who.join(", ");
            return Err(Error::refused(format!("VM {name}: {who}; disconnect them first, then {purpose}")));
        }
        if vm.has_open_job() {
            let cause = "a commit is in progress; wait for it or cancel it (`unstun job list`)";
            return Err(Error::refused(format!("VM {name}: {cause}, then {purpose}")));
        }
        Ok(vm.gate.shut())
    }

    /// Notes that a client was attached: the VM's files may have notices.
    pub(crate) fn note_attached(&self, vm: &RunningVm) {
        match (self.kept.number_of(vm), &vm.files) {
            (Some(number), Some(files)) => self.control.notices(self.core.own, number, files.take_notices()),
            _ => self.control.attached(&vm.name),
        }
    }

    /// Sends the events of a VM that the control side has on another core: first those so far, then each as it happens.
    /// Notices of the VM's files follow each of them.
    pub(crate) fn send_events(&self, vm: &RunningVm, number: u64) {
        let (core, control) = (self.core.own, self.control.clone());
        vm.machine.events().into_iter().for_each(|event| control.event(core, number, event));
        let files = vm.files.clone();
        let tell_notices = move |control: &ControlSide| {
            let notices = files.as_ref().map(|files| files.take_notices()).unwrap_or_default();
            control.notices(core, number, notices);
        };
        tell_notices(&control);
        vm.machine.listen(Box::new(move |event| {
            control.event(core, number, event.clone());
            tell_notices(&control);
        }));
    }

    /// Disconnects the clients `who`, and waits until none of their requests is under way. Returns these clients. The
    /// gate stays closed as long as the returned `Shut` lives.
    pub(crate) async fn disconnect(&self, vm: &RunningVm, who: Who) -> Result<(Vec<VmClient>, Shut)> {
        let shut = vm.gate.shut();
        let clients = vm.present(who);
        let gone = pin!(self.gone(vm, who));
        let late = pin!(self.env.sleep_us(GONE_WITHIN_US));
        match select(gone, late).await {
            Either::Left(((), _)) => Ok((clients, shut)),
            Either::Right(_) => Err(Error::refused(format!(
                "VM {}: {} clients were disconnected {} s ago, but some of their requests have not ended (a full \
                 datastore delays writes); nothing was changed; try again",
                vm.name,
                vm.present(who).len(),
                GONE_WITHIN_US / 1_000_000
            ))),
        }
    }

    /// Waits for clients that have ended, but whose connections are not closed yet: an operation that follows the end of
    /// a client is not refused because of it. Returns whether none is left.
    pub(crate) async fn await_ended(&self, vm: &RunningVm, who: Who) -> bool {
        let left = pin!(self.left(vm, who, || ()));
        let late = pin!(self.env.sleep_us(ENDED_WITHIN_US));
        matches!(select(left, late).await, Either::Left(_))
    }

    async fn gone(&self, vm: &RunningVm, who: Who) {
        self.left(vm, who, || self.cut(&vm.name, who)).await;
    }

    /// Returns when no such client is left. Calls `act` before each check.
    async fn left(&self, vm: &RunningVm, who: Who, act: impl Fn()) {
        loop {
            // The wait is registered before the check, so that no change between the two is missed.
            let changed = vm.gate.someone_left();
            act();
            if vm.present(who).is_empty() && !vm.gate.is_entered() {
                return;
            }
            select(pin!(changed), pin!(self.env.sleep_us(LOOK_AGAIN_US))).await;
        }
    }

    /// Closes the connections of the clients `who` of a VM.
    pub(crate) fn cut(&self, vm: &str, who: Who) {
        let prefix = format!("{vm}/disk");
        for session in self.front_end.sessions() {
            let writes = !session.export.contains('@');
            if session.export.starts_with(&prefix) && (writes || who == Who::All) {
                self.front_end.disconnect(session.id);
            }
        }
        for session in self.vhost.front_end.sessions() {
            if session.export.starts_with(&prefix) {
                self.vhost.front_end.disconnect(session.id);
            }
        }
    }
}
