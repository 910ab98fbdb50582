//! Reading the journal: every batch from a checkpoint to the first missing one, and the proof that the journal ends
//! there.

use std::collections::BTreeSet;

use blk::{Buf, Error, ErrorKind, File, Result};

use super::super::layout::{BLOCK, Geometry, HEADER_BLOCKS, page_checksum};
use super::super::media::read_hard;
use super::Position;
use super::batch::{HEADER_BYTES, Header};
use super::record::Record;

/// Pages read at once, 1 MiB.
const WINDOW_PAGES: u64 = 256;

/// Pages decoded between two turns of the reactor: guests of other stores wait meanwhile.
const STEP_PAGES: u64 = 16;

/// Start of a replay according to a superblock, and what the replay must find.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// The first page that is read.
    pub at: Position,
    /// Batches of an earlier epoch are ignored.
    pub epoch: u64,
    /// The superblock's number.
    pub checkpoint: u64,
    /// Records up to this one were durable.
    pub flushed_lsn: u64,
}

/// Result of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// The records with their numbers, in order.
    pub records: Vec<(u64, Record)>,
    /// Position at which the journal continues.
    pub end: Position,
    /// Data of records up to this one is durable; the data of later ones has to be compared with their checksums.
    pub flushed_lsn: u64,
    /// Epoch of the newest batch, or `Begin::epoch` if there is none.
    pub epoch: u64,
    /// Unreadable pages of the ring. None of them belongs to a batch that was found.
    pub unreadable: BTreeSet<u64>,
    /// Why durable records are missing, or may be. Such a store can be read and must not be written.
    pub lost: Option<Error>,
}

/// Reads all batches from `begin` on. The first batch that is not whole ends the journal, as after a loss of power.
///
/// # Errors
///
/// `Damaged`: a batch contradicts itself. Or a later batch, or the superblock, marks records behind the end as durable,
/// and the pages where they should be can be read. Or a batch names a newer checkpoint than the superblock, which then
/// is an old one.
pub async fn replay(file: &File, geometry: &Geometry, begin: Begin) -> Result<Replayed> {
    let mut reader = Reader {
        file: &file.tables(),
        geometry,
        checkpoint: begin.checkpoint,
        unreadable: BTreeSet::new(),
        first: 0,
        window: Buf::alloc(0),
    };
    let found = Replayed {
        records: Vec::new(),
        end: begin.at,
        flushed_lsn: begin.flushed_lsn.max(begin.at.lsn.saturating_sub(1)),
        epoch: begin.epoch,
        unreadable: BTreeSet::new(),
        lost: None,
    };
    let found = reader.follow(found).await?;
    let lost = reader.prove_end(&found, begin.flushed_lsn).await?;
    Ok(Replayed { unreadable: reader.unreadable, lost, ..found })
}

pub(super) struct Reader<'a> {
    file: &'a File,
    pub(super) geometry: &'a Geometry,
    checkpoint: u64,
    pub(super) unreadable: BTreeSet<u64>,
    /// First page of the ring that is in the window; unreadable pages are zeros in it.
    first: u64,
    window: Buf,
}

impl Reader<'_> {
    async fn follow(&mut self, mut found: Replayed) -> Result<Replayed> {
        let mut pages = 0;
        while let Some(header) = self.next(&found).await? {
            let (place, flushed_lsn) = (self.place(header.seq), header.flushed_lsn);
            if flushed_lsn >= header.first_lsn {
                let cause = format!(
                    "flushed_lsn is {flushed_lsn}, expected less than first_lsn {}",
                    header.first_lsn
                );
                return Err(Error::damaged(place, cause));
            }
            let batch = self.pages(header.seq % self.geometry.journal_pages, header.pages.into()).await?;
            decode(&header, batch, &place, &mut found.records)?;
            pages += u64::from(header.pages);
            if pages > STEP_PAGES {
                pages = 0;
                self.file.env().next_turn().await;
            }
            found.end = Position { seq: header.end(), lsn: header.first_lsn + u64::from(header.records) };
            found.flushed_lsn = found.flushed_lsn.max(flushed_lsn);
            found.epoch = header.epoch;
        }
        Ok(found)
    }

    /// Returns the next batch: right behind the last one, or at the ring's next start if its header records that pages
    /// were passed over.
    async fn next(&mut self, found: &Replayed) -> Result<Option<Header>> {
        let (at, ring) = (found.end, self.geometry.journal_pages);
        for seq in places_of_next(at.seq, ring) {
            let Some(header) = self.batch(seq).await? else { continue };
            if follows(&header, found) {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Returns the header of the whole batch that begins with page number `seq`.
    pub(super) async fn batch(&mut self, seq: u64) -> Result<Option<Header>> {
        let (place, geometry) = (seq % self.geometry.journal_pages, self.geometry);
        let Some(header) = Header::parse(self.pages(place, 1).await?, geometry, seq) else { return Ok(None) };
        let whole = page_checksum(self.pages(place, header.pages.into()).await?) == header.checksum;
        if whole && header.checkpoint > self.checkpoint {
            return Err(Error::damaged(self.place(seq), self.old_superblock(&header)));
        }
        Ok(whole.then_some(header))
    }

    fn old_superblock(&self, header: &Header) -> String {
        format!(
            "checkpoint {} was durable when this batch was written, but the newest readable superblock is that of \
             checkpoint {}: a newer one is damaged or cannot be read, and this one no longer fits the journal; bring the \
             newer one back (read the device again, copy it with a program that tries again), or restore a copy of the \
             store",
            header.checkpoint, self.checkpoint
        )
    }

    pub(super) fn place(&self, seq: u64) -> String {
        let page = seq % self.geometry.journal_pages;
        format!("{}: journal page {page} (block {}, number {seq})", self.file.name(), HEADER_BLOCKS + page)
    }

    /// Reads pages of the ring, page by page if the device fails to read all at once.
    async fn read_window(&mut self, place: u64, pages: u64) -> Result<Buf> {
        let at = |page: u64| (HEADER_BLOCKS + page) * BLOCK;
        let (mut window, result) = self.file.read(at(place), Buf::alloc((pages * BLOCK) as usize)).await;
        match result {
            Err(e) if e.kind == ErrorKind::Io => {}
            result => return result.map(|()| window),
        }
        for (n, part) in (place..place + pages).zip(window.chunks_exact_mut(BLOCK as usize)) {
            let (page, result) = read_hard(self.file, at(n), BLOCK).await;
            match result {
                Ok(()) => part.copy_from_slice(&page),
                Err(e) if e.kind == ErrorKind::Io => {
                    self.unreadable.insert(n);
                    part.fill(0);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(window)
    }

    /// Returns `count` pages of the ring from `place` on, which must not reach past its end.
    pub(super) async fn pages(&mut self, place: u64, count: u64) -> Result<&[u8]> {
        let held = self.window.len() as u64 / BLOCK;
        if place < self.first || place + count > self.first + held {
            let pages = WINDOW_PAGES.min(self.geometry.journal_pages - place);
            let window = self.read_window(place, pages).await?;
            (self.first, self.window) = (place, window);
        }
        let start = ((place - self.first) * BLOCK) as usize;
        Ok(&self.window[start..start + (count * BLOCK) as usize])
    }
}

/// Appends the records of a batch whose checksum is right to `records`.
fn decode(header: &Header, batch: &[u8], place: &str, records: &mut Vec<(u64, Record)>) -> Result<()> {
    let end = HEADER_BYTES + header.bytes as usize;
    if end > batch.len() {
        let room = batch.len() - HEADER_BYTES;
        return Err(Error::damaged(
            place,
            format!("{} bytes of records, expected at most {room}", header.bytes),
        ));
    }
    let mut at = HEADER_BYTES;
    for lsn in (header.first_lsn..).take(header.records as usize) {
        let (record, taken) = Record::decode(&batch[at..end], place, lsn)?;
        records.push((lsn, record));
        at += taken;
    }
    if at < end {
        let cause = format!("{} bytes lie behind its {} records, expected none", end - at, header.records);
        return Err(Error::damaged(place, cause));
    }
    Ok(())
}

/// Returns the numbers that the first page of the batch behind page `seq` may have.
pub(super) fn places_of_next(seq: u64, ring: u64) -> [u64; 2] {
    [seq, (seq / ring + 1) * ring]
}

/// Returns whether a header belongs to the batch that follows what was found.
pub(super) fn follows(header: &Header, found: &Replayed) -> bool {
    header.previous_seq == found.end.seq && header.first_lsn == found.end.lsn && header.epoch >= found.epoch
}
