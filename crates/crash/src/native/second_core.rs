//! The guests of a store on a core of their own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use blk::Env;
use blk::volume::Volume;
use engine::native::{NativeDisk, StoreSide, VmSide, connect};
use sim::Bridge;

/// What the grants of the guests' core take.
const GRANT_BYTES_MAX: usize = 32 << 20;

/// A disk of the store, and the same disk as the guests' core serves it.
type OpenedThere = (Rc<NativeDisk>, Rc<dyn Volume>);

/// The guests' core, connected with the store's.
pub(super) struct SecondCore {
    env: Env,
    store_side: Rc<StoreSide>,
    vm_side: Rc<VmSide>,
    /// The disks that were opened there, by their node.
    disks: RefCell<BTreeMap<u64, OpenedThere>>,
}

impl SecondCore {
    pub(super) fn start(store_core: &Env, env: &Env) -> SecondCore {
        let (store_end, vm_end) = connect();
        SecondCore {
            env: env.clone(),
            store_side: StoreSide::start(store_core, store_end),
            vm_side: VmSide::start(env, vm_end, GRANT_BYTES_MAX),
            disks: RefCell::default(),
        }
    }

    /// Returns a disk as its guests see it. It stays open on their core until the VM is opened again or the boot ends.
    pub(super) fn volume(&self, disk: &Rc<NativeDisk>) -> Rc<dyn Volume> {
        let mut disks = self.disks.borrow_mut();
        if let Some((known, volume)) = disks.get(&disk.node.id)
            && Rc::ptr_eq(known, disk)
        {
            return volume.clone();
        }
        let ticket = self.store_side.serve(disk.clone()).expect("a simulated process has descriptors");
        let remote = self.vm_side.open(ticket).expect("the store's file is open");
        let volume: Rc<dyn Volume> = Bridge::new(&self.env, remote);
        disks.insert(disk.node.id, (disk.clone(), volume.clone()));
        volume
    }
}
