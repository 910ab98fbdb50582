//! State of the daemon on the core's thread: datastores, their VMs, the NBD front end, and jobs under one numbering.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;

use api::WhenFull;
use api::error::{Error, Result};
use api::listen::NbdListen;
use blk::Env;
use blk::exec::JoinHandle;
use blk::sync::Signal;
use engine::job::{MOVE, SCRUB};
use engine::{Machine, Options, SpacePolicy, Vm};
use export::nbd::FrontEnd;
use jiff::Timestamp;
use tracing::{error, warn};

use crate::daemon::bin::BinPolicy;
use crate::daemon::client::front_end::front_end;
use crate::daemon::datastore::datastores::{Absent, without_lease};
use crate::daemon::datastore::hang::{Opening, asked, or_go_on, until_hung};
use crate::daemon::datastore::native;
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::defect::Planted;
use crate::daemon::relocation::handover;
use crate::daemon::relocation::recovery;
use crate::daemon::requests::bridge::Place;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::descriptors::Descriptors;
use crate::daemon::vm::formats;
use crate::daemon::vm::formats::HomeFiles;
use crate::daemon::vm::home_locks::Holds;
use crate::daemon::vm::homes;
use crate::daemon::vm::inuse;
use crate::daemon::vm::journal::{self, Journal};
use crate::daemon::vm::registry::Broken;
use crate::daemon::vm::vm_record::{Kept, VmRecord};
use crate::log::LineLimit;
use crate::memory::Memory;

/// Maximum number of log lines per second about writes that begin or cease to wait for space.
const SPACE_LINES_MAX: u32 = 2;

pub(super) struct Daemon {
    pub env: Env,
    /// Datastore that the daemon was started on. Its folder has the API's socket, and it cannot be removed.
    pub main: Rc<Datastore>,
    /// All datastores that are served, the main one first.
    pub(super) datastores: RefCell<Vec<Rc<Datastore>>>,
    /// Datastores that were added and could not be opened. The others are served.
    pub(super) absent: RefCell<Vec<Absent>>,
    /// Cache size in bytes for the maps of each store.
    pub map_cache_bytes: usize,
    pub memory: Memory,
    pub bin: BinPolicy,
    /// Whether the daemon is ending; nothing is evicted any more then.
    pub(super) bin_ends: Cell<bool>,
    pub nbd: Vec<NbdListen>,
    pub started: Timestamp,
    pub front_end: Rc<FrontEnd>,
    pub descriptors: Rc<Descriptors>,
    pub journal: Rc<Journal>,
    pub(super) vms: RefCell<BTreeMap<String, Rc<VmRecord>>>,
    /// Homes that could not be opened, and why. The others are served.
    pub(super) broken: RefCell<BTreeMap<String, Broken>>,
    /// Homes that their users have closed.
    pub(super) closed: RefCell<BTreeMap<String, Home>>,
    /// Locks of the homes that are open, or being created or removed.
    pub holds: Holds,
    pub defects: Planted,
    /// Names of VMs and datastores, and folders, that an operation is creating, opening or removing at the moment.
    pub(super) claimed: RefCell<BTreeSet<String>>,
    pub(super) jobs: RefCell<Vec<Tracked>>,
    /// The last number given to a job.
    pub(super) jobs_numbered: Cell<u64>,
    /// Limit on log lines about space; a guest that writes to a nearly full datastore causes many of them.
    pub(super) space_log: LineLimit,
    doors_tasks: RefCell<Vec<JoinHandle<()>>>,
    stopped: Cell<bool>,
    stop_signal: Signal,
}

impl Daemon {
    /// Locks the datastores and opens every VM in them.
    pub(super) async fn open(env: Env, place: &Place) -> Result<Rc<Daemon>> {
        let daemon = Daemon::new(env, place, Journal::default()).await?;
        daemon.open_all().await?;
        for datastore in daemon.datastores() {
            daemon.log_served(&datastore).await;
        }
        Ok(daemon)
    }

    /// Returns the daemon with the main datastore locked and nothing opened yet.
    pub(super) async fn new(env: Env, place: &Place, journal: Journal) -> Result<Rc<Daemon>> {
        let main = Rc::new(open_main(&env, place).await?);
        let descriptors = Descriptors::new(env.clone(), place.memory);
        Ok(Rc::new(Daemon {
            env,
            datastores: RefCell::new(vec![main.clone()]),
            main,
            absent: RefCell::default(),
            map_cache_bytes: place.map_cache_bytes,
            memory: place.memory,
            bin: place.bin,
            bin_ends: Cell::new(false),
            nbd: place.nbd.clone(),
            started: Timestamp::now(),
            front_end: front_end(place.memory, descriptors.connections()),
            descriptors,
            journal: Rc::new(journal),
            vms: RefCell::default(),
            broken: RefCell::default(),
            closed: RefCell::default(),
            holds: Holds::default(),
            defects: Planted::default(),
            claimed: RefCell::default(),
            jobs: RefCell::default(),
            jobs_numbered: Cell::new(0),
            space_log: LineLimit::new(SPACE_LINES_MAX),
            doors_tasks: RefCell::default(),
            stopped: Cell::new(false),
            stop_signal: Signal::default(),
        }))
    }

    pub(super) async fn open_all(self: &Rc<Self>) -> Result<()> {
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
            self.at_datastore(&datastore, "settling its moves", settle).await?;
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
        match native::find_homeless(self, datastore).await {
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
            if self.homes().contains(&path) {
                continue;
            }
            if self.has_left(&home).await {
                let left = format!("what a move of VM {name} has left in {} is still there", path.display());
                warn!("{left}");
                home.datastore.notices.borrow_mut().push(left);
                continue;
            }
            if self.is_taken(&name) {
                self.leave_out(&name, &home);
                continue;
            }
            if homes::is_closed(&self.env, &path).await {
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
        self.descriptors.admit_vm(name)?;
        formats::hold(self, &home.path).await?;
        let opened = self.open_held(name, home).await;
        if opened.is_err() {
            self.holds.release(&home.path);
        }
        opened
    }

    async fn open_held(self: &Rc<Self>, name: &str, home: &Home) -> Result<Rc<VmRecord>> {
        self.claim_identity(name, home).await?;
        // The home's own record of a move comes next.
        recovery::settle(self, home).await?;
        handover::refuse_elsewhere(home).await?;
        let dir = formats::open_path(&self.env, &home.path).await?;
        let when_full = formats::read_when_full(&dir).await?;
        let shared_writers = formats::read_shared_writers(&dir).await?;
        let folder = home.path.clone();
        let events = self.env.blocking(move || journal::read(&folder)).await;
        let (vm, kept) = self.open_kept(home, self.options()).await?;
        let entry = Rc::new(VmRecord {
            name: name.to_string(),
            vm,
            kept,
            datastore: home.datastore.clone(),
            home: home.path.clone(),
            when_full,
            events: RefCell::new(events),
            notices: RefCell::default(),
            gate: Rc::default(),
            moving: Cell::new(0),
        });
        entry.gate.guests.shared_writers.set(shared_writers);
        entry.gate.guests.waits_for_space.set(when_full == WhenFull::Wait);
        home.datastore.refuse_when_leaving()?;
        self.listen_to(&entry);
        self.take_notices(&entry);
        self.broken.borrow_mut().remove(name);
        self.closed.borrow_mut().remove(name);
        self.vms.borrow_mut().insert(name.to_string(), entry.clone());
        Ok(entry)
    }

    async fn open_kept(&self, home: &Home, options: Options) -> Result<(Rc<dyn Machine>, Kept)> {
        if let Some(id) = native::mark(&self.env, &home.path).await? {
            let vm = native::open_vm(&home.datastore, id, options).await?;
            return Ok((vm.clone(), Kept::Native(vm)));
        }
        let files = Rc::new(HomeFiles::open(self, &home.path).await?);
        let vm = Vm::open(self.env.clone(), files.manifest(), options).await?;
        Ok((vm, Kept::Redo(files)))
    }

    /// Returns the engine's options. Writes that find no space wait where their clients are served
    /// (`daemon/writers.rs`), not in the engine.
    pub(super) fn options(&self) -> Options {
        let map_cap_bytes = self.memory.maps_bytes();
        let defects = self.defects.of_engine();
        Options { map_cap_bytes, space_policy: SpacePolicy::Error, defects, ..Options::default() }
    }

    /// Replaces the registry's record of a VM after its move.
    pub(super) fn replace_entry(
        self: &Rc<Self>,
        old: &VmRecord,
        home: Home,
        vm: Rc<dyn Machine>,
        kept: Kept,
    ) {
        let entry = Rc::new(VmRecord {
            name: old.name.clone(),
            vm,
            kept,
            datastore: home.datastore,
            home: home.path,
            when_full: old.when_full,
            events: RefCell::new(old.events.take()),
            notices: RefCell::default(),
            gate: old.gate.clone(),
            moving: Cell::new(0),
        });
        self.listen(&entry);
        self.vms.borrow_mut().insert(old.name.clone(), entry);
    }

    pub(super) fn doors_open(&self, task: JoinHandle<()>) {
        self.doors_tasks.borrow_mut().push(task);
    }

    pub(super) async fn stopped(&self) {
        while !self.stopped.get() {
            self.stop_signal.wait().await;
        }
    }

    /// Shuts down: admits no new clients, answers requests under way, and then writes every VM's tables and clean
    /// headers.
    pub(super) async fn shut_down(&self) -> Result<()> {
        self.front_end.stop();
        for task in self.doors_tasks.take() {
            // Requests that a hanging datastore does not answer are recovered by the next start.
            let _ = until_hung(&self.env, || self.any_hang(), &mut pin!(task.join())).await;
        }
        let _ = until_hung(&self.env, || self.any_hang(), &mut pin!(self.end_own_jobs())).await;
        self.end_bins().await;
        let mut result = Ok(());
        for entry in self.entries() {
            let closed = asked(&entry.datastore, entry.vm.close()).await;
            result = result.and(closed.map_or_else(|hang| Err(hang.not_closed()), without_lease));
        }
        for datastore in self.datastores() {
            let closed = asked(&datastore, datastore.native.close()).await;
            result = result
                .and(closed.map_or_else(|hang| Err(hang.not_closed()), |closed| closed.map_err(Error::from)));
        }
        self.stopped.set(true);
        self.stop_signal.notify();
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

    pub(super) fn uri(&self, export: &str) -> String {
        self.nbd.first().map(|n| n.uri(export)).unwrap_or_default()
    }
}

/// Opens and locks the main datastore's folder. Without it nothing is served.
async fn open_main(env: &Env, place: &Place) -> Result<Datastore> {
    let opening = Opening::new(env, &place.name);
    let open = async {
        let (name, cache) = (place.name.clone(), place.map_cache_bytes);
        let main = Datastore::in_folder(env, name, &place.root, cache, &opening).await?;
        main.set_served_by(None).await?;
        Ok(main)
    };
    let opened = until_hung(env, || opening.hang(), &mut pin!(open)).await;
    opened.unwrap_or_else(|hang| Err(hang.refusal()))
}
