//! One connection: a task that sends requests in batches, and receives their replies in any order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use blk::socket::Socket;
use blk::sync::Signal;
use blk::{Buf, Env, Error, Result, Slice};
use futures_util::future::{Either, select};

use super::handshake::Export;
use super::receive::receive_all;
use super::requests::{Ended, Request, Requests};
use crate::nbd::proto::CMD_DISC;
use crate::nbd::stream::advance;

/// Most requests in one send. Each has up to two parts, and the kernel takes 1024 parts (IOV_MAX).
const BATCH_REQUESTS: usize = 256;
/// Time for the message that ends a connection: 1 s. Its loss has no consequence.
const DISCONNECT_LIMIT_US: u64 = 1_000_000;

/// The state of a connection that its task shares with the volume.
pub(super) struct Connection {
    pub export: Export,
    requests: Rc<Requests>,
    /// Header and payload of requests that have not been handed to the kernel.
    outbox: RefCell<VecDeque<(Slice, Option<Slice>)>>,
    outbox_grew: Signal,
    /// A part of the outbox has been taken and is being sent.
    sending: Cell<bool>,
    closed: Cell<bool>,
    closing: Signal,
}

impl Connection {
    /// Starts the task of a connection.
    pub(super) fn start(env: &Env, socket: Socket, export: Export, place: String) -> Rc<Connection> {
        let connection = Rc::new(Connection {
            export,
            requests: Rc::new(Requests::new(place)),
            outbox: RefCell::default(),
            outbox_grew: Signal::default(),
            sending: Cell::new(false),
            closed: Cell::new(false),
            closing: Signal::default(),
        });
        env.spawn_detached(Box::pin(run(env.clone(), connection.clone(), socket)));
        connection
    }

    /// Sends a request, and waits for the end of its reply. A read gets its buffer back.
    pub(super) async fn request(&self, mut request: Request) -> Ended {
        if let Some(error) = self.broken() {
            return Ended { into: request.into, extents: Vec::new(), result: Err(error) };
        }
        let read_len = request.into.as_ref().map(|buf| buf.len());
        let cookie = self.requests.begin(&mut request);
        self.outbox.borrow_mut().push_back((request.header(cookie), request.payload));
        self.outbox_grew.notify();
        let mut ended = self.requests.ended(cookie).await;
        if let Some(len) = read_len {
            // The connection broke while the buffer was being filled.
            ended.into.get_or_insert_with(|| Buf::alloc(len));
        }
        ended
    }

    /// Returns the error that ended the connection.
    pub(super) fn broken(&self) -> Option<Error> {
        self.requests.broken()
    }

    /// Returns the address of the export, for messages.
    pub(super) fn place(&self) -> &str {
        self.requests.place()
    }

    /// Ends the connection. No request is under way whose caller waits.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.closing.notify();
    }

    async fn closed(&self) {
        while !self.closed.get() {
            self.closing.wait().await;
        }
    }

    /// Returns the next parts to send.
    async fn next_batch(&self) -> Vec<Slice> {
        loop {
            let grew = self.outbox_grew.wait();
            if self.outbox.borrow().is_empty() {
                grew.await;
                continue;
            }
            let mut outbox = self.outbox.borrow_mut();
            let count = outbox.len().min(BATCH_REQUESTS);
            let parts = outbox.drain(..count).flat_map(|(header, data)| [Some(header), data]);
            return parts.flatten().filter(|part| !part.is_empty()).collect();
        }
    }
}

/// Serves the connection until it breaks or is closed.
async fn run(env: Env, connection: Rc<Connection>, socket: Socket) {
    let broken = {
        let sent = pin!(send_all(&connection, &socket));
        let received = pin!(receive_all(&connection.requests, &connection.export, &socket));
        let closed = pin!(connection.closed());
        match select(closed, select(sent, received)).await {
            Either::Left(_) => None,
            Either::Right((Either::Left((error, _)) | Either::Right((error, _)), _)) => Some(error),
        }
    };
    if let Some(error) = broken {
        return connection.requests.break_off(error);
    }
    if !connection.sending.get() {
        let request = Request::plain(CMD_DISC, 0, 0..0);
        let sent = pin!(socket.send(vec![request.header(0)]));
        select(sent, pin!(env.sleep_us(DISCONNECT_LIMIT_US))).await;
    }
}

/// Sends the outbox until the connection breaks. Returns the reason.
async fn send_all(connection: &Connection, socket: &Socket) -> Error {
    loop {
        let parts = connection.next_batch().await;
        connection.sending.set(true);
        if let Err(error) = send(connection, socket, parts).await {
            return error;
        }
        connection.sending.set(false);
    }
}

async fn send(connection: &Connection, socket: &Socket, mut parts: Vec<Slice>) -> Result<()> {
    while !parts.is_empty() {
        match socket.send(parts.clone()).await? {
            0 => return Err(connection.requests.wrong("the server hung up")),
            sent => advance(&mut parts, sent),
        }
    }
    Ok(())
}
