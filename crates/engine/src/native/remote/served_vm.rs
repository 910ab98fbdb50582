//! VMs whose clients are on another core: their state and their attached clients, on the store's core.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::disk::NativeDisk;
use super::super::vm::NativeVm;
use super::link::VmNow;

/// A VM on its way to the core of its clients.
pub struct VmTicket {
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) now: VmNow,
}

/// A VM whose clients are on another core.
pub(super) struct ServedVm {
    pub vm: Rc<NativeVm>,
    /// The running disks that the other core has, by their number in the VM, each with its number there.
    pub disks: RefCell<BTreeMap<u32, (Rc<NativeDisk>, u64)>>,
    /// Clients and readers that have not left.
    pub clients: RefCell<BTreeMap<u64, Box<dyn Any>>>,
}

pub(super) fn now_of(vm: &NativeVm) -> VmNow {
    VmNow { state: vm.state(), unsealed: vm.activity.unsealed.borrow().clone() }
}
