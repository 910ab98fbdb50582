//! Moves of a VM while its guests run: between the two kinds of store, and between datastores.

pub(super) mod handover;
pub(super) mod plan;
pub(super) mod record;
pub(super) mod recovery;

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use api::name::VmName;
use blk::Result;
use blk::volume::Volume;
use engine::job::MOVE;
use engine::relocate::Relocation;
use engine::{GenerationChange, Job};
use futures_util::future::{Either, join_all, select};
use tracing::{error, info, warn};

use crate::daemon::relocation::plan::{MovePlan, Side, refuse_viewers};
use crate::daemon::running::client::switchable_volume::Switch;
use crate::daemon::state::Daemon;
use crate::daemon::vm::registry::Claim;
use crate::daemon::vm::vm_record::{MOVE_BEGINS, VmRecord};

/// Time for which the start of a move waits for a take that holds the guest: longer than guests are frozen in general.
const TAKE_WAIT_US: u64 = 5_000_000;

/// Running disk of a VM that moves.
struct Switched {
    switch: Rc<Switch>,
    source: Rc<dyn Volume>,
    target: Rc<dyn Volume>,
}

impl Daemon {
    /// Starts a move, and returns its job as soon as the target side exists. The VM's clients stay attached. Fails with
    /// `Refused` while a client reads a snapshot of the VM.
    pub(crate) async fn vm_move(
        self: &Rc<Self>,
        vm: &VmName,
        request: api::VmMove,
    ) -> api::error::Result<api::Job> {
        let entry = self.entry_to_change(vm.as_str())?;
        let claim = self.claim(vm.as_str())?;
        // The memory of a take under way would be saved into the folder that the VM leaves.
        let before = entry.clone();
        let late = self.env.sleep_us(TAKE_WAIT_US);
        let Either::Left((turn, _)) = select(pin!(before.freezing.lock()), pin!(late)).await else {
            let cause = "a snapshot that holds the guest is being taken; move the VM when it is done";
            return Err(blk::Error::refused(format!("VM {vm}"), cause).into());
        };
        entry.refuse_when_moving()?;
        let entry = match entry.running.own() {
            Some(_) => entry,
            None => self.bring_to_move(entry, &request).await?,
        };
        entry.moving.set(MOVE_BEGINS);
        drop(turn);
        let begun = self.begin_move(&entry, &request).await;
        let (side, bytes) = begun.inspect_err(|_| entry.moving.set(0))?;
        let plan = side.plan.clone();
        let id = self.next_job();
        let job = Job::new(self.env.clone(), id, MOVE, String::new());
        job.bytes_total.set(bytes);
        self.track(&entry.datastore, Some(&entry), job.control());
        entry.moving.set(id);
        self.note(&entry, &format!("moving to {plan} (job {id})"));
        let (daemon, worker) = (self.clone(), job.clone());
        self.env.spawn_detached(Box::pin(async move { daemon.run_move(&entry, side, &worker, claim).await }));
        self.job_do(id, |_| Ok(())).await
    }

    /// Brings a VM to the control side's own core, where moves run. One that cannot be moved stays on its core. Nothing
    /// else changes the VM meanwhile: it is closed and opened.
    async fn bring_to_move(
        self: &Rc<Self>,
        entry: Rc<VmRecord>,
        request: &api::VmMove,
    ) -> api::error::Result<Rc<VmRecord>> {
        entry.moving.set(MOVE_BEGINS);
        let brought = async {
            self.plan_move(&entry, request).await?;
            self.bring_here(entry.clone()).await
        };
        let brought = brought.await;
        entry.moving.set(0);
        brought
    }

    /// Brings a VM of another core to the control side's own core. Its clients stay connected. Their
    /// requests wait while the VM is closed and opened, and are relayed to this core afterwards.
    async fn bring_here(self: &Rc<Self>, entry: Rc<VmRecord>) -> api::error::Result<Rc<VmRecord>> {
        let (name, home) = (entry.name.clone(), entry.place());
        self.descriptors.admit_vm(&name)?;
        let began_ns = self.env.now_ns();
        let (clients, held) = entry.running.hold_clients().await?;
        let count = clients.len();
        let reopened = async {
            // The new core makes the same sockets.
            entry.running.end_service().await;
            entry.running.close().await?;
            let (here, shut) = self.open_vm_here(&name, &home).await?;
            here.moving.set(MOVE_BEGINS);
            here.running.take_clients(&entry.running, clients).await?;
            drop(shut);
            Ok(here)
        };
        let reopened: api::error::Result<_> = reopened.await;
        if reopened.is_err() {
            entry.running.cut_clients().await;
        }
        drop(held);
        let here = reopened.inspect_err(|error| self.fail_read_only(&name, home.clone(), error))?;
        if count > 0 {
            let waited_us = (self.env.now_ns() - began_ns) / 1000;
            let message = format!("went from core {} to core 0 with {count} clients", entry.running.core());
            self.note_stun(&here, &message, waited_us);
        }
        Ok(here)
    }

    /// Creates the target side, and returns it with the maximum number of bytes that the move copies.
    async fn begin_move(
        &self,
        entry: &Rc<VmRecord>,
        request: &api::VmMove,
    ) -> api::error::Result<(Side, u64)> {
        let plan = self.plan_move(entry, request).await?;
        self.descriptors.admit_vm(&entry.name)?;
        let bytes = self.room_for(entry, plan.to(), plan.store()).await?.to_copy;
        let make = async || {
            let made = self.make_side(entry, plan.clone()).await;
            if made.is_err() {
                // Anything that cannot be removed now is removed at the next start.
                let _ = self.give_up(&plan).await;
            }
            made
        };
        // The VM may be leaving a full datastore.
        Ok((self.with_reserve(&entry.datastore, make).await?, bytes))
    }

    async fn run_move(self: &Rc<Self>, entry: &Rc<VmRecord>, side: Side, job: &Rc<Job>, claim: Claim) {
        let moved = self.move_to(entry, &side, job).await;
        if let Err(error) = &moved {
            let message = format!("the VM was not moved: {error}");
            if job.is_cancelled() {
                info!("VM {}: {message}", entry.name);
            } else {
                error!("VM {}: {message}", entry.name);
            }
            self.note(entry, &message);
        }
        entry.moving.set(0);
        drop(claim);
        // The guests' writes since the start of the move were copied too.
        job.bytes_total.set(job.bytes_total.get().max(job.bytes_done.get()));
        job.end(moved);
    }

    async fn move_to(self: &Rc<Self>, entry: &Rc<VmRecord>, side: &Side, job: &Rc<Job>) -> Result<()> {
        let in_doubt = Cell::new(false);
        let stun_us = match self.relocate(entry, side, job, &in_doubt).await {
            Ok(stun_us) => stun_us,
            Err(error) if in_doubt.get() => {
                // The VM's folder records which side is the VM, but could not be read back. The next start reads it.
                self.fail_read_only(&entry.name, entry.place(), &error.clone().into());
                return Err(error);
            }
            Err(error) => {
                side.vm.close().await?;
                self.give_up(&side.plan).await?;
                return Err(error);
            }
        };
        let moved = self.entry(&entry.name)?;
        self.note_stun(&moved, &format!("moved to {}", side.plan), stun_us);
        let left = async {
            entry.running.close().await?;
            self.clear_away(entry, &moved, &side.plan).await
        };
        if let Err(error) = left.await {
            let message =
                format!("the VM's old copy could not be removed; the next start removes it: {error}");
            warn!("VM {}: {message}", entry.name);
            self.note(&moved, &message);
        }
        Ok(())
    }

    /// Runs the move from the first copied block to the step. After the step, another record of the VM replaces `entry`
    /// in the datastore.
    async fn relocate(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        side: &Side,
        job: &Rc<Job>,
        in_doubt: &Cell<bool>,
    ) -> Result<u64> {
        let source = entry.expect_here()?;
        let moving = Relocation::new(source.machine.clone(), side.vm.clone(), job.clone());
        moving.copy_snapshots().await?;
        let mut switched: Vec<Switched> = Vec::new();
        let moved = async {
            let mut drained = Vec::new();
            for (number, mirror) in moving.mirrors().await? {
                let (volume, _client) = source.machine.attach(number, "a move").await?;
                let (target, _client) = side.vm.attach(number, "a move").await?;
                let switch = source.gate.guests.switch(number, volume.clone());
                drained.push(switch.replace(mirror));
                switched.push(Switched { switch, source: volume, target });
            }
            // An earlier write may wait for another event without end, so the job can be cancelled here.
            job.or_cancelled(join_all(drained)).await?;
            moving.copy_running().await?;
            self.hand_over(entry, side, &moving, &switched, in_doubt).await
        };
        let moved = moved.await;
        if moved.is_err() {
            // This loop does not wait. A write under way that has yet to reach the target ends when the target is
            // closed.
            for moved in &switched {
                drop(moved.switch.replace(moved.source.clone()));
            }
        }
        moved
    }

    async fn hand_over(
        self: &Rc<Self>,
        entry: &Rc<VmRecord>,
        side: &Side,
        moving: &Relocation,
        switched: &[Switched],
        in_doubt: &Cell<bool>,
    ) -> Result<u64> {
        let source = entry.expect_here()?;
        let _shut = source.gate.shut_behind().await;
        let guests = source.gate.guests.counted_by(&*side.vm).await?;
        // Copying the snapshots has raised the target's generation. Clients stay connected, and reconnect by their
        // present names.
        side.vm.change_generation(GenerationChange::Adopt(source.machine.generation())).await?;
        let step = async || {
            refuse_viewers(entry, source)?;
            let stepped = self.step(&side.plan).await;
            // A full file system changes nothing, so the outcome is not in doubt.
            let is_full = stepped.as_ref().is_err_and(|e| e.is_no_space());
            let is_clean = is_full && self.has_stepped(&side.plan).await.is_ok_and(|stepped| !stepped);
            if stepped.is_err() && !is_clean && self.step_back(&side.plan).await.is_err() {
                // It is unknown which side is the VM. The source is closed before the guests resume, so no later write
                // is answered.
                in_doubt.set(true);
                let _ = entry.running.close().await;
            }
            stepped
        };
        if let MovePlan::Between { to, .. } = &side.plan {
            self.copy_events(entry, to);
        }
        let stun_us = moving.finish(step).await?;
        // This loop does not wait. Requests under way in the mirrors end on the target.
        for moved in switched {
            drop(moved.switch.replace(moved.target.clone()));
        }
        for (guest, client) in guests {
            guest.count_as(client);
        }
        self.replace_entry(entry, source, side);
        Ok(stun_us)
    }
}
