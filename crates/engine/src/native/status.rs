//! Block status of a disk: which parts have space, and which read as zeros.

use std::ops::Range;

use blk::volume::{BlockStatus, STATUS_BYTES_MAX, STATUS_PIECES_MAX};
use blk::{Result, SECTOR};

use super::disk::{NativeDisk, blocks_of};
use super::layout::BLOCK;
use super::table::LookupRun;
use super::tree::Mapped;

/// Bytes that a status call looks up at once: at worst every block is a piece of its own.
const STATUS_STEP_BYTES: u64 = 32 << 20;
const STATUS_STEP_BLOCKS: usize = (STATUS_STEP_BYTES / BLOCK) as usize;
const _: () = assert!(
    STATUS_STEP_BLOCKS * (size_of::<LookupRun>() + size_of::<Mapped>())
        + (STATUS_PIECES_MAX + STATUS_STEP_BLOCKS) * size_of::<BlockStatus>()
        <= STATUS_BYTES_MAX
);

/// The same for a disk over a source. The source's landing map is looked up too, and all results are kept; an image may
/// have a piece for each sector.
const SOURCE_STEP_BYTES: u64 = STATUS_STEP_BYTES / 8;
const _: () = assert!(
    (SOURCE_STEP_BYTES / BLOCK) as usize * 4 * (size_of::<LookupRun>() + size_of::<Mapped>())
        + (STATUS_PIECES_MAX + (SOURCE_STEP_BYTES / SECTOR) as usize) * size_of::<BlockStatus>()
        <= STATUS_BYTES_MAX
);

/// Appends a piece, or makes the last one longer.
pub(super) fn push_status(out: &mut Vec<BlockStatus>, next: BlockStatus) {
    match out.last_mut() {
        Some(last) if (last.hole, last.zero) == (next.hole, next.zero) => last.len += next.len,
        _ => out.push(next),
    }
}

impl NativeDisk {
    /// Returns which parts have space and which read as zeros, until there are enough pieces.
    pub(super) async fn status_of(&self, range: Range<u64>) -> Result<Vec<BlockStatus>> {
        self.check_range(range.start, range.end - range.start)?;
        let step = if self.node.device == 0 { STATUS_STEP_BYTES } else { SOURCE_STEP_BYTES };
        let mut out: Vec<BlockStatus> = Vec::new();
        let mut at = range.start;
        while at < range.end && out.len() < STATUS_PIECES_MAX {
            if at > range.start {
                self.store.env.next_turn().await;
                // The node may have been dropped meanwhile.
                self.check_range(range.start, range.end - range.start)?;
            }
            let end = range.end.min((at / step + 1) * step);
            self.status_step(at..end, &mut out).await?;
            at = end;
        }
        Ok(out)
    }

    async fn status_step(&self, range: Range<u64>, out: &mut Vec<BlockStatus>) -> Result<()> {
        if self.node.device != 0 {
            return self.status_with_sources(&range, out).await;
        }
        let _admitted = self.store.reads.enter();
        let blocks = blocks_of(range.start, range.end - range.start);
        self.with_found(blocks, async |found| {
            for f in found {
                let len = range.end.min(f.end() * BLOCK) - range.start.max(f.start * BLOCK);
                push_status(out, BlockStatus { len, hole: f.is_hole(), zero: f.is_hole() });
            }
            Ok(())
        })
        .await
    }
}
