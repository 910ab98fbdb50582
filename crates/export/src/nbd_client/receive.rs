//! Replies of the server: each is checked against its request, and its data goes into the request's buffer.

use blk::socket::Socket;
use blk::{Buf, Error, ErrorKind, Result};

use super::extents::Extent;
use super::handshake::Export;
use super::requests::{Requests, UnderWay};
use crate::nbd::proto::*;

/// Size of the receive buffer: some 15 replies with 4 KiB of data.
const WINDOW_BYTES: usize = 64 << 10;
/// Extents of one context that are kept of an answer. The caller continues where they end.
const EXTENTS_KEPT: usize = 4096;
/// Longest chunk of BLOCK_STATUS: 2^20 extents, which is the most that the known servers send. Those beyond
/// [`EXTENTS_KEPT`] are passed over.
const STATUS_BYTES_MAX: u32 = 4 + (8 << 20);
/// Longest chunk that reports an error: the error, a text of full length, an offset.
const ERROR_BYTES_MAX: u32 = 6 + STRING_BYTES_MAX as u32 + 8;

/// Where replies come from.
pub(super) trait Source {
    /// Fills `buf` from `at` with at least one byte. 0 is the end of the stream.
    async fn recv(&self, buf: Buf, at: usize) -> (Buf, Result<usize>);
}

impl Source for Socket {
    async fn recv(&self, buf: Buf, at: usize) -> (Buf, Result<usize>) {
        Socket::recv(self, buf, at).await
    }
}

/// Receives replies until the connection breaks. Returns the reason.
pub(super) async fn receive_all<S: Source>(requests: &Requests, export: &Export, source: &S) -> Error {
    let mut receiver =
        Receiver { requests, export, source, window: Buf::alloc(WINDOW_BYTES), begin: 0, end: 0 };
    loop {
        if let Err(error) = receiver.reply().await {
            return error;
        }
    }
}

struct Receiver<'a, S> {
    requests: &'a Requests,
    export: &'a Export,
    source: &'a S,
    /// Received bytes; those from `begin` to `end` are not parsed yet.
    window: Buf,
    begin: usize,
    end: usize,
}

/// "Structured reply chunk message" after the magic.
struct Chunk {
    done: bool,
    cookie: u64,
    len: u32,
}

impl<S: Source> Receiver<'_, S> {
    fn wrong<T>(&self, cause: impl Into<String>) -> Result<T> {
        Err(self.requests.wrong(cause))
    }

    /// Takes up to `most` bytes that are received already, and returns how many it gave to `f`.
    fn received(&mut self, most: usize, f: impl FnOnce(&[u8])) -> usize {
        let len = most.min(self.end - self.begin);
        f(&self.window[self.begin..self.begin + len]);
        self.begin += len;
        len
    }

    /// Receives more bytes into the empty window.
    async fn refill(&mut self) -> Result<()> {
        let window = std::mem::replace(&mut self.window, Buf::alloc(0));
        let (window, received) = self.source.recv(window, 0).await;
        (self.window, self.begin, self.end) = (window, 0, 0);
        self.end = self.checked(received)?;
        Ok(())
    }

    fn checked(&self, received: Result<usize>) -> Result<usize> {
        match received? {
            0 => self.wrong("the server hung up"),
            received => Ok(received),
        }
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let mut filled = 0;
        loop {
            filled += self.received(N - filled, |part| bytes[filled..][..part.len()].copy_from_slice(part));
            if filled == N {
                return Ok(bytes);
            }
            self.refill().await?;
        }
    }

    async fn u16(&mut self) -> Result<u16> {
        self.take().await.map(u16::from_be_bytes)
    }

    async fn u32(&mut self) -> Result<u32> {
        self.take().await.map(u32::from_be_bytes)
    }

    async fn u64(&mut self) -> Result<u64> {
        self.take().await.map(u64::from_be_bytes)
    }

    async fn skip(&mut self, mut left: u32) -> Result<()> {
        loop {
            left -= self.received(left as usize, |_| {}) as u32;
            if left == 0 {
                return Ok(());
            }
            self.refill().await?;
        }
    }

    /// Fills `buf[at..end]`. What reaches to the end of the buffer is received without a copy.
    async fn fill(&mut self, mut buf: Buf, mut at: usize, end: usize) -> (Buf, Result<()>) {
        loop {
            at += self.received(end - at, |part| buf[at..][..part.len()].copy_from_slice(part));
            if at == end {
                return (buf, Ok(()));
            }
            if end == buf.len() && end - at >= WINDOW_BYTES {
                let (back, received) = self.source.recv(buf, at).await;
                buf = back;
                match self.checked(received) {
                    Ok(received) => at += received,
                    Err(error) => return (buf, Err(error)),
                }
            } else if let Err(error) = self.refill().await {
                return (buf, Err(error));
            }
        }
    }

    /// Fills a part of a read's buffer.
    async fn data(&mut self, cookie: u64, at: usize, end: usize) -> Result<()> {
        let Some(buf) = self.requests.with(cookie, |request| request.into.take())? else {
            return self.wrong(format!("data for request {cookie:#x}, which reads nothing"));
        };
        let (buf, filled) = self.fill(buf, at, end).await;
        self.requests.with(cookie, |request| request.into = Some(buf))?;
        filled
    }

    async fn reply(&mut self) -> Result<()> {
        match self.u32().await? {
            SIMPLE_REPLY_MAGIC => self.simple().await,
            CHUNK_MAGIC if self.export.structured => self.chunk().await,
            other => self.wrong(format!("a reply begins with {other:#010x}")),
        }
    }

    /// Handles a simple reply after its magic.
    async fn simple(&mut self) -> Result<()> {
        let (errno, cookie) = (self.u32().await?, self.u64().await?);
        let (kind, began, len) = self.requests.with(cookie, |request| {
            (request.kind, request.began, (request.range.end - request.range.start) as usize)
        })?;
        if began {
            return self.wrong(format!("a simple reply to request {cookie:#x} follows one of its chunks"));
        }
        match (errno, kind) {
            (0, CMD_READ) if self.export.structured => {
                return self
                    .wrong("a read was answered without a chunk, after structured replies were agreed");
            }
            (0, CMD_READ) => self.data(cookie, 0, len).await?,
            (0, CMD_BLOCK_STATUS) => return self.wrong("a status was answered without a chunk"),
            (0, _) => {}
            _ => {
                let failure = self.failure(errno, kind, "");
                self.requests.with(cookie, |request| request.failure = Some(failure))?;
            }
        }
        self.requests.finish(cookie);
        Ok(())
    }

    /// Handles a chunk after its magic.
    async fn chunk(&mut self) -> Result<()> {
        let (flags, kind) = (self.u16().await?, self.u16().await?);
        let (cookie, len) = (self.u64().await?, self.u32().await?);
        let chunk = Chunk { done: flags & CHUNK_FLAG_DONE != 0, cookie, len };
        let asked = self.requests.with(cookie, |request| {
            request.began = true;
            request.kind
        })?;
        match (kind, asked) {
            (CHUNK_NONE, _) if len == 0 && chunk.done => {}
            (CHUNK_OFFSET_DATA, CMD_READ) if len > 8 => {
                let (at, end) = self.part(cookie, len - 8).await?;
                self.data(cookie, at, end).await?;
            }
            (CHUNK_OFFSET_HOLE, CMD_READ) if len == 12 => self.hole(cookie).await?,
            (CHUNK_BLOCK_STATUS, CMD_BLOCK_STATUS)
                if (12..=STATUS_BYTES_MAX).contains(&len) && len % 8 == 4 =>
            {
                self.status(&chunk).await?;
            }
            _ if kind & CHUNK_ERROR_BIT != 0 && (6..=ERROR_BYTES_MAX).contains(&len) => {
                self.error(&chunk, asked).await?;
            }
            _ => {
                return self
                    .wrong(format!("a chunk of type {kind} with {len} bytes answers command {asked}"));
            }
        }
        if chunk.done { self.done(cookie) } else { Ok(()) }
    }

    /// Receives the offset of a chunk for `len` bytes of a read. Returns its place in the buffer.
    async fn part(&mut self, cookie: u64, len: u32) -> Result<(usize, usize)> {
        let offset = self.u64().await?;
        self.place_part(cookie, offset, len)
    }

    fn place_part(&self, cookie: u64, offset: u64, len: u32) -> Result<(usize, usize)> {
        let part = self.requests.with(cookie, |request| cover(request, offset, len))?;
        part.map_err(|cause| self.requests.wrong(format!("{cause}: {len} bytes at {offset}")))
    }

    async fn hole(&mut self, cookie: u64) -> Result<()> {
        let (offset, len) = (self.u64().await?, self.u32().await?);
        let (at, end) = self.place_part(cookie, offset, len)?;
        self.requests.with(cookie, |request| {
            request.into.iter_mut().for_each(|buf| buf[at..end].fill(0));
        })
    }

    async fn status(&mut self, chunk: &Chunk) -> Result<()> {
        let context = self.u32().await?;
        if !self.export.contexts.iter().any(|(id, _)| *id == context) {
            return self.wrong(format!("a status for the context {context}, which was not selected"));
        }
        let count = (chunk.len - 4) / 8;
        let kept = count.min(EXTENTS_KEPT as u32);
        let mut extents = Vec::with_capacity(kept as usize);
        for _ in 0..kept {
            let (len, flags) = (self.u32().await?, self.u32().await?);
            if len == 0 {
                return self.wrong("a status with an extent of no bytes");
            }
            extents.push(Extent { len: u64::from(len), flags });
        }
        self.skip((count - kept) * 8).await?;
        let is_new = self.requests.with(chunk.cookie, |request| {
            let is_new = !request.extents.iter().any(|(known, _)| *known == context);
            request.extents.push((context, extents));
            is_new
        })?;
        if is_new { Ok(()) } else { self.wrong(format!("two statuses for the context {context}")) }
    }

    async fn error(&mut self, chunk: &Chunk, asked: u16) -> Result<()> {
        let (errno, text_len) = (self.u32().await?, self.u16().await?);
        if errno == 0 || u32::from(text_len) > chunk.len - 6 {
            return self.wrong(format!(
                "an error {errno} with a text of {text_len} bytes in a chunk of {} bytes",
                chunk.len
            ));
        }
        let text = Buf::alloc(usize::from(text_len));
        let end = text.len();
        let (text, received) = self.fill(text, 0, end).await;
        received?;
        self.skip(chunk.len - 6 - u32::from(text_len)).await?;
        let failure = self.failure(errno, asked, &String::from_utf8_lossy(&text));
        self.requests.with(chunk.cookie, |request| {
            request.failure.get_or_insert(failure);
        })
    }

    /// Ends a request at its last chunk.
    fn done(&self, cookie: u64) -> Result<()> {
        let complete = self.requests.with(cookie, |request| {
            let len = (request.range.end - request.range.start) as usize;
            match request.kind {
                _ if request.failure.is_some() => true,
                CMD_READ => request.coverage.is_whole(len),
                CMD_BLOCK_STATUS => !request.extents.is_empty(),
                _ => true,
            }
        })?;
        if !complete {
            return self
                .wrong(format!("the reply to request {cookie:#x} ends before its content is complete"));
        }
        self.requests.finish(cookie);
        Ok(())
    }

    /// Returns the error of a failed request ("Error values").
    fn failure(&self, errno: u32, command: u16, text: &str) -> Error {
        let (kind, name) = match errno {
            1 => (ErrorKind::Refused, "EPERM: the server does not permit it"),
            5 => (ErrorKind::Io, "EIO: the server could not carry it out"),
            12 => (ErrorKind::Io, "ENOMEM: the server is out of memory"),
            22 => (ErrorKind::Invalid, "EINVAL: the server finds it invalid"),
            28 => (ErrorKind::NoSpace, "ENOSPC: the server is out of space"),
            75 => (ErrorKind::Invalid, "EOVERFLOW: the server finds it too long"),
            95 => (ErrorKind::Unsupported, "ENOTSUP: the server does not support it"),
            108 => (ErrorKind::Io, "ESHUTDOWN: the server is shutting down"),
            _ => (ErrorKind::Io, "an error that the protocol does not define"),
        };
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        let cause = format!("{} failed with error {errno} ({name}){said}", command_name(command));
        Error::new(kind, self.requests.place(), cause)
    }
}

fn command_name(command: u16) -> &'static str {
    match command {
        CMD_READ => "a read",
        CMD_WRITE => "a write",
        CMD_FLUSH => "a flush",
        CMD_TRIM => "a discard",
        CMD_WRITE_ZEROES => "a write of zeros",
        _ => "a block status",
    }
}

/// Marks a part of a read as filled. Returns its place in the buffer.
fn cover(request: &mut UnderWay, offset: u64, len: u32) -> Result<(usize, usize), &'static str> {
    let at = offset.checked_sub(request.range.start).ok_or("a chunk of a read begins before the read")?;
    let end = at.checked_add(u64::from(len)).filter(|end| *end <= request.range.end - request.range.start);
    let end = end.ok_or("a chunk of a read exceeds the read")?;
    request.coverage.add(at as usize..end as usize)?;
    Ok((at as usize, end as usize))
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
