//! Interface between the API and the engine: the operations that the REST routes request from the daemon.
//!
//! Callers pass checked names and sizes. Every call may wait for disk I/O, except that a commit returns its job as soon
//! as the start is durable. On purpose, no call carries a block of data.

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

/// Future of a call. It is boxed, because the API holds the engine as one trait object; the box costs one allocation
/// per request, not per I/O.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

pub trait Control: Send + Sync {
    fn status(&self) -> Reply<'_, Status>;

    /// Fails with `Exists` if the name is taken.
    fn vm_create(&self, request: VmCreate) -> Reply<'_, Vm>;
    /// Fails with `Locked` while another process has the files open, and with `Refused` if they lead outside the
    /// allowed folders.
    fn vm_import(&self, request: VmImport) -> Reply<'_, Vm>;
    /// Returns the new VM. The snapshot is protected as long as the new VM exists.
    fn vm_clone(&self, vm: VmName, request: VmClone) -> Reply<'_, Vm>;
    /// Returns the job; the VM's clients stay attached. Fails with `Refused` while a client reads a snapshot of the VM.
    fn vm_move(&self, vm: VmName, request: VmMove) -> Reply<'_, Job>;
    /// Returns the VMs sorted by name.
    fn vm_list(&self) -> Reply<'_, Vec<VmSummary>>;
    fn vm_show(&self, vm: VmName) -> Reply<'_, Vm>;
    fn vm_space(&self, vm: VmName) -> Reply<'_, VmSpace>;
    /// Fails with `Refused` while a client writes, unless `disconnect` is set.
    fn vm_close(&self, vm: VmName, disconnect: bool) -> Reply<'_, VmClosed>;
    /// With `take_over`, an interrupted move ends with this side as the VM.
    fn vm_open(&self, vm: VmName, take_over: bool) -> Reply<'_, Vm>;
    fn vm_set_shared_writers(&self, vm: VmName, shared: bool) -> Reply<'_, Vm>;

    fn vm_set_snapshot_dir(&self, vm: VmName, request: SnapshotDir) -> Reply<'_, Vm>;
    /// Fails with `Refused` if the VM has no nonpersistent disk.
    fn reset_preview(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;
    fn vm_reset(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;
    /// Keeps the files unless `delete_disks` is set. Fails with `Refused` while a client is attached, a job is open, or
    /// a clone reads the files.
    fn vm_remove(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemoved>;
    fn vm_remove_preview(&self, vm: VmName, request: VmRemove) -> Reply<'_, VmRemovePreview>;

    /// Returns the entries, the oldest first; for `None`, those of all datastores.
    fn bin_list(&self, datastore: Option<DatastoreName>) -> Reply<'_, Vec<BinEntry>>;
    /// Fails with `Exists` if the name is taken.
    fn bin_restore(&self, request: BinRestore) -> Reply<'_, BinRestored>;
    fn bin_empty_preview(&self, request: BinEmpty) -> Reply<'_, BinEmptied>;
    /// Removes the entries for good.
    fn bin_empty(&self, request: BinEmpty) -> Reply<'_, BinEmptied>;

    fn disk_add(&self, vm: VmName, disk: DiskCreate) -> Reply<'_, Disk>;
    fn disk_remove(&self, vm: VmName, number: u32, delete_files: bool) -> Reply<'_, DiskRemoved>;
    /// Fails with `Refused` while the disk has deltas.
    fn disk_grow(&self, vm: VmName, number: u32, size_bytes: u64) -> Reply<'_, DiskGrown>;
    fn disk_set_mode(&self, vm: VmName, number: u32, mode: DiskMode) -> Reply<'_, Disk>;

    /// Returns once the snapshot is sealed.
    fn snapshot_take(&self, vm: VmName, request: SnapshotTake) -> Reply<'_, SnapshotTaken>;
    fn snapshot_tree(&self, vm: VmName) -> Reply<'_, SnapshotTree>;
    /// Returns a part of the differences. Fails with `Refused` while a commit moves blocks.
    fn snapshot_diff(&self, vm: VmName, request: Diff) -> Reply<'_, Differences>;
    /// Fails with `Refused` if there is nothing to commit.
    fn commit_preview(&self, vm: VmName, target: CommitTarget) -> Reply<'_, CommitPreview>;
    /// Returns the job. The snapshots are already removed from the tree.
    fn snapshot_commit(&self, vm: VmName, target: CommitTarget) -> Reply<'_, Job>;

    fn revert_preview(&self, vm: VmName, request: Revert) -> Reply<'_, Loss>;
    /// Fails with `Refused` while a client writes, unless the request disconnects it.
    fn snapshot_revert(&self, vm: VmName, request: Revert) -> Reply<'_, Loss>;
    fn discard_preview(&self, vm: VmName, request: Discard) -> Reply<'_, Loss>;
    fn snapshot_discard(&self, vm: VmName, request: Discard) -> Reply<'_, Loss>;
    /// Fails with `Refused` if the bin has no state of the VM.
    fn undo_preview(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;
    fn snapshot_undo(&self, vm: VmName, request: Reset) -> Reply<'_, Loss>;

    /// Checks the store of a datastore while it is in use; for `None`, that of the main one. Fails with `NotFound` if
    /// there is no store.
    fn store_check(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked>;
    /// Returns the job.
    fn store_scrub(&self, datastore: Option<DatastoreName>) -> Reply<'_, Job>;
    /// Returns the findings of the last scrub.
    fn store_scrubbed(&self, datastore: Option<DatastoreName>) -> Reply<'_, Checked>;

    /// Returns the datastores, the main one first.
    fn datastore_list(&self) -> Reply<'_, Vec<Datastore>>;
    /// Serves the datastore from now on; every later daemon serves it too. Fails with `Exists` if the name or the
    /// folder is taken, and with `Locked` while another daemon serves it.
    fn datastore_add(&self, request: DatastoreAdd) -> Reply<'_, Datastore>;
    /// Stops serving the datastore's VMs. Fails with `Refused` for the main one, and while a client is attached or a
    /// job is open.
    fn datastore_remove(&self, name: DatastoreName) -> Reply<'_, DatastoreRemoved>;
    fn datastore_remove_preview(&self, name: DatastoreName) -> Reply<'_, DatastoreRemovePreview>;

    /// Returns the jobs, the oldest first. Ended jobs stay listed until the daemon stops.
    fn job_list(&self) -> Reply<'_, Vec<Job>>;
    fn job_show(&self, id: u64) -> Reply<'_, Job>;
    /// Pause, resume and cancel fail with `Refused` for an ended job.
    fn job_pause(&self, id: u64) -> Reply<'_, Job>;
    fn job_resume(&self, id: u64) -> Reply<'_, Job>;
    fn job_cancel(&self, id: u64) -> Reply<'_, Job>;
    /// Limits the job's rate; `None` lifts the limit.
    fn job_limit(&self, id: u64, limit_bytes_s: Option<u64>) -> Reply<'_, Job>;

    /// Returns the events with an ID above `after`, in rising order; for 0, all events.
    fn events(&self, vm: VmName, after: u64) -> Reply<'_, Vec<Event>>;

    /// Admits no new guest I/O, completes what was admitted, writes tables and closes. It is called once, as the last
    /// call.
    fn shutdown(&self) -> Reply<'_, ()>;
}
