//! Everything that is wrong in a store, found without writing to it while it is in use.
//!
//! Looked at is the state of the last checkpoint, as the medium has it: superblocks, catalogue, lineage, every page of
//! every map, and the bitmaps against all that is referred to. Checkpoints and guests go on meanwhile; what that state
//! refers to is not placed again until the check has ended.

mod capture;
mod report;
mod scrub;
mod verdict;
mod walk;

#[cfg(test)]
mod tests;

use blk::Result;

use self::capture::Committed;
pub use self::report::{Fault, Finding, Hurt, Report};
use self::walk::Walk;
use super::store::Store;

impl Store {
    /// Checks the store as it is now: with a checkpoint first, unless nothing happened since the last. When that fails,
    /// as in a store that has become read-only, the report says so and is about the state before.
    pub async fn check(&self) -> Result<Report> {
        let behind = match self.is_merged() {
            true => None,
            false => self.checkpoint().await.err(),
        };
        let report = self.check_committed().await?;
        Ok(Report { behind, ..report })
    }

    /// Checks the state of the last checkpoint.
    pub async fn check_committed(&self) -> Result<Report> {
        let mut report = Report::default();
        if let Some((committed, marks)) = Committed::capture(self, &mut report).await? {
            let mut walk = Walk::new(&committed, marks, report);
            walk.all(&self.env).await?;
            report = walk.judge(&self.env).await?;
        }
        report.sort();
        Ok(report)
    }

    /// Whether the last checkpoint has all that happened.
    fn is_merged(&self) -> bool {
        self.pending_runs() == 0
            && self.changed_nodes.borrow().is_empty()
            && self.changed_items.borrow().is_empty()
            && self.freed.borrow().is_empty()
    }
}
