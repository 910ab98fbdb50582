//! A delta's file grows in steps, and each step costs the file system some records.

use blk::{Buf, Result};

use super::Delta;
use crate::vmware::host::Purpose;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub step_bytes: u64,
    /// The step is written with zeros before it is used.
    pub zeroing: bool,
}

impl Growth {
    /// 16 MiB, as the 2009 article and VMware's support observed. Whether it is zeroed is not known; an array that zeroes
    /// for the host (or a file system that remembers what was never written) does not show it.
    pub fn observed() -> Growth {
        Growth { step_bytes: 16 << 20, zeroing: false }
    }
}

/// Where a VMFS step writes, bytes: the lock, a journal block, the cluster of file blocks, the file's descriptor, its
/// pointer block. Distances are those of a small volume's metadata; only that they differ matters.
const RECORDS_AT: [u64; 5] = [0, 64 << 10, 640 << 10, 768 << 10, 896 << 10];
const RECORD_BYTES: usize = 4096;
/// The journal moves on by one record a step, within its 512 KiB.
const JOURNAL: usize = 1;
const JOURNAL_RECORDS: u64 = (512 << 10) / RECORD_BYTES as u64;
/// Length of the file that stands for the file system's records.
pub const RECORDS_FILE_BYTES: u64 = 1 << 20;
/// Zeroes are written in the file system's blocks.
const ZERO_BYTES: u64 = 1 << 20;

impl Delta {
    /// Extends the file by whole steps until it is at least `end` bytes long. Whoever needs the room waits.
    pub(super) async fn grow(&self, end: u64) -> Result<()> {
        let _turn = self.growing.take().await;
        let (from, step) = (self.state.borrow().size, self.kind.growth.step_bytes);
        if from >= end {
            return Ok(());
        }
        let to = from + (end - from).next_multiple_of(step);
        self.write_records().await?;
        self.file.set_len(to).await?;
        if self.kind.growth.zeroing {
            self.write_zeros(from, to).await?;
        }
        self.state.borrow_mut().size = to;
        Ok(())
    }

    async fn write_records(&self) -> Result<()> {
        let Some(records) = &self.kind.records else { return Ok(()) };
        let step = self.steps.replace(self.steps.get() + 1);
        let data = Buf::zeroed(RECORD_BYTES).freeze();
        for (kind, at) in RECORDS_AT.into_iter().enumerate() {
            let moved = if kind == JOURNAL { step % JOURNAL_RECORDS * RECORD_BYTES as u64 } else { 0 };
            self.host.write(records, at + moved, data.clone(), Purpose::Table).await?;
        }
        Ok(())
    }

    async fn write_zeros(&self, from: u64, to: u64) -> Result<()> {
        let zeros = Buf::zeroed(ZERO_BYTES as usize).freeze();
        for at in (from..to).step_by(ZERO_BYTES as usize) {
            let len = ZERO_BYTES.min(to - at) as usize;
            self.host.write(&self.file, at, zeros.slice(0..len), Purpose::Table).await?;
        }
        Ok(())
    }
}
