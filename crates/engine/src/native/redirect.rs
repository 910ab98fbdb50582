//! A write that goes elsewhere: new blocks, the data in them, and then the record that makes them the disk's.

use std::ops::Range;

use blk::{Buf, Result, Slice};

use super::disk::{NativeDisk, blocks_of};
use super::layout::{BLOCK, Extent, checksum};
use super::table::Found;

/// Blocks of one redirect: a record counts them in 32 bits, and their data is read again as one in a recovery.
const REDIRECT_BLOCKS_MAX: u64 = (1 << 20) / BLOCK;

/// Redirects that are remembered, to know the next one of a stream: as many streams may be written in turns.
const STREAMS: usize = 32;

/// Where the last redirects of a disk ended. A write that begins there goes on with a stream.
pub(super) struct Streams {
    /// Block of the disk, and block of the store.
    ends: [(u64, u64); STREAMS],
    oldest: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Self { ends: [(u64::MAX, 0); STREAMS], oldest: 0 }
    }
}

impl Streams {
    /// The place behind the redirect that ended before `block`.
    fn behind(&self, block: u64) -> Option<u64> {
        self.ends.iter().find(|(end, _)| *end == block).map(|(_, addr)| *addr)
    }

    /// Blocks from `start` on were placed.
    fn note(&mut self, start: u64, placed: Extent) {
        let known = self.ends.iter().position(|(end, _)| *end == start);
        let at = known.unwrap_or(self.oldest);
        if known.is_none() {
            self.oldest = (self.oldest + 1) % STREAMS;
        }
        self.ends[at] = (start + placed.len, placed.end());
    }
}

impl NativeDisk {
    /// New blocks for a stretch: whole ones, so the parts of the first and the last that the write leaves out are read.
    pub(super) async fn redirect(&self, found: &[Found], offset: u64, data: Slice) -> Result<()> {
        self.stats.first_writes.update(|n| n + 1);
        let blocks = blocks_of(offset, data.len() as u64);
        let whole = self.whole_blocks(found, &blocks, offset, data).await?;
        let mut at = blocks.start;
        while at < blocks.end {
            let want = (blocks.end - at).min(REDIRECT_BLOCKS_MAX);
            let extent = self.place(at, want).await?;
            let from = ((at - blocks.start) * BLOCK) as usize;
            let part = whole.slice(from..from + (extent.len * BLOCK) as usize);
            let sum = checksum(&part);
            if let Err(e) = self.store.gather.write(extent.addr, part).await {
                self.store.unplace(extent);
                return Err(e);
            }
            self.store.publish(&self.node, at, extent, sum)?;
            at += extent.len;
        }
        Ok(())
    }

    /// A stream goes on where it was; what is alone lies behind what was placed last, of whatever disk.
    async fn place(&self, block: u64, want: u64) -> Result<Extent> {
        let near = self.streams.borrow().behind(block);
        let extent = self.store.place(want, near).await?;
        self.streams.borrow_mut().note(block, extent);
        Ok(extent)
    }

    async fn whole_blocks(
        &self,
        found: &[Found],
        blocks: &Range<u64>,
        offset: u64,
        data: Slice,
    ) -> Result<Slice> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        if offset == start && offset + data.len() as u64 == end {
            return Ok(data);
        }
        let mut whole = Buf::alloc((end - start) as usize);
        for block in [blocks.start, blocks.end - 1] {
            let part =
                found.iter().find(|f| f.start <= block && block < f.end()).expect("found covers its blocks");
            let (old, result) =
                self.read_found(std::slice::from_ref(part), block * BLOCK, Buf::alloc(BLOCK as usize)).await;
            result?;
            let at = (block * BLOCK - start) as usize;
            whole[at..at + BLOCK as usize].copy_from_slice(&old);
        }
        let at = (offset - start) as usize;
        whole[at..at + data.len()].copy_from_slice(&data);
        Ok(whole.freeze())
    }
}
