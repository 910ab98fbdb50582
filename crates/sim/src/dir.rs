//! One directory: its present names, the names that a power cut would leave, and the changes in between.

use std::collections::{BTreeMap, BTreeSet};

use crate::rng::Rng;
use crate::survival::{Survival, View};

/// A file or directory of the file system.
pub(crate) type NodeId = u32;

/// One change of names, as in a file system's journal.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Link {
        name: String,
        node: NodeId,
    },
    /// Replaces the node with the name `to`, if there is one.
    Rename {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
}

#[derive(Default)]
pub(crate) struct DirNode {
    names: BTreeMap<String, NodeId>,
    durable: BTreeMap<String, NodeId>,
    /// Pairs of the stamp of completion and the change, oldest first. `durable` with all of them applied is `names`.
    pending: Vec<(u64, Change)>,
}

impl Change {
    /// Applies the change and returns the node that lost its name here, if one did.
    fn apply(&self, names: &mut BTreeMap<String, NodeId>) -> Option<NodeId> {
        match self {
            Change::Link { name, node } => names.insert(name.clone(), *node),
            Change::Unlink { name } => names.remove(name),
            Change::Rename { from, to } => {
                let node = names.remove(from)?;
                names.insert(to.clone(), node)
            }
        }
    }

    fn touches(&self, lost: &BTreeSet<&str>) -> bool {
        self.touched().into_iter().flatten().any(|name| lost.contains(name))
    }

    fn touched(&self) -> [Option<&str>; 2] {
        match self {
            Change::Link { name, .. } | Change::Unlink { name } => [Some(name), None],
            Change::Rename { from, to } => [Some(from), Some(to)],
        }
    }
}

impl DirNode {
    pub(crate) fn get(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    pub(crate) fn names(&self) -> &BTreeMap<String, NodeId> {
        &self.names
    }

    pub(crate) fn names_in(&self, view: View) -> &BTreeMap<String, NodeId> {
        match view {
            View::Current => &self.names,
            View::Durable => &self.durable,
        }
    }

    pub(crate) fn change(&mut self, change: Change, stamp: u64) -> Option<NodeId> {
        let nameless = change.apply(&mut self.names);
        self.pending.push((stamp, change));
        nameless
    }

    /// Makes durable every change that completed before `covers`. Returns the nodes that lost their durable name.
    pub(crate) fn persist(&mut self, covers: u64) -> Vec<NodeId> {
        let settled = self.pending.iter().take_while(|(stamp, _)| *stamp < covers).count();
        self.pending.drain(..settled).filter_map(|(_, change)| change.apply(&mut self.durable)).collect()
    }

    /// Returns every node for which a cut could leave a name: those with durable names and those of pending links, once
    /// for each reference.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = NodeId> {
        let linked = self.pending.iter().filter_map(|(_, change)| match change {
            Change::Link { node, .. } => Some(*node),
            _ => None,
        });
        self.durable.values().copied().chain(linked)
    }

    /// Simulates a loss of power. A prefix of the pending changes survives, or a subset in which a lost change also
    /// removes every later change of its names.
    pub(crate) fn cut(&mut self, survival: &Survival, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return;
        }
        let kept = survival.prefix(rng, pending.len());
        let mut lost = BTreeSet::new();
        for (at, (_, change)) in pending.iter().enumerate() {
            let spared = if survival.name_subsets {
                !change.touches(&lost) && rng.chance(survival.kept)
            } else {
                at < kept
            };
            if spared {
                change.apply(&mut self.durable);
            } else {
                lost.extend(change.touched().into_iter().flatten());
            }
        }
        self.names.clone_from(&self.durable);
    }
}
