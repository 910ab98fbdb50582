//! The checkpoints that the batches of a ring name, whatever their order.

use blk::{Buf, ErrorKind, File, Result};

use super::super::layout::{BLOCK, Geometry, HEADER_BLOCKS, page_checksum};
use super::super::media::read_hard;
use super::batch::Header;

/// Pages read at once, 1 MiB.
const WINDOW_PAGES: u64 = 256;

/// The checkpoints that whole batches of the ring name.
#[derive(Default)]
pub(crate) struct NamedCheckpoints {
    /// Epoch and checkpoint of each batch.
    found: Vec<(u64, u64)>,
    /// Pages of the ring cannot be read.
    pub unreadable: bool,
}

impl NamedCheckpoints {
    /// Returns the newest checkpoint.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.found.iter().map(|(_, checkpoint)| *checkpoint).max()
    }

    /// Returns whether the checkpoint that the opening `epoch` wrote became valid: a batch of the opening names it, or a
    /// later one of the same opening.
    pub(crate) fn proves(&self, epoch: u64, checkpoint: u64) -> bool {
        self.found.iter().any(|named| named.0 == epoch && named.1 >= checkpoint)
    }
}

/// Returns whether a batch that is not whole begins where the journal ends.
pub(crate) async fn has_partial_batch(file: &File, geometry: &Geometry, end: u64) -> Result<bool> {
    let (page, read) = read_hard(file, (HEADER_BLOCKS + end % geometry.journal_pages) * BLOCK, BLOCK).await;
    match read {
        Ok(()) => Ok(Header::parse(&page, geometry, end).is_some()),
        Err(e) if e.kind == ErrorKind::Io => Ok(true),
        Err(e) => Err(e),
    }
}

/// Reads all of the ring.
pub(crate) async fn named_checkpoints(file: &File, geometry: &Geometry) -> Result<NamedCheckpoints> {
    let mut named = NamedCheckpoints::default();
    let mut ring = Buf::zeroed((geometry.journal_pages * BLOCK) as usize);
    for first in (0..geometry.journal_pages).step_by(WINDOW_PAGES as usize) {
        let pages = WINDOW_PAGES.min(geometry.journal_pages - first);
        for page in first..first + pages {
            let (buf, read) = read_hard(file, (HEADER_BLOCKS + page) * BLOCK, BLOCK).await;
            match read {
                Ok(()) => ring[(page * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&buf),
                Err(e) if e.kind == ErrorKind::Io => named.unreadable = true,
                Err(e) => return Err(e),
            }
        }
    }
    for page in 0..geometry.journal_pages {
        let bytes = &ring[(page * BLOCK) as usize..];
        let seq = Header::claimed_seq(bytes).filter(|seq| seq % geometry.journal_pages == page);
        let Some(header) = seq.and_then(|seq| Header::parse(bytes, geometry, seq)) else { continue };
        if page_checksum(&bytes[..(u64::from(header.pages) * BLOCK) as usize]) == header.checksum {
            named.found.push((header.epoch, header.checkpoint));
        }
    }
    Ok(named)
}
