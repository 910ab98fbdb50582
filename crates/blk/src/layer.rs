//! The contract of a layer. A format answers *where* data is; generic code does the I/O.
//!
//! All ranges are bytes on the guest's disk, and multiples of [`SECTOR`](crate::SECTOR). Offsets in `Where::Data` are
//! bytes in one of the layer's files. A layer keeps its tables and no guest data.
//!
//! Rules of durability:
//! * A table entry may reach the device only after the data that it points to is durable.
//! * A pointer to a table may reach the device only after that table is durable.
//! * The cleared pointer of a released region may reach the device only after the parent's copy is durable. The caller
//!   ensures this before `release`.
//!
//! The generic flush therefore has these steps, for one layer at a time (never two at once): take `stages()`, write
//! `stages.early`, flush every file, write each batch of `stages.late` with a flush after it, then call `settle`.
//! `stages()` captures exactly the entries that were published before the call. Entries published later belong to the
//! next flush, because this one may not cover their data.

use std::ops::Range;

use crate::buf::Slice;
use crate::error::Result;
use crate::exec::Local;
use crate::file::File;

/// Location of a range of the disk, as one layer knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The layer does not contain the range; its parent may. At the base, the range reads as zeros.
    Parent,
    /// The range reads as zeros, whatever the parent contains.
    Zero,
    /// The range is in one of the layer's files.
    Data {
        /// Index into `Layer::files`.
        file: u16,
        /// Bytes from the start of that file.
        offset: u64,
    },
}

/// A maximal range of the disk with one location. `Data` runs are contiguous in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First byte on the disk.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Location of the run; for `Data`, that of its first byte.
    pub place: Where,
}

impl Run {
    /// Returns the byte on the disk after the last one.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Properties of a layer that do not change while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Size of the disk.
    pub size_bytes: u64,
    /// Unit of allocation. A first write to part of a grain needs the rest of the grain filled.
    pub grain_bytes: u64,
    /// Range of the disk that one table covers: the unit of `populated` and `release`.
    pub region_bytes: u64,
    /// The layer contains everything by position (flat). It never answers `Parent`, and never places, publishes or
    /// releases.
    pub flat: bool,
    /// The layer is open for writing.
    pub writable: bool,
    /// A range can be made to read as zeros, and its space freed, without writing zeros.
    pub punches: bool,
}

/// Space reserved for a first write. The caller writes the data there before it publishes the placement.
///
/// `runs` cover the placed range in whole grains, so they may begin before and end after the requested range. `fills`
/// are the parts outside the requested range; the caller fills them with the parent's data.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Destinations of the data, in order of the disk. `place` is always `Where::Data`.
    pub runs: Vec<Run>,
    /// Ranges of the disk in bytes, in order.
    pub fills: Vec<Range<u64>>,
}

/// Space that one layer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of the disk that the layer contains.
    pub held_bytes: u64,
    /// Bytes of its files in use: data and tables, without space allocated ahead.
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

/// Table writes of one flush.
#[derive(Debug, Default)]
pub struct Stages {
    /// Writes that may precede the data's flush: nothing durable points to these tables yet.
    pub early: Vec<TableWrite>,
    /// Batches to write after the data's flush. Each is followed by a flush of its own.
    pub late: Vec<Vec<TableWrite>>,
    /// Identifies the captured entries to the layer.
    pub ticket: u64,
}

impl Stages {
    /// Returns whether the flush has no table to write.
    pub fn is_empty(&self) -> bool {
        self.early.is_empty() && self.late.iter().all(Vec::is_empty)
    }
}

/// One file set of a disk. The module documentation has the order of durability.
pub trait Layer {
    /// Returns the layer's name in its VM's home, for messages and for the manifest.
    fn name(&self) -> &str;

    /// Returns the properties of the layer. They do not change while it is open.
    fn shape(&self) -> Shape;

    /// Returns the files to which `Where::Data` and `TableWrite` refer. The slice is never empty and never changes.
    fn files(&self) -> &[File];

    /// Returns runs that cover exactly `range`, in order. May read tables. Fails with `Damaged` if an entry of such a
    /// table points outside of the file, into the metadata, or between grains.
    fn lookup(&self, range: Range<u64>) -> Local<'_, Result<Vec<Run>>>;

    /// Returns whether the region contains anything, from the directory and without I/O. Always true for a flat layer.
    fn populated(&self, region: u64) -> bool;

    /// Reserves space for a range of which the layer contains nothing. May read the region's table, and may wait until
    /// the file has grown. `NoSpace` changes nothing and may be retried. The caller locks the range, so that it is not
    /// placed twice.
    fn place(&self, range: Range<u64>) -> Local<'_, Result<Placement>>;

    /// Makes the entries of a placement visible and dirty; its data is complete, but not yet durable. Never waits:
    /// `place` has loaded the tables concerned and keeps them in memory. Without an implementation the layer places nothing.
    fn publish(&self, _placement: &Placement) {
        unreachable!("{} places nothing", self.name());
    }

    /// Ends a placement whose data was not written. Its space is lost until the file is closed, and its tables may
    /// leave memory.
    fn abandon(&self, _placement: &Placement) {}

    /// Forgets the region's table, and clears the pointer to it at the next flush; the content is durable elsewhere.
    /// Dirty entries of the region are dropped and never written. Without an implementation
    /// the layer releases nothing.
    fn release(&self, region: u64) {
        unreachable!("region {region} of {} cannot be released", self.name());
    }

    /// Returns the memory of tables that a flush must write before they can leave memory, and of copies that a flush
    /// under way has made of them, in bytes.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Removes the layer's records in the host's memory, and stops keeping them. Called when its files are removed, and
    /// after a failed flush, when the content of the device is unknown.
    fn end_log(&self) {}

    /// Returns whether an earlier process ended without a loss of power and acknowledged writes may nevertheless be
    /// lost.
    fn has_lost_writes(&self) -> bool {
        false
    }

    /// Starts to keep a log of acknowledged writes. Clients have been notified of lost writes by then.
    fn begin_log(&self) -> Local<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Captures the dirty tables. The module documentation has the order of a flush.
    fn stages(&self) -> Stages {
        Stages::default()
    }

    /// Marks the captured tables as durable. After a failed flush this is not called, and they stay dirty.
    fn settle(&self, _ticket: u64) {}

    /// Writes what a cleanly closed file contains (header, free pointer, no mark of an unclean end), and flushes. All
    /// tables must be clean. The layer may still be read, and written; a write first marks the file as unclean again.
    fn seal(&self) -> Local<'_, Result<()>>;

    /// Returns space that was allocated ahead to the datastore. May be called at any time; a later first write
    /// allocates again.
    fn give_back(&self) -> Local<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the space that the layer takes now; no I/O.
    fn usage(&self) -> Usage;

    /// Checks every cross-reference. Returns one finding per line; an empty result means a sound layer.
    fn check(&self) -> Local<'_, Result<Vec<String>>>;
}
