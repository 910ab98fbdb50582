//! Execution of requests. Each piece of a request is a task; the last one to end answers the request, exactly once.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::volume::ZeroMode;
use blk::{Buf, Error, Result};

use super::address_space::AddressSpace;
use super::blk_request::{Command, Layout, decode, gather, scatter};
use super::protocol::*;
use super::queue::{Taken, UnderWay};
use super::ring::{Chain, Fault};
use super::session::{Grant, List, Session, Turn};
use crate::limits::IoCost;

/// One request of a guest, from its descriptors to its answer.
struct GuestRequest {
    under_way: UnderWay,
    space: Rc<AddressSpace>,
    head: u16,
    layout: Layout,
    /// Pieces that have begun and not ended.
    pieces: Cell<usize>,
    /// No further pieces will begin.
    complete: Cell<bool>,
    failure: RefCell<Option<Error>>,
    answered: Cell<bool>,
    /// Bytes that a read puts in front of the status; None for other requests.
    read_bytes: Option<u64>,
    _list: Option<List>,
}

/// One piece of a transfer, with the memory that it may use.
struct Piece {
    request: Rc<GuestRequest>,
    offset: u64,
    /// Position in the payload.
    skip: u64,
    len: u64,
    _memory: Grant,
}

/// Decodes a request and starts it. Waits for memory and for the turn of its VM.
///
/// # Errors
/// The request has no header or no status, which breaks the ring.
pub(super) async fn start(taken: Taken) -> std::result::Result<(), Fault> {
    let Taken { under_way, space, head, chain } = taken;
    match chain {
        Some(chain) => begin_request(under_way, space, (head, chain), None).await,
        None => {
            let queue = under_way.queue().clone();
            let turn = queue.session.turn().await;
            let Some(chain) = queue.long_chain(&space, head)? else { return Ok(()) };
            begin_request(under_way, space, (head, chain), Some(turn)).await
        }
    }
}

/// Starts a request whose descriptors are read. One with many descriptors has its turn, and keeps it until all of it has
/// begun, so that memory is left for its pieces.
async fn begin_request(
    under_way: UnderWay,
    space: Rc<AddressSpace>,
    (head, chain): (u16, Chain),
    turn: Option<Turn>,
) -> std::result::Result<(), Fault> {
    let session = under_way.queue().session.clone();
    let (layout, command) = decode(&space, chain, session.disk.get())?;
    let list = match &turn {
        Some(turn) => Some(session.admit_list(turn, layout.list_bytes()).await),
        None => None,
    };
    let request = Rc::new(GuestRequest {
        under_way,
        space,
        head,
        layout,
        pieces: Cell::new(0),
        complete: Cell::new(false),
        failure: RefCell::default(),
        answered: Cell::new(false),
        read_bytes: match command {
            Command::Read { len, .. } => Some(len),
            _ => None,
        },
        _list: list,
    });
    match command {
        Command::Read { offset, len } => transfer(&request, (offset, len), turn, read).await,
        Command::Write { offset, len } => transfer(&request, (offset, len), turn, write).await,
        other => {
            session.count(0);
            let (memory, _) = request.admit(turn.as_ref(), 0, true).await;
            start_whole(&session, request, other, memory);
        }
    }
    Ok(())
}

/// Starts a request without payload.
fn start_whole(session: &Rc<Session>, request: Rc<GuestRequest>, command: Command, memory: Grant) {
    match command {
        Command::Flush => session.env.spawn_detached(Box::pin(flush(request, memory))),
        Command::GetId => {
            // A guest whose connection has detached may use its memory for something else.
            if session.is_detached() {
                return;
            }
            let serial = session.serial;
            let written = scatter(&request.space, &request.layout.answer, 0, &serial);
            request.answer(if written.is_some() { STATUS_OK } else { STATUS_IOERR }, SERIAL_BYTES as u32);
        }
        Command::Refused(status) => request.answer(status, 0),
        Command::Discard(ranges) => begin(session, IoCost::NO_PAYLOAD, discard(request, ranges, memory)),
        Command::Zero(ranges) => begin(session, IoCost::NO_PAYLOAD, zero(request, ranges, memory)),
        Command::Read { .. } | Command::Write { .. } => unreachable!("transfers are started in pieces"),
    }
}

/// Starts a transfer, piece by piece.
async fn transfer<F: Future<Output = ()> + 'static>(
    request: &Rc<GuestRequest>,
    (offset, len): (u64, u64),
    turn: Option<Turn>,
    execute: impl Fn(Piece) -> F,
) {
    let session = request.session().clone();
    session.count(len);
    let mut done = 0;
    while done < len {
        let (memory, now) = request.admit(turn.as_ref(), len - done, done == 0).await;
        if session.is_detached() {
            return;
        }
        let piece =
            Piece { request: request.clone(), offset: offset + done, skip: done, len: now, _memory: memory };
        let cost = IoCost::of_piece(done == 0, now);
        done += now;
        request.pieces.update(|n| n + 1);
        request.complete.set(done == len);
        begin(&session, cost, execute(piece));
    }
}

/// Starts `work`, at once or when the limits of the VM permit it. Work of a connection that is closed meanwhile does not
/// begin.
fn begin(session: &Rc<Session>, cost: IoCost, work: impl Future<Output = ()> + 'static) {
    match session.limit(cost) {
        None => session.env.spawn_detached(Box::pin(work)),
        Some(delay) => session.env.spawn_detached(Box::pin(async move {
            if delay.await {
                work.await;
            }
        })),
    }
}

/// Reads into memory of this process, and copies to the guest. At 4 KiB all copies take 4 % of the server's processor
/// time; without them the throughput is the same.
async fn read(piece: Piece) {
    let volume = piece.request.session().volume.clone();
    let (buf, result) = volume.read(piece.offset, Buf::alloc(piece.len as usize)).await;
    let result = result.and_then(|()| piece.show(&buf));
    piece.end(result).await;
}

/// Writes a copy of the guest's data. The guest may change its memory meanwhile, and what is written must be what is
/// checksummed or written a second time.
async fn write(piece: Piece) {
    let mut data = Buf::alloc(piece.len as usize);
    let request = &piece.request;
    // The guest may have given the memory another use since then. The request is repeated by its record.
    if request.session().is_detached() {
        let error = Error::cancelled(&*request.session().export);
        return piece.end(Err(error)).await;
    }
    let copied = gather(&request.space, &request.layout.payload, piece.skip, &mut data);
    let result = match copied {
        Some(()) => request.session().volume.clone().write(piece.offset, data.freeze()).await,
        None => Err(outside(request.session())),
    };
    piece.end(result).await;
}

fn outside(session: &Session) -> Error {
    Error::invalid(&session.export, "a request outside of the guest's memory")
}

impl Piece {
    /// Copies what was read to the guest.
    fn show(&self, bytes: &[u8]) -> Result<()> {
        let request = &self.request;
        if request.session().is_detached() {
            return Ok(());
        }
        scatter(&request.space, &request.layout.answer, self.skip, bytes)
            .ok_or_else(|| outside(request.session()))
    }

    /// Ends the piece. The last one answers the request.
    async fn end(self, result: Result<()>) {
        let Piece { request, _memory: memory, .. } = self;
        request.pieces.update(|n| n - 1);
        if let Err(error) = result {
            request.failure.borrow_mut().get_or_insert(error);
        }
        if !request.complete.get() || request.pieces.get() > 0 {
            return;
        }
        let failure = request.failure.take();
        request.finish(failure.map_or(Ok(()), Err)).await;
        drop(memory);
    }
}

impl GuestRequest {
    /// Waits for the memory and the turn of a piece. The first one of a request with few descriptors pays for their list.
    async fn admit(&self, turn: Option<&Turn>, len: u64, is_first: bool) -> (Grant, u64) {
        match turn {
            Some(turn) => self.session().admit_in_turn(turn, len).await,
            None => {
                let list = if is_first { self.layout.list_bytes() } else { 0 };
                self.session().admit(len, list).await
            }
        }
    }

    fn session(&self) -> &Rc<Session> {
        &self.under_way.queue().session
    }

    /// Answers a request that has been executed. Without a flush command, a change is durable before its answer.
    async fn finish(&self, result: Result<()>) {
        let session = self.session();
        let result = match result {
            Ok(()) if session.is_writethrough() && self.read_bytes.is_none() => {
                session.volume.clone().flush().await
            }
            other => other,
        };
        match result {
            Ok(()) => {
                let len = u32::try_from(self.read_bytes.unwrap_or(0)).unwrap_or(u32::MAX - 1);
                self.answer(STATUS_OK, len);
            }
            Err(error) => {
                session.report_failure(&error);
                self.answer(STATUS_IOERR, 0);
            }
        }
    }

    /// Writes the status, and puts the request into the ring of answers. `len` is the number of bytes in front of the
    /// status that were written.
    fn answer(&self, status: u8, len: u32) {
        assert!(!self.answered.replace(true), "a request is answered once");
        let queue = self.under_way.queue();
        if queue.session.is_detached() {
            return;
        }
        // The place was checked when the request was taken.
        let _ = self.space.write(self.layout.status, &[status]);
        queue.answer(self.head, len + 1);
    }
}

async fn flush(request: Rc<GuestRequest>, memory: Grant) {
    let session = request.session().clone();
    // A read-only volume has nothing to make durable.
    let result = if session.disk.get().read_only { Ok(()) } else { session.volume.clone().flush().await };
    match result {
        Ok(()) => request.answer(STATUS_OK, 0),
        Err(error) => {
            session.report_failure(&error);
            request.answer(STATUS_IOERR, 0);
        }
    }
    drop(memory);
}

async fn discard(request: Rc<GuestRequest>, ranges: Vec<Range<u64>>, memory: Grant) {
    let mut result = Ok(());
    for range in ranges {
        if result.is_ok() {
            result = request.session().volume.clone().discard(range).await;
        }
    }
    request.finish(result).await;
    drop(memory);
}

async fn zero(request: Rc<GuestRequest>, ranges: Vec<(Range<u64>, bool)>, memory: Grant) {
    let mut result = Ok(());
    for (range, may_unmap) in ranges {
        if result.is_ok() {
            let mode = ZeroMode { no_hole: !may_unmap, fast_only: false };
            result = request.session().volume.clone().write_zeroes(range, mode).await;
        }
    }
    request.finish(result).await;
    drop(memory);
}
