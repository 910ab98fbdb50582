//! Budget of file descriptors. An operation is refused before it takes those that are reserved for open VMs.

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use blk::manifest::Opening;
use blk::{Env, Error, ErrorKind, Result};
use vmdk::home::Admit;

use crate::memory::{self, Memory};

/// Number of descriptors of a VM besides its layers: its folders, its lock, and one file at a time that is read or
/// written anew.
const VM_FILES: u64 = 8;

/// Sockets of all cores that listen for vhost-user clients, one for each running disk.
pub(crate) static LISTENING: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Descriptors {
    env: Env,
    parts: memory::Descriptors,
}

impl Descriptors {
    /// Creates the budget of this process, and raises its limit as far as allowed.
    pub(crate) fn new(env: Env, memory: Memory) -> Rc<Descriptors> {
        let parts = memory::Descriptors::new(memory::raise_descriptors(), memory);
        Rc::new(Descriptors { env, parts })
    }

    pub(crate) fn connections(&self) -> usize {
        usize::try_from(self.parts.connections).unwrap_or(usize::MAX)
    }

    /// Returns the most descriptors of all vhost-user connections together.
    pub(crate) fn vhost_user(&self) -> u64 {
        self.parts.vhost_user
    }

    /// Admits a VM before it is created or opened.
    ///
    /// # Errors
    /// `NoDescriptors` if the budget does not suffice.
    pub(crate) fn admit_vm(&self, name: &str) -> Result<()> {
        self.admit(&format!("VM {name}"), Opening::Serve, VM_FILES)
    }

    /// Returns whether the budget suffices for `vms` further native VMs, however far each of them is with its opening.
    pub(crate) fn have_room_for(&self, vms: u64) -> bool {
        self.open() + vms * VM_FILES < self.parts.files_max(self.parts.reserve)
    }

    /// Admits the files of an image below a disk, each with its lock, before they are watched.
    ///
    /// # Errors
    /// `NoDescriptors` if the budget does not suffice.
    pub(crate) fn admit_image(&self, uri: &str, files: usize) -> Result<()> {
        self.admit(uri, Opening::Serve, 2 * files as u64)
    }

    fn open(&self) -> u64 {
        self.env.open_files() + LISTENING.load(Ordering::Relaxed)
    }

    fn admit(&self, place: &str, opening: Opening, wanted: u64) -> Result<()> {
        let kept = match opening {
            Opening::Serve => self.parts.reserve,
            Opening::Change => self.parts.reserve / 2,
            Opening::Free => 0,
        };
        let (open, max) = (self.open(), self.parts.files_max(kept));
        if open < max || opening == Opening::Free {
            return Ok(());
        }
        let memory::Descriptors { limit, connections, vhost_user, reserve } = self.parts;
        let purpose = match opening {
            Opening::Serve => "to serve the VM",
            _ => "for this change",
        };
        let cause = format!(
            "up to {wanted} file descriptors are needed {purpose}; the process may have {limit}, of which {open} are \
             open files and sockets, {connections} are for NBD connections, {vhost_user} for vhost-user ones, and \
             {reserve} are reserved for takes, commits and closing"
        );
        let remedy = "close VMs (`unstun vm close`), commit snapshots, or raise LimitNOFILE= of the unit";
        Err(Error::new(ErrorKind::NoDescriptors, place, format!("{cause}; {remedy}")))
    }
}

/// Returns the admission check for the layers of the VM at `home`.
pub(crate) fn admit_layers(descriptors: &Rc<Descriptors>, home: &Path) -> Admit {
    let descriptors = descriptors.clone();
    let place = format!("VM {}", home.file_name().unwrap_or_default().to_string_lossy());
    Box::new(move |opening, layers| descriptors.admit(&place, opening, layers as u64))
}
