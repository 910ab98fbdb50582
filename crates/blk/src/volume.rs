//! The contract of a served disk: the operations that a front end (NBD, vhost-user) may call.
//!
//! It contains no terms of snapshots: a front end serves a volume and does not depend on its origin. Ranges are in
//! bytes, multiples of [`SECTOR`](crate::SECTOR), and within the size; the front end checks that before it calls.

use std::ops::Range;
use std::rc::Rc;

use crate::buf::{Buf, Slice};
use crate::error::Result;
use crate::exec::Local;
use crate::peer::Peer;

/// Properties that a front end sends to a client when it attaches. A client sees a larger size when it attaches again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Size of the disk, a multiple of the sector.
    pub size_bytes: u64,
    /// Writes, discards and zeroes fail with `Refused`.
    pub read_only: bool,
    /// Preferred size of I/O; smaller I/O works too.
    pub preferred_bytes: u32,
    /// Zeroing needs no writes of zeros, so "fast zero" may be advertised.
    pub fast_zero: bool,
}

/// Pieces after which a volume ends its answer to [`Volume::status`].
pub const STATUS_PIECES_MAX: usize = 4096;
/// Memory that [`Volume::status`] may use during a call, in bytes.
pub const STATUS_BYTES_MAX: usize = 1 << 20;

/// Status of one piece of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockStatus {
    /// Length in bytes, a multiple of the sector.
    pub len: u64,
    /// Nothing was written there. Space that is reserved and was never written may count as a hole too.
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

/// A running disk, or a sealed state of one. A completed write is not durable before a `flush`, which covers every
/// write completed before it was called, on any connection.
pub trait Volume {
    /// Returns the properties that a front end sends to a client before its first request.
    fn info(&self) -> VolumeInfo;

    /// Fills the buffer from `offset`.
    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)>;

    /// Writes the data at `offset`. Overlapping requests take effect in any order.
    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>>;

    /// Makes durable every write that completed before this call, including those of other clients.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>>;

    /// Tells the volume that the guest does not need the range's content any more. This is a hint; without an
    /// implementation it has no effect.
    fn discard(self: Rc<Self>, _range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Makes the range read as zeros. `Unsupported` only if `mode` requires speed.
    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>>;

    /// Returns pieces that cover `range` from its start: at least one, possibly not up to its end. The volume limits
    /// its work and the answer to [`STATUS_PIECES_MAX`] pieces and those that one further step finds, and to
    /// [`STATUS_BYTES_MAX`] of memory. Without an implementation the whole range counts as data.
    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        let all = BlockStatus { len: range.end - range.start, hole: false, zero: false };
        Box::pin(async move { Ok(vec![all]) })
    }

    /// Ends the requests that wait for space. Their client has disconnected, so the answers are not read.
    fn abandon(&self) {}

    /// Ends the requests that wait for space now. Their client stays connected and waits for their end, as a guest that
    /// resets its device does; later requests may wait again.
    fn end_waits(&self) {}
}

/// Another state of an export's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherState {
    /// Name for clients.
    pub name: String,
    /// Identity, which a later state of that name does not have.
    pub id: String,
}

/// Comparison of an export with other states of its disk, by the maps of both.
pub trait Changes {
    /// Returns the states with which the export can be compared.
    fn states(&self) -> Vec<OtherState>;

    /// Returns the parts of `range` that may read differently in the state `id`, ascending and apart, and the end of what was
    /// compared: after the range's start, and not after its end.
    ///
    /// # Errors
    /// `NotFound` if the state was removed; `Refused` while the maps cannot be compared.
    fn since<'a>(&'a self, id: &'a str, range: Range<u64>) -> Local<'a, Result<(Vec<Range<u64>>, u64)>>;
}

/// An export in a front end's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportEntry {
    /// Name under which a client attaches.
    pub name: String,
    /// Description for people; may be empty.
    pub description: String,
}

/// The exports that a front end offers. An attachment counts as a user of its volume until it is dropped.
pub trait Exports {
    /// Lists the exports, for a client that requests the list.
    fn list(&self) -> Vec<ExportEntry>;

    /// Lists the exports of all cores, where several serve one catalogue.
    fn list_all(&self) -> Local<'_, Vec<ExportEntry>> {
        Box::pin(std::future::ready(self.list()))
    }

    /// Returns the description of the export `name`, empty if there is none. Clients request it before they attach. It
    /// is not looked up in a list of all exports, which can be thousands.
    fn description(&self, name: &str) -> String {
        let found = self.list().into_iter().find(|entry| entry.name == name);
        found.map(|entry| entry.description).unwrap_or_default()
    }

    /// Names the party to which the export belongs. The clients of one party share its part of the core and of the
    /// connections: its exports compete with each other and not with other parties.
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

/// One client on one volume. `token` is dropped last, and ends the catalogue's count of the client.
pub struct Attachment {
    /// The volume that serves the client's requests.
    pub volume: Rc<dyn Volume>,
    /// Comparison with other states of the disk, if there may be such.
    pub changes: Option<Rc<dyn Changes>>,
    /// Dropped when the client has disconnected.
    pub token: Box<dyn std::any::Any>,
}
