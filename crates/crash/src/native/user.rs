//! The user: takes, removes, reverts, branches, resizes and checkpoints while the guests run.

use std::rc::Rc;

use engine::Defect;
use engine::native::change::Op;
use sim::Rng;

use super::harness::{Harness, MACHINE, RunningMachine, SNAPSHOT, key, put};
use super::model::{CHECKPOINTING, Existence, ExpectedDisk, ExpectedMachine, ExpectedSnapshot, Move, TAKING};
use super::plan::{Aim, Steps, soon};
use crate::run::draw_share;
use crate::watch::print;
use sim::oracle::DiskModel;

/// A branch's sequence numbers begin at its number times this, which distinguishes them from all others.
const BRANCH_SEQUENCES: u64 = 1 << 40;
/// One of this many verbs of the kind that a plan aims at is cut.
const AIMED_EVERY: u64 = 4;
/// Most blocks that a disk may grow by.
const GROWN_BLOCKS_MAX: u64 = 12;

/// One branch of this many is a new machine over a source instead.
const OVER_SOURCE_EVERY: u64 = 2;

const REMOVING: &str = "cut in a removal";

pub struct User {
    pub harness: Rc<Harness>,
    pub rng: Rng,
}

impl User {
    pub async fn run(mut self) -> Result<(), String> {
        for _ in 0..self.harness.plan.user_steps {
            self.harness.env.sleep_us(self.rng.below(3000)).await;
            let done = self.step().await;
            self.harness.faults.survive(&self.harness.env, done).await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), String> {
        let Steps { take, remove, revert, branch, checkpoint, grow, look, hold, check } =
            self.harness.plan.steps;
        let shares = [take, remove, revert, branch, checkpoint, grow, look, hold, check];
        match draw_share(&mut self.rng, &shares) {
            0 => self.take().await,
            1 => self.remove_something().await,
            2 => self.revert().await,
            3 => self.branch().await,
            4 => self.checkpoint().await,
            5 => self.grow().await,
            6 => self.look_at_one().await,
            7 => self.hold().await,
            _ => self.harness.check_committed("while guests run").await,
        }
    }

    /// Makes a change in memory. Returns false if the journal is full and so nothing is changed.
    fn change(&self, ops: &[Op]) -> Result<bool, String> {
        match self.harness.store.change(ops) {
            Ok(lsn) => {
                print(|| format!("change {lsn}: {ops:?}"));
                Ok(true)
            }
            Err(e) if e.is_no_space() => {
                self.harness.mark("a change found no space");
                Ok(false)
            }
            Err(e) => Err(format!("change {ops:?}: {e}")),
        }
    }

    /// Makes a change durable. A cut meanwhile is marked with `doing`.
    async fn flush(&self, doing: &'static str) -> Result<(), String> {
        self.harness.model.borrow_mut().doing.insert(doing);
        self.harness.store.flush().await.map_err(|e| format!("flush of a change: {e}"))?;
        self.harness.model.borrow_mut().doing.remove(doing);
        Ok(())
    }

    fn any_machine(&mut self) -> Rc<RunningMachine> {
        let running: Vec<_> = self.harness.running.borrow().values().cloned().collect();
        self.rng.pick(&running).expect("the first machine stays").clone()
    }

    fn any_sealed(&mut self) -> Option<u64> {
        let sealed = self.harness.model.borrow().sealed();
        self.rng.pick(&sealed).copied()
    }

    fn new_nodes(&self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.harness.store.new_node_id()).collect()
    }

    /// Takes all disks of a machine in one change. The snapshot is sealed once the writes under way have ended and are
    /// durable.
    pub async fn take(&mut self) -> Result<(), String> {
        if self.harness.model.borrow().snapshots.len() >= self.harness.plan.snapshots_max {
            return self.remove_something().await;
        }
        let machine = self.any_machine().number;
        let running: Vec<u64> =
            self.harness.model.borrow().machines[&machine].disks.iter().map(|d| d.node).collect();
        let sealed = self.new_nodes(running.len());
        let number = self.harness.model.borrow_mut().next_number();
        let pairs = running.iter().zip(&sealed);
        let takes = pairs.map(|(running, sealed)| Op::Take { running: *running, sealed: *sealed });
        let ops: Vec<Op> = takes.chain([put(SNAPSHOT, number, &sealed)]).collect();
        let began = self.harness.model.borrow_mut().ticks(machine);
        if !self.change(&ops)? {
            return Ok(());
        }
        self.note_take(machine, number, sealed, began);
        let drained = self.harness.store.drain_writes();
        if !self.harness.plan.options.defects.has(Defect::SealWithoutDrain) {
            drained.await;
        }
        self.flush(TAKING).await?;
        print(|| format!("snapshot {number} is sealed"));
        self.harness.model.borrow_mut().set_existence(number, Existence::There);
        self.harness.mark("taken");
        if self.harness.plan.aim == Aim::Takes {
            // The second look shows any write that still reaches a state reported as sealed.
            self.harness.look(number).await?;
            self.harness.env.sleep_us(self.rng.below(200)).await;
            return self.harness.look(number).await.map(drop);
        }
        if self.rng.below(3) == 0 { self.harness.look(number).await.map(drop) } else { Ok(()) }
    }

    /// Sometimes schedules a power cut in the operation that begins now.
    fn aim(&mut self, aim: Aim) {
        let plan = &self.harness.plan;
        if plan.aim == aim && plan.may_cut(self.harness.boot) && self.rng.below(AIMED_EVERY) == 0 {
            self.harness.world.cut_at(soon(&mut self.rng));
        }
    }

    fn note_take(&self, machine: u64, number: u64, nodes: Vec<u64>, began: Vec<u64>) {
        let mut model = self.harness.model.borrow_mut();
        let ended = model.ticks(machine);
        let windows = model.machines[&machine].disks.iter().map(|disk| disk.windows.clone()).collect();
        let existence = Existence::Making;
        let snapshot = ExpectedSnapshot { machine, nodes, windows, existence, began, ended, contents: None };
        model.snapshots.insert(number, snapshot);
        model.doing.insert(TAKING);
    }

    /// Removes a snapshot (any, or often the oldest or the newest) or a branched machine.
    async fn remove_something(&mut self) -> Result<(), String> {
        let branched: Vec<u64> =
            self.harness.running.borrow().keys().copied().filter(|n| *n != super::FIRST_MACHINE).collect();
        if let Some(machine) = self.rng.pick(&branched).copied().filter(|_| self.rng.below(3) == 0) {
            return self.remove_machine(machine).await;
        }
        let sealed = self.harness.model.borrow().sealed();
        let number = match self.rng.below(3) {
            0 => sealed.first().copied(),
            1 => sealed.last().copied(),
            _ => self.rng.pick(&sealed).copied(),
        };
        let Some(number) = number else { return Ok(()) };
        self.remove_snapshot(number).await
    }

    pub async fn remove_snapshot(&mut self, number: u64) -> Result<(), String> {
        if self.rng.below(4) > 0 {
            self.harness.look(number).await?;
        }
        let (nodes, _) = self.harness.model.borrow().snapshot(number);
        if !self.change(&drops(SNAPSHOT, number, &nodes))? {
            return Ok(());
        }
        self.harness.model.borrow_mut().set_existence(number, Existence::Leaving);
        self.flush(REMOVING).await?;
        self.harness.model.borrow_mut().snapshots.remove(&number);
        Ok(())
    }

    pub async fn remove_machine(&mut self, number: u64) -> Result<(), String> {
        let machine = self.harness.machine(number);
        machine.gate.stop().await;
        self.harness.look_at_all_of(number).await?;
        let nodes: Vec<u64> = machine.disks.borrow().iter().map(|disk| disk.node.id).collect();
        if !self.change(&drops(MACHINE, number, &nodes))? {
            machine.gate.start();
            return Ok(());
        }
        self.harness.running.borrow_mut().remove(&number);
        self.harness.model.borrow_mut().machine(number).existence = Existence::Leaving;
        self.flush(REMOVING).await?;
        self.harness.model.borrow_mut().machines.remove(&number);
        self.harness.mark("removed a machine");
        Ok(())
    }

    /// Stops a machine's guests, and reverts its disks to a snapshot, its own or another machine's.
    pub async fn revert(&mut self) -> Result<(), String> {
        let Some(number) = self.any_sealed() else { return Ok(()) };
        let machine = self.any_machine();
        machine.gate.stop().await;
        self.harness.look_at_all_of(machine.number).await?;
        let contents = self.harness.look(number).await?;
        let (from, windows) = self.harness.model.borrow().snapshot(number);
        let nodes = self.new_nodes(from.len());
        let mut ops = Vec::new();
        for ((from, node), old) in from.iter().zip(&nodes).zip(machine.disks.borrow().iter()) {
            ops.extend([Op::Branch { from: *from, node: *node }, Op::Drop { node: old.node.id }]);
        }
        ops.push(put(MACHINE, machine.number, &nodes));
        if self.change(&ops)? {
            let moving = Some(Move { nodes, contents, windows });
            self.harness.model.borrow_mut().machine(machine.number).moving = moving;
            self.flush("cut in a revert").await?;
            self.harness.model.borrow_mut().machine(machine.number).arrive();
            let disks = self.harness.disks_of(machine.number).map_err(|e| e.to_string())?;
            *machine.disks.borrow_mut() = disks;
            self.harness.mark("reverted");
        }
        machine.gate.start();
        Ok(())
    }

    /// Makes a new machine on a snapshot.
    pub async fn branch(&mut self) -> Result<(), String> {
        if self.harness.plan.over_sources && self.rng.below(OVER_SOURCE_EVERY) == 0 {
            return self.make_over_a_source().await;
        }
        let Some(number) = self.any_sealed() else { return Ok(()) };
        if self.harness.model.borrow().machines.len() >= self.harness.plan.machines_max {
            return self.remove_something().await;
        }
        let contents = self.harness.look(number).await?;
        let (from, windows) = self.harness.model.borrow().snapshot(number);
        let nodes = self.new_nodes(from.len());
        let machine = self.harness.model.borrow_mut().next_number();
        let branches = from.iter().zip(&nodes).map(|(from, node)| Op::Branch { from: *from, node: *node });
        let ops: Vec<Op> = branches.chain([put(MACHINE, machine, &nodes)]).collect();
        if !self.change(&ops)? {
            return Ok(());
        }
        let disks = nodes.iter().zip(windows).zip(contents.iter()).enumerate();
        let disks = disks.map(|(n, ((node, windows), bytes))| {
            let model = DiskModel::starting_at(n as u32, machine * BRANCH_SEQUENCES);
            model.replace(bytes);
            ExpectedDisk { node: *node, model: Rc::new(model), windows, growing: None }
        });
        let made = ExpectedMachine { disks: disks.collect(), existence: Existence::Making, moving: None };
        self.harness.model.borrow_mut().machines.insert(machine, made);
        self.flush("cut in a branch").await?;
        self.harness.model.borrow_mut().machine(machine).existence = Existence::There;
        self.harness.mark("branched");
        self.harness.start(machine).map_err(|e| e.to_string())
    }

    /// Makes a new machine whose first disk is over a new source, and whose other disks are empty.
    async fn make_over_a_source(&mut self) -> Result<(), String> {
        if self.harness.model.borrow().machines.len() >= self.harness.plan.machines_max {
            return self.remove_something().await;
        }
        let machine = self.harness.model.borrow_mut().next_number();
        let (mut disks, mut ops) = (Vec::new(), Vec::new());
        for (n, windows) in self.harness.plan.disks.clone().into_iter().enumerate() {
            let node = self.harness.store.new_node_id();
            let model = Rc::new(DiskModel::starting_at(n as u32, machine * BRANCH_SEQUENCES));
            let op = match n {
                0 => self.harness.plan_over(&mut self.rng, node, &model, &windows).await,
                _ => Ok(Op::Create { node, size_blocks: windows.size_blocks }),
            };
            match op {
                Ok(op) => ops.push(op),
                Err(e) if e.is_no_space() => return Ok(()),
                Err(e) => return Err(format!("making a source: {e}")),
            }
            disks.push(ExpectedDisk { node, model, windows, growing: None });
        }
        let nodes: Vec<u64> = disks.iter().map(|disk| disk.node).collect();
        ops.push(put(MACHINE, machine, &nodes));
        if !self.change(&ops)? {
            return Ok(());
        }
        let made = ExpectedMachine { disks, existence: Existence::Making, moving: None };
        self.harness.model.borrow_mut().machines.insert(machine, made);
        self.flush("cut while a disk is made over a source").await?;
        self.harness.model.borrow_mut().machine(machine).existence = Existence::There;
        self.harness.mark("made a machine over a source");
        self.harness.start(machine).map_err(|e| e.to_string())
    }

    pub async fn checkpoint(&mut self) -> Result<(), String> {
        if self.harness.plan.aim == Aim::Checkpoints {
            self.flush_one().await?;
            self.aim(Aim::Checkpoints);
        }
        self.harness.model.borrow_mut().doing.insert(CHECKPOINTING);
        let written = self.harness.store.checkpoint().await;
        self.harness.model.borrow_mut().doing.remove(CHECKPOINTING);
        match written {
            Ok(()) => self.harness.mark("checkpoint"),
            Err(e) if e.is_no_space() => self.harness.mark("a checkpoint found no space"),
            Err(e) => return Err(format!("checkpoint: {e}")),
        }
        Ok(())
    }

    /// Flushes a disk as a guest does.
    async fn flush_one(&mut self) -> Result<(), String> {
        let machine = self.any_machine();
        let disks = machine.disks.borrow().len();
        let place = self.harness.place_at(&machine, self.rng.below(disks as u64) as usize, 0, 1);
        place.target.flush().await.map_err(|e| format!("flush: {e}"))
    }

    pub async fn grow(&mut self) -> Result<(), String> {
        let machine = self.any_machine().number;
        let index = self.rng.below(self.harness.plan.disks.len() as u64) as usize;
        let blocks = self.rng.between(1, GROWN_BLOCKS_MAX);
        let (node, grown) = {
            let mut model = self.harness.model.borrow_mut();
            let disk = model.disk(machine, index);
            (disk.node, disk.windows.grown(blocks))
        };
        if !self.change(&[Op::Resize { node, size_blocks: grown.size_blocks }])? {
            return Ok(());
        }
        self.harness.model.borrow_mut().disk(machine, index).growing = Some(grown);
        self.flush("cut in a resize").await?;
        self.harness.model.borrow_mut().disk(machine, index).has_grown();
        Ok(())
    }

    async fn look_at_one(&mut self) -> Result<(), String> {
        let Some(number) = self.any_sealed() else { return Ok(()) };
        self.harness.look(number).await.map(drop)
    }

    /// Delays the release of dropped nodes' space for a while.
    async fn hold(&mut self) -> Result<(), String> {
        let dropped = self.harness.store.dropped_nodes();
        self.harness.store.hold_back(&dropped, true);
        self.harness.env.sleep_us(self.rng.below(3000)).await;
        self.harness.store.hold_back(&dropped, false);
        Ok(())
    }
}

/// Returns the change that removes a machine or a snapshot with its nodes.
fn drops(kind: u8, number: u64, nodes: &[u64]) -> Vec<Op> {
    let nodes = nodes.iter().map(|node| Op::Drop { node: *node });
    nodes.chain([Op::Delete { key: key(kind, number) }]).collect()
}

impl ExpectedMachine {
    /// Notes that the revert has happened: the disks durably show other content.
    pub fn arrive(&mut self) {
        let Some(Move { nodes, contents, windows }) = self.moving.take() else { return };
        for (n, disk) in self.disks.iter_mut().enumerate() {
            disk.node = nodes[n];
            disk.windows = windows[n].clone();
            disk.growing = None;
            disk.model.replace(&contents[n]);
        }
    }
}

impl ExpectedDisk {
    pub fn has_grown(&mut self) {
        if let Some(grown) = self.growing.take() {
            self.windows = grown;
        }
    }
}
