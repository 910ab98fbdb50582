//! Revert, discard and reset: one record gives the running disks other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::manifest::{BinnedBy, BinnedState, DiskMode, DiskState, SnapshotState, VmState};
use blk::{Error, Result};

use super::super::change::Op;
use super::super::disk::NativeDisk;
use super::super::layout::BLOCK;
use super::NativeVm;
use super::items::{layer_name, node_of, put_binned};
use super::remove_names::drop_snapshot;
use crate::bin;
use crate::event::{DiskTimes, Event, EventKind};
use crate::operations::Loss;
use crate::options::Defect;
use crate::tree;

/// A change of the nodes on which disks run.
pub(super) struct RevertPlan {
    pub kind: EventKind,
    pub head: VmState,
    pub ops: Vec<Op>,
    /// Running disks whose content is thrown away, or kept in the bin.
    pub leaving: Vec<DiskState>,
    /// The new entry of the bin, without snapshots.
    pub binned: Option<BinnedState>,
    pub loss: Loss,
}

impl RevertPlan {
    fn is_leaving(&self, number: u32) -> bool {
        self.leaving.iter().any(|disk| disk.number == number)
    }

    /// Adds what becomes of the leaving disks: they go to the bin, or are dropped.
    pub(super) fn with_binned(mut self, vm: &NativeVm, binned: Option<BinnedState>) -> RevertPlan {
        match binned {
            Some(binned) => {
                let current = vm.state.borrow().current.filter(|_| self.loss.reverts);
                let added = bin::added(&vm.state.borrow().disks, &self.head.disks);
                let binned = BinnedState { disks: self.leaving.clone(), added, current, ..binned };
                self.ops.push(put_binned(vm.id(), &binned));
                self.loss.kept = Some(binned.id);
                self.binned = Some(binned);
            }
            None => {
                let drops = self.leaving.iter().map(|disk| Op::Drop { node: node_of(&disk.top) });
                self.ops.extend(drops);
            }
        }
        self
    }
}

impl NativeVm {
    /// See [`crate::Machine::revert_preview`].
    pub async fn revert_preview(&self, wanted: Option<&str>, keeps_present: bool) -> Result<Loss> {
        let plan = self.plan_revert(&self.revert_target(wanted)?, None)?;
        let bytes = if keeps_present { 0 } else { self.written_in(&plan.ops).await? };
        Ok(Loss { bytes, ..plan.loss })
    }

    /// Goes back to a snapshot and keeps it. With `take_first` the present state first becomes a snapshot of that name.
    /// Otherwise, with `keep`, the present state goes to the bin.
    pub async fn revert(
        self: &Rc<Self>,
        wanted: Option<&str>,
        take_first: Option<&str>,
        keep: bool,
    ) -> Result<SnapshotState> {
        // The target is chosen before the take, so that "the latest" is not the snapshot that is taken now.
        let target = self.revert_target(wanted)?;
        self.activity.refuse_clients(None)?;
        if let Some(name) = take_first {
            self.take(name, "").await?;
        }
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.activity.refuse_clients(None)?;
        let target = self.sealed(&format!("{:032x}", target.id))?;
        let keep = keep && take_first.is_none();
        let binned = keep.then(|| bin::new_entry(&self.env, BinnedBy::Revert, target.name.clone()));
        let plan = self.plan_revert(&target, binned)?;
        self.make_room_in_bin(keep).await?;
        self.carry_out(plan).await?;
        Ok(target)
    }

    /// See [`crate::Machine::discard_preview`].
    pub async fn discard_preview(&self, wanted: &str) -> Result<Loss> {
        let (plan, gone) = self.plan_discard(wanted, false)?;
        let bytes = self.written_since(&plan, &gone).await?;
        Ok(Loss { bytes, ..plan.loss })
    }

    /// Throws away what was written since the snapshot, every later snapshot of that branch included, and the
    /// snapshot's name. With `keep` all of it goes to the bin.
    pub async fn discard(self: &Rc<Self>, wanted: &str, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let (plan, gone) = self.plan_discard(wanted, keep)?;
        if plan.loss.reverts {
            self.activity.refuse_clients(None)?;
        }
        let ids: BTreeSet<u128> = gone.iter().map(|s| s.id).collect();
        self.activity.refuse_viewed(&self.state.borrow(), |id| ids.contains(id))?;
        self.activity.refuse_unsealed(&gone)?;
        let bytes = self.written_since(&plan, &gone).await?;
        self.make_room_in_bin(keep).await?;
        *self.leaving.borrow_mut() = ids;
        let discarded = self.carry_out_discard(plan, gone).await.map(|loss| Loss { bytes, ..loss });
        self.leaving.borrow_mut().clear();
        discarded
    }

    async fn carry_out_discard(self: &Rc<Self>, plan: RevertPlan, gone: Vec<SnapshotState>) -> Result<Loss> {
        let loss = self.carry_out(plan).await?;
        // The latest snapshot goes first, so that the parents of the others still exist after a crash.
        let latest_first: Vec<SnapshotState> = gone.into_iter().rev().collect();
        self.store.wait_for_room().await?;
        self.remove_names(self.head(), &latest_first, &BTreeMap::new(), loss.kept).await?;
        self.store.flush().await?;
        Ok(loss)
    }

    /// See [`crate::Machine::reset_preview`].
    pub async fn reset_preview(&self) -> Result<Loss> {
        let plan = self.plan_reset(None)?;
        let bytes = self.written_in(&plan.ops).await?;
        Ok(Loss { bytes, ..plan.loss })
    }

    /// Drops what was written to the nonpersistent disks since the last reset; with `keep` it goes to the bin.
    pub async fn reset(self: &Rc<Self>, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let binned = keep.then(|| bin::new_entry(&self.env, BinnedBy::Reset, String::new()));
        let plan = self.plan_reset(binned)?;
        // One generation covers all disks.
        self.activity.refuse_clients(None)?;
        let bytes = self.written_since(&plan, &[]).await?;
        self.make_room_in_bin(keep).await?;
        self.carry_out(plan).await.map(|loss| Loss { bytes, ..loss })
    }

    fn revert_target(&self, wanted: Option<&str>) -> Result<SnapshotState> {
        let state = self.state.borrow();
        tree::revert_target(&state, wanted).cloned()
    }

    /// Plans a revert. Disks added since the snapshot are unchanged; a disk removed since is brought back.
    fn plan_revert(&self, target: &SnapshotState, binned: Option<BinnedState>) -> Result<RevertPlan> {
        let mut head = self.head();
        head.current = Some(target.id);
        let (mut ops, mut leaving) = (Vec::new(), Vec::new());
        for (number, layer) in &target.disks {
            let node = self.store.new_node_id();
            ops.push(Op::Branch { from: node_of(layer), node });
            let size_bytes = self.store.node(node_of(layer))?.size_bytes();
            match head.disks.iter_mut().find(|d| d.number == *number) {
                Some(disk) => {
                    leaving.push(disk.clone());
                    (disk.top, disk.size_bytes) = (layer_name(node), size_bytes);
                }
                None => head.disks.push(DiskState {
                    number: *number,
                    slot: self.slot_at(target, *number),
                    mode: DiskMode::Persistent,
                    size_bytes,
                    top: layer_name(node),
                    reset_to: None,
                }),
            }
        }
        let loss = Loss { target: Some(target.name.clone()), reverts: true, ..Loss::default() };
        Ok(RevertPlan { kind: EventKind::Revert, head, ops, leaving, binned: None, loss }
            .with_binned(self, binned))
    }

    /// Plans a discard: the change of the running disks, and the snapshots that are removed.
    fn plan_discard(&self, wanted: &str, keep: bool) -> Result<(RevertPlan, Vec<SnapshotState>)> {
        let (target, gone, running) = {
            let state = self.state.borrow();
            let target = tree::find(&state, wanted)?.clone();
            let ids = tree::with_later(&state, target.id);
            let gone: Vec<_> = state.snapshots.iter().filter(|s| ids.contains(&s.id)).cloned().collect();
            (target, gone, state.current.is_some_and(|current| ids.contains(&current)))
        };
        let names: Vec<String> = gone.iter().map(|s| s.name.clone()).collect();
        let binned = keep.then(|| bin::new_entry(&self.env, BinnedBy::Discard, bin::subject_of(&names)));
        let plan = match running {
            true => {
                let mut plan = self.plan_revert(&target, binned)?;
                plan.head.current = target.parent;
                plan
            }
            false => RevertPlan {
                kind: EventKind::Discard,
                head: self.head(),
                ops: Vec::new(),
                leaving: Vec::new(),
                binned: None,
                loss: Loss::default(),
            }
            .with_binned(self, binned),
        };
        let loss = Loss { snapshots: names, ..plan.loss };
        Ok((RevertPlan { kind: EventKind::Discard, loss, ..plan }, gone))
    }

    fn plan_reset(&self, binned: Option<BinnedState>) -> Result<RevertPlan> {
        let mut head = self.head();
        let (mut ops, mut leaving) = (Vec::new(), Vec::new());
        for disk in &mut head.disks {
            let Some(reset) = &disk.reset_to else { continue };
            let node = self.store.new_node_id();
            ops.push(Op::Branch { from: node_of(reset), node });
            leaving.push(disk.clone());
            // The disk may have grown since: a disk never becomes smaller.
            ops.push(Op::Resize { node, size_blocks: disk.size_bytes / BLOCK });
            disk.top = layer_name(node);
        }
        if ops.is_empty() {
            let cause = "it has no nonpersistent disks, so there is nothing to reset";
            return Err(Error::refused(&self.name, cause));
        }
        Ok(RevertPlan {
            kind: EventKind::Reset,
            head,
            ops,
            leaving,
            binned: None,
            loss: Loss { reverts: true, ..Loss::default() },
        }
        .with_binned(self, binned))
    }

    pub(super) async fn carry_out(self: &Rc<Self>, plan: RevertPlan) -> Result<Loss> {
        let began_ns = self.env.now_ns();
        let apart = self.store.options.defects.has(Defect::RaiseApart);
        let raised = match plan.loss.reverts {
            true => plan.head.generation.raised(&self.name)?,
            false => plan.head.generation,
        };
        let leaving: Vec<_> = self.disks().into_iter().filter(|disk| plan.is_leaving(disk.number)).collect();
        let mut head = plan.head;
        if !apart {
            head.generation = raised;
        }
        self.stop_writes(&leaving, true).await;
        let disks = head.disks.clone();
        let numbers: Vec<u32> = match plan.ops.is_empty() {
            true => Vec::new(),
            false => disks.iter().map(|disk| disk.number).collect(),
        };
        let swap_ns = self.env.now_ns();
        if let Err(e) = self.change(head, plan.ops) {
            self.stop_writes(&leaving, false).await;
            return Err(e);
        }
        self.state.borrow_mut().bin.extend(plan.binned);
        self.put_disks(&disks)?;
        let stun_us = (self.env.now_ns() - swap_ns).div_ceil(1000);
        self.store.flush().await?;
        if apart && plan.loss.reverts {
            self.change(VmState { generation: raised, ..self.head() }, Vec::new())?;
            self.store.flush().await?;
        }
        let subject = plan.loss.target.clone().unwrap_or_default();
        let event = self.activity.event(plan.kind, &subject, "");
        let times = |number: &u32| DiskTimes { number: *number, stun_us, ..DiskTimes::default() };
        self.activity.report(Event {
            stun_us,
            total_us: (self.env.now_ns() - began_ns) / 1000,
            disks: numbers.iter().map(times).collect(),
            ..event
        });
        Ok(plan.loss)
    }

    /// Replaces the disks in memory by those of the state; a disk with the same node stays.
    pub(super) fn put_disks(self: &Rc<Self>, states: &[DiskState]) -> Result<()> {
        let known = self.disks();
        let disk = |state: &DiskState| {
            let node = node_of(&state.top);
            match known.iter().find(|d| d.number == state.number && d.node.id == node) {
                Some(disk) => Ok(disk.clone()),
                None => self.disk_on(state.number, node),
            }
        };
        let disks: Vec<Rc<NativeDisk>> = states.iter().map(disk).collect::<Result<_>>()?;
        let is_left = |old: &&Rc<NativeDisk>| !disks.iter().any(|disk| Rc::ptr_eq(disk, old));
        known.iter().filter(is_left).for_each(|old| old.is_replaced.set(true));
        *self.disks.borrow_mut() = disks;
        Ok(())
    }

    /// Returns the bytes that only the nodes dropped by `ops` hold.
    pub(super) async fn only_in(&self, ops: &[Op]) -> Result<u64> {
        self.store.exclusive_bytes(&dropped(ops)).await
    }

    /// Returns the bytes written in the nodes dropped by `ops`.
    async fn written_in(&self, ops: &[Op]) -> Result<u64> {
        self.store.written_in(&dropped(ops)).await
    }

    /// Returns the bytes that a discard throws away: those written in the states that are removed. The state from which
    /// the disks go on stays readable, even if its name is removed.
    async fn written_since(&self, plan: &RevertPlan, gone: &[SnapshotState]) -> Result<u64> {
        let kept: Vec<u64> = plan.ops.iter().filter_map(branched_from).collect();
        let drops: Vec<Op> = gone.iter().flat_map(|s| drop_snapshot(self.id(), s)).collect();
        // What goes to the bin leaves the disks too.
        let mut nodes = dropped(&drops);
        nodes.extend(plan.leaving.iter().map(|disk| node_of(&disk.top)));
        nodes.retain(|node| !kept.contains(node));
        self.store.written_in(&nodes).await
    }
}

/// Returns the node from which a new one is branched.
fn branched_from(op: &Op) -> Option<u64> {
    match op {
        Op::Branch { from, .. } => Some(*from),
        _ => None,
    }
}

fn dropped(ops: &[Op]) -> Vec<u64> {
    let node = |op: &Op| match op {
        Op::Drop { node } => Some(*node),
        _ => None,
    };
    ops.iter().filter_map(node).collect()
}
