//! Plan of a revert, a discard or a reset: the layer on which each disk runs afterwards, and what is thrown away. The
//! preview and the operation use the same plan.

use std::collections::BTreeSet;

use blk::manifest::{BinnedBy, BinnedState, DiskMode, DiskState, LayerName, Opening, SnapshotState, VmState};
use blk::{Error, Result};

use super::layer_graph::LayerGraph;
use super::vm::Vm;
use crate::bin;
use crate::event::EventKind;
use crate::operations::Loss;
use crate::tree;

/// The layer on which a disk will run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NewTop {
    /// A new, empty child of this layer.
    ChildOf(LayerName),
    /// This layer itself: nothing else needs its present content.
    Existing(LayerName),
}

/// A change of the layers on which disks run. `next` still has the old tops of the disks in `tops`.
pub(crate) struct RevertPlan {
    pub kind: EventKind,
    pub next: VmState,
    pub tops: Vec<(u32, NewTop)>,
    pub configuration: Option<u128>,
    pub gone: Vec<u128>,
    /// Layers whose files are removed: those of the loss, unless the bin keeps them.
    pub remove: Vec<LayerName>,
    pub loss: Loss,
}

impl Vm {
    pub(crate) async fn plan_revert(&self, target: SnapshotState, keep: bool) -> Result<RevertPlan> {
        let graph = self.graph().await?;
        let before = self.state();
        let kept = self.manifest.disks_at(target.id).await?;
        let mut next = before.clone();
        next.current = Some(target.id);
        next.disks = disks_after_revert(&before, &target, kept.as_deref());
        self.refuse_returning(&graph, &before, &next, &target).await?;
        let frozen = target.disks.iter().filter(|(n, _)| has_disk(&next, *n));
        let tops = frozen.map(|(n, layer)| (*n, NewTop::ChildOf(layer.clone()))).collect();
        let loss = Loss { target: Some(target.name.clone()), reverts: true, ..Loss::default() };
        let configuration = kept.is_some().then_some(target.id);
        let (kind, gone, remove) = (EventKind::Revert, Vec::new(), Vec::new());
        let plan = RevertPlan { kind, next, tops, configuration, gone, remove, loss };
        let binned = keep.then(|| bin::new_entry(&self.env, BinnedBy::Revert, target.name));
        self.with_loss(plan, &before, &graph, binned).await
    }

    /// Refuses disks whose layers are missing, and disks that would return on a layer whose present content others
    /// need.
    async fn refuse_returning(
        &self,
        graph: &LayerGraph,
        before: &VmState,
        next: &VmState,
        target: &SnapshotState,
    ) -> Result<()> {
        let frozen = graph.reachable(&VmState { disks: Vec::new(), ..next.clone() });
        for disk in &next.disks {
            refuse_missing(&self.name, graph, disk, target)?;
            let known = target.disks.iter().any(|(n, _)| *n == disk.number)
                || before.disks.iter().any(|d| d.number == disk.number);
            if known {
                continue;
            }
            if frozen.contains(&disk.top) || !graph.children(&disk.top).is_empty() {
                let cause = format!("disk{} would be restored on {}", disk.number, disk.top);
                let why = "which other states need; commit or discard those first";
                return Err(Error::refused(&self.name, format!("{cause}, {why}")));
            }
            self.refuse_read_elsewhere(std::slice::from_ref(&disk.top)).await?;
        }
        Ok(())
    }

    pub(crate) async fn plan_discard(&self, wanted: &str, keep: bool) -> Result<RevertPlan> {
        let graph = self.graph().await?;
        let before = self.state();
        let target = tree::find(&before, wanted)?.clone();
        let gone = tree::with_later(&before, target.id);
        let running = before.current.is_some_and(|current| gone.contains(&current));
        let mut next = before.clone();
        next.snapshots.retain(|s| !gone.contains(&s.id));
        let mut loss = Loss { reverts: running, ..Loss::default() };
        loss.snapshots = names_of(&before, &gone);
        let leaving = before.snapshots.iter().filter(|s| gone.contains(&s.id)).cloned().collect();
        let binned = keep.then(|| BinnedState {
            snapshots: leaving,
            ..bin::new_entry(&self.env, BinnedBy::Discard, bin::subject_of(&loss.snapshots))
        });
        let mut tops = Vec::new();
        let mut configuration = None;
        if running {
            loss.target = Some(target.name.clone());
            let kept = self.manifest.disks_at(target.id).await?;
            next.disks = disks_after_revert(&before, &target, kept.as_deref());
            self.refuse_returning(&graph, &before, &next, &target).await?;
            configuration = kept.is_some().then_some(target.id);
            next.current = target.parent;
            for (number, frozen) in &target.disks {
                if !has_disk(&next, *number) {
                    continue;
                }
                // The entry of the bin depends on this layer.
                let top = match keep {
                    true => NewTop::ChildOf(frozen.clone()),
                    false => self.new_top(&graph, &next, frozen, &before).await?,
                };
                tops.push((*number, top));
            }
        }
        let (kind, remove) = (EventKind::Discard, Vec::new());
        let plan = RevertPlan { kind, next, tops, configuration, gone, remove, loss };
        self.with_loss(plan, &before, &graph, binned).await
    }

    /// Returns the frozen layer itself if, without the branch, nothing else needs its present content.
    async fn new_top(
        &self,
        graph: &LayerGraph,
        next: &VmState,
        frozen: &LayerName,
        before: &VmState,
    ) -> Result<NewTop> {
        let mut others = next.clone();
        others.disks.clear();
        let needed = graph.reachable(&others);
        // Children that no state of this VM reaches are foreign files: they need their parent too.
        let known = graph.reachable(before);
        let foreign_child = graph.children(frozen).iter().any(|child| !known.contains(child));
        let read = self.refuse_read_elsewhere(std::slice::from_ref(frozen)).await.is_err();
        let writable = self.opened_writable(frozen).await?;
        Ok(match needed.contains(frozen) || foreign_child || read || graph.is_foreign(frozen) || !writable {
            true => NewTop::ChildOf(frozen.clone()),
            false => NewTop::Existing(frozen.clone()),
        })
    }

    async fn opened_writable(&self, layer: &str) -> Result<bool> {
        let chain = self.open_chain(layer, Opening::Change).await?;
        Ok(chain.last().is_some_and(|top| top.shape().writable))
    }

    pub(crate) async fn plan_reset(&self, keep: bool) -> Result<RevertPlan> {
        let graph = self.graph().await?;
        let before = self.state();
        let resets = before.disks.iter().filter_map(|d| Some((d.number, d.reset_to.clone()?)));
        let tops: Vec<_> = resets.map(|(n, base)| (n, NewTop::ChildOf(base))).collect();
        if tops.is_empty() {
            let cause = "none of its disks is independent-nonpersistent, so there is nothing to reset";
            return Err(Error::refused(&self.name, cause));
        }
        let loss = Loss { reverts: true, ..Loss::default() };
        let (next, kind) = (before.clone(), EventKind::Reset);
        let (gone, remove) = (Vec::new(), Vec::new());
        let plan = RevertPlan { kind, next, tops, configuration: None, gone, remove, loss };
        let binned = keep.then(|| bin::new_entry(&self.env, BinnedBy::Reset, String::new()));
        self.with_loss(plan, &before, &graph, binned).await
    }

    /// Adds what is thrown away when the disks leave their old tops, whose deltas hold what was written since. With
    /// `binned` the bin keeps the deltas, and the disks in their present form.
    pub(crate) async fn with_loss(
        &self,
        mut plan: RevertPlan,
        before: &VmState,
        graph: &LayerGraph,
        binned: Option<BinnedState>,
    ) -> Result<RevertPlan> {
        let mut after = plan.next.clone();
        for (number, top) in &plan.tops {
            let (NewTop::ChildOf(layer) | NewTop::Existing(layer)) = top;
            for disk in after.disks.iter_mut().filter(|d| d.number == *number) {
                disk.top = layer.clone();
            }
        }
        plan.loss.layers = graph.left_over_deltas(before, &after);
        if let Some(binned) = binned {
            let leaves = |disk: &&DiskState| {
                plan.tops.iter().any(|(number, _)| *number == disk.number)
                    || !has_disk(&plan.next, disk.number)
            };
            let disks = before.disks.iter().filter(leaves).cloned().collect();
            let current = before.current.filter(|_| plan.loss.reverts);
            let added = bin::added(&before.disks, &plan.next.disks);
            let binned = BinnedState { disks, added, current, ..binned };
            if !binned.snapshots.is_empty() || bin::moves_disks(&binned) {
                plan.loss.kept = Some(binned.id);
                bin::put(&mut after, binned.clone());
                bin::put(&mut plan.next, binned);
            }
        }
        plan.remove = graph.left_over_deltas(before, &after);
        // The chains stay open to the end: they share layers, and each layer is opened once.
        let mut open = Vec::new();
        for layer in &plan.loss.layers {
            let chain = self.open_chain(layer, Opening::Change).await?;
            let bytes = chain.last().map_or(0, |top| top.usage().file_bytes);
            plan.loss.bytes = plan.loss.bytes.saturating_add(bytes);
            open.push(chain);
        }
        plan.next.folds.retain(|fold| !plan.remove.contains(&fold.layer));
        Ok(plan)
    }
}

/// Returns the VM's disks after the revert: those it had at the take, if that is known. Disks that takes do not freeze
/// stay in their present form.
fn disks_after_revert(
    before: &VmState,
    target: &SnapshotState,
    kept: Option<&[DiskState]>,
) -> Vec<DiskState> {
    let frozen =
        |number: u32| target.disks.iter().find(|(n, _)| *n == number).map(|(_, layer)| layer.clone());
    let now = |number: u32| before.disks.iter().find(|d| d.number == number);
    let list = kept.unwrap_or(&before.disks);
    let disks = list.iter().map(|disk| match (frozen(disk.number), now(disk.number)) {
        (Some(layer), _) => {
            DiskState { top: layer, mode: DiskMode::Persistent, reset_to: None, ..disk.clone() }
        }
        (None, Some(present)) => DiskState { slot: disk.slot.clone(), ..present.clone() },
        (None, None) => disk.clone(),
    });
    disks.collect()
}

pub(crate) fn has_disk(state: &VmState, number: u32) -> bool {
    state.disks.iter().any(|d| d.number == number)
}

fn refuse_missing(vm: &str, graph: &LayerGraph, disk: &DiskState, target: &SnapshotState) -> Result<()> {
    if graph.has(&disk.top) {
        return Ok(());
    }
    let cause =
        format!("disk{} of {} needs the layer {}, which is not here", disk.number, target.name, disk.top);
    Err(Error::refused(vm, format!("{cause}; restore its files first")))
}

fn names_of(state: &VmState, ids: &[u128]) -> Vec<String> {
    let wanted: BTreeSet<u128> = ids.iter().copied().collect();
    state.snapshots.iter().filter(|s| wanted.contains(&s.id)).map(|s| s.name.clone()).collect()
}
