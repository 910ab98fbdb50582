//! Execution of requests. Each is a task that calls the volume and answers. A large request is several tasks, of which
//! the last one answers.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, Volume, ZeroMode};
use blk::{Buf, Env, Error, Result, Slice};

use super::connection::{Connection, Ticket};
use super::proto::QEMU_BITMAP_ID;
use super::reply::Failure;
use super::request::Command;
use super::status;
use crate::limits::IoCost;

/// Bytes that a request for the first piece of a status looks at first.
const FIRST_STEP_BYTES: u64 = 4 << 20;

/// Starts a command of one piece. Each kind gets a task no larger than necessary.
pub(super) fn start(env: &Env, ticket: Ticket, command: Command) {
    let line = ticket.line().clone();
    match command {
        Command::Read { offset, len, .. } => {
            let cost = IoCost::of_piece(true, u64::from(len));
            begin(env, &line, cost, read(ticket, offset, len));
        }
        Command::Flush => env.spawn_detached(Box::pin(flush(ticket))),
        Command::Trim { range, fua } => begin(env, &line, IoCost::NO_PAYLOAD, trim(ticket, range, fua)),
        // Direct I/O has no cache that could be filled, and the command guarantees nothing.
        Command::Cache => ticket.succeed(),
        Command::Zero { range, mode, fua } => {
            begin(env, &line, IoCost::NO_PAYLOAD, zero(ticket, range, mode, fua));
        }
        Command::Status { range, one } => env.spawn_detached(Box::pin(block_status(ticket, range, one))),
    }
}

/// Starts `work`, at once or when the limits of the VM permit it. Work of a connection that is closed meanwhile does not
/// begin.
pub(super) fn begin(
    env: &Env,
    line: &Rc<Connection>,
    cost: IoCost,
    work: impl Future<Output = ()> + 'static,
) {
    match line.limit(env, cost) {
        None => env.spawn_detached(Box::pin(work)),
        Some(delay) => env.spawn_detached(Box::pin(async move {
            if delay.await {
                work.await;
            }
        })),
    }
}

fn answer(ticket: Ticket, result: Result<()>) {
    match result {
        Ok(()) => ticket.succeed(),
        Err(error) => ticket.fail(&Failure::of(&error, false)),
    }
}

async fn read(ticket: Ticket, offset: u64, len: u32) {
    let volume = ticket.line().volume.clone();
    let (buf, result) = volume.read(offset, Buf::with_headroom(len as usize)).await;
    match result {
        Ok(()) => ticket.data(offset, buf, true),
        Err(error) => ticket.fail(&Failure::of(&error, false)),
    }
}

/// Carries out FUA as a flush after the write: the volume has no cheaper operation.
async fn flushed(ticket: &Ticket, result: Result<()>, fua: bool) -> Result<()> {
    if fua && result.is_ok() {
        return ticket.line().volume.clone().flush().await;
    }
    result
}

pub(super) async fn write(ticket: Ticket, offset: u64, data: Slice, fua: bool) {
    let result = ticket.line().volume.clone().write(offset, data).await;
    let result = flushed(&ticket, result, fua).await;
    answer(ticket, result);
}

async fn flush(ticket: Ticket) {
    // A read-only volume has nothing to make durable, and its file may not even permit a flush.
    let result =
        if ticket.line().terms.read_only { Ok(()) } else { ticket.line().volume.clone().flush().await };
    answer(ticket, result);
}

async fn trim(ticket: Ticket, range: Range<u64>, fua: bool) {
    let result = ticket.line().volume.clone().discard(range).await;
    let result = flushed(&ticket, result, fua).await;
    answer(ticket, result);
}

async fn zero(ticket: Ticket, range: Range<u64>, mode: ZeroMode, fua: bool) {
    let result = ticket.line().volume.clone().write_zeroes(range, mode).await;
    match flushed(&ticket, result, fua).await {
        Ok(()) => ticket.succeed(),
        Err(error) => ticket.fail(&Failure::of(&error, mode.fast_only)),
    }
}

async fn block_status(ticket: Ticket, range: Range<u64>, one: bool) {
    let line = ticket.line().clone();
    let turn = line.group().status_turn.lock().await;
    let found = contexts(&line, &range, one).await;
    drop(turn);
    match found {
        Ok(payloads) => ticket.status(&payloads),
        Err(error) => ticket.fail(&Failure::of(&error, false)),
    }
}

/// Returns the status of a range at least up to its first change. QEMU requests 2 GiB for each piece that it wants to know, so
/// the work must follow the length of the piece and not that of the request.
async fn first_pieces(volume: &Rc<dyn Volume>, range: &Range<u64>) -> Result<Vec<BlockStatus>> {
    let mut pieces: Vec<BlockStatus> = Vec::new();
    let (mut at, mut step) = (range.start, FIRST_STEP_BYTES);
    while at < range.end {
        let end = range.end.min((at / step + 1) * step);
        let found = volume.clone().status(at..end).await?;
        at += found.iter().map(|piece| piece.len).sum::<u64>();
        pieces.extend(found);
        let Some(first) = pieces.first().copied() else { break };
        if at < end || pieces.iter().any(|piece| (piece.hole, piece.zero) != (first.hole, first.zero)) {
            break;
        }
        pieces = vec![BlockStatus { len: at - range.start, ..first }];
        step *= 2;
    }
    Ok(pieces)
}

/// Returns the payload of each selected context, in the order of their IDs.
async fn contexts(line: &Connection, range: &Range<u64>, one: bool) -> Result<Vec<Vec<u8>>> {
    let mut payloads = Vec::new();
    if line.terms.status {
        let pieces = match one {
            true => first_pieces(&line.volume, range).await?,
            false => line.volume.clone().status(range.clone()).await?,
        };
        payloads.push(status::allocation(range, one, &pieces));
    }
    for (id, state) in (QEMU_BITMAP_ID..).zip(&line.terms.since) {
        // The states were selected with an earlier attachment to the export of this name.
        let lost =
            || Error::not_found(&line.terms.export, "the state that was selected is not there any more");
        let changes = line.changes.as_ref().ok_or_else(lost)?;
        let (changed, end) = changes.since(&state.id, range.clone()).await?;
        payloads.push(status::bitmap(id, range, one, &changed, end));
    }
    Ok(payloads)
}

/// A request in pieces. After an error some of a write's pieces may have been written: as with any failed or unanswered
/// write, each sector then has the old or the new content.
#[derive(Default)]
pub(super) struct SplitRequest {
    under_way: Cell<usize>,
    /// No further pieces will begin.
    complete: Cell<bool>,
    failure: RefCell<Option<Error>>,
}

/// One piece of a request.
pub(super) struct RequestPart(Rc<SplitRequest>);

impl SplitRequest {
    pub(super) fn begin(self: &Rc<Self>, last: bool) -> RequestPart {
        self.under_way.set(self.under_way.get() + 1);
        self.complete.set(last);
        RequestPart(self.clone())
    }
}

impl RequestPart {
    /// Returns the outcome of the whole request if this piece was the last to end.
    fn end(self, result: Result<()>) -> Option<Result<()>> {
        let whole = self.0;
        whole.under_way.set(whole.under_way.get() - 1);
        if let Err(error) = result {
            whole.failure.borrow_mut().get_or_insert(error);
        }
        let ended = whole.complete.get() && whole.under_way.get() == 0;
        ended.then(|| whole.failure.take().map_or(Ok(()), Err))
    }
}

pub(super) async fn write_part(ticket: Ticket, part: RequestPart, offset: u64, data: Slice, fua: bool) {
    let result = ticket.line().volume.clone().write(offset, data).await;
    if let Some(result) = part.end(result) {
        let result = flushed(&ticket, result, fua).await;
        answer(ticket, result);
    }
}

/// Reads a piece. Pieces are answered in any order, each with its data; an error replaces the last one.
pub(super) async fn read_part(ticket: Ticket, part: RequestPart, offset: u64, len: u64) {
    let volume = ticket.line().volume.clone();
    let (buf, result) = volume.read(offset, Buf::with_headroom(len as usize)).await;
    let read = result.is_ok();
    match part.end(result) {
        Some(Err(error)) => ticket.fail(&Failure::of(&error, false)),
        Some(Ok(())) => ticket.data(offset, buf, true),
        None if read => ticket.data(offset, buf, false),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use blk::Local;
    use blk::volume::VolumeInfo;
    use futures_util::FutureExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Holes of 300 MiB, each with 1 MiB of data after it. Counts the bytes that were looked at.
    #[derive(Default)]
    struct Sparse(Cell<u64>);

    impl Volume for Sparse {
        fn info(&self) -> VolumeInfo {
            VolumeInfo { size_bytes: 1 << 40, read_only: true, preferred_bytes: 4096, fast_zero: false }
        }

        fn read(self: Rc<Self>, _: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
            Box::pin(async { (buf, Ok(())) })
        }

        fn write(self: Rc<Self>, _: u64, _: Slice) -> Local<'static, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn write_zeroes(self: Rc<Self>, _: Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
            self.0.update(|bytes| bytes + range.end - range.start);
            let (mut pieces, mut at) = (Vec::new(), range.start);
            while at < range.end {
                let into = at % (301 * MIB);
                let hole = into < 300 * MIB;
                let end = range.end.min(at - into + if hole { 300 * MIB } else { 301 * MIB });
                pieces.push(BlockStatus { len: end - at, hole, zero: hole });
                at = end;
            }
            Box::pin(async { Ok(pieces) })
        }
    }

    #[test]
    fn the_work_for_one_piece_follows_its_length() {
        let volume = Rc::new(Sparse::default());
        let dynamic: Rc<dyn Volume> = volume.clone();
        let first = |range: Range<u64>| {
            let found = first_pieces(&dynamic, &range).now_or_never().expect("it never waits");
            let pieces = found.unwrap();
            let alike = |piece: &&BlockStatus| piece.hole == pieces[0].hole;
            let len = pieces.iter().take_while(alike).map(|piece| piece.len).sum();
            BlockStatus { len, ..pieces[0] }
        };
        let hole = BlockStatus { len: 300 * MIB, hole: true, zero: true };
        assert_eq!(first(0..4096 * MIB), hole);
        assert!(volume.0.get() <= 1024 * MIB, "{} bytes", volume.0.get());
        volume.0.set(0);
        assert_eq!(first(300 * MIB + 512..4096 * MIB).len, MIB - 512);
        assert!(volume.0.get() <= 4 * MIB, "{} bytes", volume.0.get());
        assert_eq!(first(0..200 * MIB), BlockStatus { len: 200 * MIB, ..hole });
        assert_eq!(first(5..6).len, 1);
    }
}
