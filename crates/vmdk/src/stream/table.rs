//! Grain tables of a streamOptimized disk, and their verification.

use blk::{Result, SECTOR};

use super::directory::{Directory, metadata};
use crate::cowd::decode_entries;
use crate::grain_table::{Place, Table};
use crate::kdmv::{ENTRY_BYTES, Header};
use crate::text::wrong;

/// Entry of a grain of zeros, if the header says that there are such.
const ZERO_GRAIN: u32 = 1;

/// The limits against which the entries of a table are verified.
pub(crate) struct TableBounds<'a> {
    pub file: &'a str,
    pub header: &'a Header,
    pub directory: &'a Directory,
    /// The other directory, if there is one, with tables of its own.
    pub redundant: Option<&'a Directory>,
    pub file_bytes: u64,
}

impl TableBounds<'_> {
    /// Verifies and decodes the table of `region`. A `Place::Data` is the sector of the grain's marker. Entries past the end of
    /// the disk are ignored.
    pub(crate) fn decode(&self, region: u32, bytes: &[u8]) -> Result<Table> {
        let grains = self.header.grains_in(region);
        let entries = decode_entries(bytes).into_iter().take(grains).enumerate();
        let table = Table::collect(entries.map(|(entry, sector)| self.place(region, entry, sector)))?;
        match table.doubled() {
            None => Ok(table),
            Some((same, entry, sector)) => {
                let expected = format!("another than that of entry {same}");
                Err(wrong(self.file, &entry_name(region, entry), format!("sector {sector}"), &expected))
            }
        }
    }

    /// Compares a table with its copy.
    pub(crate) fn check_copy(&self, region: u32, table: &[u8], copy: &[u8]) -> Result<()> {
        let Some(byte) = (0..table.len()).find(|byte| table[*byte] != copy[*byte]) else { return Ok(()) };
        let field = entry_name(region, byte / ENTRY_BYTES as usize);
        let expected = "the same value: the file is damaged; copy, download or export it again";
        Err(wrong(self.file, &field, "different in the table and in its copy", expected))
    }

    fn place(&self, region: u32, entry: usize, sector: u32) -> Result<Place> {
        if sector == 0 {
            return Ok(Place::Parent);
        }
        if sector == ZERO_GRAIN && self.header.has_zero_grains {
            return Ok(Place::Zero);
        }
        let sector = u64::from(sector);
        let wrong = |expected: &str| Err(wrong(self.file, &entry_name(region, entry), sector, expected));
        if sector < self.header.overhead_sectors {
            return wrong(&format!("0 or at least {}, after the metadata", self.header.overhead_sectors));
        }
        // A grain has a sector at least.
        if (sector + 1) * SECTOR > self.file_bytes {
            let end = self.file_bytes / SECTOR;
            return wrong(&format!("a sector below {end}, the end of the file: was it cut?"));
        }
        if let Some(what) = self.metadata_at(sector) {
            return wrong(&format!("a sector of grains, and not of {what}"));
        }
        Ok(Place::Data(sector))
    }

    fn metadata_at(&self, sector: u64) -> Option<&'static str> {
        let named = metadata(self.header).find(|(_, used)| used.contains(&sector));
        let directories = [Some(self.directory), self.redundant];
        let in_table = || directories.into_iter().flatten().any(|own| own.table_holding(sector).is_some());
        named.map(|(what, _)| what).or_else(|| in_table().then_some("a grain table"))
    }
}

fn entry_name(region: u32, entry: usize) -> String {
    format!("entry {entry} of grain table {region}")
}
