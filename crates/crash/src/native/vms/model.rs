//! Expected state of the VMs, kept across power cuts, and the possible outcomes of an interrupted verb.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::plan::Plan;
use super::shape::{DiskShape, Shape};
use crate::content::Image;
use crate::run::Run;
use sim::oracle::DiskModel;

pub(super) type VmRun = Run<Plan, Model>;

/// A disk's sequence numbers begin at its ordinal times this, which distinguishes them from all others.
const SEQUENCES: u64 = 1 << 32;

/// Expected state of a snapshot: the shape and the content of its disks.
#[derive(Default)]
pub(super) struct Sealed {
    pub disks: BTreeMap<u32, DiskShape>,
    /// Ticks, by disk, at which its take was called and at which it returned.
    pub began: BTreeMap<u32, u64>,
    pub ended: Option<BTreeMap<u32, u64>>,
    /// Set at the first look.
    pub contents: Option<BTreeMap<u32, Image>>,
}

/// Possible outcome of a verb under way.
#[derive(Clone, Default)]
pub(super) struct Outcome {
    /// None: the VM is gone, or not there yet.
    pub shape: Option<Shape>,
    /// Content that running disks show, whatever was written; other disks keep what they have.
    pub fixed: BTreeMap<u32, Image>,
    /// Content that a reset restores, by disk.
    pub resets: BTreeMap<u32, Image>,
}

#[derive(Default)]
pub(super) struct ExpectedVm {
    pub now: Outcome,
    /// Possible outcomes besides the present, in the order in which they come about; the last is what the verb is to
    /// do.
    pub ahead: Vec<Outcome>,
    pub models: BTreeMap<u32, Rc<DiskModel>>,
    /// Set at the first look at the VM.
    pub first_generation: Option<u64>,
}

impl ExpectedVm {
    /// Notes that a clean stop has made every completed request durable.
    pub(super) fn closed(&self) {
        self.models.values().for_each(|model| model.closed());
    }
}

#[derive(Default)]
pub(super) struct Model {
    /// VMs by name.
    pub vms: BTreeMap<String, ExpectedVm>,
    /// Snapshots by name, which is unique across VMs.
    pub sealed: BTreeMap<String, Sealed>,
    ordinal: u64,
    /// I/O has failed and the process was killed: clients may have been notified that acknowledged writes are lost.
    pub may_report_loss: bool,
    /// The verb under way, for the marks of a cut.
    pub doing: Option<&'static str>,
}

impl Model {
    /// Returns the next ordinal, for names and for the sequence numbers of disks.
    pub(super) fn next_ordinal(&mut self) -> u64 {
        self.ordinal += 1;
        self.ordinal
    }

    fn new_model(&mut self, number: u32) -> Rc<DiskModel> {
        Rc::new(DiskModel::starting_at(number, self.next_ordinal() * SEQUENCES))
    }

    pub(super) fn vm(&mut self, name: &str) -> &mut ExpectedVm {
        self.vms.get_mut(name).expect("it is known")
    }

    pub(super) fn shape(&self, name: &str) -> Shape {
        self.vms[name].now.shape.clone().expect("it is there")
    }

    pub(super) fn ticks(&self, name: &str, numbers: &[u32]) -> BTreeMap<u32, u64> {
        numbers.iter().map(|n| (*n, self.vms[name].models[n].now())).collect()
    }

    /// Notes that an outcome has come about: the one at `at`, or the last for None.
    pub(super) fn arrive(&mut self, name: &str, at: Option<usize>) {
        let ahead = std::mem::take(&mut self.vm(name).ahead);
        let at = at.unwrap_or(ahead.len() - 1);
        let Some(outcome) = ahead.into_iter().nth(at) else { return };
        let numbers: Vec<u32> = outcome.shape.iter().flat_map(|s| s.disks.keys().copied()).collect();
        for number in &numbers {
            if !self.vms[name].models.contains_key(number) {
                let model = self.new_model(*number);
                self.vm(name).models.insert(*number, model);
            }
        }
        let vm = self.vm(name);
        vm.models.retain(|number, _| numbers.contains(number));
        for (number, content) in &outcome.fixed {
            vm.models[number].replace(content);
        }
        vm.now = Outcome { fixed: BTreeMap::new(), ..outcome };
        if vm.now.shape.is_none() {
            self.vms.remove(name);
        }
        self.forget_snapshots();
    }

    /// Notes that the verb has changed nothing.
    pub(super) fn stay(&mut self, name: &str) {
        self.vm(name).ahead.clear();
        if self.vms[name].now.shape.is_none() {
            self.vms.remove(name);
        }
        self.forget_snapshots();
    }

    fn forget_snapshots(&mut self) {
        let outcomes = self.vms.values().flat_map(|vm| vm.ahead.iter().chain([&vm.now]));
        let shapes: Vec<&Shape> = outcomes.filter_map(|outcome| outcome.shape.as_ref()).collect();
        self.sealed.retain(|name, _| shapes.iter().any(|shape| shape.snapshots.contains_key(name)));
    }

    /// Returns what the snapshot shows, by disk. It has been looked at before.
    pub(super) fn contents(&self, snapshot: &str) -> BTreeMap<u32, Image> {
        self.sealed[snapshot].contents.clone().expect("looked at after its take")
    }
}
