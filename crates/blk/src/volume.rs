//! The contract of a served disk: what a front end (NBD, later vhost-user) may ask of it.
//!
//! No snapshot words here: a front end serves a volume and does not know where it comes from. Ranges are bytes and
//! multiples of [`SECTOR`](crate::SECTOR) inside the size; the front end checks that before it calls.

use std::ops::Range;
use std::rc::Rc;

use crate::buf::{Buf, Slice};
use crate::error::Result;
use crate::exec::Local;
use crate::peer::Peer;

/// What a front end tells a client of a volume when the client attaches. Growth reaches clients that attach again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeInfo {
    /// A multiple of the sector.
    pub size_bytes: u64,
    /// Writes, discards and zeroes fail with `Refused`.
    pub read_only: bool,
    /// Preferred I/O size; smaller works.
    pub preferred_bytes: u32,
    /// Zeroing without writing zeros is possible, so "fast zero" may be promised.
    pub fast_zero: bool,
}

/// Pieces after which a volume ends its answer to [`Volume::status`].
pub const STATUS_PIECES_MAX: usize = 4096;
/// Memory that [`Volume::status`] may take while it is at work.
pub const STATUS_BYTES_MAX: usize = 1 << 20;

/// One piece of the answer to "what is in this range".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockStatus {
    /// Length in bytes, a multiple of the sector.
    pub len: u64,
    /// Nothing was written there. Space that is reserved and was never written may be called a hole, too.
    pub hole: bool,
    /// Reads as zeros.
    pub zero: bool,
}

/// How a range is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroMode {
    /// The range must stay allocated.
    pub no_hole: bool,
    /// Fail with `Unsupported` rather than write zeros.
    pub fast_only: bool,
}

/// A disk, or a sealed state of one, as served. Completion does not mean durable: `flush` does, for every write
/// completed before it was called, on any connection.
pub trait Volume {
    /// Returns the properties that a front end sends to a client before its first request.
    fn info(&self) -> VolumeInfo;

    /// Fills the buffer from `offset`.
    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)>;

    /// Writes the data at `offset`. Overlapping requests take effect in any order.
    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>>;

    /// Makes every write durable that was completed before this call, those of other clients included.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>>;

    /// The guest does not need the range's content any more. A hint.
    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>>;

    /// Makes the range read as zeros. `Unsupported` only if `mode` requires speed.
    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>>;

    /// Pieces that cover `range` from its start, at least one, perhaps not to its end: the volume bounds its work and the
    /// answer, at [`STATUS_PIECES_MAX`] and what one step finds beyond, and at [`STATUS_BYTES_MAX`] of memory.
    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>>;

    /// Ends the requests that wait for space. Their client is gone, so the answers are not read.
    fn abandon(&self) {}
}

/// A volume and its export name, as a front end lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportEntry {
    /// The name that a client requests.
    pub name: String,
    /// For people; empty where there is nothing to say.
    pub description: String,
}

/// The catalogue of a front end. An attachment is counted until it is dropped, so that what is in use is known.
pub trait Exports {
    /// Lists the exports for a client.
    fn list(&self) -> Vec<ExportEntry>;

    /// Returns the description of the export `name`, empty where there is none. Clients request it before they attach: where
    /// there can be thousands of exports it is not looked up in a list of all.
    fn description(&self, name: &str) -> String {
        let found = self.list().into_iter().find(|entry| entry.name == name);
        found.map(|entry| entry.description).unwrap_or_default()
    }

    /// Names the group of clients whose share of the core and of the connections the clients of this export have together. Its
    /// exports compete with each other for that share, not with other groups.
    fn client_group(&self, name: &str) -> String {
        name.to_string()
    }

    /// Attaches a client to the export `name`.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown name; `Locked` or `Refused`, with the reason, for a volume that this client
    /// may not use now.
    fn attach<'a>(&'a self, name: &'a str, client: &'a Peer) -> Local<'a, Result<Attachment>>;
}

/// One client on one volume. `token` is dropped last; the catalogue hangs its bookkeeping on it.
pub struct Attachment {
    /// The volume that the client's requests go to.
    pub volume: Rc<dyn Volume>,
    /// Dropped when the client is gone.
    pub token: Box<dyn std::any::Any>,
}
