//! The user: takes, looks, commits, pauses and cancels while the guests run.

use std::ops::Deref;
use std::rc::Rc;

use blk::manifest::DeltaFormat;
use blk::{ErrorKind, SECTOR};
use engine::job::COMMIT;
use engine::tree::new_snapshot;
use engine::{CommitWhat, Job, JobState, Vm};
use sim::Rng;

use super::harness::Harness;
use super::model::{ExpectedSnapshot, FOLDING, Model, SnapshotStatus, TAKING};
use crate::watch::{chains, print};

pub(super) struct Control {
    pub harness: Rc<Harness>,
    pub rng: Rng,
}

impl Deref for Control {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl Control {
    pub(super) async fn run(mut self) -> Result<(), String> {
        for _ in 0..self.plan.control_steps {
            self.harness.vm.env.sleep_us(self.rng.below(3000)).await;
            let done = self.step().await;
            self.faults.survive(&self.vm.env, done).await?;
        }
        Ok(())
    }

    /// Runs a verb with the guests powered off.
    pub(super) async fn powered_off(
        &mut self,
        verb: impl AsyncFnOnce(&mut Control) -> Result<(), String>,
    ) -> Result<(), String> {
        self.gate.stop().await;
        let result = verb(self).await;
        self.gate.start();
        result
    }

    async fn step(&mut self) -> Result<(), String> {
        let plan = self.plan.clone();
        self.harness.home.set_grain(plan.grain(&mut self.rng));
        if self.rng.chance(plan.moves) {
            match self.rng.below(6) {
                0 => self.discard().await?,
                1 if plan.nonpersistent_bytes.is_some() => self.powered_off(Control::reset).await?,
                2 | 3 if !self.model.borrow().bin.is_empty() => self.restore().await?,
                4 if self.rng.coin() => self.empty_bin().await?,
                _ => self.revert().await?,
            }
        } else if self.rng.chance(plan.clones) {
            self.clone_something().await?;
        } else if self.rng.chance(plan.commits) {
            self.commit_something().await?;
        } else {
            self.take(plan.looks_at_once).await?;
        }
        if self.rng.below(3) == 0 { self.look_at_one().await } else { Ok(()) }
    }

    async fn take(&mut self, looks: bool) -> Result<(), String> {
        let (name, began) = self.begin_take();
        print(|| format!("take {name} begins"));
        let sesparse = self.plan.takes_sesparse && self.rng.below(3) == 0;
        let format = if sesparse { DeltaFormat::SeSparse } else { DeltaFormat::Fitting };
        let result = self.vm.take_as(&new_snapshot(&self.vm.env, &name, ""), format).await;
        print(|| format!("take {name} ends {:?}", result.as_ref().map(|s| s.disks.clone())));
        self.model.borrow_mut().doing.remove(TAKING);
        match result {
            Ok(_) => {
                if sesparse {
                    self.world.mark("took SEsparse deltas");
                }
                self.model.borrow_mut().seal(&name, began, None);
            }
            Err(e) if e.is_no_space() => {
                self.model.borrow_mut().snapshots.retain(|k| k.name != name);
                return Ok(());
            }
            Err(e) => return Err(format!("take {name}: {e}")),
        }
        // This first look lets the next one show any write that still reaches a state reported as sealed.
        if looks || self.rng.below(4) == 0 { self.look(&name).await.map(drop) } else { Ok(()) }
    }

    /// Notes that a take begins. Returns its new name, and the ticks at which it is called.
    pub(super) fn begin_take(&self) -> (String, Vec<u64>) {
        let mut model = self.model.borrow_mut();
        let name = format!("s{}", model.next_name);
        model.next_name += 1;
        let began = model.ticks();
        model
            .snapshots
            .push(ExpectedSnapshot { name: name.clone(), status: SnapshotStatus::Taking(began.clone()) });
        model.doing.insert(TAKING);
        (name, began)
    }

    pub(super) fn sealed_names(&self) -> Vec<String> {
        let model = self.model.borrow();
        let sealed = model.snapshots.iter().filter(|k| matches!(k.status, SnapshotStatus::Sealed { .. }));
        sealed.map(|k| k.name.clone()).collect()
    }

    pub(super) fn any_sealed(&mut self) -> Option<String> {
        let names = self.sealed_names();
        self.rng.pick(&names).cloned()
    }

    /// Reads a sealed snapshot whole: compares the first look with the model, later ones with the first look.
    async fn look_at_one(&mut self) -> Result<(), String> {
        let Some(name) = self.any_sealed() else { return Ok(()) };
        self.look(&name).await.map(drop)
    }

    async fn commit_something(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.vm.state().snapshots.iter().map(|s| s.name.clone()).collect();
        let what = match self.rng.pick(&names) {
            _ if self.rng.below(8) == 0 => CommitWhat::Unowned,
            Some(_) if self.rng.below(4) == 0 => CommitWhat::All,
            Some(name) => CommitWhat::One(name.clone()),
            None if self.rng.coin() => CommitWhat::All,
            None => return Ok(()),
        };
        let Ok(preview) = self.vm.commit_preview(&what).await else { return Ok(()) };
        let gone = preview.names;
        self.evicting(&preview.evicted, true);
        let side = |name: &String| {
            let state = self.vm.state();
            state.snapshots.iter().any(|s| s.name == *name && !engine::tree::is_running(&state, s.id))
        };
        if gone.iter().any(side) && preview.layers > 0 {
            self.world.mark("folded on a side branch");
        }
        if !preview.stays.is_empty() {
            self.world.mark("only a name went");
        }
        self.model.borrow_mut().leaving(&gone);
        self.model.borrow_mut().doing.insert(FOLDING);
        print(|| format!("commit {what:?} of {:?}; {:?}", chains(&self.vm), self.vm.state()));
        let committed = self.vm.commit(&what).await;
        print(|| format!("committing: {:?}; {:?}", committed.as_ref().map(|j| j.id), self.vm.state().folds));
        let job = match committed {
            Ok(job) => job,
            Err(e) if e.kind == ErrorKind::Refused || e.is_no_space() => {
                self.model.borrow_mut().staying(&gone);
                self.evicting(&preview.evicted, false);
                return Ok(());
            }
            Err(e) => return Err(format!("commit {what:?}: {e}")),
        };
        if !preview.evicted.is_empty() {
            self.world.mark("a commit evicted what the bin kept");
        }
        self.see_bin()?;
        if preview.layers > 0 && self.has_sesparse_on_sesparse() {
            self.world.mark("committed in a chain with an SEsparse delta on another");
        }
        if preview.layers > 0 && self.has_large_grains_below() {
            self.world.mark("committed in a chain with grains larger than a sector below its top");
        }
        self.model.borrow_mut().gone(&gone);
        self.disturb(&job).await;
        Ok(())
    }

    /// Returns whether a delta that a commit may write into has a grain larger than a sector.
    /// Returns whether two neighbouring deltas of a disk are SEsparse.
    fn has_sesparse_on_sesparse(&self) -> bool {
        self.vm.disks().iter().any(|disk| {
            let chain = disk.chain();
            let files =
                chain.links.iter().map(|link| link.layer.files()[0].name().ends_with("-sesparse.vmdk"));
            files.collect::<Vec<bool>>().windows(2).any(|pair| pair[0] && pair[1])
        })
    }

    fn has_large_grains_below(&self) -> bool {
        self.vm.disks().iter().any(|disk| {
            let chain = disk.chain();
            let below = chain.links.iter().rev().skip(1).map(|link| link.layer.shape());
            below.filter(|shape| !shape.flat).any(|shape| shape.grain_bytes > SECTOR)
        })
    }

    /// Leaves the job alone, waits for it, pauses it for a while, or cancels it.
    async fn disturb(&mut self, job: &Job) {
        match self.rng.below(6) {
            0 => {
                self.harness.vm.env.sleep_us(self.rng.below(2000)).await;
                let _ = job.cancel();
                print(|| format!("cancel job {}", job.id));
            }
            1 => {
                let _ = job.pause();
                self.harness.vm.env.sleep_us(self.rng.below(2000)).await;
                let _ = job.resume();
            }
            2 => {
                job.wait().await;
            }
            _ => {}
        }
    }
}

impl Model {
    pub(super) fn leaving(&mut self, names: &[String]) {
        for known in self.snapshots.iter_mut().filter(|k| names.contains(&k.name)) {
            known.status = SnapshotStatus::Committing(known.status.contents());
        }
    }

    pub(super) fn staying(&mut self, names: &[String]) {
        for name in names {
            if let Some(SnapshotStatus::Committing(contents)) = self.known(name).map(|k| k.status.clone()) {
                // Without a first look only the seal is certain: the first look may then show any content up to now.
                self.seal(name, vec![0; self.models.len()], contents);
            }
        }
    }

    pub(super) fn gone(&mut self, names: &[String]) {
        for known in self.snapshots.iter_mut().filter(|k| names.contains(&k.name)) {
            known.status = SnapshotStatus::Gone;
        }
    }
}

/// Returns whether a resumed commit was refused because of a clone. A clone can be made after a commit failed for
/// another reason, and the resume of that commit is then refused. A new commit has a subject, and checks for clones
/// before its job begins.
fn met_a_clone(job: &Job) -> bool {
    let resumed = job.operation == COMMIT && job.subject.is_empty();
    let error = job.error();
    let refused = |e: &blk::Error| e.kind == ErrorKind::Refused && e.cause.contains("is read by /clone");
    resumed && error.as_ref().is_some_and(refused)
}

/// Resumes paused jobs, and waits until every job is over.
pub(super) async fn settle(vm: &Rc<Vm>) -> Result<(), String> {
    for job in vm.jobs() {
        if job.state() == JobState::Paused {
            let _ = job.resume();
        }
        if job.wait().await == JobState::Failed && !met_a_clone(&job) {
            return Err(format!("job {} failed: {:?}", job.id, job.error()));
        }
    }
    Ok(())
}
