//! A batch: the unit of one journal write. Contains its header, and the batch that is being filled.

use blk::{Buf, Slice};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::layout::{
    ADDRESS_AT, BLOCK, Geometry, STORE_ID_AT, get_struct, get_u64, put_head, seal_page,
};
use super::record::Record;

/// Most pages of a batch, 256 KiB: one write that a disk of any kind does at full speed, and the most that a crash can
/// tear.
pub(super) const BATCH_PAGES_MAX: u64 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"unstunJB");
/// Length of a header: magic, the store's id, and the fields of `Header`.
pub(super) const HEADER_BYTES: usize = 96;

/// The header behind the magic and the store's id, as the page has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
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
    zeros: [u16; 3],
    /// The checkpoint that wrote the catalogue of `checkpoint`; 0 if there was none, or an earlier program wrote the batch.
    pub catalogue_checkpoint: u64,
}

impl Header {
    /// Reads the header of a batch of this store whose claimed pages are inside the ring, from a page that should have
    /// number `seq`. The caller compares the checksum once it has all pages.
    pub(super) fn parse(page: &[u8], geometry: &Geometry, seq: u64) -> Option<Header> {
        let header: Header = get_struct(&page[ADDRESS_AT..]);
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

    /// Writes the head of a batch, its checksum last.
    fn write(&self, store_id: u64, batch: &mut [u8]) {
        batch[..HEADER_BYTES].fill(0);
        batch[ADDRESS_AT..][..size_of::<Header>()].copy_from_slice(self.as_bytes());
        put_head(batch, MAGIC, store_id, self.seq);
        seal_page(batch);
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
    pub catalogue_checkpoint: u64,
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
            zeros: [0; 3],
            catalogue_checkpoint: stamp.catalogue_checkpoint,
        };
        header.write(stamp.store_id, &mut self.buf);
        self.buf.freeze()
    }
}
