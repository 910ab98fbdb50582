//! A VM as it runs: its disks, its home, and one operation on them at a time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use blk::layer::Layer;
use blk::manifest::{Change, DiskMode, Manifest, VmState};
use blk::sync::TaskMutex;
use blk::{Env, Error, Result};

use crate::disk::Disk;
use crate::event::{Event, EventKind};
use crate::job::Job;
use crate::link::all;
use crate::options::Options;
use crate::space::{SpaceHold, set_aside};
use crate::tree;

/// Events kept in memory; the daemon writes them away as they come.
const EVENTS_MAX: usize = 1000;
/// Finished jobs kept for `job list`.
const JOBS_MAX: usize = 100;

/// Called with each event as it happens.
pub type Listener = Box<dyn Fn(&Event)>;

pub struct Vm {
    pub env: Env,
    pub name: String,
    pub options: Options,
    pub(crate) manifest: Rc<dyn Manifest>,
    pub(crate) state: RefCell<VmState>,
    disks: Vec<Rc<Disk>>,
    /// Take, commit and the ends of folds: one at a time.
    pub(crate) operations: TaskMutex,
    /// Folds of one VM run one after the other.
    pub(crate) folding: TaskMutex,
    pub(crate) unsealed: RefCell<BTreeSet<u128>>,
    pub(crate) jobs: RefCell<Vec<Rc<Job>>>,
    events: RefCell<VecDeque<Event>>,
    pub on_event: RefCell<Option<Listener>>,
    pub(crate) views: RefCell<Vec<Weak<View>>>,
    pub(crate) closed: Cell<bool>,
    /// Why the home in memory and the home on disk may differ: no further change before it is opened again.
    broken: RefCell<Option<Error>>,
}

/// A client's hold on a sealed state; the layers under it may not change while it lives.
pub struct View {
    pub snapshot: u128,
    pub client: String,
}

impl Vm {
    /// Opens the home: finishes what a crash interrupted, opens every chain, and resumes unfinished commits.
    pub async fn open(env: Env, manifest: Rc<dyn Manifest>, options: Options) -> Result<Rc<Vm>> {
        let state = manifest.load().await?;
        let mut disks = Vec::new();
        for disk in &state.disks {
            let layers = open_chain(&*manifest, &disk.top).await?;
            let name = format!("{}/disk{}", state.name, disk.number);
            disks.push(Disk::new(env.clone(), name, disk.number, layers, false, options)?);
        }
        let vm = Rc::new(Vm {
            env,
            name: state.name.clone(),
            options,
            manifest,
            state: RefCell::new(state),
            disks,
            operations: TaskMutex::default(),
            folding: TaskMutex::default(),
            unsealed: RefCell::default(),
            jobs: RefCell::default(),
            events: RefCell::default(),
            on_event: RefCell::default(),
            views: RefCell::default(),
            closed: Cell::new(false),
            broken: RefCell::new(None),
        });
        vm.watch_space();
        // On a datastore that is full already there is nothing to set aside.
        let _ = vm.manifest.reserve(options.reserve_bytes).await;
        vm.resume_folds();
        Ok(vm)
    }

    pub fn disks(&self) -> &[Rc<Disk>] {
        &self.disks
    }

    pub fn disk(&self, number: u32) -> Result<Rc<Disk>> {
        self.disks.iter().find(|d| d.number == number).cloned().ok_or_else(|| {
            let known: Vec<_> = self.disks.iter().map(|d| format!("disk{}", d.number)).collect();
            Error::not_found(&self.name, format!("no disk{number}; it has {}", known.join(", ")))
        })
    }

    /// A copy of what the home says now.
    pub fn state(&self) -> VmState {
        self.state.borrow().clone()
    }

    pub fn manifest(&self) -> &Rc<dyn Manifest> {
        &self.manifest
    }

    pub fn is_sealed(&self, snapshot: u128) -> bool {
        !self.unsealed.borrow().contains(&snapshot)
    }

    pub(crate) fn snapshotted(&self) -> Vec<Rc<Disk>> {
        let state = self.state.borrow();
        let persistent = |d: &&Rc<Disk>| {
            state.disks.iter().any(|s| s.number == d.number && s.mode == DiskMode::Persistent)
        };
        self.disks.iter().filter(persistent).cloned().collect()
    }

    /// Makes ready for a writable client: a reopened top says on disk that it is about to change.
    pub async fn prepare_writes(&self, disk: &Disk) -> Result<()> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.touch(&disk.top_name()).await
    }

    /// Announces that a layer is about to be written; the home knows whether anybody has to be told.
    pub(crate) async fn touch(&self, layer: &str) -> Result<()> {
        self.with_reserve(async || self.manifest.touch(layer).await).await
    }

    pub(crate) fn refuse_when_closed(&self) -> Result<()> {
        if self.closed.get() {
            return Err(Error::refused(&self.name, "the VM is being closed"));
        }
        match &*self.broken.borrow() {
            Some(e) => Err(Error::refused(
                &self.name,
                format!("an earlier change of its home failed ({e}); restart unstun"),
            )),
            None => Ok(()),
        }
    }

    /// A full datastore must not stop the work that would free some: the reserve serves the small files too.
    async fn with_reserve(&self, work: impl AsyncFn() -> Result<()>) -> Result<()> {
        match work().await {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        let _hold = SpaceHold::over(&self.disks).await;
        self.manifest.reserve(0).await?;
        let result = work().await;
        set_aside(&*self.manifest, self.options.reserve_bytes).await;
        result
    }

    /// Makes the change true on disk, then in memory. Running out of space before the commit point changes nothing;
    /// after any other failure it is unknown which of the two states is on disk, and only reopening can tell.
    pub(crate) async fn publish(&self, change: Change) -> Result<()> {
        if let Err(e) = self.with_reserve(async || self.manifest.publish(&change).await).await {
            if !e.is_no_space() {
                self.broken.borrow_mut().get_or_insert_with(|| e.clone());
            }
            return Err(e);
        }
        *self.state.borrow_mut() = change.next;
        Ok(())
    }

    /// A sealed state of one disk, read-only. The view protects its layers until it is dropped.
    pub async fn open_view(&self, snapshot: &str, number: u32, client: &str) -> Result<(Rc<Disk>, Rc<View>)> {
        let _turn = self.operations.lock().await;
        let state = self.state();
        let found = tree::find(&state, snapshot)?;
        if !self.is_sealed(found.id) {
            let cause =
                format!("{snapshot} is not sealed yet: writes from before the take are still under way");
            return Err(Error::refused(&self.name, cause));
        }
        let layer = found.disks.iter().find(|(n, _)| *n == number).map(|(_, layer)| layer.clone());
        let Some(layer) = layer else {
            return Err(Error::not_found(
                &self.name,
                format!("disk{number} is not part of snapshot {snapshot}"),
            ));
        };
        let layers = match self.disk(number)?.layers_up_to(&layer) {
            Some(shared) => shared,
            None => open_chain(&*self.manifest, &layer).await?,
        };
        let name = format!("{}/disk{number}@{}", self.name, found.name);
        let disk = Disk::new(self.env.clone(), name, number, layers, true, self.options)?;
        let view = Rc::new(View { snapshot: found.id, client: client.to_string() });
        self.views.borrow_mut().retain(|v| v.strong_count() > 0);
        self.views.borrow_mut().push(Rc::downgrade(&view));
        Ok((disk, view))
    }

    /// Clients on sealed states: (snapshot id, client).
    pub fn viewers(&self) -> Vec<(u128, String)> {
        self.views.borrow().iter().filter_map(Weak::upgrade).map(|v| (v.snapshot, v.client.clone())).collect()
    }

    pub fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().clone()
    }

    pub(crate) fn add_job(&self, job: Rc<Job>) {
        let mut jobs = self.jobs.borrow_mut();
        jobs.push(job);
        if jobs.len() > JOBS_MAX
            && let Some(at) = jobs.iter().position(|j| j.state().is_over())
        {
            jobs.remove(at);
        }
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.borrow().iter().cloned().collect()
    }

    pub(crate) fn plain_event(&self, kind: EventKind, subject: &str, message: &str) -> Event {
        Event {
            unix_us: self.env.unix_us(),
            kind,
            subject: subject.to_string(),
            stun_us: 0,
            total_us: 0,
            disks: Vec::new(),
            message: message.to_string(),
        }
    }

    /// Tells of each disk's shortage of space once an episode.
    fn watch_space(self: &Rc<Self>) {
        for disk in &self.disks {
            let (vm, name) = (Rc::downgrade(self), disk.name.clone());
            let tell = move |full: bool| {
                let Some(vm) = vm.upgrade() else { return };
                let (kind, message) = match full {
                    true => {
                        (EventKind::SpaceExhausted, "the datastore is full: guest writes wait; reads go on")
                    }
                    false => (EventKind::SpaceReturned, "guest writes go on"),
                };
                vm.report(vm.plain_event(kind, &name, message));
            };
            *disk.on_space.borrow_mut() = Some(Box::new(tell));
        }
    }

    pub fn report(&self, event: Event) {
        if let Some(listener) = &*self.on_event.borrow() {
            listener(&event);
        }
        let mut events = self.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Ends the VM's service: no new writes, the ones under way complete, tables and clean headers are written. Folds
    /// stop at their next safe point and resume when the home is opened again.
    pub async fn close(&self) -> Result<()> {
        self.closed.set(true);
        for job in self.jobs().iter().filter(|j| !j.state().is_over()) {
            job.stop_for_close();
        }
        let _folds = self.folding.lock().await;
        let _turn = self.operations.lock().await;
        for disk in &self.disks {
            disk.closing.set(true);
        }
        all(self.disks.iter().map(|disk| disk.close())).await
    }
}

/// Every layer under `top`, opened for writing so that a later commit can write into them; base first.
async fn open_chain(manifest: &dyn Manifest, top: &str) -> Result<Vec<Rc<dyn Layer>>> {
    let chain = manifest.chain(top).await?;
    let mut layers = Vec::with_capacity(chain.len());
    for info in &chain {
        layers.push(manifest.open(&info.name, true).await?);
    }
    Ok(layers)
}

impl Disk {
    /// The layers from the base to `name`, if the running chain has it: shared, so that there is one set of tables.
    fn layers_up_to(&self, name: &str) -> Option<Vec<Rc<dyn Layer>>> {
        let chain = self.chain();
        let at = chain.links.iter().position(|l| l.layer.name() == name)?;
        Some(chain.links[..=at].iter().map(|l| l.layer.clone()).collect())
    }

    async fn close(&self) -> Result<()> {
        self.write_gate.drain().await;
        for link in &self.chain().links {
            link.seal().await?;
        }
        Ok(())
    }
}
