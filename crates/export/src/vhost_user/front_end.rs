//! The vhost-user front end: its connections, and how the daemon ends one or all of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::rc::{Rc, Weak};

use blk::socket::{ClientId, Peer};
use blk::sync::Signal;
use blk::{Env, ErrorKind};
use futures_util::future::{Either, select};

use super::observer::Observer;
use super::protocol::*;
use super::session::{Attached, Halt, Session};
use crate::memory::{CONNECTION_BYTES, Holding, LIST_BYTES_MAX};
use crate::resources::Resources;
use crate::sessions::{ConnectionFailure, SessionInfo};

/// Ended connections whose cause is kept for messages.
const FAILURES_KEPT: usize = 16;
/// Descriptors of all connections if the caller sets no limit: 1024 disks with all their queues.
const DESCRIPTORS_MAX: u64 = 1024 * CONNECTION_DESCRIPTORS;

/// The connections of all sockets of a server.
pub struct FrontEnd {
    resources: Rc<Resources>,
    connections_max: usize,
    observer: Rc<dyn Observer>,
    sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    /// Connections of other front ends, with which a client of this one must not overlap.
    elsewhere: RefCell<Vec<Weak<ConnectionElsewhere>>>,
    /// Number of connections, those included that wait for an earlier one to end.
    reserved: Cell<usize>,
    pub(super) stopping: Cell<bool>,
    /// Signals that a connection began, changed or ended, or that `stop` was called.
    changed: Signal,
    failures: RefCell<VecDeque<ConnectionFailure>>,
}

/// Entry of a connection in the list. Dropping it removes the entry.
pub(super) struct SessionEntry {
    front_end: Rc<FrontEnd>,
    pub session: Rc<Session>,
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        self.front_end.sessions.borrow_mut().remove(&self.session.id);
        self.front_end.changed.notify();
    }
}

/// A connection of another front end to an export that this one has taken over. It lasts until this is dropped.
pub struct ConnectionElsewhere {
    front_end: Weak<FrontEnd>,
    export: String,
    client: ClientId,
}

impl Drop for ConnectionElsewhere {
    fn drop(&mut self) {
        if let Some(front_end) = self.front_end.upgrade() {
            front_end.changed.notify();
        }
    }
}

/// Counts a connection from its acceptance to its end.
pub(super) struct Reserved(Rc<FrontEnd>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.reserved.update(|n| n - 1);
    }
}

impl FrontEnd {
    /// Creates a front end without connections, which reports to `observer`.
    pub fn new(resources: &Rc<Resources>, observer: Rc<dyn Observer>) -> Rc<FrontEnd> {
        FrontEnd::with_descriptors(resources, DESCRIPTORS_MAX, observer)
    }

    /// Creates a front end whose connections have at most `descriptors_max` descriptors together.
    pub fn with_descriptors(
        resources: &Rc<Resources>,
        descriptors_max: u64,
        observer: Rc<dyn Observer>,
    ) -> Rc<FrontEnd> {
        let connections = descriptors_max / CONNECTION_DESCRIPTORS;
        Rc::new(FrontEnd {
            resources: resources.clone(),
            connections_max: usize::try_from(connections).unwrap_or(usize::MAX),
            observer,
            sessions: RefCell::default(),
            elsewhere: RefCell::default(),
            reserved: Cell::new(0),
            stopping: Cell::new(false),
            changed: Signal::default(),
            failures: RefCell::default(),
        })
    }

    /// Returns all connections, oldest first.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.borrow().values().map(|session| session.info()).collect()
    }

    /// Closes one connection. Its requests under way run to their end and are not answered. Returns false if there is
    /// no such connection.
    pub fn disconnect(&self, id: u64) -> bool {
        let found = self.sessions.borrow().get(&id).cloned();
        found.inspect(|session| session.tell(Halt::Cut)).is_some()
    }

    /// Has every connection look at the size of its disk, and tell its client about another one. Returns the connections.
    pub fn sizes_changed(&self) -> Vec<SessionInfo> {
        self.sessions.borrow().values().for_each(|session| session.changed.notify());
        self.sessions()
    }

    /// Accepts no further connections. Existing ones answer the requests under way and close.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.tell_all(Halt::Finish);
        self.changed.notify();
    }

    /// Resolves when no client is connected. Connections that take longer than permitted are cut.
    pub async fn ended(&self, env: &Env) {
        for _ in 0..2 {
            let empty = pin!(self.when(|front_end| front_end.sessions.borrow().is_empty()));
            let late = pin!(env.sleep_us(STOP_GRACE_US));
            if let Either::Left(_) = select(empty, late).await {
                return;
            }
            self.tell_all(Halt::Cut);
        }
    }

    /// Returns the last connections that ended abnormally, oldest first.
    pub fn failures(&self) -> Vec<ConnectionFailure> {
        self.failures.borrow().iter().cloned().collect()
    }

    fn tell_all(&self, halt: Halt) {
        self.sessions.borrow().values().for_each(|session| session.tell(halt));
    }

    pub(super) fn note(&self, peer: &str, export: &str, kind: ErrorKind, cause: String) {
        let failure = ConnectionFailure { peer: peer.to_string(), export: export.to_string(), kind, cause };
        self.observer.connection_failed(&failure);
        let mut failures = self.failures.borrow_mut();
        if failures.len() == FAILURES_KEPT {
            failures.pop_front();
        }
        failures.push_back(failure);
    }

    /// Reserves the memory and the descriptors of one more connection.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(super) fn reserve(self: &Rc<Self>) -> Result<(Holding, Reserved), String> {
        let all = self.reserved.get();
        if all >= self.connections_max {
            return Err(format!(
                "too many vhost-user connections: {all}; raise the limit on file descriptors"
            ));
        }
        // One list of a request waits for memory.
        let promise = CONNECTION_BYTES + LIST_BYTES_MAX;
        let holding = Holding::with_promise(self.resources.memory(), promise, false);
        let holding =
            holding.ok_or_else(|| "the memory for clients is used up; give the server more".to_owned())?;
        self.reserved.set(all + 1);
        Ok((holding, Reserved(self.clone())))
    }

    pub(super) fn enter(self: &Rc<Self>, env: &Env, attached: Attached, memory: Holding) -> SessionEntry {
        let session = Session::new(env, attached, memory, &self.resources, &self.observer);
        if self.stopping.get() {
            session.tell(Halt::Finish);
        }
        self.sessions.borrow_mut().insert(session.id, session.clone());
        self.changed.notify();
        SessionEntry { front_end: self.clone(), session }
    }

    /// Notes a connection of another front end, whose client may connect here before that one has ended.
    pub fn note_elsewhere(self: &Rc<Self>, export: &str, client: &Peer) -> Rc<ConnectionElsewhere> {
        let (export, client) = (export.to_owned(), client.client);
        let connection = Rc::new(ConnectionElsewhere { front_end: Rc::downgrade(self), export, client });
        let mut all = self.elsewhere.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(&connection));
        connection
    }

    /// Resolves when no earlier connection of this client to the export has requests, and no ending one of any client.
    pub(super) async fn without_predecessor(&self, export: &str, client: &Peer) {
        let is_anonymous = matches!(client.client, ClientId::Connection(_));
        self.when(|front_end| {
            let sessions = front_end.sessions.borrow();
            let mut earlier = sessions.values().filter(|session| session.export == export);
            let is_same = |session: &Session| !is_anonymous && session.peer.client == client.client;
            let elsewhere = front_end.elsewhere.borrow();
            let mut elsewhere = elsewhere.iter().filter_map(Weak::upgrade);
            let is_elsewhere = elsewhere.any(|known| {
                // Whether a client without a name is this one is unknown.
                let may_be_same =
                    known.client == client.client || matches!(known.client, ClientId::Connection(_));
                known.export == export && may_be_same
            });
            !is_elsewhere && !earlier.any(|session| session.is_detached() || is_same(session))
        })
        .await;
    }

    async fn when(&self, condition: impl Fn(&FrontEnd) -> bool) {
        loop {
            let changed = self.changed.wait();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the result of `work`, or None if `ended` or the front end stops first.
    pub(super) async fn unless_stopped<T>(
        &self,
        ended: &Signal,
        is_ended: &Cell<bool>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let stopped = async {
            loop {
                let (changed, closed) = (self.changed.wait(), ended.wait());
                if self.stopping.get() || is_ended.get() {
                    return;
                }
                select(pin!(changed), pin!(closed)).await;
            }
        };
        match select(pin!(work), pin!(stopped)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}
