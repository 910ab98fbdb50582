//! Arguments and results of a VM's operations, the same for both kinds of store.

use std::ops::Range;

use blk::manifest::{LayerInfo, LayerName};

/// Which names a commit takes away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitWhat {
    /// One snapshot, by name or id.
    One(String),
    /// Every snapshot the running state descends from, and every delta under it that no snapshot owns.
    All,
    /// No name: only the deltas that no snapshot owns, on every branch (`consolidate`).
    Unowned,
}

/// What a commit will do, before it does anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitPreview {
    pub names: Vec<String>,
    /// Held by the deltas now; the most that can be moved.
    pub bytes_to_move: u64,
    /// Length of the files that go.
    pub bytes_freed: u64,
    pub layers: u64,
    /// What cannot be folded, each with its reason; the names go all the same.
    pub stays: Vec<String>,
    /// Entries of the bin that go, because they rest on layers that change.
    pub evicted: Vec<u64>,
}

/// What an operation throws away, before (a preview) or after it has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loss {
    /// The snapshot that the VM runs on from; None for a reset and where the running state stays.
    pub target: Option<String>,
    /// Names that leave the tree.
    pub snapshots: Vec<String>,
    /// Whose files go.
    pub layers: Vec<LayerName>,
    /// Of the files that go, tables included.
    pub bytes: u64,
    /// The running state changes: no writable client may be attached.
    pub reverts: bool,
    /// The binned state in which all of it is kept for a while; None: it is gone, or this is a preview.
    pub kept: Option<u64>,
}

/// What is asked for: `from` and `to` by name or id, `to` None for the running state; from byte `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between<'a> {
    pub disk: u32,
    pub from: &'a str,
    pub to: Option<&'a str>,
    pub start: u64,
}

/// A part of the answer, which begins where it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Differences {
    /// Of the later state's disk.
    pub size_bytes: u64,
    /// Rising, apart from each other; in bytes. What is not in them reads the same in both states.
    pub ranges: Vec<Range<u64>>,
    /// Up to where this answers; `size_bytes` when that is all.
    pub end: u64,
}

/// The layers of one running disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskLayers {
    pub number: u32,
    /// Base first, the writable top last.
    pub layers: Vec<LayerInfo>,
    /// Those of them that no snapshot owns: what `CommitWhat::Unowned` folds away.
    pub unowned: Vec<LayerInfo>,
}

/// What a VM takes on the datastore, with all its branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// By what is its own.
    pub allocated_bytes: u64,
    /// By what it shows and another VM shows too: the ground of a clone or of an import, and what clones read of it.
    pub shared_bytes: u64,
}
