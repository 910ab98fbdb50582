//! One boot of a store and its VMs: finds the VMs, compares them with the model, and serves them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::rc::Rc;

use blk::Env;
use blk::manifest::VmState;
use engine::machine::Attached;
use engine::native::NativeVm;
use engine::{Client, CommitWhat, Machine, Options};
use sim::oracle::DiskModel;

use super::model::{ExpectedVm, Model, Outcome, VmRun};
use super::shape::Shape;
use crate::content::{Image, contents_of, look};
use crate::native::harness::Harness;
use crate::native::space_audit::{judge, judge_states};
use crate::request_gate::RequestGate;
use crate::run::Run;

/// One start of this many checks the last checkpoint.
const CHECKED_EVERY: u64 = 3;

/// An open VM, and the disks that its guests are attached to.
pub(super) struct Running {
    pub name: String,
    pub vm: Rc<NativeVm>,
    pub gate: RequestGate,
    pub attached: RefCell<BTreeMap<u32, Attached<Client>>>,
    harness: Rc<Harness>,
}

pub(super) struct VmHarness {
    pub run: VmRun,
    /// The store under the VMs.
    pub inner: Rc<Harness>,
    pub running: RefCell<BTreeMap<String, Rc<Running>>>,
}

impl Deref for VmHarness {
    type Target = VmRun;

    fn deref(&self) -> &VmRun {
        &self.run
    }
}

impl Running {
    /// Powers the guests off and disconnects them.
    pub(super) async fn stop(&self) {
        self.gate.stop().await;
        self.attached.borrow_mut().clear();
    }

    pub(super) async fn start(&self) -> Result<(), String> {
        let numbers: Vec<u32> = self.vm.state().disks.iter().map(|disk| disk.number).collect();
        for number in numbers {
            self.attach(number).await?;
        }
        self.gate.start();
        Ok(())
    }

    pub(super) async fn attach(&self, number: u32) -> Result<(), String> {
        let machine: &dyn Machine = &*self.vm;
        let entered = machine.attach(number, "guest").await;
        let (_, client) = entered.map_err(|e| format!("attaching disk{number}: {e}"))?;
        let disk = self.vm.disk(number).map_err(|e| e.to_string())?;
        self.attached.borrow_mut().insert(number, (self.harness.volume(&disk), client));
        Ok(())
    }
}

impl VmHarness {
    /// Opens the store, and compares every VM in it.
    pub(super) async fn open(env: &Env, run: &VmRun, boot: u64) -> Result<Rc<VmHarness>, String> {
        let under = Run {
            world: run.world.clone(),
            plan: run.plan.clone(),
            model: Rc::default(),
            guests_core: run.guests_core.clone(),
        };
        let inner = Harness::open(env, &under, boot).await.map_err(|e| format!("opening the store: {e}"))?;
        if let Some(e) = inner.store.broken() {
            return Err(format!("the store is read-only: {e}"));
        }
        let harness = Rc::new(VmHarness { run: run.clone(), inner, running: RefCell::default() });
        if (run.plan.seed + boot).is_multiple_of(CHECKED_EVERY) {
            harness.inner.check_committed("as it was found").await?;
        }
        harness.find_vms().await?;
        Ok(harness)
    }

    async fn find_vms(self: &Rc<VmHarness>) -> Result<(), String> {
        let found = self.inner.store.vms().await.map_err(|e| e.to_string())?;
        let known: Vec<String> = self.model.borrow().vms.keys().cloned().collect();
        if let Some((_, name)) = found.iter().find(|(_, name)| !known.contains(name)) {
            return Err(format!("VM {name} was never made, or has been removed"));
        }
        for name in known {
            match found.iter().find(|(_, n)| *n == name) {
                Some((id, _)) => {
                    self.serve(*id).await.map_err(|e| format!("VM {name}: {e}"))?;
                    self.find(&name).await.map_err(|e| format!("VM {name}: {e}"))?;
                }
                None => self.miss(&name)?,
            }
        }
        Ok(())
    }

    /// Opens a VM whose guests are powered off.
    pub(super) async fn serve(self: &Rc<VmHarness>, id: u128) -> Result<Rc<Running>, String> {
        let vm = NativeVm::open(&self.inner.store, id, self.options()).await.map_err(|e| e.to_string())?;
        let name = vm.name.clone();
        let running = Running {
            name: name.clone(),
            vm,
            gate: RequestGate::default(),
            attached: RefCell::default(),
            harness: self.inner.clone(),
        };
        running.stop().await;
        let running = Rc::new(running);
        self.running.borrow_mut().insert(name, running.clone());
        Ok(running)
    }

    fn options(&self) -> Options {
        let terms = self.plan.terms;
        Options {
            space_policy: terms.policy,
            space_retry_us: terms.space_retry_us,
            defects: self.plan.options.defects,
            ..Options::default()
        }
    }

    fn miss(&self, name: &str) -> Result<(), String> {
        let gone = |outcome: &Outcome| outcome.shape.is_none();
        let mut model = self.model.borrow_mut();
        let vm = &model.vms[name];
        match vm.ahead.iter().position(gone) {
            _ if gone(&vm.now) => model.stay(name),
            Some(at) => model.arrive(name, Some(at)),
            None => return Err(format!("VM {name} is lost")),
        }
        Ok(())
    }

    /// Checks that a VM is, on all disks, what it was or what the verb that was cut leads to.
    pub(super) async fn find(self: &Rc<VmHarness>, name: &str) -> Result<(), String> {
        let running = self.running(name);
        let shape = self.shape_of(name)?;
        let looked: BTreeSet<String> = shape.snapshots.keys().cloned().collect();
        for snapshot in looked {
            self.look(name, &snapshot).await?;
        }
        let contents = self.contents(&running).await?;
        self.decide(name, &shape, &contents)?;
        let model = self.model.borrow();
        contents.iter().for_each(|(number, bytes)| model.vms[name].models[number].replace(bytes));
        Ok(())
    }

    fn decide(&self, name: &str, shape: &Shape, contents: &BTreeMap<u32, Image>) -> Result<(), String> {
        let mut model = self.model.borrow_mut();
        let vm = &model.vms[name];
        let mut cause = format!("it is {shape:?}, expected {:?}", vm.now.shape);
        let may_report_loss = model.may_report_loss;
        let fits = |outcome: &Outcome| -> Option<Result<(), String>> {
            let expected = outcome.shape.as_ref()?;
            let mut same = expected == shape;
            if may_report_loss {
                // The model learns the first generation of a new VM only now.
                let is_new = Shape { fenced: true, ..expected.clone() };
                same |= *shape == expected.with_other_content() || *shape == is_new;
            }
            same.then(|| shows(outcome, &vm.models, contents))
        };
        let mut candidates = std::iter::once(&vm.now).chain(&vm.ahead).enumerate();
        let found = candidates.find_map(|(n, outcome)| match fits(outcome)? {
            Ok(()) => Some(n),
            Err(e) => {
                cause = e;
                None
            }
        });
        if found.is_none() && !vm.ahead.is_empty() {
            let shapes: Vec<_> = vm.ahead.iter().map(|outcome| &outcome.shape).collect();
            cause = format!("{cause}; a verb may have led to {shapes:?}");
        }
        match found {
            Some(0) => model.stay(name),
            Some(n) => model.arrive(name, Some(n - 1)),
            None => return Err(cause),
        }
        model.vm(name).now.shape = Some(shape.clone());
        Ok(())
    }

    fn all(&self) -> Vec<Rc<Running>> {
        self.running.borrow().values().cloned().collect()
    }

    pub(super) fn running(&self, name: &str) -> Rc<Running> {
        self.running.borrow()[name].clone()
    }

    fn shape_of(&self, name: &str) -> Result<Shape, String> {
        let state = self.running(name).vm.state();
        let mut model = self.model.borrow_mut();
        let first = *model.vm(name).first_generation.get_or_insert(state.generation.present);
        Shape::of(&state, first)
    }

    pub(super) async fn contents(&self, running: &Running) -> Result<BTreeMap<u32, Image>, String> {
        let disks = running.vm.disks();
        let contents = contents_of(&disks).await?;
        Ok(disks.iter().map(|disk| disk.number).zip(contents).collect())
    }

    /// Reads a snapshot whole: compares the first look with the models, later ones with the first look.
    pub(super) async fn look(&self, name: &str, snapshot: &str) -> Result<(), String> {
        let state = self.running(name).vm.state();
        let found = state.snapshots.iter().find(|s| s.name == snapshot).expect("it is in the shape");
        let numbers: Vec<u32> = found.disks.iter().map(|(number, _)| *number).collect();
        let seen = look(&*self.running(name).vm, snapshot, &numbers, None).await?;
        let seen = seen.ok_or_else(|| format!("snapshot {snapshot} cannot be opened"))?;
        self.compare(name, snapshot, numbers.into_iter().zip(seen).collect())
    }

    fn compare(&self, name: &str, snapshot: &str, seen: BTreeMap<u32, Image>) -> Result<(), String> {
        let mut model = self.model.borrow_mut();
        let Model { vms, sealed, .. } = &mut *model;
        let Some(known) = sealed.get_mut(snapshot) else {
            return Err(format!("snapshot {snapshot} was never taken, or has been removed"));
        };
        if let Some(first) = &known.contents {
            let changed = first.iter().find(|(number, bytes)| seen.get(number) != Some(bytes));
            return changed
                .map_or(Ok(()), |(number, _)| Err(format!("sealed {snapshot} disk{number} changed")));
        }
        for (number, bytes) in &seen {
            let ended = known.ended.as_ref().map(|ended| ended[number]);
            let checked = vms[name].models[number].check_snapshot(bytes, known.began[number], ended);
            checked.map_err(|e| format!("snapshot {snapshot}: {e}"))?;
        }
        known.contents = Some(seen);
        Ok(())
    }

    /// Checks that the open VM is what the verbs made of it.
    pub(super) fn check_shape(&self, name: &str) -> Result<(), String> {
        let (shape, expected) = (self.shape_of(name)?, self.model.borrow().shape(name));
        match shape == expected {
            true => Ok(()),
            false => Err(format!("VM {name} is {shape:?}, expected {expected:?}")),
        }
    }

    pub(super) async fn start_all(&self) -> Result<(), String> {
        for running in self.all() {
            running.start().await?;
        }
        Ok(())
    }

    /// Ends the boot as a clean stop does.
    pub(super) async fn close(&self) -> Result<(), String> {
        for running in self.all() {
            running.stop().await;
            running.vm.close().await.map_err(|e| format!("closing VM {}: {e}", running.name))?;
        }
        match self.inner.store.close().await {
            Err(e) if !e.is_no_space() => return Err(format!("closing: {e}")),
            Ok(()) => self.model.borrow().vms.values().for_each(ExpectedVm::closed),
            Err(_) => {}
        }
        Ok(())
    }

    /// Checks that the store has the states that VMs and snapshots name, and no others but those hidden under several
    /// of them. Checks that every block in use belongs to something.
    pub(super) async fn check_exact(&self) -> Result<(), String> {
        for running in self.all() {
            for job in running.vm.jobs() {
                if job.is_cancelled() {
                    job.wait().await;
                } else {
                    // A job that is over needs no resume.
                    let _ = job.resume();
                }
            }
            // Commits what a cancelled commit has left behind.
            let _ = running.vm.clone().commit(&CommitWhat::Unowned).await;
        }
        self.inner.wait_for_hidden().await?;
        let report = self.inner.store.check().await.map_err(|e| format!("check at the end: {e}"))?;
        judge(&report, "at the end")?;
        let running = self.running.borrow();
        let named = running.values().flat_map(|vm| nodes_of(&vm.vm.state())).collect();
        judge_states(&report, named, "at the end")
    }
}

fn nodes_of(state: &VmState) -> Vec<u64> {
    let disks = state.disks.iter().flat_map(|disk| std::iter::once(&disk.top).chain(&disk.reset_to));
    let sealed = state.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
    // A nonpersistent disk in the bin has the same base as the running one.
    let binned = state.bin.iter().flat_map(|binned| {
        let frozen = binned.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
        binned.disks.iter().map(|disk| &disk.top).chain(frozen)
    });
    disks.chain(sealed).chain(binned).map(|layer| layer[1..].parse().expect("n and a number")).collect()
}

/// Checks that the running disks show what the outcome says.
fn shows(
    outcome: &Outcome,
    models: &BTreeMap<u32, Rc<DiskModel>>,
    contents: &BTreeMap<u32, Image>,
) -> Result<(), String> {
    for (number, bytes) in contents {
        match (outcome.fixed.get(number), models.get(number)) {
            (Some(fixed), _) if fixed == bytes => {}
            (Some(_), _) => return Err(format!("disk{number} does not show what it was put on")),
            (None, Some(model)) => model.check_cut(bytes)?,
            (None, None) if bytes.iter().all(|byte| *byte == 0) => {}
            (None, None) => return Err(format!("new disk{number} is not empty")),
        }
    }
    Ok(())
}
