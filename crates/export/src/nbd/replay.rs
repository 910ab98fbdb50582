//! Drives the two machines over arbitrary bytes, cut into arbitrary pieces: what fuzz targets, properties and the
//! corpus share. A trace depends on the bytes alone, so two cuts of one input must give equal traces.

use blk::volume::{ExportEntry, VolumeInfo};
use blk::{Error, SECTOR};

use super::negotiate::{FoundExport, Negotiation, Step, Terms};
use super::proto::BLOCK_BYTES_PREFERRED;
use super::request::{Event, RequestParser};

/// How a handshake ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The input did.
    Hungry,
    /// The client ended the handshake.
    Left,
    /// The server closed the connection, for this reason.
    Closed(&'static str),
    /// Transmission begins.
    Agreed(Terms),
}

/// The trace of one handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeTrace {
    /// All the server sent.
    pub output: Vec<u8>,
    /// Tells what the end was.
    pub ended: Ended,
    /// Input after the handshake; only when agreed.
    pub rest: Vec<u8>,
}

/// One event of the transmission phase, with the payload its owner took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedEvent {
    /// The request.
    pub event: Event,
    /// Data of a write; empty for other requests.
    pub payload: Vec<u8>,
}

/// The exports of a replay: `disk` is writable, `old` is not.
pub fn catalogue() -> Vec<FoundExport> {
    let info = VolumeInfo {
        size_bytes: 1 << 20,
        read_only: false,
        preferred_bytes: BLOCK_BYTES_PREFERRED,
        fast_zero: true,
    };
    let old = VolumeInfo { read_only: true, size_bytes: 3 * SECTOR, ..info };
    let export =
        |name: &str, info| FoundExport { name: name.to_string(), description: format!("the {name}"), info };
    vec![export("disk", info), export("old", old)]
}

/// Terms of a client that negotiated everything on `disk`.
pub fn terms() -> Terms {
    Terms {
        export: "disk".to_string(),
        size_bytes: 1 << 20,
        read_only: false,
        fast_zero: true,
        structured: true,
        status: true,
    }
}

/// Takes pieces off an input; `cut` is asked for each one's length and given what is left.
struct Pieces<'a, F> {
    input: &'a [u8],
    cut: F,
}

impl<'a, F: FnMut(usize) -> usize> Pieces<'a, F> {
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.input.is_empty() {
            return None;
        }
        let len = (self.cut)(self.input.len()).clamp(1, self.input.len());
        let (piece, rest) = self.input.split_at(len);
        self.input = rest;
        Some(piece)
    }
}

/// Everything a server would send and decide for a client that sends `input`.
pub fn negotiate(input: &[u8], cut: impl FnMut(usize) -> usize) -> HandshakeTrace {
    let offers = catalogue();
    let mut pieces = Pieces { input, cut };
    let mut machine = Negotiation::new();
    let mut output = machine.take_output();
    let ended = loop {
        match machine.step() {
            Step::Answered => {}
            Step::Receive => match pieces.next() {
                Some(piece) => machine.feed(piece),
                None => break Ended::Hungry,
            },
            Step::List => machine.list(&offers.iter().map(entry).collect::<Vec<_>>()),
            Step::Lookup(name) => match offers.iter().find(|export| export.name == name) {
                None => machine.not_found(&Error::not_found("", "no such export")),
                Some(export) => {
                    if let Some(terms) = machine.found(export) {
                        break Ended::Agreed(terms);
                    }
                }
            },
            Step::Left => break Ended::Left,
            Step::Close(why) => break Ended::Closed(why),
        }
        output.extend(machine.take_output());
    };
    output.extend(machine.take_output());
    let rest = match ended {
        Ended::Agreed(_) => [&machine.into_rest(), pieces.input].concat(),
        _ => Vec::new(),
    };
    HandshakeTrace { output, ended, rest }
}

fn entry(export: &FoundExport) -> ExportEntry {
    ExportEntry { name: export.name.clone(), description: export.description.clone() }
}

/// Every event of a transmission phase in which the client sends `input`, up to its farewell or first nonsense.
pub fn transmit(terms: Terms, input: &[u8], cut: impl FnMut(usize) -> usize) -> Vec<ReplayedEvent> {
    let mut pieces = Pieces { input, cut };
    let mut parser = RequestParser::new(terms);
    let mut window = Vec::new();
    let mut seen = Vec::new();
    loop {
        let (used, event) = parser.next(&window);
        window.drain(..used);
        let mut payload = Vec::new();
        match &event {
            Event::Receive => match pieces.next() {
                Some(piece) => {
                    window.extend_from_slice(piece);
                    continue;
                }
                None => return seen,
            },
            Event::Write { len, .. } => {
                while window.len() < *len as usize
                    && let Some(piece) = pieces.next()
                {
                    window.extend_from_slice(piece);
                }
                payload = window.drain(..window.len().min(*len as usize)).collect();
            }
            Event::Command { .. } | Event::Refused { .. } | Event::Disconnect | Event::Garbage(_) => {}
        }
        let last = matches!(event, Event::Disconnect | Event::Garbage(_));
        seen.push(ReplayedEvent { event, payload });
        if last {
            return seen;
        }
    }
}
