//! Decoder of requests, from bytes to a checked command. "Request message", "Request types", "Error values" of
//! proto.md.
//!
//! [`Intake`] is a state machine over the received bytes, without I/O. It never keeps payload: its owner takes the
//! payload of a write, and the payload of a refused write is skipped here.

use std::ops::Range;

use blk::volume::ZeroMode;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::negotiate::Terms;
use super::proto::*;

/// "Request message" in its encoded form.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub magic: U32,
    pub flags: U16,
    pub kind: U16,
    pub cookie: U64,
    pub offset: U64,
    pub length: U32,
}

const _: () = assert!(size_of::<Header>() == REQUEST_BYTES);

/// A command whose range is inside the export and aligned to blocks, and whose flags are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `whole`: the answer must not be sent in pieces.
    Read {
        offset: u64,
        len: u32,
        whole: bool,
    },
    Flush,
    Trim {
        range: Range<u64>,
        fua: bool,
    },
    Cache,
    Zero {
        range: Range<u64>,
        mode: ZeroMode,
        fua: bool,
    },
    Status {
        range: Range<u64>,
        one: bool,
    },
}

/// Why a request is answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub errno: NbdErrno,
    pub why: &'static str,
}

/// Meaning of the bytes at the head of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed.
    Receive,
    Command {
        cookie: u64,
        command: Command,
    },
    /// `len` bytes of payload follow in the stream. The owner takes them all before the next call.
    Write {
        cookie: u64,
        offset: u64,
        len: u32,
        fua: bool,
    },
    Refused {
        cookie: u64,
        refusal: Refusal,
    },
    /// The client disconnects. Requests under way are still answered.
    Disconnect,
    /// The stream is invalid from here on: close it.
    Garbage(&'static str),
}

/// The receiving side of one connection.
pub(super) struct RequestParser {
    terms: Terms,
    /// Remaining payload of a refused write.
    skip: u64,
}

impl RequestParser {
    pub(super) fn new(terms: Terms) -> RequestParser {
        RequestParser { terms, skip: 0 }
    }

    /// Decodes received bytes. Returns how many of them are used up, and what they mean.
    pub(super) fn next(&mut self, bytes: &[u8]) -> (usize, Event) {
        let skipped = self.skip.min(bytes.len() as u64) as usize;
        self.skip -= skipped as u64;
        let Ok((header, _)) = Header::read_from_prefix(&bytes[skipped..]) else {
            return (skipped, Event::Receive);
        };
        if header.magic != REQUEST_MAGIC {
            return (skipped, Event::Garbage("a request does not start with the request magic"));
        }
        (skipped + REQUEST_BYTES, self.event(&header))
    }

    fn event(&mut self, header: &Header) -> Event {
        let cookie = header.cookie.get();
        let kind = header.kind.get();
        match check(header, &self.terms) {
            Ok(Checked::Command(command)) => Event::Command { cookie, command },
            Ok(Checked::Write { fua }) => {
                Event::Write { cookie, offset: header.offset.get(), len: header.length.get(), fua }
            }
            Ok(Checked::Disconnect) => Event::Disconnect,
            Err(refusal) => {
                if kind == CMD_WRITE {
                    self.skip = u64::from(header.length.get());
                }
                Event::Refused { cookie, refusal }
            }
        }
    }
}

enum Checked {
    Command(Command),
    Write { fua: bool },
    Disconnect,
}

fn refuse<T>(errno: NbdErrno, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, why })
}

/// Returns the "Command flags" that are allowed. FUA is valid on every command, even where it has no effect: some
/// clients set it on any.
fn flags_allowed(kind: u16, terms: &Terms) -> u16 {
    CMD_FLAG_FUA
        | match kind {
            CMD_READ if terms.structured => CMD_FLAG_DF,
            CMD_WRITE_ZEROES if terms.fast_zero => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
            CMD_WRITE_ZEROES => CMD_FLAG_NO_HOLE,
            CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE,
            _ => 0,
        }
}

fn check(header: &Header, terms: &Terms) -> Result<Checked, Refusal> {
    let (kind, flags) = (header.kind.get(), header.flags.get());
    if kind == CMD_DISC {
        return Ok(Checked::Disconnect);
    }
    if kind > CMD_BLOCK_STATUS {
        return refuse(NbdErrno::Invalid, "unknown command");
    }
    if flags & !flags_allowed(kind, terms) != 0 {
        return refuse(NbdErrno::Invalid, "a flag that this command does not have here");
    }
    if terms.read_only && matches!(kind, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES) {
        return refuse(NbdErrno::Perm, "this export is read-only");
    }
    if kind == CMD_FLUSH {
        if header.offset != 0 || header.length != 0 {
            return refuse(NbdErrno::Invalid, "a flush has neither offset nor length");
        }
        return Ok(Checked::Command(Command::Flush));
    }
    let range = checked_range(header, terms)?;
    checked_command(kind, flags, range, terms)
}

/// Checks a range ("Size constraints") and chooses the error for one past the end ("Error values",
/// "NBD_CMD_WRITE_ZEROES").
fn checked_range(header: &Header, terms: &Terms) -> Result<Range<u64>, Refusal> {
    let (kind, start, len) = (header.kind.get(), header.offset.get(), u64::from(header.length.get()));
    let block = u64::from(BLOCK_BYTES_MIN);
    if len == 0 {
        return refuse(NbdErrno::Invalid, "a range of no bytes");
    }
    if !start.is_multiple_of(block) || !len.is_multiple_of(block) {
        return refuse(NbdErrno::Invalid, "offset and length must be multiples of 512 bytes");
    }
    if matches!(kind, CMD_READ | CMD_WRITE) && len > u64::from(PAYLOAD_BYTES_MAX) {
        return refuse(NbdErrno::Invalid, "a request carries at most 32 MiB");
    }
    match start.checked_add(len) {
        Some(end) if end <= terms.size_bytes => Ok(start..end),
        _ if matches!(kind, CMD_WRITE | CMD_WRITE_ZEROES) => {
            refuse(NbdErrno::NoSpace, "the range passes the end of the export")
        }
        _ => refuse(NbdErrno::Invalid, "the range passes the end of the export"),
    }
}

fn checked_command(kind: u16, flags: u16, range: Range<u64>, terms: &Terms) -> Result<Checked, Refusal> {
    let has = |flag: u16| flags & flag != 0;
    let fua = has(CMD_FLAG_FUA);
    Ok(Checked::Command(match kind {
        CMD_READ => Command::Read {
            offset: range.start,
            len: (range.end - range.start) as u32,
            whole: !terms.structured || has(CMD_FLAG_DF),
        },
        CMD_WRITE => return Ok(Checked::Write { fua }),
        CMD_TRIM => Command::Trim { range, fua },
        CMD_CACHE => Command::Cache,
        CMD_WRITE_ZEROES => {
            let mode = ZeroMode { no_hole: has(CMD_FLAG_NO_HOLE), fast_only: has(CMD_FLAG_FAST_ZERO) };
            Command::Zero { range, mode, fua }
        }
        CMD_BLOCK_STATUS if terms.status || !terms.since.is_empty() => {
            Command::Status { range, one: has(CMD_FLAG_REQ_ONE) }
        }
        CMD_BLOCK_STATUS => return refuse(NbdErrno::Invalid, "no metadata context was negotiated"),
        _ => return refuse(NbdErrno::Invalid, "unknown command"),
    }))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
