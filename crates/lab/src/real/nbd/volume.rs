//! An NBD connection as a volume: many requests under way on one stream, with simple replies in any order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use blk::socket::Socket;
use blk::sync::Signal;
use blk::volume::{Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Error, ErrorKind, Local, Result, Slice};
use export::nbd::proto::*;

use super::handshake::Export;

/// Most requests in one send. Each has up to two parts, and the kernel takes 1024 parts (IOV_MAX).
const BATCH_REQUESTS: usize = 256;

/// A request under way. Its index is the cookie.
#[derive(Default)]
struct Slot {
    in_use: bool,
    /// Buffer for a read's payload.
    into: Option<Buf>,
    outcome: Option<Result<()>>,
    waker: Option<Waker>,
}

struct Connection {
    place: String,
    export: Export,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    /// Header and payload of requests that have not been handed to the kernel.
    outbox: RefCell<VecDeque<(Slice, Option<Slice>)>>,
    outbox_grew: Signal,
    /// The error that ended the connection.
    broken: RefCell<Option<Error>>,
    closed: Cell<bool>,
}

/// A volume on one NBD connection; dropping it ends the connection.
pub(crate) struct NbdVolume {
    connection: Rc<Connection>,
}

impl NbdVolume {
    /// Attaches to `socket`, which has just finished its negotiation.
    pub(crate) fn start(env: &Env, socket: Socket, export: Export) -> Rc<NbdVolume> {
        let socket = Rc::new(socket);
        let connection = Rc::new(Connection {
            place: socket.peer().to_string(),
            export,
            slots: RefCell::default(),
            free: RefCell::default(),
            outbox: RefCell::default(),
            outbox_grew: Signal::default(),
            broken: RefCell::new(None),
            closed: Cell::new(false),
        });
        env.spawn_detached(Box::pin(send_all(connection.clone(), socket.clone())));
        env.spawn_detached(Box::pin(receive_all(connection.clone(), socket)));
        Rc::new(NbdVolume { connection })
    }

    async fn plain(&self, kind: u16, flags: u16, range: Range<u64>) -> Result<()> {
        self.connection.request(Request { kind, flags, range, payload: None, into: None }).await.1
    }
}

impl Drop for NbdVolume {
    fn drop(&mut self) {
        self.connection.closed.set(true);
        self.connection.outbox_grew.notify();
    }
}

struct Request {
    kind: u16,
    flags: u16,
    range: Range<u64>,
    payload: Option<Slice>,
    into: Option<Buf>,
}

impl Request {
    fn header(&self, cookie: usize) -> Slice {
        let mut header = Buf::alloc(REQUEST_BYTES);
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[4..6].copy_from_slice(&self.flags.to_be_bytes());
        header[6..8].copy_from_slice(&self.kind.to_be_bytes());
        header[8..16].copy_from_slice(&(cookie as u64).to_be_bytes());
        header[16..24].copy_from_slice(&self.range.start.to_be_bytes());
        header[24..28].copy_from_slice(&((self.range.end - self.range.start) as u32).to_be_bytes());
        header.freeze()
    }
}

impl Connection {
    async fn request(&self, mut request: Request) -> (Option<Buf>, Result<()>) {
        if let Some(error) = self.broken.borrow().clone() {
            return (request.into, Err(error));
        }
        let cookie = self.take_slot(request.into.take());
        self.outbox.borrow_mut().push_back((request.header(cookie), request.payload));
        self.outbox_grew.notify();
        poll_fn(|cx| {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[cookie];
            let Some(outcome) = slot.outcome.take() else {
                slot.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let buf = std::mem::take(slot).into;
            self.free.borrow_mut().push(cookie);
            Poll::Ready((buf, outcome))
        })
        .await
    }

    fn take_slot(&self, into: Option<Buf>) -> usize {
        let mut slots = self.slots.borrow_mut();
        let cookie = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot::default());
            slots.len() - 1
        });
        slots[cookie] = Slot { in_use: true, into, outcome: None, waker: None };
        cookie
    }

    fn finish(&self, cookie: usize, outcome: Result<()>) {
        let slot = &mut self.slots.borrow_mut()[cookie];
        slot.outcome = Some(outcome);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    fn wrong(&self, cause: String) -> Error {
        Error::new(ErrorKind::Io, &self.place, cause)
    }

    /// Fails all requests under way, and all later ones, with `error`.
    fn break_off(&self, error: Error) {
        self.broken.borrow_mut().get_or_insert_with(|| error.clone());
        let mut slots = self.slots.borrow_mut();
        for slot in slots.iter_mut().filter(|slot| slot.in_use && slot.outcome.is_none()) {
            slot.outcome = Some(Err(error.clone()));
            slot.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the next parts to send; None once the connection is closed or broken.
    async fn next_batch(&self) -> Option<Vec<Slice>> {
        loop {
            if self.closed.get() || self.broken.borrow().is_some() {
                return None;
            }
            let grew = self.outbox_grew.wait();
            if self.outbox.borrow().is_empty() {
                grew.await;
                continue;
            }
            let mut outbox = self.outbox.borrow_mut();
            let count = outbox.len().min(BATCH_REQUESTS);
            return Some(
                outbox.drain(..count).flat_map(|(header, data)| [Some(header), data]).flatten().collect(),
            );
        }
    }
}

async fn send_all(connection: Rc<Connection>, socket: Rc<Socket>) {
    while let Some(mut parts) = connection.next_batch().await {
        while !parts.is_empty() {
            match socket.send(parts.clone()).await {
                Ok(0) => return connection.break_off(connection.wrong("the server hung up".into())),
                Ok(sent) => advance(&mut parts, sent),
                Err(error) => return connection.break_off(error),
            }
        }
    }
    if connection.broken.borrow().is_none() {
        let request = Request { kind: CMD_DISC, flags: 0, range: 0..0, payload: None, into: None };
        // The disconnect request is the last one; its loss has no consequence.
        let _ = socket.send(vec![request.header(0)]).await;
    }
}

/// Received bytes that have not been parsed yet.
struct Arrived {
    buf: Buf,
    begin: usize,
    end: usize,
}

async fn receive_all(connection: Rc<Connection>, socket: Rc<Socket>) {
    let mut arrived = Arrived { buf: Buf::alloc(RECEIVE_BYTES), begin: 0, end: 0 };
    loop {
        match one_reply(&connection, &socket, &mut arrived).await {
            Ok(()) => {}
            Err(_) if connection.closed.get() => return,
            Err(error) => return connection.break_off(error),
        }
    }
}

async fn one_reply(connection: &Connection, socket: &Socket, arrived: &mut Arrived) -> Result<()> {
    let mut header = [0; SIMPLE_REPLY_BYTES];
    fill(connection, socket, arrived, &mut header).await?;
    let magic = u32::from_be_bytes(header[0..4].try_into().expect("four bytes"));
    let errno = u32::from_be_bytes(header[4..8].try_into().expect("four bytes"));
    let cookie = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
    if magic != SIMPLE_REPLY_MAGIC {
        return Err(
            connection.wrong(format!("a reply begins with {magic:#010x}, not {SIMPLE_REPLY_MAGIC:#010x}"))
        );
    }
    let slot = usize::try_from(cookie).ok();
    let known = |n: &usize| {
        connection.slots.borrow().get(*n).is_some_and(|slot| slot.in_use && slot.outcome.is_none())
    };
    let slot = slot
        .filter(known)
        .ok_or_else(|| connection.wrong(format!("a reply to request {cookie}, which is not under way")))?;
    if errno != 0 {
        connection.finish(slot, Err(connection.wrong(format!("the server answered with error {errno}"))));
        return Ok(());
    }
    let into = connection.slots.borrow_mut()[slot].into.take();
    if let Some(mut buf) = into {
        let filled = fill(connection, socket, arrived, &mut buf).await;
        connection.slots.borrow_mut()[slot].into = Some(buf);
        filled?;
    }
    connection.finish(slot, Ok(()));
    Ok(())
}

async fn fill(
    connection: &Connection,
    socket: &Socket,
    arrived: &mut Arrived,
    target: &mut [u8],
) -> Result<()> {
    let mut filled = 0;
    loop {
        let take = (target.len() - filled).min(arrived.end - arrived.begin);
        target[filled..filled + take].copy_from_slice(&arrived.buf[arrived.begin..arrived.begin + take]);
        arrived.begin += take;
        filled += take;
        if filled == target.len() {
            return Ok(());
        }
        let buf = std::mem::replace(&mut arrived.buf, Buf::alloc(0));
        let (buf, read) = socket.recv(buf, 0).await;
        (arrived.buf, arrived.begin, arrived.end) = (buf, 0, read?);
        if arrived.end == 0 {
            return Err(connection.wrong("the server hung up".into()));
        }
    }
}

/// Removes the first `sent` bytes from `parts`.
fn advance(parts: &mut Vec<Slice>, mut sent: u64) {
    let mut whole = 0;
    for part in parts.iter() {
        if (part.len() as u64) > sent {
            break;
        }
        sent -= part.len() as u64;
        whole += 1;
    }
    parts.drain(..whole);
    if let Some(first) = parts.first_mut() {
        *first = first.slice(sent as usize..first.len());
    }
}

/// All ranges count as data: the lab does not query a server for holes.
impl Volume for NbdVolume {
    fn info(&self) -> VolumeInfo {
        let Export { size_bytes, flags } = self.connection.export;
        let read_only = flags & TRANSMIT_READ_ONLY != 0;
        let fast_zero = flags & TRANSMIT_FAST_ZERO != 0;
        VolumeInfo { size_bytes, read_only, preferred_bytes: BLOCK_BYTES_PREFERRED, fast_zero }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let range = offset..offset + buf.len() as u64;
            let request = Request { kind: CMD_READ, flags: 0, range, payload: None, into: Some(buf) };
            let (buf, result) = self.connection.request(request).await;
            (buf.expect("a read gives its buffer back"), result)
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            let range = offset..offset + data.len() as u64;
            let request = Request { kind: CMD_WRITE, flags: 0, range, payload: Some(data), into: None };
            self.connection.request(request).await.1
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        // A server that does not offer flushes holds no data back.
        let offered = self.connection.export.flags & TRANSMIT_FLUSH != 0;
        Box::pin(async move { if offered { self.plain(CMD_FLUSH, 0, 0..0).await } else { Ok(()) } })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        let offered = self.connection.export.flags & TRANSMIT_TRIM != 0;
        Box::pin(async move { if offered { self.plain(CMD_TRIM, 0, range).await } else { Ok(()) } })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        let flags = if mode.no_hole { CMD_FLAG_NO_HOLE } else { 0 };
        Box::pin(async move { self.plain(CMD_WRITE_ZEROES, flags, range).await })
    }
}
