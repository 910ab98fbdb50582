//! Memory of one of several machines of a world: its files end with the machine. Each has its own boot and machine ID.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blk::Errno;
use blk::memory::Memory;

pub(crate) struct HostMemory {
    machine: u64,
    files: RefCell<BTreeMap<String, Vec<u8>>>,
}

impl HostMemory {
    /// Creates the memory of a host. `machine` is not 0, and unique in the world.
    pub(crate) fn new(machine: u64) -> HostMemory {
        HostMemory { machine, files: RefCell::default() }
    }
}

impl Memory for HostMemory {
    /// A machine of `run_hosts` is never restarted.
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
