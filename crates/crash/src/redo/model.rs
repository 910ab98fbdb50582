//! Expected state of a run, kept across power cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::manifest::ContentGeneration;
use sim::SimWorld;
use sim::oracle::DiskModel;

use super::plan::Plan;
use crate::content::Image;
use crate::run::Run;

pub(super) type RedoRun = Run<Plan, Model>;

/// Labels of a cut in a take and in a commit, which may be under way together.
pub(super) const TAKING: &str = "cut in a take";
pub(super) const FOLDING: &str = "cut in a commit";

/// State of a snapshot, as reported to its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SnapshotStatus {
    /// `take` was called at these ticks (by disk) and has not returned.
    Taking(Vec<u64>),
    /// Reported as sealed; the contents are filled in at the first look.
    Sealed { began: Vec<u64>, ended: Vec<u64>, contents: Option<Vec<Image>> },
    /// `commit` was called and has not returned: the name may be gone.
    Committing(Option<Vec<Image>>),
    /// `commit` has returned: the name must never appear again.
    Gone,
}

impl SnapshotStatus {
    /// Returns what the snapshot showed at the first look.
    pub(super) fn contents(&self) -> Option<Vec<Image>> {
        match self {
            SnapshotStatus::Sealed { contents, .. } | SnapshotStatus::Committing(contents) => {
                contents.clone()
            }
            _ => None,
        }
    }
}

pub(super) fn raised(generation: ContentGeneration) -> ContentGeneration {
    ContentGeneration { present: generation.present + 1, ..generation }
}

/// A revert, discard or reset under way: what each disk, by index, shows afterwards. It changes all disks or none.
pub(super) type Moving = Vec<(usize, Image)>;

/// An entry of the bin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpectedBinned {
    /// What the disks in it show, by index.
    pub contents: Moving,
    /// The names that left the tree, with what their disks show.
    pub names: Vec<(String, Option<Vec<Image>>)>,
    /// A commit that evicts it was called and has not returned.
    pub leaving: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ExpectedSnapshot {
    pub name: String,
    pub status: SnapshotStatus,
}

/// A linked clone: a VM on a snapshot's layers.
pub(super) struct LinkedClone {
    pub name: String,
    /// False until `clone_to` has returned: the clone may or may not be there.
    pub made: bool,
    pub models: Vec<Rc<DiskModel>>,
}

/// Path and content of each file of the imported folder.
pub(super) type Source = Vec<(String, Vec<u8>)>;

#[derive(Default)]
pub(super) struct Model {
    pub models: Vec<Rc<DiskModel>>,
    pub snapshots: Vec<ExpectedSnapshot>,
    /// Number of disks that are part of snapshots; they come before the others.
    pub persistent: usize,
    pub source: Source,
    pub next_name: u64,
    pub moving: Option<Moving>,
    /// Entries by their id.
    pub bin: BTreeMap<u64, ExpectedBinned>,
    /// What the verb under way puts into the bin.
    pub binning: Option<ExpectedBinned>,
    /// Generation of the content that the disks show; set from the first boot on.
    pub generation: Option<ContentGeneration>,
    /// The user is opening plain names.
    pub opening: bool,
    /// Boots that have ended since a flush failed, without a comparison since. Each of their openings may have notified
    /// clients of lost writes.
    raises_possible: u64,
    pub clones: Vec<LinkedClone>,
    /// What is under way, as the marks of a cut in it.
    pub doing: BTreeSet<&'static str>,
}

impl Model {
    pub(super) fn new(plan: &Plan) -> Model {
        let disks = plan.disks.len() + usize::from(plan.nonpersistent_bytes.is_some());
        let models = (0..disks).map(|n| Rc::new(DiskModel::new(n as u32))).collect();
        Model { models, persistent: plan.disks.len(), ..Model::default() }
    }

    /// Notes the entries found in the bin. One may be new, if a verb that completed or was cut put something into it.
    pub(super) fn found_in_bin(&mut self, ids: &[u64]) -> Result<(), String> {
        for id in ids {
            if !self.bin.contains_key(id) {
                let unexpected = || format!("{id:016x} is in the bin, and nothing was put into it");
                let binned = self.binning.take().ok_or_else(unexpected)?;
                self.bin.insert(*id, binned);
            }
        }
        let missing = |(id, binned): &(&u64, &ExpectedBinned)| !ids.contains(id) && !binned.leaving;
        if let Some((id, binned)) = self.bin.iter().find(missing) {
            let names: Vec<&String> = binned.names.iter().map(|(name, _)| name).collect();
            return Err(format!("{id:016x} with {names:?} is lost from the bin"));
        }
        self.bin.retain(|id, _| ids.contains(id));
        self.bin.values_mut().for_each(|binned| binned.leaving = false);
        self.binning = None;
        Ok(())
    }

    pub(super) fn ticks(&self) -> Vec<u64> {
        self.models.iter().map(|model| model.now()).collect()
    }

    /// Notes that the move has happened: the disks durably show other content.
    pub(super) fn moved(&mut self) {
        if self.moving.is_some() {
            self.generation = self.generation.map(raised);
        }
        for (index, bytes) in self.moving.take().into_iter().flatten() {
            self.models[index].replace(&bytes);
        }
    }

    /// Notes that a boot was cut short. `all_there`: only the process ended, and no flush had failed before.
    pub(super) fn ended(&mut self, all_there: bool, flush_failed: bool) {
        if flush_failed || self.raises_possible > 0 {
            self.raises_possible += 1;
        }
        self.models.iter().for_each(|model| model.ended(all_there));
    }

    /// Checks the disks after a cut: they show what the guests had written, or all of them show the result of the move
    /// that was under way.
    pub(super) fn recover(
        &mut self,
        contents: &[Image],
        generation: ContentGeneration,
    ) -> Result<(), String> {
        let moving = self.moving.take().unwrap_or_default();
        let stayed: Vec<_> =
            contents.iter().enumerate().map(|(n, bytes)| self.models[n].check_cut(bytes)).collect();
        let arrived =
            |n: usize| moving.iter().find(|(index, _)| *index == n).map(|(_, bytes)| *bytes == contents[n]);
        let all_stayed = stayed.iter().all(Result::is_ok);
        let all_arrived = !moving.is_empty()
            && (0..contents.len()).all(|n| arrived(n).unwrap_or_else(|| stayed[n].is_ok()));
        for (model, bytes) in self.models.iter().zip(contents) {
            model.replace(bytes);
        }
        match stayed.into_iter().find_map(Result::err) {
            Some(e) if !all_arrived => return Err(e),
            _ => {}
        }
        self.recover_generation(generation, all_stayed, all_arrived)
    }

    /// Checks that unchanged content has its old generation, and that other content has the next one.
    fn recover_generation(
        &mut self,
        found: ContentGeneration,
        stayed: bool,
        arrived: bool,
    ) -> Result<(), String> {
        let Some(before) = self.generation.replace(found) else { return Ok(()) };
        let opened = ContentGeneration { opened: before.present, ..before };
        let raises = std::mem::take(&mut self.raises_possible);
        let is = |expected: ContentGeneration| {
            let times = found.present.saturating_sub(expected.present);
            times <= raises && found == ContentGeneration { present: expected.present + times, ..expected }
        };
        let fits =
            stayed && is(before) || stayed && self.opening && is(opened) || arrived && is(raised(before));
        self.opening = false;
        match fits {
            true => Ok(()),
            false => {
                let content = if arrived { "other content" } else { "the content of before" };
                Err(format!("{content} in generation {found:?}; it was {before:?}"))
            }
        }
    }

    pub(super) fn known(&mut self, name: &str) -> Option<&mut ExpectedSnapshot> {
        self.snapshots.iter_mut().find(|k| k.name == name)
    }

    /// Notes that a snapshot is sealed by now, whose take began at these ticks.
    pub(super) fn seal(&mut self, name: &str, began: Vec<u64>, contents: Option<Vec<Image>>) {
        let ended = self.ticks();
        let status = SnapshotStatus::Sealed { began, ended, contents };
        self.known(name).expect("known since its take began").status = status;
    }

    pub(super) fn mark_cut(&mut self, world: &SimWorld) {
        let doing = std::mem::take(&mut self.doing);
        world.mark("cut");
        doing.iter().for_each(|label| world.mark(label));
        if doing.contains(TAKING) && doing.contains(FOLDING) {
            world.mark("cut in a take during a commit");
        }
    }
}
