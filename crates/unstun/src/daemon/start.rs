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
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;

use api::WhenFull;
use api::error::{Error, Result};
use blk::Env;
use engine::job::{MOVE, SCRUB};
use tracing::{error, warn};

use crate::daemon::datastore::{Datastore, asked};
use crate::daemon::place::Place;
use crate::daemon::relocation::{handover, recovery};
use crate::daemon::vm::limits::StoredLimits;
use crate::daemon::vm::vm_record::{Broken, Kept, VmRecord};
use crate::daemon::vm::{formats, limits, mark, native_homes, paths, settings};

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
        Ok(daemon)
    }

    pub(super) async fn open_all(self: &Rc<Self>) -> Result<()> {
        self.open_on_cores(&self.main).await?;
        self.open_added().await?;
        self.open_datastores().await
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
        self.open_each(datastore, datastore.inhabitants().await?).await;
        // Homes that moves have left are removed by now.
        match native_homes::find_homeless(self, datastore).await {
            Ok(homeless) => self.open_each(datastore, homeless).await,
            // Opening the VMs one by one reports the error.
            Err(e) => error!("{e}"),
        }
        Ok(())
    }

    async fn open_each(self: &Rc<Self>, datastore: &Rc<Datastore>, homes: Vec<(String, PathBuf)>) {
        for (name, path) in homes {
            let home = datastore.at(&path);
            // An operation that creates, moves or removes the VM is under way.
            let Ok(_claim) = self.claim(&name) else { continue };
            if self.has_home(&path) {
                continue;
            }
            if self.has_left(&home).await {
                let left =
                    format!("the remains of a move of VM {name} in {} could not be removed", path.display());
                warn!("{left}");
                home.datastore.notices.borrow_mut().push(left);
                continue;
            }
            if self.is_taken(&name) {
                self.leave_out(&name, &home);
                continue;
            }
            if settings::is_closed(&self.env, &path).await {
                self.closed.borrow_mut().insert(name, home);
                continue;
            }
            if let Err(cause) = self.open_unused(&name, &home).await {
                error!("VM {name} is not served: {cause}");
                self.broken.borrow_mut().insert(name, Broken { home, cause });
            }
        }
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
    async fn open_unused(self: &Rc<Self>, name: &str, home: &Home) -> Result<()> {
        // If the home is missing, opening it reports that.
        let folder = home.path.clone();
        let refused = move || if folder.is_dir() { inuse::refuse_locked(&[folder]) } else { Ok(()) };
        self.env.blocking(refused).await?;
        self.open_vm(name, home).await.map(drop)
    }

    /// Opens a VM. Its home is locked from here until it is closed. A home that is opened again has stayed locked all
    /// the time.
    pub(super) async fn open_vm(self: &Rc<Self>, name: &str, home: &Home) -> Result<Rc<VmRecord>> {
        Ok(self.open_vm_as(name, home, Opening::default()).await?.0)
    }

    /// Opens a VM whose client gate is closed as long as the returned guard lives.
    pub(super) async fn open_vm_shut(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        self.open_vm_as(name, home, Opening { shut: true, ..Opening::default() }).await
    }

    /// Opens a VM on the control side's own core.
    pub(super) async fn open_vm_here(self: &Rc<Self>, name: &str, home: &Home) -> Result<Rc<VmRecord>> {
        Ok(self.open_vm_as(name, home, Opening { here: true, ..Opening::default() }).await?.0)
    }

    async fn open_vm_as(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
        how: Opening,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        self.descriptors.admit_vm(name)?;
        formats::hold(self, &home.path).await?;
        let opened = self.open_held(name, home, how).await;
        if opened.is_err() {
            self.holds.release(&home.path);
        }
        opened
    }

    async fn open_held(
        self: &Rc<Self>,
        name: &str,
        home: &Home,
        how: Opening,
    ) -> Result<(Rc<VmRecord>, Option<Guard>)> {
        self.claim_identity(name, home).await?;
        // The home's own record of a move comes next.
        recovery::settle(self, home).await?;
        handover::refuse_elsewhere(home).await?;
        let dir = paths::open_path(&self.env, &home.path).await?;
        let when_full = settings::read_when_full(&dir).await?;
        let shared_writers = settings::read_shared_writers(&dir).await?;
        let StoredLimits { limits, notice } = limits::read(&dir).await?;
        let folder = home.path.clone();
        let events = self.env.blocking(move || journal::read(&folder)).await;
        let settings = ClientSettings {
            limits: limits::io_limits(&limits),
            shared_writers,
            waits_for_space: when_full == WhenFull::Wait,
        };
        let (running, kept) = self.open_kept(name, home, settings, how.here).await?;
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
            events: RefCell::new(events),
            notices: RefCell::default(),
            moving: Cell::new(0),
        });
        self.listen_to(&entry).await;
        home.datastore.refuse_when_leaving()?;
        self.take_notices(&entry);
        self.report_notices(&entry, notice.into_iter().collect());
        self.broken.borrow_mut().remove(name);
        self.closed.borrow_mut().remove(name);
        self.register(entry.clone());
        Ok((entry, shut))
    }

    async fn open_kept(
        &self,
        name: &str,
        home: &Home,
        settings: ClientSettings,
        here: bool,
    ) -> Result<(VmHandle, Kept)> {
        if let Some(id) = mark::read(&self.env, &home.path).await? {
            let vm = native_homes::open_vm(&home.datastore, id, self.options()).await?;
            let core = if here { self.cores.own().clone() } else { self.core_for_vm() };
            let handle = match core.own() {
                Some(running) => {
                    let vm = RunningVm::new(&running.front_end, name, vm.clone(), None, settings);
                    VmHandle::here(&core, vm)
                }
                None => VmHandle::native_elsewhere(&core, self.cores.own(), vm.clone(), settings).await,
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
            machine: side.vm.clone(),
            files: side.files.clone(),
            gate: was.gate.clone(),
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
            events: RefCell::new(old.events.take()),
            notices: RefCell::default(),
            moving: Cell::new(0),
        });
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
        self.end_bins().await;
        let mut result = Ok(());
        for entry in self.entries() {
            let closed = asked(&entry.datastore, entry.running.close()).await;
            result = result.and(closed.map_or_else(|hang| Err(hang.not_closed()), without_lease));
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
