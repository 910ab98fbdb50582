//! The receiving side of a connection. It turns bytes into requests, and admits each before anything is allocated for
//! it.
//!
//! Every request in the receive buffer is started before more is received. The part of a payload that is not yet in the
//! buffer is received directly into its own aligned buffer. Large requests are admitted and carried out in pieces.

use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

use blk::budget::Charge;
use blk::{Buf, Env, Error, Result, SECTOR, Slice};
use futures_util::future::{Either, select};

use super::connection::{Connection, Ticket};
use super::proto::*;
use super::reply::Failure;
use super::request::{Command, Event, RequestParser};
use super::stream::Stream;
use super::work::{SplitRequest, begin, read_part, start, write, write_part};
use crate::limits::IoCost;
use crate::memory::PIECE_BYTES_MAX;

pub(super) struct Receiver<'a> {
    env: Env,
    line: &'a Rc<Connection>,
    socket: &'a Stream,
    parser: RequestParser,
    buf: Buf,
    /// Bytes that are received and not yet used.
    filled: Range<usize>,
    /// Charge of a large buffer. The small one is part of the connection's promise.
    charge: Option<Charge>,
    /// Number of receives since the last one that filled the buffer.
    small: usize,
}

/// After so many small receives, a large buffer is freed.
const SMALL_RECEIVES: usize = 64;

/// Time for which a request waits for memory before its client is watched. Most wait for microseconds.
const WATCHED_AFTER_US: u64 = 500_000;

impl<'a> Receiver<'a> {
    pub(super) fn new(env: Env, line: &'a Rc<Connection>, socket: &'a Stream, rest: &[u8]) -> Receiver<'a> {
        // What arrived together with the last option is less than one receive of the handshake.
        let mut buf = Buf::alloc(RECEIVE_BYTES.max(rest.len()));
        buf[..rest.len()].copy_from_slice(rest);
        let parser = RequestParser::new(line.terms.clone());
        Receiver { env, line, socket, parser, buf, filled: 0..rest.len(), charge: None, small: 0 }
    }

    /// Runs until the client disconnects. A stream that ends without a disconnect request is not an error, because
    /// clients do that.
    pub(super) async fn run(mut self) -> Result<()> {
        loop {
            let (used, event) = self.parser.next(&self.buf[self.filled.clone()]);
            self.filled.start += used;
            match event {
                Event::Receive => {
                    if !self.fill().await? {
                        return Ok(());
                    }
                }
                Event::Command { cookie, command } => self.command(cookie, command).await?,
                Event::Write { cookie, offset, len, fua } => {
                    if !self.write(cookie, offset, u64::from(len), fua).await? {
                        return Ok(());
                    }
                }
                Event::Refused { cookie, refusal } => {
                    let (ticket, _) = self.admit(cookie, 0).await;
                    self.line.session.count(0);
                    ticket.fail(&refusal.into());
                }
                Event::Disconnect => return Ok(()),
                Event::Garbage(why) => return Err(Error::invalid(self.socket.peer(), why)),
            }
        }
    }

    /// Waits for memory. Its users may wait without limit for space on a full datastore. If the wait is long, the
    /// client is watched, because nothing is received meanwhile that would show that it has disconnected.
    async fn admit(&self, cookie: u64, len: u64) -> (Ticket, u64) {
        let admitted = pin!(self.line.admit(&self.env, cookie, len));
        let long = pin!(self.env.sleep_us(WATCHED_AFTER_US));
        let admitted = match select(admitted, long).await {
            Either::Left((admitted, _)) => return admitted,
            Either::Right(((), admitted)) => admitted,
        };
        match select(admitted, pin!(self.socket.hung_up())).await {
            Either::Left((admitted, _)) => admitted,
            Either::Right((_, admitted)) => {
                self.line.abandon(&self.env);
                admitted.await
            }
        }
    }

    /// Receives more. Returns false at the end of the stream.
    async fn fill(&mut self) -> Result<bool> {
        // The rest is shorter than one header.
        let kept = self.filled.len();
        self.buf.copy_within(self.filled.clone(), 0);
        let buf = std::mem::replace(&mut self.buf, Buf::alloc(0));
        let room = buf.len() - kept;
        let (buf, received) = self.socket.recv(buf, kept).await;
        self.buf = buf;
        let received = received?;
        self.filled = 0..kept + received;
        self.resize(received, room);
        Ok(received > 0)
    }

    /// Chooses the next buffer by the size of the last receives: most connections are idle, or send one request at a
    /// time. The new buffer gets the old one's content, which is little, or fills a small buffer.
    fn resize(&mut self, received: usize, room: usize) {
        let is_large = self.buf.len() > RECEIVE_BYTES;
        self.small = if received < RECEIVE_BYTES / 2 { self.small + 1 } else { 0 };
        let wanted = match is_large {
            false if received == room => RECEIVE_BYTES_LARGE,
            true if self.small >= SMALL_RECEIVES => RECEIVE_BYTES,
            _ => return,
        };
        let charge = match wanted {
            RECEIVE_BYTES => None,
            _ => match self.line.session.memory().buffer(RECEIVE_BYTES_LARGE as u64) {
                Some(charge) => Some(charge),
                None => return,
            },
        };
        let mut buf = Buf::alloc(wanted);
        buf[..self.filled.len()].copy_from_slice(&self.buf[self.filled.clone()]);
        self.buf = buf;
        self.charge = charge;
    }

    /// Returns a piece of a write's payload in a buffer of its own. None if the stream ends inside it.
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

    /// Receives a write and starts it, piece by piece. Returns false if the stream ends inside its payload.
    async fn write(&mut self, cookie: u64, offset: u64, len: u64, fua: bool) -> Result<bool> {
        self.line.session.count(len);
        let whole = Rc::<SplitRequest>::default();
        let mut done = 0;
        while done < len {
            let (ticket, now) = self.admit(cookie, len - done).await;
            let Some(data) = self.payload(now as usize).await? else { return Ok(false) };
            let cost = IoCost::of_piece(done == 0, now);
            if now == len {
                begin(&self.env, self.line, cost, write(ticket, offset, data, fua));
                return Ok(true);
            }
            let part = whole.begin(done + now == len);
            begin(&self.env, self.line, cost, write_part(ticket, part, offset + done, data, fua));
            done += now;
        }
        Ok(true)
    }

    async fn command(&mut self, cookie: u64, command: Command) -> Result<()> {
        match command {
            Command::Read { offset, len, whole } => {
                self.line.session.count(u64::from(len));
                match whole {
                    true => self.read_whole(cookie, offset, len).await?,
                    false => self.read_pieces(cookie, offset, u64::from(len)).await,
                }
            }
            Command::Status { range, one } => {
                self.line.session.count(0);
                let (ticket, granted) = self.admit(cookie, blk::volume::STATUS_BYTES_MAX as u64).await;
                // The memory that the volume may need for the range has to fit into the grant.
                let known_to_fit = granted / STATUS_BYTES_PER_SECTOR * SECTOR;
                let end = match granted < blk::volume::STATUS_BYTES_MAX as u64 {
                    true => range.end.min(range.start + known_to_fit),
                    false => range.end,
                };
                start(&self.env, ticket, Command::Status { range: range.start..end, one });
            }
            other => {
                self.line.session.count(0);
                let (ticket, _) = self.admit(cookie, 0).await;
                start(&self.env, ticket, other);
            }
        }
        Ok(())
    }

    async fn read_pieces(&self, cookie: u64, offset: u64, len: u64) {
        let whole = Rc::<SplitRequest>::default();
        let mut done = 0;
        while done < len {
            let (ticket, now) = self.admit(cookie, len - done).await;
            let at = offset + done;
            if now == len {
                let command = Command::Read { offset: at, len: now as u32, whole: false };
                return start(&self.env, ticket, command);
            }
            let cost = IoCost::of_piece(done == 0, now);
            done += now;
            let part = whole.begin(done == len);
            begin(&self.env, self.line, cost, read_part(ticket, part, at, now));
        }
    }

    /// Executes a read whose answer is one message. If it is larger than a piece, it is read piece by piece while
    /// nothing else of this connection is under way, so that no other reply is sent in between.
    async fn read_whole(&self, cookie: u64, offset: u64, len: u32) -> Result<()> {
        if u64::from(len) > PIECE_BYTES_MAX {
            self.line.idle().await;
        }
        let mut done = 0;
        while done < u64::from(len) {
            let (ticket, now) = self.admit(cookie, u64::from(len) - done).await;
            let at = offset + done;
            if now == u64::from(len) {
                start(&self.env, ticket, Command::Read { offset: at, len, whole: true });
                return Ok(());
            }
            // The connection receives nothing meanwhile in any case.
            if let Some(delay) = self.line.limit(&self.env, IoCost::of_piece(done == 0, now)) {
                delay.await;
            }
            let (buf, result) = self.line.volume.clone().read(at, Buf::with_headroom(now as usize)).await;
            match result {
                Ok(()) if done == 0 => ticket.data_begins(offset, len, buf),
                Ok(()) => ticket.data_goes_on(buf),
                Err(error) if done == 0 => {
                    ticket.fail(&Failure::of(&error, false));
                    return Ok(());
                }
                // An error cannot be reported inside an answer; the connection ends instead.
                Err(error) => return Err(error),
            }
            done += now;
        }
        Ok(())
    }
}
