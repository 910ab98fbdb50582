//! Plan of a commit: the names that leave, the deltas that are folded and their targets, and the deltas that stay with
//! the reasons.

use std::collections::BTreeSet;

use blk::manifest::{FoldState, LayerName, Opening, SnapshotState, VmState};
use blk::{Error, Result};

use super::bin::blocking_binned;
use super::fold::held_bytes;
use super::layer_graph::{LayerGraph, Obstacle};
use super::vm::Vm;
use crate::operations::{CommitPreview, CommitWhat};
use crate::options::Defect;
use crate::tree;

/// The plan of a commit.
pub(crate) struct CommitPlan {
    pub gone: Vec<u128>,
    pub names: Vec<String>,
    /// In the order of folding: disk by disk, nearest to the base first, so that each block moves once.
    pub folds: Vec<FoldState>,
    /// Deltas that stay, and why.
    stays: Vec<(LayerName, Obstacle)>,
    /// Binned states that the folds would change; they are removed before.
    pub evicted: Vec<u64>,
    /// The layers that are removed with these states.
    pub remove: Vec<LayerName>,
}

impl Vm {
    /// See [`crate::Machine::commit_preview`].
    pub async fn commit_preview(&self, what: &CommitWhat) -> Result<CommitPreview> {
        self.read_steady(async || self.preview(what).await).await
    }

    async fn preview(&self, what: &CommitWhat) -> Result<CommitPreview> {
        let plan = self.plan_commit(what).await?;
        let mut preview = CommitPreview {
            names: plan.names,
            bytes_to_move: 0,
            bytes_freed: 0,
            layers: plan.folds.len() as u64,
            stays: plan.stays.iter().map(|(layer, why)| why.sentence(layer)).collect(),
            evicted: plan.evicted,
        };
        for fold in &plan.folds {
            let Some((disk, link)) = self.fold_source(fold).await? else { continue };
            preview.bytes_to_move = preview.bytes_to_move.saturating_add(held_bytes(&disk, &link).await?);
            preview.bytes_freed = preview.bytes_freed.saturating_add(link.layer.usage().file_bytes);
        }
        Ok(preview)
    }

    /// Plans a commit. Refuses one that would change nothing, and one that would change a layer with readers outside.
    pub(crate) async fn plan_commit(&self, what: &CommitWhat) -> Result<CommitPlan> {
        let whole = self.graph().await?;
        let before = self.state();
        // Layers that only the bin needs do not prevent a commit.
        let graph = whole.without(&whole.only_binned(&before));
        let state = VmState { bin: Vec::new(), ..before.clone() };
        let mut gone = match what {
            CommitWhat::One(wanted) => vec![tree::find_committable(&state, wanted)?.clone()],
            CommitWhat::All => tree::running_names(&state),
            CommitWhat::Unowned => Vec::new(),
        };
        if *what == CommitWhat::All {
            // Foreign layers are never written: without the name the snapshot would be lost, and nothing gained.
            gone.retain(|s| !s.disks.iter().any(|(_, frozen)| graph.is_foreign(frozen)));
        }
        self.activity.refuse_unsealed(&gone)?;
        let ids: Vec<u128> = gone.iter().map(|s| s.id).collect();
        let after = tree::after_names_leave(&state, &ids, Vec::new());
        let candidates = match what {
            CommitWhat::One(_) => deltas_on(&graph, &gone[0]),
            CommitWhat::All => deltas_of(&graph, after.disks.iter().map(|d| (d.number, &d.top))),
            CommitWhat::Unowned => deltas_of(&graph, ends(&after)),
        };
        let mut plan = CommitPlan {
            gone: ids,
            names: gone.iter().map(|s| s.name.clone()).collect(),
            folds: Vec::new(),
            stays: Vec::new(),
            evicted: Vec::new(),
            remove: Vec::new(),
        };
        for (disk, layer) in candidates {
            let shared = Some(Obstacle::Shared);
            let blind = self.options.defects.has(Defect::FoldIntoShared);
            match graph.obstacle(&after, &layer).filter(|why| !blind || Some(why) != shared.as_ref()) {
                None => plan.folds.push(FoldState { disk, layer, job: 0, held: false }),
                Some(why) => plan.stays.push((layer, why)),
            }
        }
        self.refuse_nothing(what, &plan)?;
        self.refuse_unwritable(&plan).await?;
        let folded = plan.folds.iter().map(|fold| &fold.layer);
        if !self.options.defects.has(Defect::FoldUnderBin) {
            plan.evicted = blocking_binned(&whole, &before, folded).into_iter().collect();
        }
        let mut left = before.clone();
        left.bin.retain(|binned| !plan.evicted.contains(&binned.id));
        plan.remove = whole.left_over_deltas(&before, &left);
        left.snapshots.retain(|s| !plan.gone.contains(&s.id));
        self.refuse_losing_clones(&left, plan.remove.iter()).await?;
        self.refuse_read_above(&whole, &plan.folds).await?;
        Ok(plan)
    }

    /// Refuses folds under which readers outside of the engine read: the targets change, and so do the links above
    /// them.
    async fn refuse_read_above(&self, graph: &LayerGraph, folds: &[FoldState]) -> Result<()> {
        let parents = folds.iter().map(|f| graph.parent(&f.layer).unwrap_or(&f.layer));
        let changing: BTreeSet<LayerName> = parents.flat_map(|p| graph.with_descendants(p)).collect();
        self.refuse_held_still(&changing)?;
        self.refuse_read_elsewhere(&changing.into_iter().collect::<Vec<_>>()).await
    }

    /// Refuses folds that are no longer possible. The tree may have changed since the names left it: clones can be made
    /// once a job has failed.
    pub(crate) async fn refuse_outdated(&self, folds: &[FoldState]) -> Result<()> {
        let (graph, state) = (self.graph().await?, self.state());
        let planted = [Defect::FoldIntoShared, Defect::FoldUnderBin];
        let blind = planted.into_iter().any(|defect| self.options.defects.has(defect));
        for fold in folds.iter().filter(|f| graph.has(&f.layer)) {
            if let Some(why) = graph.obstacle(&state, &fold.layer).filter(|_| !blind) {
                return Err(Error::refused(&self.name, why.sentence(&fold.layer)));
            }
        }
        self.refuse_read_above(&graph, folds).await
    }

    fn refuse_nothing(&self, what: &CommitWhat, plan: &CommitPlan) -> Result<()> {
        let foreign = plan.stays.iter().find(|(_, why)| *why == Obstacle::Foreign);
        let idle = plan.folds.is_empty() && (plan.gone.is_empty() || foreign.is_some());
        if !idle {
            return Ok(());
        }
        let cause = match (foreign, what) {
            (Some((layer, why)), _) => why.sentence(layer),
            (None, CommitWhat::Unowned) => "nothing to consolidate: every delta belongs to a snapshot".into(),
            (None, _) => "nothing to commit: it has no snapshots and no deltas".into(),
        };
        Err(Error::refused(&self.name, cause))
    }

    /// Refuses folds of layers that are only read, such as SEsparse deltas of ESXi.
    async fn refuse_unwritable(&self, plan: &CommitPlan) -> Result<()> {
        for fold in &plan.folds {
            let chain = self.open_chain(&fold.layer, Opening::Free).await?;
            let concerned = &chain[chain.len().saturating_sub(2)..];
            if let Some(layer) = concerned.iter().find(|layer| !layer.shape().writable) {
                let cause = format!("{} can be read and not written", layer.name());
                let remedy = "revert, discard and clone work; to remove the delta, export the disk or move the VM to a native store";
                return Err(Error::unsupported(
                    &self.name,
                    format!("{cause}, so nothing is folded; {remedy}"),
                ));
            }
        }
        Ok(())
    }
}

impl Obstacle {
    fn sentence(&self, layer: &str) -> String {
        match self {
            Obstacle::Base => format!("{layer} is a base"),
            Obstacle::Foreign => {
                format!(
                    "{layer} depends on a layer in a folder that is not this VM's, and that is never written"
                )
            }
            Obstacle::Named(name) => format!("{layer} stays: {name} depends on the layer below"),
            Obstacle::Shared => format!("{layer} stays: another branch depends on the layer below"),
        }
    }
}

/// Returns the deltas over the layers that a snapshot froze.
fn deltas_on(graph: &LayerGraph, snapshot: &SnapshotState) -> Vec<(u32, LayerName)> {
    let on = |(number, frozen): &(u32, LayerName)| {
        let number = *number;
        graph.children(frozen).iter().map(move |delta| (number, delta.clone())).collect::<Vec<_>>()
    };
    snapshot.disks.iter().flat_map(on).collect()
}

/// Returns the deltas of the chains that end in `ends`, each once, nearest to the base first.
fn deltas_of<'a>(
    graph: &LayerGraph,
    ends: impl Iterator<Item = (u32, &'a LayerName)>,
) -> Vec<(u32, LayerName)> {
    let mut found: Vec<(u32, LayerName)> = Vec::new();
    for (number, end) in ends {
        let mut chain = Vec::new();
        let mut at = Some(end);
        while let Some(layer) = at.filter(|l| !found.iter().chain(&chain).any(|(_, known)| known == *l)) {
            if graph.parent(layer).is_some() {
                chain.push((number, layer.clone()));
            }
            at = graph.parent(layer);
        }
        found.extend(chain.into_iter().rev());
    }
    found
}

/// Returns the layers that chains end in: the running tops first, so that a shared part counts as theirs.
fn ends(state: &VmState) -> impl Iterator<Item = (u32, &LayerName)> {
    let running = state.disks.iter().map(|d| (d.number, &d.top));
    running.chain(state.snapshots.iter().flat_map(|s| s.disks.iter().map(|(n, layer)| (*n, layer))))
}
