//! Transmission: one task receives and sends, every request runs in its own.
//!
//! Receiving fills one large buffer and starts every request in it before it receives again; a payload that is not
//! yet complete is received straight into its own aligned buffer. Sending has one send in flight, and whatever is
//! answered meanwhile goes with the next.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use blk::socket::Socket;
use blk::volume::{Attachment, ZeroMode};
use blk::{Buf, Env, Error, Result, Slice};

use super::doors::{Halt, Session};
use super::handshake::{Agreed, send_all};
use super::line::{Line, Ticket};
use super::proto::*;
use super::reply::Failure;
use super::request::{Command, Event, Intake};
use super::status;

/// Serves one connection from the first request to the last reply. Its error is why the stream broke.
///
/// The attachment is held until no request is under way, so that whoever waits for it to go knows that nothing of
/// this client can still reach the volume.
pub async fn transmit(env: Env, socket: Socket, agreed: Agreed, session: Rc<Session>) -> Result<()> {
    let Agreed { terms, attachment, rest } = agreed;
    let Attachment { volume, token } = attachment;
    session.set_export(&terms.export);
    let line = Line::new(volume, terms, session);
    let result = pump(env, &line, &socket, &rest).await;
    line.close();
    drop(socket);
    line.idle().await;
    drop(line);
    drop(token);
    result
}

/// Receives and sends until the client is done and answered, the stream breaks, or the doors say so.
async fn pump(env: Env, line: &Rc<Line>, socket: &Socket, rest: &[u8]) -> Result<()> {
    let mut receive = pin!(Some(Receiver::new(env, line, socket, rest).run()));
    let mut send = pin!(send_replies(line, socket));
    let mut received = Ok(());
    poll_fn(|cx| {
        let halt = line.session.watch(cx);
        if halt == Halt::Cut {
            return Poll::Ready(Err(Error::cancelled(line.session.peer())));
        }
        let polled = receive.as_mut().as_pin_mut().map(|receive| receive.poll(cx));
        let ended = match polled {
            None => false,
            Some(Poll::Pending) => halt == Halt::Finish,
            Some(Poll::Ready(result)) => {
                received = result;
                true
            }
        };
        if ended {
            // Dropped now: a request of which only a part has come would be waited for.
            receive.set(None);
            line.finish();
        }
        send.as_mut().poll(cx).map(|sent| std::mem::replace(&mut received, Ok(())).and(sent))
    })
    .await
}

async fn send_replies(line: &Line, socket: &Socket) -> Result<()> {
    while let Some(mut batch) = line.next_batch().await {
        send_all(socket, std::mem::take(&mut batch.parts)).await?;
    }
    Ok(())
}

/// What may come along with the last option has to fit.
const _: () = assert!(RECEIVE_BYTES >= 2 * OPTION_BYTES_MAX as usize);

struct Receiver<'a> {
    env: Env,
    line: &'a Rc<Line>,
    socket: &'a Socket,
    intake: Intake,
    buf: Buf,
    /// Received and not yet used.
    filled: Range<usize>,
}

impl<'a> Receiver<'a> {
    fn new(env: Env, line: &'a Rc<Line>, socket: &'a Socket, rest: &[u8]) -> Receiver<'a> {
        let mut buf = Buf::alloc(RECEIVE_BYTES);
        buf[..rest.len()].copy_from_slice(rest);
        let intake = Intake::new(line.terms.clone());
        Receiver { env, line, socket, intake, buf, filled: 0..rest.len() }
    }

    /// Until the client disconnects. A stream that ends without a farewell is no error: clients do that.
    async fn run(mut self) -> Result<()> {
        loop {
            let (used, event) = self.intake.next(&self.buf[self.filled.clone()]);
            self.filled.start += used;
            match event {
                Event::Receive => {
                    if !self.fill().await? {
                        return Ok(());
                    }
                }
                Event::Command { cookie, command } => {
                    let ticket = self.line.admit(cookie, held_bytes(&command)).await;
                    start(&self.env, ticket, command);
                }
                Event::Write { cookie, offset, len, fua } => {
                    let ticket = self.line.admit(cookie, u64::from(len)).await;
                    let Some(data) = self.payload(len as usize).await? else { return Ok(()) };
                    self.env.spawn_detached(Box::pin(write(ticket, offset, data, fua)));
                }
                Event::Refused { cookie, refusal } => {
                    self.line.admit(cookie, 0).await.fail(&refusal.into());
                }
                Event::Disconnect => return Ok(()),
                Event::Garbage(why) => return Err(Error::invalid(self.socket.peer(), why)),
            }
        }
    }

    /// False at the end of the stream.
    async fn fill(&mut self) -> Result<bool> {
        // Less than one header is left over.
        self.buf.copy_within(self.filled.clone(), 0);
        let kept = self.filled.len();
        let buf = std::mem::replace(&mut self.buf, Buf::alloc(0));
        let (buf, received) = self.socket.recv(buf, kept).await;
        self.buf = buf;
        let received = received?;
        self.filled = 0..kept + received;
        Ok(received > 0)
    }

    /// A write's payload in a buffer of its own. None when the stream ends inside it.
    async fn payload(&mut self, len: usize) -> Result<Option<Slice>> {
        let mut data = Buf::alloc(len);
        let mut have = self.filled.len().min(len);
        data[..have].copy_from_slice(&self.buf[self.filled.start..][..have]);
        self.filled.start += have;
        while have < len {
            let (returned, received) = self.socket.recv(data, have).await;
            data = returned;
            match received? {
                0 => return Ok(None),
                n => have += n,
            }
        }
        Ok(Some(data.freeze()))
    }
}

/// Payload bytes a command's answer may hold.
fn held_bytes(command: &Command) -> u64 {
    match command {
        Command::Read { len, .. } => u64::from(*len),
        Command::Status { .. } => EXTENTS_MAX as u64 * 8,
        Command::Flush | Command::Trim { .. } | Command::Cache | Command::Zero { .. } => 0,
    }
}

/// Each command gets a task no larger than it needs.
fn start(env: &Env, ticket: Ticket, command: Command) {
    match command {
        Command::Read { offset, len } => env.spawn_detached(Box::pin(read(ticket, offset, len))),
        Command::Flush => env.spawn_detached(Box::pin(flush(ticket))),
        Command::Trim { range, fua } => env.spawn_detached(Box::pin(trim(ticket, range, fua))),
        // Direct I/O keeps no cache that could be warmed; the command promises nothing.
        Command::Cache => ticket.succeed(),
        Command::Zero { range, mode, fua } => env.spawn_detached(Box::pin(zero(ticket, range, mode, fua))),
        Command::Status { range, one } => env.spawn_detached(Box::pin(block_status(ticket, range, one))),
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
        Ok(()) => ticket.data(offset, buf),
        Err(error) => ticket.fail(&Failure::of(&error, false)),
    }
}

/// FUA is a flush after the write: the volume keeps no cheaper way.
async fn flushed(ticket: &Ticket, result: Result<()>, fua: bool) -> Result<()> {
    if fua && result.is_ok() {
        return ticket.line().volume.clone().flush().await;
    }
    result
}

async fn write(ticket: Ticket, offset: u64, data: Slice, fua: bool) {
    let result = ticket.line().volume.clone().write(offset, data).await;
    let result = flushed(&ticket, result, fua).await;
    answer(ticket, result);
}

async fn flush(ticket: Ticket) {
    // A read-only volume has nothing to make durable, and its file may not even allow it.
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
    match ticket.line().volume.clone().status(range.clone()).await {
        Ok(pieces) => ticket.status(&status::payload(range, one, &pieces)),
        Err(error) => ticket.fail(&Failure::of(&error, false)),
    }
}
