//! The contract of a layer: formats answer *where*, generic code does the I/O.
//!
//! All ranges are bytes on the guest's disk and multiples of [`SECTOR`](crate::SECTOR); `Where::Data` offsets are
//! bytes in one of the layer's files. A layer keeps its tables, never guest data.
//!
//! Durability, the part that must not be got wrong:
//! * a table entry may reach the device only after the data it points to is durable;
//! * a pointer to a table may reach the device only after that table is durable;
//! * a released region's cleared pointer may reach the device only after the parent's copy is durable (the caller
//!   sees to that before `release`).
//!
//! The generic flush therefore runs in this order, for one layer at a time (never two at once):
//! `stages()` is taken, `stages.early` is written, every file is flushed, then each batch of `stages.late` is written
//! with a flush after it, then `settle`. What `stages()` captured is exactly the entries published before the call;
//! entries published later belong to the next flush, because their data may not be covered by this one.

use std::ops::Range;

use crate::buf::Slice;
use crate::error::Result;
use crate::exec::Local;
use crate::file::File;

/// Where a range of the disk lives, as one layer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// This layer does not hold it: ask the parent, and at the base it reads as zeros.
    Parent,
    /// This layer says it reads as zeros, whatever the parent holds.
    Zero,
    /// Held here, in one of the layer's files.
    Data {
        /// Index into `Layer::files`.
        file: u16,
        /// Bytes from the start of that file.
        offset: u64,
    },
}

/// A maximal piece of the disk with one answer. `Data` runs are contiguous in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First byte on the disk.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Where all of the run is; for `Data`, the place of its first byte.
    pub place: Where,
}

impl Run {
    /// Returns the byte on the disk after the last one.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// What does not change about a layer while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Size of the disk.
    pub size_bytes: u64,
    /// Unit of allocation; a first write to part of a grain needs the rest of it filled.
    pub grain_bytes: u64,
    /// What one table covers: the unit of `populated` and `release`.
    pub region_bytes: u64,
    /// Holds everything by position (flat) and so never answers `Parent`, never places, publishes or releases.
    pub flat: bool,
    /// Opened for writing.
    pub writable: bool,
    /// A range can be made to read as zeros, and its space given back, without writing zeros.
    pub punches: bool,
}

/// Space taken for a first write: where the caller puts the data before it publishes.
///
/// `runs` cover the placed range grain by grain (so it may begin before and end after the range asked for); `fills`
/// are the parts outside the range asked for, which the caller fills with what the parent shows there.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Where the data goes, in order of the disk; `place` is always `Where::Data`.
    pub runs: Vec<Run>,
    /// Bytes of the disk, in order.
    pub fills: Vec<Range<u64>>,
}

/// Space and entries of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of the disk held here.
    pub held_bytes: u64,
    /// Bytes of its files in use: data and tables, not what was grown ahead.
    pub file_bytes: u64,
}

/// One write of table bytes.
#[derive(Debug, Clone)]
pub struct TableWrite {
    /// Index into `Layer::files`.
    pub file: u16,
    /// Bytes from the start of that file.
    pub offset: u64,
    /// The bytes as `stages()` captured them.
    pub data: Slice,
}

/// The table writes of one flush.
#[derive(Debug, Default)]
pub struct Stages {
    /// May be written before the data is durable: nothing durable points to them yet.
    pub early: Vec<TableWrite>,
    /// Batches for after the data flush; each is followed by a flush of its own.
    pub late: Vec<Vec<TableWrite>>,
    /// The layer's own mark of what was captured.
    pub ticket: u64,
}

impl Stages {
    /// Returns whether the flush has no table to write.
    pub fn is_empty(&self) -> bool {
        self.early.is_empty() && self.late.iter().all(Vec::is_empty)
    }
}

/// One file set of a disk. See the module's head for the durability order.
pub trait Layer {
    /// Its name in its VM's home: for messages and for the manifest.
    fn name(&self) -> &str;

    /// Returns the facts about the layer that callers plan with; they stay the same while it is open.
    fn shape(&self) -> Shape;

    /// The files `Where::Data` and `TableWrite` refer to. Never empty, never changes.
    fn files(&self) -> &[File];

    /// Runs that cover exactly `range`, in order. May read tables; never answers from an unverified one:
    /// an entry outside the file, inside the metadata or off the grain is `Damaged`.
    fn lookup(&self, range: Range<u64>) -> Local<'_, Result<Vec<Run>>>;

    /// Whether the region holds anything; from the directory, no I/O. Always true for flat.
    fn populated(&self, region: u64) -> bool;

    /// Takes space for a range none of which is held here. May read the region's table and may wait for the file to
    /// grow. `NoSpace` changes nothing and may be tried again. The caller holds the range, so that it is not placed twice.
    fn place(&self, range: Range<u64>) -> Local<'_, Result<Placement>>;

    /// The placement's data is complete (not yet durable): its entries become visible and dirty. Never waits, which
    /// is why `place` has loaded, and keeps, the tables concerned.
    fn publish(&self, placement: &Placement);

    /// The placement's data will not come: its space is leaked until the file is closed, its tables are let go.
    fn abandon(&self, placement: &Placement);

    /// The region's content is durable elsewhere: forget its table, and clear the pointer to it at the next flush.
    /// Dirty entries of the region are dropped with it and never written again.
    fn release(&self, region: u64);

    /// Memory of tables that cannot leave it before a flush has written them, and of copies that a flush under way has
    /// taken of them.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Removes what is kept of the layer in the host's memory, and keeps nothing more: its files are being removed, or a
    /// flush has failed, after which it is unknown what of the data is on the device.
    fn end_log(&self) {}

    /// Whether an earlier process ended without a loss of power, and writes that it had answered may be lost all the same.
    fn has_lost_writes(&self) -> bool {
        false
    }

    /// Clients have been notified of the lost writes: from here on the log keeps what is answered.
    fn begin_log(&self) -> Local<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Captures the dirty tables; see the module's head.
    fn stages(&self) -> Stages;

    /// The captured tables are durable. Not called when the flush failed: they stay dirty then.
    fn settle(&self, ticket: u64);

    /// Writes what a clean file must say (header, free pointer, no unclean mark) and flushes. All tables are clean
    /// when this is called. The layer may still be read; and written again, which makes it unclean again first.
    fn seal(&self) -> Local<'_, Result<()>>;

    /// Returns to the datastore what was allocated ahead of need. At any time; a later first write allocates again.
    fn give_back(&self) -> Local<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the space that the layer takes now; no I/O.
    fn usage(&self) -> Usage;

    /// Checks every cross-reference, one finding per line of the result; empty is sound.
    fn check(&self) -> Local<'_, Result<Vec<String>>>;
}
