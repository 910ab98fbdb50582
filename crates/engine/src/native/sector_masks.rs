//! Blocks that have only some of their sectors at their place: how they are written and read.

use std::ops::Range;

use blk::{Buf, Result, Slice};
use futures_util::future::join_all;

use super::backing::{SECTOR, WritePath, groups_of, sectors_of};
use super::blocks::{NewPart, NewSectors};
use super::disk::NativeDisk;
use super::layout::{BLOCK, Extent, checksum_of, has_space};
use super::sources::SourceEdges;
use super::table::LookupRun;
use crate::options::Defect;

/// A piece of a read that one I/O reaches.
struct SectorPiece {
    /// Offset in the disk, and length, in bytes.
    from: u64,
    len: u64,
    /// Offset in the store's file; None: zeros.
    at: Option<u64>,
}

struct SectorPieces(Vec<SectorPiece>);

impl SectorPieces {
    /// Returns the pieces of a range of bytes, in order.
    fn of(found: &[LookupRun], range: Range<u64>) -> Vec<SectorPiece> {
        let mut pieces = SectorPieces(Vec::new());
        for run in found {
            let (from, to) = (range.start.max(run.start * BLOCK), range.end.min(run.end() * BLOCK));
            if run.backing.is_none() {
                let at = (!run.is_hole()).then(|| run.addr * BLOCK + (from - run.start * BLOCK));
                pieces.add(from, to, at);
                continue;
            }
            let start = run.start * BLOCK;
            let mut from = from;
            while from < to {
                let end = to.min((from / SECTOR + 1) * SECTOR);
                let is_present = run.backing.present() >> ((from - start) / SECTOR) & 1 == 1;
                let block = if is_present { run.addr } else { run.backing.addr() };
                pieces.add(from, end, Some(block * BLOCK + (from - start)));
                from = end;
            }
        }
        pieces.0
    }

    fn add(&mut self, from: u64, to: u64, at: Option<u64>) {
        match self.0.last_mut() {
            Some(last) if at == last.at.map(|before| before + last.len) => last.len += to - from,
            _ => self.0.push(SectorPiece { from, len: to - from, at }),
        }
    }
}

impl NativeDisk {
    /// Returns how a write of the bytes `range` reaches the blocks of a run.
    pub(super) fn path_of(&self, found: &LookupRun, range: &Range<u64>) -> WritePath {
        if !has_space(found.addr) || found.birth <= self.node.since.get() {
            return WritePath::Redirect;
        }
        if found.backing.is_none() {
            return if self.is_settled(found) { WritePath::InPlace } else { WritePath::Redirect };
        }
        let present = found.backing.present();
        let written = sectors_of(found.start, range.start, range.end);
        if !self.can_mask(range) || (written & present != 0 && !self.is_settled(found)) {
            return WritePath::Redirect;
        }
        if written & !present == 0 { WritePath::InPlace } else { WritePath::Extend }
    }

    /// Returns whether the sectors that a write leaves out may stay where they are.
    pub(super) fn can_mask(&self, range: &Range<u64>) -> bool {
        self.store.masks_sectors && range.start.is_multiple_of(SECTOR) && range.end.is_multiple_of(SECTOR)
    }

    /// Reads blocks of which some have their sectors in two places.
    pub(super) async fn read_sectors(
        &self,
        found: &[LookupRun],
        offset: u64,
        mut buf: Buf,
    ) -> (Buf, Result<()>) {
        let end = offset + buf.len() as u64;
        let reads = SectorPieces::of(found, offset..end).into_iter().map(async |piece| {
            let read = match piece.at {
                None => (Buf::zeroed(piece.len as usize), Ok(())),
                Some(at) => self.store.file.read(at, Buf::alloc(piece.len as usize)).await,
            };
            (piece.from, read)
        });
        let mut result = Ok(());
        for (from, (part, outcome)) in join_all(reads).await {
            let at = (from - offset) as usize;
            buf[at..at + part.len()].copy_from_slice(&part);
            result = result.and(outcome);
        }
        (buf, result)
    }

    /// Writes further sectors of a block to its place.
    pub(super) async fn extend(&self, found: &LookupRun, offset: u64, data: Slice) -> Result<()> {
        let since = self.node.since.get();
        self.overwrite(found, offset, data.clone()).await?;
        if self.node.since.get() != since && !self.store.options.defects.has(Defect::ExtendShared) {
            // A take has shared the place meanwhile. The sealed state shows these sectors of the backing block.
            let found = std::slice::from_ref(found);
            return self.redirect(found, offset, data, &SourceEdges::default()).await;
        }
        let had = found.backing.present();
        let written = sectors_of(found.start, offset, offset + data.len() as u64);
        let added = written & !had;
        let in_data = |group: Range<u64>| {
            let at = (found.start * BLOCK + group.start - offset) as usize;
            &data[at..at + (group.end - group.start) as usize]
        };
        let part = NewPart {
            start: found.start,
            place: Extent { addr: found.addr, len: 1 },
            partial: Some(NewSectors {
                present: had | written,
                added,
                backing: (found.backing.addr(), found.backing.birth),
            }),
            checksum: checksum_of(groups_of(added).map(in_data)),
        };
        self.stats.extended_blocks.update(|n| n + 1);
        self.store.publish_sectors(&self.node, &part)
    }
}
