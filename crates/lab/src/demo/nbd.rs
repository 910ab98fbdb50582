//! A small NBD client: one connection, several requests in flight, answers in any order.
//!
//! It uses fixed newstyle negotiation and GO, with structured replies if the server has them, else simple ones.

use std::io::ErrorKind as IoKind;
use std::ops::Range;
use std::time::Instant;

use api::error::{Error, Result};
use api::listen::NbdListen;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

use crate::demo::wire::{self, Chunk, Command, Header};

/// Size of the receive buffer; the replies of a depth of 32 at 4 KiB fit.
const RECEIVE_BYTES: usize = 256 << 10;
/// Maximum size of one answer during negotiation; an export's name and description are far shorter.
const OPTION_REPLY_BYTES_MAX: usize = 64 << 10;

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    async fn connect(listen: &NbdListen) -> std::io::Result<Self> {
        match listen {
            NbdListen::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            NbdListen::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    async fn ready(&self, interest: Interest) -> std::io::Result<Ready> {
        match self {
            Self::Unix(stream) => stream.ready(interest).await,
            Self::Tcp(stream) => stream.ready(interest).await,
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_read(buffer),
            Self::Tcp(stream) => stream.try_read(buffer),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tcp(stream) => stream.try_write(bytes),
        }
    }
}

/// A request that is in flight or was answered.
#[derive(Debug)]
pub struct Request {
    pub command: Command,
    pub offset: u64,
    pub length: u32,
    pub submitted: Instant,
    /// Data of a read: zeros until the answer is complete.
    pub data: Vec<u8>,
    /// 0, or the first error the server reported (NBD's numbers, those of Linux).
    pub errno: u32,
    /// Caller's own value, returned with the answer.
    pub tag: u64,
}

pub struct Connection {
    stream: Stream,
    /// Requests to send, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Received bytes, of which `start..end` are not yet parsed.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Requests in flight; the cookie of a request is its index.
    slots: Vec<Option<Request>>,
    in_flight: usize,
    pub size_bytes: u64,
    pub read_only: bool,
    pub has_flush: bool,
    structured: bool,
}

impl Connection {
    /// Connects to `uri`. `depth` bounds the requests in flight.
    pub async fn open(uri: &str, depth: usize) -> Result<Self> {
        let (listen, export) = NbdListen::parse_uri(uri).map_err(Error::invalid)?;
        let stream = Stream::connect(&listen).await.map_err(|e| Error::failed(format!("{uri}: {e}")))?;
        let mut connection = Self {
            stream,
            out: Vec::new(),
            sent: 0,
            buffer: vec![0; RECEIVE_BYTES],
            start: 0,
            end: 0,
            slots: (0..depth).map(|_| None).collect(),
            in_flight: 0,
            size_bytes: 0,
            read_only: false,
            has_flush: false,
            structured: false,
        };
        let negotiated = connection.negotiate(&export).await;
        negotiated.map_err(|e| Error::new(e.kind, format!("{uri}: {e}")))?;
        Ok(connection)
    }

    pub fn in_flight(&self) -> impl Iterator<Item = &Request> {
        self.slots.iter().flatten()
    }

    pub fn has_room(&self) -> bool {
        self.in_flight < self.slots.len()
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    pub fn read(&mut self, offset: u64, length: u32, tag: u64) {
        self.submit(Command::Read, offset, length, tag);
    }

    pub fn write(&mut self, offset: u64, data: &[u8], tag: u64) {
        self.submit(Command::Write, offset, data.len() as u32, tag);
        self.out.extend_from_slice(data);
    }

    pub fn flush(&mut self, tag: u64) {
        self.submit(Command::Flush, 0, 0, tag);
    }

    /// Queues a request, which the next wait sends. Callers check `has_room` first.
    fn submit(&mut self, command: Command, offset: u64, length: u32, tag: u64) {
        let slot = self.slots.iter().position(Option::is_none).expect("the caller checked has_room");
        wire::put_request(&mut self.out, command, slot as u64, offset, length);
        let data = if command == Command::Read { vec![0; length as usize] } else { Vec::new() };
        let submitted = Instant::now();
        self.slots[slot] = Some(Request { command, offset, length, submitted, data, errno: 0, tag });
        self.in_flight += 1;
    }

    /// Waits until the next request is answered completely. Callers check that the connection is not `is_idle`.
    pub async fn next(&mut self) -> Result<Request> {
        loop {
            match self.take_message()? {
                Some(Message::Answered(request)) => return Ok(request),
                Some(Message::Partial) => {}
                None => self.exchange().await?,
            }
        }
    }

    /// Waits for the answer to the only request in flight.
    pub async fn only(&mut self) -> Result<Request> {
        assert_eq!(self.in_flight, 1, "other requests are in flight");
        let request = self.next().await?;
        check(&request)?;
        Ok(request)
    }

    /// Sends a disconnect request. Requests in flight are abandoned.
    pub async fn close(mut self) -> Result<()> {
        wire::put_request(&mut self.out, Command::Disconnect, 0, 0, 0);
        while self.sent < self.out.len() {
            self.stream.ready(Interest::WRITABLE).await.map_err(lost)?;
            self.send()?;
        }
        Ok(())
    }

    fn take_message(&mut self) -> Result<Option<Message>> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(header) = Header::parse(bytes)? else { return Ok(None) };
        match header {
            Header::Simple { cookie, errno } => self.take_simple(cookie, errno),
            Header::Structured { cookie, done, kind, length } => self.take_chunk(cookie, done, kind, length),
        }
    }

    fn take_simple(&mut self, cookie: u64, errno: u32) -> Result<Option<Message>> {
        let request = request_mut(&mut self.slots, cookie)?;
        if request.command == Command::Read && self.structured {
            return Err(Error::failed(
                "NBD: simple reply to a read, though structured replies were agreed on",
            ));
        }
        let payload = if errno == 0 { request.data.len() } else { 0 };
        let Some(range) = self.arrived(wire::SIMPLE_BYTES, payload) else { return Ok(None) };
        let request = request_mut(&mut self.slots, cookie)?;
        if errno == 0 {
            request.data.copy_from_slice(&self.buffer[range]);
        }
        request.errno = errno;
        self.finish(cookie).map(Some)
    }

    fn take_chunk(&mut self, cookie: u64, done: bool, kind: u16, length: usize) -> Result<Option<Message>> {
        let Some(range) = self.arrived(wire::STRUCTURED_BYTES, length) else { return Ok(None) };
        let request = request_mut(&mut self.slots, cookie)?;
        apply(request, &Chunk::parse(kind, &self.buffer[range])?)?;
        if done { self.finish(cookie).map(Some) } else { Ok(Some(Message::Partial)) }
    }

    /// Returns the range of a message's payload once the message is complete, and consumes the message.
    fn arrived(&mut self, header: usize, payload: usize) -> Option<Range<usize>> {
        let total = header + payload;
        if self.end - self.start < total {
            self.make_room(total);
            return None;
        }
        self.start += total;
        Some(self.start - payload..self.start)
    }

    fn finish(&mut self, cookie: u64) -> Result<Message> {
        let slot = usize::try_from(cookie).ok().and_then(|index| self.slots.get_mut(index));
        let request = slot.and_then(Option::take).ok_or_else(|| unknown(cookie))?;
        self.in_flight -= 1;
        Ok(Message::Answered(request))
    }

    /// Sends queued bytes and receives available bytes; waits until one of both is possible.
    async fn exchange(&mut self) -> Result<()> {
        let interest = match self.sent < self.out.len() {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        let ready = self.stream.ready(interest).await.map_err(lost)?;
        if ready.is_writable() {
            self.send()?;
        }
        if ready.is_readable() {
            self.receive()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        match self.stream.try_write(&self.out[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(e) if e.kind() == IoKind::WouldBlock => {}
            Err(e) => return Err(lost(e)),
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        self.make_room(self.end - self.start + 1);
        match self.stream.try_read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(Error::failed("NBD: the server closed the connection")),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(e) if e.kind() == IoKind::WouldBlock => Ok(()),
            Err(e) => Err(lost(e)),
        }
    }

    /// Makes room for `total` unparsed bytes. Callers bound the number.
    fn make_room(&mut self, total: usize) {
        if self.start + total > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if total > self.buffer.len() {
            self.buffer.resize(total, 0);
        }
    }

    /// Returns the next `count` bytes once all of them are received.
    async fn receive_exact(&mut self, count: usize) -> Result<Vec<u8>> {
        self.make_room(count);
        while self.end - self.start < count {
            self.exchange().await?;
        }
        let bytes = self.buffer[self.start..self.start + count].to_vec();
        self.start += count;
        Ok(bytes)
    }

    async fn negotiate(&mut self, export: &str) -> Result<()> {
        let greeting = self.receive_exact(18).await?;
        if wire::u64_at(&greeting, 0) != wire::GREETING || wire::u64_at(&greeting, 8) != wire::OPTION {
            return Err(Error::failed("NBD: expected a newstyle server"));
        }
        let flags = wire::u16_at(&greeting, 16) & (wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        if flags & wire::FLAG_FIXED_NEWSTYLE == 0 {
            return Err(Error::failed("NBD: expected a fixed newstyle server"));
        }
        self.out.extend_from_slice(&u32::from(flags).to_be_bytes());
        wire::put_option(&mut self.out, wire::OPT_STRUCTURED_REPLY, &[]);
        let (reply, _) = self.option_reply(wire::OPT_STRUCTURED_REPLY).await?;
        self.structured = reply == wire::REP_ACK;
        self.go(export).await
    }

    async fn go(&mut self, export: &str) -> Result<()> {
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(export.as_bytes());
        data.extend_from_slice(&0u16.to_be_bytes());
        wire::put_option(&mut self.out, wire::OPT_GO, &data);
        let mut described = false;
        loop {
            match self.option_reply(wire::OPT_GO).await? {
                (wire::REP_ACK, _) if described => return Ok(()),
                (wire::REP_INFO, info) if info.len() == 12 && wire::u16_at(&info, 0) == wire::INFO_EXPORT => {
                    self.size_bytes = wire::u64_at(&info, 2);
                    let flags = wire::u16_at(&info, 10);
                    self.read_only = flags & wire::TRANSMIT_READ_ONLY != 0;
                    self.has_flush = flags & wire::TRANSMIT_FLUSH != 0;
                    described = true;
                }
                (wire::REP_INFO, _) => {}
                (code, text) if code & wire::REP_ERROR_BIT != 0 => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Err(Error::failed(format!("NBD: GO refused with {code:#x} {text}")));
                }
                (code, _) => return Err(Error::failed(format!("NBD: unexpected answer {code:#x} to GO"))),
            }
        }
    }

    /// Returns the type and data of one answer to `option`.
    async fn option_reply(&mut self, option: u32) -> Result<(u32, Vec<u8>)> {
        let header = self.receive_exact(20).await?;
        if wire::u64_at(&header, 0) != wire::OPTION_REPLY || wire::u32_at(&header, 8) != option {
            return Err(Error::failed(format!("NBD: expected an answer to option {option}")));
        }
        let length = wire::u32_at(&header, 16) as usize;
        if length > OPTION_REPLY_BYTES_MAX {
            return Err(Error::failed(format!(
                "NBD: option answer of {length} bytes: expected at most 64 KiB"
            )));
        }
        Ok((wire::u32_at(&header, 12), self.receive_exact(length).await?))
    }
}

enum Message {
    Answered(Request),
    /// A chunk of an answer that is not complete yet.
    Partial,
}

fn request_mut(slots: &mut [Option<Request>], cookie: u64) -> Result<&mut Request> {
    let slot = usize::try_from(cookie).ok().and_then(|index| slots.get_mut(index));
    slot.and_then(Option::as_mut).ok_or_else(|| unknown(cookie))
}

fn apply(request: &mut Request, chunk: &Chunk<'_>) -> Result<()> {
    match chunk {
        Chunk::Nothing => {}
        Chunk::Data { offset, data } => part(request, *offset, data.len())?.copy_from_slice(data),
        Chunk::Hole { offset, length } => part(request, *offset, *length as usize)?.fill(0),
        // NBD has no error 0; a server that sends it has failed nevertheless.
        Chunk::Failure { errno } => {
            request.errno = if request.errno == 0 { (*errno).max(1) } else { request.errno }
        }
    }
    Ok(())
}

/// Returns the bytes of a read's answer at an absolute offset that the server gave.
fn part(request: &mut Request, offset: u64, length: usize) -> Result<&mut [u8]> {
    let outside =
        format!("NBD: {length} bytes at {offset} in answer to {} at {}", request.length, request.offset);
    let start = offset.checked_sub(request.offset).and_then(|start| usize::try_from(start).ok());
    let range = start.and_then(|start| Some(start..start.checked_add(length)?));
    range.and_then(|range| request.data.get_mut(range)).ok_or_else(|| Error::failed(outside))
}

/// Fails with the server's error as a sentence, if the server reported one.
pub fn check(request: &Request) -> Result<()> {
    if request.errno == 0 {
        return Ok(());
    }
    let (command, offset, cause) = (request.command, request.offset, blk::Errno(request.errno.cast_signed()));
    Err(Error::failed(format!("NBD {command:?} of {} bytes at {offset}: {cause}", request.length)))
}

fn unknown(cookie: u64) -> Error {
    Error::failed(format!("NBD: reply with cookie {cookie}, which no request in flight has"))
}

fn lost(cause: std::io::Error) -> Error {
    Error::failed(format!("NBD connection: {cause}"))
}
