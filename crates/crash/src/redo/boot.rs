//! What runs in one boot: recovers, compares everything, and works until the power is cut (in the last boot, until all
//! work is done).

use std::rc::Rc;

use blk::Env;
use blk::manifest::Manifest;
use engine::CommitWhat;
use vmdk::home::Home;

use super::control::{Control, settle};
use super::guest::Guest;
use super::harness::Harness;
use super::model::{FOLDING, RedoRun, SnapshotStatus};
use super::moves::discard_side_branches;
use super::tree_reader::TreeReader;
use crate::content::{contents_of, read_all};
use crate::flush_faults::{FAULT_TASK, fill_up};
use crate::home;
use crate::run::{BootPhase, all_joined};
use crate::watch::{chains, print};

/// Plays one boot. Returns None if the power was cut.
pub(super) fn boot(run: &RedoRun, number: u64) -> Option<Result<(), String>> {
    run.boot(async move |env, run| {
        let harness = Harness::recover(&env, &run, number).await?;
        run.plan.arm(&run.world, number, BootPhase::Work);
        if run.plan.limited_space {
            // Commits must still succeed in the end.
            fill_up(&env, &run.world, run.plan.rng(number, 2), 2000, (5000, 40_000));
        }
        let last = number + 1 == run.plan.boots;
        harness.faults.begin(run.plan.rng(number, FAULT_TASK), run.plan.failing_flushes && !last);
        harness.work().await?;
        harness.faults.end_boot(&env).await;
        if last {
            return finish(&env, harness).await;
        }
        // The boot ended before the cut: it ends like a clean stop.
        let closed = harness.vm.close().await.map_err(|e| format!("closing: {e}"));
        harness.faults.survive(&env, closed).await?;
        run.model.borrow().models.iter().for_each(|model| model.closed());
        Ok(())
    })
}

/// Ends the last boot, after the faults: everything completes, every commit ends, and the home is clean and exact.
async fn finish(env: &Env, harness: Rc<Harness>) -> Result<(), String> {
    harness.settle_all().await?;
    let (run, boot) = (harness.run.clone(), harness.boot);
    harness.vm.close().await.map_err(|e| format!("closing: {e}"))?;
    drop(harness);
    if !run.plan.imported {
        home::check_clean(env, run.plan.disks.len()).await?;
    }
    let manifest = open_home(env, &run).map_err(|e| format!("reopening: {e}"))?;
    let again = Harness::open(env, &run, boot, manifest).await.map_err(|e| format!("reopening: {e}"))?;
    again.check_live().await
}

fn open_home(env: &Env, run: &RedoRun) -> blk::Result<Rc<Home>> {
    home::open(env, run.plan.growth_bytes, run.plan.imported)
}

impl Harness {
    /// Opens the home after any end of the boot before, and compares disks, snapshots and files with the model.
    async fn recover(env: &Env, run: &RedoRun, boot: u64) -> Result<Rc<Harness>, String> {
        run.model.borrow_mut().doing.insert("cut in recovery");
        print(|| "BOOT".into());
        let manifest = open_home(env, run).map_err(|e| format!("recovery: {e}"))?;
        manifest.set_grain(run.plan.grain(&mut run.plan.rng(boot, 4)));
        // Checks the folder before a resumed commit changes it again: the home's own recovery alone must make it sound.
        // The check reads every table, so only some boots do it.
        if (run.plan.seed + boot).is_multiple_of(3) {
            Manifest::load(&*manifest).await.map_err(|e| format!("recovery: {e}"))?;
            home::is_sound(env).await?;
        }
        let opened = Harness::open(env, run, boot, manifest).await;
        let harness = opened.map_err(|e| format!("recovery: {e}"))?;
        harness.compare(env).await?;
        run.model.borrow_mut().doing.remove("cut in recovery");
        Ok(harness)
    }

    async fn compare(&self, env: &Env) -> Result<(), String> {
        let (vm, model) = (&self.vm, &self.model);
        model.borrow_mut().doing.remove(FOLDING);
        if vm.jobs().iter().any(|j| !j.state().is_over()) {
            model.borrow_mut().doing.insert(FOLDING);
        }
        print(|| format!("opened: {:?}; {:?}", chains(vm), vm.state().folds));
        let contents = contents_of(&vm.disks()).await.map_err(|e| format!("after recovery, {e}"))?;
        self.see_bin()?;
        self.check_bin().await?;
        self.check_snapshots().await?;
        model.borrow_mut().recover(&contents, vm.state().generation)?;
        home::nothing_leaked(vm).await?;
        self.check_clones(env).await
    }

    /// Checks that a reported snapshot is there and unchanged, that one whose commit was acknowledged is not there, and
    /// that one whose take was cut is there whole or not at all.
    async fn check_snapshots(&self) -> Result<(), String> {
        let present: Vec<String> = self.vm.state().snapshots.iter().map(|s| s.name.clone()).collect();
        let known = self.model.borrow().snapshots.clone();
        for snapshot in &known {
            let here = present.contains(&snapshot.name);
            let name = &snapshot.name;
            match &snapshot.status {
                SnapshotStatus::Sealed { .. } if !here => {
                    return Err(format!("sealed snapshot {name} is lost"));
                }
                SnapshotStatus::Sealed { .. } => drop(self.look(name).await?),
                SnapshotStatus::Gone if here => return Err(format!("committed snapshot {name} came back")),
                SnapshotStatus::Gone => {}
                SnapshotStatus::Taking(_) | SnapshotStatus::Committing(_) if here => {
                    if !self.look(name).await? {
                        return Err(format!("snapshot {name} cannot be opened"));
                    }
                }
                SnapshotStatus::Taking(_) | SnapshotStatus::Committing(_) => {
                    self.model.borrow_mut().snapshots.retain(|k| k.name != *name);
                }
            }
        }
        match present.iter().find(|name| !known.iter().any(|k| k.name == **name)) {
            Some(unexpected) => Err(format!("snapshot {unexpected} was never taken")),
            None => Ok(()),
        }
    }

    /// Runs guests and user at the same time, to their end.
    async fn work(self: &Rc<Harness>) -> Result<(), String> {
        let (env, plan) = (&self.vm.env, &self.plan);
        let mut tasks = Vec::new();
        for (index, disk) in self.vm.disks().into_iter().enumerate() {
            for n in 0..plan.guests_per_disk {
                let rng = plan.rng(self.boot, 100 * (index as u64 + 1) + n);
                let guest = Guest { harness: self.clone(), index, disk: disk.clone(), rng };
                tasks.push(env.spawn(guest.run()));
            }
        }
        let user = Control { harness: self.clone(), rng: plan.rng(self.boot, 1) };
        let tree_reader = TreeReader { vm: self.vm.clone(), rng: plan.rng(self.boot, 5) };
        tasks.push(env.spawn(user.run()));
        let (harness, looks) = (self.clone(), plan.control_steps);
        tasks.push(env.spawn(async move { harness.faults.excuse(tree_reader.run(looks).await) }));
        all_joined(tasks).await
    }

    /// Lets everything complete, checks it, and commits and removes all that a run leaves behind.
    async fn settle_all(&self) -> Result<(), String> {
        let vm = &self.vm;
        settle(vm).await?;
        self.check_live().await?;
        for snapshot in vm.state().snapshots {
            self.look(&snapshot.name).await?;
        }
        self.remove_clones().await?;
        discard_side_branches(vm).await?;
        let binned: Vec<u64> = vm.state().bin.iter().map(|binned| binned.id).collect();
        vm.empty_bin(&binned).await.map_err(|e| format!("emptying the bin: {e}"))?;
        print(|| format!("empties the bin: {binned:x?}; {:?}", vm.state().folds));
        home::nothing_leaked(vm).await?;
        self.commit_the_rest().await?;
        self.check_live().await?;
        if self.plan.nonpersistent_bytes.is_some() {
            let number = vm.disks()[self.plan.disks.len()].number;
            vm.remove_disk(number, true).await.map_err(|e| format!("removing disk{number}: {e}"))?;
        }
        Ok(())
    }

    /// Commits what is left. Only an imported VM keeps layers afterwards: those on top of the foreign folder stay.
    async fn commit_the_rest(&self) -> Result<(), String> {
        let (vm, disks) = (&self.vm, self.vm.disks());
        let deep = disks[..self.plan.disks.len()].iter().any(|d| d.chain().links.len() > 1);
        print(|| format!("at the end: {:?}, {:?}", chains(vm), vm.state().snapshots));
        if !deep && vm.state().snapshots.is_empty() {
            return Ok(());
        }
        let job = match vm.commit(&CommitWhat::All).await {
            Ok(job) => job,
            Err(e) if self.plan.imported && e.kind == blk::ErrorKind::Refused => return Ok(()),
            Err(e) => return Err(format!("the last commit: {e}")),
        };
        print(|| format!("the last commit: {:?}", vm.state().folds));
        job.wait().await;
        settle(vm).await?;
        let (done, total) = (job.bytes_done.get(), job.bytes_total.get());
        if done > total {
            return Err(format!(
                "the last commit moved {done} bytes, more than the {total} held at its start"
            ));
        }
        Ok(())
    }

    async fn check_live(&self) -> Result<(), String> {
        for (index, disk) in self.vm.disks().into_iter().enumerate() {
            let model = self.model.borrow().models[index].clone();
            let began = model.now();
            model.check_read(0, &read_all(&disk).await?, began)?;
            for link in &disk.chain().links {
                let findings = link.layer.check().await.map_err(|e| format!("check: {e}"))?;
                if !findings.is_empty() {
                    return Err(format!("{}: {}", link.layer.name(), findings.join("; ")));
                }
            }
        }
        Ok(())
    }
}
