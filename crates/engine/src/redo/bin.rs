//! What a VM threw away and keeps for a while: a revert, a discard or a reset leaves the layers where they are, and a restore
//! makes them the VM's again. Nothing is copied, and a binned state changes no more.
//!
//! A commit would change layers that binned states rest on: those states go first, in the commit's own change.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::manifest::{BinnedState, Change, LayerName, Opening, SnapshotState, ThrownBy, VmState};
use blk::{Error, Result};

use super::disk::Disk;
use super::layer_graph::LayerGraph;
use super::revert_plan::{Ground, Move};
use super::vm::Vm;
use crate::bin::{current_of, find_binned, moves_disks, put_back, thrown};
use crate::event::EventKind;
use crate::operations::Loss;

impl Vm {
    /// What a restore of the binned state will throw away itself.
    pub async fn restore_preview(&self, id: u64) -> Result<Loss> {
        Ok(self.read_steady(async || self.plan_restore(id, false).await).await?.loss)
    }

    /// Makes a binned state the VM's again: its snapshots return to the tree, and where it has disks they run on as they
    /// were. With `keep` what they show now goes to the bin.
    pub async fn restore(self: &Rc<Self>, id: u64, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.refuse_open_jobs()?;
        let plan = self.plan_restore(id, keep).await?;
        if plan.loss.reverts {
            self.refuse_clients(None)?;
        }
        self.carry_out(plan).await
    }

    async fn plan_restore(&self, id: u64, keep: bool) -> Result<Move> {
        let graph = self.graph().await?;
        let before = self.state();
        let binned = find_binned(&before, id)?.clone();
        let mut next = before.clone();
        next.bin.retain(|other| other.id != id);
        put_back(&mut next, &binned, |state, disks| nearest_snapshot(&graph, state, disks));
        let reverts = moves_disks(&binned);
        let loss = Loss { target: reverts.then(|| binned.subject.clone()), reverts, ..Loss::default() };
        next.disks.retain(|disk| !binned.came.contains(&disk.number));
        let mut grounds = Vec::new();
        for disk in &binned.disks {
            self.refuse_taken_slot(&next, disk.number, &disk.slot)?;
            let known = next.disks.iter_mut().find(|now| now.number == disk.number);
            if known.as_ref().is_none_or(|now| now.top != disk.top) {
                grounds.push((disk.number, ground_again(&graph, &disk.top)));
            }
            match known {
                Some(now) => *now = disk.clone(),
                None => next.disks.push(disk.clone()),
            }
        }
        if reverts {
            next.current = current_of(&next, &binned, |state, disks| nearest_snapshot(&graph, state, disks));
        }
        let plan = Move {
            kind: EventKind::Restore,
            next,
            grounds,
            configuration: reverts.then_some(u128::from(id)),
            gone: Vec::new(),
            remove: Vec::new(),
            loss,
        };
        let thrown = (keep && reverts).then(|| thrown(&self.env, ThrownBy::Restore, binned.subject.clone()));
        self.with_loss(plan, &before, &graph, thrown).await
    }

    fn refuse_taken_slot(&self, next: &VmState, number: u32, slot: &str) -> Result<()> {
        match next.disks.iter().find(|disk| disk.slot == slot && disk.number != number) {
            Some(other) => {
                let cause =
                    format!("disk{number} would come back at {slot}, where disk{} is now", other.number);
                Err(Error::refused(&self.name, format!("{cause}; remove that one first")))
            }
            None => Ok(()),
        }
    }

    /// Removes binned states for good, with the layers that nothing else needs. Answers the bytes of their files.
    pub async fn empty_bin(self: &Rc<Self>, ids: &[u64]) -> Result<u64> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let before = self.state();
        let mut next = before.clone();
        next.bin.retain(|binned| !ids.contains(&binned.id));
        if next.bin.len() == before.bin.len() {
            return Ok(0);
        }
        let remove = left_over_deltas(&self.graph().await?, &before, &next);
        self.refuse_losing_clones(&next, remove.iter()).await?;
        next.folds.retain(|fold| !remove.contains(&fold.layer));
        let bytes = self.file_bytes_of(&remove).await?;
        self.publish(Change { next, remove: remove.clone(), ..Change::default() }).await?;
        remove.iter().for_each(|layer| self.forget_layer(layer));
        let message = format!("{} layers of {bytes} bytes are gone", remove.len());
        self.report(self.plain_event(EventKind::BinEmptied, "", &message));
        Ok(bytes)
    }

    /// Bytes of the files that only the binned state needs.
    pub async fn binned_bytes(&self, id: u64) -> Result<u64> {
        let read = async || {
            let before = self.state();
            let mut next = before.clone();
            next.bin.retain(|binned| binned.id != id);
            self.file_bytes_of(&left_over_deltas(&self.graph().await?, &before, &next)).await
        };
        self.read_steady(read).await
    }

    /// A disk as a binned state has it, read-only. It is not protected from being emptied: for checks.
    pub async fn open_binned(&self, id: u64, number: u32) -> Result<Rc<Disk>> {
        let _turn = self.operations.lock().await;
        let state = self.state();
        let binned = find_binned(&state, id)?;
        let top = binned.disks.iter().find(|disk| disk.number == number).map(|disk| &disk.top);
        let top =
            top.ok_or_else(|| Error::not_found(&self.name, format!("no disk{number} in that entry")))?;
        let layers = self.open_chain(top, Opening::Serve).await?;
        let name = format!("{}/disk{number} in the bin", self.name);
        Disk::new(self.env.clone(), name, number, layers, true, self.options)
    }

    async fn file_bytes_of(&self, layers: &[LayerName]) -> Result<u64> {
        let mut bytes = 0u64;
        for layer in layers {
            let info = self.manifest.chain(layer).await?.pop();
            bytes = bytes.saturating_add(info.map_or(0, |info| info.allocated_bytes));
        }
        Ok(bytes)
    }
}

/// Deltas that `before` needs and `after` does not. A base is a whole disk: it leaves the VM, and its data stays.
pub(crate) fn left_over_deltas(graph: &LayerGraph, before: &VmState, after: &VmState) -> Vec<LayerName> {
    let mut layers = graph.left_over(before, after);
    layers.retain(|layer| graph.parent(layer).is_some());
    layers
}

/// The layer itself, unless somebody has made a child of it.
fn ground_again(graph: &LayerGraph, top: &LayerName) -> Ground {
    match graph.children(top).is_empty() {
        true => Ground::Itself(top.clone()),
        false => Ground::ChildOf(top.clone()),
    }
}

/// The snapshot whose state is the nearest under one of the layers.
fn nearest_snapshot(graph: &LayerGraph, state: &VmState, disks: &[(u32, LayerName)]) -> Option<u128> {
    disks.iter().find_map(|(_, layer)| {
        let mut seen = BTreeSet::new();
        let mut at = graph.parent(layer);
        while let Some(name) = at.filter(|name| seen.insert((*name).clone())) {
            let names = |s: &&SnapshotState| s.disks.iter().any(|(_, frozen)| frozen == name);
            if let Some(found) = state.snapshots.iter().rev().find(names) {
                return Some(found.id);
            }
            at = graph.parent(name);
        }
        None
    })
}

/// The binned states that would change if these deltas were folded into their parents: those that rest on a parent and not
/// on the delta. (What rests on the delta comes to rest on the parent, and shows the same.)
pub(crate) fn in_the_way<'a>(
    graph: &LayerGraph,
    state: &VmState,
    folds: impl Iterator<Item = &'a LayerName> + Clone,
) -> BTreeSet<u64> {
    let changes = |binned: &BinnedState| {
        binned.layers().any(|layer| {
            let under = graph.with_ancestors([layer]);
            let mut targets = folds.clone().map(|delta| (delta, graph.parent(delta)));
            targets.any(|(delta, parent)| {
                parent.is_some_and(|parent| under.contains(parent)) && !under.contains(delta)
            })
        })
    };
    state.bin.iter().filter(|binned| changes(binned)).map(|binned| binned.id).collect()
}
