//! VMFSsparse, "COWD": the header, the grain directory and the grain tables of an ESXi delta, as bytes.
//!
//! Facts: reference/vmware-formats section 3; docs/formats/vmfssparse.md has the boxes. No I/O here. Every function that
//! reads bytes is told the length of the file, and compares with it first: a delta that was cut must never read as
//! "not here, ask the parent".

use std::collections::BTreeMap;

use blk::{Error, Result, SECTOR};

use crate::text::wrong;

const MAGIC: &[u8; 4] = b"COWD";
const VERSION: u32 = 1;
const FLAGS: u32 = 3;

pub const HEADER_SECTORS: u32 = 4;
pub const HEADER_BYTES: usize = HEADER_SECTORS as usize * SECTOR as usize;

/// Entries of a grain table, and its size: 4096 * 4 B = 16 KiB = 32 sectors.
pub const TABLE_ENTRIES: usize = 4096;
pub const TABLE_BYTES: usize = TABLE_ENTRIES * ENTRY_BYTES;
pub const TABLE_SECTORS: u32 = (TABLE_BYTES / SECTOR as usize) as u32;

pub const ENTRY_BYTES: usize = 4;
pub const ENTRIES_PER_SECTOR: usize = SECTOR as usize / ENTRY_BYTES;

/// Largest grain: 1 MiB.
pub const GRAIN_SECTORS_MAX: u32 = 2048;

/// Largest disk we make a delta for: 2,032 GiB. Sector pointers have 32 bits, so a delta must stay below 2^32 sectors. A full
/// one of 2,032 GiB has 4,261,412,864 sectors of data, 1,040,384 tables of 32 sectors, 8,128 sectors of directory and 4 of
/// header: 4,294,713,284 in all, 254,012 below the limit. One GiB more would be over.
pub const NEW_CAPACITY_SECTORS_MAX: u64 = 2032 << 21;

mod field {
    pub const VERSION: usize = 4;
    pub const FLAGS: usize = 8;
    pub const CAPACITY: usize = 12;
    pub const GRAIN: usize = 16;
    pub const DIRECTORY: usize = 20;
    pub const DIRECTORY_ENTRIES: usize = 24;
    pub const FREE: usize = 28;
    pub const UNCLEAN: usize = 1648;
}

/// A verified header. Keeps the bytes, so that legacy fields another program wrote survive a rewrite.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    bytes: Box<[u8; HEADER_BYTES]>,
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Header")
            .field("capacity_sectors", &self.capacity_sectors())
            .field("grain_sectors", &self.grain_sectors())
            .field("free_sector", &self.free_sector())
            .field("unclean", &self.is_unclean())
            .finish_non_exhaustive()
    }
}

impl Header {
    /// The header of an empty delta with 512-byte grains, marked unclean: it is about to be written.
    pub fn create(file: &str, capacity_sectors: u64) -> Result<Self> {
        if capacity_sectors == 0 || capacity_sectors > NEW_CAPACITY_SECTORS_MAX {
            let cause = format!("a VMFSsparse delta for a disk of {capacity_sectors} sectors was asked for");
            let cause = format!("{cause}, expected 1 to {NEW_CAPACITY_SECTORS_MAX} (2,032 GiB)");
            return Err(Error::unsupported(file, format!("{cause}: its sector pointers have 32 bits")));
        }
        let mut header = Self { bytes: Box::new([0; HEADER_BYTES]) };
        header.bytes[..4].copy_from_slice(MAGIC);
        header.set(field::VERSION, VERSION);
        header.set(field::FLAGS, FLAGS);
        // NEW_CAPACITY_SECTORS_MAX is below 2^32.
        header.set(field::CAPACITY, capacity_sectors as u32);
        header.set(field::GRAIN, 1);
        header.set(field::DIRECTORY, HEADER_SECTORS);
        header.set(field::DIRECTORY_ENTRIES, header.expected_directory_entries());
        header.set(field::FREE, header.first_data_sector());
        header.set_unclean(true);
        Ok(header)
    }

    /// `bytes` are the first bytes of the file, at most `HEADER_BYTES` are looked at; `file_bytes` is its whole length.
    pub fn decode(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(wrong(
                file,
                "the length",
                format!("{file_bytes} bytes"),
                "at least the 2048 of a header",
            ));
        };
        let header = Self { bytes: Box::new(*bytes) };
        if &header.bytes[..4] != MAGIC {
            let found = header.bytes[..4].escape_ascii().to_string();
            return Err(wrong(
                file,
                "the magic",
                format!("\"{found}\""),
                "\"COWD\": is this a VMFSsparse delta?",
            ));
        }
        for (name, at, expected) in [("version", field::VERSION, VERSION), ("flags", field::FLAGS, FLAGS)] {
            let found = header.get(at);
            if found != expected {
                let cause =
                    format!("{name} is {found}, expected {expected}, the only one that is documented");
                return Err(Error::unsupported(file, cause));
            }
        }
        header.check_geometry(file)?;
        header.check_length(file, file_bytes)?;
        Ok(header)
    }

    fn check_geometry(&self, file: &str) -> Result<()> {
        let (capacity, grain) = (self.capacity_sectors(), self.grain_sectors());
        if capacity == 0 {
            return Err(wrong(file, "numSectors", 0, "the size of the disk"));
        }
        if !grain.is_power_of_two() || grain > GRAIN_SECTORS_MAX {
            return Err(wrong(file, "grainSize", grain, "a power of two from 1 to 2048 sectors"));
        }
        if self.directory_sector() < HEADER_SECTORS {
            return Err(wrong(file, "gdOffset", self.directory_sector(), "at least 4, after the header"));
        }
        let (found, expected) = (self.get(field::DIRECTORY_ENTRIES), self.expected_directory_entries());
        if found != expected {
            return Err(wrong(file, "numGDEntries", found, &format!("{expected} for {capacity} sectors")));
        }
        if u64::from(self.directory_sector()) + u64::from(self.directory_sectors()) > u64::from(u32::MAX) {
            return Err(wrong(file, "gdOffset", self.directory_sector(), "a directory that ends below 2^32"));
        }
        Ok(())
    }

    fn check_length(&self, file: &str, file_bytes: u64) -> Result<()> {
        let metadata_bytes = u64::from(self.first_data_sector()) * SECTOR;
        if file_bytes < metadata_bytes {
            let expected = format!("at least {metadata_bytes} for its grain directory: the file was cut");
            return Err(wrong(file, "the length", format!("{file_bytes} bytes"), &expected));
        }
        let free = self.free_sector();
        // An unclean delta's free pointer is of no use, and is computed anew.
        if self.is_unclean() {
            return Ok(());
        }
        if free < self.first_data_sector() {
            let expected = format!("at least {}, after the grain directory", self.first_data_sector());
            return Err(wrong(file, "freeSector", free, &expected));
        }
        if u64::from(free) * SECTOR > file_bytes {
            let expected = format!("at most {}, the end of the file: the file was cut", file_bytes / SECTOR);
            return Err(wrong(file, "freeSector", free, &expected));
        }
        Ok(())
    }

    fn get(&self, at: usize) -> u32 {
        let mut word = [0; ENTRY_BYTES];
        word.copy_from_slice(&self.bytes[at..at + ENTRY_BYTES]);
        u32::from_le_bytes(word)
    }

    fn set(&mut self, at: usize, value: u32) {
        self.bytes[at..at + ENTRY_BYTES].copy_from_slice(&value.to_le_bytes());
    }

    pub fn capacity_sectors(&self) -> u32 {
        self.get(field::CAPACITY)
    }

    pub fn grain_sectors(&self) -> u32 {
        self.get(field::GRAIN)
    }

    #[cfg(test)]
    pub fn set_grain_sectors(&mut self, sectors: u32) {
        self.set(field::GRAIN, sectors);
        self.set(field::DIRECTORY_ENTRIES, self.expected_directory_entries());
    }

    pub fn directory_sector(&self) -> u32 {
        self.get(field::DIRECTORY)
    }

    pub fn directory_entries(&self) -> usize {
        self.get(field::DIRECTORY_ENTRIES) as usize
    }

    fn expected_directory_entries(&self) -> u32 {
        let region = u64::from(self.grain_sectors()) * TABLE_ENTRIES as u64;
        // At most 2^32 / 4096.
        u64::from(self.capacity_sectors()).div_ceil(region) as u32
    }

    pub fn directory_sectors(&self) -> u32 {
        self.get(field::DIRECTORY_ENTRIES).div_ceil(ENTRIES_PER_SECTOR as u32)
    }

    pub fn directory_bytes(&self) -> usize {
        self.directory_sectors() as usize * SECTOR as usize
    }

    /// Where tables and data may begin.
    pub fn first_data_sector(&self) -> u32 {
        self.directory_sector() + self.directory_sectors()
    }

    /// What one table covers: 2 MiB with 512-byte grains.
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.grain_sectors()) * TABLE_ENTRIES as u64 * SECTOR
    }

    /// Grains of the disk that lie in `region`.
    pub fn grains_in(&self, region: u32) -> usize {
        let grains = u64::from(self.capacity_sectors()).div_ceil(u64::from(self.grain_sectors()));
        let before = u64::from(region) * TABLE_ENTRIES as u64;
        grains.saturating_sub(before).min(TABLE_ENTRIES as u64) as usize
    }

    /// Next sector nobody uses; meaningless while unclean.
    pub fn free_sector(&self) -> u32 {
        self.get(field::FREE)
    }

    pub fn set_free_sector(&mut self, sector: u32) {
        self.set(field::FREE, sector);
    }

    pub fn is_unclean(&self) -> bool {
        self.get(field::UNCLEAN) != 0
    }

    pub fn set_unclean(&mut self, unclean: bool) {
        self.set(field::UNCLEAN, u32::from(unclean));
    }

    pub fn bytes(&self) -> &[u8; HEADER_BYTES] {
        &self.bytes
    }

    /// The sector with `freeSector`, and its place.
    pub fn free_sector_bytes(&self) -> (u64, &[u8]) {
        (0, &self.bytes[..SECTOR as usize])
    }

    /// The sector with `uncleanShutdown`, and its place.
    pub fn unclean_bytes(&self) -> (u64, &[u8]) {
        let at = field::UNCLEAN / SECTOR as usize * SECTOR as usize;
        (at as u64, &self.bytes[at..at + SECTOR as usize])
    }
}

/// Reads little-endian entries; `bytes` is a whole number of them.
pub fn decode_entries(bytes: &[u8]) -> Vec<u32> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    assert!(rest.is_empty(), "{} bytes are not whole entries", bytes.len());
    entries.iter().map(|entry| u32::from_le_bytes(*entry)).collect()
}

pub fn encode_entries(entries: &[u32], out: &mut [u8]) {
    assert_eq!(out.len(), entries.len() * ENTRY_BYTES, "room for the entries");
    for (bytes, entry) in out.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        bytes.copy_from_slice(&entry.to_le_bytes());
    }
}

/// A verified grain directory: where each region's table is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Sector of the table of each region; 0 is none.
    entries: Vec<u32>,
    /// Sector of each table -> its region.
    tables: BTreeMap<u32, u32>,
}

impl Directory {
    pub fn empty(header: &Header) -> Self {
        Self { entries: vec![0; header.directory_entries()], tables: BTreeMap::new() }
    }

    /// `bytes` are the `directory_bytes` of the header.
    pub fn decode(file: &str, header: &Header, bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let mut entries = decode_entries(bytes);
        entries.truncate(header.directory_entries());
        let mut tables = BTreeMap::new();
        for (region, sector) in entries.iter().enumerate().filter(|(_, sector)| **sector != 0) {
            let field = format!("grain directory entry {region}");
            check_inside(file, &field, header, *sector, TABLE_SECTORS, file_bytes)?;
            // At most 2^20 entries.
            if let Some(other) = tables.insert(*sector, region as u32) {
                return Err(wrong(
                    file,
                    &field,
                    sector,
                    &format!("another table than that of entry {other}"),
                ));
            }
        }
        let directory = Self { entries, tables };
        directory.check_overlaps(file)?;
        Ok(directory)
    }

    fn check_overlaps(&self, file: &str) -> Result<()> {
        for ((left, left_region), (right, right_region)) in self.tables.iter().zip(self.tables.iter().skip(1))
        {
            if right - left < TABLE_SECTORS {
                let field = format!("grain directory entry {right_region}");
                let expected = format!("outside the table of entry {left_region}, 32 sectors from {left}");
                return Err(wrong(file, &field, right, &expected));
            }
        }
        Ok(())
    }

    pub fn get(&self, region: u32) -> Option<u32> {
        self.entries.get(region as usize).copied().filter(|sector| *sector != 0)
    }

    pub fn set(&mut self, region: u32, sector: u32) {
        self.clear(region);
        self.entries[region as usize] = sector;
        self.tables.insert(sector, region);
    }

    pub fn clear(&mut self, region: u32) {
        let old = std::mem::take(&mut self.entries[region as usize]);
        self.tables.remove(&old);
    }

    pub fn regions(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn tables(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, sector)| **sector != 0)
            .map(|(region, sector)| (region as u32, *sector))
    }

    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// First sector past every table.
    pub fn end_of_tables(&self) -> u32 {
        self.tables.keys().next_back().map_or(0, |sector| sector + TABLE_SECTORS)
    }

    /// The region whose table shares a sector with `sectors`.
    pub fn table_in(&self, start: u32, end: u32) -> Option<u32> {
        let (sector, region) = self.tables.range(..end).next_back()?;
        (u64::from(*sector) + u64::from(TABLE_SECTORS) > u64::from(start)).then_some(*region)
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

/// A maximal stretch of a table whose grains follow each other in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRun {
    /// First entry.
    pub entry: usize,
    pub entries: usize,
    /// Sector of the first grain; 0 when the grains are not here.
    pub sector: u32,
}

/// Splits the entries of `range` of a table into runs, in order.
pub fn table_runs(
    entries: &[u32],
    range: std::ops::Range<usize>,
    grain_sectors: u32,
) -> impl Iterator<Item = TableRun> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (entry, sector) = (at, entries[at]);
        let step = if sector == 0 { 0 } else { u64::from(grain_sectors) };
        let mut next = u64::from(sector);
        while at < range.end && u64::from(entries[at]) == next {
            at += 1;
            next += step;
        }
        Some(TableRun { entry, entries: at - entry, sector })
    })
}

/// What the entries of a table are compared with.
pub struct TableBounds<'a> {
    pub file: &'a str,
    pub header: &'a Header,
    pub directory: &'a Directory,
    pub file_bytes: u64,
    /// When set, entries must lie below: the allocator would hand the space out again.
    pub free_sector: Option<u32>,
}

impl TableBounds<'_> {
    /// Verifies the table of `region` and answers how many grains it holds.
    pub fn check(&self, region: u32, entries: &[u32]) -> Result<usize> {
        let grains = self.header.grains_in(region);
        if let Some(past) = entries[grains..].iter().position(|entry| *entry != 0) {
            let (entry, value) = (grains + past, entries[grains + past]);
            return Err(wrong(
                self.file,
                &self.name(region, entry),
                value,
                "0, as it lies past the end of the disk",
            ));
        }
        let grain = self.header.grain_sectors();
        let mut runs: Vec<TableRun> =
            table_runs(entries, 0..grains, grain).filter(|run| run.sector != 0).collect();
        for run in &runs {
            self.check_run(region, run)?;
        }
        runs.sort_unstable_by_key(|run| run.sector);
        for (left, right) in runs.iter().zip(runs.iter().skip(1)) {
            if u64::from(left.sector) + left.entries as u64 * u64::from(grain) > u64::from(right.sector) {
                let expected = format!("another grain than that of entry {}", left.entry);
                return Err(wrong(self.file, &self.name(region, right.entry), right.sector, &expected));
            }
        }
        Ok(runs.iter().map(|run| run.entries).sum())
    }

    fn check_run(&self, region: u32, run: &TableRun) -> Result<()> {
        let field = self.name(region, run.entry);
        // A run has at most 4096 entries of 2048 sectors.
        let sectors = run.entries as u32 * self.header.grain_sectors();
        check_inside(self.file, &field, self.header, run.sector, sectors, self.file_bytes)?;
        let end = run.sector.saturating_add(sectors);
        if let Some(other) = self.directory.table_in(run.sector, end) {
            let expected = format!("outside the table of region {other}");
            return Err(wrong(self.file, &field, run.sector, &expected));
        }
        if self.free_sector.is_some_and(|free| end > free) {
            let free = self.free_sector.unwrap_or_default();
            let expected =
                format!("below freeSector {free}: another program has written this file without keeping it");
            return Err(wrong(self.file, &field, run.sector, &expected));
        }
        Ok(())
    }

    fn name(&self, region: u32, entry: usize) -> String {
        format!("entry {entry} of grain table {region}")
    }
}

#[cfg(test)]
#[path = "cowd_tests.rs"]
mod tests;
