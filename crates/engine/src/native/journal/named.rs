//! The whole batches of a ring, whatever their order, and what they prove of checkpoints and of the ring itself.

use blk::{Buf, Error, ErrorKind, File, Result};

use super::super::backing::SECTOR;
use super::super::layout::{BLOCK, Geometry, HEADER_BLOCKS, page_checksum};
use super::super::media::read_hard;
use super::batch::{BATCH_PAGES_MAX, Header};

/// Pages read at once, 1 MiB.
const WINDOW_PAGES: u64 = 256;

/// Most pages behind the journal's end that belong to no whole batch after a loss of power: those of a batch that was
/// being written, and the rest of an older one.
const TORN_PAGES_MAX: u64 = 2 * BATCH_PAGES_MAX;

/// What a page of the ring holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RingPage {
    /// It is part of a whole batch.
    Batch,
    Zeros,
    /// It cannot be read, or its first sector is that of a batch, or zeros: it may be of a batch that was being written.
    Torn,
    Other,
}

impl RingPage {
    fn of(page: &[u8]) -> RingPage {
        let is_zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        match () {
            () if is_zeros(page) => RingPage::Zeros,
            () if is_zeros(&page[..SECTOR as usize]) || Header::claimed_seq(page).is_some() => RingPage::Torn,
            () => RingPage::Other,
        }
    }
}

/// The whole batches of a ring.
pub(crate) struct RingBatches {
    /// The newest checkpoint that a batch names.
    pub newest_checkpoint: u64,
    /// The checkpoint that wrote the last catalogue, as the newest batch names it; 0 if that batch names none.
    pub catalogue_checkpoint: u64,
    /// Epoch of the newest batch; 0 if there is none.
    pub epoch: u64,
    /// End, in pages of the ring, of the batch nearest to the ring's start; `u64::MAX` if there is none.
    pub first_end: u64,
    /// Pages of the ring cannot be read.
    pub unreadable: bool,
    /// Number of the page behind the newest batch.
    end: u64,
    pages: Vec<RingPage>,
}

impl RingBatches {
    /// Reads all of the ring.
    ///
    /// # Errors
    /// `Damaged`: the file ends inside of the ring.
    pub(crate) async fn read(file: &File, geometry: &Geometry) -> Result<RingBatches> {
        let (ring, size) = (geometry.journal_pages, file.size().await?);
        if size / BLOCK < geometry.groups_start() {
            return Err(Error::damaged(file.name(), "the file ends inside of the journal"));
        }
        let mut found = RingBatches {
            newest_checkpoint: 0,
            catalogue_checkpoint: 0,
            epoch: 0,
            first_end: u64::MAX,
            unreadable: false,
            end: 0,
            pages: vec![RingPage::Zeros; ring as usize],
        };
        for first in (0..ring).step_by(WINDOW_PAGES as usize) {
            // A batch may begin in the window and end behind it.
            let pages = (WINDOW_PAGES + BATCH_PAGES_MAX - 1).min(ring - first);
            let (window, unreadable) = read_pages(file, first, pages).await?;
            found.note_window(geometry, first, &window);
            found.unreadable |= !unreadable.is_empty();
            unreadable.into_iter().for_each(|page| found.pages[page as usize] = RingPage::Torn);
            file.env().next_turn().await;
        }
        Ok(found)
    }

    fn note_window(&mut self, geometry: &Geometry, first: u64, window: &[u8]) {
        let held = window.len() as u64 / BLOCK;
        for n in 0..WINDOW_PAGES.min(held) {
            let (place, bytes) = (first + n, &window[(n * BLOCK) as usize..]);
            let page = &mut self.pages[place as usize];
            if *page == RingPage::Zeros {
                *page = RingPage::of(&bytes[..BLOCK as usize]);
            }
            let seq = Header::claimed_seq(bytes).filter(|seq| seq % geometry.journal_pages == place);
            let Some(header) = seq.and_then(|seq| Header::parse(bytes, geometry, seq)) else { continue };
            let len = u64::from(header.pages);
            if n + len <= held && page_checksum(&bytes[..(len * BLOCK) as usize]) == header.checksum {
                self.note(&header, place);
            }
        }
    }

    fn note(&mut self, header: &Header, place: u64) {
        let len = u64::from(header.pages);
        self.pages[place as usize..(place + len) as usize].fill(RingPage::Batch);
        self.first_end = self.first_end.min(place + len);
        self.newest_checkpoint = self.newest_checkpoint.max(header.checkpoint);
        if (header.epoch, header.end()) > (self.epoch, self.end) {
            (self.epoch, self.end) = (header.epoch, header.end());
            // Older batches may name the catalogue of a later program, which an earlier one has replaced since.
            self.catalogue_checkpoint = header.catalogue_checkpoint;
        }
    }

    /// Returns whether the ring shows that nothing is missing behind the newest batch.
    pub(crate) fn ends_whole(&self) -> bool {
        self.is_end(self.end)
    }

    /// Returns whether there is a whole batch behind the end of a journal whose last batch is of this epoch.
    pub(crate) fn has_batch_behind(&self, end: u64, epoch: u64) -> bool {
        self.epoch >= epoch && self.end > end
    }

    /// Returns whether the journal can end before page number `end`. A stretch of the ring that something else has
    /// overwritten or erased looks like an end, but the batches of the lap before do not follow it. In the first lap
    /// zeros follow, as they do where a new ring was erased: only a missing batch before shows that. A damaged batch
    /// alone cannot be told from one that was being written.
    pub(crate) fn is_end(&self, end: u64) -> bool {
        let ring = self.pages.len() as u64;
        let page = |seq: u64| self.pages[(seq % ring) as usize];
        if end > 0 && page(end - 1) != RingPage::Batch {
            return false;
        }
        if end < ring {
            return page(end) != RingPage::Other;
        }
        // The ring's last pages may have been passed over in each lap.
        let left = ring - end % ring;
        let passed = if left <= TORN_PAGES_MAX { BATCH_PAGES_MAX } else { 0 };
        let mut behind = (end..end + TORN_PAGES_MAX + passed).map(page);
        (left < BATCH_PAGES_MAX || page(end) != RingPage::Zeros) && behind.any(|page| page == RingPage::Batch)
    }
}

/// Reads pages of the ring, and returns with them those that cannot be read. They are zeros.
async fn read_pages(file: &File, first: u64, pages: u64) -> Result<(Buf, Vec<u64>)> {
    let at = |page: u64| (HEADER_BLOCKS + page) * BLOCK;
    let (mut window, read) = file.read(at(first), Buf::alloc((pages * BLOCK) as usize)).await;
    match read {
        Err(e) if e.kind == ErrorKind::Io => {}
        read => return read.map(|()| (window, Vec::new())),
    }
    let mut unreadable = Vec::new();
    for (n, part) in (first..first + pages).zip(window.chunks_exact_mut(BLOCK as usize)) {
        match read_hard(file, at(n), BLOCK).await {
            (page, Ok(())) => part.copy_from_slice(&page),
            (_, Err(e)) if e.kind == ErrorKind::Io => {
                unreadable.push(n);
                part.fill(0);
            }
            (_, Err(e)) => return Err(e),
        }
    }
    Ok((window, unreadable))
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
