//! Records that VMFS writes for itself: when a file grows, and when one of its blocks is first written.

use std::cell::Cell;

use blk::{Buf, File, Result};

use super::host::{Host, Purpose};

/// Offsets of a volume's records, bytes: the lock, a journal block, the cluster of file blocks, the file's descriptor,
/// its pointer block. Distances are those of a small volume's metadata; only their difference matters.
const RECORDS_AT: [u64; 5] = [0, 64 << 10, 640 << 10, 768 << 10, 896 << 10];
const RECORD_BYTES: usize = 4096;
const JOURNAL: usize = 1;
const POINTERS: usize = 4;
/// Number of slots in the journal of 512 KiB. Each record goes to the next slot.
const JOURNAL_RECORDS: u64 = (512 << 10) / RECORD_BYTES as u64;
/// Length of the file that stands for the records, bytes.
pub(super) const RECORDS_FILE_BYTES: u64 = 1 << 20;

pub(super) struct Records {
    file: File,
    journalled: Cell<u64>,
}

impl Records {
    pub(super) fn new(file: File) -> Records {
        Records { file, journalled: Cell::new(0) }
    }

    /// Writes the records of one step of a file's growth.
    pub(super) async fn of_growth(&self, host: &Host) -> Result<()> {
        for record in 0..RECORDS_AT.len() {
            self.write(host, record).await?;
        }
        Ok(())
    }

    /// Writes the records of a changed block mark: first the journal, then the pointer block. `count` limits their
    /// number.
    pub(super) async fn of_block(&self, host: &Host, count: u32) -> Result<()> {
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
