//! The client's side of the fixed newstyle negotiation. It blocks.
//!
//! Structured replies and metadata contexts are used where the server has both. A server without GO is asked by
//! EXPORT_NAME.

use std::io::{Read, Write};

use blk::{Error, ErrorKind, Result, SECTOR};

use crate::nbd::proto::*;
use crate::nbd::wire::{Fields, Put};

/// Longest reply to an option: a name and a description of full length fit.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Replies to one option before its end; the protocol has four kinds of information.
const REPLIES_MAX: usize = 64;
/// First eight bytes of an oldstyle server, after `NBDMAGIC`.
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Largest smallest block of a server ("Size constraints").
const BLOCK_BYTES_MIN_MAX: u32 = 64 << 10;

/// Properties of an export, as the server announced them and after a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes, below 2^63. It need not be a multiple of a sector.
    pub size_bytes: u64,
    /// Transmission flags; see the `TRANSMIT_` constants.
    pub flags: u16,
    /// Alignment of requests in bytes, a power of two up to 64 KiB.
    pub block_bytes_min: u32,
    /// Alignment in bytes below which requests may be slower, a power of two.
    pub block_bytes_preferred: u32,
    /// Longest read or write in bytes, a multiple of the smallest block.
    pub payload_bytes_max: u32,
    /// Description for people; may be empty.
    pub description: String,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// The selected metadata contexts: ID on this connection, and name.
    pub contexts: Vec<(u32, String)>,
}

impl Export {
    /// Returns whether the server refuses commands that change the export.
    pub fn is_read_only(&self) -> bool {
        self.flags & TRANSMIT_READ_ONLY != 0
    }

    /// Returns whether the server answers for the metadata context `name`.
    pub fn has_context(&self, name: &str) -> bool {
        self.context_id(name).is_some()
    }

    pub(super) fn context_id(&self, name: &str) -> Option<u32> {
        self.contexts.iter().find(|(_, known)| known == name).map(|(id, _)| *id)
    }

    fn new(size_bytes: u64, flags: u16) -> Export {
        Export {
            size_bytes,
            flags,
            block_bytes_min: BLOCK_BYTES_MIN,
            block_bytes_preferred: BLOCK_BYTES_PREFERRED,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            description: String::new(),
            structured: false,
            contexts: Vec::new(),
        }
    }

    fn check(self) -> Result<Export, String> {
        if i64::try_from(self.size_bytes).is_err() {
            return Err(format!("a size of {} bytes, 2^63-1 are the most", self.size_bytes));
        }
        match self.flags & TRANSMIT_HAS_FLAGS {
            0 => Err(format!("transmission flags {:#06x} without the first bit", self.flags)),
            _ => Ok(self),
        }
    }
}

/// "NBD_INFO_BLOCK_SIZE".
struct BlockSizes {
    min: u32,
    preferred: u32,
    payload_max: u32,
}

impl BlockSizes {
    fn check(min: u32, preferred: u32, max: u32) -> Result<BlockSizes, String> {
        if !min.is_power_of_two() || min > BLOCK_BYTES_MIN_MAX {
            return Err(format!("a smallest block of {min} bytes, expected a power of two up to 64 KiB"));
        }
        // This client aligns to sectors at least, because its volume does.
        let unit = min.max(SECTOR as u32);
        let payload_max = max.min(PAYLOAD_BYTES_MAX) / unit * unit;
        if payload_max == 0 {
            return Err(format!("a largest request of {max} bytes with blocks of {unit}"));
        }
        let is_valid = preferred.is_power_of_two() && (unit..=payload_max).contains(&preferred);
        let preferred = if is_valid { preferred } else { BLOCK_BYTES_PREFERRED.max(unit) };
        Ok(BlockSizes { min, preferred, payload_max })
    }
}

/// What the server has said of the export so far.
#[derive(Default)]
struct Information {
    export: Option<Export>,
    sizes: Option<BlockSizes>,
    description: String,
}

impl Information {
    fn export(self) -> Option<Export> {
        let mut export = self.export?;
        if let Some(BlockSizes { min, preferred, payload_max }) = self.sizes {
            export.block_bytes_min = min;
            export.block_bytes_preferred = preferred;
            export.payload_bytes_max = payload_max;
        }
        Some(Export { description: self.description, ..export })
    }
}

struct Handshake<'a, S> {
    stream: &'a mut S,
    place: &'a str,
}

/// Reply of a server to an option that it does not refuse by an unknown error.
type OptionReply = (u32, Vec<u8>);

/// Negotiates, and leaves the stream at the start of the transmission phase. `context` is selected beside
/// `base:allocation`.
pub(super) fn negotiate<S: Read + Write>(
    stream: &mut S,
    name: &str,
    context: Option<&str>,
    place: &str,
) -> Result<Export> {
    let mut handshake = Handshake { stream, place };
    let no_zeroes = handshake.greet()?;
    let structured = handshake.structured_replies()?;
    let mut contexts = Vec::new();
    if structured {
        let queries: Vec<&str> = [BASE_ALLOCATION].into_iter().chain(context).collect();
        contexts = handshake.select(name, &queries)?;
    }
    let export = match handshake.go(name)? {
        Some(export) => export,
        None => handshake.export_name(name, no_zeroes)?,
    };
    Ok(Export { structured, contexts, ..export })
}

impl<S: Read + Write> Handshake<'_, S> {
    fn wrong(&self, cause: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Io, self.place, format!("NBD negotiation: {}", cause.as_ref()))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let read = self.stream.read_exact(bytes);
        read.map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.wrong("the server hung up"),
            _ => self.wrong(e.to_string()),
        })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes).map(|()| bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.stream.write_all(bytes);
        sent.map_err(|e| self.wrong(e.to_string()))
    }

    /// Answers the greeting. Returns whether both sides omit the zeros after an answer to EXPORT_NAME.
    fn greet(&mut self) -> Result<bool> {
        let found = u64::from_be_bytes(self.take()?);
        if found != GREETING_MAGIC {
            return Err(self.wrong(format!("the server begins with {found:#018x}; it does not speak NBD")));
        }
        match u64::from_be_bytes(self.take()?) {
            OPTION_MAGIC => {}
            OLDSTYLE_MAGIC => {
                let cause = "the server speaks the oldstyle negotiation, which this client does not support";
                return Err(Error::unsupported(self.place, cause));
            }
            other => {
                return Err(self.wrong(format!("the greeting has {other:#018x} where IHAVEOPT belongs")));
            }
        }
        let flags = u16::from_be_bytes(self.take()?);
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            let cause =
                "the server does not speak the fixed newstyle negotiation, which this client requires";
            return Err(Error::unsupported(self.place, cause));
        }
        let agreed = flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        self.send(&u32::from(agreed).to_be_bytes())?;
        Ok(agreed & FLAG_NO_ZEROES != 0)
    }

    fn option(&mut self, option: u32, payload: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(OPTION_HEADER_BYTES + payload.len());
        message.put_u64(OPTION_MAGIC);
        message.put_u32(option);
        message.put_u32(payload.len() as u32);
        message.extend_from_slice(payload);
        self.send(&message)
    }

    fn reply(&mut self, option: u32) -> Result<OptionReply> {
        let magic = u64::from_be_bytes(self.take()?);
        if magic != OPTION_REPLY_MAGIC {
            return Err(self.wrong(format!("a reply begins with {magic:#018x}")));
        }
        let replied = u32::from_be_bytes(self.take()?);
        if replied != option {
            return Err(self.wrong(format!("a reply to option {replied}, expected one to {option}")));
        }
        let kind = u32::from_be_bytes(self.take()?);
        let len = u32::from_be_bytes(self.take()?);
        if len > REPLY_BYTES_MAX {
            return Err(self.wrong(format!("a reply of {len} bytes, {REPLY_BYTES_MAX} are the most")));
        }
        let mut payload = vec![0; len as usize];
        self.fill(&mut payload)?;
        if kind == REP_ACK && !payload.is_empty() {
            return Err(self.wrong(format!("an acknowledgement with {len} bytes of payload")));
        }
        Ok((kind, payload))
    }

    /// Returns the error of a refused option.
    fn refusal(&self, what: &str, kind: u32, payload: &[u8]) -> Error {
        let said = text(payload);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        match kind {
            REP_ERR_UNKNOWN => Error::not_found(self.place, format!("the server has no such export{said}")),
            REP_ERR_POLICY => Error::refused(self.place, format!("the server refuses the export{said}")),
            REP_ERR_TLS_REQD => Error::unsupported(
                self.place,
                format!("the server requires TLS, which is not supported by this client{said}"),
            ),
            REP_ERR_SHUTDOWN => self.wrong(format!("the server is shutting down{said}")),
            _ => self.wrong(format!("the server answers {what} with {kind:#x}{said}")),
        }
    }

    fn structured_replies(&mut self) -> Result<bool> {
        self.option(OPT_STRUCTURED_REPLY, &[])?;
        match self.reply(OPT_STRUCTURED_REPLY)? {
            (REP_ACK, _) => Ok(true),
            (kind @ (REP_ERR_TLS_REQD | REP_ERR_SHUTDOWN), payload) => {
                Err(self.refusal("STRUCTURED_REPLY", kind, &payload))
            }
            (kind, _) if kind & REP_ERROR != 0 => Ok(false),
            (kind, _) => Err(self.wrong(format!("STRUCTURED_REPLY was answered with {kind:#x}"))),
        }
    }

    /// Selects the metadata contexts that the server has of `queries`. A server that refuses has none; if the reason is the
    /// export, GO will report it.
    fn select(&mut self, name: &str, queries: &[&str]) -> Result<Vec<(u32, String)>> {
        let mut payload = string(name);
        payload.put_u32(queries.len() as u32);
        queries.iter().for_each(|query| payload.extend(string(query)));
        self.option(OPT_SET_META_CONTEXT, &payload)?;
        let mut contexts: Vec<(u32, String)> = Vec::new();
        loop {
            let (kind, payload) = self.reply(OPT_SET_META_CONTEXT)?;
            match kind {
                REP_ACK => return Ok(contexts),
                REP_META_CONTEXT => {
                    let (id, name) = self.context(&payload, queries)?;
                    if contexts.iter().any(|(known, other)| *known == id || *other == name) {
                        return Err(self.wrong(format!("the context {name:?} or its ID {id} is there twice")));
                    }
                    contexts.push((id, name));
                }
                _ if kind & REP_ERROR != 0 => return Ok(Vec::new()),
                _ => return Err(self.wrong(format!("SET_META_CONTEXT was answered with {kind:#x}"))),
            }
        }
    }

    fn context(&self, payload: &[u8], queries: &[&str]) -> Result<(u32, String)> {
        let mut fields = Fields::new(payload);
        let id = fields.u32().ok_or_else(|| self.wrong("a context without an ID"))?;
        let name = text(&payload[4..]);
        match queries.contains(&name.as_str()) {
            true => Ok((id, name)),
            false => Err(self.wrong(format!("the server selects the context {name:?} of its own accord"))),
        }
    }

    /// Requests the export. Returns None if the server does not know GO.
    fn go(&mut self, name: &str) -> Result<Option<Export>> {
        let mut payload = string(name);
        payload.put_u16(2);
        payload.put_u16(INFO_BLOCK_SIZE);
        payload.put_u16(INFO_DESCRIPTION);
        self.option(OPT_GO, &payload)?;
        let mut found = Information::default();
        for _ in 0..REPLIES_MAX {
            let (kind, payload) = self.reply(OPT_GO)?;
            match kind {
                REP_ACK => {
                    let export = found.export();
                    return export.map(Some).ok_or_else(|| self.wrong("GO was granted without a size"));
                }
                REP_INFO => self.information(&payload, &mut found)?,
                REP_ERR_UNSUP => return Ok(None),
                _ => return Err(self.refusal("GO", kind, &payload)),
            }
        }
        Err(self.wrong(format!("more than {REPLIES_MAX} replies to GO")))
    }

    fn information(&self, payload: &[u8], found: &mut Information) -> Result<()> {
        let mut fields = Fields::new(payload);
        match fields.u16() {
            Some(INFO_EXPORT) => {
                let (Some(size), Some(flags), 0) = (fields.u64(), fields.u16(), fields.left()) else {
                    return Err(self.wrong(format!("a size in {} bytes, expected 12", payload.len())));
                };
                found.export = Some(Export::new(size, flags).check().map_err(|cause| self.wrong(cause))?);
            }
            Some(INFO_BLOCK_SIZE) => {
                let (Some(min), Some(preferred), Some(max), 0) =
                    (fields.u32(), fields.u32(), fields.u32(), fields.left())
                else {
                    return Err(self.wrong(format!("block sizes in {} bytes, expected 14", payload.len())));
                };
                let sizes = BlockSizes::check(min, preferred, max);
                found.sizes = Some(sizes.map_err(|cause| self.wrong(cause))?);
            }
            Some(INFO_DESCRIPTION) => found.description = text(&payload[2..]),
            Some(_) => {}
            None => return Err(self.wrong("a piece of information without a type")),
        }
        Ok(())
    }

    /// Requests the export of a server that does not know GO. A server without the export hangs up.
    fn export_name(&mut self, name: &str, no_zeroes: bool) -> Result<Export> {
        self.option(OPT_EXPORT_NAME, name.as_bytes())?;
        let size_bytes = u64::from_be_bytes(self.take()?);
        let flags = u16::from_be_bytes(self.take()?);
        if !no_zeroes {
            let _: [u8; EXPORT_NAME_PADDING] = self.take()?;
        }
        Export::new(size_bytes, flags).check().map_err(|cause| self.wrong(cause))
    }
}

/// "Conventions": a string with its length.
fn string(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + text.len());
    bytes.put_u32(text.len() as u32);
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Returns a text of the server for a message or a comparison. A valid one is not changed.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(STRING_BYTES_MAX)]).into_owned()
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
