//! The "KDMV" header, which hosted sparse and streamOptimized disks have in common: 512 bytes, with fields of several widths.
//!
//! Facts: reference/vmware-formats 2.1 and 2.2.

use blk::{Error, Result, SECTOR};

use crate::text::wrong;

pub(crate) const HEADER_BYTES: usize = SECTOR as usize;
/// Bytes of an entry of a directory or a table.
pub(crate) const ENTRY_BYTES: u64 = 4;

pub(crate) const MAGIC: &[u8; 4] = b"KDMV";
const VERSION_MAX: u32 = 3;

/// Flags. A reader refuses unknown ones of the upper half, and ignores those of the lower.
pub(crate) mod flag {
    pub(crate) const NEWLINES: u32 = 1;
    pub(crate) const REDUNDANT: u32 = 1 << 1;
    pub(crate) const ZERO_GRAINS: u32 = 1 << 2;
    pub(crate) const COMPRESSED: u32 = 1 << 16;
    pub(crate) const MARKERS: u32 = 1 << 17;
    pub(crate) const UNKNOWN: u32 = 0xFFFF_0000 & !(COMPRESSED | MARKERS);
}

/// Byte offsets.
pub(crate) mod field {
    pub(crate) const VERSION: usize = 4;
    pub(crate) const FLAGS: usize = 8;
    pub(crate) const CAPACITY: usize = 12;
    pub(crate) const GRAIN: usize = 20;
    pub(crate) const DESCRIPTOR: usize = 28;
    pub(crate) const DESCRIPTOR_SECTORS: usize = 36;
    pub(crate) const TABLE_ENTRIES: usize = 44;
    pub(crate) const REDUNDANT: usize = 48;
    pub(crate) const DIRECTORY: usize = 56;
    pub(crate) const OVERHEAD: usize = 64;
    pub(crate) const UNCLEAN: usize = 72;
    pub(crate) const NEWLINES: usize = 73;
    pub(crate) const COMPRESSION: usize = 77;
}

/// What a transfer in text mode changes.
pub(crate) const NEWLINES: &[u8; 4] = b"\n \r\n";

/// Sizes of a grain that are read: 4 KiB to 1 MiB. VMware writes 64 KiB.
const GRAIN_SECTORS: std::ops::RangeInclusive<u64> = 8..=2048;
/// Entries of a table that are read. VMware writes 512.
const TABLE_ENTRIES_MAX: u32 = 512;

/// The fields of a header. [`Header::fields`] verifies those that mean the same in every format; the format's own decoder
/// verifies the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub capacity_sectors: u64,
    pub grain_sectors: u64,
    pub table_entries: u64,
    /// First sector of the grain directory.
    pub directory: u64,
    /// First sector of its copy, which has tables of its own.
    pub redundant: Option<u64>,
    /// First sector in which grains may be.
    pub overhead_sectors: u64,
    /// An entry 1 of a table is a grain of zeros.
    pub has_zero_grains: bool,
    pub is_unclean: bool,
    /// First sector and sectors of the text, if the file has one.
    pub descriptor: Option<(u64, u64)>,
    /// Grains are compressed, by the flag.
    pub is_compressed: bool,
    /// Grains and metadata have markers.
    pub has_markers: bool,
    /// Algorithm of the compression: 0 is none, 1 is deflate.
    pub compression: u16,
    pub flags: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("a field of the header"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("a field of the header"))
}

impl Header {
    /// Reads the fields, and verifies magic, version, newline detector, and the sizes of grains and tables. `bytes` are the
    /// first bytes of the file, and `file_bytes` is its length. The caller also calls the checks that apply to its format.
    ///
    /// # Errors
    /// `Unsupported` for another version, `Damaged` for what no format allows.
    pub(crate) fn fields(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let found = format!("{file_bytes} bytes");
            return Err(wrong(file, "the length", found, "at least the 512 of a header: the file was cut"));
        };
        if !bytes.starts_with(MAGIC) {
            let found = format!("\"{}\"", bytes[..MAGIC.len()].escape_ascii());
            return Err(wrong(file, "the magic", found, "\"KDMV\": is this an extent of a hosted disk?"));
        }
        let version = u32_at(bytes, field::VERSION);
        if version == 0 || version > VERSION_MAX {
            return Err(Error::unsupported(
                file,
                format!("version is {version}, expected 1 to {VERSION_MAX}"),
            ));
        }
        let header = Self::decode(bytes);
        header.check_newlines(file, bytes)?;
        header.check_sizes(file)?;
        Ok(header)
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let flags = u32_at(bytes, field::FLAGS);
        let has = |flag| flags & flag != 0;
        let (descriptor, sectors) =
            (u64_at(bytes, field::DESCRIPTOR), u64_at(bytes, field::DESCRIPTOR_SECTORS));
        Self {
            capacity_sectors: u64_at(bytes, field::CAPACITY),
            grain_sectors: u64_at(bytes, field::GRAIN),
            table_entries: u64::from(u32_at(bytes, field::TABLE_ENTRIES)),
            directory: u64_at(bytes, field::DIRECTORY),
            redundant: has(flag::REDUNDANT).then(|| u64_at(bytes, field::REDUNDANT)),
            overhead_sectors: u64_at(bytes, field::OVERHEAD),
            has_zero_grains: has(flag::ZERO_GRAINS),
            is_unclean: bytes[field::UNCLEAN] != 0,
            descriptor: (descriptor != 0).then_some((descriptor, sectors)),
            is_compressed: has(flag::COMPRESSED),
            has_markers: has(flag::MARKERS),
            compression: u16::from_le_bytes([bytes[field::COMPRESSION], bytes[field::COMPRESSION + 1]]),
            flags,
        }
    }

    /// Refuses flags of a later version.
    pub(crate) fn check_flags(&self, file: &str) -> Result<()> {
        if self.flags & flag::UNKNOWN != 0 {
            let cause = format!("flags are {:#x}, expected no unknown one of the upper half", self.flags);
            return Err(Error::unsupported(file, format!("{cause}: a later version has written this file")));
        }
        Ok(())
    }

    fn check_newlines(&self, file: &str, bytes: &[u8; HEADER_BYTES]) -> Result<()> {
        let newlines = &bytes[field::NEWLINES..field::NEWLINES + NEWLINES.len()];
        if self.flags & flag::NEWLINES != 0 && newlines != NEWLINES {
            let found = format!("\"{}\"", newlines.escape_ascii());
            let expected =
                format!("\"{}\": a transfer in text mode has changed the file", NEWLINES.escape_ascii());
            return Err(wrong(file, "the newline detector", found, &expected));
        }
        Ok(())
    }

    fn check_sizes(&self, file: &str) -> Result<()> {
        let grain = self.grain_sectors;
        if !GRAIN_SECTORS.contains(&grain) || !grain.is_power_of_two() {
            return Err(wrong(file, "grainSize", grain, "a power of two from 8 to 2048 sectors"));
        }
        if self.table_entries == 0 || self.table_entries > u64::from(TABLE_ENTRIES_MAX) {
            return Err(wrong(file, "numGTEsPerGT", self.table_entries, "1 to 512"));
        }
        Ok(())
    }

    /// Compares the first sector for grains, and the place of the descriptor, with the length of the file.
    pub(crate) fn check_places(&self, file: &str, file_bytes: u64) -> Result<()> {
        let file_sectors = file_bytes / SECTOR;
        if self.overhead_sectors == 0 || self.overhead_sectors > file_sectors {
            let expected = format!("1 to {file_sectors}, the end of the file: was it cut?");
            return Err(wrong(file, "overHead", self.overhead_sectors, &expected));
        }
        if let Some((start, sectors)) = self.descriptor
            && start.checked_add(sectors).is_none_or(|end| end > file_sectors)
        {
            let found = format!("{start}, with {sectors} sectors");
            let expected = format!("sectors below {file_sectors}, the end of the file");
            return Err(wrong(file, "descriptorOffset", found, &expected));
        }
        Ok(())
    }

    /// Compares the places of the directory and its copy with the length of the file. The capacity is verified before.
    pub(crate) fn check_directories(&self, file: &str, file_bytes: u64) -> Result<()> {
        let file_sectors = file_bytes / SECTOR;
        let directory = [("gdOffset", Some(self.directory)), ("rgdOffset", self.redundant)];
        for (field, start) in directory.into_iter().filter_map(|(field, start)| Some((field, start?))) {
            let end = start.checked_add(self.directory_sectors());
            if start == 0 || end.is_none_or(|end| end > file_sectors) {
                let expected = format!(
                    "1 or more, with {} sectors of directory below {file_sectors}, the end of the file",
                    self.directory_sectors()
                );
                return Err(wrong(file, field, start, &expected));
            }
        }
        Ok(())
    }

    /// Returns the number of tables.
    pub fn regions(&self) -> u64 {
        self.capacity_sectors.div_ceil(self.region_sectors())
    }

    /// Returns the sectors of the disk that one table covers.
    pub fn region_sectors(&self) -> u64 {
        self.table_entries * self.grain_sectors
    }

    pub fn directory_sectors(&self) -> u64 {
        // At most 2^64 sectors in regions of 8 sectors.
        (self.regions() * ENTRY_BYTES).div_ceil(SECTOR)
    }

    pub fn table_bytes(&self) -> u64 {
        self.table_entries * ENTRY_BYTES
    }

    /// Returns the number of the disk's grains in `region`.
    pub fn grains_in(&self, region: u32) -> usize {
        let grains = self.capacity_sectors.div_ceil(self.grain_sectors);
        // At most 512.
        grains.saturating_sub(u64::from(region) * self.table_entries).min(self.table_entries) as usize
    }
}
