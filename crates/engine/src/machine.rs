//! The interface of an open VM, the same for both kinds of store.

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;

use blk::file::FileCounters;
use blk::manifest::{ContentGeneration, DiskMode, DiskState, NewDisk, SnapshotState, VmState};
use blk::volume::Volume;
use blk::{Env, Local, Result};

use crate::client::{Client, GenerationChange, View};
use crate::event::Event;
use crate::event::Listener;
use crate::job::Job;
use crate::operations::Loss;
use crate::operations::{Between, Differences};
use crate::operations::{CommitPreview, CommitWhat};
use crate::operations::{DiskLayers, Use};
use crate::stats::{DiskStats, LayerCounters};

/// A volume, and what counts its user until it is dropped.
pub type Attached<User> = (Rc<dyn Volume>, Rc<User>);

/// A disk as it runs.
pub trait RunningDisk {
    fn stats(&self) -> &DiskStats;

    /// I/O that reached the files under the disk, tables included. Never less than before.
    fn device_counters(&self) -> FileCounters;

    /// Its part by layer, base first; none of a native disk, which has no chain.
    fn layer_counters(&self) -> Vec<LayerCounters>;

    /// What it can still allocate, if its guest writes everything.
    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>>;
}

/// An open VM. Snapshots are named by name or id; disks by the N of `diskN`.
///
/// Operations happen one at a time, in the order they were asked for. One that is refused, or that finds no space, has
/// changed nothing.
pub trait Machine {
    fn env(&self) -> &Env;

    /// A copy of what the home says now.
    fn state(&self) -> VmState;

    /// Of the running disks' present content. It does not change while a client is attached to one of them.
    fn generation(&self) -> ContentGeneration;

    /// Changes the generation alone. Durable when it answers.
    fn change_generation(&self, change: GenerationChange) -> Local<'_, Result<()>>;

    /// In the order of the state. A revert replaces them.
    fn disks(&self) -> Vec<Rc<dyn RunningDisk>>;

    /// Of all of them together; a revert begins anew. Native VMs of one store share its file, and so these.
    fn device_counters(&self) -> FileCounters;

    /// `NotFound`, with the disks there are.
    fn disk(&self, number: u32) -> Result<Rc<dyn RunningDisk>>;

    /// Its content can no longer change.
    fn is_sealed(&self, snapshot: u128) -> bool;

    fn jobs(&self) -> Vec<Rc<Job>>;

    /// The latest, oldest first.
    fn events(&self) -> Vec<Event>;

    /// Called with each event as it happens, from now on.
    fn listen(&self, listener: Listener);

    /// Holds back guest writes that may take space of the file system, until the answer is dropped. Those under way have
    /// ended.
    fn hold_writes(&self) -> Local<'_, Box<dyn Any>>;

    /// Writable clients: (disk number, client).
    fn clients(&self) -> Vec<(u32, String)>;

    /// Clients on sealed states: (snapshot id, client).
    fn viewers(&self) -> Vec<(u128, String)>;

    /// Of every running disk, in the order of the state.
    fn listing(&self) -> Local<'_, Result<Vec<DiskLayers>>>;

    /// By the snapshot's id, bytes. With chains: held by what was written on top of it, on all its branches and disks. In a
    /// native store: what only it holds, which comes back when it goes.
    fn delta_bytes(&self) -> Local<'_, Result<BTreeMap<u128, u64>>>;

    fn used(&self) -> Local<'_, Result<Use>>;

    /// What differs between two states of a disk, a part at a time.
    fn differences<'a>(&'a self, between: Between<'a>) -> Local<'a, Result<Differences>>;

    /// Takes a snapshot of all persistent disks. Resolves when it is sealed.
    fn take<'a>(self: Rc<Self>, name: &'a str, description: &'a str) -> Local<'a, Result<SnapshotState>>;

    /// A take under the id, the names and the time of another VM's snapshot: a move goes on.
    fn take_copy<'a>(self: Rc<Self>, original: &'a SnapshotState) -> Local<'a, Result<SnapshotState>>;

    fn commit_preview<'a>(&'a self, what: &'a CommitWhat) -> Local<'a, Result<CommitPreview>>;

    /// When this resolves the names have left the tree, durably.
    fn commit<'a>(self: Rc<Self>, what: &'a CommitWhat) -> Local<'a, Result<Rc<Job>>>;

    /// What a revert to `wanted` (None: the snapshot the VM runs on from) would throw away. With `keeps_present` a take
    /// comes first.
    fn revert_preview<'a>(&'a self, wanted: Option<&'a str>, keeps_present: bool) -> Local<'a, Result<Loss>>;

    /// Goes back to a snapshot and keeps it. With `take_first` the present becomes a snapshot of that name before; else, with
    /// `keep`, it goes to the bin.
    fn revert<'a>(
        self: Rc<Self>,
        wanted: Option<&'a str>,
        take_first: Option<&'a str>,
        keep: bool,
    ) -> Local<'a, Result<SnapshotState>>;

    fn discard_preview<'a>(&'a self, wanted: &'a str) -> Local<'a, Result<Loss>>;

    /// Throws away what was written since the snapshot, and its name; with `keep` into the bin.
    fn discard<'a>(self: Rc<Self>, wanted: &'a str, keep: bool) -> Local<'a, Result<Loss>>;

    fn reset_preview(&self) -> Local<'_, Result<Loss>>;

    /// Drops what was written to the nonpersistent disks since the last reset, with `keep` into the bin.
    fn reset(self: Rc<Self>, keep: bool) -> Local<'static, Result<Loss>>;

    /// What a restore of an entry of the bin (`VmState::bin`) would throw away.
    fn restore_preview(&self, id: u64) -> Local<'_, Result<Loss>>;

    /// Makes an entry of the bin the VM's again. Its snapshots return to the tree; where it has disks they run on as they
    /// were, and with `keep` what they show now goes to the bin.
    fn restore(self: Rc<Self>, id: u64, keep: bool) -> Local<'static, Result<Loss>>;

    /// Removes entries of the bin for good; unknown ones are passed over. Answers the bytes given back.
    fn empty_bin(self: Rc<Self>, ids: Vec<u64>) -> Local<'static, Result<u64>>;

    /// Bytes that only this entry of the bin holds.
    fn binned_bytes(&self, id: u64) -> Local<'_, Result<u64>>;

    fn add_disk<'a>(self: Rc<Self>, wanted: &'a NewDisk) -> Local<'a, Result<DiskState>>;

    /// Its data stays, unless `remove_files`; snapshots that have it keep it in any case.
    fn remove_disk(self: Rc<Self>, number: u32, remove_files: bool) -> Local<'static, Result<()>>;

    fn grow_disk(self: Rc<Self>, number: u32, size_bytes: u64) -> Local<'static, Result<()>>;

    fn set_mode(self: Rc<Self>, number: u32, mode: DiskMode) -> Local<'static, Result<()>>;

    /// A running disk for a writable client.
    fn attach<'a>(&'a self, number: u32, client: &'a str) -> Local<'a, Result<Attached<Client>>>;

    /// A sealed state of one disk, read-only. The view protects it until it is dropped.
    fn open_view<'a>(
        &'a self,
        snapshot: &'a str,
        number: u32,
        client: &'a str,
    ) -> Local<'a, Result<Attached<View>>>;

    /// A sealed snapshot, and a hold on it for work outside of the engine.
    fn hold<'a>(&'a self, snapshot: &'a str, client: &'a str)
    -> Local<'a, Result<(SnapshotState, Rc<View>)>>;

    /// Ends the VM's service: no new writes, those under way complete and are durable. Jobs stop at their next safe point
    /// and go on when the VM is opened again.
    fn close(&self) -> Local<'_, Result<()>>;
}
