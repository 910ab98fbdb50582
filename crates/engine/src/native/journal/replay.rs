//! Reading the journal: every batch from a checkpoint to the first that is not there, and proof that it ends there.

use blk::{Buf, Error, File, Result};

use super::super::layout::{BLOCK, Geometry, HEADER_BLOCKS, page_checksum};
use super::Position;
use super::batch::{HEADER_BYTES, Header};
use super::record::Record;

/// Pages read at once, 1 MiB.
const WINDOW_PAGES: u64 = 256;

/// What a replay found.
#[derive(Debug)]
pub struct Replayed {
    /// With their numbers, in order.
    pub records: Vec<(u64, Record)>,
    /// Where the journal goes on.
    pub end: Position,
    /// Data of records up to this one is durable; that of later ones is to be compared with their checksums.
    pub flushed_lsn: u64,
    /// Of the newest batch, or `epoch_at_least` where there is none.
    pub epoch: u64,
}

/// Reads all batches from `from` on, which a superblock names; `checkpoint` is its number and `epoch_at_least` the
/// epoch in which it was written. The first batch that is not whole ends the journal, as after a loss of power.
///
/// Damaged: a batch contradicts itself; a later batch says that records behind the end were durable; or a batch knows
/// a newer checkpoint than the superblock, which then is an old one.
pub async fn replay(
    file: &File,
    geometry: &Geometry,
    from: Position,
    epoch_at_least: u64,
    checkpoint: u64,
) -> Result<Replayed> {
    let mut reader = Reader { file: &file.tables(), geometry, checkpoint, first: 0, window: Buf::alloc(0) };
    let found = Replayed {
        records: Vec::new(),
        end: from,
        flushed_lsn: from.lsn.saturating_sub(1),
        epoch: epoch_at_least,
    };
    let found = reader.follow(found).await?;
    reader.prove_end(&found).await?;
    Ok(found)
}

struct Reader<'a> {
    file: &'a File,
    geometry: &'a Geometry,
    checkpoint: u64,
    /// The ring's pages from this one on are in the window.
    first: u64,
    window: Buf,
}

impl Reader<'_> {
    async fn follow(&mut self, mut found: Replayed) -> Result<Replayed> {
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
            found.end = Position { seq: header.end(), lsn: header.first_lsn + u64::from(header.records) };
            found.flushed_lsn = found.flushed_lsn.max(flushed_lsn);
            found.epoch = header.epoch;
        }
        Ok(found)
    }

    /// The batch that follows, where it ended or at the ring's next start if it says that pages were passed over.
    async fn next(&mut self, found: &Replayed) -> Result<Option<Header>> {
        let (at, ring) = (found.end, self.geometry.journal_pages);
        for seq in [at.seq, (at.seq / ring + 1) * ring] {
            let Some(header) = self.batch(seq).await? else { continue };
            if header.previous_seq == at.seq && header.first_lsn == at.lsn && header.epoch >= found.epoch {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// The whole batch that begins with page number `seq`.
    async fn batch(&mut self, seq: u64) -> Result<Option<Header>> {
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
             checkpoint {}: a newer one is damaged, and this one no longer fits the journal",
            header.checkpoint, self.checkpoint
        )
    }

    fn place(&self, seq: u64) -> String {
        let page = seq % self.geometry.journal_pages;
        format!("{}: journal page {page} (block {}, number {seq})", self.file.name(), HEADER_BLOCKS + page)
    }

    /// `count` pages of the ring from `place` on, which do not reach past its end.
    async fn pages(&mut self, place: u64, count: u64) -> Result<&[u8]> {
        let held = self.window.len() as u64 / BLOCK;
        if place < self.first || place + count > self.first + held {
            let pages = WINDOW_PAGES.min(self.geometry.journal_pages - place);
            let buf = Buf::alloc((pages * BLOCK) as usize);
            let (buf, result) = self.file.read((HEADER_BLOCKS + place) * BLOCK, buf).await;
            result?;
            (self.first, self.window) = (place, buf);
        }
        let start = ((place - self.first) * BLOCK) as usize;
        Ok(&self.window[start..start + (count * BLOCK) as usize])
    }
}

/// The records of a batch whose checksum is right, behind `records`.
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

// Whether the end is one that a loss of power explains.
impl Reader<'_> {
    /// A batch behind the end that is whole is a leftover, unless it says that the missing records had been flushed.
    async fn prove_end(&mut self, found: &Replayed) -> Result<()> {
        let ring = self.geometry.journal_pages;
        for place in 0..ring {
            let page = self.pages(place, 1).await?;
            let Some(seq) = Header::claimed_seq(page).filter(|seq| seq % ring == place) else { continue };
            let Some(header) = self.batch(seq).await? else { continue };
            let later = seq >= found.end.seq && header.epoch >= found.epoch;
            if later && header.flushed_lsn >= found.end.lsn {
                let cause = format!(
                    "this batch says that records up to {} were durable, but the journal can be read up to record {} \
                     only: its next batch is damaged",
                    header.flushed_lsn,
                    found.end.lsn - 1
                );
                return Err(Error::damaged(self.place(found.end.seq), cause));
            }
        }
        Ok(())
    }
}
