//! Commit: first the name leaves the tree, then its delta drains into the layer that the snapshot froze, and at last
//! the delta is removed.

use std::rc::Rc;

use blk::manifest::{Change, FoldState, JOB_NUMBER_MAX, Opening, next_number};
use blk::{Error, Result};

use super::chain::FoldRoute;
use super::disk::Disk;
use super::fold::{Fold, finish_release, held_bytes};
use super::link::Link;
use super::vm::Vm;
use crate::event::{DiskTimes, Event, EventKind};
use crate::job::{COMMIT, CONSOLIDATE, Job, JobState};
use crate::operations::CommitWhat;
use crate::options::Defect;
use crate::tree;

impl Vm {
    /// Starts a commit. When this returns, the names have durably left the tree and the commit cannot be undone.
    pub async fn commit(self: &Rc<Self>, what: &CommitWhat) -> Result<Rc<Job>> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let plan = self.plan_commit(what).await?;
        self.activity.refuse_viewed(&self.state.borrow(), |id| plan.gone.contains(id))?;
        let state = self.state();
        let id = next_number(&self.name, "numbers of jobs", state.last_job, JOB_NUMBER_MAX)?;
        let folds: Vec<_> = plan.folds.into_iter().map(|f| FoldState { job: id, ..f }).collect();
        let mut next = tree::after_names_leave(&state, &plan.gone, folds.clone());
        next.last_job = id;
        next.bin.retain(|binned| !plan.evicted.contains(&binned.id));
        next.folds.retain(|fold| !plan.remove.contains(&fold.layer));
        self.publish(Change { next, remove: plan.remove.clone(), ..Change::default() }).await?;
        plan.remove.iter().for_each(|layer| self.forget_layer(layer));
        self.activity.note(EventKind::CommitStart, &plan.names.join(", "), "");
        let operation = if *what == CommitWhat::Unowned { CONSOLIDATE } else { COMMIT };
        let job = Job::new(self.env.clone(), id, operation, plan.names.join(", "));
        Ok(self.start_job(job, folds))
    }

    fn start_job(self: &Rc<Self>, job: Rc<Job>, folds: Vec<FoldState>) -> Rc<Job> {
        self.activity.add_job(job.clone());
        let (vm, worker) = (self.clone(), job.clone());
        self.env.spawn(async move { vm.run_job(worker, folds).await });
        job
    }

    /// Resumes the commits that were under way before a restart. Folds that the user held stay unowned deltas.
    pub(crate) fn resume_folds(self: &Rc<Self>) {
        let state = self.state();
        let mut ids: Vec<u64> = state.folds.iter().filter(|f| !f.held).map(|f| f.job).collect();
        ids.dedup();
        for id in ids {
            let folds: Vec<_> = state.folds.iter().filter(|f| f.job == id && !f.held).cloned().collect();
            let message = format!("the commit continues: {} deltas are left", folds.len());
            self.activity.note(EventKind::Recovered, "", &message);
            // The home does not record the names of the committed snapshots.
            self.start_job(Job::new(self.env.clone(), id, COMMIT, String::new()), folds);
        }
    }

    async fn run_job(self: &Rc<Self>, job: Rc<Job>, folds: Vec<FoldState>) {
        let began_ns = self.env.now_ns();
        let mut times = Vec::new();
        // Another commit may hold the turn for hours.
        let result = match job.or_cancelled(self.folding.lock()).await {
            Ok(_turn) => self.run_folds(&job, &folds, &mut times).await,
            Err(e) => Err(e),
        };
        let message = match &result {
            Err(_) if job.is_stopped_for_close() => {
                "the daemon stops; the commit continues at its next start".into()
            }
            Err(e) => e.to_string(),
            Ok(()) => String::new(),
        };
        let (state, kind) = match result {
            Ok(()) => (JobState::Done, EventKind::Commit),
            Err(_) if job.is_cancelled() || job.is_stopped_for_close() => {
                (JobState::Cancelled, EventKind::CommitCancelled)
            }
            Err(e) => {
                job.set_error(e);
                (JobState::Failed, EventKind::CommitFailed)
            }
        };
        if state == JobState::Cancelled && !job.is_stopped_for_close() {
            self.hold_folds(job.id).await;
        }
        let total_us = (self.env.now_ns() - began_ns) / 1000;
        let stun_us = times.iter().map(|t| t.stun_us).max().unwrap_or(0);
        let event = self.activity.event(kind, &job.subject, &message);
        self.activity.report(Event { total_us, stun_us, disks: times, ..event });
        job.set_state(state);
    }

    async fn run_folds(
        self: &Rc<Self>,
        job: &Rc<Job>,
        folds: &[FoldState],
        times: &mut Vec<DiskTimes>,
    ) -> Result<()> {
        let result = self.run_steered(job, folds, times).await;
        // If the end of a fold may or may not be on the device, its layer may be gone: writes still go to the layer
        // below it.
        if result.is_err() && !self.is_broken() {
            folds.iter().filter_map(|f| self.disk(f.disk).ok()).for_each(|disk| disk.forget_idle_fold());
        }
        result
    }

    async fn run_steered(
        self: &Rc<Self>,
        job: &Rc<Job>,
        folds: &[FoldState],
        times: &mut Vec<DiskTimes>,
    ) -> Result<()> {
        let held = loop {
            match self.prepare_folds(job, folds).await {
                Err(e) if e.may_pass() => job.wait_for_space(self.options.space_retry_us).await,
                prepared => break prepared?,
            }
            job.checkpoint().await?;
        };
        job.bytes_total.set(held.iter().sum());
        for (n, fold) in folds.iter().enumerate() {
            job.bytes_later.set(held[n + 1..].iter().sum());
            if self.is_pending(job, fold) {
                times.push(self.fold_when_space(job, fold).await?);
            }
        }
        Ok(())
    }

    /// Steers guest writes, and returns the bytes that each delta holds. It can be repeated.
    async fn prepare_folds(self: &Rc<Self>, job: &Rc<Job>, folds: &[FoldState]) -> Result<Vec<u64>> {
        let pending: Vec<_> = folds.iter().filter(|f| self.is_pending(job, f)).cloned().collect();
        self.refuse_outdated(&pending).await?;
        self.steer_tops(job, folds).await?;
        let mut held = Vec::new();
        for fold in folds {
            held.push(match self.fold_source(fold).await?.filter(|_| self.is_pending(job, fold)) {
                Some((disk, link)) => held_bytes(&disk, &link).await?,
                None => 0,
            });
        }
        Ok(held)
    }

    /// Steers the writes of all disks from the start: disks are folded one after the other, and the waiting ones must
    /// not grow meanwhile. This covers a top delta that goes into the layer right below it. (Of several deltas of one
    /// disk, the upper ones have no target yet.)
    async fn steer_tops(&self, job: &Job, folds: &[FoldState]) -> Result<()> {
        for fold in folds.iter().filter(|f| self.is_pending(job, f)) {
            let alone = folds.iter().filter(|f| f.disk == fold.disk).count() == 1;
            let Ok(disk) = self.disk(fold.disk) else { continue };
            if !alone || disk.top_name() != fold.layer {
                continue;
            }
            let route = match self.route(&disk, fold).await {
                // It is tried again when there is space.
                Err(e) if e.may_pass() => continue,
                other => other?,
            };
            if let Some(route) = route
                && Rc::ptr_eq(&route.source, disk.chain().top())
            {
                disk.set_fold(Some(route));
                disk.write_gate.drain().await;
            }
        }
        Ok(())
    }

    /// Returns the disk and the link that a fold works on. For a delta of a side branch this is a disk without a guest,
    /// made for the fold, that ends in the delta. None when the layer is gone.
    pub(crate) async fn fold_source(&self, fold: &FoldState) -> Result<Option<(Rc<Disk>, Rc<Link>)>> {
        if let Ok(disk) = self.disk(fold.disk)
            && let Some(link) = disk.link_named(&fold.layer)
        {
            return Ok(Some((disk, link)));
        }
        if !self.graph().await?.has(&fold.layer) {
            return Ok(None);
        }
        let layers = self.open_chain(&fold.layer, Opening::Free).await?;
        let name = format!("{}/disk{}", self.name, fold.disk);
        let disk = Disk::new(self.env.clone(), name, fold.disk, layers, false, self.options)?;
        let top = disk.chain().top().clone();
        Ok(Some((disk, top)))
    }

    /// Returns source and target of a fold in the present chain; None when its layer is gone.
    async fn route(&self, disk: &Disk, fold: &FoldState) -> Result<Option<Rc<FoldRoute>>> {
        // The previous commit may have ended between a release and its flush.
        if let Some(unfinished) = disk.chain().fold.clone() {
            finish_release(disk, &unfinished).await?;
        }
        let chain = disk.chain();
        let Some(at) = chain.links.iter().position(|l| l.layer.name() == fold.layer) else { return Ok(None) };
        let Some(below) = at.checked_sub(1) else {
            let cause = format!("{} is its base and cannot be folded", fold.layer);
            return Err(Error::damaged(&disk.name, cause));
        };
        let (source, target) = (chain.links[at].clone(), chain.links[below].clone());
        // Both layers change from here on: the source loses regions, the target gains them.
        self.touch(source.layer.name()).await?;
        self.touch(target.layer.name()).await?;
        let chain = disk.chain();
        if let Some(steered) = chain.fold.as_ref().filter(|f| Rc::ptr_eq(&f.source, &source)) {
            return Ok(Some(steered.clone()));
        }
        let upper: Vec<_> = chain.links[at..].iter().map(|l| l.layer.name()).collect();
        let graph = self.graph().await?;
        // Other states that depend on one of these layers read data that the running top shadows.
        let alone = upper
            .iter()
            .enumerate()
            .all(|(n, l)| graph.children(l).len() <= usize::from(n + 1 < upper.len()));
        let running = self.disk(disk.number).is_ok_and(|d| std::ptr::eq(&*d, disk));
        let alone = alone || self.options.defects.has(Defect::SkipAcrossBranches);
        let skip_shadowed = running && alone && !tree::named(&self.state.borrow(), &upper);
        Ok(Some(FoldRoute::new(source, target, skip_shadowed)))
    }

    /// Folds one delta, and waits for space and descriptors to write the small files of the home before and after the
    /// move. The mover waits for space by itself.
    async fn fold_when_space(self: &Rc<Self>, job: &Rc<Job>, fold: &FoldState) -> Result<DiskTimes> {
        loop {
            job.checkpoint().await?;
            match self.fold_one(job, fold).await {
                Err(e) if e.may_pass() => job.wait_for_space(self.options.space_retry_us).await,
                other => return other,
            }
        }
    }

    /// Returns whether the fold still belongs to this job. Another job may have taken it over or finished it. The name
    /// may even belong to a new layer by now: file names are used again once they are free.
    fn is_pending(&self, job: &Job, fold: &FoldState) -> bool {
        let state = self.state.borrow();
        let mine = |f: &FoldState| f.disk == fold.disk && f.layer == fold.layer && f.job == job.id;
        state.folds.iter().any(mine) || self.options.defects.has(Defect::FoldByNameOnly)
    }

    async fn fold_one(self: &Rc<Self>, job: &Rc<Job>, fold: &FoldState) -> Result<DiskTimes> {
        let mut times = DiskTimes { number: fold.disk, ..DiskTimes::default() };
        let before = job.bytes_done.get();
        let Some((disk, _)) = self.fold_source(fold).await? else { return Ok(times) };
        let Some(route) = self.route(&disk, fold).await? else { return Ok(times) };
        let mover = Fold::new(self, disk.clone(), route.clone(), job.clone());
        mover.drain().await?;
        let drained_ns = self.env.now_ns();
        let removed_ns = self.finish_fold(&disk, fold, &route).await?;
        times.bytes = job.bytes_done.get() - before;
        times.stun_us = (mover.stun_ns.get() + removed_ns).div_ceil(1000);
        times.flush_us = (self.env.now_ns() - drained_ns) / 1000;
        Ok(times)
    }

    /// Ends a fold whose source is empty: the home drops the layer, then the chain in memory, then the files are
    /// removed. Returns how long the change in memory took, in nanoseconds.
    async fn finish_fold(&self, disk: &Rc<Disk>, fold: &FoldState, route: &Rc<FoldRoute>) -> Result<u64> {
        let _turn = self.operations.lock().await;
        let graph = self.graph().await?;
        let children = graph.children(&fold.layer);
        for child in children {
            self.touch(child).await?;
        }
        let state = self.state();
        let change = tree::fold_end(&state, fold.disk, &fold.layer, route.target.layer.name(), children);
        self.publish(change).await?;
        self.forget_layer(&fold.layer);
        Ok(disk.remove_link(&route.source).await)
    }

    /// Marks the deltas of a cancelled job as held: they stay, unowned, until they are committed again.
    async fn hold_folds(&self, job: u64) {
        let _turn = self.operations.lock().await;
        let mut next = self.state();
        next.folds.iter_mut().filter(|f| f.job == job).for_each(|f| f.held = true);
        // If this cannot be recorded, the job resumes after a restart, which is unwanted but not wrong.
        let _ = self.publish(Change { next, ..Change::default() }).await;
    }
}
