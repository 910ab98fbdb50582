//! The seam between the API and the engine: what the REST routes ask of the daemon.
//!
//! Names and sizes arrive checked. Every call may wait for disk I/O, except that a commit answers with its
//! job as soon as the start is durable. Absent on purpose: any block of data.

use std::future::Future;
use std::pin::Pin;

use api::error::Result;
use api::name::{DatastoreName, VmName};
use api::{
    BinEmptied, BinEmpty, BinEntry, BinRestore, BinRestored, Checked, CommitPreview, CommitTarget, Datastore,
    DatastoreAdd, DatastoreRemovePreview, DatastoreRemoved, Diff, Differences, Discard, Disk, DiskCreate,
    DiskGrown, DiskMode, DiskRemoved, Event, Job, Loss, Reset, Revert, SnapshotDir, SnapshotTake,
    SnapshotTaken, SnapshotTree, Status, Vm, VmClone, VmClosed, VmCreate, VmImport, VmMove, VmRemove,
    VmRemovePreview, VmRemoved, VmSpace, VmSummary,
};

/// Boxed, because the API holds the engine as one trait object; a call costs a request, not an I/O.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

pub trait Control: Send + Sync {
    fn status(&self) -> Reply<'_, Status>;

    /// `Exists` if the name is taken.
    fn vm_create(&self, request: VmCreate) -> Reply<'_, Vm>;
    /// `Locked` while somebody else has its files, `Refused` where they lead outside the folders allowed.
    fn vm_import(&self, request: VmImport) -> Reply<'_, Vm>;
    /// The new VM; the snapshot is protected as long as it lives.
    fn vm_clone(&self, vm: VmName, request: VmClone) -> Reply<'_, Vm>;
    /// Answers with the job; its clients stay attached. `Refused` while somebody reads a snapshot of it.
    fn vm_move(&self, vm: VmName, request: VmMove) -> Reply<'_, Job>;
    /// By name.
    fn vm_list(&self) -> Reply<'_, Vec<VmSummary>>;
    fn vm_show(&self, vm: VmName) -> Reply<'_, Vm>;
    fn vm_space(&self, vm: VmName) -> Reply<'_, VmSpace>;
    /// `Refused` while a client writes, unless it is to be disconnected.
    fn vm_close(&self, vm: VmName, disconnect: bool) -> Reply<'_, VmClosed>;
    fn vm_open(&self, vm: VmName) -> Reply<'_, Vm>;
    fn vm_set_shared_writers(&self, vm: VmName, shared: bool) -> Reply<'_, Vm>;

    fn vm_set_snapshot_dir(&self, vm: VmName, request: SnapshotDir) -> Reply<'_, Vm>;
    /// `Refused` without a nonpersistent disk.
    fn reset_preview(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;
    fn vm_reset(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;
    /// Keeps the files unless `delete_disks`. `Refused` while a client is attached, a job is open, or a clone
    /// reads them.
    fn vm_remove(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemoved>;
    fn vm_remove_preview(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemovePreview>;

    /// The oldest first; None: of all datastores.
    fn bin_list(&self, datastore: Option<DatastoreName>) -> Reply<'_, Vec<BinEntry>>;
    /// `Exists` if the name is taken.
    fn bin_restore(&self, request: BinRestore) -> Reply<'_, BinRestored>;
    fn bin_empty_preview(&self, request: BinEmpty) -> Reply<'_, BinEmptied>;
    /// Removes for good.
    fn bin_empty(&self, request: BinEmpty) -> Reply<'_, BinEmptied>;

    fn disk_add(&self, vm: VmName, disk: DiskCreate) -> Reply<'_, Disk>;
    fn disk_remove(&self, vm: VmName, number: u32, delete_files: bool) -> Reply<'_, DiskRemoved>;
    /// `Refused` while it has deltas.
    fn disk_grow(&self, vm: VmName, number: u32, size_bytes: u64) -> Reply<'_, DiskGrown>;
    fn disk_set_mode(&self, vm: VmName, number: u32, mode: DiskMode) -> Reply<'_, Disk>;

    /// Answers once the snapshot is sealed.
    fn snapshot_take(&self, vm: VmName, request: SnapshotTake) -> Reply<'_, SnapshotTaken>;
    fn snapshot_tree(&self, vm: VmName) -> Reply<'_, SnapshotTree>;
    /// A part of the answer; `Refused` while a commit moves blocks.
    fn snapshot_diff(&self, vm: VmName, request: Diff) -> Reply<'_, Differences>;
    /// `Refused` where there is nothing to commit.
    fn commit_preview(&self, vm: VmName, target: CommitTarget) -> Reply<'_, CommitPreview>;
    /// Answers with the job, the names already gone from the tree.
    fn snapshot_commit(&self, vm: VmName, target: CommitTarget) -> Reply<'_, Job>;

    fn revert_preview(&self, vm: VmName, request: Revert) -> Reply<'_, Loss>;
    /// `Refused` while a client writes, unless it is to be disconnected.
    fn snapshot_revert(&self, vm: VmName, request: Revert) -> Reply<'_, Loss>;
    fn discard_preview(&self, vm: VmName, request: Discard) -> Reply<'_, Loss>;
    fn snapshot_discard(&self, vm: VmName, request: Discard) -> Reply<'_, Loss>;
    /// `Refused` where the bin has no state of the VM.
    fn undo_preview(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;
    fn snapshot_undo(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;

    /// Of a datastore's store, while it is in use; None: of the main one. `NotFound` without one.
    fn store_check(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked>;
    /// Answers with the job.
    fn store_scrub(&self, datastore: Option<DatastoreName>) -> Reply<'_, Job>;
    /// What the last scrub has found.
    fn store_scrubbed(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked>;

    /// The main one first.
    fn datastore_list(&self) -> Reply<'_, Vec<Datastore>>;
    /// Served from now on, and by every later daemon. `Exists` if the name or the folder is taken, `Locked` while another
    /// daemon serves it.
    fn datastore_add(&self, request: DatastoreAdd) -> Reply<'_, Datastore>;
    /// Its VMs are not served any more. `Refused` for the main one, and while a client is attached or a job is open.
    fn datastore_remove(&self, name: DatastoreName) -> Reply<'_, DatastoreRemoved>;
    fn datastore_remove_preview(&self, name: DatastoreName) -> Reply<'_, DatastoreRemovePreview>;

    /// Oldest first; ended jobs stay listed until the daemon stops.
    fn job_list(&self) -> Reply<'_, Vec<Job>>;
    fn job_show(&self, id: u64) -> Reply<'_, Job>;
    /// Pause, resume and cancel of an ended job: `Refused`.
    fn job_pause(&self, id: u64) -> Reply<'_, Job>;
    fn job_resume(&self, id: u64) -> Reply<'_, Job>;
    fn job_cancel(&self, id: u64) -> Reply<'_, Job>;
    /// `None` lifts the limit.
    fn job_limit(&self, id: u64, limit_bytes_s: Option<u64>) -> Reply<'_, Job>;

    /// Those with an id above `after`, in rising order; 0 asks for all.
    fn events(&self, vm: VmName, after: u64) -> Reply<'_, Vec<Event>>;

    /// Takes no new guest I/O, completes what was admitted, writes tables, closes. Called once, last.
    fn shutdown(&self) -> Reply<'_, ()>;
}
