//! Start and end of the daemon: recovery and opening of its datastores and their VMs, and the orderly shut-down.

use crate::daemon::cores::vm_handle::{Guard, VmHandle};
use crate::daemon::cores::{CoreLink, StartedCore};
use crate::daemon::datastore::Home;
use crate::daemon::datastore::datastores::without_lease;
use crate::daemon::datastore::hang::{or_go_on, until_hung};
use crate::daemon::relocation::plan::Side;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::running::messages::{ControlSide, Inbox};
use crate::daemon::running::vm::{ClientSettings, RunningVm};
use crate::daemon::state::Daemon;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::inuse;
use crate::daemon::vm::journal::{self, Journal};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use api::WhenFull;
use api::error::{Error, Result};
use blk::Env;
use blk::sync::TaskMutex;
use engine::job::{MOVE, SCRUB};
use futures_util::stream::{self, StreamExt};
use tracing::{error, warn};

use crate::daemon::datastore::{Datastore, asked};
use crate::daemon::place::Place;
use crate::daemon::relocation::{handover, record, recovery};
use crate::daemon::vm::home_folder::HomeFolder;
use crate::daemon::vm::labels::VmRecordLabels;
use crate::daemon::vm::limits::StoredLimits;
use crate::daemon::vm::vm_record::{Broken, Kept, VmRecord};
use crate::daemon::vm::{formats, labels, limits, mark, memory, native_homes, settings};

/// Maximum number of native VMs that a start opens side by side. Each makes some 20 calls to the file system one after the
/// other, of 10 microseconds each and with a round trip between two threads of several times that: so many VMs keep the
/// file system's thread busy, and make the core's other tasks wait for at most as many short polls. Each may have up to
/// 8 descriptors open and some KiB of memory, besides what an open VM has.
const OPENINGS_MAX: u64 = 16;

/// Maximum number of VMs that the end of the daemon closes side by side. A VM with files has at most 24 MiB of grain tables
/// to write, which all of them share; a native one has nothing of its own.
const CLOSINGS_MAX: usize = 64;

/// When a home is opened at the start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// While other homes are opened.
    SideBySide,
    /// After all homes of the datastore that can be opened side by side.
    Alone,
}

/// How a VM is opened.
#[derive(Default, Clone, Copy)]
struct Opening {
    /// With its client gate closed.
    shut: bool,
    /// On the control side's own core.
    here: bool,
}

impl Daemon {
    /// Locks the datastores and opens every VM in them.
    pub(super) async fn open(
        env: Env,
        place: &Place,
        control: ControlSide,
        inbox: Inbox,
        cores: Vec<StartedCore>,
    ) -> Result<Rc<Daemon>> {
        let daemon = Daemon::new(env, place, Journal::default(), control, cores).await?;
        daemon.env.spawn_detached(Box::pin(Daemon::serve_core(Rc::downgrade(&daemon), inbox)));
        daemon.open_all().await?;
        for datastore in daemon.datastores() {
            daemon.log_served(&datastore).await;
        }
        daemon.env.spawn_detached(Box::pin(daemon.clone().thaw_left()));
        Ok(daemon)
    }

    pub(super) async fn open_all(self: &Rc<Self>) -> Result<()> {
        self.open_on_cores(&self.main).await?;
        self.open_added().await?;
        self.open_datastores().await?;
        self.read_policies().await;
        Ok(())
    }

    /// Opens every VM of every datastore that is not in the registry yet, after finishing what crashes have
    /// interrupted.
    pub(super) async fn open_datastores(self: &Rc<Self>) -> Result<()> {
        for datastore in self.datastores() {
            datastore.notices.borrow_mut().clear();
            let (daemon, one) = (self.clone(), datastore.clone());
            let finish = async move {
                daemon.finish_all(&one).await;
                Ok(())
            };
            self.at_datastore(&datastore, "finishing what was interrupted", finish).await?;
        }
        for datastore in self.datastores() {
            let (daemon, one) = (self.clone(), datastore.clone());
            let settle = async move {
                daemon.recover_handovers(&one).await;
                Ok(())
            };
            self.at_datastore(&datastore, "completing its moves", settle).await?;
        }
        for datastore in self.datastores() {
            let (daemon, one) = (self.clone(), datastore.clone());
            let open = async move { daemon.open_homes(&one).await };
            self.at_datastore(&datastore, "opening its VMs", open).await?;
        }
        Ok(())
    }

    /// Runs one step of a datastore's start. A datastore that hangs continues by itself and holds up no other. Its
    /// steps keep their order, including those of a later start.
    async fn at_datastore(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        doing: &str,
        work: impl Future<Output = Result<()>> + 'static,
    ) -> Result<()> {
        let what = format!("datastore {}: {doing}", datastore.name);
        let datastore = datastore.clone();
        let turn = datastore.opening.lock();
        let work = async move {
            let _turn = turn.await;
            work.await
        };
        or_go_on(&self.env, what, move || datastore.hang(), work).await.unwrap_or(Ok(()))
    }

    /// Opens every VM of a datastore.
    async fn open_homes(self: &Rc<Self>, datastore: &Rc<Datastore>) -> Result<()> {
        // Guests of the VMs read the images from the first request on.
        if datastore.native.exists().await? {
            match datastore.native.open().await {
                Ok(_) => self.open_sources(datastore).await,
                // Opening the VMs one by one reports the error.
                Err(e) => error!("{e}"),
            }
        }
        self.open_each(datastore, datastore.candidates().await?).await;
        // Homes that moves have left are removed by now.
        match native_homes::find_homeless(self, datastore).await {
            Ok(homeless) => self.open_each(datastore, homeless).await,
            // Opening the VMs one by one reports the error.
            Err(e) => error!("{e}"),
        }
        Ok(())
    }

    /// Opens the home of this name if it appeared since the start: it was copied, moved or restored by hand.
    pub(super) async fn open_found(self: &Rc<Self>, name: &str) {
        for datastore in self.datastores().iter().filter(|_| !self.is_taken(name)) {
            let path = datastore.home(name).path;
            if let Ok(Ok(true)) = asked(datastore, datastore.is_inhabited(&path)).await {
                self.open_each(datastore, vec![(name.to_owned(), path)]).await;
            }
        }
    }

    /// Opens native VMs side by side, and then the others one after the other: VMs with files may read one another's
    /// layers, and what they need of the descriptors is known only when they are open. The notices are in the order of
    /// the names, in whatever order the VMs were opened.
    async fn open_each(self: &Rc<Self>, datastore: &Rc<Datastore>, homes: Vec<(String, PathBuf)>) {
        let noticed = datastore.notices.borrow().len();
        let known = self.homes();
        let homes: Vec<_> = homes.into_iter().filter(|(_, path)| !known.contains(path)).collect();
        let (homes, left) = (Rc::new(RefCell::new(VecDeque::from(homes))), Rc::new(RefCell::new(Vec::new())));
        let openers = (0..OPENINGS_MAX).map(|_| {
            let (daemon, datastore) = (self.clone(), datastore.clone());
            let (homes, left) = (homes.clone(), left.clone());
            self.env.spawn(async move {
                let next = || homes.borrow_mut().pop_front();
                while let Some((name, path)) = next() {
                    if daemon.open_home(&datastore, &name, &path, Turn::SideBySide).await == Turn::Alone {
                        left.borrow_mut().push((name, path));
                    }
                }
            })
        });
        for opener in openers.collect::<Vec<_>>() {
            opener.join().await;
        }
        let mut left = left.take();
        left.sort_unstable();
        for (name, path) in left {
            self.open_home(datastore, &name, &path, Turn::Alone).await;
        }
        if let Some(own) = datastore.notices.borrow_mut().get_mut(noticed..) {
            own.sort_unstable();
        }
    }

    /// Opens the VM of a home unless something else is to be done with it. Returns `Alone`, and has done nothing, if it
    /// is not the home's turn yet.
    async fn open_home(
        self: &Rc<Self>,
        datastore: &Rc<Datastore>,
        name: &str,
        path: &Path,
        turn: Turn,
    ) -> Turn {
        let home = datastore.at(path);
        // An operation that creates, moves or removes the VM is under way.
        let Ok(_claim) = self.claim(name) else { return turn };
        // It may have been opened since the homes were listed.
        if self.home_of(name).is_some_and(|home| home == path) {
            return turn;
        }
        // Opening the VM reports the error.
        let folder = async { HomeFolder::of(datastore.open_candidate(path).await?).await };
        let folder = folder.await.ok();
        if turn == Turn::SideBySide && !self.can_open_beside(folder.as_ref()) {
            return Turn::Alone;
        }
        if folder.is_none() && !datastore.is_inhabited(path).await.unwrap_or(true) {
            return turn;
        }
        let may_have_left = folder.as_ref().is_none_or(|folder| folder.has(record::RECORD_NAME));
        if may_have_left && self.has_left(&home).await {
            let left =
                format!("the remains of a move of VM {name} in {} could not be removed", path.display());
            warn!("{left}");
            home.datastore.notices.borrow_mut().push(left);
        } else if self.is_taken(name) {
            self.leave_out(name, &home);
        } else if self.is_closed(path, folder.as_ref()).await {
            self.closed.borrow_mut().insert(name.to_owned(), home);
        } else if let Err(cause) = self.open_unused(name, &home, folder).await {
            error!("VM {name} is not served: {cause}");
            self.broken.borrow_mut().insert(name.to_owned(), Broken { home, cause });
        }
        turn
    }

    async fn is_closed(&self, path: &Path, folder: Option<&HomeFolder>) -> bool {
        match folder {
            Some(folder) => folder.has(settings::CLOSED_NAME),
            None => settings::is_closed(&self.env, path).await,
        }
    }

    /// Returns whether a home may be opened while others are: a native VM that no move concerns, with descriptors for
    /// all that are being opened.
    fn can_open_beside(&self, folder: Option<&HomeFolder>) -> bool {
        let is_simple = |folder: &HomeFolder| folder.has(mark::NAME) && !folder.has(record::RECORD_NAME);
        folder.is_some_and(is_simple) && self.descriptors.have_room_for(OPENINGS_MAX)
    }

    /// Reports a VM that is not served because of its name. A name belongs to one VM in the daemon: that of the first
    /// datastore that has it.
    fn leave_out(&self, name: &str, home: &Home) {
        let notice = format!(
            "VM {name} in {} is not served: another VM has that name; rename the folder of one of them",
            home.path.display()
        );
        error!("{notice}");
        home.datastore.notices.borrow_mut().push(notice);
    }

    /// Opens a VM at the start, where no guest waits for the file system.
    async fn open_unused(self: &Rc<Self>, name: &str, home: &Home, folder: Option<HomeFolder>) -> Result<()> {
        let has_images = match &folder {
            Some(folder) => !folder.has_own_alone().await?,
            None => true,
        };
        if has_images {
            // If the home is missing, opening it reports that.
            let folder = home.path.clone();
            let refused = move || if folder.is_dir() { inuse::refuse_locked(&[folder]) } else { Ok(()) };
            self.env.blocking(refused).await?;
        }
        self.open_vm_as(name, home, folder, Opening::default()).await.map(drop)
    }

    /// Opens a VM. Its home is locked from here until it is closed. A home that is opened again has stayed locked all
    /// the time.
    pub(super) async fn open_vm(self: &Rc<Self>, name: &str, home: &Home) -> Result<Rc<VmRecord>> {
        Ok(self.open_vm_as(name, home, None, Opening::default()).await?.0)
    }

    /// Opens a VM whose client gate is closed as long as the returned guard lives.
    pub(super) async fn open_vm_shut(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        self.open_vm_as(name, home, None, Opening { shut: true, ..Opening::default() }).await
    }

    /// Opens a VM on the control side's own core, whose client gate is closed as long as the returned guard lives.
    pub(super) async fn open_vm_here(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        self.open_vm_as(name, home, None, Opening { shut: true, here: true }).await
    }

    async fn open_vm_as(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
        folder: Option<HomeFolder>,
        how: Opening,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        self.descriptors.admit_vm(name)?;
        let folder = match folder {
            Some(folder) => folder,
            None => HomeFolder::open(&self.env, &home.path).await?,
        };
        self.holds.take(&home.path, &folder.own).await?;
        let opened = self.open_held(name, home, folder, how).await;
        if opened.is_err() {
            self.holds.release(&home.path);
        }
        opened
    }

    async fn open_held(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
        mut folder: HomeFolder,
        how: Opening,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        // Another daemon may have changed it until the lock was taken.
        folder.look_again().await?;
        self.claim_identity(name, home, &folder).await?;
        // The home's own record of a move comes next.
        if folder.has(record::RECORD_NAME) {
            recovery::settle(self, home).await?;
            folder.look_again().await?;
        }
        handover::refuse_elsewhere(home, &folder).await?;
        let when_full = settings::read_when_full(&folder).await?;
        let StoredLimits { limits, notice } = limits::read(&folder).await?;
        let (labels, damage) = labels::read(&folder).await?;
        let memory = memory::found(&folder).await?;
        let events = self.read_events(home, &folder).await;
        let settings = ClientSettings {
            limits: limits::io_limits(&limits),
            shared_writers: settings::has_shared_writers(&folder),
            waits_for_space: when_full == WhenFull::Wait,
        };
        let mark = folder.mark().await?;
        let (running, kept) = self.open_kept(name, home, mark, settings, how.here).await?;
        // No client is admitted between the service's begin and this.
        let shut = if how.shut { Some(running.shut().await) } else { None };
        let entry = Rc::new(VmRecord {
            name: name.to_string(),
            running,
            kept,
            datastore: home.datastore.clone(),
            home: home.path.clone(),
            when_full,
            limits: Cell::new(limits),
            labels: VmRecordLabels::new(labels),
            memory: RefCell::new(memory),
            freezing: TaskMutex::default(),
            guest_busy: Arc::default(),
            events: RefCell::new(events),
            notices: RefCell::default(),
            moving: Cell::new(0),
        });
        self.listen_to(&entry).await;
        home.datastore.refuse_when_leaving()?;
        self.take_notices(&entry);
        self.report_notices(&entry, notice.into_iter().chain(damage).collect());
        self.broken.borrow_mut().remove(name);
        self.closed.borrow_mut().remove(name);
        self.register(entry.clone());
        Ok((entry, shut))
    }

    async fn read_events(&self, home: &Home, folder: &HomeFolder) -> Vec<api::Event> {
        if !folder.has(journal::EVENTS_NAME) {
            return Vec::new();
        }
        let path = home.path.clone();
        self.env.blocking(move || journal::read(&path)).await
    }

    async fn open_kept(
        &self,
        name: &str,
        home: &Home,
        mark: Option<u128>,
        settings: ClientSettings,
        here: bool,
    ) -> Result<(VmHandle, Kept)> {
        if let Some(id) = mark {
            let vm = native_homes::open_vm(&home.datastore, name, id, self.options()).await?;
            let core = if here { self.cores.own().clone() } else { self.core_for_vm() };
            let handle = match core.own() {
                Some(running) => {
                    let vm = RunningVm::new(&running.front_end, name, vm.clone(), None, settings);
                    VmHandle::here(&core, vm)
                }
                None => VmHandle::native_elsewhere(&core, self.cores.own(), name, vm.clone(), settings).await,
            };
            return Ok((handle, Kept::Native(vm)));
        }
        let core = if here { self.cores.own().clone() } else { self.core_for_vm() };
        let handle = match core.own() {
            Some(running) => {
                let files = HomeFiles::open(self, &home.path).await?;
                VmHandle::here(&core, running.open_redo(name, files, self.options(), settings).await?)
            }
            None => {
                let plan = formats::plan_home(self, &home.path).await?;
                VmHandle::open_elsewhere(&core, name, plan, self.options(), settings).await?
            }
        };
        Ok((handle, Kept::Redo))
    }

    /// Returns the core for one more VM.
    fn core_for_vm(&self) -> Rc<CoreLink> {
        let vms = self.entries();
        self.cores.least_used(vms.iter().map(|entry| entry.running.core())).clone()
    }

    /// Replaces the registry's record of a VM after its move. Both sides are on the control side's own core.
    pub(super) fn replace_entry(self: &Rc<Self>, old: &VmRecord, was: &RunningVm, side: &Side) {
        let Home { datastore, path } = side.plan.to().clone();
        let running = Rc::new(RunningVm {
            name: old.name.clone(),
            id: side.vm.state().id,
            machine: side.vm.clone(),
            files: side.files.clone(),
            gate: was.gate.clone(),
            connections: was.connections.clone(),
            limiter: was.limiter.clone(),
            remote: None,
        });
        let entry = Rc::new(VmRecord {
            name: old.name.clone(),
            running: VmHandle::here(self.cores.own(), running.clone()),
            kept: side.kept.clone(),
            datastore,
            home: path,
            when_full: old.when_full,
            limits: old.limits.clone(),
            labels: old.labels.take(),
            memory: RefCell::new(old.memory.take()),
            freezing: TaskMutex::default(),
            guest_busy: old.guest_busy.clone(),
            events: RefCell::new(old.events.take()),
            notices: RefCell::default(),
            moving: Cell::new(0),
        });
        entry.running.continue_for(&old.running);
        self.listen(&entry, &*running.machine);
        self.register(entry);
    }

    /// Shuts down: admits no new clients, answers requests under way, and then writes every VM's tables and clean
    /// headers.
    pub(super) async fn shut_down(&self) -> Result<()> {
        self.cores.stop_clients();
        for task in self.front_end_tasks.take() {
            // Requests that a hanging datastore does not answer are recovered by the next start.
            let _ = until_hung(&self.env, || self.any_hang(), &mut pin!(task.join())).await;
        }
        let _ = until_hung(&self.env, || self.any_hang(), &mut pin!(self.cores.end_connections())).await;
        let ended = self.running.vhost.front_end.ended(&self.env);
        let _ = until_hung(&self.env, || self.any_hang(), &mut pin!(ended)).await;
        let _ = until_hung(&self.env, || self.any_hang(), &mut pin!(self.end_own_jobs())).await;
        for datastore in self.datastores() {
            let _ = until_hung(&self.env, || datastore.hang(), &mut pin!(datastore.sources.end())).await;
        }
        self.await_thaws().await;
        self.end_bins().await;
        let mut result = Ok(());
        let close = async |entry: Rc<VmRecord>| {
            let closed = asked(&entry.datastore, entry.running.close()).await;
            closed.map_or_else(|hang| Err(hang.not_closed()), without_lease)
        };
        // The flushes of VMs in one store become one.
        let closes = stream::iter(self.entries().into_iter().map(close)).buffered(CLOSINGS_MAX);
        for closed in closes.collect::<Vec<_>>().await {
            result = result.and(closed);
        }
        for datastore in self.datastores() {
            let closed = asked(&datastore, datastore.native.close()).await;
            result = result
                .and(closed.map_or_else(|hang| Err(hang.not_closed()), |closed| closed.map_err(Error::from)));
        }
        result = result.and(self.cores.end());
        self.end();
        result
    }

    /// Cancels moves and scrubs, and waits for their end. A move before its step leaves the VM at its source, and its
    /// target is removed.
    async fn end_own_jobs(&self) {
        let own = |t: &Tracked| matches!(t.job.operation, MOVE | SCRUB);
        let jobs = self.tracked(|t| own(t).then(|| t.job.clone()));
        for job in jobs.into_iter().flatten() {
            // A job that has ended needs no cancel.
            let _ = job.cancel();
            job.wait().await;
        }
    }
}
