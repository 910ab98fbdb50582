//! The grain directory of a streamOptimized disk, read in pieces, and its verification.

use std::ops::Range;

use blk::{Result, SECTOR};

use crate::cowd::decode_entries;
use crate::kdmv::{HEADER_BYTES, Header};
use crate::text::wrong;

/// A verified directory: the first sector of each region's table; 0 if there is none. It takes 8 bytes for each region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory {
    tables: Vec<u32>,
    /// The same sectors in order, without the zeros.
    sorted: Vec<u32>,
    table_sectors: u64,
}

impl Directory {
    pub(crate) fn new(header: &Header) -> Directory {
        let table_sectors = header.table_bytes().div_ceil(SECTOR);
        Directory { tables: Vec::new(), sorted: Vec::new(), table_sectors }
    }

    /// Adds the next entries. `bytes` are a multiple of an entry.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.tables.extend(decode_entries(bytes));
    }

    /// Verifies the directory, whose entries are complete: each table is in the file, and none is in the place of another one
    /// or of other metadata.
    pub(crate) fn finish(mut self, file: &str, header: &Header, file_bytes: u64) -> Result<Directory> {
        // At most 2^22, as the header was verified.
        self.tables.truncate(header.regions() as usize);
        for (region, sector) in self.tables.iter().enumerate().filter(|(_, sector)| **sector != 0) {
            let places = self.table_sectors;
            if (u64::from(*sector) + places) * SECTOR > file_bytes {
                let expected = format!("{places} sectors below {}, the end of the file", file_bytes / SECTOR);
                return Err(wrong(file, &entry_name(region), sector, &expected));
            }
            let own = u64::from(*sector)..u64::from(*sector) + places;
            if let Some((what, used)) = metadata(header).find(|(_, used)| overlap(used, &own)) {
                let expected = format!(
                    "sectors outside of {what}, which has sectors {} to {}",
                    used.start,
                    used.end - 1
                );
                return Err(wrong(file, &entry_name(region), sector, &expected));
            }
        }
        self.sorted = self.tables.iter().copied().filter(|sector| *sector != 0).collect();
        self.sorted.sort_unstable();
        self.check_apart(file)?;
        Ok(self)
    }

    fn check_apart(&self, file: &str) -> Result<()> {
        let overlaps = |pair: &&[u32]| u64::from(pair[0]) + self.table_sectors > u64::from(pair[1]);
        let Some([first, second]) = self.sorted.windows(2).find(overlaps) else { return Ok(()) };
        let region = |sector| self.tables.iter().position(|own| own == sector);
        let other = region(first).unwrap_or_default();
        // Both may name one sector, and the later one is wrong then.
        let own = self.tables.iter().rposition(|own| own == second).unwrap_or_default();
        let expected = format!("{} sectors apart from those of entry {other}", self.table_sectors);
        Err(wrong(file, &entry_name(own), second, &expected))
    }

    /// Compares the copy of a directory: both must have a table for the same regions.
    pub(crate) fn check_copy(&self, file: &str, copy: &Directory) -> Result<()> {
        let differs =
            self.tables.iter().zip(&copy.tables).position(|(own, other)| (*own == 0) != (*other == 0));
        let Some(region) = differs else { return Ok(()) };
        let expected = "a table in both, or in none: the file is damaged; copy, download or export it again";
        Err(wrong(file, &entry_name(region), "0 in one of the two directories", expected))
    }

    /// Returns the first byte of a region's table.
    pub(crate) fn table_at(&self, region: u32) -> Option<u64> {
        let sector = self.tables.get(region as usize).copied().filter(|sector| *sector != 0)?;
        Some(u64::from(sector) * SECTOR)
    }

    /// Returns the first sector of the table that holds `sector`.
    pub(crate) fn table_holding(&self, sector: u64) -> Option<u32> {
        let after = self.sorted.partition_point(|start| u64::from(*start) <= sector);
        let start = *self.sorted.get(after.checked_sub(1)?)?;
        (sector - u64::from(start) < self.table_sectors).then_some(start)
    }

    /// Returns the regions with a table, in order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().enumerate().filter(|(_, sector)| **sector != 0).map(|(region, _)| region as u32)
    }
}

/// Returns the sectors of the metadata that the header names.
pub(crate) fn metadata(header: &Header) -> impl Iterator<Item = (&'static str, Range<u64>)> + use<> {
    let sectors = header.directory_sectors();
    // Verified: the sums are below the end of the file.
    let parts = [
        Some(("the header", 0..HEADER_BYTES as u64 / SECTOR)),
        header.descriptor.map(|(start, sectors)| ("the descriptor", start..start + sectors)),
        Some(("the grain directory", header.directory..header.directory + sectors)),
        header.redundant.map(|start| ("the copy of the grain directory", start..start + sectors)),
    ];
    parts.into_iter().flatten()
}

fn overlap(left: &Range<u64>, right: &Range<u64>) -> bool {
    left.start < right.end && right.start < left.end
}

fn entry_name(region: usize) -> String {
    format!("grain directory entry {region}")
}
