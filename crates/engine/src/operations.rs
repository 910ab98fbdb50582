//! Arguments and results of a VM's operations, the same for both kinds of store.

use std::ops::Range;

use blk::manifest::{LayerInfo, LayerName};

/// Names that a commit removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitWhat {
    /// One snapshot, by name or id.
    One(String),
    /// Every snapshot the running state descends from, and every delta under it that no snapshot owns.
    All,
    /// No name: only the deltas that no snapshot owns, on every branch (`consolidate`).
    Unowned,
}

/// What a defragmentation lays out in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DefragmentRequest {
    /// Number of the one disk; None: all running disks.
    pub disk: Option<u32>,
    /// Blocks that snapshots or clones show too are copied for the running disk, which takes space.
    pub copy_shared: bool,
}

/// What a defragmentation has done. The address ranges are windows of disks, with the blocks in them that have no data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DefragmentOutcome {
    /// Bytes that got a new place.
    pub moved_bytes: u64,
    /// Bytes of the address ranges that stayed because snapshots or clones show blocks of them too.
    pub shared_bytes: u64,
    /// Bytes of the address ranges that stayed for want of contiguous free space.
    pub no_room_bytes: u64,
    /// Bytes of the address ranges that stayed because guests changed them all the time.
    pub changed_bytes: u64,
}

impl DefragmentOutcome {
    /// Adds what was done elsewhere.
    pub fn add(&mut self, other: &DefragmentOutcome) {
        self.moved_bytes += other.moved_bytes;
        self.shared_bytes += other.shared_bytes;
        self.no_room_bytes += other.no_room_bytes;
        self.changed_bytes += other.changed_bytes;
    }
}

/// What changes of a snapshot that people read; None leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rename {
    /// The new name.
    pub name: Option<String>,
    /// The new description.
    pub description: Option<String>,
}

/// Preview of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitPreview {
    /// Snapshots whose names leave the tree.
    pub names: Vec<String>,
    /// Bytes that the deltas hold now; the most that can be moved.
    pub bytes_to_move: u64,
    /// Total length of the files that the commit removes.
    pub bytes_freed: u64,
    /// Number of deltas that are folded.
    pub layers: u64,
    /// Layers that cannot be folded, each with its reason; their names are removed nevertheless.
    pub stays: Vec<String>,
    /// Entries of the bin that are removed because they depend on layers that change.
    pub evicted: Vec<u64>,
}

/// What an operation throws away: a preview, or the result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loss {
    /// The snapshot that the VM reverts to; None for a reset and where the running state stays.
    pub target: Option<String>,
    /// Names of the snapshots that leave the tree.
    pub snapshots: Vec<String>,
    /// Layers that the operation throws away.
    pub layers: Vec<LayerName>,
    /// Size of the files of these layers, tables included.
    pub bytes: u64,
    /// Whether the running state changes; then no writable client may be attached.
    pub reverts: bool,
    /// The binned state that keeps all of it for a while; None if nothing keeps it, or if this is a preview.
    pub kept: Option<u64>,
}

/// Request for differences: `from` and `to` by name or id, `to` None for the running state; from byte `start` on, at least up
/// to `end` if the limits of one answer permit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffRequest<'a> {
    /// Number of the disk.
    pub disk: u32,
    /// The earlier state.
    pub from: &'a str,
    /// The later state; None for the running one.
    pub to: Option<&'a str>,
    /// First byte that is compared.
    pub start: u64,
    /// Byte after which the caller needs nothing. The answer may be longer.
    pub end: u64,
}

/// One part of the differences, from the requested `start` on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Differences {
    /// Size of the later state's disk.
    pub size_bytes: u64,
    /// Ascending byte ranges that do not touch. Everything outside of them reads the same in both states.
    pub ranges: Vec<Range<u64>>,
    /// End of this part; `size_bytes` when no part follows.
    pub end: u64,
}

/// The layers of one running disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskLayers {
    /// Number of the disk.
    pub number: u32,
    /// Base first, the writable top last.
    pub layers: Vec<LayerInfo>,
    /// The layers among them that no snapshot owns: `CommitWhat::Unowned` folds these.
    pub unowned: Vec<LayerInfo>,
}

/// Space that a VM uses on the datastore, with all its branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUsage {
    /// Space that only this VM uses.
    pub allocated_bytes: u64,
    /// Space that this VM shares with others: the layers or blocks under a clone or an import, and those of its own
    /// that clones read.
    pub shared_bytes: u64,
}
