//! The contract of a VM's home: which layers exist, which snapshots name them, and one atomic way to change that.
//!
//! `publish` is the only commit point of the house. It first makes a durable record of the whole change (the intent)
//! with one rename; that rename *is* the change. Then it rewrites the home's own files from the record and removes
//! it. A crash before the rename changes nothing; after it, `load` carries the record out: recovery only rolls
//! forward. Every step of carrying it out can be repeated.

use std::rc::Rc;

use crate::error::Result;
use crate::exec::Local;
use crate::layer::Layer;

/// A layer's name inside its home: its descriptor's file name.
pub type LayerName = String;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    Persistent,
    /// Never part of a snapshot.
    IndependentPersistent,
    /// Its writes are dropped by an explicit reset.
    IndependentNonpersistent,
}

/// One disk of the VM as it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskState {
    /// Fixed at first sight, never reused: the N of `diskN`.
    pub number: u32,
    /// Where the guest's controller has it: `scsi0:0`.
    pub slot: String,
    pub mode: DiskMode,
    pub size_bytes: u64,
    /// The writable top.
    pub top: LayerName,
}

/// One named state of the VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotState {
    /// The identity; the name is only a label.
    pub id: u128,
    /// The format's own number of it, unique in the home.
    pub uid: u32,
    pub parent: Option<u128>,
    pub name: String,
    pub description: String,
    pub created_unix_us: i64,
    /// (disk number, the layer that holds its state and was frozen by the take).
    pub disks: Vec<(u32, LayerName)>,
}

/// A commit under way: `layer`'s content moves into its parent, then `layer` goes. Survives a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldState {
    pub disk: u32,
    pub layer: LayerName,
    /// Job it belongs to; several disks' folds may share one.
    pub job: u64,
    /// Cancelled or paused by the user: not resumed by itself.
    pub held: bool,
}

/// Everything a VM is, apart from its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmState {
    pub name: String,
    pub id: u128,
    pub disks: Vec<DiskState>,
    pub snapshots: Vec<SnapshotState>,
    /// The snapshot the running state descends from.
    pub current: Option<u128>,
    pub last_uid: u32,
    pub last_job: u64,
    pub folds: Vec<FoldState>,
}

/// A change of the home. Everything in it becomes true at once.
#[derive(Debug, Clone)]
pub struct Change {
    pub next: VmState,
    /// (child, new parent): the child's descriptor is rewritten to name the parent and its present content id.
    pub reparent: Vec<(LayerName, LayerName)>,
    /// Layers that nothing refers to any more; their files are removed.
    pub remove: Vec<LayerName>,
}

/// What a descriptor says of a layer, without opening its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerInfo {
    pub name: LayerName,
    pub parent: Option<LayerName>,
    pub size_bytes: u64,
    /// For people: "vmfs", "vmfsSparse".
    pub format: String,
    /// Bytes allocated on the datastore by its files.
    pub allocated_bytes: u64,
}

/// A VM's home.
pub trait Manifest {
    /// Finishes an interrupted `publish`, removes debris of an interrupted take (layers that no disk, snapshot or
    /// other layer refers to and that we made), and reads the state. Foreign facts are kept for rewriting.
    fn load(&self) -> Local<'_, Result<VmState>>;

    /// See the module's head. When it fails with the record not in place nothing has changed; `Io` after that point
    /// is reported too, and the caller must reload.
    fn publish<'a>(&'a self, change: &'a Change) -> Local<'a, Result<()>>;

    /// The layer and everything under it by the hints and content ids of the descriptors, base first. Refuses a chain
    /// whose ids or sizes contradict each other, a cycle, or more links than `CHAIN_LAYERS_MAX`.
    fn chain<'a>(&'a self, top: &'a str) -> Local<'a, Result<Vec<LayerInfo>>>;

    /// Opens one layer's files; `writable` opens them for writing but changes nothing yet.
    fn open<'a>(&'a self, name: &'a str, writable: bool) -> Local<'a, Result<Rc<dyn Layer>>>;

    /// The layer is about to be written for the first time since it was opened: gives it a new content id (and its
    /// children in this home the matching parent id), so that foreign children notice. Nothing to do for a layer that
    /// this session created. Durable when it returns; may be repeated.
    fn touch<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;

    /// Makes an empty, durable, writable child of `parent`; nobody refers to it before `publish`.
    fn create_child<'a>(&'a self, parent: &'a str) -> Local<'a, Result<Rc<dyn Layer>>>;

    /// Sets `bytes` of the datastore aside for the work that gives space back; 0 hands them over to it. `NoSpace` leaves
    /// things as they were.
    fn reserve(&self, bytes: u64) -> Local<'_, Result<()>>;

    /// Removes a child that never was published.
    fn discard_child<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;
}

/// Links a chain may have: VMware's own technical limit on redo logs.
pub const CHAIN_LAYERS_MAX: usize = 255;
