//! Client of QEMU's guest agent: a line of JSON in each direction, over the socket of a virtio-serial port.
//!
//! Source: "QEMU Guest Agent Protocol Reference" (`guest-sync-delimited`, `guest-fsfreeze-freeze`, `guest-fsfreeze-thaw`).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use serde_json::{Value, json};

use super::fault::NotFrozen;

/// Before a request for synchronisation: the agent forgets a line that an earlier client has not completed. It sends the
/// same byte before its answer.
const DELIMITER: u8 = 0xFF;
/// Maximum length of an answer in bytes. Those that are expected have less than a hundred.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Shortest time limit on a socket; zero would mean none.
const WAIT_MIN: Duration = Duration::from_millis(1);

pub(super) struct Agent {
    stream: UnixStream,
    /// Received bytes of which no line is made yet.
    received: Vec<u8>,
}

/// Why a command has no answer that is of use.
enum Fault {
    /// The agent refused it, and says so.
    Refused(String),
    NoAnswer(String),
}

impl Agent {
    /// Connects and waits until the agent answers.
    pub(super) fn connect(path: &Path, until: Instant) -> Result<Agent, String> {
        let at = |cause: &dyn std::fmt::Display| format!("the guest agent at {}: {cause}", path.display());
        let address = SocketAddrUnix::new(path).map_err(|e| at(&e))?;
        let stream = socket(AddressFamily::UNIX, SocketType::STREAM, None).map_err(|e| at(&e))?;
        // A connection that QEMU does not accept, because another client has the socket, would wait for ever.
        set_socket_timeout(&stream, Timeout::Send, Some(left(until))).map_err(|e| at(&e))?;
        connect(&stream, &address).map_err(|e| {
            at(&format!(
                "{e}; QEMU makes the socket when it starts with the port that `unstun attach VM` prints"
            ))
        })?;
        let mut agent = Agent { stream: stream.into(), received: Vec::new() };
        agent.synchronise(until).map_err(|cause| at(&cause))?;
        Ok(agent)
    }

    /// Waits for the answer to a request of this connection. Answers to those of earlier connections are dropped.
    fn synchronise(&mut self, until: Instant) -> Result<(), String> {
        // Another number than those of earlier connections.
        let id = RandomState::new().build_hasher().finish() >> 32;
        let mut request = vec![DELIMITER];
        request.extend(line(&json!({"execute": "guest-sync-delimited", "arguments": {"id": id}})));
        self.send(&request, until)?;
        loop {
            let answer = self.answer(until).map_err(|cause| {
                format!(
                    "{cause}; is it running in the guest, and is no other program connected to the socket?"
                )
            })?;
            if answer["return"] == json!(id) {
                return Ok(());
            }
        }
    }

    pub(super) fn freeze(&mut self, until: Instant) -> Result<Option<u64>, NotFrozen> {
        match self.execute("guest-fsfreeze-freeze", until) {
            Ok(count) => Ok(Some(count)),
            // The agent has thawed what it had frozen before the error.
            Err(Fault::Refused(cause)) => {
                Err(NotFrozen { cause: format!("the guest agent: {cause}"), may_be: false })
            }
            Err(Fault::NoAnswer(cause)) => {
                Err(NotFrozen { cause: format!("the guest agent did not freeze: {cause}"), may_be: true })
            }
        }
    }

    pub(super) fn thaw(&mut self, until: Instant) -> Result<Option<u64>, String> {
        match self.execute("guest-fsfreeze-thaw", until) {
            Ok(count) => Ok(Some(count)),
            Err(Fault::Refused(cause) | Fault::NoAnswer(cause)) => {
                Err(format!("the guest agent did not thaw: {cause}"))
            }
        }
    }

    /// Carries out a command whose answer is a number.
    fn execute(&mut self, command: &str, until: Instant) -> Result<u64, Fault> {
        self.send(&line(&json!({"execute": command})), until).map_err(Fault::NoAnswer)?;
        let answer = self.answer(until).map_err(Fault::NoAnswer)?;
        if let Some(cause) = answer["error"]["desc"].as_str() {
            let cause: String = cause.chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(Fault::Refused(cause));
        }
        answer["return"]
            .as_u64()
            .ok_or_else(|| Fault::NoAnswer(format!("{command}: found {answer}, expected a number")))
    }

    fn send(&mut self, bytes: &[u8], until: Instant) -> Result<(), String> {
        let sent =
            self.stream.set_write_timeout(Some(left(until))).and_then(|()| self.stream.write_all(bytes));
        sent.map_err(|e| format!("sending a request: {}", said(&e)))
    }

    fn answer(&mut self, until: Instant) -> Result<Value, String> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let begin = line.iter().rposition(|byte| *byte == DELIMITER).map_or(0, |at| at + 1);
                match serde_json::from_slice(&line[begin..]) {
                    Ok(answer) => return Ok(answer),
                    // The rest of an answer to an earlier client.
                    Err(_) => continue,
                }
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(format!("an answer of more than {LINE_BYTES_MAX} bytes"));
            }
            if Instant::now() >= until {
                return Err("no answer in time".to_owned());
            }
            self.receive(until)?;
        }
    }

    fn receive(&mut self, until: Instant) -> Result<(), String> {
        let mut bytes = [0; 4096];
        let read =
            self.stream.set_read_timeout(Some(left(until))).and_then(|()| self.stream.read(&mut bytes));
        match read {
            Ok(0) => Err("the connection has ended".to_owned()),
            Ok(count) => {
                self.received.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(e) => Err(said(&e)),
        }
    }
}

fn line(request: &Value) -> Vec<u8> {
    format!("{request}\n").into_bytes()
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(WAIT_MIN)
}

fn said(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}
