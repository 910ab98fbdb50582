//! Windows of a disk that a run uses. Disks are large, so that their maps have several levels. Writes stay within a few
//! windows, so that every boot can read all of them. The model numbers the windows' sectors without gaps.

use std::ops::Range;

use blk::SECTOR;
use engine::native::layout::BLOCK;
use sim::Rng;

pub(super) const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;
/// Blocks that one leaf of the map covers, and blocks that one page over leaves covers. Windows are around these edges.
const LEAF_BLOCKS: u64 = 252;
const SECOND_LEVEL_BLOCKS: u64 = 126 * LEAF_BLOCKS;

/// Windows in rising order, in blocks of the disk. Growing adds windows at the end, so that an older state has a
/// prefix of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    windows: Vec<Range<u64>>,
    pub size_blocks: u64,
}

impl Windows {
    /// Draws a window at the start, and some around the edges of leaves and of the page over them.
    pub fn draw(rng: &mut Rng) -> Windows {
        let first = rng.between(2, 48);
        let leaves = rng.below(6);
        let half = rng.between(1, 6);
        let edges = (1..=leaves).map(|leaf| leaf * LEAF_BLOCKS);
        let edges = edges.chain((rng.below(4) == 0).then_some(SECOND_LEVEL_BLOCKS));
        let around = edges.map(|edge| edge - half..edge + half);
        let windows: Vec<Range<u64>> = std::iter::once(0..first).chain(around).collect();
        let size_blocks = windows.last().expect("the first").end + rng.below(3);
        Windows { windows, size_blocks }
    }

    /// Returns windows at the start and around the edges of the first two leaves.
    pub fn scripted() -> Windows {
        let around = |edge: u64| edge - 4..edge + 4;
        let windows = vec![0..16, around(LEAF_BLOCKS), around(2 * LEAF_BLOCKS)];
        Windows { windows, size_blocks: 2 * LEAF_BLOCKS + 4 }
    }

    /// Returns the same places with a window in the `blocks` that the disk grows by.
    pub fn grown(&self, blocks: u64) -> Windows {
        let mut windows = self.windows.clone();
        windows.push(self.size_blocks..self.size_blocks + blocks);
        Windows { windows, size_blocks: self.size_blocks + blocks }
    }

    /// Returns the number of sectors in all windows.
    pub fn sectors(&self) -> u64 {
        self.windows.iter().map(|w| (w.end - w.start) * SECTORS_PER_BLOCK).sum()
    }

    /// Returns where a sector of the model is on the disk, in bytes, and how many sectors its window has from there on,
    /// itself counted.
    pub fn on_disk(&self, sector: u64) -> (u64, u64) {
        let mut left = sector;
        for window in &self.windows {
            let sectors = (window.end - window.start) * SECTORS_PER_BLOCK;
            if left < sectors {
                return (window.start * BLOCK + left * SECTOR, sectors - left);
            }
            left -= sectors;
        }
        panic!("sector {sector} of {}", self.sectors());
    }

    /// Returns the windows in bytes of the disk.
    pub fn windows(&self) -> impl Iterator<Item = Range<u64>> {
        self.windows.iter().map(|w| w.start * BLOCK..w.end * BLOCK)
    }
}
