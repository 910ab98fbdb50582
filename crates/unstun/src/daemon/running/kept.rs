//! What a core keeps for the control side, which refers to it by number: open VMs, and guards of operations.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::daemon::running::vm::RunningVm;

/// Releases a guard, by its number, from any other core.
pub(crate) type ReleaseFromElsewhere = Arc<dyn Fn(u64) + Send + Sync>;

pub(crate) struct KeptObjects {
    release: Option<ReleaseFromElsewhere>,
    vms: RefCell<BTreeMap<u64, Rc<RunningVm>>>,
    guards: RefCell<BTreeMap<u64, Box<dyn Any>>>,
    /// The last number that was given to a VM or a guard.
    last: Cell<u64>,
}

/// A guard that a core keeps. Its drop on another core releases it with a message. On the control side's own core, which
/// receives no messages, the guard is released by its number.
pub(crate) struct GuardNumber {
    pub number: u64,
    release: Option<ReleaseFromElsewhere>,
}

impl Drop for GuardNumber {
    fn drop(&mut self) {
        if let Some(release) = &self.release {
            release(self.number);
        }
    }
}

impl KeptObjects {
    pub(crate) fn new(release: Option<ReleaseFromElsewhere>) -> KeptObjects {
        KeptObjects { release, vms: RefCell::default(), guards: RefCell::default(), last: Cell::new(0) }
    }

    fn next(&self) -> u64 {
        self.last.update(|last| last + 1);
        self.last.get()
    }

    pub(crate) fn keep_vm(&self, vm: Rc<RunningVm>) -> u64 {
        let number = self.next();
        self.vms.borrow_mut().insert(number, vm);
        number
    }

    /// Returns the VM with this number, which the control side has not forgotten.
    pub(crate) fn vm(&self, number: u64) -> Rc<RunningVm> {
        self.vms.borrow().get(&number).expect("the control side has a handle of the VM").clone()
    }

    /// Returns the number of a VM that the control side has on another core.
    pub(crate) fn number_of(&self, vm: &RunningVm) -> Option<u64> {
        let vms = self.vms.borrow();
        vms.iter().find(|(_, kept)| std::ptr::eq(&***kept, vm)).map(|(number, _)| *number)
    }

    pub(crate) fn take_vm(&self, number: u64) -> Option<Rc<RunningVm>> {
        self.vms.borrow_mut().remove(&number)
    }

    /// Keeps `guard` until the returned number is dropped.
    pub(crate) fn keep(&self, guard: impl Any) -> GuardNumber {
        let number = self.next();
        self.guards.borrow_mut().insert(number, Box::new(guard));
        GuardNumber { number, release: self.release.clone() }
    }

    pub(crate) fn release(&self, number: u64) {
        // The guard's own drop may call back.
        let guard = self.guards.borrow_mut().remove(&number);
        drop(guard);
    }
}
