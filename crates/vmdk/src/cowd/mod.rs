//! The encoding of VMFSsparse ("COWD"): header, grain directory and grain tables of an ESXi delta, without I/O.
//! `delta` has the open delta: which entries are written, with which values, and when.
//!
//! Facts: reference/vmware-formats section 3; docs/formats/vmfssparse.md has diagrams. Every function that decodes
//! bytes first compares them with the length of the file: a truncated delta must never appear as "not here, read the
//! parent".

mod directory;
mod format;
mod header;
mod table;

use blk::{Result, SECTOR};

use crate::text::wrong;

pub(crate) use directory::Directory;
pub use header::Header;
pub(crate) use table::{TableBounds, TableRun, table_runs};

pub(crate) const HEADER_SECTORS: u32 = 4;
/// Length of the header at the start of the file: 4 sectors.
pub const HEADER_BYTES: usize = HEADER_SECTORS as usize * SECTOR as usize;

/// Entries of a grain table, and its size: 4096 * 4 B = 16 KiB = 32 sectors.
pub const TABLE_ENTRIES: usize = 4096;
pub(crate) const TABLE_BYTES: usize = TABLE_ENTRIES * ENTRY_BYTES;
pub(crate) const TABLE_SECTORS: u32 = (TABLE_BYTES / SECTOR as usize) as u32;

/// Length of an entry of the directory or of a table: a sector number, little-endian.
pub const ENTRY_BYTES: usize = 4;
pub(crate) const ENTRIES_PER_SECTOR: usize = SECTOR as usize / ENTRY_BYTES;

/// Largest grain: 1 MiB.
pub const GRAIN_SECTORS_MAX: u32 = 2048;

/// Largest disk for which a delta is created: 2,032 GiB. Sector pointers have 32 bits, so a delta must stay below 2^32
/// sectors. A full one of 2,032 GiB has 4,261,412,864 sectors of data, 1,040,384 tables of 32 sectors, 8,128 sectors of
/// directory and 4 of header: 4,294,713,284 in total, 254,012 below the limit. One GiB more would exceed it.
pub const NEW_CAPACITY_SECTORS_MAX: u64 = 2032 << 21;

/// Decodes little-endian entries. `bytes` must be a whole number of them.
pub fn decode_entries(bytes: &[u8]) -> Vec<u32> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    assert!(rest.is_empty(), "{} bytes are not whole entries", bytes.len());
    entries.iter().map(|entry| u32::from_le_bytes(*entry)).collect()
}

pub(crate) fn encode_entries(entries: &[u32], out: &mut [u8]) {
    assert_eq!(out.len(), entries.len() * ENTRY_BYTES, "room for the entries");
    for (bytes, entry) in out.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        bytes.copy_from_slice(&entry.to_le_bytes());
    }
}

fn check_inside(
    file: &str,
    field: &str,
    header: &Header,
    sector: u32,
    sectors: u32,
    file_bytes: u64,
) -> Result<()> {
    if sector < header.first_data_sector() {
        let expected = format!("0 or at least {}, after the metadata", header.first_data_sector());
        return Err(wrong(file, field, sector, &expected));
    }
    if (u64::from(sector) + u64::from(sectors)) * SECTOR > file_bytes {
        let expected =
            format!("{sectors} sectors below {}, the end of the file: the file was cut", file_bytes / SECTOR);
        return Err(wrong(file, field, sector, &expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
