//! The contract of a VM's home: which layers exist, which snapshots name them, and one atomic way to change that.
//!
//! `publish` is the only commit point of a VM's home. It first makes a durable record of the whole change (the intent)
//! with one rename; that rename *is* the change. Then it rewrites the home's own files from the record and removes
//! it. A crash before the rename changes nothing; after it, `load` carries the record out: recovery only rolls
//! forward. Every step of carrying it out can be repeated.

use std::rc::Rc;

use crate::error::{Error, Result};
use crate::exec::Local;
use crate::layer::Layer;

/// A layer's name in its VM's home: its descriptor's file name, or, for one in another folder, the
/// absolute path of its descriptor.
pub type LayerName = String;

/// What a take and a reset do with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// Frozen by every take.
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
    /// Decides which operations freeze or replace the disk.
    pub mode: DiskMode,
    /// A multiple of the sector.
    pub size_bytes: u64,
    /// The writable top.
    pub top: LayerName,
    /// Of an independent-nonpersistent disk: the layer a reset goes back to, the parent of `top`.
    pub reset_to: Option<LayerName>,
}

/// One named state of the VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotState {
    /// The identity; the name is only a label.
    pub id: u128,
    /// The format's own number of it, unique in the home.
    pub uid: u32,
    /// The snapshot that it descends from; None for the first ones of the VM.
    pub parent: Option<u128>,
    /// The label. At most `NAME_BYTES_MAX` bytes.
    pub name: String,
    /// For people. At most `DESCRIPTION_BYTES_MAX` bytes.
    pub description: String,
    /// Microseconds since 1970 UTC, by the clock of the host that took it.
    pub created_unix_us: i64,
    /// (disk number, the layer that holds its state and was frozen by the take).
    pub disks: Vec<(u32, LayerName)>,
}

/// A commit under way: `layer`'s content moves into its parent, then `layer` goes. Survives a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldState {
    /// Number of the disk, see `DiskState::number`.
    pub disk: u32,
    /// The delta that is emptied.
    pub layer: LayerName,
    /// Job it belongs to; several disks' folds may share one.
    pub job: u64,
    /// Cancelled or paused by the user: not resumed by itself.
    pub held: bool,
}

/// Number of the content that a VM's running disks have. A revert, a discard or a reset replaces the content and raises the
/// number in the same commit point, so that a client that cached the old content is recognised for ever.
///
/// A VM begins at a number drawn at random: a later VM of the same name then differs too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentGeneration {
    /// 1 to `MAX`. Never lowered.
    pub present: u64,
    /// The latest generation that clients may use without naming it. Below `present`: none of the clients of before may be
    /// attached again before the user says that they are dead.
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

    /// The generation of a new VM. `random` is any number.
    pub fn begin(random: u64) -> Self {
        let first = 1 + (random >> 32);
        Self { present: first, opened: first }
    }

    /// What a file says. An `opened` beyond `present`, which we never write, must not open a later generation.
    pub fn read(present: u64, opened: u64) -> Self {
        Self { present, opened: if opened > present { 0 } else { opened } }
    }

    /// The generation of other content.
    ///
    /// # Errors
    /// `Refused` when the numbers are used up, which only a value from outside can lead to.
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

/// What threw a state away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BinnedBy {
    /// A return to a snapshot.
    Revert,
    /// A discard: what was written since a take, together with the name of its snapshot.
    Discard,
    /// A drop of the writes of independent-nonpersistent disks.
    Reset,
    /// The restore of an earlier one.
    Restore,
}

/// What a revert, a discard or a reset threw away and the VM keeps for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinnedState {
    /// Drawn at random; unique in the VM, among the ids of its snapshots too.
    pub id: u64,
    /// The operation.
    pub by: BinnedBy,
    /// When it threw the state away, in microseconds since 1970 UTC.
    pub unix_us: i64,
    /// For people: the snapshot that the VM went back to, or the names that left the tree.
    pub subject: String,
    /// Those that left the tree, parents before children. A parent may be a snapshot that stayed, or has left it since.
    pub snapshots: Vec<SnapshotState>,
    /// The disks that ran on, as they were; none where the running state stayed.
    pub disks: Vec<DiskState>,
    /// Numbers of the disks that came back with the operation: they leave with its restore.
    pub added: Vec<u32>,
    /// The snapshot that these disks descend from. It may have left the tree since.
    pub current: Option<u128>,
}

impl BinnedState {
    /// Every layer that the state consists of, without what is under them.
    pub fn layers(&self) -> impl Iterator<Item = &LayerName> {
        let running = self.disks.iter().flat_map(|disk| std::iter::once(&disk.top).chain(&disk.reset_to));
        running.chain(self.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer)))
    }
}

/// Everything a VM is, apart from its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VmState {
    /// For people. At most `NAME_BYTES_MAX` bytes.
    pub name: String,
    /// Drawn at random when the VM is made; stays when it is renamed or moved.
    pub id: u128,
    /// The disks as they run now.
    pub disks: Vec<DiskState>,
    /// The whole tree; `SnapshotState::parent` links it.
    pub snapshots: Vec<SnapshotState>,
    /// The snapshot the running state descends from.
    pub current: Option<u128>,
    /// The highest `SnapshotState::uid` that was given; none is given twice.
    pub last_uid: u32,
    /// The highest number of a job that was given; none is given twice.
    pub last_job: u64,
    /// Commits that have not ended.
    pub folds: Vec<FoldState>,
    /// Of the content that `disks` have now.
    pub generation: ContentGeneration,
    /// Oldest first.
    pub bin: Vec<BinnedState>,
}

/// A change of the home. Everything in it becomes true at once.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The whole state after the change.
    pub next: VmState,
    /// The configuration kept with this snapshot (`disks_at`) or binned state becomes the VM's own; `next.disks` is its list
    /// of disks. A binned state that is new in `next` keeps the configuration of before.
    pub configuration: Option<u128>,
    /// (child, new parent): the child's descriptor is rewritten to name the parent and its present content id.
    pub reparent: Vec<(LayerName, LayerName)>,
    /// Layers that nothing refers to any more; their files are removed.
    pub remove: Vec<LayerName>,
}

/// What a descriptor says of a layer, without opening its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerInfo {
    /// Names the layer in this home.
    pub name: LayerName,
    /// The layer below; None for a base.
    pub parent: Option<LayerName>,
    /// Size of the disk, a multiple of the sector.
    pub size_bytes: u64,
    /// For people: "vmfs", "vmfsSparse".
    pub format: String,
    /// Bytes allocated on the datastore by its files.
    pub allocated_bytes: u64,
    /// In a folder that is not this VM's: read, never written, never removed.
    pub foreign: bool,
}

/// One layer's place among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerLink {
    /// Names the layer in this home.
    pub name: LayerName,
    /// The layer below; None for a base.
    pub parent: Option<LayerName>,
    /// See `LayerInfo::foreign`.
    pub foreign: bool,
}

/// A reader of one of this home's layers from outside: a linked clone, for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependant {
    /// The layer that is read.
    pub layer: LayerName,
    /// For people: the path of the VM or of the descriptor that names the layer.
    pub who: String,
}

/// A disk to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    /// A multiple of the sector.
    pub size_bytes: u64,
    /// Decides which operations freeze or replace the disk.
    pub mode: DiskMode,
    /// Absolute path of the folder for its files; None is the home.
    pub folder: Option<String>,
}

/// What layers are opened for, which decides how many descriptors must be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A VM, a sealed state or a disk that is not served yet.
    Serve,
    /// A change of a VM that is open: a take, a revert.
    Change,
    /// Work that ends with fewer layers: a commit.
    Free,
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

    /// The names in `chain`, with the same refusals and without a look at the files of data.
    fn chain_names<'a>(&'a self, top: &'a str) -> Local<'a, Result<Vec<LayerName>>>;

    /// Every layer that a disk, a snapshot or a fold of the home refers to, with everything under it, and every other
    /// layer in the home's own folders, prepared children apart. Each once; in no order.
    fn links(&self) -> Local<'_, Result<Vec<LayerLink>>>;

    /// Who outside this home reads one of `layers` directly: the clones this home has noted, and whatever a search
    /// of the folders the home may look into finds.
    fn dependants<'a>(&'a self, layers: &'a [LayerName]) -> Local<'a, Result<Vec<Dependant>>>;

    /// The VM's disks, of every mode, when `snapshot` was taken: `top` is the layer that was frozen (or, for a disk that
    /// takes do not freeze, the top it had). None when no configuration was kept: one of VMware's snapshots. Fails with
    /// `NotFound` where the VM has no such snapshot.
    fn disks_at(&self, snapshot: u128) -> Local<'_, Result<Option<Vec<DiskState>>>>;

    /// Opens one layer's files; `writable` opens them for writing but changes nothing yet. A foreign layer is opened
    /// read-only whatever is asked; `Shape::writable` says which it is.
    fn open<'a>(&'a self, name: &'a str, writable: bool) -> Local<'a, Result<Rc<dyn Layer>>>;

    /// Asked before each of `layers` layers more is opened or made.
    ///
    /// # Errors
    /// `NoDescriptors`: what is left of them is kept for other work.
    fn admit(&self, _opening: Opening, _layers: usize) -> Result<()> {
        Ok(())
    }

    /// The layer is about to be written for the first time since it was opened: gives it a new content id (and its
    /// children in this home the matching parent id), so that foreign children notice. Nothing to do for a layer that
    /// this session created. Durable when it returns; may be repeated.
    fn touch<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;

    /// Makes an empty base disk, durable and unreferenced until `publish` names it. Its number and slot are the
    /// next free ones of `state`.
    fn create_disk<'a>(&'a self, state: &'a VmState, disk: &'a NewDisk) -> Local<'a, Result<DiskState>>;

    /// Makes the base disk `name` larger: its extent, then its descriptor. Refused for anything but a single flat extent.
    fn grow<'a>(&'a self, name: &'a str, size_bytes: u64) -> Local<'a, Result<()>>;

    /// Makes an empty, durable, writable child of `parent`, unreferenced until `publish`.
    fn create_child<'a>(&'a self, parent: &'a str) -> Local<'a, Result<Rc<dyn Layer>>>;

    /// Sets `bytes` of the datastore aside for the work that gives space back; 0 hands them over to it. `NoSpace` leaves
    /// things as they were.
    fn reserve(&self, bytes: u64) -> Local<'_, Result<()>>;

    /// Removes a child, or a base disk, that never was published.
    fn discard_child<'a>(&'a self, name: &'a str) -> Local<'a, Result<()>>;
}

/// Links a chain may have: VMware's own technical limit on redo logs.
pub const CHAIN_LAYERS_MAX: usize = 255;

/// States in a VM's bin; the oldest make room. Each keeps a delta for each disk.
pub const BINNED_STATES_MAX: usize = 64;

/// Highest number of a disk. Numbers count up and are never given twice, so a larger one was not given by us.
pub const DISK_NUMBER_MAX: u32 = (1 << 24) - 1;

/// Highest number (`uid`) of a snapshot. VMware's are signed 32-bit integers.
pub const SNAPSHOT_UID_MAX: u32 = i32::MAX as u32;

/// Highest number of a job: the largest integer that every JSON reader keeps exactly.
pub const JOB_NUMBER_MAX: u64 = (1 << 53) - 1;

/// Longest name of a VM or a snapshot that is read: VMware's 80 characters, at four bytes each, with room for a tool that
/// counts otherwise. Names stand in messages and in every list.
pub const NAME_BYTES_MAX: usize = 512;

/// Longest description of a snapshot that is read: 16 times the longest that we write.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;

/// Returns the number that follows `last`.
///
/// # Errors
/// `Refused` when `max` has been given; `what` names the numbers, in the plural.
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
