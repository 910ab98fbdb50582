//! The interface of an open VM, the same for both kinds of store.

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;

use blk::file::FileCounters;
use blk::manifest::{ContentGeneration, DeltaFormat, DiskMode, DiskState, NewDisk, SnapshotState, VmState};
use blk::volume::Volume;
use blk::{Env, Local, Result};

use crate::client::{Client, GenerationChange, View};
use crate::event::{Event, Listener};
use crate::job::Job;
use crate::native::NativeVm;
use crate::operations::{
    CommitPreview, CommitWhat, DefragmentRequest, DiffRequest, Differences, DiskLayers, Loss, Rename,
    SpaceUsage,
};
use crate::redo::Vm;
use crate::stats::{DiskStats, LayerCounters};

/// A volume, with the guard that counts its user until it is dropped.
pub type Attached<User> = (Rc<dyn Volume>, Rc<User>);

/// A running disk.
pub trait RunningDisk {
    /// Returns the disk's counters.
    fn stats(&self) -> &DiskStats;

    /// Returns the I/O that reached the files under the disk, tables included. The counts never decrease.
    fn device_counters(&self) -> FileCounters;

    /// Returns the same counts by layer, base first; empty for a native disk, which has no chain.
    fn layer_counters(&self) -> Vec<LayerCounters>;

    /// Returns the number of layers of its chain; 0 for a native disk.
    fn layer_count(&self) -> usize {
        0
    }

    /// Returns how much the disk can still allocate if its guest writes everything, in bytes.
    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>>;
}

/// An open VM. Snapshots are identified by name or id, disks by the N of `diskN`.
///
/// Operations run one at a time, in the order of the calls. An operation that is refused, or that finds no space, has
/// changed nothing.
pub trait Machine {
    /// Returns the environment: clock, tasks and memory.
    fn env(&self) -> &Env;

    /// Returns a copy of the home's present state.
    fn state(&self) -> VmState;

    /// Returns the content generation of the running disks. It does not change while a client is attached to one of
    /// them.
    fn generation(&self) -> ContentGeneration;

    /// Changes the generation alone. The change is durable when this resolves.
    fn change_generation(&self, change: GenerationChange) -> Local<'_, Result<()>>;

    /// Returns the disks in the order of the state. A revert replaces them.
    fn disks(&self) -> Vec<Rc<dyn RunningDisk>>;

    /// Returns the numbers of those disks, in the same order.
    fn disk_numbers(&self) -> Vec<u32>;

    /// Returns the sum over all disks; a revert resets it. Native VMs of one store share its file, and therefore these
    /// counters.
    fn device_counters(&self) -> FileCounters;

    /// Returns the disk of this number.
    ///
    /// # Errors
    /// `NotFound`, with the disks that exist.
    fn disk(&self, number: u32) -> Result<Rc<dyn RunningDisk>>;

    /// Returns whether the snapshot's content can no longer change.
    fn is_sealed(&self, snapshot: u128) -> bool;

    /// Returns the VM's jobs, finished ones included.
    fn jobs(&self) -> Vec<Rc<Job>>;

    /// Returns the latest events, oldest first.
    fn events(&self) -> Vec<Event>;

    /// Sets the listener, which is called with each event from now on.
    fn listen(&self, listener: Listener);

    /// Holds back guest writes that may take space of the file system, until the returned guard is dropped. When this
    /// resolves, the writes under way have ended.
    fn hold_writes(&self) -> Local<'_, Box<dyn Any>>;

    /// Returns the writable clients: (disk number, client).
    fn clients(&self) -> Vec<(u32, String)>;

    /// Returns the clients on sealed states: (snapshot id, client).
    fn viewers(&self) -> Vec<(u128, String)>;

    /// Returns the layers of every running disk, in the order of the state.
    fn listing(&self) -> Local<'_, Result<Vec<DiskLayers>>>;

    /// Returns the bytes of running chains' deltas that no snapshot owns. It reads files only after a change.
    fn unowned_bytes(&self) -> Local<'_, Result<u64>>;

    /// Returns bytes by snapshot id. Redo store: what the deltas on top of the snapshot hold, on all its branches and
    /// disks. Native store: what only the snapshot holds, which is freed when it is removed.
    fn delta_bytes(&self) -> Local<'_, Result<BTreeMap<u128, u64>>>;

    /// Returns the space that the VM uses on the datastore.
    fn used(&self) -> Local<'_, Result<SpaceUsage>>;

    /// Returns what differs between two states of a disk, one part at a time.
    fn differences<'a>(&'a self, between: DiffRequest<'a>) -> Local<'a, Result<Differences>>;

    /// Takes a snapshot of all persistent disks. Resolves when it is sealed.
    fn take<'a>(self: Rc<Self>, name: &'a str, description: &'a str) -> Local<'a, Result<SnapshotState>>;

    /// Does the same with the id, the name, the description and the time of `label`, which `tree::new_snapshot` made, and
    /// with new deltas in `format`. `Unsupported` for another one than the fitting one where there are no deltas.
    fn take_as(
        self: Rc<Self>,
        label: &SnapshotState,
        format: DeltaFormat,
    ) -> Local<'_, Result<SnapshotState>>;

    /// Takes a snapshot under the id, the names and the time of `original`, another VM's snapshot. A move copies
    /// snapshots with it.
    fn take_copy(self: Rc<Self>, original: &SnapshotState) -> Local<'_, Result<SnapshotState>>;

    /// Returns what a commit would do.
    fn commit_preview<'a>(&'a self, what: &'a CommitWhat) -> Local<'a, Result<CommitPreview>>;

    /// Starts a commit. When this resolves, the names have durably left the tree.
    fn commit(self: Rc<Self>, what: &CommitWhat) -> Local<'_, Result<Rc<Job>>>;

    /// Starts a job that lays running disks out in order.
    ///
    /// # Errors
    /// `Refused` for a VM whose disks are delta chains, and while such a job is under way.
    fn defragment(self: Rc<Self>, request: DefragmentRequest) -> Local<'static, Result<Rc<Job>>>;

    /// Returns the bytes that a sequential read of a running disk gets on average before it has to go elsewhere, from
    /// samples; None for a disk that is a delta chain, or without data.
    fn average_run_bytes(&self, number: u32) -> Local<'_, Result<Option<u64>>>;

    /// Returns what a revert to `wanted` (`None`: the current snapshot) would throw away. With `keeps_present` a take
    /// comes first.
    fn revert_preview<'a>(&'a self, wanted: Option<&'a str>, keeps_present: bool) -> Local<'a, Result<Loss>>;

    /// Goes back to a snapshot and keeps it. With `take_first` the present state first becomes a snapshot of that name.
    /// Otherwise, with `keep`, the present state goes to the bin.
    fn revert<'a>(
        self: Rc<Self>,
        wanted: Option<&'a str>,
        take_first: Option<&'a str>,
        keep: bool,
    ) -> Local<'a, Result<SnapshotState>>;

    /// Returns what a discard of the snapshot would throw away.
    fn discard_preview<'a>(&'a self, wanted: &'a str) -> Local<'a, Result<Loss>>;

    /// Throws away a snapshot's name and everything written since the snapshot; with `keep` both go to the bin.
    fn discard(self: Rc<Self>, wanted: &str, keep: bool) -> Local<'_, Result<Loss>>;

    /// Gives a snapshot another name or description. The change is durable when this resolves.
    fn rename<'a>(self: Rc<Self>, wanted: &'a str, label: &'a Rename) -> Local<'a, Result<SnapshotState>>;

    /// Returns what a reset would throw away.
    fn reset_preview(&self) -> Local<'_, Result<Loss>>;

    /// Drops what was written to the nonpersistent disks since the last reset; with `keep` it goes to the bin.
    fn reset(self: Rc<Self>, keep: bool) -> Local<'static, Result<Loss>>;

    /// Returns what a restore of an entry of the bin (`VmState::bin`) would throw away.
    fn restore_preview(&self, id: u64) -> Local<'_, Result<Loss>>;

    /// Restores an entry of the bin. Its snapshots return to the tree. The entry's disks run again with the content
    /// that the entry keeps; with `keep` their present content goes to the bin.
    fn restore(self: Rc<Self>, id: u64, keep: bool) -> Local<'static, Result<Loss>>;

    /// Removes entries of the bin permanently and skips unknown ones. Returns the bytes freed.
    fn empty_bin(self: Rc<Self>, ids: Vec<u64>) -> Local<'static, Result<u64>>;

    /// Returns the bytes that only this entry of the bin holds.
    fn binned_bytes(&self, id: u64) -> Local<'_, Result<u64>>;

    /// Adds an empty disk. Existing snapshots do not include it.
    fn add_disk(self: Rc<Self>, wanted: &NewDisk) -> Local<'_, Result<DiskState>>;

    /// Removes a disk from the VM. Its data stays, unless `remove_files`; snapshots that include the disk keep it in
    /// any case.
    fn remove_disk(self: Rc<Self>, number: u32, remove_files: bool) -> Local<'static, Result<()>>;

    /// Makes a disk larger.
    fn grow_disk(self: Rc<Self>, number: u32, size_bytes: u64) -> Local<'static, Result<()>>;

    /// Changes whether snapshots include a disk, or whether a reset drops its writes.
    fn set_mode(self: Rc<Self>, number: u32, mode: DiskMode) -> Local<'static, Result<()>>;

    /// Attaches a writable client to a running disk.
    fn attach<'a>(&'a self, number: u32, client: &'a str) -> Local<'a, Result<Attached<Client>>>;

    /// Opens a sealed state of one disk, read-only. The view protects the state until it is dropped.
    fn open_view<'a>(
        &'a self,
        snapshot: &'a str,
        number: u32,
        client: &'a str,
    ) -> Local<'a, Result<Attached<View>>>;

    /// Returns a sealed snapshot and a guard that keeps its content in place for work outside of the engine.
    fn hold<'a>(&'a self, snapshot: &'a str, client: &'a str)
    -> Local<'a, Result<(SnapshotState, Rc<View>)>>;

    /// Ends the VM's service. No new write begins; the writes under way complete and are durable. Jobs stop at their
    /// next safe point and resume when the VM is opened again.
    fn close(&self) -> Local<'_, Result<()>>;
}

/// Boxes the futures of a VM's own methods of the same names: of methods that borrow the VM, and of operations that share
/// it and borrow their arguments or nothing.
macro_rules! boxed {
    ($vm:ty, borrowing $a:lifetime: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name<$a>(&$a self, $($arg: $type),*) -> Local<$a, Result<$out>> {
            Box::pin(<$vm>::$name(self, $($arg),*))
        })*
    };
    ($vm:ty, 'static: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(self: Rc<Self>, $($arg: $type),*) -> Local<'static, Result<$out>> {
            Box::pin(async move { <$vm>::$name(&self, $($arg),*).await })
        })*
    };
    ($vm:ty, $a:lifetime: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name<$a>(self: Rc<Self>, $($arg: $type),*) -> Local<$a, Result<$out>> {
            Box::pin(async move { <$vm>::$name(&self, $($arg),*).await })
        })*
    };
}

/// Calls another macro with the operations that borrow the VM.
macro_rules! borrowing_operations {
    ($then:ident! $($vm:ty)?) => {
        $then! { $($vm,)? borrowing 'a:
            change_generation(change: GenerationChange) -> ();
            listing() -> Vec<DiskLayers>;
            unowned_bytes() -> u64;
            delta_bytes() -> BTreeMap<u128, u64>;
            used() -> SpaceUsage;
            differences(between: DiffRequest<'a>) -> Differences;
            commit_preview(what: &'a CommitWhat) -> CommitPreview;
            revert_preview(wanted: Option<&'a str>, keeps_present: bool) -> Loss;
            discard_preview(wanted: &'a str) -> Loss;
            reset_preview() -> Loss;
            restore_preview(id: u64) -> Loss;
            binned_bytes(id: u64) -> u64;
            average_run_bytes(number: u32) -> Option<u64>;
            hold(snapshot: &'a str, client: &'a str) -> (SnapshotState, Rc<View>);
            close() -> ();
        }
    };
}
pub(crate) use borrowing_operations;

/// Implements the interface by a VM's own methods of the same names, whose futures it boxes.
macro_rules! implement_machine {
    ($vm:ty) => {
        impl Machine for $vm {
            fn env(&self) -> &Env {
                &self.env
            }

            fn state(&self) -> VmState {
                <$vm>::state(self)
            }

            fn generation(&self) -> ContentGeneration {
                self.state.borrow().generation
            }

            fn disks(&self) -> Vec<Rc<dyn RunningDisk>> {
                <$vm>::disks(self).into_iter().map(|disk| disk as Rc<dyn RunningDisk>).collect()
            }

            fn disk_numbers(&self) -> Vec<u32> {
                <$vm>::disks(self).iter().map(|disk| disk.number).collect()
            }

            fn device_counters(&self) -> FileCounters {
                <$vm>::device_counters(self)
            }

            fn disk(&self, number: u32) -> Result<Rc<dyn RunningDisk>> {
                Ok(<$vm>::disk(self, number)?)
            }

            fn is_sealed(&self, snapshot: u128) -> bool {
                self.activity.is_sealed(snapshot)
            }

            fn jobs(&self) -> Vec<Rc<Job>> {
                self.activity.jobs()
            }

            fn events(&self) -> Vec<Event> {
                self.activity.events()
            }

            fn listen(&self, listener: Listener) {
                self.activity.listen(listener);
            }

            fn hold_writes(&self) -> Local<'_, Box<dyn Any>> {
                Box::pin(async { Box::new(<$vm>::hold_writes(self).await) as Box<dyn Any> })
            }

            fn clients(&self) -> Vec<(u32, String)> {
                self.activity.clients()
            }

            fn viewers(&self) -> Vec<(u128, String)> {
                self.activity.viewers()
            }

            fn empty_bin(self: Rc<Self>, ids: Vec<u64>) -> Local<'static, Result<u64>> {
                Box::pin(async move { <$vm>::empty_bin(&self, &ids).await })
            }

            fn attach<'a>(&'a self, number: u32, client: &'a str) -> Local<'a, Result<Attached<Client>>> {
                Box::pin(async move {
                    let (disk, attached) = <$vm>::attach(self, number, client).await?;
                    Ok((disk as Rc<dyn Volume>, attached))
                })
            }

            fn open_view<'a>(
                &'a self,
                snapshot: &'a str,
                number: u32,
                client: &'a str,
            ) -> Local<'a, Result<Attached<View>>> {
                Box::pin(async move {
                    let (disk, view) = <$vm>::open_view(self, snapshot, number, client).await?;
                    Ok((disk as Rc<dyn Volume>, view))
                })
            }

            borrowing_operations! { boxed! $vm }
            boxed! { $vm, 'a:
                take(name: &'a str, description: &'a str) -> SnapshotState;
                take_as(label: &'a SnapshotState, format: DeltaFormat) -> SnapshotState;
                take_copy(original: &'a SnapshotState) -> SnapshotState;
                commit(what: &'a CommitWhat) -> Rc<Job>;
                revert(wanted: Option<&'a str>, take_first: Option<&'a str>, keep: bool) -> SnapshotState;
                discard(wanted: &'a str, keep: bool) -> Loss;
                rename(wanted: &'a str, label: &'a Rename) -> SnapshotState;
                add_disk(wanted: &'a NewDisk) -> DiskState;
            }
            boxed! { $vm, 'static:
                defragment(request: DefragmentRequest) -> Rc<Job>;
                reset(keep: bool) -> Loss;
                restore(id: u64, keep: bool) -> Loss;
                remove_disk(number: u32, remove_files: bool) -> ();
                grow_disk(number: u32, size_bytes: u64) -> ();
                set_mode(number: u32, mode: DiskMode) -> ();
            }
        }
    };
}

implement_machine!(Vm);
implement_machine!(NativeVm);
