//! Definitions that all parts of the store share: the block, the layout of the file, and the checksum of its pages.
//! `docs/formats/native.md` has the diagrams.

use crc_fast::CrcAlgorithm;
use zerocopy::FromBytes;

// Numbers in the store's pages are little-endian, and parts of pages are structs in memory.
const _: () = assert!(cfg!(target_endian = "little"));

/// The unit of addresses, of the map and of every page of metadata.
pub const BLOCK: u64 = 4096;

/// Length of the header in blocks: superblocks, the lease, and space beside them.
pub const HEADER_BLOCKS: u64 = 16;

/// Block of the lease, 16 KiB from the superblock before it and from the journal. It is zeros in a store that never had
/// one.
pub(crate) const LEASE_BLOCK: u64 = 12;

/// Offsets of a page's first fields, which every kind of page has: magic, the store's id, the page's own address,
/// checksum.
pub(crate) const STORE_ID_AT: usize = 8;
pub(crate) const ADDRESS_AT: usize = 16;
/// Offset of the checksum in every page of metadata.
pub const CHECKSUM_AT: usize = 24;
/// Length of these first fields.
pub(crate) const HEAD_BYTES: usize = 32;

/// Blocks `addr..addr + len` of the store's file. Address 0 is that of the superblock, and so means "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First block.
    pub addr: u64,
    /// Number of blocks.
    pub len: u64,
}

impl Extent {
    /// Returns the block after the last one.
    pub fn end(&self) -> u64 {
        self.addr + self.len
    }
}

/// Number of bits of an address and of a birth in an entry of a map.
pub(crate) const WORD_BITS: u32 = 48;
pub(crate) const WORD_MASK: u64 = (1 << WORD_BITS) - 1;

/// Position of the flags in an entry's first word: those of an entry of the tree of backing blocks are its sector mask.
pub(crate) const FLAGS_SHIFT: u32 = WORD_BITS + 8;
const FLAGS_MASK: u64 = 0xFF << FLAGS_SHIFT;

/// Greatest number of a source.
pub(crate) const DEVICE_MAX: u8 = 254;

/// The device of lost blocks: their content is unknown, and a read of them fails until they are written.
pub(crate) const LOST: u8 = 255;

/// Returns the first word of the entry of a lost block of a disk.
pub(crate) const fn lost_word(block: u64) -> u64 {
    device_word(LOST, block)
}

/// Returns whether an entry's first word says that its block is lost.
pub(crate) const fn is_lost(word: u64) -> bool {
    device_of(word) == LOST
}

/// Returns the address in an entry's first word, without device and flags.
pub(crate) const fn addr_of(place: u64) -> u64 {
    place & WORD_MASK
}

/// Returns device and address in an entry's first word, without flags.
pub(crate) const fn place_of(word: u64) -> u64 {
    word & !FLAGS_MASK
}

/// Returns the device in an entry's first word: 0 is the store itself, the others have no space in it.
pub(crate) const fn device_of(word: u64) -> u8 {
    (word >> WORD_BITS) as u8
}

/// Returns whether an entry's blocks have space in the store.
pub(crate) const fn has_space(word: u64) -> bool {
    addr_of(word) != 0 && device_of(word) == 0
}

/// Returns the first word of an entry for block `addr` of a device.
pub(crate) const fn device_word(device: u8, addr: u64) -> u64 {
    (device as u64) << WORD_BITS | addr
}

/// Returns the first word of the entry `blocks` after one with `word`; a hole is followed by holes.
pub(crate) const fn advance(word: u64, blocks: u64) -> u64 {
    if word == 0 { 0 } else { word + blocks }
}

/// Properties of a store that are fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Random number of the store; every page has it.
    pub store_id: u64,
    /// Length of the journal's ring, which follows the header.
    pub journal_pages: u64,
    /// Blocks of a group, its two bitmap pages included.
    pub group_blocks: u64,
}

impl Geometry {
    pub(crate) fn groups_start(&self) -> u64 {
        HEADER_BLOCKS + self.journal_pages
    }

    pub(crate) fn group_start(&self, group: u64) -> u64 {
        self.groups_start() + group * self.group_blocks
    }

    /// Returns the group of an address; None for the header and the journal.
    pub fn group_of(&self, addr: u64) -> Option<u64> {
        Some(addr.checked_sub(self.groups_start())? / self.group_blocks)
    }
}

/// Returns the CRC-64/NVME over `bytes`, whose own checksum field the caller has zeroed.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Returns the checksum over several parts, one behind the other.
pub(crate) fn checksum_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
    parts.for_each(|part| digest.update(part));
    digest.finalize()
}

/// Returns the checksum of a page as if its field at `CHECKSUM_AT` were zero.
pub fn page_checksum(page: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&page[..CHECKSUM_AT]);
    digest.update(&[0; 8]);
    digest.update(&page[CHECKSUM_AT + 8..]);
    digest.finalize()
}

/// Writes the first fields of a page, without its checksum.
pub(crate) fn put_head(page: &mut [u8], magic: u64, store_id: u64, address: u64) {
    put_u64(page, 0, magic);
    put_u64(page, STORE_ID_AT, store_id);
    put_u64(page, ADDRESS_AT, address);
}

/// Writes the checksum of a page that is otherwise complete, and returns it.
pub(crate) fn seal_page(page: &mut [u8]) -> u64 {
    let checksum = page_checksum(page);
    put_u64(page, CHECKSUM_AT, checksum);
    checksum
}

/// Returns the struct at the start of `bytes`, which are long enough.
pub(crate) fn get_struct<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).expect("the bytes of the struct").0
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes 8 bytes at `at`, little-endian.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
