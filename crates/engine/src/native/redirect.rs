//! A redirected write: new blocks are placed, the data is written to them, and then a record makes them part of the
//! disk.

use std::ops::Range;

use blk::{Buf, Result, Slice};
use futures_util::future::join_all;

use super::disk::{NativeDisk, blocks_of};
use super::layout::{BLOCK, Extent, checksum};
use super::table::{LookupRun, is_contiguous};

/// Most blocks of one redirect: a record counts them in 32 bits, and a recovery reads their data with one I/O.
const REDIRECT_BLOCKS_MAX: u64 = (1 << 20) / BLOCK;

/// Longest range whose two edges are read by one I/O, with the data in between: on a hard disk 64 KiB under the heads
/// take 0.8 ms, and a second seek 6 ms.
const EDGES_APART_BYTES: u64 = 64 << 10;

impl NativeDisk {
    /// Redirects a range to new blocks. These are whole, so the parts of the first and the last block that the write
    /// leaves out are read.
    pub(super) async fn redirect(&self, found: &[LookupRun], offset: u64, data: Slice) -> Result<()> {
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
            if let Err(e) = self.store.coalescer.write(extent.addr, part).await {
                self.store.unplace(extent);
                return Err(e);
            }
            self.store.publish(&self.node, at, extent, sum)?;
            at += extent.len;
        }
        Ok(())
    }

    /// Places new blocks: behind the previous ones of the stream, or else behind the last blocks placed for any disk.
    async fn place(&self, block: u64, want: u64) -> Result<Extent> {
        let near = self.streams.borrow().behind(block);
        let extent = self.store.place(want, near).await?;
        self.streams.borrow_mut().note(block, extent);
        Ok(extent)
    }

    async fn whole_blocks(
        &self,
        found: &[LookupRun],
        blocks: &Range<u64>,
        offset: u64,
        data: Slice,
    ) -> Result<Slice> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        if offset == start && offset + data.len() as u64 == end {
            return Ok(data);
        }
        let mut whole = self.old_edges(found, blocks, offset, data.len() as u64).await?;
        let at = (offset - start) as usize;
        whole[at..at + data.len()].copy_from_slice(&data);
        Ok(whole.freeze())
    }

    /// Returns a buffer for `blocks`. Where a write covers only part of the first or the last block, that block has the
    /// disk's present content; the rest of the buffer is undefined.
    async fn old_edges(
        &self,
        found: &[LookupRun],
        blocks: &Range<u64>,
        offset: u64,
        len: u64,
    ) -> Result<Buf> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        let mut whole = Buf::alloc((end - start) as usize);
        let is_partial = |block: &u64| block * BLOCK < offset || offset + len < (block + 1) * BLOCK;
        let mut edges = vec![blocks.start, blocks.end - 1];
        edges.dedup();
        edges.retain(is_partial);
        if edges.len() == 2 && is_contiguous(found) && end - start <= EDGES_APART_BYTES {
            let (whole, result) = self.read_found(found, start, whole).await;
            return result.map(|()| whole);
        }
        let reads = edges.into_iter().map(async |block| {
            let part = found.iter().find(|f| f.start <= block && block < f.end());
            let part = std::slice::from_ref(part.expect("found covers its blocks"));
            let (old, result) = self.read_found(part, block * BLOCK, Buf::alloc(BLOCK as usize)).await;
            result.map(|()| (block, old))
        });
        for old in join_all(reads).await {
            let (block, old) = old?;
            let at = (block * BLOCK - start) as usize;
            whole[at..at + BLOCK as usize].copy_from_slice(&old);
        }
        Ok(whole)
    }
}
