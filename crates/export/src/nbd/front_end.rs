//! The NBD front end: its connections and their limits, and how the daemon ends one or all of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use blk::sync::Signal;
use blk::{Env, ErrorKind};

use super::connections::{Counts, Limits};
use super::handover::Routes;
use super::proto::REFUSALS_MAX;
use super::reply::Failure;
use crate::fair::FairScheduler;
use crate::limiter::Limiter;
use crate::memory::{Holding, Memory};
use crate::resources::Resources;
use crate::sessions::{ConnectionFailure, SessionInfo};

/// Ended connections whose cause is kept for messages.
const FAILURES_KEPT: usize = 16;

/// What a connection has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Halt {
    Run,
    /// Accept no further request, answer those under way, close.
    Finish,
    /// Close now. Requests under way run to their end and are not answered.
    Cut,
}

/// State of a connection that its task and the front end share.
pub(super) struct Session {
    id: u64,
    listener: String,
    peer: String,
    /// Export of the connection; while it is set, the connection counts as one of the export's.
    export: RefCell<String>,
    observer: Rc<dyn Observer>,
    memory: Holding,
    requests: Cell<u64>,
    bytes: Cell<u64>,
    halt: Cell<Halt>,
    /// Waker of the connection's task; no other task waits.
    task: RefCell<Option<Waker>>,
}

/// Receives reports for the operator. Every method returns at once.
pub trait Observer {
    /// Called with every connection that is refused or ends by an error, and with every failed accept.
    fn connection_failed(&self, _failure: &ConnectionFailure) {}

    /// Called with every request that fails.
    fn request_failed(&self, _peer: &str, _export: &str, _failure: &Failure) {}
}

impl Observer for () {}

/// The connections of all listeners of a server.
pub struct FrontEnd {
    limits: Limits,
    resources: Rc<Resources>,
    by_listener: Counts,
    by_export: Counts,
    /// Number of refused connections whose refusal is being sent.
    refusing: Cell<usize>,
    observer: Rc<dyn Observer>,
    routes: RefCell<Option<Rc<dyn Routes>>>,
    sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    stopping: Cell<bool>,
    /// Signals that a connection began or ended, or that `stop` was called.
    changed: Signal,
    failures: RefCell<VecDeque<ConnectionFailure>>,
}

/// Entry of a connection in the list. Dropping it removes the entry.
pub(super) struct SessionEntry {
    front_end: Rc<FrontEnd>,
    pub session: Rc<Session>,
}

impl Session {
    /// Returns the number of the connection, unique in its front end.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn listener(&self) -> &str {
        &self.listener
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    pub(super) fn memory(&self) -> &Holding {
        &self.memory
    }

    pub(super) fn report_failure(&self, failure: &Failure) {
        self.observer.request_failed(&self.peer, &self.export.borrow(), failure);
    }

    pub(super) fn count(&self, bytes: u64) {
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    pub(super) fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Registers the task of `cx` for later wakes, and returns what the connection has to do.
    pub(super) fn watch(&self, cx: &Context<'_>) -> Halt {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
        self.halt.get()
    }

    fn tell(&self, halt: Halt) {
        self.halt.set(self.halt.get().max(halt));
        self.wake();
    }

    fn info(&self) -> SessionInfo {
        SessionInfo {
            id: self.id,
            peer: self.peer.clone(),
            export: self.export.borrow().clone(),
            requests: self.requests.get(),
            bytes: self.bytes.get(),
        }
    }
}

impl FrontEnd {
    /// Creates a front end with the default limits.
    pub fn new() -> Rc<FrontEnd> {
        FrontEnd::with_limits(Limits::default())
    }

    /// Creates a front end without connections.
    pub fn with_limits(limits: Limits) -> Rc<FrontEnd> {
        FrontEnd::observed(limits, Rc::new(()))
    }

    /// Creates a front end that reports to `observer`.
    pub fn observed(limits: Limits, observer: Rc<dyn Observer>) -> Rc<FrontEnd> {
        Rc::new(FrontEnd {
            limits,
            resources: Resources::new(limits.memory_bytes),
            by_listener: Counts::default(),
            by_export: Counts::default(),
            refusing: Cell::new(0),
            observer,
            routes: RefCell::default(),
            sessions: RefCell::default(),
            stopping: Cell::new(false),
            changed: Signal::default(),
            failures: RefCell::default(),
        })
    }

    /// Returns the memory of all connections and requests.
    pub fn memory(&self) -> &Memory {
        self.resources.memory()
    }

    /// Returns what this front end shares with the others of the server.
    pub fn resources(&self) -> &Rc<Resources> {
        &self.resources
    }

    /// Returns the limiter of all clients of a party (`Exports::client_group`). The limits apply as long as the
    /// limiter is kept.
    pub fn limiter(&self, party: &str) -> Rc<Limiter> {
        self.resources.limiter(party)
    }

    pub(super) fn scheduler(&self) -> &Rc<FairScheduler> {
        self.resources.scheduler()
    }

    /// Sends connections whose export another core serves to that core, from now on.
    pub fn set_routes(&self, routes: Rc<dyn Routes>) {
        *self.routes.borrow_mut() = Some(routes);
    }

    pub(super) fn routes(&self) -> Option<Rc<dyn Routes>> {
        self.routes.borrow().clone()
    }

    /// Returns the core that serves the export, if it is another one.
    pub(super) async fn other_core(&self, export: &str) -> Option<usize> {
        self.routes()?.other_core(export).await
    }

    /// Returns all connections, oldest first.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.borrow().values().map(|s| s.info()).collect()
    }

    /// Closes one connection. Its requests under way run to their end and are not answered. Until then it stays listed,
    /// and its export attached. Returns false if there is no such connection.
    pub fn disconnect(&self, id: u64) -> bool {
        let sessions = self.sessions.borrow();
        let Some(session) = sessions.get(&id) else { return false };
        session.tell(Halt::Cut);
        true
    }

    /// Accepts no further connections. Existing ones finish the requests under way and close. `serve` returns
    /// afterwards.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.tell_all(Halt::Finish);
        self.changed.notify();
    }

    /// Waits for the first connection, and then until none is left.
    pub async fn used_and_left(&self) {
        self.when(|front_end| !front_end.sessions.borrow().is_empty()).await;
        self.when(|front_end| front_end.sessions.borrow().is_empty()).await;
    }

    /// Returns the last connections that ended abnormally, oldest first.
    pub fn failures(&self) -> Vec<ConnectionFailure> {
        self.failures.borrow().iter().cloned().collect()
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

    fn free(&self) -> usize {
        self.limits.connections_max.saturating_sub(self.sessions.borrow().len())
    }

    /// Admits a connection that `listener` has accepted.
    ///
    /// # Errors
    /// The reason of a refusal, for the client and for the log.
    pub(super) fn enter(self: &Rc<Self>, listener: &str, peer: &str) -> Result<SessionEntry, String> {
        let (own, all) = (self.by_listener.of(listener), self.sessions.borrow().len());
        if !self.by_listener.allows(listener, self.free()) {
            return Err(format!(
                "too many connections: {own} over this listener, {all} of at most {} in all; close idle ones",
                self.limits.connections_max
            ));
        }
        let Some(memory) = Holding::new(self.memory(), self.limits.uncharged) else {
            return Err(format!(
                "too many connections: the memory for clients, {} MiB, has room for {all}; close idle ones or give \
                 the server more",
                self.limits.memory_bytes >> 20
            ));
        };
        let id = self.resources.next_id();
        let halt = if self.stopping.get() { Halt::Finish } else { Halt::Run };
        let session = Rc::new(Session {
            id,
            listener: listener.to_string(),
            peer: peer.to_string(),
            export: RefCell::default(),
            observer: self.observer.clone(),
            memory,
            requests: Cell::new(0),
            bytes: Cell::new(0),
            halt: Cell::new(halt),
            task: RefCell::new(None),
        });
        self.by_listener.enter(listener);
        self.sessions.borrow_mut().insert(id, session.clone());
        self.changed.notify();
        Ok(SessionEntry { front_end: self.clone(), session })
    }

    /// Records a refusal. Returns None if so many refusals are being sent that this client gets none.
    pub(super) fn refuse(self: &Rc<Self>, peer: &str, cause: &str) -> Option<RefusalGuard> {
        self.note(peer, "", ErrorKind::Refused, cause.to_string());
        if self.refusing.get() >= REFUSALS_MAX || self.stopping.get() {
            return None;
        }
        self.refusing.set(self.refusing.get() + 1);
        Some(RefusalGuard(self.clone()))
    }

    /// Checks that one more connection may choose `export`.
    ///
    /// # Errors
    /// The reason, for the client. It is in the log already.
    pub(super) fn refuse_export(&self, peer: &str, export: &str) -> Result<(), String> {
        if self.by_export.allows(export, self.free().max(1)) {
            return Ok(());
        }
        let own = self.by_export.of(export);
        let cause = format!(
            "too many connections: {own} to this export, {} of at most {} in all; close idle ones",
            self.sessions.borrow().len(),
            self.limits.connections_max
        );
        self.note(peer, export, ErrorKind::Refused, cause.clone());
        Err(cause)
    }

    pub(super) fn set_export(&self, session: &Session, name: &str) {
        self.by_export.enter(name);
        *session.export.borrow_mut() = name.to_string();
    }

    pub(super) fn tell_all(&self, halt: Halt) {
        self.sessions.borrow().values().for_each(|session| session.tell(halt));
    }

    async fn when(&self, condition: impl Fn(&FrontEnd) -> bool) {
        while !condition(self) {
            self.changed.wait().await;
        }
    }

    /// Returns the result of `work`, or None if the front end stops first.
    pub(super) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut stopped = pin!(self.when(|front_end| front_end.stopping.get()));
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => work.as_mut().poll(cx).map(Some),
        })
        .await
    }

    /// Waits until no client is connected, for at most `limit_us`.
    pub(super) async fn empty_within(&self, env: &Env, limit_us: u64) {
        let mut empty = pin!(self.when(|front_end| front_end.sessions.borrow().is_empty()));
        let mut late = pin!(env.sleep_us(limit_us));
        poll_fn(|cx| {
            let done = empty.as_mut().poll(cx).is_ready() || late.as_mut().poll(cx).is_ready();
            if done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl SessionEntry {
    pub(super) fn front_end(&self) -> &Rc<FrontEnd> {
        &self.front_end
    }

    /// Records why this connection ended.
    pub(super) fn note(&self, kind: ErrorKind, cause: String) {
        let export = self.session.export.borrow().clone();
        self.front_end.note(&self.session.peer, &export, kind, cause);
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        self.front_end.sessions.borrow_mut().remove(&self.session.id);
        self.front_end.by_listener.leave(&self.session.listener);
        // No export has the empty name.
        self.front_end.by_export.leave(&self.session.export.borrow());
        self.front_end.changed.notify();
    }
}

/// A refusal that is being sent.
pub(super) struct RefusalGuard(Rc<FrontEnd>);

impl RefusalGuard {
    pub(super) fn front_end(&self) -> &Rc<FrontEnd> {
        &self.0
    }
}

impl Drop for RefusalGuard {
    fn drop(&mut self) {
        self.0.refusing.set(self.0.refusing.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::NbdErrno;
    use super::*;

    #[derive(Default)]
    struct Seen(RefCell<Vec<String>>);

    impl Observer for Seen {
        fn connection_failed(&self, failure: &ConnectionFailure) {
            let ConnectionFailure { peer, export, kind, cause } = failure;
            self.0.borrow_mut().push(format!("{peer} at {export:?}: {kind:?}: {cause}"));
        }

        fn request_failed(&self, peer: &str, export: &str, failure: &Failure) {
            self.0.borrow_mut().push(format!("{peer} at {export:?}: {:?}", failure.errno));
        }
    }

    #[test]
    fn an_observer_receives_refusals_failed_requests_and_failed_connections() {
        let seen = Rc::new(Seen::default());
        let front_end = FrontEnd::observed(Limits::default(), seen.clone());
        let entered = front_end.enter("unix:nbd.sock", "pid 7").expect("the first of all");
        front_end.set_export(&entered.session, "disk");
        entered.session.report_failure(&Failure { errno: NbdErrno::Io, message: String::new() });
        entered.note(ErrorKind::Invalid, "garbage".to_owned());
        drop(front_end.refuse("pid 8", "too many"));
        let expected = [
            "pid 7 at \"disk\": Io",
            "pid 7 at \"disk\": Invalid: garbage",
            "pid 8 at \"\": Refused: too many",
        ];
        assert_eq!(*seen.0.borrow(), expected);
        assert_eq!(front_end.failures().len(), 2);
    }
}
