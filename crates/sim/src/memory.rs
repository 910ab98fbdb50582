//! The host's memory of one of several machines: files that end with it, under a boot and a machine of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blk::Errno;
use blk::memory::Memory;

pub(crate) struct HostMemory {
    machine: u64,
    files: RefCell<BTreeMap<String, Vec<u8>>>,
}

impl HostMemory {
    /// `machine` is not 0, and no other host's of the world.
    pub(crate) fn new(machine: u64) -> HostMemory {
        HostMemory { machine, files: RefCell::default() }
    }
}

impl Memory for HostMemory {
    /// A machine of `run_hosts` is not started again.
    fn boot(&self) -> u64 {
        self.machine << 1
    }

    fn machine(&self) -> u64 {
        self.machine
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.files.borrow().get(name).cloned()
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        self.files.borrow_mut().entry(name.to_owned()).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn clear(&self, name: &str) -> Result<(), Errno> {
        self.files.borrow_mut().insert(name.to_owned(), Vec::new());
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.files.borrow_mut().remove(name);
    }

    fn list(&self) -> Vec<String> {
        self.files.borrow().keys().cloned().collect()
    }
}
