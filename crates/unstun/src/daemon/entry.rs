//! One VM and the daemon's state about it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use api::error::{Error, Result};
use api::{self, WhenFull};
use engine::Machine;
use engine::native::NativeVm;

use super::client_gate::ClientGate;
use super::formats::HomeFiles;
use super::site::{Home, Site};

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

/// From its first look on a move keeps out whatever changes the VM: what is looked at is what is copied.
pub const MOVE_BEGINS: u64 = u64::MAX;

pub struct Entry {
    /// What the datastore calls it; its files may have another for people.
    pub name: String,
    pub vm: Rc<dyn Machine>,
    pub kept: Kept,
    /// The datastore that it belongs to.
    pub site: Rc<Site>,
    pub home: PathBuf,
    pub when_full: WhenFull,
    pub events: RefCell<Vec<api::Event>>,
    /// What opening its files found worth saying.
    pub notices: RefCell<Vec<String>>,
    pub gate: Rc<ClientGate>,
    /// The job that moves it; 0 is none, `MOVE_BEGINS` one that is being made.
    pub moving: Cell<u64>,
}

impl Entry {
    pub fn place(&self) -> Home {
        self.site.at(&self.home)
    }

    pub fn clients(&self) -> u64 {
        (self.vm.clients().len() + self.vm.viewers().len()) as u64
    }

    pub fn refuse_when_moving(&self) -> blk::Result<()> {
        match self.moving.get() {
            0 => Ok(()),
            MOVE_BEGINS => Err(blk::Error::refused(
                format!("VM {}", self.name),
                "a move of it is just beginning; try again",
            )),
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
