//! Ranges that are to read as zeros: whole blocks lose their space, and only partial blocks are written.

use std::ops::Range;

use blk::buf::{ZEROS_BYTES, zeros};
use blk::volume::ZeroMode;
use blk::{Error, ErrorKind, Result};

use super::disk::NativeDisk;
use super::layout::BLOCK;

/// Length of the shared buffer from which zeros are written.
const ZERO_CHUNK_BYTES: u64 = ZEROS_BYTES as u64;

impl NativeDisk {
    /// Unmaps the whole blocks inside of `range`, and returns the partial blocks at its ends.
    pub(super) async fn unmap(&self, range: Range<u64>) -> Result<[Range<u64>; 2]> {
        let blocks = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        if blocks.start >= blocks.end {
            return Ok([range.clone(), range.end..range.end]);
        }
        self.retry_for_space(
            async || Ok(true),
            async || {
                let _range = self.writes.lock(blocks.clone()).await;
                self.check_write(range.start, range.end - range.start)?;
                self.changes.note(&blocks);
                let _admitted = self.store.writes.enter();
                self.store.unmap_mapped(&self.node, blocks.clone()).await
            },
        )
        .await?;
        self.store.requests.update(|n| n + 1);
        Ok([range.start..blocks.start * BLOCK, blocks.end * BLOCK..range.end])
    }

    pub(super) async fn zero_range(&self, range: Range<u64>, mode: ZeroMode) -> Result<()> {
        self.check_write(range.start, range.end - range.start)?;
        let is_whole = range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK);
        if mode.fast_only && (mode.no_hole || !is_whole) {
            let cause = "zeroing this range means writing zeros: it must stay allocated, or begins or ends inside a block";
            return Err(Error::new(ErrorKind::Unsupported, &self.name, cause));
        }
        let rest = match mode.no_hole {
            true => [range.clone(), range.end..range.end],
            false => self.unmap(range).await?,
        };
        for part in rest.into_iter().filter(|r| r.start < r.end) {
            let zeros = zeros();
            let mut at = part.start;
            while at < part.end {
                let len = ZERO_CHUNK_BYTES.min(part.end - at);
                self.write_range(at, zeros.slice(0..len as usize)).await?;
                at += len;
            }
        }
        Ok(())
    }
}
