//! Shape of a VM: everything except the content of its disks, and the effect of each verb on it.

use std::collections::BTreeMap;

use blk::manifest::{DiskMode, VmState};

/// Controllers have slots 0 to 15, of which 7 is the controller's own.
const SLOTS: u32 = 16;
const OWN_SLOT: u32 = 7;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskShape {
    pub slot: String,
    pub mode: DiskMode,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SnapshotShape {
    pub parent: Option<String>,
    /// Numbers of its disks, rising.
    pub disks: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub disks: BTreeMap<u32, DiskShape>,
    /// By name.
    pub snapshots: BTreeMap<String, SnapshotShape>,
    pub current: Option<String>,
    /// How often the content was replaced: its generation less the first one.
    pub replaced: u64,
    /// The user has not declared since then that the earlier clients are dead.
    pub fenced: bool,
}

impl Shape {
    /// Returns the shape of a VM in the store, whose first content generation was `first`. An error is a state that no
    /// verb makes.
    pub(super) fn of(state: &VmState, first: u64) -> Result<Shape, String> {
        let name = |id: Option<u128>| match id {
            None => Ok(None),
            Some(id) => match state.snapshots.iter().find(|s| s.id == id) {
                Some(found) => Ok(Some(found.name.clone())),
                None => {
                    Err(format!("VM {}: it speaks of snapshot {id:032x}, which is not there", state.name))
                }
            },
        };
        let mut snapshots = BTreeMap::new();
        for snapshot in &state.snapshots {
            let mut disks: Vec<u32> = snapshot.disks.iter().map(|(number, _)| *number).collect();
            disks.sort_unstable();
            snapshots.insert(snapshot.name.clone(), SnapshotShape { parent: name(snapshot.parent)?, disks });
        }
        let disks = state.disks.iter().map(|disk| {
            let shape = DiskShape { slot: disk.slot.clone(), mode: disk.mode, size_bytes: disk.size_bytes };
            (disk.number, shape)
        });
        let generation = state.generation;
        let replaced = generation.present.checked_sub(first);
        let replaced = replaced.ok_or_else(|| format!("content {generation:?} after {first}"))?;
        let (current, fenced) = (name(state.current)?, !generation.is_opened());
        Ok(Shape { disks: disks.collect(), snapshots, current, replaced, fenced })
    }

    pub(super) fn persistent(&self) -> Vec<u32> {
        let persistent = self.disks.iter().filter(|(_, disk)| disk.mode == DiskMode::Persistent);
        persistent.map(|(number, _)| *number).collect()
    }

    pub(super) fn taken(&self, name: &str) -> Shape {
        let mut next = self.clone();
        let snapshot = SnapshotShape { parent: self.current.clone(), disks: self.persistent() };
        next.snapshots.insert(name.to_string(), snapshot);
        next.current = Some(name.to_string());
        next
    }

    /// Returns the same shape, with other content on some disks.
    pub(super) fn with_other_content(&self) -> Shape {
        Shape { replaced: self.replaced + 1, fenced: true, ..self.clone() }
    }

    /// Returns the shape after a revert: the snapshot's disks are as in the snapshot, and others stay as they are.
    pub(super) fn reverted(&self, to: &str, disks: &BTreeMap<u32, DiskShape>) -> Shape {
        let mut next = self.with_other_content();
        next.current = Some(to.to_string());
        for (number, then) in disks {
            next.disks.entry(*number).or_insert_with(|| then.clone()).size_bytes = then.size_bytes;
        }
        next
    }

    /// Returns this shape after a restore; a revert, a discard or a reset had led from it to `moved`.
    pub(super) fn restored_from(&self, moved: &Shape) -> Shape {
        Shape { replaced: moved.replaced + 1, fenced: true, ..self.clone() }
    }

    /// Returns the shape after a commit of these snapshots: their children move up.
    pub(super) fn committed(&self, gone: &[String]) -> Shape {
        let up = |mut name: Option<String>| {
            while let Some(n) = name.clone().filter(|n| gone.contains(n)) {
                name = self.snapshots[&n].parent.clone();
            }
            name
        };
        let mut next = self.clone();
        next.snapshots.retain(|name, _| !gone.contains(name));
        next.snapshots.values_mut().for_each(|s| s.parent = up(s.parent.take()));
        next.current = up(next.current.take());
        next
    }

    /// Returns the running state's snapshots, from the latest up to the first.
    pub(super) fn running_names(&self) -> Vec<String> {
        let above = |name: &String| self.snapshots[name].parent.clone();
        std::iter::successors(self.current.clone(), above).collect()
    }

    /// Returns a snapshot and all its descendants.
    pub(super) fn with_later(&self, name: &str) -> Vec<String> {
        let above = |at: &String| self.snapshots[at].parent.clone();
        let descends = |at: &String| std::iter::successors(Some(at.clone()), above).any(|at| at == name);
        self.snapshots.keys().filter(|at| descends(at)).cloned().collect()
    }

    /// Returns the number of the next disk. A number is not given again while anything has its disk.
    pub(super) fn next_number(&self) -> u32 {
        let kept = self.snapshots.values().flat_map(|s| s.disks.iter());
        self.disks.keys().chain(kept).map(|number| number + 1).max().unwrap_or(0)
    }

    /// Returns the first slot that no disk has and that is not in `kept`.
    pub(super) fn free_slot(&self, kept: &[String]) -> String {
        let slots = (0..SLOTS).filter(|slot| *slot != OWN_SLOT).map(|slot| format!("scsi0:{slot}"));
        let taken = |slot: &String| self.disks.values().any(|d| d.slot == *slot) || kept.contains(slot);
        slots.into_iter().find(|slot| !taken(slot)).expect("few disks")
    }
}
