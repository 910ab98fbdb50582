//! A batch: the unit of one journal write. Contains its header, and the batch that is being filled.

use blk::{Buf, Slice};

use super::super::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, Geometry, STORE_ID_AT, get_u64, page_checksum, put_u64,
};
use super::record::Record;

/// Most pages of a batch, 256 KiB: one write that a disk of any kind does at full speed, and the most that a crash can
/// tear.
pub(super) const BATCH_PAGES_MAX: u64 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"unstunJB");
/// Length of a header: 12 fields in 82 bytes, the rest zero.
pub(super) const HEADER_BYTES: usize = 96;

const EPOCH_AT: usize = 32;
const CHECKPOINT_AT: usize = 40;
const FIRST_LSN_AT: usize = 48;
const FLUSHED_LSN_AT: usize = 56;
const PREVIOUS_AT: usize = 64;
const RECORDS_AT: usize = 72;
const BYTES_AT: usize = 76;
const PAGES_AT: usize = 80;

/// The header's fields behind the magic and the store's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the batch's first page, counted over all laps: it is page `seq % journal_pages` of the ring.
    pub seq: u64,
    pub checksum: u64,
    pub epoch: u64,
    /// The newest checkpoint that was durable when the batch was written.
    pub checkpoint: u64,
    /// Number of the first record; of the next record if the batch has none.
    pub first_lsn: u64,
    pub flushed_lsn: u64,
    /// End of the previous batch: `seq`, or less where pages at the ring's end were passed over.
    pub previous_seq: u64,
    pub records: u32,
    /// Length of all records.
    pub bytes: u32,
    pub pages: u16,
}

impl Header {
    /// Reads the header of a batch of this store whose claimed pages are inside the ring, from a page that should have
    /// number `seq`. The caller compares the checksum once it has all pages.
    pub(super) fn parse(page: &[u8], geometry: &Geometry, seq: u64) -> Option<Header> {
        let header = Header::read(page);
        let place = seq % geometry.journal_pages;
        let inside = place + u64::from(header.pages) <= geometry.journal_pages;
        let ours = get_u64(page, 0) == MAGIC && get_u64(page, STORE_ID_AT) == geometry.store_id;
        let sized = (1..=BATCH_PAGES_MAX).contains(&u64::from(header.pages));
        (ours && header.seq == seq && sized && inside).then_some(header)
    }

    /// Returns the number that a page claims to have, if it looks like the first page of a batch.
    pub(super) fn claimed_seq(page: &[u8]) -> Option<u64> {
        (get_u64(page, 0) == MAGIC).then(|| get_u64(page, ADDRESS_AT))
    }

    fn read(page: &[u8]) -> Header {
        let half = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        Header {
            seq: get_u64(page, ADDRESS_AT),
            checksum: get_u64(page, CHECKSUM_AT),
            epoch: get_u64(page, EPOCH_AT),
            checkpoint: get_u64(page, CHECKPOINT_AT),
            first_lsn: get_u64(page, FIRST_LSN_AT),
            flushed_lsn: get_u64(page, FLUSHED_LSN_AT),
            previous_seq: get_u64(page, PREVIOUS_AT),
            records: half(RECORDS_AT),
            bytes: half(BYTES_AT),
            pages: u16::from_le_bytes([page[PAGES_AT], page[PAGES_AT + 1]]),
        }
    }

    /// Writes the head of a batch, its checksum last.
    fn write(&self, store_id: u64, batch: &mut [u8]) {
        batch[..HEADER_BYTES].fill(0);
        put_u64(batch, 0, MAGIC);
        put_u64(batch, STORE_ID_AT, store_id);
        put_u64(batch, ADDRESS_AT, self.seq);
        put_u64(batch, EPOCH_AT, self.epoch);
        put_u64(batch, CHECKPOINT_AT, self.checkpoint);
        put_u64(batch, FIRST_LSN_AT, self.first_lsn);
        put_u64(batch, FLUSHED_LSN_AT, self.flushed_lsn);
        put_u64(batch, PREVIOUS_AT, self.previous_seq);
        batch[RECORDS_AT..RECORDS_AT + 4].copy_from_slice(&self.records.to_le_bytes());
        batch[BYTES_AT..BYTES_AT + 4].copy_from_slice(&self.bytes.to_le_bytes());
        batch[PAGES_AT..PAGES_AT + 2].copy_from_slice(&self.pages.to_le_bytes());
        let checksum = page_checksum(batch);
        put_u64(batch, CHECKSUM_AT, checksum);
    }

    pub(super) fn end(&self) -> u64 {
        self.seq + u64::from(self.pages)
    }
}

/// State of the journal that a batch records when it is closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub store_id: u64,
    pub epoch: u64,
    pub checkpoint: u64,
    pub flushed_lsn: u64,
}

/// The batch that is being filled. Its place is fixed when it is opened, its length when it is closed.
pub(super) struct OpenBatch {
    pub seq: u64,
    previous_seq: u64,
    first_lsn: u64,
    buf: Buf,
    /// Length of the records so far.
    bytes: usize,
    records: u32,
    /// Most pages of a batch, or fewer before the ring's end.
    limit_pages: u64,
}

fn pages_for(record_bytes: usize) -> u64 {
    ((HEADER_BYTES + record_bytes) as u64).div_ceil(BLOCK)
}

impl OpenBatch {
    /// Opens a batch behind page `previous_seq` with room for `first` bytes of records. The rest of the ring is passed
    /// over if it is too short for them.
    pub(super) fn open(journal_pages: u64, previous_seq: u64, first_lsn: u64, first: usize) -> OpenBatch {
        let left = journal_pages - previous_seq % journal_pages;
        let passed = if pages_for(first) > left { left } else { 0 };
        let seq = previous_seq + passed;
        let limit_pages = BATCH_PAGES_MAX.min(journal_pages - seq % journal_pages);
        assert!(pages_for(first) <= limit_pages, "{first} bytes for one batch");
        let buf = Buf::alloc((limit_pages * BLOCK) as usize);
        OpenBatch { seq, previous_seq, first_lsn, buf, bytes: 0, records: 0, limit_pages }
    }

    pub(super) fn fits(&self, len: usize) -> bool {
        pages_for(self.bytes + len) <= self.limit_pages
    }

    /// Adds a record and returns its bytes.
    pub(super) fn push(&mut self, record: &Record) -> &[u8] {
        let start = HEADER_BYTES + self.bytes;
        let len = record.encoded_len();
        let bytes = &mut self.buf[start..start + len];
        record.encode(bytes);
        self.bytes += len;
        self.records += 1;
        bytes
    }

    /// Returns the page behind the batch's present last page.
    pub(super) fn end(&self) -> u64 {
        self.seq + pages_for(self.bytes)
    }

    /// Returns the bytes to write at page `seq` of the ring.
    pub(super) fn seal(mut self, stamp: Stamp) -> Slice {
        let pages = pages_for(self.bytes);
        self.buf.truncate((pages * BLOCK) as usize);
        self.buf[HEADER_BYTES + self.bytes..].fill(0);
        let header = Header {
            seq: self.seq,
            checksum: 0,
            epoch: stamp.epoch,
            checkpoint: stamp.checkpoint,
            first_lsn: self.first_lsn,
            flushed_lsn: stamp.flushed_lsn,
            previous_seq: self.previous_seq,
            records: self.records,
            bytes: self.bytes as u32,
            pages: pages as u16,
        };
        header.write(stamp.store_id, &mut self.buf);
        self.buf.freeze()
    }
}
