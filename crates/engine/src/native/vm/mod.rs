//! An open VM with native disks. Its state is in the store's catalogue; every change of it is one record.

mod bin;
mod commit;
mod defragment;
#[cfg(test)]
mod defragment_tests;
mod disks;
mod homes;
mod items;
#[cfg(test)]
mod large_tests;
mod machine;
mod registry;
mod remove_names;
mod revert;
mod take;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::manifest::{SnapshotState, VmState};
use blk::sync::TaskMutex;
use blk::{Env, Error, Result};

use self::items::{KeptSlot, node_of};
use super::change::Op;
use super::disk::{DiskOptions, NativeDisk};
use super::source::Source;
use super::store::Store;
use crate::activity::Activity;
use crate::event::{EventKind, WRITES_LOST};
use crate::options::Options;

pub use self::items::{VmHome, VmHomeState};
pub(super) use self::items::{names_of_nodes, recovered_vm};
pub use self::registry::NewNativeVm;

/// An open native VM.
pub struct NativeVm {
    /// The core that the VM was opened on.
    pub env: Env,
    /// For messages and events.
    pub name: String,
    /// The store that its disks are nodes of.
    pub store: Rc<Store>,
    terms: DiskOptions,
    pub(crate) state: RefCell<VmState>,
    /// Slots of the disks when a snapshot was taken, by the snapshot's id.
    slots: RefCell<BTreeMap<u128, Vec<KeptSlot>>>,
    disks: RefCell<Vec<Rc<NativeDisk>>>,
    /// Serialises takes, commits, reverts and changes of disks.
    operations: TaskMutex,
    /// Held by a defragmentation until it has ended.
    defragmentation: TaskMutex,
    /// Snapshots that are leaving the tree.
    leaving: RefCell<BTreeSet<u128>>,
    /// Dropped nodes whose job was cancelled: a consolidation gives their space back.
    given_up: RefCell<BTreeSet<u64>>,
    pub(crate) activity: Activity,
    closed: Cell<bool>,
}

impl NativeVm {
    /// Opens the VM `id` of the store.
    pub async fn open(store: &Rc<Store>, id: u128, options: Options) -> Result<Rc<NativeVm>> {
        let (state, slots) = store.read_vm(id).await?;
        let activity = Activity::new(&store.env, &state.name);
        let vm = Rc::new(NativeVm {
            env: store.env.clone(),
            name: state.name.clone(),
            store: store.clone(),
            terms: DiskOptions { policy: options.space_policy, space_retry_us: options.space_retry_us },
            state: RefCell::new(state),
            slots: RefCell::new(slots),
            disks: RefCell::default(),
            operations: TaskMutex::default(),
            defragmentation: TaskMutex::default(),
            leaving: RefCell::default(),
            given_up: RefCell::default(),
            activity,
            closed: Cell::new(false),
        });
        let tops: Vec<_> = vm.state.borrow().disks.iter().map(|d| (d.number, node_of(&d.top))).collect();
        for (number, node) in tops {
            let disk = vm.disk_on(number, node)?;
            vm.disks.borrow_mut().push(disk);
        }
        if store.raised.borrow_mut().remove(&id) {
            vm.activity.note(EventKind::WritesLost, "", WRITES_LOST);
        }
        Ok(vm)
    }

    /// Returns the identity, which the VM keeps when it is renamed or moved.
    pub fn id(&self) -> u128 {
        self.state.borrow().id
    }

    fn disk_on(self: &Rc<Self>, number: u32, node: u64) -> Result<Rc<NativeDisk>> {
        let name = format!("{}/disk{number}", self.name);
        let disk = NativeDisk::new(&self.store, self.store.node(node)?, name.clone(), number, self.terms);
        let vm = Rc::downgrade(self);
        disk.space_waits.listen(Box::new(move |full: bool| {
            if let Some(vm) = vm.upgrade() {
                vm.activity.note_space(&name, full);
            }
        }));
        Ok(disk)
    }

    /// Returns the running disks, in the order of the state.
    pub fn disks(&self) -> Vec<Rc<NativeDisk>> {
        self.disks.borrow().clone()
    }

    /// Returns the numbers of the running disks over a source.
    pub fn disks_over(&self, source: &Rc<Source>) -> Vec<u32> {
        let is_known = self.store.source(source.device).is_ok_and(|known| Rc::ptr_eq(&known, source));
        let disks = self.disks.borrow();
        let over = disks.iter().filter(|disk| is_known && disk.node.device == source.device);
        over.map(|disk| disk.number).collect()
    }

    /// Returns a running disk. `NotFound` for an unknown number.
    pub fn disk(&self, number: u32) -> Result<Rc<NativeDisk>> {
        let disks = self.disks.borrow();
        disks.iter().find(|d| d.number == number).cloned().ok_or_else(|| {
            let known: Vec<_> = disks.iter().map(|d| format!("disk{}", d.number)).collect();
            Error::not_found(&self.name, format!("no disk{number}; it has {}", known.join(", ")))
        })
    }

    /// Returns a copy of the present state.
    pub fn state(&self) -> VmState {
        self.state.borrow().clone()
    }

    fn sealed(&self, snapshot: &str) -> Result<SnapshotState> {
        let found = self.activity.sealed(&self.state.borrow(), snapshot)?;
        if self.leaving.borrow().contains(&found.id) {
            return Err(Error::refused(&self.name, format!("{snapshot} is just leaving the tree")));
        }
        Ok(found)
    }

    fn refuse_when_closed(&self) -> Result<()> {
        match self.closed.get() {
            true => Err(Error::refused(&self.name, "the VM is being closed")),
            false => self.store.refuse_when_broken(),
        }
    }

    /// Makes `next` the VM's state, in the store and in memory, together with `ops`. It has no await, so all disks
    /// change in one instant. Durable after the store's next flush.
    fn change(&self, next: VmState, mut ops: Vec<Op>) -> Result<()> {
        let next = VmState { snapshots: Vec::new(), bin: Vec::new(), ..next };
        ops.push(items::put_vm(&next));
        self.store.change(&ops)?;
        let mut state = self.state.borrow_mut();
        let (snapshots, bin) = (std::mem::take(&mut state.snapshots), std::mem::take(&mut state.bin));
        *state = VmState { snapshots, bin, ..next };
        Ok(())
    }

    fn head(&self) -> VmState {
        head_of(&self.state.borrow())
    }

    /// Ends the VM's service. No new write begins; the writes under way complete and are durable.
    pub async fn close(&self) -> Result<()> {
        self.closed.set(true);
        self.activity.stop_jobs_for_close();
        let _turn = self.operations.lock().await;
        self.stop_writes(&self.disks(), true).await;
        // A defragmentation ends first, even one of a disk that a revert has replaced: nothing reads or writes the
        // store's file afterwards.
        drop(self.defragmentation.lock().await);
        let given_up: Vec<u64> = std::mem::take(&mut *self.given_up.borrow_mut()).into_iter().collect();
        self.store.hold_back(&given_up, false);
        self.store.flush().await
    }

    /// Stops or resumes disks. When a stop returns, all admitted writes have ended.
    async fn stop_writes(&self, disks: &[Rc<NativeDisk>], stop: bool) {
        disks.iter().for_each(|disk| disk.closing.set(stop));
        if stop {
            disks.iter().for_each(|disk| self.store.end_remote_writes(&disk.node));
            self.store.drain_writes().await;
        }
    }
}

/// Returns a VM's state without the snapshots in the tree and the bin, of which there may be many.
fn head_of(state: &VmState) -> VmState {
    VmState {
        name: state.name.clone(),
        id: state.id,
        disks: state.disks.clone(),
        snapshots: Vec::new(),
        current: state.current,
        last_uid: state.last_uid,
        last_job: state.last_job,
        generation: state.generation,
        folds: Vec::new(),
        bin: Vec::new(),
    }
}
