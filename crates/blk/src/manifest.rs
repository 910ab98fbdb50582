//! The contract of a VM's home: its layers, the snapshots that name them, and atomic changes of both.
//!
//! `publish` is the only commit point of a VM's home. It first makes a durable record of the whole change (the intent)
//! with one rename; that rename *is* the change. Then it rewrites the home's files from the record, and removes the
//! record. A crash before the rename changes nothing. After it, `load` carries the record out: recovery only rolls
//! forward, and each of its steps can be repeated.

use std::rc::Rc;

use crate::error::{Error, Result};
use crate::exec::Local;
use crate::layer::Layer;

/// Name of a layer in its VM's home: the file name of its descriptor, or the absolute path if the descriptor is in
/// another folder.
pub type LayerName = String;

/// What a take and a reset do to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// Every take freezes the disk.
    Persistent,
    /// The disk is never part of a snapshot.
    IndependentPersistent,
    /// An explicit reset drops the writes to the disk.
    IndependentNonpersistent,
}

/// One disk of the VM as it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskState {
    /// The N of `diskN`. Assigned when the disk is first seen, never changed or reused.
    pub number: u32,
    /// Address on the guest's controller, such as `scsi0:0`.
    pub slot: String,
    /// Decides which operations freeze or replace the disk.
    pub mode: DiskMode,
    /// Size of the disk, a multiple of the sector.
    pub size_bytes: u64,
    /// The topmost layer, which is written.
    pub top: LayerName,
    /// For an independent-nonpersistent disk: the layer to which a reset returns, the parent of `top`.
    pub reset_to: Option<LayerName>,
}

/// One named state of the VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotState {
    /// Identity of the snapshot. The name is only a label.
    pub id: u128,
    /// Number of the snapshot in the format, unique in the home.
    pub uid: u32,
    /// The snapshot from which this one descends; None for the first ones of the VM.
    pub parent: Option<u128>,
    /// The label. At most `NAME_BYTES_MAX` bytes.
    pub name: String,
    /// Description for people. At most `DESCRIPTION_BYTES_MAX` bytes.
    pub description: String,
    /// Time of the take in microseconds since 1970 UTC, by the clock of its host.
    pub created_unix_us: i64,
    /// Pairs of a disk's number and the layer that contains its state. The take froze that layer.
    pub disks: Vec<(u32, LayerName)>,
}

/// A commit under way: the content of `layer` moves into its parent, then `layer` is removed. It survives a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldState {
    /// Number of the disk, see `DiskState::number`.
    pub disk: u32,
    /// The delta that is being emptied.
    pub layer: LayerName,
    /// Number of its job. Folds of several disks may have the same job.
    pub job: u64,
    /// Cancelled or paused by the user; not resumed automatically.
    pub held: bool,
}

/// Generation of the content of a VM's running disks. A revert, a discard or a reset replaces the content and raises
/// the generation in the same commit point. A client that cached the old content can therefore always be recognised.
///
/// A VM begins at a random number, so that a later VM of the same name differs too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentGeneration {
    /// Present generation, 1 to `MAX`. Never lowered.
    pub present: u64,
    /// Latest generation that clients may use by a name without a generation. If it is below `present`, earlier clients
    /// may still run; they must not be attached again before the user confirms that they have ended.
    pub opened: u64,
}

impl Default for ContentGeneration {
    fn default() -> Self {
        Self { present: 1, opened: 1 }
    }
}

impl ContentGeneration {
    /// The largest integer that a JSON number holds exactly.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Returns the generation of a new VM. `random` is any number.
    pub fn begin(random: u64) -> Self {
        let first = 1 + (random >> 32);
        Self { present: first, opened: first }
    }

    /// Returns the generation that a file contains. An `opened` beyond `present`, which unstun never writes, does not
    /// open a later generation.
    pub fn read(present: u64, opened: u64) -> Self {
        Self { present, opened: if opened > present { 0 } else { opened } }
    }

    /// Returns the generation of replaced content.
    ///
    /// # Errors
    /// `Refused` if the numbers are used up, which only a value from outside can cause.
    pub fn raised(self, vm: &str) -> Result<Self> {
        if self.present >= Self::MAX {
            let cause = format!("its content generation is {}, and no larger one can be kept", self.present);
            return Err(Error::refused(vm, format!("{cause}; clone the VM, and work with the clone")));
        }
        Ok(Self { present: self.present + 1, ..self })
    }

    /// Returns whether clients that name no generation may use the present content.
    pub fn is_opened(self) -> bool {
        self.opened == self.present
    }
}

/// The operation that threw a state away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BinnedBy {
    /// A revert to a snapshot.
    Revert,
    /// A discard of what was written since a take, together with the name of its snapshot.
    Discard,
    /// A drop of the writes of independent-nonpersistent disks.
    Reset,
    /// A restore of an earlier entry of the bin.
    Restore,
}

/// A state that a revert, a discard or a reset threw away and that the VM keeps for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinnedState {
    /// Random ID, unique in the VM, also among the IDs of its snapshots.
    pub id: u64,
    /// The operation that threw the state away.
    pub by: BinnedBy,
    /// Time of the operation in microseconds since 1970 UTC.
    pub unix_us: i64,
    /// For people: the snapshot to which the VM returned, or the names that left the tree.
    pub subject: String,
    /// Snapshots that left the tree, parents before children. A parent may be in the tree, or may have left it since.
    pub snapshots: Vec<SnapshotState>,
    /// The running disks as they were; empty if the running state did not change.
    pub disks: Vec<DiskState>,
    /// Numbers of the disks that the operation brought back. A restore removes them again.
    pub added: Vec<u32>,
    /// The snapshot from which these disks descend. It may have left the tree since.
    pub current: Option<u128>,
}

impl BinnedState {
    /// Returns every layer of the state, without the layers below them.
    pub fn layers(&self) -> impl Iterator<Item = &LayerName> {
        let running = self.disks.iter().flat_map(|disk| std::iter::once(&disk.top).chain(&disk.reset_to));
        running.chain(self.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer)))
    }
}

/// The whole state of a VM, except the content of its disks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmState {
    /// Name for people. At most `NAME_BYTES_MAX` bytes.
    pub name: String,
    /// Random ID of the VM. It does not change if the VM is renamed or moved.
    pub id: u128,
    /// The running disks.
    pub disks: Vec<DiskState>,
    /// All snapshots of the tree; `SnapshotState::parent` links them.
    pub snapshots: Vec<SnapshotState>,
    /// The snapshot from which the running state descends.
    pub current: Option<u128>,
    /// Highest `SnapshotState::uid` that was assigned. Numbers are never reused.
    pub last_uid: u32,
    /// Highest number of a job that was assigned. Numbers are never reused.
    pub last_job: u64,
    /// Commits that have not ended.
    pub folds: Vec<FoldState>,
    /// Generation of the present content of `disks`.
    pub generation: ContentGeneration,
    /// Entries of the bin, oldest first.
    pub bin: Vec<BinnedState>,
}

/// A change of the home. All parts of it take effect at once.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The whole state after the change.
    pub next: VmState,
    /// Snapshot (`disks_at`) or binned state whose recorded configuration becomes the VM's own; `next.disks` is its
    /// list of disks. A binned state that is new in `next` keeps the previous configuration.
    pub configuration: Option<u128>,
    /// Pairs of a child and its new parent. The child's descriptor is rewritten with the parent's name and present
    /// content ID.
    pub reparent: Vec<(LayerName, LayerName)>,
    /// Layers without references; their files are removed.
    pub remove: Vec<LayerName>,
}

/// Facts about a layer from its descriptor, without opening its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerInfo {
    /// Name of the layer in this home.
    pub name: LayerName,
    /// The layer below; None for a base.
    pub parent: Option<LayerName>,
    /// Size of the disk, a multiple of the sector.
    pub size_bytes: u64,
    /// Name of the format for people: "vmfs", "vmfsSparse".
    pub format: String,
    /// Bytes allocated on the datastore by its files.
    pub allocated_bytes: u64,
    /// The layer is in a folder that is not this VM's. It is read, never written, never removed.
    pub foreign: bool,
    /// The layer is in a format that is read and never written.
    pub read_only: bool,
}

/// A layer and its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerLink {
    /// Name of the layer in this home.
    pub name: LayerName,
    /// The layer below; None for a base.
    pub parent: Option<LayerName>,
    /// See `LayerInfo::foreign`.
    pub foreign: bool,
}

/// A reader outside of this home of one of its layers, such as a linked clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependant {
    /// The layer that is read.
    pub layer: LayerName,
    /// For people: the path of the VM or of the descriptor that names the layer.
    pub who: String,
}

/// A disk to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    /// Size of the disk, a multiple of the sector.
    pub size_bytes: u64,
    /// Decides which operations freeze or replace the disk.
    pub mode: DiskMode,
    /// Absolute path of the folder for its files; None for the home.
    pub folder: Option<String>,
    /// Number of the source of its store that the disk shows until it is written; None for an empty disk. Only a native
    /// store has sources.
    pub source: Option<u8>,
}

/// Purpose for which layers are opened. It decides how many descriptors must remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A VM, a sealed state or a disk that is not served yet.
    Serve,
    /// A change of a VM that is open: a take, a revert.
    Change,
    /// Work that ends with fewer layers: a commit.
    Free,
}

/// Format of a new delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeltaFormat {
    /// The one that fits the disk's size and the delta's parent.
    #[default]
    Fitting,
    /// VMware's SEsparse.
    SeSparse,
}

/// A VM's home.
pub trait Manifest {
    /// Completes an interrupted `publish`, removes debris of an interrupted take (layers with our mark to which no
    /// disk, snapshot or other layer refers), and reads the state. Unknown facts in the files are kept and written
    /// back.
    fn load(&self) -> Local<'_, Result<VmState>>;

    /// Publishes a change, as the module documentation describes. If it fails before the record is in place, nothing
    /// has changed. An `Io` error after that point is reported too, and the caller must reload.
    fn publish<'a>(&'a self, change: &'a Change) -> Local<'a, Result<()>>;

    /// Returns the layer and all layers below it, base first, by the hints and content IDs of the descriptors. Refuses
    /// a chain whose IDs or sizes contradict each other, a cycle, or more than `CHAIN_LAYERS_MAX` links.
    fn chain<'a>(&'a self, top: &'a str) -> Local<'a, Result<Vec<LayerInfo>>>;

    /// Returns the names in `chain`, with the same refusals, without reading the files of data.
    fn chain_names<'a>(&'a self, top: &'a str) -> Local<'a, Result<Vec<LayerName>>>;

    /// Returns every layer to which a disk, a snapshot or a fold of the home refers, all layers below these, and every
    /// other layer in the home's own folders except prepared children. Each layer once, in no order.
    fn links(&self) -> Local<'_, Result<Vec<LayerLink>>>;

    /// Returns the readers outside of this home that read one of `layers` directly: the clones that this home has
    /// recorded, and those that a search of the permitted folders finds.
    fn dependants<'a>(&'a self, layers: &'a [LayerName]) -> Local<'a, Result<Vec<Dependant>>>;

    /// Returns the VM's disks of every mode when `snapshot` was taken: `top` is the layer that was frozen (or, for a
    /// disk that takes do not freeze, its top). None if no configuration was kept, as for snapshots from VMware. Fails
    /// with `NotFound` if the VM has no such snapshot.
    fn disks_at(&self, snapshot: u128) -> Local<'_, Result<Option<Vec<DiskState>>>>;

    /// Opens the files of one layer. `writable` opens them for writing, but changes nothing yet. A foreign layer is
    /// always opened read-only; `Shape::writable` shows it.
    fn open<'a>(&'a self, name: &'a str, writable: bool) -> Local<'a, Result<Rc<dyn Layer>>>;

    /// Admits `layers` further layers, before each is opened or created.
    ///
    /// # Errors
    /// `NoDescriptors` if the remaining descriptors are reserved for other work.
    fn admit(&self, _opening: Opening, _layers: usize) -> Result<()> {
        Ok(())
    }

    /// Prepares the first write to a layer since it was opened. Gives the layer a new content ID, and its children in
    /// this home the matching parent ID, so that foreign children notice. Does nothing for a layer that this session
    /// created. The change is durable when the call returns; it may be repeated.
    fn touch<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;

    /// Creates an empty base disk. It is durable, and unreferenced until `publish` names it. It gets the next free
    /// number and slot of `state`.
    fn create_disk<'a>(&'a self, state: &'a VmState, disk: &'a NewDisk) -> Local<'a, Result<DiskState>>;

    /// Grows the base disk `name`: its extent, then its descriptor. Refused for anything but a single flat extent.
    fn grow<'a>(&'a self, name: &'a str, size_bytes: u64) -> Local<'a, Result<()>>;

    /// Creates an empty, durable, writable child of `parent`. It is unreferenced until `publish`.
    fn create_child<'a>(&'a self, parent: &'a str) -> Local<'a, Result<Rc<dyn Layer>>> {
        self.create_child_in(parent, DeltaFormat::Fitting)
    }

    /// Does the same, in a format.
    fn create_child_in<'a>(
        &'a self,
        parent: &'a str,
        format: DeltaFormat,
    ) -> Local<'a, Result<Rc<dyn Layer>>>;

    /// Reserves `bytes` of the datastore for operations that free space; 0 releases the reserve to them. `NoSpace`
    /// changes nothing.
    fn reserve(&self, bytes: u64) -> Local<'_, Result<()>>;

    /// Removes a child or a base disk that was never published.
    fn discard_child<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;
}

/// Maximum number of links of a chain: VMware's own technical limit on redo logs.
pub const CHAIN_LAYERS_MAX: usize = 255;

/// Maximum number of states in a VM's bin; the oldest are removed first. Each keeps a delta for each disk.
pub const BINNED_STATES_MAX: usize = 64;

/// Highest number of a disk. Numbers count up and are never reused, so unstun has assigned no larger one.
pub const DISK_NUMBER_MAX: u32 = (1 << 24) - 1;

/// Highest number (`uid`) of a snapshot. VMware's are signed 32-bit integers.
pub const SNAPSHOT_UID_MAX: u32 = i32::MAX as u32;

/// Highest number of a job: the largest integer that every JSON reader keeps exactly.
pub const JOB_NUMBER_MAX: u64 = (1 << 53) - 1;

/// Longest name of a VM or a snapshot that is read: VMware's 80 characters at four bytes each, and a margin for tools
/// that count differently. Names appear in messages and in every list.
pub const NAME_BYTES_MAX: usize = 512;

/// Longest description of a snapshot that is read: 16 times the longest that unstun writes.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;

/// Returns the number after `last`.
///
/// # Errors
/// `Refused` if `max` has been assigned; `what` names the numbers, in the plural.
pub fn next_number<N: Copy + Into<u64> + TryFrom<u64>>(vm: &str, what: &str, last: N, max: N) -> Result<N> {
    let next = last.into().checked_add(1).filter(|next| *next <= max.into());
    next.and_then(|next| N::try_from(next).ok()).ok_or_else(|| used_up(vm, what, max.into()))
}

/// Returns `next` as the number of a new disk.
///
/// # Errors
/// `Refused` beyond `DISK_NUMBER_MAX`.
pub fn new_disk_number(vm: &str, next: u32) -> Result<u32> {
    match next <= DISK_NUMBER_MAX {
        true => Ok(next),
        false => Err(used_up(vm, "numbers of disks", DISK_NUMBER_MAX.into())),
    }
}

fn used_up(vm: &str, what: &str, max: u64) -> Error {
    Error::refused(
        vm,
        format!("{what} are used up: {max} is the highest; clone the VM, whose numbers begin anew"),
    )
}
