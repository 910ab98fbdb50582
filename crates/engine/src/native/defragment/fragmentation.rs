//! How fragmented a disk is, from samples of its map.

use std::ops::Range;

use blk::Result;

use super::super::disk::NativeDisk;
use super::super::layout::BLOCK;
use super::super::table::LookupRun;
use super::WINDOW_BLOCKS;
use super::plan::jumps;

/// Windows that are looked at: 256 MiB of a disk, whose map has 256 pages at most.
const SAMPLES: u64 = 64;

/// Order of the blocks in the sampled windows of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// Bytes of the sampled windows that have data.
    pub sampled_bytes: u64,
    /// Contiguous runs that these bytes are in, at least one for each window.
    pub runs: u64,
}

impl Fragmentation {
    /// Returns the bytes that a sequential read gets on average before it has to go elsewhere, at most a window; 0 for
    /// a disk without data.
    pub fn average_run_bytes(&self) -> u64 {
        self.sampled_bytes.checked_div(self.runs).unwrap_or(0)
    }
}

impl NativeDisk {
    /// Returns how fragmented the disk is. Windows at equal distances are looked at, whatever the disk's size.
    pub async fn fragmentation(&self) -> Result<Fragmentation> {
        let mut found = Fragmentation::default();
        let size = self.node.size_blocks.get();
        let mut next = 0;
        for sample in 0..SAMPLES {
            let at = (size / WINDOW_BLOCKS * sample / SAMPLES * WINDOW_BLOCKS).max(next);
            let at = self.next_data(at).await?;
            if at >= size {
                break;
            }
            next = at + WINDOW_BLOCKS;
            self.look_at(at..size.min(next), &mut found).await?;
        }
        Ok(found)
    }

    async fn look_at(&self, blocks: Range<u64>, out: &mut Fragmentation) -> Result<()> {
        self.check_range(blocks.start * BLOCK, 0)?;
        let _admitted = self.store.reads.enter();
        self.with_found(blocks, async |found| {
            let data = |run: &&LookupRun| !run.is_hole();
            out.sampled_bytes += found.iter().filter(data).map(|run| run.len).sum::<u64>() * BLOCK;
            out.runs += jumps(found.iter().map(|run| (run.addr, run))) + 1;
            Ok(())
        })
        .await
    }
}
