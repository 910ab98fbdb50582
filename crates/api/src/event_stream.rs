//! Stream of the events of all VMs, as the daemon sends it: server-sent events, each with its ID and one event as JSON.

use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::Event;
use crate::error::{Error, ErrorKind, Result};

/// End of a message.
const END: &[u8] = b"\n\n";
/// Maximum size of a message. An event has a line for each disk, of about 100 bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// An event, with the ID after which a stream can continue.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamedEvent {
    pub id: String,
    pub event: Event,
}

pub struct EventStream {
    body: Incoming,
    received: Vec<u8>,
}

impl EventStream {
    pub(crate) fn new(body: Incoming) -> EventStream {
        EventStream { body, received: Vec::new() }
    }

    /// Returns the next event. None: the stream has ended, because the daemon ends, the client was too slow, or nothing is to
    /// be followed.
    pub async fn next(&mut self) -> Result<Option<StreamedEvent>> {
        loop {
            while let Some(message) = take_message(&mut self.received) {
                if let Some(event) = parse(&message)? {
                    return Ok(Some(event));
                }
            }
            if self.received.len() > MESSAGE_BYTES_MAX {
                return Err(broken(format!("a message of more than {MESSAGE_BYTES_MAX} bytes")));
            }
            // A daemon that ended in the middle of a message has ended the stream.
            let Some(Ok(frame)) = self.body.frame().await else { return Ok(None) };
            self.received.extend(frame.into_data().unwrap_or_default());
        }
    }
}

fn broken(cause: String) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the daemon's stream of events: {cause}"))
}

/// Takes the first whole message out of the received bytes.
fn take_message(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = received.windows(END.len()).position(|bytes| bytes == END)?;
    let rest = received.split_off(end + END.len());
    Some(std::mem::replace(received, rest))
}

/// Returns the event of a message; None: a comment, which keeps the connection alive.
fn parse(message: &[u8]) -> Result<Option<StreamedEvent>> {
    let text = std::str::from_utf8(message).map_err(|e| broken(e.to_string()))?;
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.strip_prefix(' ').unwrap_or(value))
    };
    let Some((id, data)) = field("id").zip(field("data")) else { return Ok(None) };
    let event = serde_json::from_str(data).map_err(|e| broken(format!("{data:?}: {e}")))?;
    Ok(Some(StreamedEvent { id: id.to_owned(), event }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str =
        r#"{"id":1,"time":"2026-11-20T12:00:00Z","vm":"web","operation":"take","stun_us":2,"disks":[]}"#;

    #[test]
    fn messages_are_taken_whole_and_comments_passed_over() {
        let sent = format!(":\n\nid: 1.2.3\nevent: take\ndata: {EVENT}\n\nid: 4");
        let mut received = sent.into_bytes();
        let mut next = || take_message(&mut received).map(|message| parse(&message).unwrap());
        assert_eq!(next(), Some(None));
        let event = next().unwrap().unwrap();
        assert_eq!((event.id.as_str(), event.event.vm.as_str()), ("1.2.3", "web"));
        assert_eq!(next(), None);
        assert!(parse(b"id: 1\ndata: {\n\n").unwrap_err().message.contains("stream of events"));
    }
}
