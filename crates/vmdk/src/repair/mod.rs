//! Mends of what a check finds in a folder of VMware's files: planned, carried out, and taken back.
//!
//! Rows of reference/vmware-formats 8. A plan is made of texts alone: no byte of an extent is written. Each mend says by what
//! it is held to be right, and what no file can prove. Where two files could be meant, none is chosen and both are named.

mod apply;
mod bases;
mod parents;

use std::collections::{BTreeMap, BTreeSet};

use blk::{Dir, Result};

pub use apply::{Undone, apply, undo};

use crate::check::{self, Faults, Finding, Inventory, Planned, Report, Target};

/// Inventories of the folder that one plan reads at most: a mend can make another one possible.
const ROUNDS_MAX: usize = 16;

/// What the caller vouches for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// The data of a parent whose CID is not the expected one is unchanged.
    pub ignore_content_ids: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Lines of a text are replaced.
    Edit,
    /// A file is written that is not there.
    Create,
}

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// Name in the folder.
    pub file: String,
    pub action: Action,
    /// The lines that are written.
    pub lines: Vec<String>,
    /// By what the mend is held to be right.
    pub reason: String,
    /// What no file proves, where there is such.
    pub caution: Option<String>,
}

/// A finding that stays, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmended {
    pub finding: Finding,
    pub reason: String,
}

/// The changes of a folder, and what a check finds before and after them.
#[derive(Debug)]
pub struct Plan {
    pub mends: Vec<Mend>,
    pub unmended: Vec<Unmended>,
    pub before: Report,
    pub after: Report,
    changes: Planned,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.mends.is_empty()
    }
}

/// A plan in the making.
#[derive(Default)]
struct Draft {
    changes: Planned,
    mends: Vec<Mend>,
    /// Path and field of a finding -> why it is not mended.
    obstacles: BTreeMap<(String, String), String>,
    /// Files with a mend of this round: their texts are older than their mends.
    touched: BTreeSet<String>,
}

impl Draft {
    fn write(&mut self, text: Vec<u8>, mend: Mend) {
        self.touched.insert(mend.file.clone());
        self.changes.texts.insert(mend.file.clone(), text);
        self.mends.push(mend);
    }

    fn refuse(&mut self, path: String, field: &str, reason: String) {
        self.obstacles.insert((path, field.into()), reason);
    }
}

/// Plans the mends of `dir`; writes nothing.
///
/// # Errors
/// Those of [`check::check`]: the folder cannot be listed.
pub async fn plan(dir: &Dir, terms: Terms) -> Result<Plan> {
    let before = check::check(dir, Target::Folder).await?;
    let mut draft = Draft::default();
    for _ in 0..ROUNDS_MAX {
        let planned = draft.changes.clone();
        let inventory = Inventory::read(dir, &planned, &mut Faults::default()).await?;
        draft.obstacles.clear();
        draft.touched.clear();
        bases::mend(&inventory, &mut draft).await;
        // A hint that leads nowhere yet may lead to a base that is described in this round.
        if draft.touched.is_empty() {
            parents::mend(&inventory, terms, &mut draft).await;
        }
        if draft.touched.is_empty() {
            break;
        }
    }
    let after = check::check_planned(dir, Target::Folder, &draft.changes).await?;
    let unmended = after.findings.iter().map(|finding| unmended(finding, &draft.obstacles)).collect();
    Ok(Plan { mends: draft.mends, unmended, before, after, changes: draft.changes })
}

fn unmended(finding: &Finding, obstacles: &BTreeMap<(String, String), String>) -> Unmended {
    let reason = obstacles.get(&(finding.file.clone(), finding.field.clone())).cloned();
    let by_hand = || format!("not mended by this version; by hand: {}", finding.remedy);
    Unmended { finding: finding.clone(), reason: reason.unwrap_or_else(by_hand) }
}

#[cfg(test)]
mod tests;
