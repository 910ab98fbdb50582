//! Expected state of a run, kept across power cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::native::Store;
use sim::SimWorld;
use sim::oracle::DiskModel;

use super::images::Images;
use super::plan::Plan;
use super::windows::Windows;
use crate::content::Image;
use crate::run::Run;

pub(super) type NativeRun = Run<Plan, Model>;

/// Content by disk, in the order of the model's sectors.
pub(super) type Contents = Vec<Image>;

/// Expected state of a running disk.
#[derive(Clone)]
pub struct ExpectedDisk {
    pub node: u64,
    pub model: Rc<DiskModel>,
    pub windows: Windows,
    /// Places after the resize that has begun.
    pub growing: Option<Windows>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existence {
    /// The change that makes it is not known to be durable.
    Making,
    There,
    /// The change that removes it is not known to be durable.
    Leaving,
}

/// A revert under way: all disks change to these nodes, or none.
pub struct Move {
    pub nodes: Vec<u64>,
    pub contents: Contents,
    pub windows: Vec<Windows>,
}

/// Expected state of a machine, the first or a branch. Its disks are taken together.
pub struct ExpectedMachine {
    pub disks: Vec<ExpectedDisk>,
    pub existence: Existence,
    pub moving: Option<Move>,
}

pub struct ExpectedSnapshot {
    pub machine: u64,
    pub nodes: Vec<u64>,
    pub windows: Vec<Windows>,
    pub existence: Existence,
    /// Ticks, by disk, at which its take was called and at which the take had happened in memory.
    pub began: Vec<u64>,
    pub ended: Vec<u64>,
    /// Set at the first look.
    pub contents: Option<Contents>,
}

/// Labels of a cut in a take and in a checkpoint, which may be under way together.
pub(super) const TAKING: &str = "cut in a take";
pub(super) const CHECKPOINTING: &str = "cut in a checkpoint";

#[derive(Default)]
pub struct Model {
    pub machines: BTreeMap<u64, ExpectedMachine>,
    pub snapshots: BTreeMap<u64, ExpectedSnapshot>,
    next: u64,
    pub images: Images,
    /// What is under way, as the marks of a cut in it.
    pub doing: BTreeSet<&'static str>,
    /// The newest superblock was made unreadable and has not been written or read since.
    pub superblock_lost: bool,
    /// Store of this boot, set once it has recovered.
    pub store: Option<Rc<Store>>,
}

impl Model {
    /// Returns a new number for a machine, a snapshot or a branch's sequence numbers. No number is given twice.
    pub fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn machine(&mut self, number: u64) -> &mut ExpectedMachine {
        self.machines.get_mut(&number).expect("it is known")
    }

    pub fn disk(&mut self, machine: u64, index: usize) -> &mut ExpectedDisk {
        &mut self.machine(machine).disks[index]
    }

    pub fn ticks(&self, machine: u64) -> Vec<u64> {
        self.machines[&machine].disks.iter().map(|disk| disk.model.now()).collect()
    }

    /// Returns the nodes of a snapshot's disks, and their places.
    pub fn snapshot(&self, number: u64) -> (Vec<u64>, Vec<Windows>) {
        let snapshot = &self.snapshots[&number];
        (snapshot.nodes.clone(), snapshot.windows.clone())
    }

    pub fn set_existence(&mut self, snapshot: u64, existence: Existence) {
        self.snapshots.get_mut(&snapshot).expect("it is known").existence = existence;
    }

    /// Returns the snapshots that are certainly there.
    pub fn sealed(&self) -> Vec<u64> {
        let there = self.snapshots.iter().filter(|(_, s)| s.existence == Existence::There);
        there.map(|(number, _)| *number).collect()
    }

    /// Notes that a boot was cut short. `all_there`: only the process ended.
    pub fn ended(&mut self, all_there: bool) {
        let disks = self.machines.values_mut().flat_map(|machine| &mut machine.disks);
        disks.for_each(|disk| disk.model.ended(all_there));
    }

    pub fn mark_cut(&mut self, world: &SimWorld) {
        let doing = std::mem::take(&mut self.doing);
        let reclaiming = self.store.take().is_some_and(|store| store.has_to_reclaim());
        world.mark("cut");
        doing.iter().for_each(|label| world.mark(label));
        if doing.contains(CHECKPOINTING) && doing.contains(TAKING) {
            world.mark("cut in a take during a checkpoint");
        }
        if reclaiming {
            world.mark("cut while space is given back");
        }
    }
}
