//! A VM moves between its store and files of its own while its guests run.

use std::cell::Cell;
use std::rc::Rc;

use blk::manifest::NewDisk;
use blk::volume::Volume;
use blk::{Error, Result};
use engine::job::MOVE;
use engine::native::NativeVm;
use engine::relocate::{Relocation, refuse_unmovable};
use engine::{Job, Machine, Vm};
use futures_util::future::join_all;

use super::formats::{self, HomeFiles};
use super::node::{Claim, Entry, Kept, Node};
use super::remove::refuse_readers;
use super::settle;
use super::switch::Switch;
use crate::api::{self, Store};
use crate::name::VmName;

/// The side that a VM moves to.
struct Side {
    vm: Rc<dyn Machine>,
    kept: Kept,
    /// Of the VM in the store, on whichever side that is.
    native: u128,
    store: Store,
}

/// A running disk while it moves.
struct Switched {
    switch: Rc<Switch>,
    source: Rc<dyn Volume>,
    target: Rc<dyn Volume>,
}

impl Node {
    /// Answers with the job as soon as the other side is there.
    pub async fn vm_move(
        self: &Rc<Self>,
        vm: &VmName,
        request: api::VmMove,
    ) -> crate::error::Result<api::Job> {
        let entry = self.entry_to_change(vm.as_str())?;
        let claim = self.claim(vm.as_str())?;
        refuse_to_move(&entry, &request).await?;
        let used = entry.vm.used().await?;
        let bytes = used.allocated_bytes + used.shared_bytes;
        self.refuse_without_room(&entry.name, bytes).await?;
        let side = match self.make_side(&entry, request.store).await {
            Ok(side) => side,
            Err(error) => {
                // What cannot be removed now goes at the next start.
                let _ = settle::settle(self, &entry.home).await;
                return Err(error.into());
            }
        };
        let id = self.next_job();
        let job = Job::new(self.env.clone(), id, MOVE, String::new());
        job.bytes_total.set(bytes);
        self.track(Some(&entry), &job);
        entry.moving.set(id);
        self.note(&entry, &format!("moving to the {} store (job {id})", request.store.as_str()));
        let (node, worker) = (self.clone(), job.clone());
        self.env.spawn_detached(Box::pin(async move { node.run_move(&entry, side, &worker, claim).await }));
        self.job_do(id, |_| Ok(()))
    }

    async fn run_move(self: &Rc<Self>, entry: &Rc<Entry>, side: Side, job: &Rc<Job>, claim: Claim) {
        let moved = self.move_to(entry, &side, job).await;
        if let Err(error) = &moved {
            self.note(entry, &format!("the move came to nothing: {error}"));
        }
        entry.moving.set(0);
        drop(claim);
        // What the guests have written since the start was copied too.
        job.bytes_total.set(job.bytes_total.get().max(job.bytes_done.get()));
        job.end(moved);
    }

    /// A datastore that a move fills up would hold the guest's own writes back.
    async fn refuse_without_room(&self, name: &str, bytes: u64) -> Result<()> {
        let free = self.dir.space().await?.free_bytes;
        if free < bytes {
            let cause = format!("a move copies {bytes} bytes at most, and {free} are free");
            return Err(Error::refused(format!("VM {name}"), cause));
        }
        Ok(())
    }

    async fn make_side(&self, entry: &Entry, store: Store) -> Result<Side> {
        let (options, home) = (self.options(entry.when_full), &entry.home);
        let disks = entry.vm.state().disks;
        match &entry.kept {
            Kept::Redo(_) => {
                let store = self.native.open_or_make().await?;
                let id = store.create_vm_like(&entry.name, &disks).await?;
                settle::begin(self, home, Store::Native, id).await?;
                let vm = NativeVm::open(&store, id, options).await?;
                Ok(Side { vm: vm.clone(), kept: Kept::Native(vm), native: id, store: Store::Native })
            }
            Kept::Native(vm) => {
                // What is there is somebody's, and would go with a move that fails.
                settle::refuse_inhabited(self, home).await?;
                settle::begin(self, home, store, vm.id()).await?;
                let disks = disks.iter().map(|disk| NewDisk {
                    size_bytes: disk.size_bytes,
                    mode: disk.mode,
                    folder: None,
                });
                formats::create_in(self, home, &entry.name, disks.collect()).await?;
                let files = Rc::new(HomeFiles::open(self, home).await?);
                let made = Vm::open(self.env.clone(), files.manifest(), options).await?;
                Ok(Side { vm: made, kept: Kept::Redo(files), native: vm.id(), store })
            }
        }
    }

    async fn move_to(self: &Rc<Self>, entry: &Rc<Entry>, side: &Side, job: &Rc<Job>) -> Result<()> {
        let in_doubt = Cell::new(false);
        let stun_us = match self.relocate(entry, side, job, &in_doubt).await {
            Ok(stun_us) => stun_us,
            Err(error) if in_doubt.get() => {
                // Which side is the VM stands in its home, where it could not be read back: a start will.
                let _ = entry.vm.close().await;
                self.break_down(&entry.name, &entry.home, &error.clone().into());
                return Err(error);
            }
            Err(error) => {
                side.vm.close().await?;
                settle::settle(self, &entry.home).await?;
                return Err(error);
            }
        };
        let moved = self.entry(&entry.name)?;
        self.note_stun(&moved, &format!("moved to the {} store", side.store.as_str()), stun_us);
        let left = async {
            entry.vm.close().await?;
            settle::settle(self, &entry.home).await
        };
        if let Err(error) = left.await {
            self.note(&moved, &format!("what it was is still there, and goes at the next start: {error}"));
        }
        Ok(())
    }

    /// From the first block copied to the step, after which the entry in the datastore is another one.
    async fn relocate(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        side: &Side,
        job: &Rc<Job>,
        in_doubt: &Cell<bool>,
    ) -> Result<u64> {
        let moving = Relocation::new(entry.vm.clone(), side.vm.clone(), job.clone());
        moving.copy_snapshots().await?;
        let mut switched: Vec<Switched> = Vec::new();
        let moved = async {
            let mut drained = Vec::new();
            for (number, mirror) in moving.mirrors().await? {
                let (source, _client) = entry.vm.attach(number, "a move").await?;
                let (target, _client) = side.vm.attach(number, "a move").await?;
                let switch = entry.door.guests.switch(number, source.clone());
                drained.push(switch.replace(mirror));
                switched.push(Switched { switch, source, target });
            }
            join_all(drained).await;
            moving.copy_running().await?;
            self.hand_over(entry, side, &moving, &switched, in_doubt).await
        };
        let moved = moved.await;
        if moved.is_err() {
            // No write reaches the other side any more when this has ended.
            join_all(switched.iter().map(|s| s.switch.replace(s.source.clone()))).await;
        }
        moved
    }

    async fn hand_over(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        side: &Side,
        moving: &Relocation,
        switched: &[Switched],
        in_doubt: &Cell<bool>,
    ) -> Result<u64> {
        let _shut = entry.door.shut_behind().await;
        let guests = entry.door.guests.counted_by(&*side.vm).await?;
        let step = async || {
            refuse_viewers(entry)?;
            let stepped = settle::step(self, &entry.home, side.store, side.native).await;
            if stepped.is_err() {
                let back = if side.store == Store::Native { Store::Redo } else { Store::Native };
                in_doubt.set(settle::step(self, &entry.home, back, side.native).await.is_err());
            }
            stepped
        };
        let stun_us = moving.finish(step).await?;
        // Neither waits: what is under way in the mirrors ends on the new side.
        for moved in switched {
            drop(moved.switch.replace(moved.target.clone()));
        }
        for (guest, client) in guests {
            guest.count_as(client);
        }
        self.replace_entry(entry, side.vm.clone(), side.kept.clone());
        Ok(stun_us)
    }
}

fn refuse_viewers(entry: &Entry) -> Result<()> {
    match entry.readers().first() {
        Some(reader) => {
            let cause = format!("{reader}; disconnect that client first");
            Err(Error::refused(format!("VM {}", entry.name), cause))
        }
        None => Ok(()),
    }
}

async fn refuse_to_move(entry: &Entry, request: &api::VmMove) -> crate::error::Result<()> {
    let name = &entry.name;
    let refused = |cause: &str| Err(Error::refused(format!("VM {name}"), cause).into());
    if entry.kept.store() == request.store {
        return refused("it is in that store already");
    }
    let state = entry.vm.state();
    if let Some(number) = request.disk {
        entry.vm.disk(number)?;
        if state.disks.len() > 1 {
            return refused("its disks are snapshotted together and stay together; move the whole VM");
        }
    }
    if entry.vm.jobs().iter().any(|job| !job.state().is_over()) {
        return refused("a job of it is under way; wait for it or cancel it (unstun job list)");
    }
    refuse_viewers(entry)?;
    refuse_unmovable(name, &state.disks)?;
    match &entry.kept {
        // Their readers would lose what they read.
        Kept::Redo(files) => refuse_readers(name, &*files.manifest()).await,
        Kept::Native(_) if state.disks.iter().enumerate().all(|(n, disk)| n as u32 == disk.number) => Ok(()),
        Kept::Native(_) => refused("its disks are not numbered from 0 on, which files made anew would be"),
    }
}
