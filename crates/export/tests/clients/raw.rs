//! A client that sends exactly the bytes that a test specifies.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use export::nbd::proto::*;

use crate::support::Server;

pub(crate) struct Raw {
    pub stream: UnixStream,
}

/// One chunk of a structured reply.
pub(crate) struct Chunk {
    pub done: bool,
    pub kind: u16,
    pub cookie: u64,
    pub payload: Vec<u8>,
}

/// A simple reply's error and cookie.
pub(crate) type Answer = (u32, u64);

impl Raw {
    /// Connects and receives the greeting.
    pub(crate) fn connect(server: &Server) -> Raw {
        let stream = UnixStream::connect(server.socket()).unwrap();
        // Longer than any answer takes: a test that would hang fails instead.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut raw = Raw { stream };
        assert_eq!(&raw.take(18)[..8], b"NBDMAGIC");
        raw
    }

    /// Attaches to an export, with simple replies.
    pub(crate) fn attach(server: &Server, export: &str) -> Raw {
        let mut raw = Raw::connect(server);
        raw.give(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        raw.option(OPT_EXPORT_NAME, export.as_bytes());
        raw.take(10);
        raw
    }

    /// Attaches to an export, with structured replies.
    pub(crate) fn attach_structured(server: &Server, export: &str) -> Raw {
        let mut raw = Raw::connect(server);
        raw.give(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        raw.option(OPT_STRUCTURED_REPLY, &[]);
        assert_eq!(raw.option_reply().0, REP_ACK);
        assert_eq!(raw.go(export).0, REP_ACK);
        raw
    }

    /// Requests an export with GO. Returns the last reply, with its text if it is a refusal.
    pub(crate) fn go(&mut self, export: &str) -> (u32, String) {
        let len = (export.len() as u32).to_be_bytes();
        self.option(OPT_GO, &[&len[..], export.as_bytes(), &[0, 0]].concat());
        loop {
            let (kind, payload) = self.option_reply();
            if kind != REP_INFO {
                return (kind, String::from_utf8(payload).unwrap());
            }
        }
    }

    /// Receives a reply to an option: its type and payload.
    pub(crate) fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.take(20);
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let payload = self.take(word(16) as usize);
        (word(12), payload)
    }

    pub(crate) fn chunk(&mut self) -> Chunk {
        let head = self.take(CHUNK_BYTES);
        assert_eq!(head[..4], CHUNK_MAGIC.to_be_bytes());
        let half = |at: usize| u16::from_be_bytes(head[at..at + 2].try_into().unwrap());
        let len = u32::from_be_bytes(head[16..20].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
        Chunk { done: half(4) == CHUNK_FLAG_DONE, kind: half(6), cookie, payload: self.take(len as usize) }
    }

    pub(crate) fn give(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn option(&mut self, option: u32, payload: &[u8]) {
        let len = (payload.len() as u32).to_be_bytes();
        self.give(&[&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len, payload].concat());
    }

    pub(crate) fn request(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.give(&request(kind, flags, cookie, offset, length));
    }

    /// Sends `count` reads of the first `length` bytes in one write; single small writes would fill the socket's
    /// buffer.
    pub(crate) fn reads(&mut self, count: u64, length: u32) {
        let all: Vec<u8> = (0..count).flat_map(|cookie| request(CMD_READ, 0, cookie, 0, length)).collect();
        self.give(&all);
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let bytes = self.take(SIMPLE_REPLY_BYTES);
        assert_eq!(bytes[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        let error = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(bytes[8..].try_into().unwrap()))
    }

    /// Returns true if the server has closed the connection without sending more.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let head = [&REQUEST_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}
