//! Mends of what a check finds in a folder of VMware's files: planned, carried out, and taken back.
//!
//! Rows of reference/vmware-formats 8. Each mend says by what it is held to be right, and what no file can prove. Where two files
//! could be meant, none is chosen and both are named. Texts are replaced whole and files are moved aside under a second name; of
//! extents, the tables of a delta that was cut are written, and no data.

mod apply;
mod bases;
mod cuts;
mod deltas;
mod lists;
mod locks;
mod orphans;
mod parents;
mod record;
mod undo;

use std::collections::{BTreeMap, BTreeSet};

use blk::{Dir, Result};

pub use apply::apply;
pub(crate) use cuts::Cut;
pub use undo::{Undone, undo};

use crate::check::{self, Faults, Finding, Inventory, Planned, Report, Target};
use crate::home::{Home, is_foreign_lock};

/// Inventories of the folder that one plan reads at most: a mend can make another one possible.
const ROUNDS_MAX: usize = 16;

/// What the caller vouches for.
#[derive(Debug, Clone, Default)]
pub struct RepairOptions {
    /// The data of a parent whose CID is not the expected one is unchanged.
    pub ignore_content_ids: bool,
    /// Name of a link whose descriptor is lost -> name of the link that it was made on.
    pub parents: BTreeMap<String, String>,
    /// What a truncated delta has lost is given up: its ranges show what the parent shows.
    pub cut_deltas: bool,
    /// No VMware product has a file of the folder open.
    pub stale_locks: bool,
    /// No VM of another folder needs the links that nothing here refers to.
    pub move_orphans: bool,
}

/// What a mend does to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Lines of a text are replaced.
    Edit,
    /// A file is written that is not there.
    Create,
    /// Files go out of the folder, into the one with the undo copies.
    MoveAside,
    /// Entries of a delta's tables that lead past its end are cleared.
    Cut,
}

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// Name in the folder.
    pub file: String,
    /// What happens to the file.
    pub action: Action,
    /// The lines that are written or, of a list, left out; the files that are moved; the ranges of the disk that are lost.
    pub lines: Vec<String>,
    /// By what the mend is held to be right.
    pub reason: String,
    /// What no file proves, where there is such.
    pub caution: Option<String>,
}

/// A finding that stays, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmended {
    /// What a check reports before and after the repair.
    pub finding: Finding,
    /// Why no mend follows from the files alone.
    pub reason: String,
}

/// The changes of a folder, and what a check finds before and after them.
#[derive(Debug)]
pub struct Plan {
    /// In the order in which they are carried out.
    pub mends: Vec<Mend>,
    /// Findings that the repair leaves.
    pub unmended: Vec<Unmended>,
    /// Findings of the folder as it is.
    pub before: Report,
    /// Findings of the folder as it will be, by a check of the planned files.
    pub after: Report,
    changes: Planned,
}

impl Plan {
    /// Returns whether the repair changes nothing.
    pub fn is_empty(&self) -> bool {
        self.mends.is_empty()
    }

    /// Refuses a folder that another program's VM may be running from, by the locks that the plan leaves.
    ///
    /// # Errors
    /// `Locked`: there is one.
    pub async fn refuse_foreign_use(&self, dir: &Dir) -> Result<()> {
        Home::refuse_foreign_use_but(dir, &self.changes.gone).await
    }

    /// Names of the locks that the plan moves aside, folders with a slash.
    pub fn stale_locks(&self) -> impl Iterator<Item = &str> {
        self.changes.gone.iter().map(String::as_str).filter(|name| is_foreign_lock(name))
    }
}

/// A plan in the making.
#[derive(Default)]
struct PlanDraft {
    changes: Planned,
    mends: Vec<Mend>,
    /// Path and field of a finding -> why it is not mended.
    obstacles: BTreeMap<(String, String), String>,
    /// Files with a mend of this round: their texts are older than their mends.
    touched: BTreeSet<String>,
    /// Deltas that were found not to be cut.
    whole: BTreeSet<String>,
    /// Path of a file -> why none of its findings is mended that has no reason of its own.
    file_obstacles: BTreeMap<String, String>,
}

impl PlanDraft {
    fn write(&mut self, text: Vec<u8>, mend: Mend) {
        self.touched.insert(mend.file.clone());
        self.changes.texts.insert(mend.file.clone(), text);
        self.mends.push(mend);
    }

    fn move_aside(&mut self, names: impl IntoIterator<Item = String>, mend: Mend) {
        self.touched.insert(mend.file.clone());
        self.changes.gone.extend(names);
        self.mends.push(mend);
    }

    fn refuse_file(&mut self, path: String, reason: String) {
        self.file_obstacles.insert(path, reason);
    }

    fn refuse(&mut self, path: String, field: &str, reason: String) {
        self.obstacles.insert((path, field.into()), reason);
    }

    /// What earlier rounds could not mend may be possible now.
    fn begin_round(&mut self) {
        self.obstacles.clear();
        self.file_obstacles.clear();
        self.touched.clear();
    }

    fn unmended(&self, finding: &Finding) -> Unmended {
        let own = self.obstacles.get(&(finding.file.clone(), finding.field.clone()));
        let reason = own.or_else(|| self.file_obstacles.get(&finding.file)).cloned();
        let by_hand = || format!("not mended by this version; by hand: {}", finding.remedy);
        Unmended { finding: finding.clone(), reason: reason.unwrap_or_else(by_hand) }
    }
}

/// Plans the mends of `dir`; writes nothing.
///
/// # Errors
/// Those of [`check::check`]: the folder cannot be listed.
pub async fn plan(dir: &Dir, terms: &RepairOptions) -> Result<Plan> {
    let before = check::check(dir, Target::Folder).await?;
    let mut draft = PlanDraft::default();
    for _ in 0..ROUNDS_MAX {
        let planned = draft.changes.clone();
        let inventory = Inventory::read(dir, &planned, &mut Faults::default()).await?;
        draft.begin_round();
        plan_round(&inventory, terms, &mut draft).await;
        if draft.touched.is_empty() {
            break;
        }
    }
    let after = check::check_planned(dir, Target::Folder, &draft.changes).await?;
    let unmended = after.findings.iter().map(|finding| draft.unmended(finding)).collect();
    Ok(Plan { mends: draft.mends, unmended, before, after, changes: draft.changes })
}

/// One step after the other: what a mend of the one makes possible is a matter of the next round.
async fn plan_round(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    cuts::mend(inventory, terms, draft).await;
    locks::mend(inventory, terms, draft).await;
    bases::mend(inventory, draft).await;
    // A hint that leads nowhere yet may lead to a base that is described in this round.
    if draft.touched.is_empty() {
        deltas::mend(inventory, terms, draft).await;
    }
    if draft.touched.is_empty() {
        parents::mend(inventory, terms, draft).await;
    }
    if draft.touched.is_empty() {
        lists::mend(inventory, draft).await;
    }
    if draft.touched.is_empty() {
        orphans::mend(inventory, terms, draft).await;
    }
}

#[cfg(test)]
mod tests;
