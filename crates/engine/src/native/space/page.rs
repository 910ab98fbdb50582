//! The bitmap page of a group: the group's blocks that the committed state refers to.
//!
//! 64 bytes of header, then one bit a block, the lowest first. The bits of the group's own two page slots, and those
//! behind its last block, are clear.

use blk::{Buf, Error, Result};

use super::bits::Bits;
use super::{GroupSummary, SLOTS};
use crate::native::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, Geometry, STORE_ID_AT, get_u64, page_checksum, put_head, put_u64,
    seal_page,
};

const MAGIC: u64 = u64::from_le_bytes(*b"UnstnBmp");

const GROUP_AT: usize = 32;
const VERSION_AT: usize = 40;
const FREE_AT: usize = 48;
const FLAGS_AT: usize = 56;
const BITS_AT: usize = 64;

const FLAG_META: u64 = 1;

/// Most blocks of a group. The part of a page behind the header has one bit for each: (4096 - 64) x 8 = 32256 blocks,
/// 126 MiB.
pub(crate) const GROUP_BLOCKS_MAX: u64 = (BLOCK - BITS_AT as u64) * 8;

/// Returns the address of the page in a slot.
pub(super) fn address(geometry: &Geometry, group: u64, slot: u8) -> u64 {
    geometry.group_start(group) + u64::from(slot)
}

/// Encodes the page of `summary`, and returns the summary with the page's checksum.
pub(super) fn encode(
    geometry: &Geometry,
    group: u64,
    committed: &Bits,
    summary: GroupSummary,
) -> (Buf, GroupSummary) {
    let mut page = Buf::zeroed(BLOCK as usize);
    put_head(&mut page, MAGIC, geometry.store_id, address(geometry, group, summary.slot));
    put_u64(&mut page, GROUP_AT, group);
    put_u64(&mut page, VERSION_AT, summary.version);
    put_u64(&mut page, FREE_AT, u64::from(summary.free));
    put_u64(&mut page, FLAGS_AT, if summary.meta { FLAG_META } else { 0 });
    for (index, word) in committed.words().iter().enumerate() {
        put_u64(&mut page, BITS_AT + index * 8, *word);
    }
    let checksum = seal_page(&mut page);
    (page, GroupSummary { checksum, ..summary })
}

/// Decodes the committed blocks of a group. Returns `Damaged` when the page is not the one that `summary` describes.
pub(super) fn decode(
    file: &str,
    geometry: &Geometry,
    group: u64,
    page: &[u8],
    summary: GroupSummary,
) -> Result<Bits> {
    let addr = address(geometry, group, summary.slot);
    let place = format!("{file}: bitmap page of group {group} in block {addr}");
    let check = |field: &str, found: u64, expected: u64| {
        if found == expected {
            return Ok(());
        }
        let cause = format!("{field} is {found:#x}, expected {expected:#x}; run a check of the store");
        Err(Error::damaged(place.clone(), cause))
    };
    check("magic", get_u64(page, 0), MAGIC)?;
    check("checksum", get_u64(page, CHECKSUM_AT), page_checksum(page))?;
    check("store id", get_u64(page, STORE_ID_AT), geometry.store_id)?;
    check("own address", get_u64(page, ADDRESS_AT), addr)?;
    check("group", get_u64(page, GROUP_AT), group)?;
    check("version", get_u64(page, VERSION_AT), summary.version)?;
    check("checksum in the catalogue", summary.checksum, get_u64(page, CHECKSUM_AT))?;
    check("free count", get_u64(page, FREE_AT), u64::from(summary.free))?;
    check("flags", get_u64(page, FLAGS_AT), if summary.meta { FLAG_META } else { 0 })?;
    let (bits, stray) = decode_bits(geometry, page);
    check("count of bits outside of the usable blocks", stray, 0)?;
    let usable = geometry.group_blocks - SLOTS;
    check("count of blocks in use", bits.count() as u64, usable.saturating_sub(u64::from(summary.free)))?;
    Ok(bits)
}

/// A slot of a group, without the catalogue.
pub(super) enum FoundBitmap {
    /// Nothing was ever written there.
    Never,
    Damaged,
    Page {
        summary: GroupSummary,
        bits: Bits,
    },
}

/// Reads a slot of a group without the catalogue.
pub(super) fn find(geometry: &Geometry, group: u64, slot: u8, page: &[u8]) -> FoundBitmap {
    if page.iter().all(|byte| *byte == 0) {
        return FoundBitmap::Never;
    }
    let summary = GroupSummary {
        free: get_u64(page, FREE_AT) as u32,
        version: get_u64(page, VERSION_AT),
        slot,
        meta: get_u64(page, FLAGS_AT) == FLAG_META,
        checksum: get_u64(page, CHECKSUM_AT),
    };
    match decode("", geometry, group, page, summary) {
        Ok(bits) => FoundBitmap::Page { summary, bits },
        Err(_) => FoundBitmap::Damaged,
    }
}

/// Returns the bits of a group's blocks, and the number of set bits outside of them.
fn decode_bits(geometry: &Geometry, page: &[u8]) -> (Bits, u64) {
    let all: Vec<u64> = (BITS_AT..page.len()).step_by(8).map(|at| get_u64(page, at)).collect();
    let count = |word: &u64| u64::from(word.count_ones());
    let total: u64 = all.iter().map(count).sum();
    let mut bits = Bits::of_words(all);
    bits.keep(SLOTS as usize..geometry.group_blocks as usize);
    let stray = total - bits.count() as u64;
    (bits, stray)
}
