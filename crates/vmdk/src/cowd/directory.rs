//! The grain directory in its encoded form: the sector of each region's table.

use std::collections::BTreeMap;

use blk::Result;

use super::{Header, TABLE_SECTORS, check_inside, decode_entries};
use crate::text::wrong;

/// A verified grain directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Sector of each region's table; 0 means none.
    entries: Vec<u32>,
    /// Region of each table, by the table's sector.
    tables: BTreeMap<u32, u32>,
}

impl Directory {
    /// Returns the directory of a delta without tables.
    pub fn empty(regions: u32) -> Self {
        Self { entries: vec![0; regions as usize], tables: BTreeMap::new() }
    }

    /// Decodes and verifies the directory. `bytes` are the `directory_bytes` of the header.
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

    pub(crate) fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// Returns the first sector after all tables.
    pub fn end_of_tables(&self) -> u32 {
        self.tables.keys().next_back().map_or(0, |sector| sector + TABLE_SECTORS)
    }

    /// Returns the region whose table overlaps the sectors from `start` to `end`.
    pub fn table_in(&self, start: u32, end: u32) -> Option<u32> {
        let (sector, region) = self.tables.range(..end).next_back()?;
        (u64::from(*sector) + u64::from(TABLE_SECTORS) > u64::from(start)).then_some(*region)
    }
}
