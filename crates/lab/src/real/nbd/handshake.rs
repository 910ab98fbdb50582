//! Fixed newstyle negotiation, client side, with one GO. It blocks, and it ends before any load runs.
//!
//! The server is a program under test: each of its replies is checked, and every length has a limit.

use std::io::{Read, Write};

use blk::{Error, ErrorKind, Result};
use export::nbd::proto::*;

/// Longest reply to an option; no server sends a longer one.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Information blocks before the final ACK; the protocol has four kinds.
const REPLIES_MAX: usize = 64;

/// Properties of the export, as the server announced them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Export {
    pub size_bytes: u64,
    pub flags: u16,
}

struct Handshake<'a, S> {
    stream: &'a mut S,
    place: &'a str,
}

/// Negotiates and leaves the stream at the start of the transmission phase. Errors: `NotFound` where the server has no
/// such export.
pub(super) fn negotiate<S: Read + Write>(stream: &mut S, name: &str, place: &str) -> Result<Export> {
    let mut handshake = Handshake { stream, place };
    handshake.greet()?;
    let mut payload = Vec::with_capacity(name.len() + 6);
    payload.extend_from_slice(&(name.len() as u32).to_be_bytes());
    payload.extend_from_slice(name.as_bytes());
    payload.extend_from_slice(&0u16.to_be_bytes());
    handshake.option(OPT_GO, &payload)?;
    handshake.reply_to_go(name)
}

impl<S: Read + Write> Handshake<'_, S> {
    fn wrong(&self, cause: String) -> Error {
        Error::new(ErrorKind::Io, self.place, format!("NBD negotiation: {cause}"))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let read = self.stream.read_exact(&mut bytes);
        read.map_err(|e| self.wrong(e.to_string()))?;
        Ok(bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.stream.write_all(bytes);
        sent.map_err(|e| self.wrong(e.to_string()))
    }

    fn greet(&mut self) -> Result<()> {
        for (magic, what) in [(GREETING_MAGIC, "NBDMAGIC"), (OPTION_MAGIC, "IHAVEOPT")] {
            let found = u64::from_be_bytes(self.take()?);
            if found != magic {
                return Err(self.wrong(format!("the greeting has {found:#018x} where {what} belongs")));
            }
        }
        let flags = u16::from_be_bytes(self.take()?);
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(self.wrong("the server does not speak fixed newstyle".into()));
        }
        let flags = FLAG_FIXED_NEWSTYLE | (flags & FLAG_NO_ZEROES);
        self.send(&u32::from(flags).to_be_bytes())
    }

    fn option(&mut self, option: u32, payload: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(OPTION_HEADER_BYTES + payload.len());
        message.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        message.extend_from_slice(payload);
        self.send(&message)
    }

    fn reply_to_go(&mut self, name: &str) -> Result<Export> {
        let mut export = None;
        for _ in 0..REPLIES_MAX {
            let (kind, payload) = self.reply()?;
            match kind {
                REP_ACK => return export.ok_or_else(|| self.wrong("GO was granted without a size".into())),
                REP_INFO if payload.len() >= 12 && payload[..2] == INFO_EXPORT.to_be_bytes() => {
                    let size_bytes = u64::from_be_bytes(payload[2..10].try_into().expect("eight bytes"));
                    let flags = u16::from_be_bytes(payload[10..12].try_into().expect("two bytes"));
                    export = Some(Export { size_bytes, flags });
                }
                REP_INFO => {}
                REP_ERR_UNKNOWN => {
                    let cause = format!("the server has no export {name:?}: {}", text(&payload));
                    return Err(Error::not_found(self.place, cause));
                }
                other => return Err(self.wrong(format!("GO was answered by {other:#x}: {}", text(&payload)))),
            }
        }
        Err(self.wrong(format!("more than {REPLIES_MAX} replies to GO")))
    }

    fn reply(&mut self) -> Result<(u32, Vec<u8>)> {
        let magic = u64::from_be_bytes(self.take()?);
        if magic != OPTION_REPLY_MAGIC {
            return Err(self.wrong(format!("a reply begins with {magic:#018x}")));
        }
        let _option: [u8; 4] = self.take()?;
        let kind = u32::from_be_bytes(self.take()?);
        let len = u32::from_be_bytes(self.take()?);
        if len > REPLY_BYTES_MAX {
            return Err(self.wrong(format!("a reply of {len} bytes, {REPLY_BYTES_MAX} are the most")));
        }
        let mut payload = vec![0; len as usize];
        let read = self.stream.read_exact(&mut payload);
        read.map_err(|e| self.wrong(e.to_string()))?;
        Ok((kind, payload))
    }
}

fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(200)]).into_owned()
}
