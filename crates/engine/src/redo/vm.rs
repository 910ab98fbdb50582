//! An open redo VM: its disks and its home. Its operations run one at a time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use blk::layer::Layer;
use blk::manifest::{Change, DeltaFormat, DiskMode, LayerName, Manifest, Opening, VmState};
use blk::sync::{Admission, TaskMutex};
use blk::{Env, Error, ErrorKind, File, Result};

use super::disk::Disk;
use super::layer_graph::LayerGraph;
use super::space::{SpaceHold, reserve_bytes, set_aside};
use crate::activity::Activity;
use crate::event::{EventKind, WRITES_LOST};
use crate::freed_space::with_freed_space;
use crate::job::Job;
use crate::join::all;
use crate::options::{Defect, Options};

/// An open redo VM.
pub struct Vm {
    /// The core that the VM was opened on.
    pub env: Env,
    /// For messages and events.
    pub name: String,
    /// The settings of this opening.
    pub options: Options,
    pub(crate) manifest: Rc<dyn Manifest>,
    pub(crate) state: RefCell<VmState>,
    pub(crate) disks: RefCell<Vec<Rc<Disk>>>,
    /// Hash of the chains in which the last look found no delta without an owner.
    pub(crate) owned_chains: Cell<Option<u64>>,
    /// Open layers by name: all readers of a layer share one set of tables.
    layers: RefCell<BTreeMap<LayerName, Weak<dyn Layer>>>,
    /// Serialises opening: two tasks that open the same layer at once would each have tables of their own.
    opening: TaskMutex,
    /// Layers that are being created. Their files are there before their tables are known here.
    creations: Rc<Admission>,
    /// Running tops that a snapshot depended on when the VM was opened. No take leaves one; a configuration repaired by
    /// hand may.
    pub(crate) frozen_tops: RefCell<BTreeSet<LayerName>>,
    /// Serialises takes, commits, reverts, changes of disks, and the ends of folds.
    pub(crate) operations: TaskMutex,
    /// Serialises the folds of the VM.
    pub(crate) folding: TaskMutex,
    pub(crate) activity: Activity,
    pub(crate) closed: Cell<bool>,
    /// Why the home in memory and the home on disk may differ. No further change is made before the VM is opened again.
    broken: RefCell<Option<Error>>,
}

impl Vm {
    /// Opens the home: finishes what a crash interrupted, opens every chain, and resumes unfinished commits.
    pub async fn open(env: Env, manifest: Rc<dyn Manifest>, options: Options) -> Result<Rc<Vm>> {
        let state = manifest.load().await?;
        let vm = Rc::new(Vm {
            activity: Activity::new(&env, &state.name),
            env,
            name: state.name.clone(),
            options,
            manifest,
            state: RefCell::new(state),
            disks: RefCell::default(),
            owned_chains: Cell::default(),
            layers: RefCell::default(),
            opening: TaskMutex::default(),
            creations: Rc::default(),
            frozen_tops: RefCell::default(),
            operations: TaskMutex::default(),
            folding: TaskMutex::default(),
            closed: Cell::new(false),
            broken: RefCell::new(None),
        });
        for disk in vm.state().disks {
            let built = vm.build_disk(disk.number, &disk.top, Opening::Serve).await?;
            vm.disks.borrow_mut().push(built);
        }
        vm.tell_clients_of_lost_writes().await?;
        vm.find_frozen_tops().await?;
        vm.add_missing_redo().await?;
        // On a datastore that is full already there is nothing to set aside.
        let _ = vm.manifest.reserve(reserve_bytes(&options, &vm.disks())).await;
        vm.resume_folds();
        Ok(vm)
    }

    /// Raises the content generation if a crash has lost acknowledged writes: clients must not go on as if those writes
    /// were there.
    async fn tell_clients_of_lost_writes(&self) -> Result<()> {
        let links = self.disks().into_iter().flat_map(|disk| disk.chain().links.clone());
        let lost: Vec<_> = links.filter(|link| link.layer.has_lost_writes()).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let next = VmState { generation: self.state().generation.raised(&self.name)?, ..self.state() };
        self.publish(Change { next, ..Change::default() }).await?;
        self.activity.note(EventKind::WritesLost, "", WRITES_LOST);
        all(lost.iter().map(|link| link.layer.begin_log())).await
    }

    /// Returns the running disks. A disk that a revert replaces is another `Disk` afterwards.
    pub fn disks(&self) -> Vec<Rc<Disk>> {
        self.disks.borrow().clone()
    }

    /// Opens every layer under `top` and returns them base first. The VM's own layers are opened for writing, so that a
    /// later commit can write into them. What the layers show is durable when this returns.
    pub(crate) async fn open_chain(&self, top: &str, opening: Opening) -> Result<Vec<Rc<dyn Layer>>> {
        let _turn = self.opening.lock().await;
        // A preview may have found the files of a layer that a take is creating. Opened here, it would have a second set of
        // tables and a second log in the host's memory, and the first one would be removed.
        if !self.options.defects.has(Defect::OpenDuringCreation) {
            self.creations.drain().await;
        }
        let (mut layers, mut opened) = (Vec::new(), Vec::new());
        let names = self.manifest.chain_names(top).await?;
        let open = |name: &LayerName| self.layers.borrow().get(name).and_then(Weak::upgrade);
        let mut missing = names.iter().filter(|name| open(name).is_none()).count();
        for name in names {
            let layer = match open(&name) {
                Some(layer) => layer,
                None => {
                    self.manifest.admit(opening, missing)?;
                    missing = missing.saturating_sub(1);
                    let layer = self.manifest.open(&name, true).await?;
                    opened.push(layer.clone());
                    layer
                }
            };
            layers.push(layer);
        }
        self.flush_found(&opened).await?;
        for layer in &opened {
            if open(&layer.name().to_owned()).is_some() {
                let cause = "was replaced while it was opened";
                return Err(Error::new(ErrorKind::NotFound, layer.name(), cause));
            }
            self.opened(layer);
        }
        Ok(layers)
    }

    /// Creates an empty child of `parent`, to which nothing refers yet.
    pub(crate) async fn create_layer(&self, parent: &str, format: DeltaFormat) -> Result<Rc<dyn Layer>> {
        let _creation = self.creations.enter();
        let layer = self.manifest.create_child_in(parent, format).await?;
        self.opened(&layer);
        Ok(layer)
    }

    /// Makes durable what layers show when they are opened. A process that ended may have left writes in the device's
    /// cache. They are read from now on, so no guest's flush and no sealed state may miss them.
    async fn flush_found(&self, layers: &[Rc<dyn Layer>]) -> Result<()> {
        if self.options.defects.has(Defect::OpenWithoutFlush) {
            return Ok(());
        }
        let own = layers.iter().filter(|layer| layer.shape().writable);
        all(own.flat_map(|layer| layer.files()).map(File::flush)).await
    }

    pub(crate) fn opened(&self, layer: &Rc<dyn Layer>) {
        self.layers.borrow_mut().insert(layer.name().to_string(), Rc::downgrade(layer));
    }

    /// Ends the log of a layer whose file is about to be removed: none of it has to outlive this process.
    fn end_log(&self, name: &str) {
        if let Some(layer) = self.layers.borrow().get(name).and_then(Weak::upgrade) {
            layer.end_log();
        }
    }

    /// Drops a layer whose file is removed or replaced: its name may belong to a new layer later.
    pub(crate) fn forget_layer(&self, name: &str) {
        self.end_log(name);
        self.layers.borrow_mut().remove(name);
    }

    /// Opens a running disk over `top`.
    pub(crate) async fn build_disk(
        self: &Rc<Self>,
        number: u32,
        top: &str,
        opening: Opening,
    ) -> Result<Rc<Disk>> {
        let layers = self.open_chain(top, opening).await?;
        self.disk_over(number, layers)
    }

    pub(crate) fn disk_over(self: &Rc<Self>, number: u32, layers: Vec<Rc<dyn Layer>>) -> Result<Rc<Disk>> {
        let name = format!("{}/disk{number}", self.name);
        if let Some(top) = layers.last().filter(|top| !top.shape().writable) {
            let cause = format!("its running layer {} can be read and not written", top.name());
            let remedy = "import the VM without --in-place, so that writes go to a new delta";
            return Err(Error::unsupported(name, format!("{cause}; {remedy}")));
        }
        let disk = Disk::new(self.env.clone(), name, number, layers, false, self.options)?;
        self.watch_space(&disk);
        Ok(disk)
    }

    pub(crate) async fn graph(&self) -> Result<LayerGraph> {
        Ok(LayerGraph::new(self.manifest.links().await?))
    }

    /// Runs `read`, which takes the state from memory and then reads the files that it names. The end of a commit may
    /// remove those in between: a failed read runs again with changes held back. A caller that holds them back itself
    /// must not use it.
    pub(crate) async fn read_steady<T>(&self, read: impl AsyncFn() -> Result<T>) -> Result<T> {
        match read().await {
            Err(_) if !self.options.defects.has(Defect::ReadUnsteady) => {
                let _turn = self.operations.lock().await;
                read().await
            }
            done => done,
        }
    }

    pub(crate) fn refuse_open_jobs(&self) -> Result<()> {
        match self.jobs().iter().find(|job| !job.state().is_over()) {
            Some(job) => {
                let cause =
                    format!("a {} is in progress (job {}); wait for it or cancel it", job.operation, job.id);
                Err(Error::refused(&self.name, cause))
            }
            None => Ok(()),
        }
    }

    /// Refuses while a fold works on the disk: it needs the disk in the form it had when the fold began.
    pub(crate) fn refuse_folding(&self, number: u32) -> Result<()> {
        let open = |id: u64| self.jobs().iter().any(|job| job.id == id && !job.state().is_over());
        match self.state.borrow().folds.iter().find(|fold| fold.disk == number && open(fold.job)) {
            Some(fold) => {
                let cause =
                    format!("{} is being folded (job {}); wait for it or cancel it", fold.layer, fold.job);
                Err(Error::refused(&self.name, cause))
            }
            None => Ok(()),
        }
    }

    /// Returns a running disk. `NotFound` for an unknown number.
    pub fn disk(&self, number: u32) -> Result<Rc<Disk>> {
        let disks = self.disks.borrow();
        disks.iter().find(|d| d.number == number).cloned().ok_or_else(|| {
            let known: Vec<_> = disks.iter().map(|d| format!("disk{}", d.number)).collect();
            Error::not_found(&self.name, format!("no disk{number}; it has {}", known.join(", ")))
        })
    }

    /// Returns a copy of the home's present state.
    pub fn state(&self) -> VmState {
        self.state.borrow().clone()
    }

    /// Returns the VM's home.
    pub fn manifest(&self) -> &Rc<dyn Manifest> {
        &self.manifest
    }

    /// Returns whether the content of the snapshot cannot change any more; a take names it before.
    pub fn is_sealed(&self, snapshot: u128) -> bool {
        self.activity.is_sealed(snapshot)
    }

    pub(crate) fn snapshotted(&self) -> Vec<Rc<Disk>> {
        let state = self.state.borrow();
        let persistent = |d: &&Rc<Disk>| {
            state.disks.iter().any(|s| s.number == d.number && s.mode == DiskMode::Persistent)
        };
        self.disks.borrow().iter().filter(persistent).cloned().collect()
    }

    /// Announces that a layer is about to be written: the home gives a reopened layer a new content id.
    pub(crate) async fn touch(&self, layer: &str) -> Result<()> {
        self.refuse_when_broken()?;
        let touched = self.with_reserve(async || self.manifest.touch(layer).await).await;
        touched.inspect_err(|e| self.note_failed_change(e))
    }

    pub(crate) fn refuse_when_closed(&self) -> Result<()> {
        if self.closed.get() {
            return Err(Error::refused(&self.name, "the VM is being closed"));
        }
        self.refuse_when_broken()
    }

    /// Refuses changes of a home in an unknown state: they would replace the record from which a restart completes it.
    fn refuse_when_broken(&self) -> Result<()> {
        match &*self.broken.borrow() {
            Some(e) => Err(Error::refused(
                &self.name,
                format!("an earlier change of its home failed ({e}); restart unstun"),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// Marks the home as broken, unless the error means that nothing was changed.
    pub(crate) fn note_failed_change(&self, e: &Error) {
        let is_doubted =
            e.kind == ErrorKind::NoDescriptors && self.options.defects.has(Defect::DoubtShortage);
        if !nothing_changed(e) || is_doubted {
            self.broken.borrow_mut().get_or_insert_with(|| e.clone());
        }
    }

    /// Runs `work` again with the reserve if the datastore is full: work that would free space must not stop, and its
    /// small files need some.
    async fn with_reserve(&self, work: impl AsyncFn() -> Result<()>) -> Result<()> {
        match work().await {
            Err(e) if e.is_no_space() => {}
            other => return other,
        }
        let _hold = SpaceHold::over(&self.disks()).await;
        self.manifest.reserve(0).await?;
        let result = with_freed_space(&self.env, work).await;
        set_aside(&*self.manifest, reserve_bytes(&self.options, &self.disks())).await;
        result
    }

    /// Makes the change durable, then applies it in memory. A refusal, and running out of space before the commit
    /// point, change nothing. After any other failure it is unknown which of the two states is on disk; only reopening
    /// shows it.
    pub(crate) async fn publish(&self, change: Change) -> Result<()> {
        self.refuse_when_broken()?;
        let published = self.with_reserve(async || self.manifest.publish(&change).await).await;
        published.inspect_err(|e| self.note_failed_change(e))?;
        change.remove.iter().for_each(|layer| self.end_log(layer));
        *self.state.borrow_mut() = change.next;
        Ok(())
    }

    /// Returns the jobs since the VM was opened, oldest first; the latest ones where there were many.
    pub fn jobs(&self) -> Vec<Rc<Job>> {
        self.activity.jobs()
    }

    /// Reports the disk's shortage of space, once for each episode.
    fn watch_space(self: &Rc<Self>, disk: &Disk) {
        let (vm, name) = (Rc::downgrade(self), disk.name.clone());
        let tell = move |full: bool| {
            if let Some(vm) = vm.upgrade() {
                vm.activity.note_space(&name, full);
            }
        };
        disk.space_waits.listen(Box::new(tell));
    }

    /// Ends the VM's service. No new write begins; the writes under way complete, and tables and clean headers are
    /// written. Folds stop at their next safe point and resume when the home is opened again.
    pub async fn close(&self) -> Result<()> {
        self.closed.set(true);
        self.activity.stop_jobs_for_close();
        let _folds = self.folding.lock().await;
        let _turn = self.operations.lock().await;
        let disks = self.disks();
        for disk in &disks {
            disk.closing.set(true);
        }
        all(disks.iter().map(|disk| disk.close())).await
    }
}

/// Returns whether the error means that nothing was changed. Devices never refuse: a refusal comes from the checks
/// before the commit point.
pub(crate) fn nothing_changed(e: &Error) -> bool {
    matches!(e.kind, ErrorKind::NoSpace | ErrorKind::NoDescriptors | ErrorKind::Refused)
}

impl Disk {
    pub(crate) async fn close(&self) -> Result<()> {
        self.write_gate.drain().await;
        for link in self.chain().links.iter().filter(|link| link.layer.shape().writable) {
            link.seal().await?;
        }
        Ok(())
    }
}
