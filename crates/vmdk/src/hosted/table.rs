//! Grain directory and grain tables of a hosted sparse extent, and their verification.
//!
//! Facts: reference/vmware-formats 2.3.

use blk::{Result, SECTOR};

use crate::cowd::decode_entries;
use crate::grain_table::{Place, Table};
use crate::kdmv::Header;
use crate::text::wrong;

/// Entry of a grain of zeros, if the header says that there are such.
const ZERO_GRAIN: u32 = 1;

/// A verified directory: the first sector of each region's table; 0 if there is none. It takes 4 bytes for each region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory(Vec<u32>);

impl Directory {
    /// Verifies a directory. `bytes` may be longer.
    pub(crate) fn decode(file: &str, header: &Header, bytes: &[u8], file_bytes: u64) -> Result<Directory> {
        let mut sectors = decode_entries(bytes);
        // Below 2^32, as the capacity is.
        sectors.truncate(header.regions() as usize);
        let table_sectors = header.table_bytes().div_ceil(SECTOR);
        for (region, sector) in sectors.iter().enumerate().filter(|(_, sector)| **sector != 0) {
            let field = format!("grain directory entry {region}");
            if (u64::from(*sector) + table_sectors) * SECTOR > file_bytes {
                let expected =
                    format!("{table_sectors} sectors below {}, the end of the file", file_bytes / SECTOR);
                return Err(wrong(file, &field, sector, &expected));
            }
        }
        let directory = Directory(sectors);
        let mut starts: Vec<(u32, u32)> =
            directory.regions().map(|region| (directory.0[region as usize], region)).collect();
        starts.sort_unstable();
        if let Some([(sector, first), (_, second)]) = starts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let field = format!("grain directory entry {second}");
            return Err(wrong(file, &field, sector, &format!("another sector than that of entry {first}")));
        }
        Ok(directory)
    }

    /// Compares the copy of a directory: both must have a table for the same regions. Without one, a region would read as its
    /// parent, or as zeros.
    pub(crate) fn check_copy(&self, file: &str, copy: &Directory) -> Result<()> {
        let differs = self.0.iter().zip(&copy.0).position(|(own, other)| (*own == 0) != (*other == 0));
        let Some(region) = differs else { return Ok(()) };
        let field = format!("grain directory entry {region}");
        let expected = "a table in both, or in none: the file is damaged; take it from a backup";
        Err(wrong(file, &field, "0 in one of the two directories", expected))
    }

    /// Returns the first byte of a region's table.
    pub(crate) fn table_at(&self, region: u32) -> Option<u64> {
        let sector = self.0.get(region as usize).copied().filter(|sector| *sector != 0)?;
        Some(u64::from(sector) * SECTOR)
    }

    /// Returns the regions with a table, in order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().filter(|(_, sector)| **sector != 0).map(|(region, _)| region as u32)
    }
}

/// The limits against which the entries of a table are verified.
pub(crate) struct TableBounds<'a> {
    pub file: &'a str,
    pub header: &'a Header,
    pub file_bytes: u64,
}

impl TableBounds<'_> {
    /// Verifies and decodes the table of `region`. Entries past the end of the disk are ignored.
    pub(crate) fn decode(&self, region: u32, bytes: &[u8]) -> Result<Table> {
        let grains = self.header.grains_in(region);
        let entries = decode_entries(bytes).into_iter().take(grains).enumerate();
        let table = Table::collect(entries.map(|(entry, sector)| self.place(region, entry, sector)))?;
        match table.doubled() {
            None => Ok(table),
            Some((same, entry, grain)) => {
                let expected = format!("another than that of entry {same}");
                let sector = grain * self.header.grain_sectors;
                Err(wrong(self.file, &entry_name(region, entry), format!("sector {sector}"), &expected))
            }
        }
    }

    fn place(&self, region: u32, entry: usize, sector: u32) -> Result<Place> {
        if sector == 0 {
            return Ok(Place::Parent);
        }
        if sector == ZERO_GRAIN && self.header.has_zero_grains {
            return Ok(Place::Zero);
        }
        let (sector, grain) = (u64::from(sector), self.header.grain_sectors);
        let field = || entry_name(region, entry);
        if sector < self.header.overhead_sectors {
            let expected = format!("0 or at least {}, after the metadata", self.header.overhead_sectors);
            return Err(wrong(self.file, &field(), sector, &expected));
        }
        if !sector.is_multiple_of(grain) {
            return Err(wrong(self.file, &field(), sector, &format!("a multiple of the grain, {grain}")));
        }
        let end = sector + self.grain_needs(region, entry);
        if end * SECTOR > self.file_bytes {
            let expected = format!(
                "a grain that ends at sector {} or before, the end of the file: was it cut?",
                self.file_bytes / SECTOR
            );
            return Err(wrong(
                self.file,
                &field(),
                format!("sector {sector}, which ends at {end}"),
                &expected,
            ));
        }
        Ok(Place::Data(sector / grain))
    }

    /// Returns the sectors of a grain that are of the disk: all but for the last one.
    fn grain_needs(&self, region: u32, entry: usize) -> u64 {
        let grain = u64::from(region) * self.header.table_entries + entry as u64;
        let left = self.header.capacity_sectors - grain * self.header.grain_sectors;
        left.min(self.header.grain_sectors)
    }
}

pub(super) fn entry_name(region: u32, entry: usize) -> String {
    format!("entry {entry} of grain table {region}")
}
