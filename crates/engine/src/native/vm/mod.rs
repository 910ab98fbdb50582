//! An open VM with native disks. Its state is in the store's catalogue; every change of it is one record.

mod bin;
mod branch;
mod commit;
mod disks;
mod homes;
mod items;
#[cfg(test)]
mod large_tests;
mod leave;
mod machine;
mod registry;
mod take;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use blk::manifest::{SnapshotState, VmState};
use blk::sync::TaskMutex;
use blk::{Env, Error, Result};

use self::items::{KeptSlot, node_of};
use super::change::Op;
use super::disk::{DiskTerms, NativeDisk};
use super::store::Store;
use crate::client::{Client, Present, View};
use crate::event::Listener;
use crate::event::{Event, EventKind, WRITES_LOST};
use crate::job::Job;
use crate::options::Options;
use crate::tree;

pub use self::items::{VmHome, VmHomeState};
pub use self::registry::NewNativeVm;

/// Most events kept in memory; the daemon writes each to disk as it comes.
const EVENTS_MAX: usize = 1000;
/// Most jobs kept for `job list`; finished ones are removed first.
const JOBS_MAX: usize = 100;

/// An open native VM.
pub struct NativeVm {
    pub env: Env,
    pub name: String,
    pub store: Rc<Store>,
    terms: DiskTerms,
    state: RefCell<VmState>,
    /// Slots of the disks when a snapshot was taken, by the snapshot's id.
    slots: RefCell<BTreeMap<u128, Vec<KeptSlot>>>,
    disks: RefCell<Vec<Rc<NativeDisk>>>,
    /// Serialises takes, commits, reverts and changes of disks.
    operations: TaskMutex,
    unsealed: RefCell<BTreeSet<u128>>,
    /// Snapshots that are leaving the tree.
    leaving: RefCell<BTreeSet<u128>>,
    jobs: RefCell<Vec<Rc<Job>>>,
    /// Dropped nodes whose job was cancelled: a consolidation gives their space back.
    given_up: RefCell<BTreeSet<u64>>,
    events: RefCell<VecDeque<Event>>,
    on_event: RefCell<Option<Listener>>,
    views: Present<View>,
    clients: Present<Client>,
    closed: Cell<bool>,
}

impl NativeVm {
    /// Opens the VM `id` of the store.
    pub async fn open(store: &Rc<Store>, id: u128, options: Options) -> Result<Rc<NativeVm>> {
        let (state, slots) = store.read_vm(id).await?;
        let vm = Rc::new(NativeVm {
            env: store.env.clone(),
            name: state.name.clone(),
            store: store.clone(),
            terms: DiskTerms { policy: options.space_policy, space_retry_us: options.space_retry_us },
            state: RefCell::new(state),
            slots: RefCell::new(slots),
            disks: RefCell::default(),
            operations: TaskMutex::default(),
            unsealed: RefCell::default(),
            leaving: RefCell::default(),
            jobs: RefCell::default(),
            given_up: RefCell::default(),
            events: RefCell::default(),
            on_event: RefCell::default(),
            views: Present::default(),
            clients: Present::default(),
            closed: Cell::new(false),
        });
        let tops: Vec<_> = vm.state.borrow().disks.iter().map(|d| (d.number, node_of(&d.top))).collect();
        for (number, node) in tops {
            let disk = vm.disk_on(number, node)?;
            vm.disks.borrow_mut().push(disk);
        }
        if store.raised.borrow_mut().remove(&id) {
            vm.report(vm.plain_event(EventKind::WritesLost, "", WRITES_LOST));
        }
        Ok(vm)
    }

    pub fn id(&self) -> u128 {
        self.state.borrow().id
    }

    fn disk_on(self: &Rc<Self>, number: u32, node: u64) -> Result<Rc<NativeDisk>> {
        let name = format!("{}/disk{number}", self.name);
        let disk = NativeDisk::new(&self.store, self.store.node(node)?, name.clone(), number, self.terms);
        let vm = Rc::downgrade(self);
        disk.tell_of_space(Box::new(move |full: bool| {
            let Some(vm) = vm.upgrade() else { return };
            let (kind, message) = match full {
                true => (EventKind::SpaceExhausted, "the datastore is full: guest writes wait; reads go on"),
                false => (EventKind::SpaceReturned, "guest writes go on"),
            };
            vm.report(vm.plain_event(kind, &name, message));
        }));
        Ok(disk)
    }

    pub fn disks(&self) -> Vec<Rc<NativeDisk>> {
        self.disks.borrow().clone()
    }

    pub fn disk(&self, number: u32) -> Result<Rc<NativeDisk>> {
        let disks = self.disks.borrow();
        disks.iter().find(|d| d.number == number).cloned().ok_or_else(|| {
            let known: Vec<_> = disks.iter().map(|d| format!("disk{}", d.number)).collect();
            Error::not_found(&self.name, format!("no disk{number}; it has {}", known.join(", ")))
        })
    }

    pub fn state(&self) -> VmState {
        self.state.borrow().clone()
    }

    pub fn is_sealed(&self, snapshot: u128) -> bool {
        !self.unsealed.borrow().contains(&snapshot)
    }

    fn sealed(&self, snapshot: &str) -> Result<SnapshotState> {
        let state = self.state.borrow();
        let found = tree::find(&state, snapshot)?;
        if !self.is_sealed(found.id) {
            let cause =
                format!("{snapshot} is not sealed yet: writes from before the take are still under way");
            return Err(Error::refused(&self.name, cause));
        }
        if self.leaving.borrow().contains(&found.id) {
            return Err(Error::refused(&self.name, format!("{snapshot} is just leaving the tree")));
        }
        Ok(found.clone())
    }

    fn refuse_when_closed(&self) -> Result<()> {
        match self.closed.get() {
            true => Err(Error::refused(&self.name, "the VM is being closed")),
            false => self.store.refuse_when_broken(),
        }
    }

    /// Refuses while clients are attached: a change of a disk under a guest that has it mounted corrupts its file
    /// systems.
    fn refuse_clients(&self, disk: Option<u32>) -> Result<()> {
        let attached = self.clients.all();
        let Some(client) = attached.iter().find(|c| disk.is_none_or(|disk| disk == c.disk)) else {
            return Ok(());
        };
        let cause = format!("disk{} is attached by {}", client.disk, client.name);
        Err(Error::refused(&self.name, format!("{cause}; power the guest off and disconnect it first")))
    }

    fn refuse_viewed(&self, gone: &BTreeSet<u128>) -> Result<()> {
        let views = self.views.all();
        let Some(view) = views.iter().find(|view| gone.contains(&view.snapshot)) else { return Ok(()) };
        let state = self.state.borrow();
        let name = state.snapshots.iter().find(|s| s.id == view.snapshot).map_or("?", |s| s.name.as_str());
        let cause = format!("{name} is attached by {}; disconnect that client first", view.client);
        Err(Error::refused(&self.name, cause))
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

    fn plain_event(&self, kind: EventKind, subject: &str, message: &str) -> Event {
        Event {
            unix_us: self.env.unix_us(),
            kind,
            subject: subject.to_string(),
            stun_us: 0,
            total_us: 0,
            disks: Vec::new(),
            message: message.to_string(),
        }
    }

    pub fn report(&self, event: Event) {
        if let Some(listener) = &*self.on_event.borrow() {
            listener(&event);
        }
        let mut events = self.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    fn add_job(&self, job: Rc<Job>) {
        let mut jobs = self.jobs.borrow_mut();
        jobs.push(job);
        if jobs.len() > JOBS_MAX
            && let Some(at) = jobs.iter().position(|j| j.state().is_over())
        {
            jobs.remove(at);
        }
    }

    /// Ends the VM's service. No new write begins; the writes under way complete and are durable.
    pub async fn close(&self) -> Result<()> {
        self.closed.set(true);
        for job in self.jobs.borrow().iter().filter(|j| !j.state().is_over()) {
            job.stop_for_close();
        }
        let _turn = self.operations.lock().await;
        self.stop_writes(&self.disks(), true).await;
        let given_up: Vec<u64> = std::mem::take(&mut *self.given_up.borrow_mut()).into_iter().collect();
        self.store.hold_back(&given_up, false);
        self.store.flush().await
    }

    /// Stops or resumes disks. When a stop returns, all admitted writes have ended.
    async fn stop_writes(&self, disks: &[Rc<NativeDisk>], stop: bool) {
        disks.iter().for_each(|disk| disk.closing.set(stop));
        if stop {
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
