//! Growth of a delta's file in steps; each step costs the file system some records.

use blk::Result;

use super::Delta;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub step_bytes: u64,
}

impl Growth {
    /// Returns steps of 16 MiB, as the 2009 article and VMware's support observed.
    pub fn observed() -> Growth {
        Growth { step_bytes: 16 << 20 }
    }
}

impl Delta {
    /// Extends the file by whole steps until it is at least `end` bytes long. Writes that need the room wait.
    pub(super) async fn grow(&self, end: u64) -> Result<()> {
        let _turn = self.growing.take().await;
        let (from, step) = (self.state.borrow().size, self.kind.growth.step_bytes);
        if from >= end {
            return Ok(());
        }
        let to = from + (end - from).next_multiple_of(step);
        if let Some(records) = &self.kind.datastore.records {
            records.of_growth(&self.host).await?;
        }
        self.extent.set_len(to).await?;
        self.state.borrow_mut().size = to;
        Ok(())
    }
}
