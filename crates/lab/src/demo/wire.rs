//! Bytes of the NBD protocol for a client. Comments name the section of the NBD project's `doc/proto.md` for each part.
//!
//! The code is independent of the server in `export`, so that the demo is a second reading of the protocol.

use api::error::{Error, Result};

// "Newstyle negotiation" and "Fixed newstyle negotiation".
pub const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub const FLAG_NO_ZEROES: u16 = 2;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const REP_ACK: u32 = 1;
pub const REP_INFO: u32 = 3;
pub const REP_ERROR_BIT: u32 = 1 << 31;
pub const INFO_EXPORT: u16 = 0;
pub const TRANSMIT_READ_ONLY: u16 = 1 << 1;
pub const TRANSMIT_FLUSH: u16 = 1 << 2;

// "Request message".
const REQUEST_MAGIC: u32 = 0x2560_9513;
// "Simple reply message" and "Structured reply chunk message".
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;
pub const SIMPLE_BYTES: usize = 16;
pub const STRUCTURED_BYTES: usize = 20;
const CHUNK_DONE: u16 = 1;

/// Largest payload that the protocol lets a server send unasked. The client waits for no longer one.
pub const PAYLOAD_BYTES_MAX: usize = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
}

/// Appends a request's 28 bytes; a write's data follow them.
pub fn put_request(out: &mut Vec<u8>, command: Command, cookie: u64, offset: u64, length: u32) {
    let kind: u16 = match command {
        Command::Read => 0,
        Command::Write => 1,
        Command::Disconnect => 2,
        Command::Flush => 3,
    };
    out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    out.extend_from_slice(&0u16.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}

/// Appends an option with its data.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Returns the big-endian number at an offset. Callers have checked the length.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

#[derive(Debug, PartialEq, Eq)]
pub enum Header {
    /// Simple reply. For a successful read, the data follow.
    Simple {
        cookie: u64,
        errno: u32,
    },
    Structured {
        cookie: u64,
        done: bool,
        kind: u16,
        length: usize,
    },
}

impl Header {
    /// Parses a header; returns `None` until enough bytes are received.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        if bytes.len() < SIMPLE_BYTES {
            return Ok(None);
        }
        match u32_at(bytes, 0) {
            SIMPLE_REPLY => Ok(Some(Self::Simple { errno: u32_at(bytes, 4), cookie: u64_at(bytes, 8) })),
            STRUCTURED_REPLY if bytes.len() < STRUCTURED_BYTES => Ok(None),
            STRUCTURED_REPLY => {
                let length = u32_at(bytes, 16) as usize;
                if length > PAYLOAD_BYTES_MAX {
                    return Err(Error::failed(format!(
                        "NBD reply chunk of {length} bytes: expected at most 32 MiB"
                    )));
                }
                let done = u16_at(bytes, 4) & CHUNK_DONE != 0;
                Ok(Some(Self::Structured { cookie: u64_at(bytes, 8), done, kind: u16_at(bytes, 6), length }))
            }
            magic => Err(Error::failed(format!(
                "NBD reply magic {magic:#010x}: expected a simple or structured one"
            ))),
        }
    }
}

/// Payload of a structured reply's chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    Nothing,
    Data { offset: u64, data: &'a [u8] },
    Hole { offset: u64, length: u32 },
    Failure { errno: u32 },
}

impl<'a> Chunk<'a> {
    /// Parses a chunk of one of the "Structured reply types".
    pub fn parse(kind: u16, payload: &'a [u8]) -> Result<Self> {
        const ERROR_BIT: u16 = 1 << 15;
        match (kind, payload.len()) {
            (0, 0) => Ok(Self::Nothing),
            (1, 9..) => Ok(Self::Data { offset: u64_at(payload, 0), data: &payload[8..] }),
            (2, 12) => Ok(Self::Hole { offset: u64_at(payload, 0), length: u32_at(payload, 8) }),
            (kind, 6..) if kind & ERROR_BIT != 0 => Ok(Self::Failure { errno: u32_at(payload, 0) }),
            (kind, length) => {
                Err(Error::failed(format!("NBD reply chunk of type {kind} with {length} bytes")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_28_bytes() {
        let mut out = Vec::new();
        put_request(&mut out, Command::Write, 7, 4096, 512);
        let expected = [
            0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn headers_wait_for_their_bytes() {
        let simple = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(Header::parse(&simple[..15]).unwrap(), None);
        assert_eq!(Header::parse(&simple).unwrap(), Some(Header::Simple { cookie: 9, errno: 5 }));
        let mut structured = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1];
        structured.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(Header::parse(&structured).unwrap(), None);
        structured.extend_from_slice(&[0, 0, 0x10, 8]);
        let parsed = Header::parse(&structured).unwrap();
        assert_eq!(parsed, Some(Header::Structured { cookie: 9, done: true, kind: 1, length: 4104 }));
    }

    #[test]
    fn garbage_and_endless_chunks_are_refused() {
        assert!(Header::parse(&[0; 16]).unwrap_err().message.contains("magic"));
        let mut endless = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1];
        endless.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff]);
        assert!(Header::parse(&endless).unwrap_err().message.contains("32 MiB"));
        assert!(Chunk::parse(1, &[0; 8]).is_err());
        assert!(Chunk::parse(2, &[0; 13]).is_err());
        assert!(Chunk::parse(9, &[]).is_err());
    }
}
