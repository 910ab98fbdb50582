//! The VM as a subject: its disks, its snapshots, its stuns.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use blk::sync::Signal;
use blk::volume::Volume;
use blk::{Dir, Env, Error, File, Local, Result};

use super::chain::Chain;
use super::delta::{Delta, Kind};
use super::disk::Disk;
use super::extent::{Datastore, Extent, Zeroing};
use super::format::DISK_ALIGN;
use super::frozen::Frozen;
use super::gate::Gate;
use super::host::Host;
use super::records::{RECORDS_FILE_BYTES, Records};
use super::spec::{Snapshots, Spec};
use crate::run::{Counters, Stun};
use crate::subject::{CommitEnd, CommitProgress, FrozenDisks, LayerSeen, Subject};

/// The file that stands for the file system's own records.
const RECORDS_FILE: &str = "vmfs-records";

/// A VM of a [`Spec`] in one directory, or in two: the second is for its deltas.
pub struct Esx(Rc<Vm>);

pub(super) struct Vm {
    pub env: Env,
    pub dir: Dir,
    pub delta_dir: Dir,
    pub spec: Spec,
    pub disks: Vec<Rc<Disk>>,
    pub host: Rc<Host>,
    pub gate: Rc<Gate>,
    pub state: RefCell<State>,
    /// A commit stops before its next piece.
    pub stopping: Cell<bool>,
    kind: Rc<Kind>,
    committed: Signal,
}

#[derive(Default)]
pub(super) struct State {
    /// Oldest first. Below the delta of the n-th snapshot are n others, and the clone's own delta.
    snapshots: Vec<String>,
    committing: bool,
    pub stuns: Vec<Stun>,
    pub progress: CommitProgress,
    /// Names of deltas that no disk uses any more and whose files still exist.
    pub dropped: Vec<String>,
    /// Names of all deltas whose files exist.
    pub delta_files: Vec<String>,
    deltas_made: u64,
    /// Why the last commit did not end. The disks are still served; snapshots can no longer be taken or committed.
    left_undone: Option<String>,
    /// Disks of snapshots that backups have open.
    frozen: Vec<Weak<Frozen>>,
}

impl Esx {
    /// Creates the VM's files: bases of zeros in `dir`, and later the deltas in `delta_dir`. The two directories may be
    /// on different devices.
    pub async fn create(env: Env, dir: Dir, delta_dir: Dir, spec: Spec) -> Result<Esx> {
        check_sizes(&dir, &spec)?;
        let (host, gate) = (Rc::new(Host::new(env.clone())), Rc::new(Gate::default()));
        let mut bases = Vec::new();
        for (index, &size_bytes) in spec.disks.iter().enumerate() {
            let file_name = format!("disk{index}-flat.vmdk");
            bases.push((create_base(&dir, &file_name, size_bytes, spec.thick).await?, file_name, size_bytes));
        }
        let datastore = create_datastore(&dir, &spec).await?;
        let disks = bases.into_iter().enumerate().map(|(index, (base, file_name, size_bytes))| {
            let chain = Chain { base: Extent::new(base, size_bytes, &datastore), deltas: Vec::new() };
            let (host, gate, rules) = (host.clone(), gate.clone(), spec.rules);
            Rc::new(Disk::new(index as u32, file_name, size_bytes, rules, host, gate, chain))
        });
        let disks = disks.collect();
        let kind = Rc::new(Kind { format: spec.format, rules: spec.rules, datastore });
        let vm = Vm {
            env,
            dir,
            delta_dir,
            spec,
            disks,
            host,
            gate,
            state: RefCell::default(),
            stopping: Cell::new(false),
            kind,
            committed: Signal::default(),
        };
        if vm.spec.linked_clone {
            vm.add_deltas().await?;
        }
        Ok(Esx(Rc::new(vm)))
    }
}

async fn create_datastore(dir: &Dir, spec: &Spec) -> Result<Datastore> {
    let records = match spec.vmfs {
        true => Some(create_base(dir, RECORDS_FILE, RECORDS_FILE_BYTES, true).await?),
        false => None,
    };
    let zeroing = if spec.vmfs { spec.zeroing } else { Zeroing::Nothing };
    Ok(Datastore { zeroing, marks: spec.marks, records: records.map(Records::new).map(Rc::new) })
}

async fn create_base(dir: &Dir, name: &str, bytes: u64, thick: bool) -> Result<File> {
    let file = dir.create_new(name).await?;
    file.set_len(bytes).await?;
    if thick {
        file.allocate(0, bytes).await?;
    }
    Ok(file)
}

fn check_sizes(dir: &Dir, spec: &Spec) -> Result<()> {
    match spec.disks.iter().find(|&&size| size == 0 || size % DISK_ALIGN != 0) {
        None if !spec.disks.is_empty() => Ok(()),
        None => Err(Error::invalid(dir.path(), "a VM without disks")),
        Some(size) => {
            let cause = format!("a disk of {size} bytes, expected a multiple of {DISK_ALIGN}");
            Err(Error::invalid(dir.path(), cause))
        }
    }
}

impl Vm {
    async fn add_deltas(&self) -> Result<()> {
        for disk in &self.disks {
            self.add_delta(disk).await?;
        }
        Ok(())
    }

    pub(super) async fn create_delta(&self, disk: &Disk) -> Result<Rc<Delta>> {
        let name = {
            let mut state = self.state.borrow_mut();
            state.deltas_made += 1;
            let name = format!("disk{}-{:06}-delta.vmdk", disk.index, state.deltas_made);
            state.delta_files.push(name.clone());
            name
        };
        let (kind, host) = (self.kind.clone(), self.host.clone());
        Ok(Rc::new(Delta::create(&self.delta_dir, &name, disk.size_bytes, kind, host).await?))
    }

    /// Returns the number of deltas below the first snapshot's.
    fn first_level(&self) -> usize {
        usize::from(self.spec.linked_clone)
    }

    fn position(&self, name: &str) -> Result<usize> {
        let state = self.state.borrow();
        state.snapshots.iter().position(|snapshot| snapshot == name).ok_or_else(|| {
            Error::not_found(name, format!("no such snapshot; there are {:?}", state.snapshots))
        })
    }

    fn refuse_while_committing(&self, name: &str) -> Result<()> {
        let state = self.state.borrow();
        if let Some(why) = &state.left_undone {
            return Err(Error::refused(name, format!("consolidation is needed: {why}")));
        }
        if state.committing {
            return Err(Error::refused(name, "a commit is under way"));
        }
        Ok(())
    }

    async fn take(&self, name: &str) -> Result<()> {
        self.refuse_while_committing(name)?;
        if self.position(name).is_ok() {
            return Err(Error::refused(name, "there is a snapshot of this name"));
        }
        if self.spec.snapshots == Snapshots::Deltas {
            self.stunned(format!("snapshot {name:?} taken"), self.add_deltas()).await?;
        }
        self.state.borrow_mut().snapshots.push(name.to_string());
        Ok(())
    }

    fn refuse_under_backup(&self, name: &str) -> Result<()> {
        self.state.borrow_mut().frozen.retain(|frozen| frozen.strong_count() > 0);
        if self.state.borrow().frozen.is_empty() {
            return Ok(());
        }
        Err(Error::refused(name, "a backup reads a frozen disk; end it first"))
    }

    fn frozen_disks(&self, levels: usize) -> Vec<Rc<dyn Volume>> {
        let mut state = self.state.borrow_mut();
        let frozen = self.disks.iter().map(|disk| {
            let frozen = Rc::new(Frozen::new(disk.clone(), levels));
            state.frozen.push(Rc::downgrade(&frozen));
            frozen as Rc<dyn Volume>
        });
        frozen.collect()
    }

    async fn commit(&self, position: usize) -> Result<CommitEnd> {
        let end = match self.spec.snapshots {
            Snapshots::Deltas => self.commit_level(self.first_level() + position).await?,
            Snapshots::Metadata { operation_us } => {
                self.env.sleep_us(operation_us).await;
                CommitEnd::Done
            }
        };
        if end == CommitEnd::Done {
            self.state.borrow_mut().snapshots.remove(position);
        }
        Ok(end)
    }

    /// Sets the progress of a commit that begins: the bytes to be moved. Helpers add to them later.
    fn begin_commit(&self, position: usize) {
        let level = self.first_level() + position;
        let held = self.disks.iter().filter_map(|disk| Some(disk.chain().deltas.get(level)?.held_bytes()));
        let total_bytes = Some(held.sum());
        let mut state = self.state.borrow_mut();
        state.committing = true;
        state.progress = CommitProgress { total_bytes, ..CommitProgress::default() };
    }

    fn end_commit(&self, end: &Result<CommitEnd>) {
        let mut state = self.state.borrow_mut();
        state.committing = false;
        state.left_undone = match end {
            Ok(CommitEnd::Done) => None,
            Ok(CommitEnd::GaveUp(why)) => Some(why.clone()),
            Err(error) => Some(error.to_string()),
        };
        drop(state);
        self.committed.notify();
    }

    async fn close(&self) -> Result<()> {
        self.stopping.set(true);
        while self.state.borrow().committing {
            self.committed.wait().await;
        }
        let deltas = std::mem::take(&mut self.state.borrow_mut().delta_files);
        for name in deltas {
            self.delta_dir.unlink_if_present(&name).await?;
        }
        for disk in &self.disks {
            self.dir.unlink_if_present(&disk.file_name).await?;
        }
        self.dir.unlink_if_present(RECORDS_FILE).await
    }
}

impl Subject for Esx {
    fn name(&self) -> &str {
        &self.0.spec.name
    }

    fn disks(&self) -> Vec<Rc<dyn Volume>> {
        self.0.disks.iter().map(|disk| disk.clone() as Rc<dyn Volume>).collect()
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.0.host.counters())
    }

    fn layers(&self) -> Vec<LayerSeen> {
        self.0.disks.iter().flat_map(|disk| disk.chain().seen(disk.index)).collect()
    }

    fn take_stuns(&self) -> Vec<Stun> {
        std::mem::take(&mut self.0.state.borrow_mut().stuns)
    }

    fn take<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>> {
        Box::pin(self.0.take(name))
    }

    fn commit<'a>(&'a self, name: &'a str) -> Local<'a, Result<CommitEnd>> {
        Box::pin(async move {
            self.0.refuse_while_committing(name)?;
            self.0.refuse_under_backup(name)?;
            let position = self.0.position(name)?;
            self.0.begin_commit(position);
            let vm = self.0.clone();
            let task = self.0.env.spawn(async move {
                let end = vm.commit(position).await;
                vm.end_commit(&end);
                end
            });
            task.join().await
        })
    }

    fn progress(&self) -> CommitProgress {
        self.0.state.borrow().progress.clone()
    }

    fn frozen<'a>(&'a self, name: &'a str) -> Local<'a, Result<FrozenDisks>> {
        Box::pin(async move {
            self.0.refuse_while_committing(name)?;
            let levels = self.0.first_level() + self.0.position(name)?;
            Ok((self.0.frozen_disks(levels), Box::new(()) as Box<dyn Any>))
        })
    }

    fn close(&self) -> Local<'_, Result<()>> {
        Box::pin(self.0.close())
    }
}
