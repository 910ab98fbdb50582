//! What the core's thread holds: the datastore, its VMs, the doors, and the jobs under one numbering.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::exec::JoinHandle;
use blk::file::Lock;
use blk::sync::Signal;
use blk::{Dir, Env};
use engine::job::{MOVE, SCRUB};
use engine::native::NativeVm;
use engine::{Machine, Options, SpacePolicy, Vm};
use export::nbd::Doors;
use jiff::Timestamp;

use super::bridge::Place;
use super::door::Door;
use super::formats::HomeFiles;
use super::hold::Holds;
use super::homes::{self, Registry};
use super::journal::{self, Journal};
use super::native::{self, Native};
use super::tracked::Tracked;
use super::{formats, inuse, settle};
use crate::api::{self, WhenFull};
use crate::error::{Error, ErrorKind, Result};
use crate::listen::NbdListen;

const OWN_FOLDER: &str = ".unstun";
/// Held while a daemon serves the datastore.
const LOCK_NAME: &str = "lock";
/// Resolved maps of all disks and sealed states of the core. With 48 MiB of grain tables and about 40 MiB for everything
/// else the daemon stays below 256 MiB; what clients have under way comes on top.
const MAP_BYTES_TOTAL: usize = 96 << 20;

pub struct Node {
    pub env: Env,
    pub root: PathBuf,
    pub dir: Dir,
    pub nbd: Vec<NbdListen>,
    pub started: Timestamp,
    pub doors: Rc<Doors>,
    pub journal: Rc<Journal>,
    vms: RefCell<BTreeMap<String, Rc<Entry>>>,
    /// Homes that could not be opened, and why. The others are served.
    broken: RefCell<BTreeMap<String, Broken>>,
    /// Homes at rest, by their users' wish.
    closed: RefCell<BTreeMap<String, PathBuf>>,
    /// Homes that lie elsewhere.
    pub registry: Registry,
    /// The homes that are open, and those being made or taken away.
    pub holds: Holds,
    pub native: Native,
    /// Names of VMs, and folders, that somebody is making, opening or taking away right now.
    claimed: RefCell<BTreeSet<String>>,
    pub(super) jobs: RefCell<Vec<Tracked>>,
    /// Of the last scrub that ended.
    pub scrubbed: RefCell<Option<api::Checked>>,
    doors_tasks: RefCell<Vec<JoinHandle<()>>>,
    stopped: Cell<bool>,
    stop_signal: Signal,
    _lock: Lock,
}

/// A name that is nobody else's to make, open or take away until this is dropped.
pub struct Claim {
    node: Rc<Node>,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.node.claimed.borrow_mut().remove(&self.name);
    }
}

struct Broken {
    home: PathBuf,
    cause: Error,
}

/// What keeps a VM's disks.
#[derive(Clone)]
pub enum Kept {
    /// Files in its home.
    Redo(Rc<HomeFiles>),
    /// The datastore's store.
    Native(Rc<NativeVm>),
}

impl Kept {
    pub fn store(&self) -> api::Store {
        match self {
            Kept::Redo(_) => api::Store::Redo,
            Kept::Native(_) => api::Store::Native,
        }
    }
}

/// One VM and what the daemon keeps about it.
pub struct Entry {
    /// What the datastore calls it; its files may have another for people.
    pub name: String,
    pub vm: Rc<dyn Machine>,
    pub kept: Kept,
    pub home: PathBuf,
    pub when_full: WhenFull,
    pub events: RefCell<Vec<api::Event>>,
    /// What opening its files found worth saying.
    pub notices: RefCell<Vec<String>>,
    pub door: Rc<Door>,
    /// The job that moves it; 0 is none.
    pub moving: Cell<u64>,
}

impl Entry {
    pub fn clients(&self) -> u64 {
        (self.vm.clients().len() + self.vm.viewers().len()) as u64
    }

    pub fn refuse_when_moving(&self) -> blk::Result<()> {
        match self.moving.get() {
            0 => Ok(()),
            job => {
                let cause = format!("it is being moved (job {job}); wait for that or cancel it");
                Err(blk::Error::refused(format!("VM {}", self.name), cause))
            }
        }
    }

    /// Refuses `purpose` where the disks are not files of the home.
    pub fn files(&self, purpose: &str) -> Result<&Rc<HomeFiles>> {
        match &self.kept {
            Kept::Redo(files) => Ok(files),
            Kept::Native(_) => {
                let cause = "its disks are native and lie in the datastore's store";
                Err(Error::refused(format!("VM {}: {cause}; there is nothing to {purpose}", self.name)))
            }
        }
    }

    pub fn next_event(&self) -> u64 {
        self.events.borrow().last().map_or(0, |event| event.id) + 1
    }
}

impl Node {
    /// Locks the datastore and opens every VM in it.
    pub async fn open(env: Env, place: &Place) -> Result<Rc<Node>> {
        let root = place.root.to_string_lossy().into_owned();
        let dir = env.open_root(&root)?;
        let own = dir.open_dir(OWN_FOLDER, true).await?;
        let lock = own.lock(LOCK_NAME).await.map_err(|e| match e.kind {
            blk::ErrorKind::Locked => Error::new(
                ErrorKind::Locked,
                format!("datastore {root}: another unstun serves it (it holds {OWN_FOLDER}/{LOCK_NAME})"),
            ),
            _ => e.into(),
        })?;
        let native = Native::new(env.clone(), dir.clone());
        let node = Rc::new(Node {
            env,
            root: place.root.clone(),
            dir,
            nbd: place.nbd.clone(),
            started: Timestamp::now(),
            doors: Doors::new(),
            journal: Rc::new(Journal::start()?),
            vms: RefCell::default(),
            broken: RefCell::default(),
            closed: RefCell::default(),
            registry: Registry::read(&own).await?,
            holds: Holds::default(),
            native,
            claimed: RefCell::default(),
            jobs: RefCell::default(),
            scrubbed: RefCell::default(),
            doors_tasks: RefCell::default(),
            stopped: Cell::new(false),
            stop_signal: Signal::default(),
            _lock: lock,
        });
        node.open_all().await?;
        Ok(node)
    }

    async fn open_all(self: &Rc<Self>) -> Result<()> {
        let mut found: BTreeMap<String, PathBuf> = self.registry.all();
        for name in self.dir.list().await? {
            let Some(name) = name.strip_suffix('/').filter(|n| !n.starts_with('.')) else { continue };
            if self.root.join(name).join(OWN_FOLDER).is_dir() {
                found.insert(name.to_string(), self.root.join(name));
            }
        }
        let known: Vec<_> = found.into_iter().collect();
        self.open_each(known.clone()).await;
        // Those that moves have left are gone now.
        match native::find_homeless(self, &known).await {
            Ok(homeless) => self.open_each(homeless).await,
            // Its VMs say so one by one.
            Err(e) => eprintln!("unstun: {e}"),
        }
        Ok(())
    }

    async fn open_each(self: &Rc<Self>, homes: Vec<(String, PathBuf)>) {
        for (name, home) in homes {
            if homes::is_closed(&home) {
                self.closed.borrow_mut().insert(name, home);
                continue;
            }
            if let Err(cause) = self.open_unused(&name, &home).await {
                eprintln!("unstun: VM {name} is not served: {cause}");
                self.broken.borrow_mut().insert(name, Broken { home, cause });
            }
        }
    }

    /// At the start, where no guest waits for the file system.
    async fn open_unused(self: &Rc<Self>, name: &str, home: &Path) -> Result<()> {
        // Of a home that is gone its opening tells.
        if home.is_dir() {
            inuse::refuse_locked(&[home.to_path_buf()])?;
        }
        self.open_vm(name, home).await.map(drop)
    }

    /// Held from here until it is closed; one that is opened again was held all the time.
    pub async fn open_vm(self: &Rc<Self>, name: &str, home: &Path) -> Result<Rc<Entry>> {
        formats::hold(self, home).await?;
        let opened = self.open_held(name, home).await;
        if opened.is_err() {
            self.holds.release(home);
        }
        opened
    }

    async fn open_held(self: &Rc<Self>, name: &str, home: &Path) -> Result<Rc<Entry>> {
        let when_full = formats::read_when_full(&formats::open_path(&self.env, home)?).await?;
        let (vm, kept) = self.open_kept(home, self.options(when_full)).await?;
        let entry = Rc::new(Entry {
            name: name.to_string(),
            vm,
            kept,
            home: home.to_path_buf(),
            when_full,
            events: RefCell::new(journal::read(home)),
            notices: RefCell::default(),
            door: Rc::default(),
            moving: Cell::new(0),
        });
        self.listen_to(&entry);
        self.take_notices(&entry);
        self.broken.borrow_mut().remove(name);
        self.closed.borrow_mut().remove(name);
        self.vms.borrow_mut().insert(name.to_string(), entry.clone());
        Ok(entry)
    }

    async fn open_kept(&self, home: &Path, options: Options) -> Result<(Rc<dyn Machine>, Kept)> {
        settle::settle(self, home).await?;
        if let Some(id) = native::mark(&self.env, home).await? {
            let vm = native::open_vm(self, id, options).await?;
            return Ok((vm.clone(), Kept::Native(vm)));
        }
        let files = Rc::new(HomeFiles::open(self, home).await?);
        let vm = Vm::open(self.env.clone(), files.manifest(), options).await?;
        Ok((vm, Kept::Redo(files)))
    }

    pub fn options(&self, when_full: WhenFull) -> Options {
        let space_policy = match when_full {
            WhenFull::Wait => SpacePolicy::Wait,
            WhenFull::Error => SpacePolicy::Error,
        };
        Options { map_cap_bytes: MAP_BYTES_TOTAL, space_policy, ..Options::default() }
    }

    /// The VM as it is after its move, in the place of what it was.
    pub fn replace_entry(self: &Rc<Self>, old: &Entry, vm: Rc<dyn Machine>, kept: Kept) {
        let entry = Rc::new(Entry {
            name: old.name.clone(),
            vm,
            kept,
            home: old.home.clone(),
            when_full: old.when_full,
            events: RefCell::new(old.events.take()),
            notices: RefCell::default(),
            door: old.door.clone(),
            moving: Cell::new(0),
        });
        self.listen(&entry);
        self.vms.borrow_mut().insert(old.name.clone(), entry);
    }

    pub fn entries(&self) -> Vec<Rc<Entry>> {
        self.vms.borrow().values().cloned().collect()
    }

    pub fn entry(&self, name: &str) -> blk::Result<Rc<Entry>> {
        if let Some(entry) = self.vms.borrow().get(name) {
            return Ok(entry.clone());
        }
        if let Some(broken) = self.broken.borrow().get(name) {
            let cause = format!("it is not served: {}; mend it and `unstun vm open {name}`", broken.cause);
            return Err(blk::Error::damaged(format!("VM {name}"), cause));
        }
        if self.closed.borrow().contains_key(name) {
            let cause = format!("it is closed; `unstun vm open {name}` serves it");
            return Err(blk::Error::refused(format!("VM {name}"), cause));
        }
        let known: Vec<_> = self.vms.borrow().keys().cloned().collect();
        let known =
            if known.is_empty() { "there is none".into() } else { format!("there is {}", known.join(", ")) };
        let datastore = self.root.display();
        Err(blk::Error::not_found(format!("datastore {datastore}"), format!("no VM {name:?}; {known}")))
    }

    pub fn entry_to_change(&self, name: &str) -> blk::Result<Rc<Entry>> {
        let entry = self.entry(name)?;
        entry.refuse_when_moving()?;
        Ok(entry)
    }

    /// Two at once would each take the other's folder for its own, or open one home twice.
    pub fn claim(self: &Rc<Self>, name: &str) -> Result<Claim> {
        if !self.claimed.borrow_mut().insert(name.to_string()) {
            return Err(Error::refused(format!(
                "VM {name}: it is just being made, opened or closed; try again"
            )));
        }
        Ok(Claim { node: self.clone(), name: name.to_string() })
    }

    pub fn is_taken(&self, name: &str) -> bool {
        self.vms.borrow().contains_key(name) || self.idle_home(name).is_some()
    }

    /// The home of a VM that is closed or broken.
    pub fn idle_home(&self, name: &str) -> Option<PathBuf> {
        let broken = self.broken.borrow().get(name).map(|broken| broken.home.clone());
        broken.or_else(|| self.closed.borrow().get(name).cloned())
    }

    /// Those that are not served: name, home, and the cause for the broken ones.
    pub fn idle(&self) -> Vec<(String, PathBuf, Option<String>)> {
        let closed = self.closed.borrow();
        let closed = closed.iter().map(|(name, home)| (name.clone(), home.clone(), None));
        let broken = self.broken.borrow();
        let broken = broken.iter().map(|(name, b)| (name.clone(), b.home.clone(), Some(b.cause.to_string())));
        closed.chain(broken).collect()
    }

    /// Not served any more, and known as closed.
    pub fn rest(&self, name: &str, home: &Path) {
        self.forget(name);
        self.holds.release(home);
        self.closed.borrow_mut().insert(name.to_string(), home.to_path_buf());
    }

    pub fn break_down(&self, name: &str, home: &Path, cause: &Error) {
        self.forget(name);
        self.holds.release(home);
        let broken = Broken { home: home.to_path_buf(), cause: cause.clone() };
        self.broken.borrow_mut().insert(name.to_string(), broken);
    }

    pub fn forget(&self, name: &str) {
        self.vms.borrow_mut().remove(name);
        self.broken.borrow_mut().remove(name);
        self.closed.borrow_mut().remove(name);
        self.jobs.borrow_mut().retain(|t| t.entry.as_ref().is_none_or(|entry| entry.name != name));
    }

    /// Every home the datastore knows, served or not.
    pub fn homes(&self) -> Vec<PathBuf> {
        let served = self.entries().into_iter().map(|entry| entry.home.clone());
        served.chain(self.idle().into_iter().map(|(_, home, _)| home)).collect()
    }

    pub fn doors_open(&self, task: JoinHandle<()>) {
        self.doors_tasks.borrow_mut().push(task);
    }

    pub async fn stopped(&self) {
        while !self.stopped.get() {
            self.stop_signal.wait().await;
        }
    }

    /// No new clients, answers to what is under way, then every VM's tables and clean headers.
    pub async fn shut_down(&self) -> Result<()> {
        self.doors.stop();
        for task in self.doors_tasks.take() {
            task.join().await;
        }
        self.end_own_jobs().await;
        let mut result = Ok(());
        for entry in self.entries() {
            result = result.and(entry.vm.close().await.map_err(Error::from));
        }
        result = result.and(self.native.close().await.map_err(Error::from));
        self.stopped.set(true);
        self.stop_signal.notify();
        result
    }

    /// Until the step of a move a VM is where it was; the other side goes.
    async fn end_own_jobs(&self) {
        let own = |t: &Tracked| matches!(t.job.operation, MOVE | SCRUB);
        let jobs = self.tracked(|t| own(t).then(|| t.job.clone()));
        for job in jobs.into_iter().flatten() {
            // One that has ended needs no cancel.
            let _ = job.cancel();
            job.wait().await;
        }
    }

    pub fn uri(&self, export: &str) -> String {
        self.nbd.first().map(|n| n.uri(export)).unwrap_or_default()
    }

    pub fn home(&self, name: &str) -> PathBuf {
        Path::new(&self.root).join(name)
    }
}
