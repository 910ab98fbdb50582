//! The subset of QEMU's monitor protocol that a snapshot and its commit need. Events are read and dropped; the state of
//! a job is queried.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use blk::{Error, ErrorKind, Result};
use serde_json::{Value, json};

/// QEMU answers at once unless it is stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    place: String,
}

impl Qmp {
    pub(super) fn connect(path: &Path) -> Result<Qmp> {
        let place = path.display().to_string();
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, &place, format!("connecting: {e}"));
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(failed)?;
        let lines = BufReader::new(stream.try_clone().map_err(failed)?);
        let mut qmp = Qmp { stream, lines, place };
        // The greeting contains versions, on which nothing here depends.
        qmp.line()?;
        qmp.call("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    pub(super) fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let sent = self.stream.write_all(request.as_bytes());
        sent.map_err(|e| Error::new(ErrorKind::Io, &self.place, format!("{command}: {e}")))?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                let reason = error["desc"].as_str().unwrap_or("no reason given").to_string();
                return Err(Error::new(ErrorKind::Io, &self.place, format!("{command}: {reason}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => Err(Error::new(ErrorKind::Io, &self.place, "QEMU hung up")),
            Ok(_) => serde_json::from_str(&line).map_err(|e| {
                Error::new(ErrorKind::Io, &self.place, format!("an answer that is no JSON: {e}"))
            }),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let cause = format!("no answer within {} s", ANSWER_LIMIT.as_secs());
                Err(Error::new(ErrorKind::Cancelled, &self.place, cause))
            }
            Err(e) => Err(Error::new(ErrorKind::Io, &self.place, e.to_string())),
        }
    }
}
