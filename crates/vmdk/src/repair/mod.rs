//! Repairs of the findings of a check in a folder of VMware's files: their plan, its execution, and its undo.
//!
//! Rows of reference/vmware-formats 8. Each repair states its evidence, and what no file can prove. If two files are
//! possible, neither is chosen and both are named. Texts are replaced as a whole, and files are moved aside under a
//! second name. Of extents, only the tables of a truncated delta are written, and no data.

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

/// Maximum number of inventories that one plan reads: a repair can make another one possible.
const ROUNDS_MAX: usize = 16;

/// Facts that the caller confirms.
#[derive(Debug, Clone, Default)]
pub struct RepairOptions {
    /// The data of a parent whose CID is not the expected one is unchanged.
    pub ignore_content_ids: bool,
    /// Parents by name of the link whose descriptor is lost.
    pub parents: BTreeMap<String, String>,
    /// The lost data of a truncated delta is given up: its ranges show the parent's data.
    pub cut_deltas: bool,
    /// No VMware product has a file of the folder open.
    pub stale_locks: bool,
    /// No VM of another folder needs the links that nothing here refers to.
    pub move_orphans: bool,
}

/// Kind of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Lines of a text are replaced.
    Edit,
    /// A missing file is written.
    Create,
    /// Files are moved out of the folder, into the one with the copies.
    MoveAside,
    /// Entries of a delta's tables that point past its end are cleared.
    Cut,
}

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// Name in the folder.
    pub file: String,
    /// Kind of the change.
    pub action: Action,
    /// Lines that are written or, for a list, omitted; moved files; or lost ranges of the disk.
    pub lines: Vec<String>,
    /// Evidence that the repair is correct.
    pub reason: String,
    /// What no file proves, if anything.
    pub caution: Option<String>,
}

/// A finding that stays, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmended {
    /// The finding, before and after the repair.
    pub finding: Finding,
    /// Why the files alone do not determine a repair.
    pub reason: String,
}

/// Changes of a folder, and the findings of a check before and after them.
#[derive(Debug)]
pub struct Plan {
    /// Repairs in order of their execution.
    pub mends: Vec<Mend>,
    /// Findings that the repair leaves.
    pub unmended: Vec<Unmended>,
    /// Findings in the present folder.
    pub before: Report,
    /// Findings after the repair, from a check of the planned files.
    pub after: Report,
    changes: Planned,
}

impl Plan {
    /// Returns whether the repair changes nothing.
    pub fn is_empty(&self) -> bool {
        self.mends.is_empty()
    }

    /// Refuses a folder from which another program's VM may be running, by the locks that the plan leaves.
    ///
    /// # Errors
    /// `Locked` if there is one.
    pub async fn refuse_foreign_use(&self, dir: &Dir) -> Result<()> {
        Home::refuse_foreign_use_but(dir, &self.changes.gone).await
    }

    /// Returns the names of the locks that the plan moves aside; those of folders end with a slash.
    pub fn stale_locks(&self) -> impl Iterator<Item = &str> {
        self.changes.gone.iter().map(String::as_str).filter(|name| is_foreign_lock(name))
    }
}

/// State of the planning.
#[derive(Default)]
struct PlanDraft {
    changes: Planned,
    mends: Vec<Mend>,
    /// Why a finding is not repaired, by path and field.
    obstacles: BTreeMap<(String, String), String>,
    /// Files with a repair in this round: their texts are older than their repairs.
    touched: BTreeSet<String>,
    /// Deltas that are not truncated.
    whole: BTreeSet<String>,
    /// Why findings of a file without a reason of their own are not repaired, by path.
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

    /// Starts a round, which may repair what earlier rounds could not.
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

/// Plans the repairs of `dir`; writes nothing.
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

/// Plans one kind of repair after the other. A repair that another one makes possible is planned in the next round.
async fn plan_round(inventory: &Inventory<'_>, terms: &RepairOptions, draft: &mut PlanDraft) {
    cuts::mend(inventory, terms, draft).await;
    locks::mend(inventory, terms, draft).await;
    bases::mend(inventory, draft).await;
    // A hint that leads nowhere yet may lead to a base that gets its descriptor in this round.
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
