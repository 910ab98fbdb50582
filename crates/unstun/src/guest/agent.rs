//! Client of QEMU's guest agent: a line of JSON in each direction, over the socket of a virtio-serial port.
//!
//! Source: "QEMU Guest Agent Protocol Reference" (`guest-sync-delimited`, `guest-fsfreeze-freeze`, `guest-fsfreeze-thaw`).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::fault::NotFrozen;
use super::lines::{Lines, line};

/// Before a request for synchronisation: the agent forgets a line that an earlier client has not completed. It sends the
/// same byte before its answer.
const DELIMITER: u8 = 0xFF;

pub(super) struct Agent {
    lines: Lines,
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
        let at = |cause: String| format!("the guest agent at {}: {cause}", path.display());
        let lines = Lines::connect(path, until).map_err(|cause| {
            let remedy = "QEMU makes the socket when it starts with the port that `unstun attach VM` prints";
            at(format!("{cause}; {remedy}"))
        })?;
        let mut agent = Agent { lines };
        agent.synchronise(until).map_err(at)?;
        Ok(agent)
    }

    /// Waits for the answer to a request of this connection. Answers to those of earlier connections are dropped.
    fn synchronise(&mut self, until: Instant) -> Result<(), String> {
        // Another number than those of earlier connections.
        let id = RandomState::new().build_hasher().finish() >> 32;
        let mut request = vec![DELIMITER];
        request.extend(line(&json!({"execute": "guest-sync-delimited", "arguments": {"id": id}})));
        self.lines.send(&request, until)?;
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
        self.lines.send(&line(&json!({"execute": command})), until).map_err(Fault::NoAnswer)?;
        let answer = self.answer(until).map_err(Fault::NoAnswer)?;
        if let Some(cause) = answer["error"]["desc"].as_str() {
            let cause: String = cause.chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(Fault::Refused(cause));
        }
        answer["return"]
            .as_u64()
            .ok_or_else(|| Fault::NoAnswer(format!("{command}: found {answer}, expected a number")))
    }

    fn answer(&mut self, until: Instant) -> Result<Value, String> {
        loop {
            let line = self.lines.next(until)?;
            let begin = line.iter().rposition(|byte| *byte == DELIMITER).map_or(0, |at| at + 1);
            match serde_json::from_slice(&line[begin..]) {
                Ok(answer) => return Ok(answer),
                // The rest of an answer to an earlier client.
                Err(_) => continue,
            }
        }
    }
}
