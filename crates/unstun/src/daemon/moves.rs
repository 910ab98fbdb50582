//! Moves of a VM while its guests run: between the two kinds of store, and between datastores.

use std::cell::Cell;
use std::rc::Rc;

use api::name::VmName;
use blk::Result;
use blk::volume::Volume;
use engine::job::MOVE;
use engine::relocate::Relocation;
use engine::{GenerationChange, Job, Machine};
use futures_util::future::join_all;

use super::entry::{Entry, Kept, MOVE_BEGINS};
use super::registry::Claim;
use super::state::Daemon;
use super::switchable_volume::Switch;
use super::way::{Way, refuse_viewers};

/// The side that a VM moves to.
pub struct Side {
    pub vm: Rc<dyn Machine>,
    pub kept: Kept,
    pub way: Way,
}

/// A running disk while it moves.
struct Switched {
    switch: Rc<Switch>,
    source: Rc<dyn Volume>,
    target: Rc<dyn Volume>,
}

impl Daemon {
    /// Answers with the job as soon as the other side is there.
    pub async fn vm_move(self: &Rc<Self>, vm: &VmName, request: api::VmMove) -> api::error::Result<api::Job> {
        let entry = self.entry_to_change(vm.as_str())?;
        let claim = self.claim(vm.as_str())?;
        entry.moving.set(MOVE_BEGINS);
        let begun = self.begin_move(&entry, &request).await;
        let (side, bytes) = begun.inspect_err(|_| entry.moving.set(0))?;
        let way = side.way.clone();
        let id = self.next_job();
        let job = Job::new(self.env.clone(), id, MOVE, String::new());
        job.bytes_total.set(bytes);
        self.track(&entry.site, Some(&entry), &job);
        entry.moving.set(id);
        self.note(&entry, &format!("moving to {way} (job {id})"));
        let (daemon, worker) = (self.clone(), job.clone());
        self.env.spawn_detached(Box::pin(async move { daemon.run_move(&entry, side, &worker, claim).await }));
        self.job_do(id, |_| Ok(()))
    }

    /// The other side, and the bytes that a move copies at most.
    async fn begin_move(&self, entry: &Rc<Entry>, request: &api::VmMove) -> api::error::Result<(Side, u64)> {
        let way = self.plan_move(entry, request).await?;
        self.descriptors.admit_vm(&entry.name)?;
        let used = entry.vm.used().await?;
        let bytes = used.allocated_bytes + used.shared_bytes;
        way.refuse_without_room(&entry.name, bytes).await?;
        let make = async || {
            let made = self.make_side(entry, way.clone()).await;
            if made.is_err() {
                // What cannot be removed now goes at the next start.
                let _ = self.give_up(&way).await;
            }
            made
        };
        // It may be a full datastore that the VM leaves.
        Ok((self.with_reserve(&entry.site, make).await?, bytes))
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

    async fn move_to(self: &Rc<Self>, entry: &Rc<Entry>, side: &Side, job: &Rc<Job>) -> Result<()> {
        let in_doubt = Cell::new(false);
        let stun_us = match self.relocate(entry, side, job, &in_doubt).await {
            Ok(stun_us) => stun_us,
            Err(error) if in_doubt.get() => {
                // Which side is the VM stands in its home, where it could not be read back: a start will.
                self.break_down(&entry.name, entry.place(), &error.clone().into());
                return Err(error);
            }
            Err(error) => {
                side.vm.close().await?;
                self.give_up(&side.way).await?;
                return Err(error);
            }
        };
        let moved = self.entry(&entry.name)?;
        self.note_stun(&moved, &format!("moved to {}", side.way), stun_us);
        let left = async {
            entry.vm.close().await?;
            self.clear_away(entry, &moved, &side.way).await
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
                let switch = entry.gate.guests.switch(number, source.clone());
                drained.push(switch.replace(mirror));
                switched.push(Switched { switch, source, target });
            }
            // A write from before may wait for something else, for ever.
            job.or_cancelled(join_all(drained)).await?;
            moving.copy_running().await?;
            self.hand_over(entry, side, &moving, &switched, in_doubt).await
        };
        let moved = moved.await;
        if moved.is_err() {
            // Neither waits: what of a write under way is still to reach the other side ends when that is closed.
            for moved in &switched {
                drop(moved.switch.replace(moved.source.clone()));
            }
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
        let _shut = entry.gate.shut_behind().await;
        let guests = entry.gate.guests.counted_by(&*side.vm).await?;
        // Copying the snapshots has raised it there. Clients stay, and connect again by the names that they have.
        side.vm.change_generation(GenerationChange::Adopt(entry.vm.generation())).await?;
        let step = async || {
            refuse_viewers(entry)?;
            let stepped = self.step(&side.way).await;
            // A full file system changes nothing, so nothing is in doubt.
            let is_full = stepped.as_ref().is_err_and(|e| e.is_no_space());
            let is_clean = is_full && self.has_stepped(&side.way).await.is_ok_and(|stepped| !stepped);
            if stepped.is_err() && !is_clean && self.step_back(&side.way).await.is_err() {
                // Nobody knows which side it is: no write is answered any more, from before the guests go on.
                in_doubt.set(true);
                let _ = entry.vm.close().await;
            }
            stepped
        };
        if let Way::Between { to, .. } = &side.way {
            self.copy_events(entry, to);
        }
        let stun_us = moving.finish(step).await?;
        // Neither waits: what is under way in the mirrors ends on the new side.
        for moved in switched {
            drop(moved.switch.replace(moved.target.clone()));
        }
        for (guest, client) in guests {
            guest.count_as(client);
        }
        self.replace_entry(entry, side.way.to().clone(), side.vm.clone(), side.kept.clone());
        Ok(stun_us)
    }
}
