//! What VMFS writes for itself: when a file grows, and when a block of one is first written.

use std::cell::Cell;

use blk::{Buf, File, Result};

use super::host::{Host, Purpose};

/// Where a volume's records are, bytes: the lock, a journal block, the cluster of file blocks, the file's descriptor, its
/// pointer block. Distances are those of a small volume's metadata; only that they differ matters.
const RECORDS_AT: [u64; 5] = [0, 64 << 10, 640 << 10, 768 << 10, 896 << 10];
const RECORD_BYTES: usize = 4096;
const JOURNAL: usize = 1;
const POINTERS: usize = 4;
/// The journal moves on by one record each time, within its 512 KiB.
const JOURNAL_RECORDS: u64 = (512 << 10) / RECORD_BYTES as u64;
/// Length of the file that stands for them.
pub const RECORDS_FILE_BYTES: u64 = 1 << 20;

pub struct Records {
    file: File,
    journalled: Cell<u64>,
}

impl Records {
    pub fn new(file: File) -> Records {
        Records { file, journalled: Cell::new(0) }
    }

    /// A file grows by a step.
    pub async fn of_growth(&self, host: &Host) -> Result<()> {
        for record in 0..RECORDS_AT.len() {
            self.write(host, record).await?;
        }
        Ok(())
    }

    /// The mark of a block changes: in the journal, then in its pointer block, or in as many of these as `count` says.
    pub async fn of_block(&self, host: &Host, count: u32) -> Result<()> {
        for record in [JOURNAL, POINTERS].into_iter().take(count as usize) {
            self.write(host, record).await?;
        }
        Ok(())
    }

    async fn write(&self, host: &Host, record: usize) -> Result<()> {
        let mut at = RECORDS_AT[record];
        if record == JOURNAL {
            let moved = self.journalled.replace(self.journalled.get() + 1) % JOURNAL_RECORDS;
            at += moved * RECORD_BYTES as u64;
        }
        host.write(&self.file, at, Buf::zeroed(RECORD_BYTES).freeze(), Purpose::Table).await
    }
}
