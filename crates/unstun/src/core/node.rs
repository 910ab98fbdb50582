//! What the core's thread holds: the datastore, its VMs, the doors, and the jobs under one numbering.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blk::exec::JoinHandle;
use blk::file::Lock;
use blk::sync::Signal;
use blk::{Dir, Env};
use engine::{Job, Options, SpacePolicy, Vm};
use export::nbd::Doors;
use jiff::Timestamp;

use super::bridge::Place;
use super::journal::{self, Journal};
use super::{formats, present};
use crate::api::{self, WhenFull};
use crate::error::{Error, ErrorKind, Result};
use crate::listen::NbdListen;

const OWN_FOLDER: &str = ".unstun";
/// Held while a daemon serves the datastore.
const LOCK_NAME: &str = "lock";
/// Resolved maps and tables of all disks together; divided among them as they are opened, never below
/// `MAP_BYTES_MIN`.
const MAP_BYTES_TOTAL: usize = 128 << 20;
const MAP_BYTES_MIN: usize = 4 << 20;

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
    broken: RefCell<BTreeMap<String, Error>>,
    jobs: RefCell<Vec<Tracked>>,
    doors_tasks: RefCell<Vec<JoinHandle<()>>>,
    stopped: Cell<bool>,
    stop_signal: Signal,
    _lock: Lock,
}

/// One VM and what the daemon keeps about it.
pub struct Entry {
    pub vm: Rc<Vm>,
    pub home: PathBuf,
    pub when_full: WhenFull,
    pub events: RefCell<Vec<api::Event>>,
}

impl Entry {
    pub fn clients(&self) -> u64 {
        (self.vm.clients().len() + self.vm.viewers().len()) as u64
    }
}

/// A job under the daemon's own number: two VMs number theirs alike.
pub struct Tracked {
    pub id: u64,
    pub entry: Rc<Entry>,
    pub job: Rc<Job>,
    /// (time, bytes done, rate) at the last look, for the rate.
    pub seen: Cell<(u64, u64, u64)>,
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
            jobs: RefCell::default(),
            doors_tasks: RefCell::default(),
            stopped: Cell::new(false),
            stop_signal: Signal::default(),
            _lock: lock,
        });
        node.open_all().await?;
        Ok(node)
    }

    async fn open_all(self: &Rc<Self>) -> Result<()> {
        for name in self.dir.list().await? {
            let Some(name) = name.strip_suffix('/').filter(|n| !n.starts_with('.')) else { continue };
            if !self.root.join(name).join(OWN_FOLDER).is_dir() {
                continue;
            }
            if let Err(e) = self.open_vm(name).await {
                eprintln!("unstun: VM {name} is not served: {e}");
                self.broken.borrow_mut().insert(name.to_string(), e);
            }
        }
        Ok(())
    }

    pub async fn open_vm(self: &Rc<Self>, name: &str) -> Result<Rc<Entry>> {
        let home = self.dir.open_dir(name, false).await?;
        let path = self.root.join(name);
        let when_full = formats::read_when_full(&home).await?;
        let manifest = formats::open_home(home).await;
        let options = self.options(when_full);
        let vm = Vm::open(self.env.clone(), manifest, options).await?;
        let events = RefCell::new(journal::read(&path));
        let entry = Rc::new(Entry { vm, home: path, when_full, events });
        self.listen_to(&entry);
        self.vms.borrow_mut().insert(name.to_string(), entry.clone());
        Ok(entry)
    }

    fn options(&self, when_full: WhenFull) -> Options {
        let disks = 1 + self.entries().iter().map(|e| e.vm.disks().len()).sum::<usize>();
        let space_policy = match when_full {
            WhenFull::Wait => SpacePolicy::Wait,
            WhenFull::Error => SpacePolicy::Error,
        };
        let map_cap_bytes = (MAP_BYTES_TOTAL / disks.next_power_of_two()).max(MAP_BYTES_MIN);
        Options { map_cap_bytes, space_policy, ..Options::default() }
    }

    /// Numbers each event and writes it away. Those from before the listener (a recovery) are taken over first.
    fn listen_to(self: &Rc<Self>, entry: &Rc<Entry>) {
        for event in entry.vm.events() {
            self.record(entry, &event);
        }
        let (node, weak) = (Rc::downgrade(self), Rc::downgrade(entry));
        *entry.vm.on_event.borrow_mut() = Some(Box::new(move |event| {
            if let (Some(node), Some(entry)) = (node.upgrade(), weak.upgrade()) {
                node.record(&entry, event);
            }
        }));
    }

    fn record(&self, entry: &Entry, event: &engine::Event) {
        let id = entry.events.borrow().last().map_or(0, |e| e.id) + 1;
        let event = present::event(id, &entry.vm.name, event);
        self.journal.append(&entry.home, &event);
        let mut events = entry.events.borrow_mut();
        events.push(event);
        let surplus = events.len().saturating_sub(journal::EVENTS_MAX);
        events.drain(..surplus);
    }

    pub fn entries(&self) -> Vec<Rc<Entry>> {
        self.vms.borrow().values().cloned().collect()
    }

    pub fn entry(&self, name: &str) -> blk::Result<Rc<Entry>> {
        if let Some(entry) = self.vms.borrow().get(name) {
            return Ok(entry.clone());
        }
        if let Some(e) = self.broken.borrow().get(name) {
            let cause = format!("it is not served: {e}; mend it and restart unstun");
            return Err(blk::Error::damaged(format!("VM {name}"), cause));
        }
        let known: Vec<_> = self.vms.borrow().keys().cloned().collect();
        let known =
            if known.is_empty() { "there is none".into() } else { format!("there is {}", known.join(", ")) };
        let datastore = self.root.display();
        Err(blk::Error::not_found(format!("datastore {datastore}"), format!("no VM {name:?}; {known}")))
    }

    pub fn is_taken(&self, name: &str) -> bool {
        self.vms.borrow().contains_key(name) || self.broken.borrow().contains_key(name)
    }

    pub fn forget(&self, name: &str) {
        self.vms.borrow_mut().remove(name);
        self.broken.borrow_mut().remove(name);
        self.jobs.borrow_mut().retain(|t| t.entry.vm.name != name);
    }

    /// All jobs, numbered in the order they were first seen.
    pub fn tracked<T>(&self, look: impl Fn(&Tracked) -> T) -> Vec<T> {
        let mut jobs = self.jobs.borrow_mut();
        for entry in self.entries() {
            for job in entry.vm.jobs() {
                if jobs.iter().any(|t| Rc::ptr_eq(&t.job, &job)) {
                    continue;
                }
                let id = jobs.last().map_or(0, |t| t.id) + 1;
                let seen = Cell::new((job.started_ns, 0, 0));
                jobs.push(Tracked { id, entry: entry.clone(), job, seen });
            }
        }
        jobs.iter().map(look).collect()
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
        let mut result = Ok(());
        for entry in self.entries() {
            result = result.and(entry.vm.close().await.map_err(Error::from));
        }
        self.stopped.set(true);
        self.stop_signal.notify();
        result
    }

    pub fn uri(&self, export: &str) -> String {
        self.nbd.first().map(|n| n.uri(export)).unwrap_or_default()
    }

    pub fn home(&self, name: &str) -> PathBuf {
        Path::new(&self.root).join(name)
    }
}
