//! One VM and the daemon's state about it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::error::{Error, Result};
use api::units::total;
use api::{VmLimits, WhenFull};
use blk::sync::TaskMutex;
use engine::native::NativeVm;

use crate::daemon::cores::vm_handle::VmHandle;
use crate::daemon::datastore::{Datastore, Home};
use crate::daemon::running::vm::RunningVm;
use crate::daemon::vm::labels::VmRecordLabels;
use crate::guest::MemoryFiles;

/// Storage of a VM's disks.
#[derive(Clone)]
pub(crate) enum Kept {
    /// The files in the VM's home.
    Redo,
    /// The store of the datastore.
    Native(Rc<NativeVm>),
}

impl Kept {
    pub(crate) fn store(&self) -> api::Store {
        match self {
            Kept::Redo => api::Store::Redo,
            Kept::Native(_) => api::Store::Native,
        }
    }
}

/// Value of `VmRecord::moving` while a move begins. From its first check on, a move keeps out operations that change the
/// VM: it copies exactly what it has checked.
pub(crate) const MOVE_BEGINS: u64 = u64::MAX;

pub(crate) struct VmRecord {
    /// Name of the VM in the datastore. Its files may have another display name.
    pub name: String,
    pub running: VmHandle,
    pub kept: Kept,
    /// Datastore that the VM belongs to.
    pub datastore: Rc<Datastore>,
    pub home: PathBuf,
    pub when_full: WhenFull,
    pub limits: Cell<VmLimits>,
    pub labels: VmRecordLabels,
    /// Files with the guest's memory at snapshots.
    pub memory: RefCell<MemoryFiles>,
    /// Locked by a take that freezes the guest.
    pub freezing: TaskMutex,
    /// Whether the guest is frozen, or may be.
    pub guest_busy: Arc<AtomicBool>,
    pub events: RefCell<Vec<api::Event>>,
    /// Notices from opening the VM's files.
    pub notices: RefCell<Vec<String>>,
    /// ID of the job that moves the VM; 0 for none, `MOVE_BEGINS` while the job is being created.
    pub moving: Cell<u64>,
}

impl VmRecord {
    pub(crate) fn place(&self) -> Home {
        self.datastore.at(&self.home)
    }

    pub(crate) fn refuse_when_moving(&self) -> blk::Result<()> {
        match self.moving.get() {
            0 => Ok(()),
            MOVE_BEGINS => Err(blk::Error::refused(
                format!("VM {}", self.name),
                "a move of the VM is starting; try again",
            )),
            job => {
                let cause = format!("the VM is being moved (job {job}); wait for the move or cancel it");
                Err(blk::Error::refused(format!("VM {}", self.name), cause))
            }
        }
    }

    /// Returns the VM on the control side's own core, to which a move brings it first.
    pub(crate) fn expect_here(&self) -> blk::Result<&Rc<RunningVm>> {
        self.running.own().ok_or_else(|| {
            let cause = format!("the VM runs on core {}, and moves run on core 0", self.running.core());
            blk::Error::refused(format!("VM {}", self.name), cause)
        })
    }

    /// Refuses `purpose` if the disks are not files.
    pub(crate) fn refuse_without_files(&self, purpose: &str) -> Result<()> {
        match &self.kept {
            Kept::Redo => Ok(()),
            Kept::Native(_) => {
                let cause = "its disks are native and are in the datastore's store";
                Err(Error::refused(format!("VM {}: {cause}; there are no files to {purpose}", self.name)))
            }
        }
    }

    /// Returns the bytes of the files with the guest's memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        total(self.memory.borrow().values().copied())
    }

    pub(crate) fn next_event(&self) -> u64 {
        self.events.borrow().last().map_or(0, |event| event.id) + 1
    }
}

pub(crate) struct Broken {
    pub home: Home,
    pub cause: Error,
}
