//! A blocking client of the daemon's REST API on its Unix socket: a connection per request, JSON both ways.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use blk::{Error, ErrorKind, Result};
use serde_json::Value;

/// An operation may wait for a commit's safe point; no request takes longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);
const ANSWER_BYTES_MAX: u64 = 16 << 20;

pub struct Rest {
    pub socket: PathBuf,
}

impl Rest {
    pub fn get(&self, path: &str) -> Result<Value> {
        self.call("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call("POST", path, Some(body))
    }

    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let failed = |cause: String| Error::new(ErrorKind::Io, format!("{method} {path}"), cause);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: unstun\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = self.exchange(&request).map_err(|e| failed(e.to_string()))?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| failed("no HTTP answer".into()))?;
        let status = head.split(' ').nth(1).unwrap_or("");
        let value =
            serde_json::from_str::<Value>(body).map_err(|e| failed(format!("status {status}: {e}")))?;
        if status.starts_with('2') {
            return Ok(value);
        }
        Err(failed(value["error"]["message"].as_str().unwrap_or(status).to_string()))
    }

    fn exchange(&self, request: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
}
