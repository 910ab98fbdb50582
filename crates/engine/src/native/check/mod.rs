//! The check of a store: finds every fault without a write, while the store is in use.
//!
//! It examines the state of the last checkpoint on the medium: superblocks, catalogue, lineage, every page of every
//! map, and the bitmaps against all references. Checkpoints and guests go on meanwhile; blocks that this state refers
//! to are not placed again until the check has ended.

mod capture;
mod report;
mod resolve;
mod scrub;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use blk::{Env, ErrorKind, File, Result};

use self::capture::Committed;
pub use self::report::{AffectedRange, Fault, Finding, Report};
use self::walk::Walk;
use super::store::Store;
use super::vm::names_of_nodes;

impl Store {
    /// Checks the store in its present state: makes a checkpoint first, unless nothing has happened since the last one.
    /// If the checkpoint fails, as in a store that has become read-only, the report gives the reason and describes the
    /// state before.
    pub async fn check(&self) -> Result<Report> {
        let behind = match self.is_merged() {
            true => None,
            false => self.checkpoint().await.err(),
        };
        let report = self.check_committed().await?;
        Ok(Report { behind, ..report })
    }

    /// Checks a store that nothing serves, without a write: the state of its last checkpoint. Returns also what people call
    /// its states, by the numbers of their nodes.
    ///
    /// # Errors
    /// Those of an opening: too little of the store can be read.
    pub async fn check_unserved(env: Env, file: File) -> Result<(Report, BTreeMap<u64, String>)> {
        let store = Store::open_unchanged(env, file).await?;
        let report = store.check_committed().await?;
        let behind = store.broken().filter(|e| e.kind == ErrorKind::Damaged);
        let names = names_of_nodes(&store.catalogue.borrow().items);
        Ok((Report { behind, ..report }, names))
    }

    /// Checks the state of the last checkpoint.
    pub async fn check_committed(&self) -> Result<Report> {
        let mut report = Report::default();
        if let Some((committed, marks)) = Committed::capture(self, &mut report).await? {
            let mut walk = Walk::new(&committed, marks, report);
            walk.all(&self.env).await?;
            report = walk.resolve(&self.env).await?;
        }
        report.sort();
        Ok(report)
    }

    /// Returns whether the last checkpoint has all changes.
    fn is_merged(&self) -> bool {
        self.pending_runs() == 0
            && self.changed_nodes.borrow().is_empty()
            && self.changed_items.borrow().is_empty()
            && self.freed.borrow().is_empty()
    }
}
