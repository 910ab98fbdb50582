//! A redirected write: new blocks are placed, the data is written to them, and then a record makes them part of the
//! disk.

use std::ops::Range;

use blk::{Buf, Result, Slice};
use futures_util::future::join_all;

use super::backing::{ALL_SECTORS, groups_of, sectors_of};
use super::blocks::{NewPart, NewSectors};
use super::disk::{NativeDisk, blocks_of};
use super::layout::{BLOCK, Extent, checksum, checksum_of, has_space};
use super::sources::SourceEdges;
use super::table::{LookupRun, is_contiguous};

/// Most blocks of one redirect: a record counts them in 32 bits, and a recovery reads their data with one I/O.
const REDIRECT_BLOCKS_MAX: u64 = (1 << 20) / BLOCK;

/// Longest range whose two edges are read by one I/O, with the data in between: on a hard disk 64 KiB under the heads
/// take 0.8 ms, and a second seek 6 ms.
const EDGES_APART_BYTES: u64 = 64 << 10;

/// Blocks at the edges of a write of which only some sectors are redirected.
#[derive(Default)]
struct PartialBlocks([Option<(u64, NewSectors)>; 2]);

impl PartialBlocks {
    fn blocks(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flatten().map(|(block, _)| *block)
    }

    fn get(&self, block: u64) -> Option<NewSectors> {
        self.0.iter().flatten().find(|(partial, _)| *partial == block).map(|(_, sectors)| *sectors)
    }

    /// Returns the first of these blocks within a range, or its end.
    fn next(&self, blocks: &Range<u64>) -> u64 {
        self.blocks().find(|block| blocks.contains(block)).unwrap_or(blocks.end)
    }
}

/// Returns what a record each says of blocks that begin at `start`: runs of whole blocks, and blocks that have only some
/// of their sectors there.
fn new_parts(
    start: u64,
    extent: Extent,
    data: &[u8],
    partial: &PartialBlocks,
) -> impl Iterator<Item = NewPart> {
    let (mut at, end) = (start, start + extent.len);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let from = at;
        let sectors = partial.get(at);
        at = if sectors.is_some() { at + 1 } else { partial.next(&(at..end)) };
        let place = Extent { addr: extent.addr + (from - start), len: at - from };
        let bytes = &data[((from - start) * BLOCK) as usize..((at - start) * BLOCK) as usize];
        let checksum = match sectors {
            None => checksum(bytes),
            Some(NewSectors { added, .. }) => {
                checksum_of(groups_of(added).map(|group| &bytes[group.start as usize..group.end as usize]))
            }
        };
        Some(NewPart { start: from, place, partial: sectors, checksum })
    })
}

impl NativeDisk {
    /// Redirects a range to new blocks. The parts of the first and the last block that the write leaves out stay where
    /// they are, or are read; `edges` has those of a source.
    pub(super) async fn redirect(
        &self,
        found: &[LookupRun],
        offset: u64,
        data: Slice,
        edges: &SourceEdges,
    ) -> Result<()> {
        self.refuse_foreign(found, &(offset..offset + data.len() as u64))?;
        self.stats.first_writes.update(|n| n + 1);
        let blocks = blocks_of(offset, data.len() as u64);
        let partial = self.partial_blocks(found, offset..offset + data.len() as u64);
        self.stats.partial_blocks.update(|n| n + partial.blocks().count() as u64);
        let whole = self.whole_blocks(found, (&partial, edges), &blocks, offset, data).await?;
        let mut at = blocks.start;
        while at < blocks.end {
            let want = (blocks.end - at).min(REDIRECT_BLOCKS_MAX);
            let extent = self.place(at, want).await?;
            let from = ((at - blocks.start) * BLOCK) as usize;
            let part = whole.slice(from..from + (extent.len * BLOCK) as usize);
            if let Err(e) = self.store.coalescer.write(extent.addr, part.clone()).await {
                self.store.unplace(extent);
                return Err(e);
            }
            self.store.publish(&self.node, extent, new_parts(at, extent, &part, &partial))?;
            at += extent.len;
        }
        Ok(())
    }

    /// Returns the first and the last block of a write, if it leaves out sectors of them that may stay where they are:
    /// in a block that is whole, and whose record no replay will doubt.
    fn partial_blocks(&self, found: &[LookupRun], range: Range<u64>) -> PartialBlocks {
        if range.is_empty() || !self.can_mask(&range) {
            return PartialBlocks::default();
        }
        let block_of = |block: u64| {
            let present = sectors_of(block, range.start, range.end);
            let run = found.iter().find(|run| run.start <= block && block < run.end())?;
            let may_stay = has_space(run.addr) && run.backing.is_none() && self.is_settled(run);
            let backing = (run.addr + (block - run.start), run.birth);
            (present != 0 && present != ALL_SECTORS && may_stay)
                .then_some((block, NewSectors { present, added: present, backing }))
        };
        let (first, last) = (range.start / BLOCK, (range.end - 1) / BLOCK);
        PartialBlocks([block_of(first), if first == last { None } else { block_of(last) }])
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
        left_out: (&PartialBlocks, &SourceEdges),
        blocks: &Range<u64>,
        offset: u64,
        data: Slice,
    ) -> Result<Slice> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        if offset == start && offset + data.len() as u64 == end {
            return Ok(data);
        }
        let mut whole = self.old_edges(found, left_out, blocks, offset, data.len() as u64).await?;
        let at = (offset - start) as usize;
        whole[at..at + data.len()].copy_from_slice(&data);
        Ok(whole.freeze())
    }

    /// Returns a buffer for `blocks`. Where a write covers only part of the first or the last block, that block has the
    /// disk's present content, or zeros if the rest of it stays elsewhere; the rest of the buffer is undefined.
    async fn old_edges(
        &self,
        found: &[LookupRun],
        (partial, edges_of_source): (&PartialBlocks, &SourceEdges),
        blocks: &Range<u64>,
        offset: u64,
        len: u64,
    ) -> Result<Buf> {
        let (start, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        let mut whole = Buf::alloc((end - start) as usize);
        let is_partial = |block: &u64| block * BLOCK < offset || offset + len < (block + 1) * BLOCK;
        let mut edges = vec![blocks.start, blocks.end - 1];
        edges.dedup();
        for block in partial.blocks() {
            let at = (block * BLOCK - start) as usize;
            whole[at..at + BLOCK as usize].fill(0);
        }
        edges.retain(|block| is_partial(block) && partial.get(*block).is_none());
        for (block, content) in edges_of_source.within(blocks) {
            let at = (block * BLOCK - start) as usize;
            whole[at..at + BLOCK as usize].copy_from_slice(content);
            edges.retain(|edge| *edge != block);
        }
        if edges.len() == 2 && is_contiguous(found) && end - start <= EDGES_APART_BYTES {
            let (whole, result) = self.read_stored(found, start, whole).await;
            return result.map(|()| whole);
        }
        let reads = edges.into_iter().map(async |block| {
            let part = found.iter().find(|f| f.start <= block && block < f.end());
            let part = std::slice::from_ref(part.expect("found covers its blocks"));
            let (old, result) = self.read_stored(part, block * BLOCK, Buf::alloc(BLOCK as usize)).await;
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
