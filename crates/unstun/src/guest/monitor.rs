//! Client of QEMU's monitor (QMP): a line of JSON in each direction, with events between the answers.
//!
//! Source: "QEMU Machine Protocol Specification" and "QEMU QMP Reference Manual".

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

use super::lines::{ENDED, Lines, NO_ANSWER, line};

pub(super) struct Monitor {
    lines: Lines,
    /// QEMU's version, such as `7.2.22`.
    pub version: String,
    events: VecDeque<Value>,
}

impl Monitor {
    pub(super) fn connect(path: &Path, until: Instant) -> Result<Monitor, String> {
        let at = |cause: String| format!("QEMU's monitor at {}: {cause}", path.display());
        let lines = Lines::connect(path, until).map_err(|cause| {
            at(format!(
                "{cause}; QEMU makes the socket when it starts with -qmp unix:PATH,server=on,wait=off"
            ))
        })?;
        let mut monitor = Monitor { lines, version: String::new(), events: VecDeque::new() };
        monitor.greet(until).map_err(at)?;
        Ok(monitor)
    }

    fn greet(&mut self, until: Instant) -> Result<(), String> {
        let greeting = self.message(until).map_err(|cause| match cause.as_str() {
            NO_ANSWER => format!("{cause}; is another program connected to the socket?"),
            _ => cause,
        })?;
        let version = &greeting["QMP"]["version"]["qemu"];
        let parts = ["major", "minor", "micro"].map(|part| version[part].as_u64());
        let [Some(major), Some(minor), Some(micro)] = parts else {
            return Err(format!("found {greeting:.100}, expected the greeting of a QMP monitor"));
        };
        self.version = format!("{major}.{minor}.{micro}");
        self.call("qmp_capabilities", json!({}), until).map(drop)
    }

    /// Returns the ID of the process that has the socket; None where the kernel does not show it here.
    pub(super) fn process(&self) -> Option<u32> {
        let peer = getsockopt(&self.lines.socket(), PeerCredentials).ok()?;
        // A process of another PID namespace has the number 0.
        u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0)
    }

    /// Carries out a command and returns its answer. Events that come before it are kept.
    pub(super) fn call(&mut self, command: &str, arguments: Value, until: Instant) -> Result<Value, String> {
        let request = line(&json!({"execute": command, "arguments": arguments}));
        self.lines.send(&request, until).map_err(|cause| format!("{command}: {cause}"))?;
        self.answer(command, until)
    }

    /// Gives QEMU a descriptor under a name.
    pub(super) fn give(
        &mut self,
        name: &str,
        descriptor: BorrowedFd<'_>,
        until: Instant,
    ) -> Result<(), String> {
        let request = line(&json!({"execute": "getfd", "arguments": {"fdname": name}}));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "space for one descriptor");
        let sent = sendmsg(self.lines.socket(), &[IoSlice::new(&request)], &mut control, SendFlags::NOSIGNAL);
        match sent {
            Ok(count) if count == request.len() => self.answer("getfd", until).map(drop),
            Ok(_) => Err("getfd: the socket took a part of the request".to_owned()),
            Err(e) => Err(format!("getfd: {e}")),
        }
    }

    /// Returns the next event. Fails with `NO_ANSWER` if none comes in time.
    pub(super) fn event(&mut self, until: Instant) -> Result<Value, String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let message = self.message(until)?;
            if message["event"].is_string() {
                return Ok(message);
            }
        }
    }

    fn answer(&mut self, command: &str, until: Instant) -> Result<Value, String> {
        loop {
            let mut message = self.message(until).map_err(|cause| format!("{command}: {cause}"))?;
            if message["event"].is_string() {
                self.events.push_back(message);
            } else if let Some(cause) = message["error"]["desc"].as_str() {
                let cause: String = cause.chars().filter(|c| !c.is_control()).take(300).collect();
                return Err(format!("{command}: {cause}"));
            } else if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    fn message(&mut self, until: Instant) -> Result<Value, String> {
        let line = self.lines.next(until).map_err(|cause| match cause.as_str() {
            ENDED => "QEMU has closed its monitor; has it ended?".to_owned(),
            _ => cause,
        })?;
        serde_json::from_slice(&line).map_err(|e| format!("an answer that is no JSON: {e}"))
    }
}
