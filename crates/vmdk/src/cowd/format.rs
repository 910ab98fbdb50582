//! VMFSsparse as a format of deltas that are written: positions are sectors, tables are among the data, and there are no
//! records that only other programs read.

use blk::{Buf, Error, File, Local, Result, SECTOR};

use super::{
    Directory, ENTRY_BYTES, HEADER_BYTES, Header, TABLE_SECTORS, TableBounds, decode_entries, encode_entries,
};
use crate::delta::{Bounds, Format, LogName};
use crate::read::read_tables;

/// An empty delta's length is rounded up to a multiple of this.
const EMPTY_ALIGN: u64 = 4096;

impl Format for Header {
    const ENTRY_BYTES: usize = ENTRY_BYTES;
    const CAPACITY_FIELD: &'static str = "numSectors";
    type Maps = ();

    fn create(file: &str, capacity_sectors: u64, grain_sectors: u32) -> Result<Self> {
        Header::create(file, capacity_sectors, grain_sectors)
    }

    fn first_bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes().to_vec();
        bytes.resize(self.empty_bytes() as usize, 0);
        bytes
    }

    fn empty_bytes(&self) -> u64 {
        (u64::from(self.first_data_sector()) * SECTOR).next_multiple_of(EMPTY_ALIGN)
    }

    fn read(file: &File, file_bytes: u64) -> Local<'_, Result<(Self, Directory)>> {
        Box::pin(async move {
            let bytes = read_tables(file, 0, file_bytes.min(HEADER_BYTES as u64) as usize).await?;
            let header = Header::decode(file.name(), &bytes, file_bytes)?;
            let offset = u64::from(header.directory_sector()) * SECTOR;
            // Bounded by 2^20 entries; the header's check compared it with the file.
            let bytes = read_tables(file, offset, header.directory_bytes()).await?;
            let directory = Directory::decode(file.name(), &header, &bytes, file_bytes)?;
            Ok((header, directory))
        })
    }

    fn capacity_sectors(&self) -> u64 {
        Header::capacity_sectors(self).into()
    }

    fn grain_sectors(&self) -> u64 {
        Header::grain_sectors(self).into()
    }

    fn step(&self) -> u32 {
        Header::grain_sectors(self)
    }

    fn table_offset(&self, position: u32) -> u64 {
        u64::from(position) * SECTOR
    }

    fn directory_offset(&self) -> u64 {
        u64::from(self.directory_sector()) * SECTOR
    }

    fn sector_of(&self, position: u32) -> u64 {
        position.into()
    }

    fn position_of(&self, sector: u64) -> u32 {
        u32::try_from(sector).expect("nothing is placed at or past 2^32")
    }

    fn decode(&self, _file: &str, _region: u32, bytes: &[u8]) -> Result<Vec<u32>> {
        Ok(decode_entries(bytes))
    }

    fn encode(entries: &[u32], out: &mut [u8]) {
        encode_entries(entries, out);
    }

    fn encode_directory(positions: &[u32], out: &mut [u8]) {
        encode_entries(positions, out);
    }

    fn check(&self, bounds: &Bounds<'_>, region: u32, entries: &[u32]) -> Result<usize> {
        let free_sector = bounds.free_sector.map(|sector| self.position_of(sector));
        let Bounds { file, directory, file_bytes, .. } = *bounds;
        TableBounds { file, header: self, directory, file_bytes, free_sector }.check(region, entries)
    }

    fn first_free_sector(&self, directory: &Directory) -> u64 {
        self.first_data_sector().max(directory.end_of_tables()).into()
    }

    fn limit_sector(&self) -> u64 {
        u32::MAX.into()
    }

    fn limit_error(&self, file: &str) -> Error {
        let cause = "the delta has reached 2 TiB, the most its 32-bit sector pointers can name";
        Error::refused(file, format!("{cause}; commit the snapshot to go on"))
    }

    fn grains_below(&self, directory: &Directory, free_sector: u64) -> u64 {
        let tables = directory.table_count() as u64 * u64::from(TABLE_SECTORS);
        let data = free_sector.saturating_sub(u64::from(self.first_data_sector()) + tables);
        data / u64::from(Header::grain_sectors(self))
    }

    fn used_bytes(&self, _directory: &Directory, free_sector: u64) -> u64 {
        free_sector * SECTOR
    }

    fn table_end(&self, position: u32) -> u64 {
        u64::from(position) + u64::from(TABLE_SECTORS)
    }

    fn is_unclean(&self) -> bool {
        Header::is_unclean(self)
    }

    fn log(&self) -> LogName {
        (self.log_id(), self.log_boot())
    }

    fn set_mark(&mut self, unclean: Option<LogName>) {
        match unclean {
            Some(log) => self.set_unclean(log),
            None => self.set_clean(),
        }
    }

    fn mark_write(&self, unclean: Option<LogName>) -> (u64, Buf) {
        let mut header = self.clone();
        header.set_mark(unclean);
        let (offset, bytes) = header.unclean_bytes();
        (offset, Buf::copy_of(bytes))
    }

    fn free_sector(&self) -> u64 {
        Header::free_sector(self).into()
    }

    fn set_free_sector(&mut self, sector: u64) {
        Header::set_free_sector(self, self.position_of(sector));
    }

    fn free_write(&self) -> Option<(u64, Buf)> {
        let (offset, bytes) = self.free_sector_bytes();
        Some((offset, Buf::copy_of(bytes)))
    }
}
