//! The end of the journal: whether a loss of power explains it, and what unreadable pages may hide.

use std::ops::Range;

use blk::{Error, Result};

use super::super::layout::HEADER_BLOCKS;
use super::CHANGE_PAGES_MAX;
use super::batch::{BATCH_PAGES_MAX, Header};
use super::replay::{Reader, Replayed, follows, places_of_next};

impl Reader<'_> {
    /// Proves that no durable record follows the records that were found. A whole batch behind the end is a leftover,
    /// unless its `flushed_lsn` covers the missing records; the superblock's `flushed_lsn` may cover them too.
    ///
    /// A sector whose write was under way when the power was lost may be unreadable. Its batch was not durable then,
    /// and the journal ends before it. That holds only if every page that could contradict it can be read. Otherwise
    /// the result is the reason why records are missing, or may be.
    pub(super) async fn prove_end(&mut self, found: &Replayed, flushed_lsn: u64) -> Result<Option<Error>> {
        let durable = self.durable_behind(found).await?.max(flushed_lsn);
        let hidden = self.hidden_batch(found).await?;
        match (hidden, durable >= found.end.lsn) {
            (None, false) => Ok(None),
            (None, true) => Err(self.next_is_damaged(found, durable)),
            (Some(hidden), true) => Ok(Some(self.durable_records_lost(&hidden, found, durable))),
            (Some(hidden), false) => Ok(self.doubt(&hidden, found)),
        }
    }

    /// Returns the newest record that a whole batch behind the end marks as durable. Reads the whole ring.
    async fn durable_behind(&mut self, found: &Replayed) -> Result<u64> {
        let ring = self.geometry.journal_pages;
        let mut durable = 0;
        for place in 0..ring {
            let page = self.pages(place, 1).await?;
            let Some(seq) = Header::claimed_seq(page).filter(|seq| seq % ring == place) else { continue };
            let Some(header) = self.batch(seq).await? else { continue };
            if seq >= found.end.seq && header.epoch >= found.epoch {
                durable = durable.max(header.flushed_lsn);
            }
        }
        Ok(durable)
    }

    /// Returns the numbers of the pages of the next batch if some of them cannot be read: all pages that it may have,
    /// if its header is among the unreadable ones. None: the place of the next batch can be read, and holds no whole
    /// batch.
    async fn hidden_batch(&mut self, found: &Replayed) -> Result<Option<Range<u64>>> {
        let (geometry, ring) = (self.geometry, self.geometry.journal_pages);
        let left = ring - found.end.seq % ring;
        for seq in places_of_next(found.end.seq, ring) {
            // Pages at the ring's end are passed over only where the next record does not fit into them.
            if seq > found.end.seq && left >= CHANGE_PAGES_MAX {
                continue;
            }
            let place = seq % ring;
            let pages = match Header::parse(self.pages(place, 1).await?, geometry, seq) {
                _ if self.unreadable.contains(&place) => BATCH_PAGES_MAX.min(ring - place),
                Some(header) if follows(&header, found) => header.pages.into(),
                _ => continue,
            };
            if self.unreadable.range(place..place + pages).next().is_some() {
                return Ok(Some(seq..seq + pages));
            }
        }
        Ok(None)
    }

    /// Returns an error if an unreadable page outside of the next batch may record that the next batch was durable.
    fn doubt(&self, hidden: &Range<u64>, found: &Replayed) -> Option<Error> {
        let first = hidden.start % self.geometry.journal_pages;
        let own = first..first + (hidden.end - hidden.start);
        let other = self.unreadable.iter().find(|page| !own.contains(page))?;
        let (lsn, block) = (found.end.lsn, HEADER_BLOCKS + other);
        let cause = format!(
            "it cannot be read, and neither can block {block}, which may say that records from {lsn} on were durable: they \
             may be lost, and what they changed shows its older content; read the device again, or copy what the store \
             shows to another one"
        );
        Some(Error::damaged(self.place(hidden.start), cause))
    }

    fn durable_records_lost(&self, hidden: &Range<u64>, found: &Replayed, durable: u64) -> Error {
        let cause = format!(
            "records {} to {durable} were durable and cannot be read: what they changed shows its older content; read the \
             device again, or copy what the store shows to another one",
            found.end.lsn
        );
        Error::damaged(self.place(hidden.start), cause)
    }

    fn next_is_damaged(&self, found: &Replayed, durable: u64) -> Error {
        let cause = format!(
            "a later batch, or the superblock, says that records up to {durable} were durable, but the journal can be read \
             up to record {} only: its next batch is damaged",
            found.end.lsn - 1
        );
        Error::damaged(self.place(found.end.seq), cause)
    }
}
