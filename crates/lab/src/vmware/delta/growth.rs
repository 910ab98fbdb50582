//! Growth of a delta's file in steps; each step costs the file system some records.

use blk::Result;

use super::Delta;

/// Steps of 16 MiB, as the 2009 article and VMware's support observed.
pub(in crate::vmware) const STEP_BYTES: u64 = 16 << 20;

impl Delta {
    /// Extends the file by whole steps until it is at least `end` bytes long. Writes that need the room wait.
    pub(super) async fn grow(&self, end: u64) -> Result<()> {
        let _guard = self.growing.lock().await;
        let from = self.state.borrow().size;
        if from >= end {
            return Ok(());
        }
        let to = from + (end - from).next_multiple_of(STEP_BYTES);
        if let Some(records) = &self.kind.datastore.records {
            records.of_growth(&self.host).await?;
        }
        self.extent.set_len(to).await?;
        self.state.borrow_mut().size = to;
        Ok(())
    }
}
