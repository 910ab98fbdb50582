//! The VM's side: sends requests to the store's core, and hands out the answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use blk::mailbox::Outbox;
use blk::sync::{OneShot, RangeGuard};
use blk::{Env, File, Result, SharedFile};

use super::super::write_coalescer::WriteCoalescer;
use super::link::{Answer, DiskTicket, NewGrant, Reply, Request, VmEnd, VmWork, Work};
use super::stock::{HandedOut, VmStock};

/// A request whose answer is awaited.
struct PendingRequest {
    answer: Rc<OneShot<Answer>>,
    /// The range that the request changes: it stays locked until the store has answered, even if the caller is dropped.
    _range: Option<RangeGuard>,
}

/// What the disks of one store share on this core.
pub(super) struct StoreHere {
    side: Rc<VmSide>,
    number: u64,
    pub file: File,
    pub stock: VmStock,
    pub coalescer: Rc<WriteCoalescer>,
}

impl Drop for StoreHere {
    fn drop(&mut self) {
        self.side.recall(self.number);
    }
}

/// A disk of this core, which takes what comes with the answers.
pub(super) trait GrantedHere {
    fn take_grants(&self, grants: Vec<NewGrant>, stock: Option<HandedOut>);

    /// Returns what its grants take.
    fn grant_bytes(&self) -> usize;

    fn give_up_oldest(&self);
}

/// A VM of this core, which opens a disk that an attachment has brought.
pub(super) trait AttachedHere {
    fn open(&self, ticket: DiskTicket);
}

/// Serves disks of the stores of another core on this one.
pub struct VmSide {
    pub(super) env: Env,
    requests: Rc<Outbox<Request>>,
    pending: RefCell<BTreeMap<u32, PendingRequest>>,
    next_id: Cell<u32>,
    messages: Cell<u64>,
    /// What the grants of all disks take.
    pub(super) grant_bytes: Cell<usize>,
    pub(super) grant_bytes_max: Cell<usize>,
    pub(super) disks: RefCell<BTreeMap<u64, Weak<dyn GrantedHere>>>,
    stores: RefCell<BTreeMap<u64, Weak<StoreHere>>>,
    pub(super) vms: RefCell<BTreeMap<u64, Weak<dyn AttachedHere>>>,
}

impl VmSide {
    /// Starts to serve on the core of `env`. The grants of its disks take at most `grant_bytes_max`, on both cores together.
    pub fn start(env: &Env, end: VmEnd, grant_bytes_max: usize) -> Rc<VmSide> {
        let VmEnd { requests, mut replies } = end;
        let side = Rc::new(VmSide {
            env: env.clone(),
            requests: Outbox::start(env, requests),
            pending: RefCell::default(),
            next_id: Cell::new(0),
            messages: Cell::new(0),
            grant_bytes: Cell::new(0),
            grant_bytes_max: Cell::new(grant_bytes_max),
            disks: RefCell::default(),
            stores: RefCell::default(),
            vms: RefCell::default(),
        });
        let receiving = side.clone();
        env.spawn_detached(Box::pin(async move {
            while let Some(batch) = replies.receive().await {
                batch.into_iter().for_each(|reply| receiving.answered(reply));
            }
        }));
        side
    }

    /// Returns what the disks of a store share here. The first of them opens the store's `file`.
    ///
    /// # Errors
    /// Those of opening the file.
    pub(super) fn store_here(self: &Rc<Self>, number: u64, file: SharedFile) -> Result<Rc<StoreHere>> {
        let mut stores = self.stores.borrow_mut();
        if let Some(known) = stores.get(&number).and_then(Weak::upgrade) {
            return Ok(known);
        }
        stores.retain(|_, here| here.strong_count() > 0);
        let file = file.open(&self.env)?;
        let coalescer = WriteCoalescer::new(self.env.clone(), file.clone());
        let (side, stock) = (self.clone(), VmStock::default());
        let here = Rc::new(StoreHere { side, number, file, stock, coalescer });
        stores.insert(number, Rc::downgrade(&here));
        Ok(here)
    }

    /// Returns the messages sent so far, and the batches in which they were sent.
    pub fn messages(&self) -> (u64, u64) {
        (self.messages.get(), self.requests.batches())
    }

    pub(super) fn close(&self, disk: u64) {
        self.disks.borrow_mut().remove(&disk);
        self.send(disk, Work::Close);
    }

    /// Gives back the blocks that this core has in advance of a store, none of whose disks it serves.
    pub(super) fn recall(&self, store: u64) {
        self.send(store, Work::Recall);
    }

    pub(super) fn send(&self, disk: u64, work: Work) -> u32 {
        let mut id = self.next_id.get();
        while self.pending.borrow().contains_key(&id) {
            id = id.wrapping_add(1);
        }
        self.next_id.set(id.wrapping_add(1));
        self.messages.update(|n| n + 1);
        self.requests.push(Request { disk, id, work });
        id
    }

    /// Sends a request to the store's core now, and returns its answer. `range` is what it changes.
    pub(super) fn request(
        &self,
        disk: u64,
        work: Work,
        range: Option<RangeGuard>,
    ) -> impl Future<Output = Answer> + use<> {
        let answer = Rc::new(OneShot::default());
        let id = self.send(disk, work);
        self.pending.borrow_mut().insert(id, PendingRequest { answer: answer.clone(), _range: range });
        async move { answer.take().await }
    }

    pub(super) fn close_vm(&self, vm: u64) {
        self.vms.borrow_mut().remove(&vm);
        self.send(vm, Work::Vm(VmWork::Close));
    }

    pub(super) fn leave(&self, vm: u64, guard: u64) {
        self.send(vm, Work::Vm(VmWork::Leave(guard)));
    }

    /// Gives up grants if there are too many: the oldest ones of the disk that has the most.
    fn give_up_surplus(&self) {
        while self.grant_bytes.get() > self.grant_bytes_max.get() {
            let disks = self.disks.borrow();
            let most = disks.values().filter_map(Weak::upgrade).max_by_key(|disk| disk.grant_bytes());
            match most.filter(|disk| disk.grant_bytes() > 0) {
                Some(disk) => disk.give_up_oldest(),
                None => return,
            }
        }
    }

    fn answered(self: &Rc<Self>, reply: Reply) {
        let Reply { disk, id, mut answer, grants, stock } = reply;
        // Disks are opened in the order of the answers: a later attachment finds the disk of an earlier one.
        if let Answer::Attached(attached) = &mut answer
            && let (_, Ok(there)) = &mut **attached
            && let Some(ticket) = there.ticket.take()
            && let Some(vm) = self.vms.borrow().get(&disk).and_then(Weak::upgrade)
        {
            vm.open(ticket);
        }
        let served = self.disks.borrow().get(&disk).and_then(Weak::upgrade);
        if let Some(served) = served {
            served.take_grants(grants, stock);
            self.give_up_surplus();
        }
        let pending = self.pending.borrow_mut().remove(&id);
        if let Some(pending) = pending {
            pending.answer.set(answer);
        }
    }
}
