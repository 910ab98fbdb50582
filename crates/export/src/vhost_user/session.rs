//! State of one connection that its tasks and the front end share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::socket::Peer;
use blk::sync::{RangeGuard, Signal, TaskMutex};
use blk::volume::Volume;
use blk::{Env, Error};

use super::address_space::AddressSpace;
use super::blk_request::Disk;
use super::observer::Observer;
use super::protocol::{F_FLUSH, SERIAL_BYTES};
use crate::fair::{ClientGroup, FairScheduler, REQUEST_COST};
use crate::limiter::Delay;
use crate::limits::IoCost;
use crate::memory::{DELAYED_BYTES_MAX, Holding, PIECE_BYTES_MAX};
use crate::resources::Resources;
use crate::sessions::SessionInfo;
use crate::under_way::Begun;

/// What a connection has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Halt {
    Run,
    /// Take no further request, answer those under way, close.
    Finish,
    /// Close now. Requests under way run to their end and are not answered.
    Cut,
}

pub(super) struct Session {
    pub env: Env,
    pub id: u64,
    pub peer: Peer,
    pub export: String,
    pub serial: [u8; SERIAL_BYTES],
    pub volume: Rc<dyn Volume>,
    pub disk: Cell<Disk>,
    /// The guest's memory, as the client has described it last.
    pub space: RefCell<Rc<AddressSpace>>,
    /// Features that the guest has accepted.
    pub features: Cell<u64>,
    /// Signals a change of `halt`, of the disk's size, or a fault.
    pub changed: Signal,
    halt: Cell<Halt>,
    /// Whether the guest's memory must not be touched any more.
    detached: Cell<bool>,
    fault: RefCell<Option<Error>>,
    observer: Rc<dyn Observer>,
    memory: Holding,
    freed: Signal,
    /// Held by the queue that waits for memory. The queues of a device take turns.
    admission: TaskMutex,
    scheduler: Rc<FairScheduler>,
    group: Rc<ClientGroup>,
    /// Whether the limits of the VM delay no request any more.
    undelayed: Cell<bool>,
    requests: Cell<u64>,
    bytes: Cell<u64>,
}

/// What a session is made of, beside the front end's own.
pub(super) struct Attached {
    pub peer: Peer,
    pub export: String,
    pub serial: [u8; SERIAL_BYTES],
    pub volume: Rc<dyn Volume>,
    pub group: String,
}

/// Memory for the list of a request with many descriptors, until it is dropped.
pub(super) struct List {
    session: Rc<Session>,
    bytes: u64,
}

impl Drop for List {
    fn drop(&mut self) {
        self.session.memory.give_back_list(self.bytes);
        self.session.freed.notify();
    }
}

/// The right of one request to be the next of its connection that gets memory.
pub(super) struct Turn(#[expect(dead_code, reason = "held until it is dropped")] RangeGuard);

/// Memory for one piece of a request, until it is dropped.
pub(super) struct Grant {
    session: Rc<Session>,
    cost: u64,
    begun: Begun,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.session.group.under_way.end(self.begun);
        self.session.memory.give_back(self.cost);
        self.session.freed.notify();
    }
}

impl Session {
    pub(super) fn new(
        env: &Env,
        attached: Attached,
        memory: Holding,
        resources: &Resources,
        observer: &Rc<dyn Observer>,
    ) -> Rc<Session> {
        let Attached { peer, export, serial, volume, group } = attached;
        let info = volume.info();
        Rc::new(Session {
            env: env.clone(),
            id: resources.next_id(),
            peer,
            export,
            serial,
            disk: Cell::new(Disk { size_bytes: info.size_bytes, read_only: info.read_only }),
            volume,
            space: RefCell::default(),
            features: Cell::new(0),
            changed: Signal::default(),
            halt: Cell::new(Halt::Run),
            detached: Cell::new(false),
            fault: RefCell::default(),
            observer: observer.clone(),
            memory,
            freed: Signal::default(),
            admission: TaskMutex::default(),
            scheduler: resources.scheduler().clone(),
            group: resources.scheduler().group(&group),
            undelayed: Cell::new(false),
            requests: Cell::new(0),
            bytes: Cell::new(0),
        })
    }

    pub(super) fn info(&self) -> SessionInfo {
        SessionInfo {
            id: self.id,
            peer: self.peer.name.clone(),
            export: self.export.clone(),
            requests: self.requests.get(),
            bytes: self.bytes.get(),
        }
    }

    pub(super) fn tell(&self, halt: Halt) {
        self.halt.set(self.halt.get().max(halt));
        self.changed.notify();
    }

    pub(super) fn halt(&self) -> Halt {
        self.halt.get()
    }

    /// Ends the connection because of what its client or its guest did.
    pub(super) fn fail(&self, error: Error) {
        self.fault.borrow_mut().get_or_insert(error);
        self.changed.notify();
    }

    pub(super) fn take_fault(&self) -> Option<Error> {
        self.fault.borrow_mut().take()
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detached.get()
    }

    /// Touches the guest's memory no more, begins no delayed request, and ends the waits of those that have begun.
    pub(super) fn detach(&self) {
        self.detached.set(true);
        self.undelayed.set(true);
        self.group.limiter.drop_all(self.id);
        self.volume.abandon();
        self.changed.notify();
    }

    /// Lets the requests begin that the limits of the VM delay: the client waits for their end.
    pub(super) fn permit_delayed(&self) {
        self.group.limiter.permit_all(&self.env, self.id);
    }

    /// Whether each change must be durable before its answer, because the guest does not flush.
    pub(super) fn is_writethrough(&self) -> bool {
        self.features.get() & F_FLUSH == 0
    }

    pub(super) fn count(&self, bytes: u64) {
        self.requests.update(|n| n + 1);
        self.bytes.update(|n| n + bytes);
    }

    pub(super) fn report_failure(&self, error: &Error) {
        self.observer.request_failed(&self.peer.name, &self.export, error);
    }

    /// Waits until no other request of the connection waits for memory.
    pub(super) async fn turn(&self) -> Turn {
        Turn(self.admission.lock().await)
    }

    /// Waits for memory for `len` bytes of payload and a list of `list` bytes, and for the party's turn. Returns how many
    /// bytes of payload were granted. The queue takes no request meanwhile.
    pub(super) async fn admit(self: &Rc<Self>, len: u64, list: u64) -> (Grant, u64) {
        let turn = self.turn().await;
        let (grant, granted) = self.memory_for(&turn, len, list).await;
        drop(turn);
        self.begin(grant, granted).await
    }

    /// Like `admit`, for a request that keeps its turn.
    pub(super) async fn admit_in_turn(self: &Rc<Self>, turn: &Turn, len: u64) -> (Grant, u64) {
        let (grant, granted) = self.memory_for(turn, len, 0).await;
        self.begin(grant, granted).await
    }

    /// Waits for the party's turn, and until it may have more under way.
    async fn begin(&self, mut grant: Grant, granted: u64) -> (Grant, u64) {
        grant.begun = self.group.under_way.begin(&self.env, &self.scheduler.sharing, granted).await;
        self.pay(REQUEST_COST + granted).await;
        (grant, granted)
    }

    async fn memory_for(self: &Rc<Self>, _: &Turn, len: u64, list: u64) -> (Grant, u64) {
        let (granted, cost) = loop {
            let freed = self.freed.wait();
            let grant = if self.is_held_back(len) { None } else { self.memory.grant(len, list) };
            match grant {
                Some(grant) => break grant,
                None => freed.await,
            }
        };
        (Grant { session: self.clone(), cost, begun: Begun::default() }, granted)
    }

    /// Waits for memory for a list of many descriptors. The request keeps its turn until all its pieces have begun.
    pub(super) async fn admit_list(self: &Rc<Self>, _: &Turn, bytes: u64) -> List {
        loop {
            let freed = self.freed.wait();
            if self.memory.hold_list(bytes) {
                return List { session: self.clone(), bytes };
            }
            freed.await;
        }
    }

    /// Waits for the party's turn on the core, and pays for work of this cost.
    pub(super) async fn pay(&self, cost: u64) {
        self.scheduler.take(&self.env, &self.group, cost).await;
    }

    /// Returns whether a request has to wait until fewer bytes of the connection wait for the limits of its VM.
    fn is_held_back(&self, len: u64) -> bool {
        let wanted = self.memory.held() + len.min(PIECE_BYTES_MAX);
        let waits = self.memory.requests() > 0 && self.group.limiter.delayed() > 0;
        len > 0 && waits && wanted > DELAYED_BYTES_MAX
    }

    /// Pays for a request from the limits of its VM. Returns a wait if the request may not begin yet.
    pub(super) fn limit(&self, cost: IoCost) -> Option<Delay> {
        let limiter = &self.group.limiter;
        if self.undelayed.get() {
            limiter.pay(&self.env, cost);
            return None;
        }
        limiter.admit(&self.env, self.id, cost)
    }
}
