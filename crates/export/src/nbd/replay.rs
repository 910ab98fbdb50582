//! Drives the two state machines over arbitrary bytes, cut into arbitrary pieces. Fuzz targets, property tests and the
//! corpus share it. A trace depends on the bytes alone, so two cuts of one input must give equal traces.

use blk::volume::{ExportEntry, OtherState, VolumeInfo};
use blk::{Error, SECTOR};

use super::negotiate::{FoundExport, Negotiation, Step, Terms};
use super::proto::BLOCK_BYTES_PREFERRED;
use super::request::{Event, RequestParser};

/// How a handshake ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The input ended.
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
    /// All bytes that the server sent.
    pub output: Vec<u8>,
    /// How the handshake ended.
    pub ended: Ended,
    /// Input after the handshake; only if it ended with an agreement.
    pub rest: Vec<u8>,
}

/// One event of the transmission phase, with the payload that its owner took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedEvent {
    /// The event.
    pub event: Event,
    /// Data of a write; empty for other requests.
    pub payload: Vec<u8>,
}

/// Returns the exports of a replay: `disk` is writable, `old` is not.
pub fn catalogue() -> Vec<FoundExport> {
    let info = VolumeInfo {
        size_bytes: 1 << 20,
        read_only: false,
        preferred_bytes: BLOCK_BYTES_PREFERRED,
        fast_zero: true,
    };
    let old = VolumeInfo { read_only: true, size_bytes: 3 * SECTOR, ..info };
    let state = |name: &str| OtherState { name: name.to_string(), id: format!("id of {name}") };
    let export = |name: &str, info| FoundExport {
        name: name.to_string(),
        description: format!("the {name}"),
        info,
        states: vec![state("monday"), state("tuesday")],
    };
    vec![export("disk", info), export("old", old)]
}

/// Returns the terms of a client that negotiated everything on `disk`.
pub fn terms() -> Terms {
    Terms {
        export: "disk".to_string(),
        size_bytes: 1 << 20,
        read_only: false,
        fast_zero: true,
        structured: true,
        status: true,
        since: Vec::new(),
    }
}

/// Takes pieces off an input. `cut` gets the length of the rest, and returns that of the next piece.
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

/// Returns everything that a server would send and decide for a client that sends `input`.
pub fn negotiate(input: &[u8], cut: impl FnMut(usize) -> usize) -> HandshakeTrace {
    let offers = catalogue();
    let mut pieces = Pieces { input, cut };
    let mut machine = Negotiation::new(false);
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
            Step::StartTls => unreachable!("TLS is not offered"),
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

/// Returns every event of a transmission phase in which the client sends `input`, up to its disconnect or the first
/// invalid bytes.
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
