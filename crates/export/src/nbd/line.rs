//! What the parts of one connection share: room for requests, replies that wait, and the volume.
//!
//! The connection is one task that receives and sends; each request is a task of its own. Every change here that the
//! connection may wait for wakes it, so its conditions are plain polls.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use blk::Slice;
use blk::volume::Volume;

use super::doors::Session;
use super::negotiate::Terms;
use super::outbox::{Batch, Outbox};
use super::proto::*;
use super::reply::{self, Failure};

pub struct Line {
    pub volume: Rc<dyn Volume>,
    pub terms: Terms,
    pub session: Rc<Session>,
    outbox: RefCell<Outbox>,
    /// Requests taken in whose reply has not left, and the payload bytes they hold.
    requests: Cell<usize>,
    bytes: Cell<u64>,
    finishing: Cell<bool>,
    closed: Cell<bool>,
}

/// One request's place on the line and its duty to answer: answering consumes it. Its room is given back when the
/// reply has been sent.
pub struct Ticket {
    line: Rc<Line>,
    cookie: u64,
    bytes: u64,
}

impl Line {
    pub fn new(volume: Rc<dyn Volume>, terms: Terms, session: Rc<Session>) -> Rc<Line> {
        Rc::new(Line {
            volume,
            terms,
            session,
            outbox: RefCell::default(),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            finishing: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    fn has_room(&self, bytes: u64) -> bool {
        let requests = self.requests.get();
        requests == 0 || requests < REQUESTS_MAX && self.bytes.get() + bytes <= IN_FLIGHT_BYTES_MAX
    }

    /// Waits for room for a request that will hold `bytes` of payload. Nothing is received meanwhile: that is the
    /// back-pressure on a client that asks and does not read.
    pub async fn admit(self: &Rc<Self>, cookie: u64, bytes: u64) -> Ticket {
        poll_fn(|_| if self.has_room(bytes) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        self.session.count(bytes);
        Ticket { line: self.clone(), cookie, bytes }
    }

    /// Nothing more will be received; the batches end once everything under way has been answered.
    pub fn finish(&self) {
        self.finishing.set(true);
    }

    /// Replies are dropped from now on: nobody reads them.
    pub fn close(&self) {
        self.closed.set(true);
        // Its tickets change the counters when they drop, so the borrow has to be over by then.
        let given_up = self.outbox.take();
        drop(given_up);
    }

    /// The next replies to send, or None when there will be no more.
    pub async fn next_batch(&self) -> Option<Batch> {
        poll_fn(|_| match self.outbox.borrow_mut().take() {
            Some(batch) => Poll::Ready(Some(batch)),
            None if self.finishing.get() && self.requests.get() == 0 => Poll::Ready(None),
            None => Poll::Pending,
        })
        .await
    }

    /// Waits until no request is under way any more.
    pub async fn idle(&self) {
        poll_fn(|cx| {
            self.session.watch(cx);
            if self.requests.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Ticket {
    pub fn line(&self) -> &Rc<Line> {
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

    pub fn succeed(self) {
        let reply = reply::success(self.cookie);
        self.post(|outbox, ticket| outbox.push_ack(ticket, reply));
    }

    pub fn fail(self, failure: &Failure) {
        let reply = reply::failure(self.cookie, self.line.terms.structured, failure);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }

    /// Answers a read; `buf` has headroom.
    pub fn data(self, offset: u64, buf: blk::Buf) {
        let reply = reply::data(self.cookie, offset, self.line.terms.structured, buf);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }

    pub fn status(self, payload: &[u8]) {
        let reply: Slice = reply::chunk(self.cookie, CHUNK_BLOCK_STATUS, payload);
        self.post(|outbox, ticket| outbox.push(ticket, reply));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.line.requests.set(self.line.requests.get() - 1);
        self.line.bytes.set(self.line.bytes.get() - self.bytes);
        self.line.session.wake();
    }
}
