//! The header in its encoded form: four sectors, of which two are rewritten.

use blk::{Error, Result, SECTOR};

use super::{
    ENTRIES_PER_SECTOR, ENTRY_BYTES, GRAIN_SECTORS_MAX, HEADER_BYTES, HEADER_SECTORS,
    NEW_CAPACITY_SECTORS_MAX, TABLE_ENTRIES,
};
use crate::text::wrong;

const MAGIC: &[u8; 4] = b"COWD";
const VERSION: u32 = 1;
const FLAGS: u32 = 3;
/// The valid grain sizes, for messages.
const GRAINS: &str = "a power of two from 1 to 2048 sectors";

mod field {
    pub(super) const VERSION: usize = 4;
    pub(super) const FLAGS: usize = 8;
    pub(super) const CAPACITY: usize = 12;
    pub(super) const GRAIN: usize = 16;
    pub(super) const DIRECTORY: usize = 20;
    pub(super) const DIRECTORY_ENTRIES: usize = 24;
    pub(super) const FREE: usize = 28;
    pub(super) const UNCLEAN: usize = 1648;
    /// Position of two words of unstun, in bytes that the format pads with zeros. They are set only while the delta is
    /// unclean.
    pub(super) const LOG_ID: usize = 1656;
    pub(super) const LOG_BOOT: usize = 1664;
}

fn is_grain(sectors: u32) -> bool {
    sectors.is_power_of_two() && sectors <= GRAIN_SECTORS_MAX
}

/// A verified header. It keeps its bytes, so that legacy fields of other programs survive a rewrite.
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
    /// Returns the header of an empty delta. It is marked unclean, because the delta is about to be written.
    ///
    /// # Errors
    /// `Unsupported` for a disk that 32-bit sector pointers cannot address; `Invalid` for a grain size that is not in
    /// the format.
    pub fn create(file: &str, capacity_sectors: u64, grain_sectors: u32) -> Result<Self> {
        if capacity_sectors == 0 || capacity_sectors > NEW_CAPACITY_SECTORS_MAX {
            let cause = format!("a VMFSsparse delta for a disk of {capacity_sectors} sectors was asked for");
            let cause = format!("{cause}, expected 1 to {NEW_CAPACITY_SECTORS_MAX} (2,032 GiB)");
            return Err(Error::unsupported(file, format!("{cause}: its sector pointers have 32 bits")));
        }
        if !is_grain(grain_sectors) {
            let cause = format!("a grain size of {grain_sectors} sectors was asked for, expected {GRAINS}");
            return Err(Error::invalid(file, cause));
        }
        let mut header = Self { bytes: Box::new([0; HEADER_BYTES]) };
        header.bytes[..4].copy_from_slice(MAGIC);
        header.set(field::VERSION, VERSION);
        header.set(field::FLAGS, FLAGS);
        // NEW_CAPACITY_SECTORS_MAX is below 2^32.
        header.set(field::CAPACITY, capacity_sectors as u32);
        header.set(field::GRAIN, grain_sectors);
        header.set(field::DIRECTORY, HEADER_SECTORS);
        header.set(field::DIRECTORY_ENTRIES, header.expected_directory_entries());
        header.set(field::FREE, header.first_data_sector());
        header.set_unclean((0, 0));
        Ok(header)
    }

    /// Decodes a header. `bytes` are the first bytes of the file, of which at most `HEADER_BYTES` are read;
    /// `file_bytes` is its length.
    pub fn decode(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let header = Self::decode_of_any_length(file, bytes, file_bytes)?;
        header.check_length(file, file_bytes)?;
        Ok(header)
    }

    /// Decodes the header of a file that may be truncated: the length of the file is not compared.
    pub(crate) fn decode_of_any_length(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Self> {
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
        Ok(header)
    }

    fn check_geometry(&self, file: &str) -> Result<()> {
        let (capacity, grain) = (self.capacity_sectors(), self.grain_sectors());
        if capacity == 0 {
            return Err(wrong(file, "numSectors", 0, "the size of the disk"));
        }
        if !is_grain(grain) {
            return Err(wrong(file, "grainSize", grain, GRAINS));
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
        // The free pointer of an unclean delta is not used; it is computed again.
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

    /// Returns the size of the disk in sectors.
    pub fn capacity_sectors(&self) -> u32 {
        self.get(field::CAPACITY)
    }

    /// Returns the unit of allocation in sectors.
    pub fn grain_sectors(&self) -> u32 {
        self.get(field::GRAIN)
    }

    #[cfg(test)]
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn directory_sector(&self) -> u32 {
        self.get(field::DIRECTORY)
    }

    pub(crate) fn directory_entries(&self) -> usize {
        self.get(field::DIRECTORY_ENTRIES) as usize
    }

    fn expected_directory_entries(&self) -> u32 {
        let region = u64::from(self.grain_sectors()) * TABLE_ENTRIES as u64;
        // At most 2^32 / 4096.
        u64::from(self.capacity_sectors()).div_ceil(region) as u32
    }

    pub(crate) fn directory_sectors(&self) -> u32 {
        self.get(field::DIRECTORY_ENTRIES).div_ceil(ENTRIES_PER_SECTOR as u32)
    }

    /// Returns the length of the grain directory, rounded up to whole sectors.
    pub fn directory_bytes(&self) -> usize {
        self.directory_sectors() as usize * SECTOR as usize
    }

    /// Returns the first sector at which tables and data may be.
    pub fn first_data_sector(&self) -> u32 {
        self.directory_sector() + self.directory_sectors()
    }

    /// Returns the range of the disk that one table covers: 2 MiB with 512-byte grains.
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.grain_sectors()) * TABLE_ENTRIES as u64 * SECTOR
    }

    /// Returns the number of the disk's grains in `region`.
    pub fn grains_in(&self, region: u32) -> usize {
        let grains = u64::from(self.capacity_sectors()).div_ceil(u64::from(self.grain_sectors()));
        let before = u64::from(region) * TABLE_ENTRIES as u64;
        grains.saturating_sub(before).min(TABLE_ENTRIES as u64) as usize
    }

    /// Returns the next unused sector; without meaning while the delta is unclean.
    pub fn free_sector(&self) -> u32 {
        self.get(field::FREE)
    }

    pub(crate) fn set_free_sector(&mut self, sector: u32) {
        self.set(field::FREE, sector);
    }

    pub(crate) fn is_unclean(&self) -> bool {
        self.get(field::UNCLEAN) != 0
    }

    /// Marks the delta as clean, and removes the reference to a log.
    pub fn set_clean(&mut self) {
        self.set(field::UNCLEAN, 0);
        self.set_log(0, 0);
    }

    /// Marks the delta as unclean. `log` becomes `log_id` and `log_boot`.
    pub fn set_unclean(&mut self, log: (u64, u64)) {
        self.set(field::UNCLEAN, 1);
        self.set_log(log.0, log.1);
    }

    fn set_log(&mut self, id: u64, boot: u64) {
        for (at, value) in [(field::LOG_ID, id), (field::LOG_BOOT, boot)] {
            self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Copies the mark and the reference to the log from `other`.
    pub fn take_mark(&mut self, other: &Header) {
        self.set(field::UNCLEAN, other.get(field::UNCLEAN));
        self.set_log(other.log_id(), other.log_boot());
    }

    fn get_u64(&self, at: usize) -> u64 {
        u64::from(self.get(at)) | u64::from(self.get(at + ENTRY_BYTES)) << 32
    }

    /// Returns the number of the log in the host's memory with the entries that the tables in the file lack; 0 if there
    /// is none.
    pub fn log_id(&self) -> u64 {
        self.get_u64(field::LOG_ID)
    }

    /// Returns `Memory::boot` of the process that keeps the log.
    pub fn log_boot(&self) -> u64 {
        self.get_u64(field::LOG_BOOT)
    }

    /// Returns the header as it is written at the start of the file.
    pub fn bytes(&self) -> &[u8; HEADER_BYTES] {
        &self.bytes
    }

    /// Returns the sector with `freeSector`, and its position.
    pub fn free_sector_bytes(&self) -> (u64, &[u8]) {
        (0, &self.bytes[..SECTOR as usize])
    }

    /// Returns the sector with `uncleanShutdown`, and its position.
    pub fn unclean_bytes(&self) -> (u64, &[u8]) {
        let at = field::UNCLEAN / SECTOR as usize * SECTOR as usize;
        (at as u64, &self.bytes[at..at + SECTOR as usize])
    }
}
