//! The user: every verb of a native VM, as the daemon calls it. The model notes a verb's outcomes before it begins.

use std::rc::Rc;

use blk::ErrorKind;
use blk::manifest::DiskMode;
use blk::volume::Volume;
use engine::{CommitWhat, DefragmentRequest, GenerationChange, Job};
use sim::Rng;

use super::harness::{Running, VmHarness};
use super::model::{Outcome, Sealed};
use super::shape::Shape;
use crate::content::read_all;
use crate::native::plan::soon;
use crate::requests::Target;
use crate::run::draw_share;

macro_rules! verbs {
    ($($name:ident: $share:literal, $label:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Verb {
            $($name),*
        }

        /// Every verb with its share, and the mark of a cut in it.
        pub const VERBS: [(Verb, u64, &str); [$($share),*].len()] = [$((Verb::$name, $share, $label)),*];
    };
}

verbs! {
    Take: 8, "cut in a take";
    CommitOne: 3, "cut in a commit";
    CommitAll: 1, "cut in a commit of all";
    Revert: 3, "cut in a revert";
    RevertKeeping: 2, "cut in a revert with a take";
    DiscardRunning: 2, "cut in a discard of the running branch";
    DiscardSide: 1, "cut in a discard of a side branch";
    Clone: 2, "cut in a clone";
    Create: 1, "cut in a creation";
    Remove: 3, "cut in a removal";
    AddDisk: 2, "cut while a disk comes";
    RemoveDisk: 1, "cut while a disk goes";
    Grow: 2, "cut while a disk grows";
    SetMode: 2, "cut in a change of modes";
    Reset: 2, "cut in a reset";
    RevertAndBack: 2, "cut in a revert and its restore";
    DiscardAndBack: 2, "cut in a discard and its restore";
    EmptyBin: 2, "cut while a bin is emptied";
    Reopen: 1, "cut while a VM is closed";
    OpenPlainNames: 2, "cut while plain names are opened";
    Checkpoint: 2, "cut in a checkpoint";
    Defragment: 3, "cut in a defragmentation";
}

pub(super) const MODES: [DiskMode; 3] =
    [DiskMode::Persistent, DiskMode::IndependentPersistent, DiskMode::IndependentNonpersistent];

pub(super) struct User {
    pub harness: Rc<VmHarness>,
    pub rng: Rng,
    /// The VM of all verbs; None: each verb picks one.
    pub only: Option<&'static str>,
}

impl User {
    /// Runs drawn verbs, with a power cut in the verb number `cut_in`.
    pub(super) async fn run(mut self, steps: u64, cut_in: Option<u64>) -> Result<(), String> {
        for step in 0..steps {
            self.harness.inner.env.sleep_us(self.rng.below(2000)).await;
            let (verb, ..) = VERBS[draw_share(&mut self.rng, &VERBS.map(|(_, share, _)| share))];
            if cut_in == Some(step) {
                self.harness.world.cut_at(soon(&mut self.rng));
            }
            self.act(verb).await?;
        }
        Ok(())
    }

    pub(super) async fn act(&mut self, verb: Verb) -> Result<(), String> {
        let label = VERBS.iter().find(|(v, ..)| *v == verb).map(|(.., label)| *label);
        self.harness.model.borrow_mut().doing = label;
        let name = self.any_vm();
        let running = self.harness.running(&name);
        let done = self.carry_out(&running, verb).await;
        self.harness.model.borrow_mut().doing = None;
        done.map_err(|e| format!("{verb:?} of VM {}: {e}", running.name))
    }

    async fn carry_out(&mut self, vm: &Rc<Running>, verb: Verb) -> Result<(), String> {
        match verb {
            Verb::Take => return self.take(vm).await,
            Verb::CommitOne | Verb::CommitAll => return self.commit(vm, verb).await,
            Verb::Clone => return self.clone_one(vm).await,
            Verb::Create => return self.create().await,
            Verb::Remove => return self.remove(vm).await,
            Verb::AddDisk => return self.add_disk(vm).await,
            Verb::Grow => return self.grow(vm).await,
            Verb::OpenPlainNames => return self.open_plain_names(vm).await,
            Verb::EmptyBin => return self.empty_bin(vm, false).await,
            Verb::Checkpoint => return self.checkpoint().await,
            Verb::Defragment => return self.defragment(vm).await,
            // No guest may be attached during the other verbs.
            _ => vm.stop().await,
        }
        match verb {
            Verb::Revert => self.revert(vm, false).await?,
            Verb::RevertKeeping => self.revert(vm, true).await?,
            Verb::DiscardRunning => self.discard(vm, true).await?,
            Verb::DiscardSide => self.discard(vm, false).await?,
            Verb::RemoveDisk => self.remove_disk(vm).await?,
            Verb::SetMode => self.set_mode(vm).await?,
            Verb::Reset => self.reset(vm).await?,
            Verb::RevertAndBack => self.revert_and_back(vm).await?,
            Verb::DiscardAndBack => self.discard_and_back(vm).await?,
            _ => return self.reopen(vm).await,
        }
        vm.start().await
    }

    fn any_vm(&mut self) -> String {
        if let Some(only) = self.only {
            return only.to_string();
        }
        let names: Vec<String> = self.harness.running.borrow().keys().cloned().collect();
        self.rng.pick(&names).expect("one stays").clone()
    }

    pub(super) fn any_snapshot(&mut self, names: impl Iterator<Item = String>) -> Option<String> {
        let names: Vec<String> = names.collect();
        self.rng.pick(&names).cloned()
    }

    pub(super) fn any_disk(&mut self, shape: &Shape) -> Option<u32> {
        let numbers: Vec<u32> = shape.disks.keys().copied().collect();
        self.rng.pick(&numbers).copied()
    }

    pub(super) fn shape(&self, vm: &Running) -> Shape {
        self.harness.model.borrow().shape(&vm.name)
    }

    /// Returns the present outcome with another shape.
    pub(super) fn ahead(&self, vm: &Running, shape: Shape) -> Outcome {
        Outcome { shape: Some(shape), ..self.harness.model.borrow().vms[&vm.name].now.clone() }
    }

    pub(super) fn expect(&self, vm: &Running, ahead: Vec<Outcome>) {
        self.harness.model.borrow_mut().vm(&vm.name).ahead = ahead;
    }

    /// Carries out a verb that may lead to these outcomes.
    pub(super) async fn attempt<T>(
        &self,
        vm: &Running,
        ahead: Vec<Outcome>,
        verb: impl Future<Output = blk::Result<T>>,
    ) -> Result<Option<T>, String> {
        self.expect(vm, ahead);
        let result = verb.await;
        self.settle(vm, result)
    }

    /// Notes what a verb has done: all of it, or nothing if it was refused or found no space.
    pub(super) fn settle<T>(&self, vm: &Running, result: blk::Result<T>) -> Result<Option<T>, String> {
        let done = match result {
            Ok(done) => Some(done),
            Err(e) if e.is_no_space() || e.kind == ErrorKind::Refused => None,
            Err(e) => return Err(e.to_string()),
        };
        match done.is_some() {
            true => self.harness.model.borrow_mut().arrive(&vm.name, None),
            false => self.harness.model.borrow_mut().stay(&vm.name),
        }
        self.harness.world.mark(if done.is_some() { "done" } else { "refused" });
        self.harness.check_shape(&vm.name)?;
        Ok(done)
    }

    /// Notes a take before it begins. Returns its new name and the shape with it.
    fn begin_take(&self, vm: &Running) -> (String, Shape) {
        let shape = self.shape(vm);
        let mut model = self.harness.model.borrow_mut();
        let name = format!("s{}", model.next_ordinal());
        let numbers = shape.persistent();
        let began = model.ticks(&vm.name, &numbers);
        let disks = numbers.iter().map(|number| (*number, shape.disks[number].clone())).collect();
        model.sealed.insert(name.clone(), Sealed { disks, began, ..Sealed::default() });
        let taken = shape.taken(&name);
        (name, taken)
    }

    fn end_take(&self, vm: &Running, name: &str) {
        let mut model = self.harness.model.borrow_mut();
        let numbers: Vec<u32> = model.sealed[name].began.keys().copied().collect();
        let ended = model.ticks(&vm.name, &numbers);
        model.sealed.get_mut(name).expect("begun").ended = Some(ended);
    }

    async fn take(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        if self.shape(vm).snapshots.len() >= self.harness.plan.snapshots_max {
            return self.commit(vm, Verb::CommitOne).await;
        }
        if self.shape(vm).persistent().is_empty() {
            return Ok(());
        }
        let (name, shape) = self.begin_take(vm);
        self.expect(vm, vec![self.ahead(vm, shape)]);
        let result = vm.vm.take(&name, "").await;
        if result.is_ok() {
            self.end_take(vm, &name);
        }
        if self.settle(vm, result)?.is_none() {
            return Ok(());
        }
        // The second look shows any write that still reaches a state reported as sealed.
        self.harness.look(&vm.name, &name).await?;
        self.harness.inner.env.sleep_us(self.rng.below(200)).await;
        self.harness.look(&vm.name, &name).await
    }

    async fn commit(&mut self, vm: &Rc<Running>, verb: Verb) -> Result<(), String> {
        let shape = self.shape(vm);
        let one = self.any_snapshot(shape.snapshots.keys().cloned());
        match (verb, one) {
            (Verb::CommitAll, _) => self.fold(vm, CommitWhat::All, shape.running_names()).await?,
            (_, Some(one)) => self.fold(vm, CommitWhat::One(one.clone()), vec![one]).await?,
            (_, None) => {}
        }
        match self.rng.below(4) {
            // Commits what a cancelled commit has left.
            0 => self.fold(vm, CommitWhat::Unowned, Vec::new()).await,
            _ => Ok(()),
        }
    }

    async fn fold(&mut self, vm: &Rc<Running>, what: CommitWhat, gone: Vec<String>) -> Result<(), String> {
        let shape = self.shape(vm);
        let ahead = vec![self.ahead(vm, shape.committed(&gone))];
        match self.attempt(vm, ahead, vm.vm.commit(&what)).await? {
            Some(job) => self.disturb(&job).await,
            None => Ok(()),
        }
    }

    async fn defragment(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let request = DefragmentRequest {
            disk: if self.rng.coin() { self.any_disk(&self.shape(vm)) } else { None },
            copy_shared: self.rng.coin(),
        };
        let ahead = vec![self.ahead(vm, self.shape(vm))];
        match self.attempt(vm, ahead, vm.vm.defragment(request)).await? {
            Some(job) => self.disturb(&job).await,
            None => Ok(()),
        }
    }

    /// Cancels or pauses a job or leaves it alone, and may resume it.
    async fn disturb(&mut self, job: &Job) -> Result<(), String> {
        let asked = match self.rng.below(4) {
            0 => job.cancel(),
            1 => job.pause(),
            _ => Ok(()),
        };
        self.harness.inner.env.sleep_us(self.rng.below(2000)).await;
        if asked.is_ok() && self.rng.coin() {
            // A job that is over needs no resume.
            let _ = job.resume();
        }
        Ok(())
    }

    async fn revert(&mut self, vm: &Rc<Running>, keeping: bool) -> Result<(), String> {
        let Some(to) = self.any_snapshot(self.shape(vm).snapshots.into_keys()) else { return Ok(()) };
        let keeps = (keeping && !self.shape(vm).persistent().is_empty()).then(|| self.begin_take(vm));
        let mut ahead: Vec<Outcome> = keeps.iter().map(|(_, shape)| self.ahead(vm, shape.clone())).collect();
        let before = keeps.as_ref().map_or_else(|| self.shape(vm), |(_, shape)| shape.clone());
        ahead.push(self.on_medium_of(vm, &before, &to));
        self.expect(vm, ahead);
        let first = keeps.as_ref().map(|(name, _)| name.as_str());
        let result = vm.vm.revert(Some(&to), first, false).await;
        if let Some(first) = first.filter(|_| result.is_ok()) {
            // The models still cover the time before the revert.
            self.end_take(vm, first);
            self.harness.look(&vm.name, first).await?;
        }
        self.settle(vm, result).map(drop)
    }

    /// Returns the outcome of a revert: the disks that the snapshot has show what it shows.
    pub(super) fn on_medium_of(&self, vm: &Running, before: &Shape, to: &str) -> Outcome {
        let model = self.harness.model.borrow();
        let shape = before.reverted(to, &model.sealed[to].disks);
        Outcome { fixed: model.contents(to), ..self.ahead(vm, shape) }
    }

    async fn discard(&mut self, vm: &Rc<Running>, running: bool) -> Result<(), String> {
        let shape = self.shape(vm);
        let on_way = shape.running_names();
        let fits = shape.snapshots.keys().filter(|name| on_way.contains(name) == running).cloned();
        let Some(wanted) = self.any_snapshot(fits) else { return Ok(()) };
        let ahead = self.discarded(vm, &shape, &wanted);
        self.attempt(vm, ahead, vm.vm.discard(&wanted, false)).await.map(drop)
    }

    /// Returns the outcomes of a discard. One of the running branch first moves the VM back.
    pub(super) fn discarded(&self, vm: &Running, shape: &Shape, wanted: &str) -> Vec<Outcome> {
        let gone = shape.with_later(wanted);
        let mut last = self.ahead(vm, shape.clone());
        let mut ahead = Vec::new();
        if shape.running_names().iter().any(|name| name == wanted) {
            last = self.on_medium_of(vm, shape, wanted);
            last.shape.as_mut().expect("it stays").current = shape.snapshots[wanted].parent.clone();
            ahead.push(last.clone());
        }
        last.shape.as_mut().expect("it stays").snapshots.retain(|name, _| !gone.contains(name));
        ahead.push(last);
        ahead
    }

    async fn reset(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let now = self.ahead(vm, self.shape(vm));
        let mut fixed = now.resets.clone();
        for (number, content) in &mut fixed {
            // A disk that has grown since keeps its size.
            let size_bytes = now.shape.as_ref().expect("it is there").disks[number].size_bytes as usize;
            Rc::make_mut(content).resize(size_bytes, 0);
        }
        let shape = now.shape.as_ref().map(Shape::with_other_content);
        let ahead = vec![Outcome { shape, fixed, ..now }];
        self.attempt(vm, ahead, vm.vm.reset(false)).await.map(drop)
    }

    async fn open_plain_names(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let shape = Shape { fenced: false, ..self.shape(vm) };
        let ahead = vec![self.ahead(vm, shape)];
        self.attempt(vm, ahead, vm.vm.change_generation(GenerationChange::Open)).await.map(drop)
    }

    async fn set_mode(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let Some(number) = self.any_disk(&self.shape(vm)) else { return Ok(()) };
        let mode = *self.rng.pick(&MODES).expect("three");
        self.change_mode(vm, number, mode).await
    }

    /// Changes the mode of a disk without clients, after a flush of what was written to it.
    pub(super) async fn change_mode(
        &self,
        vm: &Rc<Running>,
        number: u32,
        mode: DiskMode,
    ) -> Result<(), String> {
        let disk: Rc<dyn Volume> = vm.vm.disk(number).map_err(|e| e.to_string())?;
        let model = self.harness.model.borrow().vms[&vm.name].models[&number].clone();
        Target::plain(disk.clone(), model, 0, 1).flush().await.map_err(|e| e.to_string())?;
        let mut shape = self.shape(vm);
        let state = shape.disks.get_mut(&number).expect("it is there");
        let changes = std::mem::replace(&mut state.mode, mode) != mode;
        let mut next = self.ahead(vm, shape);
        if changes {
            next.resets.remove(&number);
            if mode == DiskMode::IndependentNonpersistent {
                next.resets.insert(number, read_all(&disk).await?);
            }
        }
        self.attempt(vm, vec![next], vm.vm.set_mode(number, mode)).await.map(drop)
    }

    async fn checkpoint(&self) -> Result<(), String> {
        match self.harness.inner.store.checkpoint().await {
            Err(e) if !e.is_no_space() => Err(e.to_string()),
            _ => Ok(()),
        }
    }
}
