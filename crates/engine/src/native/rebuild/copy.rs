//! The copy of a store's file, and the pages of metadata found on the way.

use std::collections::{BTreeMap, BTreeSet};

use blk::{Buf, ErrorKind, File, Result};

use super::super::catalogue;
use super::super::layout::{BLOCK, HEADER_BLOCKS, STORE_ID_AT, get_u64};
use super::super::media::read_hard;
use super::super::superblock::Superblock;
use super::super::tree::FoundPage;

/// Bytes copied by one I/O.
const STEP_BYTES: u64 = 1 << 20;

/// Pages of metadata found in a file, whether they are in use or not.
#[derive(Default)]
pub(super) struct Found {
    /// Map pages by address, each with the store's id.
    pub maps: BTreeMap<u64, (u64, FoundPage)>,
    /// Pages of catalogues, each with the store's id.
    pub catalogue: BTreeMap<u64, u64>,
    /// Superblocks in head pages of catalogues.
    pub heads: Vec<Superblock>,
    /// Blocks that cannot be read; they are zeros in the copy.
    pub unreadable: BTreeSet<u64>,
    /// Whole blocks of the file.
    pub blocks: u64,
}

impl Found {
    /// Notes a page of the store `wanted`, or of any store if that is None.
    fn note(&mut self, addr: u64, page: &[u8], wanted: Option<u64>) {
        let store_id = get_u64(page, STORE_ID_AT);
        if wanted.is_some_and(|wanted| wanted != store_id) {
            return;
        }
        if let Some(found) = FoundPage::read(store_id, addr, page) {
            self.maps.insert(addr, (store_id, found));
        } else if catalogue::is_page(page, addr, store_id) {
            self.catalogue.insert(addr, store_id);
            self.heads.extend(catalogue::superblock_in_head(page, addr, None));
        }
    }

    /// Returns whether one of the blocks cannot be read, or is behind the end of the file.
    pub(super) fn is_unreadable(&self, addr: u64, len: u64) -> bool {
        addr.saturating_add(len) > self.blocks
            || self.unreadable.range(addr..addr.saturating_add(len)).next().is_some()
    }
}

/// Copies everything behind the header from `source` to `target`, which is empty. What is a hole stays one. `store_id`: the
/// store whose pages are noted, if it is known.
pub(super) async fn copy(source: &File, target: &File, store_id: Option<u64>) -> Result<Found> {
    let size = source.size().await? / BLOCK * BLOCK;
    target.set_len(size).await?;
    let mut found = Found { blocks: size / BLOCK, ..Found::default() };
    let start = HEADER_BLOCKS * BLOCK;
    if size <= start {
        return Ok(found);
    }
    for extent in source.extents(start, size - start).await? {
        let mut at = extent.offset / BLOCK * BLOCK;
        let end = (extent.offset + extent.len).next_multiple_of(BLOCK).min(size);
        while at < end {
            let len = STEP_BYTES.min(end - at);
            let (buf, read) = source.read(at, Buf::alloc(len as usize)).await;
            let buf = match read {
                Ok(()) => buf,
                Err(e) if e.kind == ErrorKind::Io => read_blocks(source, at, len, &mut found).await?,
                Err(e) => return Err(e),
            };
            for (n, page) in buf.chunks_exact(BLOCK as usize).enumerate() {
                found.note(at / BLOCK + n as u64, page, store_id);
            }
            target.write(at, buf).await?;
            at += len;
        }
    }
    Ok(found)
}

/// Reads block by block, with zeros in the place of those that cannot be read.
async fn read_blocks(source: &File, at: u64, len: u64, found: &mut Found) -> Result<Buf> {
    let mut all = Buf::zeroed(len as usize);
    for (n, block) in all.chunks_exact_mut(BLOCK as usize).enumerate() {
        let offset = at + n as u64 * BLOCK;
        match read_hard(source, offset, BLOCK).await {
            (page, Ok(())) => block.copy_from_slice(&page),
            (_, Err(e)) if e.kind == ErrorKind::Io => _ = found.unreadable.insert(offset / BLOCK),
            (_, Err(e)) => return Err(e),
        }
    }
    Ok(all)
}
