//! What differs between the formats of deltas that are written: positions, encodings, the header's marks, and records
//! for other programs.

use blk::layer::TableWrite;
use blk::{Buf, Error, File, Local, Result};

use super::entry::Entry;
use crate::cowd::Directory;

/// Entries of a grain table, in every format.
pub const TABLE_ENTRIES: usize = crate::cowd::TABLE_ENTRIES;

/// A log in the host's memory: its number, and `Memory::boot` of the process that keeps it.
pub type LogName = (u64, u64);

/// The limits against which the entries of a table are verified.
pub struct Bounds<'a> {
    /// Name of the file, for messages.
    pub file: &'a str,
    /// Where the tables are.
    pub directory: &'a Directory,
    /// Length of the file.
    pub file_bytes: u64,
    /// If set, data must end at or below this sector: the allocator would reuse the space beyond.
    pub free_sector: Option<u64>,
}

/// Space of a file outside of its data that first writes need: a flush must not find the datastore full.
#[derive(Debug, Default)]
pub struct Reservation {
    /// Offsets and lengths in bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Positions of the new tables that are among them.
    pub tables: Vec<u32>,
    /// End of the data for which the records are among them, in sectors.
    pub end_sector: u64,
}

/// The header of a delta, with everything that the format keeps outside of its tables and its directory.
///
/// A table and a grain have a *position* of 32 bits: a sector of the file in VMFSsparse; in SEsparse the number of a
/// table or of a grain, plus one. 0 means none. `step` is the distance of the positions of neighbouring grains.
pub trait Format: Sized + 'static {
    /// Length of an entry of a table and of the directory.
    const ENTRY_BYTES: usize;
    /// Field of the header with the size of the disk, for messages.
    const CAPACITY_FIELD: &'static str;
    /// What a layer keeps in memory of the records that only other programs read.
    type Maps: Default + 'static;

    /// Returns the header of an empty delta, marked "unclean".
    ///
    /// # Errors
    /// `Unsupported` and `Invalid` for a size that the format cannot describe.
    fn create(file: &str, capacity_sectors: u64, grain_sectors: u32) -> Result<Self>;
    /// Returns the first bytes of an empty delta. The rest up to `empty_bytes` is zeros.
    fn first_bytes(&self) -> Vec<u8>;
    /// Returns the length of an empty delta.
    fn empty_bytes(&self) -> u64;
    /// Reads and verifies the header and the directory of a delta with the length `file_bytes`.
    fn read(file: &File, file_bytes: u64) -> Local<'_, Result<(Self, Directory)>>;

    /// Returns the size of the disk.
    fn capacity_sectors(&self) -> u64;
    /// Returns the unit of allocation.
    fn grain_sectors(&self) -> u64;
    /// Returns the number of tables that cover the disk.
    fn regions(&self) -> u32 {
        let table_sectors = self.grain_sectors() * TABLE_ENTRIES as u64;
        // At most 2^22: see `Core::regions`.
        self.capacity_sectors().div_ceil(table_sectors) as u32
    }
    /// Returns the distance of the positions of neighbouring grains.
    fn step(&self) -> u32;
    /// Returns the byte of the file at which a table begins.
    fn table_offset(&self, position: u32) -> u64;
    /// Returns the byte of the file at which the directory begins.
    fn directory_offset(&self) -> u64;
    /// Returns the first sector of a grain. Saturates for a position that is none.
    fn sector_of(&self, position: u32) -> u64;
    /// Returns the position of the grain at a sector.
    fn position_of(&self, sector: u64) -> u32;

    /// Decodes a table. `Damaged` for a value that the format does not have.
    fn decode(&self, file: &str, region: u32, bytes: &[u8]) -> Result<Vec<u32>>;
    /// Encodes entries of a table.
    fn encode(entries: &[u32], out: &mut [u8]);
    /// Encodes entries of the directory: positions of tables.
    fn encode_directory(positions: &[u32], out: &mut [u8]);
    /// Verifies the entries of a table. Returns the number of its grains in the file.
    fn check(&self, bounds: &Bounds<'_>, region: u32, entries: &[u32]) -> Result<usize>;

    /// Returns the first sector that may be allocated in a delta with these tables and no data.
    fn first_free_sector(&self, directory: &Directory) -> u64;
    /// Returns the end of the space that positions can name.
    fn limit_sector(&self) -> u64;
    /// Returns the error of a write that needs space past the limit.
    fn limit_error(&self, file: &str) -> Error;
    /// Returns an upper bound of the grains in use below `free_sector`.
    fn grains_below(&self, directory: &Directory, free_sector: u64) -> u64;
    /// Returns the bytes of the file in use: data and tables.
    fn used_bytes(&self, directory: &Directory, free_sector: u64) -> u64;
    /// Returns the first sector after a table that is in the space of the data; 0 if tables have their own space.
    fn table_end(&self, position: u32) -> u64;
    /// Reserves the space of a region's table. None if tables are in the space of the data.
    ///
    /// # Errors
    /// `NoSpace` if a flush must end first.
    fn take_table(&mut self, _file: &str, _region: u32) -> Result<Option<u32>> {
        Ok(None)
    }
    /// Returns the space of a table to which nothing has pointed.
    fn give_table(&mut self, _position: u32) {}
    /// Returns the space outside of the data that first writes up to `end_sector` need and that is not reserved yet; None if
    /// there is none.
    fn to_reserve(&self, _end_sector: u64) -> Option<Reservation> {
        None
    }
    /// Notes that this space is reserved.
    fn note_reserved(&mut self, _reserved: &Reservation) {}
    /// Takes the space of a table that a log names. `Damaged` if it cannot be that of the region.
    fn claim_table(&mut self, _file: &str, _region: u32, _position: u32) -> Result<()> {
        Ok(())
    }
    /// Notes that the pointer to a table was removed. The next flush that settles makes that durable.
    fn release_table(&mut self, _position: u32) {}

    /// Returns whether the tables may be behind acknowledged writes, or the free pointer is invalid.
    fn is_unclean(&self) -> bool;
    /// Returns the log of the process that marked the delta.
    fn log(&self) -> LogName;
    /// Sets the mark in memory. None: clean.
    fn set_mark(&mut self, unclean: Option<LogName>);
    /// Returns the write that makes a mark durable. None: clean.
    fn mark_write(&self, unclean: Option<LogName>) -> (u64, Buf);
    /// Returns the free pointer of a clean delta.
    fn free_sector(&self) -> u64;
    /// Sets the free pointer in memory.
    fn set_free_sector(&mut self, sector: u64);
    /// Returns the write of the free pointer; None if it is written with the mark.
    fn free_write(&self) -> Option<(u64, Buf)>;

    /// Notes the space of grains that were taken, in entries of a region's table.
    fn note_grains(&mut self, _entry: &Entry) {}
    /// Records the grains of a log in the file, durably, before the tables name them.
    fn record(&self, _file: &File, _entries: &[Entry]) -> Local<'static, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Returns the writes that have to be durable before the tables that a flush captures.
    fn records_to_write(&mut self) -> Vec<TableWrite> {
        Vec::new()
    }
    /// Notes that these writes are durable, and so are the removed pointers.
    fn settle_records(&mut self) {}
    /// Returns the memory of the records that are not durable.
    fn unwritten_bytes(&self) -> u64 {
        0
    }
    /// Returns whether the records name more grains than the tables.
    fn has_leaks(&self) -> bool {
        false
    }
    /// Notes that grains were taken in vain.
    fn note_leak(&mut self) {}
    /// Reads the records below `free_sector`. `rebuild` compares them with the tables first, and corrects them.
    fn prepare(
        &self,
        _file: &File,
        _directory: &Directory,
        _free_sector: u64,
        _rebuild: bool,
    ) -> Local<'static, Result<Self::Maps>> {
        Box::pin(std::future::ready(Ok(Self::Maps::default())))
    }
    /// Sets what `prepare` has read.
    fn set_maps(&mut self, _maps: Self::Maps) {}
}
