//! Plan of a VM's move, and what the move leaves: each plan has one durable step, and one side to remove.

use std::fmt;
use std::rc::Rc;

use api::name::VmName;
use api::{Store, VmClient};
use blk::manifest::{DiskState, NewDisk};
use blk::{Error, Result};
use engine::native::NativeVm;
use engine::relocate::refuse_unmovable;
use engine::{Machine, Vm};

use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::relocation::{handover, recovery};
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::running::home_files::HomeFiles;
use crate::daemon::running::vm::RunningVm;
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_records::HomeState;
use crate::daemon::vm::remove::refuse_readers;
use crate::daemon::vm::vm_record::{Kept, VmRecord};
use crate::daemon::vm::{formats, paths, settings};

#[derive(Clone)]
pub(crate) enum MovePlan {
    /// The home stays. `native` is the ID of the VM in the store, on whichever side that is.
    Within { home: Home, store: Store, native: u128 },
    /// The VM gets another home in another datastore. `native` is the ID of the VM to be created in that datastore's
    /// store.
    Between { from: Home, to: Home, store: Store, native: Option<u128>, _held: [Rc<Arrival>; 2] },
}

/// Where a move brings a VM. It stays in its home if only the store is another one.
struct Target {
    home: Home,
    store: Store,
    stays: bool,
    held: [Rc<Arrival>; 2],
}

/// Bytes that a move copies at most, and those that are free in its target.
pub(super) struct Room {
    pub to_copy: u64,
    pub free: u64,
}

/// Guard that keeps a datastore from being removed while a VM moves to it or from it. The store is written until the
/// clean-up after the move is done.
pub(crate) struct Arrival(Rc<Datastore>);

impl Arrival {
    fn at(datastore: &Rc<Datastore>) -> Rc<Arrival> {
        datastore.arrivals.set(datastore.arrivals.get() + 1);
        Rc::new(Arrival(datastore.clone()))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.arrivals.set(self.0.arrivals.get() - 1);
    }
}

impl fmt::Display for MovePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let MovePlan::Between { to, .. } = self {
            write!(f, "datastore {}, ", to.datastore.name)?;
        }
        write!(f, "the {} store", self.store().as_str())
    }
}

impl MovePlan {
    /// Returns the VM's home after the move.
    pub(crate) fn to(&self) -> &Home {
        match self {
            MovePlan::Within { home, .. } => home,
            MovePlan::Between { to, .. } => to,
        }
    }

    pub(super) fn store(&self) -> Store {
        match self {
            MovePlan::Within { store, .. } | MovePlan::Between { store, .. } => *store,
        }
    }
}

impl Daemon {
    /// Returns where a move would bring a VM. Refuses a VM that cannot be moved. Changes nothing.
    async fn move_target(&self, entry: &VmRecord, request: &api::VmMove) -> api::error::Result<Target> {
        let datastore = match &request.datastore {
            Some(name) => self.datastore(Some(name))?,
            None => entry.datastore.clone(),
        };
        // Before any wait: a datastore that is removed meanwhile must not get the VM.
        datastore.refuse_when_leaving()?;
        let held = [Arrival::at(&entry.datastore), Arrival::at(&datastore)];
        let store = request.store.unwrap_or(entry.kept.store());
        let stays = Rc::ptr_eq(&datastore, &entry.datastore);
        if store == Store::Redo {
            datastore.refuse_files()?;
        }
        if stays && store == entry.kept.store() {
            let cause = "the VM is already in that store";
            return Err(Error::refused(format!("VM {}", entry.name), cause).into());
        }
        refuse_to_move(entry, request.disk, store).await?;
        handover::refuse_other_side(&entry.place()).await?;
        let home = if stays { entry.place() } else { datastore.home(&entry.name) };
        if !stays && paths::exists(&self.env, home.path.clone()).await {
            let message = format!("{} exists already; expected no such folder", home.path.display());
            return Err(api::error::Error::new(api::error::ErrorKind::Exists, message));
        }
        Ok(Target { home, store, stays, held })
    }

    /// Plans a move. Removes what an earlier one has left.
    pub(crate) async fn plan_move(
        &self,
        entry: &Rc<VmRecord>,
        request: &api::VmMove,
    ) -> api::error::Result<MovePlan> {
        let Target { home: to, store, stays, held } = self.move_target(entry, request).await?;
        recovery::settle(self, &entry.place()).await?;
        handover::refuse_recorded(&entry.place()).await?;
        if stays {
            return Ok(self.plan_within(entry, store).await?);
        }
        let native = match store {
            Store::Native => Some(to.datastore.native_store().await?.new_vm_id()),
            Store::Redo => None,
        };
        Ok(MovePlan::Between { from: entry.place(), to, store, native, _held: held })
    }

    /// Returns what a move would copy. Refuses what the move refuses, and changes nothing.
    pub(crate) async fn move_preview(
        &self,
        vm: &VmName,
        request: &api::VmMove,
    ) -> api::error::Result<api::VmMovePreview> {
        let entry = self.entry_to_change(vm.as_str())?;
        let Target { home, store, held: _held, .. } = self.move_target(&entry, request).await?;
        let room = self.room_for(&entry, &home, store).await?;
        Ok(api::VmMovePreview {
            vm: vm.clone(),
            datastore: home.datastore.name.clone(),
            store,
            home: home.path,
            snapshots: entry.running.state().await.snapshots.len() as u64,
            bytes_to_copy: room.to_copy,
            free_bytes: room.free,
            clients: entry.running.present(Who::All).await,
        })
    }

    /// Returns the room for a move. Refuses one that would fill up the target: the writes of other VMs in that datastore
    /// would wait.
    pub(super) async fn room_for(&self, entry: &VmRecord, to: &Home, store: Store) -> Result<Room> {
        let used = entry.running.used().await?;
        // A move within a datastore leaves the files of memory where they are.
        let memory = if to.path == entry.home { 0 } else { entry.memory_bytes() };
        let to_copy = used.allocated_bytes + used.shared_bytes + memory;
        let datastore = &to.datastore;
        let free = match store {
            Store::Native => datastore.space().await?.free_bytes,
            Store::Redo => datastore.dir.space().await?.free_bytes,
        };
        if free < to_copy {
            let place = datastore.path.display();
            let cause =
                format!("the move copies up to {to_copy} bytes, but only {free} bytes are free in {place}");
            return Err(Error::refused(format!("VM {}", entry.name), cause));
        }
        Ok(Room { to_copy, free })
    }

    async fn plan_within(&self, entry: &VmRecord, store: Store) -> Result<MovePlan> {
        let native = match &entry.kept {
            Kept::Redo => entry.datastore.native_store().await?.new_vm_id(),
            Kept::Native(vm) => {
                // Files in the folder belong to the user, and a failed move would remove them.
                recovery::refuse_inhabited(self, &entry.home).await?;
                vm.id()
            }
        };
        Ok(MovePlan::Within { home: entry.place(), store, native })
    }

    /// Creates the target side. The intent is durable before anything is created.
    pub(crate) async fn make_side(&self, entry: &VmRecord, plan: MovePlan) -> Result<Side> {
        let native = match &plan {
            MovePlan::Within { home, store, native } => {
                recovery::begin(self, home, *store, *native).await?;
                *native
            }
            MovePlan::Between { from, to, native, .. } => {
                let shared_writers = entry.expect_here()?.gate.guests.shared_writers.get();
                let terms = handover::Terms { when_full: entry.when_full, shared_writers };
                handover::begin(from, to, terms, *native).await?;
                formats::hold(self, &to.path).await?;
                native.unwrap_or_default()
            }
        };
        let disks = entry.running.state().await.disks;
        let options = self.options();
        let (home, name) = (plan.to().clone(), &entry.name);
        match plan.store() {
            Store::Native => {
                let store = home.datastore.native_store().await?;
                store.create_vm_like(native, name, &disks).await?;
                store.set_home(native, &home.datastore.relative(&home.path)).await?;
                let vm = NativeVm::open(&store, native, options).await?;
                Ok(Side { vm: vm.clone(), files: None, kept: Kept::Native(vm), plan })
            }
            Store::Redo => {
                formats::create_in(self, &home.path, name, new_disks(&disks)).await?;
                let files = Rc::new(HomeFiles::open(self, &home.path).await?);
                let vm = Vm::open(self.env.clone(), files.manifest(), options).await?;
                Ok(Side { vm, files: Some(files), kept: Kept::Redo, plan })
            }
        }
    }

    pub(crate) async fn step(&self, plan: &MovePlan) -> Result<()> {
        match plan {
            MovePlan::Within { home, store, .. } => recovery::step(self, &home.path, *store).await,
            MovePlan::Between { from, .. } => handover::step(from).await,
        }
    }

    /// Returns whether the homes record the step, durably or not.
    pub(crate) async fn has_stepped(&self, plan: &MovePlan) -> Result<bool> {
        match plan {
            MovePlan::Within { home, store, .. } => recovery::has_stepped(self, &home.path, *store).await,
            MovePlan::Between { from, .. } => handover::has_stepped(from).await,
        }
    }

    /// Undoes the step if a failed `step` has carried it out.
    pub(crate) async fn step_back(&self, plan: &MovePlan) -> Result<()> {
        match plan {
            MovePlan::Within { home, store, native } => {
                recovery::step_back(self, &home.path, *store, *native).await
            }
            MovePlan::Between { from, to, .. } => handover::step_back(from, to).await,
        }
    }

    /// Cleans up after a failed move: removes the target side, which is closed.
    pub(crate) async fn give_up(&self, plan: &MovePlan) -> Result<()> {
        match plan {
            MovePlan::Within { home, .. } => recovery::settle(self, home).await,
            MovePlan::Between { from, to, .. } => {
                self.holds.release(&to.path);
                handover::give_up(from, to).await
            }
        }
    }

    /// Cleans up after a completed move: removes the source side, which is closed.
    pub(crate) async fn clear_away(
        &self,
        was: &VmRecord,
        moved: &VmRecord,
        plan: &MovePlan,
    ) -> api::error::Result<()> {
        let stays = matches!(was.kept, Kept::Redo) && settings::is_adopted(&was.place()).await?;
        match plan {
            MovePlan::Within { home, .. } => recovery::settle(self, home).await?,
            MovePlan::Between { from, to, .. } => {
                handover::complete(self, &moved.name, from, to).await?;
                self.holds.release(&from.path);
            }
        }
        if let Kept::Redo = was.kept {
            was.datastore.records.remove(&was.name).await?;
        }
        if let Kept::Redo = moved.kept {
            let id = moved.running.state().await.id;
            let record = moved.datastore.record(&moved.home, HomeState::Whole, Some(id));
            moved.datastore.records.put(&moved.name, record).await?;
        }
        if stays {
            let home = was.home.display();
            self.note(moved, &format!("the imported files stay in {home}, as they were at the move"));
        }
        Ok(())
    }
}

fn new_disks(disks: &[DiskState]) -> Vec<NewDisk> {
    let new = |disk: &DiskState| NewDisk {
        size_bytes: disk.size_bytes,
        mode: disk.mode,
        folder: None,
        source: None,
    };
    disks.iter().map(new).collect()
}

/// Refuses while a client reads one of the VM's sealed states, which is on the control side's own core.
pub(crate) fn refuse_viewers(entry: &VmRecord, vm: &RunningVm) -> Result<()> {
    refuse_reader(&entry.name, vm.readers().first())
}

fn refuse_reader(vm: &str, reader: Option<&VmClient>) -> Result<()> {
    match reader {
        Some(reader) => {
            let cause = format!("{reader}; disconnect that client first");
            Err(Error::refused(format!("VM {vm}"), cause))
        }
        None => Ok(()),
    }
}

async fn refuse_to_move(entry: &VmRecord, disk: Option<u32>, to: Store) -> api::error::Result<()> {
    let name = &entry.name;
    let refused = |cause: &str| Err(Error::refused(format!("VM {name}"), cause).into());
    let state = entry.running.state().await;
    if let Some(number) = disk {
        entry.running.expect_disk(number).await?;
        if state.disks.len() > 1 {
            return refused("its disks are snapshotted together and stay together; move the whole VM");
        }
    }
    if entry.running.has_open_job() {
        return refused("a job of the VM is in progress; wait for the job or cancel it (`unstun job list`)");
    }
    refuse_reader(name, entry.running.readers().await.first())?;
    refuse_unmovable(name, &state.disks)?;
    if matches!(entry.kept, Kept::Redo) {
        // The readers would lose the layers that they read.
        let vm = name.clone();
        let refuse = async move |files: &HomeFiles| refuse_readers(&vm, &*files.manifest()).await;
        entry.running.with_files(refuse).await?;
    }
    if to == Store::Redo && state.disks.iter().enumerate().any(|(n, disk)| n as u32 != disk.number) {
        return refused("its disks are not numbered 0, 1, 2 and so on, as those of a new redo VM must be");
    }
    Ok(())
}

/// Target side of a VM's move.
pub(crate) struct Side {
    pub vm: Rc<dyn Machine>,
    pub files: Option<Rc<HomeFiles>>,
    pub kept: Kept,
    pub plan: MovePlan,
}
