//! The bin of a redo VM. A revert, a discard or a reset leaves the layers that it throws away in place, and a restore
//! takes them back into the VM. No data is copied, and a binned state never changes.
//!
//! A commit would change layers that binned states depend on: the commit's own change removes those states first.

use std::collections::BTreeSet;
use std::rc::Rc;

use blk::manifest::{BinnedBy, BinnedState, Change, LayerName, Opening, SnapshotState, VmState};
use blk::{Error, Result};

use super::disk::Disk;
use super::layer_graph::LayerGraph;
use super::revert_plan::{NewTop, RevertPlan};
use super::vm::Vm;
use crate::bin::{current_of, find_binned, moves_disks, new_entry, put_back};
use crate::event::EventKind;
use crate::operations::Loss;

impl Vm {
    /// Returns what a restore of the binned state will itself throw away.
    pub async fn restore_preview(&self, id: u64) -> Result<Loss> {
        Ok(self.read_steady(async || self.plan_restore(id, false).await).await?.loss)
    }

    /// Restores a binned state. Its snapshots return to the tree, and its disks run again with the content it kept.
    /// With `keep` the present content of these disks goes to the bin.
    pub async fn restore(self: &Rc<Self>, id: u64, keep: bool) -> Result<Loss> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.refuse_open_jobs()?;
        let plan = self.plan_restore(id, keep).await?;
        if plan.loss.reverts {
            self.activity.refuse_clients(None)?;
        }
        self.carry_out(plan).await
    }

    async fn plan_restore(&self, id: u64, keep: bool) -> Result<RevertPlan> {
        let graph = self.graph().await?;
        let before = self.state();
        let binned = find_binned(&before, id)?.clone();
        let mut next = before.clone();
        next.bin.retain(|other| other.id != id);
        put_back(&mut next, &binned, |state, disks| nearest_snapshot(&graph, state, disks));
        let reverts = moves_disks(&binned);
        let loss = Loss { target: reverts.then(|| binned.subject.clone()), reverts, ..Loss::default() };
        next.disks.retain(|disk| !binned.added.contains(&disk.number));
        let mut tops = Vec::new();
        for disk in &binned.disks {
            self.refuse_taken_slot(&next, disk.number, &disk.slot)?;
            let known = next.disks.iter_mut().find(|now| now.number == disk.number);
            if known.as_ref().is_none_or(|now| now.top != disk.top) {
                tops.push((disk.number, restored_top(&graph, &disk.top)));
            }
            match known {
                Some(now) => *now = disk.clone(),
                None => next.disks.push(disk.clone()),
            }
        }
        if reverts {
            next.current = current_of(&next, &binned, |state, disks| nearest_snapshot(&graph, state, disks));
        }
        let plan = RevertPlan {
            kind: EventKind::Restore,
            next,
            tops,
            configuration: reverts.then_some(u128::from(id)),
            gone: Vec::new(),
            remove: Vec::new(),
            loss,
        };
        let kept = (keep && reverts).then(|| new_entry(&self.env, BinnedBy::Restore, binned.subject.clone()));
        self.with_loss(plan, &before, &graph, kept).await
    }

    fn refuse_taken_slot(&self, next: &VmState, number: u32, slot: &str) -> Result<()> {
        match next.disks.iter().find(|disk| disk.slot == slot && disk.number != number) {
            Some(other) => {
                let cause =
                    format!("disk{number} would be restored at {slot}, where disk{} is now", other.number);
                Err(Error::refused(&self.name, format!("{cause}; remove that disk first")))
            }
            None => Ok(()),
        }
    }

    /// Removes binned states permanently, with the layers that nothing else needs. Returns the bytes of the removed files.
    pub async fn empty_bin(self: &Rc<Self>, ids: &[u64]) -> Result<u64> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        let before = self.state();
        let mut next = before.clone();
        next.bin.retain(|binned| !ids.contains(&binned.id));
        if next.bin.len() == before.bin.len() {
            return Ok(0);
        }
        let remove = self.graph().await?.left_over_deltas(&before, &next);
        self.refuse_losing_clones(&next, remove.iter()).await?;
        next.folds.retain(|fold| !remove.contains(&fold.layer));
        let bytes = self.file_bytes_of(&remove).await?;
        self.publish(Change { next, remove: remove.clone(), ..Change::default() }).await?;
        remove.iter().for_each(|layer| self.forget_layer(layer));
        let message = format!("{} layers of {bytes} bytes are gone", remove.len());
        self.activity.note(EventKind::BinEmptied, "", &message);
        Ok(bytes)
    }

    /// Returns the bytes of the files that only the binned state needs.
    pub async fn binned_bytes(&self, id: u64) -> Result<u64> {
        let read = async || {
            let before = self.state();
            let mut next = before.clone();
            next.bin.retain(|binned| binned.id != id);
            self.file_bytes_of(&self.graph().await?.left_over_deltas(&before, &next)).await
        };
        self.read_steady(read).await
    }

    /// Opens a disk of a binned state, read-only, for checks. Nothing prevents the entry from being removed meanwhile.
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

/// Returns the layer itself, or a new child of it if it has children by now.
fn restored_top(graph: &LayerGraph, top: &LayerName) -> NewTop {
    match graph.children(top).is_empty() {
        true => NewTop::Existing(top.clone()),
        false => NewTop::ChildOf(top.clone()),
    }
}

/// Returns the snapshot that froze the nearest ancestor of one of the layers.
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

/// Returns the binned states that would change if these deltas were folded into their parents: those that depend on a
/// parent but not on the delta. (States that depend on the delta will depend on the parent, with the same content.)
pub(crate) fn blocking_binned<'a>(
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
