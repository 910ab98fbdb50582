//! Encoding of replies, and the error number of each error.
//!
//! With structured replies, a payload or an error is sent as a chunk. A success without payload stays a simple reply,
//! which "Simple reply message" permits for everything except READ.

use blk::{Buf, Error, ErrorKind, Slice};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

use super::proto::*;
use super::request::Refusal;
use super::wire::{Put, clip};

/// "Simple reply message".
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Simple {
    magic: U32,
    error: U32,
    cookie: U64,
}

/// "Structured reply chunk message", with the offset at the start of a data chunk.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct DataChunk {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
    offset: U64,
}

const _: () = assert!(size_of::<Simple>() == SIMPLE_REPLY_BYTES && size_of::<DataChunk>() == CHUNK_BYTES + 8);

/// A failed request, as the reply reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Error number that the client gets.
    pub errno: NbdErrno,
    /// Cause, for the client and for the log.
    pub message: String,
}

impl Failure {
    /// Converts an error. `fast_zero`: the request was a write of zeros that had to be fast, the only one that "not
    /// supported" may answer.
    pub(super) fn of(error: &Error, fast_zero: bool) -> Failure {
        let errno = match error.kind {
            ErrorKind::NoSpace => NbdErrno::NoSpace,
            ErrorKind::Unsupported if fast_zero => NbdErrno::NotSupported,
            ErrorKind::Unsupported | ErrorKind::Invalid => NbdErrno::Invalid,
            ErrorKind::Refused | ErrorKind::Locked => NbdErrno::Perm,
            ErrorKind::Cancelled => NbdErrno::Shutdown,
            ErrorKind::Io
            | ErrorKind::NoDescriptors
            | ErrorKind::NotFound
            | ErrorKind::Exists
            | ErrorKind::Damaged
            | ErrorKind::Latched
            | ErrorKind::LeaseLost => NbdErrno::Io,
        };
        Failure { errno, message: error.to_string() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure { errno: refusal.errno, message: refusal.why.to_string() }
    }
}

fn simple(cookie: u64, error: u32) -> Simple {
    Simple { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() }
}

/// Returns a success without payload.
pub(super) fn success(cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes.copy_from_slice(simple(cookie, 0).as_bytes());
    bytes
}

/// Returns the reply to a read or to a piece of one. The header is put into the buffer's headroom. `done`: no other
/// piece follows.
pub(super) fn data(cookie: u64, offset: u64, structured: bool, done: bool, buf: Buf) -> Slice {
    let len = buf.len() as u32;
    data_of(cookie, offset, len, structured, done, buf)
}

/// Returns a reply like `data`, of which `buf` has only the first of `len` bytes.
pub(super) fn data_of(
    cookie: u64,
    offset: u64,
    len: u32,
    structured: bool,
    done: bool,
    mut buf: Buf,
) -> Slice {
    if structured {
        let chunk = DataChunk {
            magic: CHUNK_MAGIC.into(),
            flags: if done { CHUNK_FLAG_DONE } else { 0 }.into(),
            kind: CHUNK_OFFSET_DATA.into(),
            cookie: cookie.into(),
            length: (len + 8).into(),
            offset: offset.into(),
        };
        buf.prepend(chunk.as_bytes());
    } else {
        buf.prepend(simple(cookie, 0).as_bytes());
    }
    buf.freeze()
}

pub(super) fn failure(cookie: u64, structured: bool, failure: &Failure) -> Slice {
    if !structured {
        return Buf::copy_of(simple(cookie, failure.errno as u32).as_bytes()).freeze();
    }
    let message = clip(&failure.message, STRING_BYTES_MAX).as_bytes();
    let mut payload = Vec::with_capacity(6 + message.len());
    payload.put_u32(failure.errno as u32);
    payload.put_u16(message.len() as u16);
    payload.extend_from_slice(message);
    chunks(cookie, CHUNK_ERROR, &[payload])
}

/// Returns all chunks of a reply.
pub(super) fn chunks(cookie: u64, kind: u16, payloads: &[Vec<u8>]) -> Slice {
    let mut bytes = Vec::with_capacity(payloads.iter().map(|payload| CHUNK_BYTES + payload.len()).sum());
    for (index, payload) in payloads.iter().enumerate() {
        let is_last = index + 1 == payloads.len();
        bytes.put_u32(CHUNK_MAGIC);
        bytes.put_u16(if is_last { CHUNK_FLAG_DONE } else { 0 });
        bytes.put_u16(kind);
        bytes.put_u64(cookie);
        bytes.put_u32(payload.len() as u32);
        bytes.extend_from_slice(payload);
    }
    Buf::copy_of(&bytes).freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_directly_before_the_data() {
        let mut buf = Buf::with_headroom(512);
        buf.fill(0xaa);
        let reply = data(7, 1024, true, true, buf);
        assert_eq!(&reply[..4], &CHUNK_MAGIC.to_be_bytes());
        assert_eq!(&reply[4..8], &[0, 1, 0, 1]);
        assert_eq!(&reply[16..20], &520u32.to_be_bytes());
        assert_eq!(&reply[20..28], &1024u64.to_be_bytes());
        assert_eq!(reply.len(), 28 + 512);
        let reply = data(7, 1024, false, true, Buf::with_headroom(512));
        assert_eq!(&reply[..16], &success(7));
    }

    #[test]
    fn errors_carry_their_message_only_in_chunks() {
        let error = Error::new(ErrorKind::NoSpace, "disk0", "the datastore is full");
        let refused = Failure::of(&error, false);
        assert_eq!(&failure(1, false, &refused)[4..8], &28u32.to_be_bytes());
        let reply = failure(1, true, &refused);
        assert_eq!(&reply[6..8], &CHUNK_ERROR.to_be_bytes());
        assert_eq!(&reply[CHUNK_BYTES + 6..], b"disk0: the datastore is full");
    }

    #[test]
    fn not_supported_answers_fast_zeroes_only() {
        let error = Error::unsupported("disk0", "no fast zeros here");
        assert_eq!(Failure::of(&error, true).errno, NbdErrno::NotSupported);
        assert_eq!(Failure::of(&error, false).errno, NbdErrno::Invalid);
    }
}
