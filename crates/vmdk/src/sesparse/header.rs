//! The two headers: a constant one, and a volatile one with the number of tables in use and the state of the journal.
//!
//! Facts: reference/vmware-formats 4.1 and 4.2. All fields are 64 bits, offsets and sizes in sectors.

use blk::{Error, Result, SECTOR};

use super::{
    CAPACITY_SECTORS_MAX, ENTRY_BYTES, GRAIN_SECTORS, GRAINS_PER_TABLE, HEADER_BYTES, TABLE_SECTORS,
};
use crate::text::wrong;

const MAGIC: u64 = 0xCAFE_BABE;
/// "2.1", with the minor number in the low half.
const VERSION: u64 = 0x0000_0002_0000_0001;
const VOLATILE_MAGIC: u64 = 0xCAFE_CAFE;

/// Ends of areas must be below this, so that their bytes fit in 63 bits.
const AREA_END_MAX: u64 = i64::MAX as u64 / SECTOR;

/// Byte offsets in the constant header.
mod field {
    pub(super) const CAPACITY: usize = 16;
    pub(super) const RESERVED: [usize; 4] = [48, 56, 64, 72];
    pub(super) const VOLATILE: usize = 80;
    pub(super) const JOURNAL_HEADER: usize = 96;
    pub(super) const JOURNAL: usize = 112;
    pub(super) const DIRECTORY: usize = 128;
    pub(super) const TABLES: usize = 144;
    pub(super) const BITMAP: usize = 160;
    pub(super) const BACK_MAP: usize = 176;
    pub(super) const GRAINS: usize = 192;
    pub(super) const PAD: usize = 208;
}

/// Byte offsets in the volatile header.
mod volatile {
    pub(super) const FREE_TABLE: usize = 8;
    pub(super) const NEXT_TRANSACTION: usize = 16;
    pub(super) const REPLAY: usize = 24;
    pub(super) const PAD: usize = 32;
}

/// A range of the file in sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    pub start: u64,
    pub sectors: u64,
}

impl Area {
    pub fn end(&self) -> u64 {
        self.start + self.sectors
    }

    pub fn start_bytes(&self) -> u64 {
        self.start * SECTOR
    }
}

/// A verified constant header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub capacity_sectors: u64,
    pub volatile: Area,
    /// Not verified: nothing is read there for the guest.
    pub journal_header: Area,
    pub journal: Area,
    pub directory: Area,
    pub tables: Area,
    pub bitmap: Area,
    pub back_map: Area,
    pub grains: Area,
}

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; ENTRY_BYTES];
    word.copy_from_slice(&bytes[at..at + ENTRY_BYTES]);
    u64::from_le_bytes(word)
}

pub(super) fn set_word(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + ENTRY_BYTES].copy_from_slice(&value.to_le_bytes());
}

fn area(bytes: &[u8], at: usize) -> Area {
    Area { start: word(bytes, at), sectors: word(bytes, at + ENTRY_BYTES) }
}

/// Verifies that areas end below `AREA_END_MAX`, after the header, and do not overlap.
fn check_apart(file: &str, areas: &mut [(&str, Area)]) -> Result<()> {
    for (name, area) in areas.iter() {
        let end = area.start.checked_add(area.sectors).filter(|end| *end <= AREA_END_MAX);
        if end.is_none() {
            let found = format!("{} sectors from {}", area.sectors, area.start);
            return Err(wrong(file, name, found, "an area that ends below 2^54"));
        }
    }
    areas.sort_by_key(|(_, area)| area.start);
    let mut before = ("the header", Area { start: 0, sectors: 1 });
    for (name, area) in areas.iter().filter(|(_, area)| area.sectors > 0) {
        if area.start < before.1.end() {
            let expected = format!("{} or more, after {}", before.1.end(), before.0);
            return Err(wrong(file, &format!("the offset of {name}"), area.start, &expected));
        }
        before = (name, *area);
    }
    Ok(())
}

/// Compares a field that has one value in the format. Fails with `Unsupported`, because another value may change the
/// meaning of everything else.
fn only(file: &str, field: &str, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let cause = format!("{field} is {found:#x}, expected {expected:#x}, the only value that is known");
    Err(Error::unsupported(file, cause))
}

fn check_pad(file: &str, field: &str, bytes: &[u8], from: usize) -> Result<()> {
    match bytes[from..].iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => only(file, &format!("byte {} of {field}", from + at), u64::from(bytes[from + at]), 0),
    }
}

/// Areas after the headers begin on multiples of 1 MiB, as in ESXi's files.
const AREA_ALIGN_SECTORS: u64 = (1 << 20) / SECTOR;

/// Places areas one after the other.
struct Places {
    next: u64,
}

impl Places {
    fn place(&mut self, bytes: u64) -> Area {
        let sectors = bytes.div_ceil(SECTOR).next_multiple_of(AREA_ALIGN_SECTORS);
        let area = Area { start: self.next, sectors };
        self.next = area.end();
        area
    }
}

impl Header {
    /// Returns the header of a new delta, with areas where ESXi has them.
    ///
    /// The area of the tables is twice as large as needed: see `slots`.
    ///
    /// # Errors
    /// `Unsupported` for a disk without sectors or above 64 TiB.
    pub fn create(file: &str, capacity_sectors: u64) -> Result<Self> {
        let grains = capacity_sectors.div_ceil(GRAIN_SECTORS);
        let regions = grains.div_ceil(GRAINS_PER_TABLE as u64);
        let mut places = Places { next: AREA_ALIGN_SECTORS };
        let mut header = Self {
            capacity_sectors,
            volatile: Area { start: 1, sectors: 1 },
            journal_header: Area { start: 2, sectors: 2 },
            journal: places.place(AREA_ALIGN_SECTORS * SECTOR),
            directory: places.place(regions * ENTRY_BYTES as u64),
            tables: places.place(2 * regions * TABLE_SECTORS * SECTOR),
            bitmap: places.place(grains.div_ceil(8)),
            back_map: places.place(grains * ENTRY_BYTES as u64),
            grains: Area { start: 0, sectors: capacity_sectors },
        };
        header.grains.start = places.next;
        header.check_capacity(file)?;
        Ok(header)
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let fixed = [MAGIC, VERSION, self.capacity_sectors, GRAIN_SECTORS, TABLE_SECTORS];
        for (index, value) in fixed.into_iter().enumerate() {
            set_word(&mut bytes, index * ENTRY_BYTES, value);
        }
        for (at, area) in [
            (field::VOLATILE, self.volatile),
            (field::JOURNAL_HEADER, self.journal_header),
            (field::JOURNAL, self.journal),
            (field::DIRECTORY, self.directory),
            (field::TABLES, self.tables),
            (field::BITMAP, self.bitmap),
            (field::BACK_MAP, self.back_map),
            (field::GRAINS, self.grains),
        ] {
            set_word(&mut bytes, at, area.start);
            set_word(&mut bytes, at + ENTRY_BYTES, area.sectors);
        }
        bytes
    }

    /// Decodes the constant header. `bytes` are the first bytes of the file; `file_bytes` is its length, with which the
    /// end of every area that reading needs is compared.
    pub fn decode(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let found = format!("{file_bytes} bytes");
            return Err(wrong(file, "the length", found, "at least the 512 of a header: the file was cut"));
        };
        if word(bytes, 0) != MAGIC {
            let found = format!("\"{}\"", bytes[..ENTRY_BYTES].escape_ascii());
            return Err(wrong(file, "the magic", found, "that of SEsparse: is this a -sesparse.vmdk?"));
        }
        only(file, "version", word(bytes, 8), VERSION)?;
        only(file, "grainSize", word(bytes, 24), GRAIN_SECTORS)?;
        only(file, "grainTableSize", word(bytes, 32), TABLE_SECTORS)?;
        only(file, "flags", word(bytes, 40), 0)?;
        for (index, at) in field::RESERVED.into_iter().enumerate() {
            only(file, &format!("reserved{}", index + 1), word(bytes, at), 0)?;
        }
        check_pad(file, "the header", bytes, field::PAD)?;
        let header = Self {
            capacity_sectors: word(bytes, field::CAPACITY),
            volatile: area(bytes, field::VOLATILE),
            journal_header: area(bytes, field::JOURNAL_HEADER),
            journal: area(bytes, field::JOURNAL),
            directory: area(bytes, field::DIRECTORY),
            tables: area(bytes, field::TABLES),
            bitmap: area(bytes, field::BITMAP),
            back_map: area(bytes, field::BACK_MAP),
            grains: area(bytes, field::GRAINS),
        };
        header.check_capacity(file)?;
        header.check_areas(file)?;
        header.check_length(file, file_bytes)?;
        Ok(header)
    }

    fn check_capacity(&self, file: &str) -> Result<()> {
        match self.capacity_sectors {
            0 => Err(wrong(file, "capacity", 0, "the size of the disk in sectors")),
            large if large > CAPACITY_SECTORS_MAX => {
                let cause = format!("capacity is {large} sectors, expected at most {CAPACITY_SECTORS_MAX}");
                Err(Error::unsupported(file, format!("{cause} (64 TiB): VMware's largest disk has 62 TB")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the areas that are read for the guest. Only `check` reads the bitmap and the back map.
    fn areas(&self) -> [(&'static str, Area); 4] {
        [
            ("the volatile header", self.volatile),
            ("the grain directory", self.directory),
            ("the grain tables", self.tables),
            ("the grains", self.grains),
        ]
    }

    /// Verifies the areas that only a writer uses, which must not lie in others, and have room for every grain.
    pub(super) fn check_written_areas(&self, file: &str) -> Result<()> {
        let own = [
            ("the journal header", self.journal_header),
            ("the journal", self.journal),
            ("the free bitmap", self.bitmap),
            ("the back map", self.back_map),
        ];
        check_apart(file, &mut [&self.areas()[..], &own].concat())?;
        let slots = self.grain_slots();
        for ((name, area), bytes) in own[2..].iter().zip([slots.div_ceil(8), slots * ENTRY_BYTES as u64]) {
            let needed = bytes.next_multiple_of(GRAIN_SECTORS * SECTOR) / SECTOR;
            if area.sectors < needed {
                let expected = format!("at least {needed} for {slots} grains");
                return Err(wrong(file, &format!("the size of {name}"), area.sectors, &expected));
            }
        }
        Ok(())
    }

    fn check_areas(&self, file: &str) -> Result<()> {
        check_apart(file, &mut self.areas())?;
        if self.volatile.sectors == 0 {
            return Err(wrong(file, "the size of the volatile header", 0, "at least 1 sector"));
        }
        let needed = (self.regions() * ENTRY_BYTES as u64).div_ceil(SECTOR);
        if self.directory.sectors < needed {
            let expected = format!("at least {needed} for {} sectors of disk", self.capacity_sectors);
            return Err(wrong(file, "the size of the grain directory", self.directory.sectors, &expected));
        }
        Ok(())
    }

    fn check_length(&self, file: &str, file_bytes: u64) -> Result<()> {
        for (name, area) in [("the volatile header", self.volatile), ("the grain directory", self.directory)]
        {
            if area.end() * SECTOR > file_bytes {
                let expected = format!("at least {} for {name}: the file was cut", area.end() * SECTOR);
                return Err(wrong(file, "the length", format!("{file_bytes} bytes"), &expected));
            }
        }
        Ok(())
    }

    /// Returns the number of regions: ranges of 4096 grains, 16 MiB, each with one entry in the grain directory. At
    /// most 2^22.
    pub fn regions(&self) -> u64 {
        self.capacity_grains().div_ceil(GRAINS_PER_TABLE as u64)
    }

    /// Returns the number of the disk's grains. The end of the disk may cut the last one.
    pub fn capacity_grains(&self) -> u64 {
        self.capacity_sectors.div_ceil(GRAIN_SECTORS)
    }

    /// Returns the number of the disk's grains in `region`.
    pub fn grains_in(&self, region: u32) -> usize {
        let before = u64::from(region) * GRAINS_PER_TABLE as u64;
        self.capacity_grains().saturating_sub(before).min(GRAINS_PER_TABLE as u64) as usize
    }

    /// Returns the number of slots for tables.
    pub fn table_slots(&self) -> u64 {
        self.tables.sectors / TABLE_SECTORS
    }

    /// Returns the number of slots for grains. For an odd capacity the area may be as long as the disk, so the last one
    /// counts.
    pub fn grain_slots(&self) -> u64 {
        self.grains.sectors.div_ceil(GRAIN_SECTORS)
    }

    pub fn table_offset_bytes(&self, slot: u32) -> u64 {
        (self.tables.start + u64::from(slot) * TABLE_SECTORS) * SECTOR
    }

    pub fn grain_offset_bytes(&self, grain: u64) -> u64 {
        (self.grains.start + grain * GRAIN_SECTORS) * SECTOR
    }
}

/// Content of the volatile header of a file whose tables are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Volatile {
    /// Next free slot for a table: all slots in use are below.
    pub free_table: u64,
    /// Number that the next transaction of the journal will have.
    pub next_transaction: u64,
}

impl Volatile {
    /// Decodes the first sector of the area. Refuses a file whose journal was not replayed, because its tables are
    /// outdated.
    pub(crate) fn decode(file: &str, bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        if word(bytes, 0) != VOLATILE_MAGIC {
            let found = format!("\"{}\"", bytes[..ENTRY_BYTES].escape_ascii());
            return Err(wrong(file, "the magic of the volatile header", found, "0xcafecafe"));
        }
        let replay = word(bytes, volatile::REPLAY);
        if replay != 0 {
            let cause =
                format!("replayJournal is {replay}, expected 0: the last writes of ESXi are in a journal");
            let remedy =
                "which only ESXi can verify; open and close the disk on ESXi once, then copy it again";
            return Err(Error::refused(file, format!("{cause}, {remedy}")));
        }
        check_pad(file, "the volatile header", bytes, volatile::PAD)?;
        Ok(Self {
            free_table: word(bytes, volatile::FREE_TABLE),
            next_transaction: word(bytes, volatile::NEXT_TRANSACTION),
        })
    }

    /// Encodes the sector, with a journal that need not be replayed.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        set_word(&mut bytes, 0, VOLATILE_MAGIC);
        set_word(&mut bytes, volatile::FREE_TABLE, self.free_table);
        set_word(&mut bytes, volatile::NEXT_TRANSACTION, self.next_transaction);
        bytes
    }
}
