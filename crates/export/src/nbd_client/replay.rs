//! Plays the bytes of a server to the client, for fuzz targets and property tests.

use std::cell::RefCell;
use std::io::{Cursor, Read, Write};
use std::pin::pin;
use std::rc::Rc;

use blk::{Buf, Result};
use futures_util::FutureExt;

use super::handshake::{Export, negotiate};
use super::receive::{Source, receive_all};
use super::requests::{Ended, Request, Requests};
use crate::nbd::proto::*;

/// A server that sends bytes from a record, whatever it receives.
struct Recorded<'a>(Cursor<&'a [u8]>);

impl Read for Recorded<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Recorded<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes in pieces of a given size.
struct Pieces<'a> {
    left: RefCell<&'a [u8]>,
    piece: usize,
}

impl Source for Pieces<'_> {
    async fn recv(&self, mut buf: Buf, at: usize) -> (Buf, Result<usize>) {
        let mut left = self.left.borrow_mut();
        let len = self.piece.min(left.len()).min(buf.len() - at);
        let (piece, rest) = left.split_at(len);
        buf[at..at + len].copy_from_slice(piece);
        *left = rest;
        (buf, Ok(len))
    }
}

/// Returns the properties that a negotiation with a server that sends `input` ends with, and the rest of the input; or the
/// error. The client requests the export `disk` with a context of its own.
pub fn negotiation(input: &[u8]) -> Result<(Export, Vec<u8>)> {
    let mut server = Recorded(Cursor::new(input));
    let export = negotiate(&mut server, "disk", Some("x:changes"), "replay")?;
    let rest = &input[server.0.position() as usize..];
    Ok((export, rest.to_vec()))
}

/// Returns how requests of a replay end whose server sends `input` in pieces of `piece` bytes. The requests are two reads of
/// 4 KiB at 0 and 64 KiB, a flush and a status of the first MiB, with the cookies 2^32 to 2^32 + 3.
pub fn transmission(export: &Export, input: &[u8], piece: usize) -> Vec<(Result<()>, Vec<u8>)> {
    let requests = Rc::new(Requests::new("replay".to_owned()));
    let read = |start: u64| Request {
        into: Some(Buf::zeroed(4096)),
        ..Request::plain(CMD_READ, 0, start..start + 4096)
    };
    let all = [
        read(0),
        read(64 << 10),
        Request::plain(CMD_FLUSH, 0, 0..0),
        Request::plain(CMD_BLOCK_STATUS, 0, 0..1 << 20),
    ];
    let cookies = all.map(|mut request| requests.begin(&mut request));
    let source = Pieces { left: RefCell::new(input), piece: piece.max(1) };
    let error = pin!(receive_all(&requests, export, &source)).now_or_never();
    requests.break_off(error.expect("the record never makes the client wait"));
    cookies.map(|cookie| outcome(requests.ended(cookie).now_or_never().expect("all have ended"))).into()
}

/// Content of a read that succeeded, or of a status.
fn outcome(ended: Ended) -> (Result<()>, Vec<u8>) {
    let extents = ended.extents.iter().flat_map(|(id, extents)| {
        extents.iter().flat_map(move |extent| [u64::from(*id), extent.len, u64::from(extent.flags)])
    });
    let content = match &ended.result {
        Ok(()) => ended.into.map_or_else(|| extents.flat_map(u64::to_be_bytes).collect(), |buf| buf.to_vec()),
        Err(_) => Vec::new(),
    };
    (ended.result, content)
}
