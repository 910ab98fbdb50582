//! Lines of JSON over a Unix socket, with a time limit on each wait: the form of QEMU's guest agent and of its monitor.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use serde_json::Value;

/// Maximum length of a line in bytes. The longest that are expected, a monitor's lists of hundreds of nodes, have some
/// hundreds of thousands.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Shortest time limit on a socket; zero would mean none.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// What a wait says that has reached its limit.
pub(super) const NO_ANSWER: &str = "no answer in time";
pub(super) const ENDED: &str = "the connection has ended";

pub(super) struct Lines {
    stream: UnixStream,
    /// Received bytes of which no line is made yet.
    received: Vec<u8>,
}

impl Lines {
    pub(super) fn connect(path: &Path, until: Instant) -> std::io::Result<Lines> {
        let address = SocketAddrUnix::new(path)?;
        let stream = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        // A connection that QEMU does not accept, because another client has the socket, would wait for ever.
        set_socket_timeout(&stream, Timeout::Send, Some(left(until)))?;
        connect(&stream, &address)?;
        Ok(Lines { stream: stream.into(), received: Vec::new() })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn send(&mut self, bytes: &[u8], until: Instant) -> Result<(), String> {
        let sent =
            self.stream.set_write_timeout(Some(left(until))).and_then(|()| self.stream.write_all(bytes));
        sent.map_err(|e| format!("sending a request: {}", said(&e)))
    }

    /// Returns the next line, with its end.
    pub(super) fn next(&mut self, until: Instant) -> Result<Vec<u8>, String> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                return Ok(self.received.drain(..=end).collect());
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(format!("an answer of more than {LINE_BYTES_MAX} bytes"));
            }
            if Instant::now() >= until {
                return Err(NO_ANSWER.to_owned());
            }
            self.receive(until)?;
        }
    }

    fn receive(&mut self, until: Instant) -> Result<(), String> {
        let mut bytes = [0; 4096];
        let read =
            self.stream.set_read_timeout(Some(left(until))).and_then(|()| self.stream.read(&mut bytes));
        match read {
            Ok(0) => Err(ENDED.to_owned()),
            Ok(count) => {
                self.received.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(e) => Err(said(&e)),
        }
    }
}

pub(super) fn line(request: &Value) -> Vec<u8> {
    format!("{request}\n").into_bytes()
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(WAIT_MIN)
}

fn said(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => NO_ANSWER.to_owned(),
        _ => error.to_string(),
    }
}
