//! State that the parts of one connection share: memory of requests, replies to send, and the volume.
//!
//! A connection is one task that receives and sends. Each request is a task of its own. Every change here for which the
//! connection may wait wakes the connection's task, so its conditions are plain polls.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use blk::volume::{Changes, Volume};
use blk::{Env, Slice};

use super::front_end::Session;
use super::negotiate::Terms;
use super::outbox::{Batch, Outbox};
use super::proto::*;
use super::reply::{self, Failure};
use crate::fair::{ClientGroup, FairScheduler, REQUEST_COST};
use crate::limiter::Delay;
use crate::limits::IoCost;
use crate::memory::{DELAYED_BYTES_MAX, PIECE_BYTES_MAX};
use crate::under_way::Begun;

pub(super) struct Connection {
    pub volume: Rc<dyn Volume>,
    /// None if no state can be selected.
    pub changes: Option<Rc<dyn Changes>>,
    pub terms: Terms,
    pub session: Rc<Session>,
    scheduler: Rc<FairScheduler>,
    group: Rc<ClientGroup>,
    outbox: RefCell<Outbox>,
    finishing: Cell<bool>,
    closed: Cell<bool>,
    /// Whether the limits of the VM delay no request any more, because the connection ends.
    undelayed: Cell<bool>,
}

/// The duty to answer a request, or a piece of one. Answering consumes it. Its memory is freed when the reply has been
/// sent.
pub(super) struct Ticket {
    line: Rc<Connection>,
    cookie: u64,
    cost: u64,
    begun: Begun,
}

impl Connection {
    pub(super) fn new(
        (volume, changes): (Rc<dyn Volume>, Option<Rc<dyn Changes>>),
        terms: Terms,
        session: Rc<Session>,
        scheduler: &Rc<FairScheduler>,
        group: &str,
    ) -> Rc<Connection> {
        Rc::new(Connection {
            volume,
            changes,
            terms,
            session,
            scheduler: scheduler.clone(),
            group: scheduler.group(group),
            outbox: RefCell::default(),
            finishing: Cell::new(false),
            closed: Cell::new(false),
            undelayed: Cell::new(false),
        })
    }

    pub(super) fn group(&self) -> &Rc<ClientGroup> {
        &self.group
    }

    /// Waits for memory for `len` bytes of payload, and for the party's turn. Returns how many bytes were granted.
    /// Nothing is received meanwhile, which holds back a client that sends requests and does not read the replies.
    pub(super) async fn admit(self: &Rc<Self>, env: &Env, cookie: u64, len: u64) -> (Ticket, u64) {
        let memory = self.session.memory();
        let (granted, cost) = poll_fn(|_| {
            let grant = if self.is_held_back(len) { None } else { memory.grant(len, 0) };
            grant.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        let mut ticket = Ticket { line: self.clone(), cookie, cost, begun: Begun::default() };
        ticket.begun = self.group.under_way.begin(env, &self.scheduler.sharing, granted).await;
        self.scheduler.take(env, &self.group, REQUEST_COST + granted).await;
        (ticket, granted)
    }

    /// Returns whether a request has to wait until fewer bytes of the connection wait for the limits of its VM. A request
    /// without payload, such as a flush, has not.
    fn is_held_back(&self, len: u64) -> bool {
        let memory = self.session.memory();
        let wanted = memory.held() + len.min(PIECE_BYTES_MAX);
        len > 0 && memory.requests() > 0 && self.group.limiter.delayed() > 0 && wanted > DELAYED_BYTES_MAX
    }

    /// Pays for a request from the limits of its VM. Returns a wait if the request may not begin yet.
    pub(super) fn limit(&self, env: &Env, cost: IoCost) -> Option<Delay> {
        let limiter = &self.group.limiter;
        if self.undelayed.get() {
            limiter.pay(env, cost);
            return None;
        }
        limiter.admit(env, self.session.id(), cost)
    }

    /// Ends all waits of the client's requests without a limit in time, because the client has left or sends no more:
    /// those for space, and those for the limits of its VM.
    pub(super) fn abandon(&self, env: &Env) {
        self.permit_delayed(env);
        self.volume.abandon();
    }

    /// Lets the requests begin that the limits of the VM delay. No request of the connection is delayed from now on.
    pub(super) fn permit_delayed(&self, env: &Env) {
        self.undelayed.set(true);
        self.group.limiter.permit_all(env, self.session.id());
    }

    fn requests(&self) -> usize {
        self.session.memory().requests()
    }

    /// Notes that nothing more will be received. The batches end once everything under way has been answered.
    pub(super) fn finish(&self) {
        self.finishing.set(true);
    }

    /// Drops replies from now on, because the client does not read them.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.group.limiter.drop_all(self.session.id());
        // The tickets change the counters when they drop, so the borrow has to be over by then.
        let given_up = self.outbox.take();
        drop(given_up);
    }

    /// Returns the next replies to send, or None when there will be no more.
    pub(super) async fn next_batch(&self) -> Option<Batch> {
        poll_fn(|_| match self.outbox.borrow_mut().take() {
            Some(batch) => Poll::Ready(Some(batch)),
            None if self.finishing.get() && self.requests() == 0 => Poll::Ready(None),
            None => Poll::Pending,
        })
        .await
    }

    /// Waits until no request is under way. Only the connection's task may wait for that.
    pub(super) async fn idle(&self) {
        poll_fn(|cx| {
            self.session.watch(cx);
            if self.requests() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Ticket {
    pub(super) fn line(&self) -> &Rc<Connection> {
        &self.line
    }

    fn post(self, put: impl FnOnce(&mut Outbox, Ticket)) {
        let line = self.line.clone();
        if line.closed.get() {
            return;
        }
        put(&mut line.outbox.borrow_mut(), self);
        line.session.wake();
    }

    pub(super) fn succeed(self) {
        let reply = reply::success(self.cookie);
        self.post(|outbox, ticket| outbox.push_ack(ticket, reply));
    }

    pub(super) fn fail(self, failure: &Failure) {
        self.line.session.report_failure(failure);
        let reply = reply::failure(self.cookie, self.line.terms.structured, failure);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }

    /// Answers a read or a piece of one; `done` if no other piece follows. `buf` must have headroom.
    pub(super) fn data(self, offset: u64, buf: blk::Buf, done: bool) {
        let reply = reply::data(self.cookie, offset, self.line.terms.structured, done, buf);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }

    /// Begins an answer of `total` bytes that is sent as one message, with its first bytes.
    pub(super) fn data_begins(self, offset: u64, total: u32, buf: blk::Buf) {
        let reply = reply::data_of(self.cookie, offset, total, self.line.terms.structured, true, buf);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }

    /// Continues the answer that began last.
    pub(super) fn data_goes_on(self, buf: blk::Buf) {
        self.post(|outbox, ticket| outbox.push(ticket, buf.freeze()));
    }

    /// Answers with a chunk for each context.
    pub(super) fn status(self, payloads: &[Vec<u8>]) {
        let reply: Slice = reply::chunks(self.cookie, CHUNK_BLOCK_STATUS, payloads);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let line = &self.line;
        line.group.under_way.end(self.begun);
        line.session.memory().give_back(self.cost);
        line.session.wake();
    }
}
