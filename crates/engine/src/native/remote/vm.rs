//! A native VM as the core of its clients sees it: its disks, its clients, and a copy of its state.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use blk::file::FileCounters;
use blk::manifest::{ContentGeneration, DeltaFormat, DiskMode, DiskState, NewDisk, SnapshotState, VmState};
use blk::{Env, Error, Local, Result};

use super::disk::RemoteDisk;
use super::link::{Answer, AttachedThere, DiskTicket, VmNow, VmWork, Work};
use super::served_vm::VmTicket;
use super::vm_side::{AttachedHere, VmSide};
use crate::activity::Activity;
use crate::client::{Client, GenerationChange, View};
use crate::event::{Event, Listener};
use crate::job::Job;
use crate::machine::{Attached, Machine, RunningDisk, borrowing_operations};
use crate::operations::{
    CommitPreview, CommitWhat, DefragmentRequest, DiffRequest, Differences, DiskLayers, Loss, Rename,
    SpaceUsage,
};
use crate::stats::{DiskStats, LayerCounters};

/// The clients' side of a native VM whose store is on another core. Its operations run on that core: here they are
/// refused.
pub struct RemoteVm {
    side: Rc<VmSide>,
    number: u64,
    name: String,
    now: RefCell<VmNow>,
    /// Running disks by their number in the VM, from the first client on.
    disks: RefCell<BTreeMap<u32, Rc<RemoteDisk>>>,
    /// Disks of answers that no task has taken yet, by their number on the store's core.
    fresh: RefCell<BTreeMap<u64, Result<Rc<RemoteDisk>>>>,
    activity: Activity,
}

/// Lets a client leave on the store's core when it is dropped.
struct Leaving {
    side: Rc<VmSide>,
    vm: u64,
    guard: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.side.leave(self.vm, self.guard);
    }
}

impl Drop for RemoteVm {
    fn drop(&mut self) {
        self.disks.take();
        self.side.close_vm(self.number);
    }
}

impl VmSide {
    /// Serves a VM's disks on this core.
    pub fn open_vm(self: &Rc<Self>, ticket: VmTicket) -> Rc<RemoteVm> {
        let number = ticket.number;
        let vm = RemoteVm::new(self, ticket);
        let here: Weak<dyn AttachedHere> = Rc::<RemoteVm>::downgrade(&vm);
        self.vms.borrow_mut().insert(number, here);
        vm
    }
}

impl RemoteVm {
    pub(super) fn new(side: &Rc<VmSide>, ticket: VmTicket) -> Rc<RemoteVm> {
        Rc::new(RemoteVm {
            side: side.clone(),
            number: ticket.number,
            activity: Activity::new(&side.env, &ticket.name),
            name: ticket.name,
            now: RefCell::new(ticket.now),
            disks: RefCell::default(),
            fresh: RefCell::default(),
        })
    }

    /// Brings the copy of the state up to date, and closes disks that were removed. What was sent to the store's core before has been carried out when this
    /// returns.
    pub async fn refresh(&self) {
        if let Answer::Vm(now) = self.request(VmWork::State).await {
            let is_present = |number: u32| now.state.disks.iter().any(|disk| disk.number == number);
            self.disks.borrow_mut().retain(|number, _| is_present(*number));
            self.now.replace(now);
        }
    }

    /// Closes the disks here. The VM has no clients.
    pub fn close_disks(&self) {
        let disks = self.disks.take();
        drop(disks);
    }

    fn request(&self, work: VmWork) -> impl Future<Output = Answer> + use<> {
        self.side.request(self.number, Work::Vm(work), None)
    }

    async fn attach_there(&self, work: VmWork) -> Result<(AttachedThere, Option<Rc<RemoteDisk>>)> {
        let Answer::Attached(attached) = self.request(work).await else {
            return Err(Error::refused(&self.name, "the VM is being opened or closed; try again"));
        };
        let (now, there) = *attached;
        self.now.replace(now);
        let there = there?;
        let fresh = self.fresh.borrow_mut().remove(&there.disk).transpose();
        match fresh {
            Ok(fresh) => Ok((there, fresh)),
            Err(e) => {
                self.side.leave(self.number, there.guard);
                Err(e)
            }
        }
    }

    fn held(&self, there: &AttachedThere) -> Option<Box<dyn Any>> {
        Some(Box::new(Leaving { side: self.side.clone(), vm: self.number, guard: there.guard }))
    }

    async fn attach_running(&self, number: u32, client: &str) -> Result<Attached<Client>> {
        let (there, fresh) = self.attach_there(VmWork::Attach { number, client: client.to_owned() }).await?;
        let held = self.held(&there);
        if let Some(fresh) = fresh {
            self.disks.borrow_mut().insert(number, fresh);
        }
        let known = self.disks.borrow().get(&number).filter(|disk| disk.number == there.disk).cloned();
        let disk =
            known.ok_or_else(|| Error::refused(&self.name, "its disks are being replaced; try again"))?;
        Ok((disk, self.activity.attach_held(number, client, held)))
    }

    async fn open_sealed(&self, snapshot: &str, number: u32, client: &str) -> Result<Attached<View>> {
        let (snapshot, name) = (snapshot.to_owned(), client.to_owned());
        let (there, fresh) = self.attach_there(VmWork::OpenView { snapshot, number, client: name }).await?;
        let held = self.held(&there);
        let disk =
            fresh.ok_or_else(|| Error::refused(&self.name, "the snapshot was not opened; try again"))?;
        let view = View { snapshot: there.snapshot, client: client.to_owned(), still: false, _held: held };
        Ok((disk, self.activity.view_held(view)))
    }

    fn elsewhere(&self) -> Error {
        Error::refused(&self.name, "the operations of a native VM run on its store's core")
    }

    fn refused<T: 'static>(&self) -> Local<'static, Result<T>> {
        Box::pin(std::future::ready(Err(self.elsewhere())))
    }
}

/// A running disk that had no client yet.
#[derive(Default)]
struct UnusedDisk(DiskStats);

impl RunningDisk for UnusedDisk {
    fn stats(&self) -> &DiskStats {
        &self.0
    }

    fn device_counters(&self) -> FileCounters {
        FileCounters::default()
    }

    fn layer_counters(&self) -> Vec<LayerCounters> {
        Vec::new()
    }

    fn worst_growth_bytes(&self) -> Local<'_, Result<u64>> {
        Box::pin(std::future::ready(Ok(0)))
    }
}

/// Refuses operations, which run on the store's core.
macro_rules! elsewhere {
    (borrowing $a:lifetime: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name<$a>(&$a self, $($arg: $type),*) -> Local<$a, Result<$out>> {
            $(let _ = $arg;)*
            self.refused()
        })*
    };
    (shared $a:lifetime: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name<$a>(self: Rc<Self>, $($arg: $type),*) -> Local<$a, Result<$out>> {
            $(let _ = $arg;)*
            self.refused()
        })*
    };
    (owned: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(self: Rc<Self>, $($arg: $type),*) -> Local<'static, Result<$out>> {
            $(let _ = $arg;)*
            self.refused()
        })*
    };
}

impl AttachedHere for RemoteVm {
    /// Keeps the disk for the task that waits for the answer.
    fn open(&self, ticket: DiskTicket) {
        let number = ticket.number;
        self.fresh.borrow_mut().insert(number, self.side.open(ticket));
    }
}

impl Machine for RemoteVm {
    fn env(&self) -> &Env {
        &self.side.env
    }

    fn state(&self) -> VmState {
        self.now.borrow().state.clone()
    }

    fn generation(&self) -> ContentGeneration {
        self.now.borrow().state.generation
    }

    fn disk_numbers(&self) -> Vec<u32> {
        self.now.borrow().state.disks.iter().map(|disk| disk.number).collect()
    }

    fn disks(&self) -> Vec<Rc<dyn RunningDisk>> {
        self.disk_numbers().into_iter().filter_map(|number| self.disk(number).ok()).collect()
    }

    fn device_counters(&self) -> FileCounters {
        let disks = self.disks.borrow();
        disks.values().next().map(|disk| disk.device_counters()).unwrap_or_default()
    }

    fn disk(&self, number: u32) -> Result<Rc<dyn RunningDisk>> {
        match self.disks.borrow().get(&number) {
            Some(disk) => Ok(disk.clone()),
            None => Ok(Rc::new(UnusedDisk::default())),
        }
    }

    fn is_sealed(&self, snapshot: u128) -> bool {
        !self.now.borrow().unsealed.contains(&snapshot)
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        Vec::new()
    }

    fn events(&self) -> Vec<Event> {
        Vec::new()
    }

    fn listen(&self, _listener: Listener) {}

    fn hold_writes(&self) -> Local<'_, Box<dyn Any>> {
        Box::pin(async { Box::new(()) as Box<dyn Any> })
    }

    fn clients(&self) -> Vec<(u32, String)> {
        self.activity.clients()
    }

    fn viewers(&self) -> Vec<(u128, String)> {
        self.activity.viewers()
    }

    fn take_copy(self: Rc<Self>, _original: &SnapshotState) -> Local<'_, Result<SnapshotState>> {
        self.refused()
    }

    fn commit(self: Rc<Self>, _what: &CommitWhat) -> Local<'_, Result<Rc<Job>>> {
        self.refused()
    }

    fn discard(self: Rc<Self>, _wanted: &str, _keep: bool) -> Local<'_, Result<Loss>> {
        self.refused()
    }

    fn rename<'a>(self: Rc<Self>, _wanted: &'a str, _label: &'a Rename) -> Local<'a, Result<SnapshotState>> {
        self.refused()
    }

    fn add_disk(self: Rc<Self>, _wanted: &NewDisk) -> Local<'_, Result<DiskState>> {
        self.refused()
    }

    fn attach<'a>(&'a self, number: u32, client: &'a str) -> Local<'a, Result<Attached<Client>>> {
        Box::pin(self.attach_running(number, client))
    }

    fn open_view<'a>(
        &'a self,
        snapshot: &'a str,
        number: u32,
        client: &'a str,
    ) -> Local<'a, Result<Attached<View>>> {
        Box::pin(self.open_sealed(snapshot, number, client))
    }

    borrowing_operations! { elsewhere! }

    elsewhere! { shared 'a:
        take(name: &'a str, description: &'a str) -> SnapshotState;
        take_as(label: &'a SnapshotState, format: DeltaFormat) -> SnapshotState;
        revert(wanted: Option<&'a str>, first: Option<&'a str>, keep: bool) -> SnapshotState;
    }

    elsewhere! { owned:
        defragment(request: DefragmentRequest) -> Rc<Job>;
        reset(keep: bool) -> Loss;
        restore(id: u64, keep: bool) -> Loss;
        empty_bin(ids: Vec<u64>) -> u64;
        remove_disk(number: u32, remove_files: bool) -> ();
        grow_disk(number: u32, size_bytes: u64) -> ();
        set_mode(number: u32, mode: DiskMode) -> ();
    }
}
