//! Parent/child graph of a VM's layers. Queries only; consulted before a layer is written or removed.

use std::collections::{BTreeMap, BTreeSet};

use blk::manifest::{BinnedState, DiskState, LayerLink, LayerName, VmState};

/// The layers at one moment. Names without a link count as bases.
pub struct LayerGraph {
    links: BTreeMap<LayerName, LayerLink>,
    children: BTreeMap<LayerName, Vec<LayerName>>,
}

impl LayerGraph {
    /// Builds the graph from all links of a home; see [`blk::manifest::Manifest::links`].
    pub fn new(links: Vec<LayerLink>) -> LayerGraph {
        let mut children: BTreeMap<LayerName, Vec<LayerName>> = BTreeMap::new();
        for link in &links {
            if let Some(parent) = &link.parent {
                children.entry(parent.clone()).or_default().push(link.name.clone());
            }
        }
        LayerGraph { links: links.into_iter().map(|link| (link.name.clone(), link)).collect(), children }
    }

    /// Returns whether the home has a link of this name.
    pub fn has(&self, layer: &str) -> bool {
        self.links.contains_key(layer)
    }

    /// Returns the layer below; None for a base.
    pub fn parent(&self, layer: &str) -> Option<&LayerName> {
        self.links.get(layer)?.parent.as_ref()
    }

    /// Returns the layers of the home directly above.
    pub fn children(&self, layer: &str) -> &[LayerName] {
        self.children.get(layer).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the layer is in a folder that is not this VM's.
    pub fn is_foreign(&self, layer: &str) -> bool {
        self.links.get(layer).is_some_and(|link| link.foreign)
    }

    /// Returns `layers` with all of their ancestors.
    pub fn with_ancestors<'a>(&self, layers: impl IntoIterator<Item = &'a LayerName>) -> BTreeSet<LayerName> {
        let mut found = BTreeSet::new();
        for layer in layers {
            let mut at = Some(layer);
            // The ancestors of a layer that was found before were found too; this also ends a cycle.
            while let Some(name) = at.filter(|name| !found.contains(*name)) {
                found.insert(name.clone());
                at = self.parent(name);
            }
        }
        found
    }

    /// Returns `layer` with all of its descendants.
    pub fn with_descendants(&self, layer: &str) -> BTreeSet<LayerName> {
        let mut found = BTreeSet::new();
        let mut open = vec![layer.to_string()];
        while let Some(name) = open.pop() {
            if found.insert(name.clone()) {
                open.extend(self.children(&name).iter().cloned());
            }
        }
        found
    }

    /// Returns the graph without some layers, none of which is an ancestor of the others.
    pub fn without(&self, layers: &BTreeSet<LayerName>) -> LayerGraph {
        let stay = self.links.values().filter(|link| !layers.contains(&link.name));
        LayerGraph::new(stay.cloned().collect())
    }

    /// Returns the layers that only the bin needs.
    pub fn only_binned(&self, state: &VmState) -> BTreeSet<LayerName> {
        let unbinned = VmState { bin: Vec::new(), ..state.clone() };
        let needed = self.reachable(&unbinned);
        self.reachable(state).into_iter().filter(|layer| !needed.contains(layer)).collect()
    }

    /// Returns all layers that the state needs: its tops, its snapshots, its bin, and their ancestors.
    pub fn reachable(&self, state: &VmState) -> BTreeSet<LayerName> {
        self.with_ancestors(roots(state))
    }

    /// Returns the deltas that `before` needs and `after` does not. Bases are not among them: a base is a whole disk, and
    /// its data stays when it leaves the VM.
    pub(crate) fn left_over_deltas(&self, before: &VmState, after: &VmState) -> Vec<LayerName> {
        let mut layers = self.left_over(before, after);
        layers.retain(|layer| self.parent(layer).is_some());
        layers
    }

    /// Returns the layers that `before` needs and `after` does not, and that are the VM's own to remove.
    pub fn left_over(&self, before: &VmState, after: &VmState) -> Vec<LayerName> {
        let kept = self.reachable(after);
        let gone = self.reachable(before).into_iter().filter(|l| !kept.contains(l) && !self.is_foreign(l));
        gone.collect()
    }

    /// Returns why `delta` cannot be folded into its parent in `state`; None when it can. The parent must have no other
    /// child and no snapshot may name it, because either would see the change.
    pub fn obstacle(&self, state: &VmState, delta: &str) -> Option<Obstacle> {
        let Some(parent) = self.parent(delta) else { return Some(Obstacle::Base) };
        if self.is_foreign(parent) || self.is_foreign(delta) {
            return Some(Obstacle::Foreign);
        }
        if let Some(owner) = state.snapshots.iter().find(|s| s.disks.iter().any(|(_, l)| l == parent)) {
            return Some(Obstacle::Named(owner.name.clone()));
        }
        // No take makes a disk run on a layer with children; a configuration repaired by hand may.
        let in_use = |d: &DiskState| d.top == *parent || d.reset_to.as_ref() == Some(parent);
        let shared = self.children(parent).iter().any(|child| child != delta);
        let binned = state.bin.iter().any(|binned| binned.layers().any(|layer| layer == parent));
        (shared || binned || state.disks.iter().any(in_use)).then_some(Obstacle::Shared)
    }
}

/// Reason why a delta cannot be folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The layer is a base.
    Base,
    /// The layer or its parent is in a folder of another VM.
    Foreign,
    /// A snapshot froze the parent.
    Named(String),
    /// Another branch, an entry of the bin or a reset needs the parent.
    Shared,
}

fn roots(state: &VmState) -> impl Iterator<Item = &LayerName> {
    let running = state.disks.iter().flat_map(|d| std::iter::once(&d.top).chain(&d.reset_to));
    let frozen = state.snapshots.iter().flat_map(|s| s.disks.iter().map(|(_, layer)| layer));
    running.chain(frozen).chain(state.bin.iter().flat_map(BinnedState::layers))
}

#[cfg(test)]
mod tests {
    use blk::manifest::{DiskMode, SnapshotState};

    use super::*;

    fn link(name: &str, parent: Option<&str>) -> LayerLink {
        LayerLink { name: name.into(), parent: parent.map(Into::into), foreign: false }
    }

    fn snapshot(id: u128, layer: &str) -> SnapshotState {
        SnapshotState {
            id,
            uid: id as u32,
            parent: None,
            name: format!("s{id}"),
            description: String::new(),
            created_unix_us: 0,
            disks: vec![(0, layer.into())],
        }
    }

    fn state(top: &str, snapshots: Vec<SnapshotState>) -> VmState {
        let disk = DiskState {
            number: 0,
            slot: "scsi0:0".into(),
            mode: DiskMode::Persistent,
            size_bytes: 512,
            top: top.into(),
            reset_to: None,
        };
        VmState { disks: vec![disk], snapshots, ..VmState::default() }
    }

    /// base <- a <- b <- c, and a second branch d on a.
    fn tree() -> LayerGraph {
        let links =
            [("base", None), ("a", Some("base")), ("b", Some("a")), ("c", Some("b")), ("d", Some("a"))];
        LayerGraph::new(links.map(|(name, parent)| link(name, parent)).to_vec())
    }

    #[test]
    fn ancestors_and_descendants_end_at_cycles() {
        let graph = tree();
        assert_eq!(graph.with_ancestors([&"d".to_string()]).len(), 3);
        assert_eq!(graph.with_descendants("a").len(), 4);
        let before = state("c", vec![snapshot(1, "a"), snapshot(2, "b")]);
        let after = state("d", vec![snapshot(1, "a")]);
        assert_eq!(graph.left_over(&before, &after), ["b", "c"]);
        let circle = LayerGraph::new(vec![link("x", Some("y")), link("y", Some("x"))]);
        assert_eq!(circle.with_ancestors([&"x".to_string()]).len(), 2);
        assert_eq!(circle.with_descendants("x").len(), 2);
    }

    #[test]
    fn a_layer_with_other_readers_is_never_the_target_of_a_fold() {
        let graph = tree();
        let running = state("c", vec![snapshot(2, "b")]);
        assert_eq!(graph.obstacle(&running, "base"), Some(Obstacle::Base));
        assert_eq!(graph.obstacle(&running, "a"), None);
        assert_eq!(graph.obstacle(&running, "b"), Some(Obstacle::Shared));
        assert_eq!(graph.obstacle(&running, "c"), Some(Obstacle::Named("s2".into())));
        let mut resets = running.clone();
        resets.disks[0].reset_to = Some("base".into());
        assert_eq!(graph.obstacle(&resets, "a"), Some(Obstacle::Shared));
        assert_eq!(graph.obstacle(&state("base", vec![snapshot(2, "b")]), "a"), Some(Obstacle::Shared));
    }
}
