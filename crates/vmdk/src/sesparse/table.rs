//! Grain directory and grain tables: their entries, and the verification of both.
//!
//! Facts: reference/vmware-formats 4.3, 4.4 and 4.9.

use blk::{Result, SECTOR};

use super::{ENTRY_BYTES, GRAIN_BYTES, GRAINS_PER_TABLE, Header, TABLE_SECTORS, Volatile};
use crate::grain_table::{Place, Table};
use crate::text::wrong;

/// Upper half of a used directory entry; the lower half is the table's slot.
pub(super) const IN_USE: u64 = 0x1000_0000;
/// Stands for no slot. The area of tables has at most 2^54 / 64 slots, of which 2^22 are ever used.
const NONE: u32 = u32::MAX;

/// Decodes little-endian entries. An incomplete one at the end is ignored.
pub(crate) fn decode_words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Decodes the lower 60 bits of an entry: the lowest 12 bits of the number are on top, the others below.
pub(super) fn unrotate(entry: u64) -> u64 {
    ((entry >> 48) & 0xFFF) | ((entry & 0xFFFF_FFFF_FFFF) << 12)
}

/// Encodes a number below 2^60, the reverse of `unrotate`.
pub(crate) fn rotate(number: u64) -> u64 {
    ((number & 0xFFF) << 48) | (number >> 12)
}

/// An entry of a grain table, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Not here; the parent may have it.
    Absent,
    /// Reads as zeros. It may still own the grain of that number, which is to be reclaimed.
    Unmapped(u64),
    /// Reads as zeros. The rest should be 0.
    Zero(u64),
    Data(u64),
    /// An unknown type, or an absent entry with a number.
    Corrupt,
}

impl Entry {
    pub(crate) fn decode(entry: u64) -> Self {
        match (entry >> 60, unrotate(entry)) {
            (0, 0) => Entry::Absent,
            (1, number) => Entry::Unmapped(number),
            (2, number) => Entry::Zero(number),
            (3, number) => Entry::Data(number),
            _ => Entry::Corrupt,
        }
    }
}

/// A verified grain directory: the slot of each region's table. It takes 4 bytes for each region, 16 MiB for the
/// largest disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory {
    slots: Vec<u32>,
    tables: usize,
}

/// Decodes a directory, piece by piece.
pub(crate) struct DirectoryReader<'a> {
    pub file: &'a str,
    pub header: &'a Header,
    pub volatile: Volatile,
    pub file_bytes: u64,
    pub slots: Vec<u32>,
}

impl DirectoryReader<'_> {
    /// Adds the next bytes. Entries past the disk's last region are ignored.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let missing = (self.header.regions() as usize).saturating_sub(self.slots.len());
        for entry in decode_words(bytes).take(missing) {
            let slot = match entry {
                0 => NONE,
                _ => self.slot(self.slots.len(), entry)?,
            };
            self.slots.push(slot);
        }
        Ok(())
    }

    fn slot(&self, region: usize, entry: u64) -> Result<u32> {
        let field = format!("grain directory entry {region}");
        if entry >> 32 != IN_USE {
            let expected = "0, or 0x10000000 above the number of a table";
            return Err(wrong(self.file, &field, format!("{entry:#018x}"), expected));
        }
        let slot = entry as u32;
        let limit = self.header.table_slots().min(u64::from(NONE));
        if u64::from(slot) >= limit {
            let expected = format!("below {limit}, the room for grain tables");
            return Err(wrong(self.file, &field, format!("table {slot}"), &expected));
        }
        if u64::from(slot) >= self.volatile.free_table {
            let expected = format!("below {}, which is freeGTNumber", self.volatile.free_table);
            return Err(wrong(self.file, &field, format!("table {slot}"), &expected));
        }
        let end = self.header.table_offset_bytes(slot) + TABLE_SECTORS * SECTOR;
        if end > self.file_bytes {
            let expected = format!("a table that ends at {}: the file was cut", self.file_bytes);
            return Err(wrong(self.file, &field, format!("table {slot}, which ends at {end}"), &expected));
        }
        Ok(slot)
    }

    /// Refuses two regions that share a table.
    pub(crate) fn finish(self) -> Result<Directory> {
        assert_eq!(self.slots.len() as u64, self.header.regions(), "entries of the directory");
        let regions = self.slots.iter().enumerate().filter(|(_, slot)| **slot != NONE);
        let mut by_slot: Vec<(u32, usize)> = regions.map(|(region, slot)| (*slot, region)).collect();
        by_slot.sort_unstable();
        if let Some([(slot, first), (_, second)]) = by_slot.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let field = format!("grain directory entry {second}");
            let expected = format!("another than that of entry {first}");
            return Err(wrong(self.file, &field, format!("table {slot}"), &expected));
        }
        Ok(Directory { tables: by_slot.len(), slots: self.slots })
    }
}

impl Directory {
    pub(crate) fn slot(&self, region: u32) -> Option<u32> {
        self.slots.get(region as usize).copied().filter(|slot| *slot != NONE)
    }

    pub(crate) fn table_count(&self) -> usize {
        self.tables
    }

    /// Returns the regions with a table, in order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().enumerate().filter(|(_, slot)| **slot != NONE).map(|(region, _)| region as u32)
    }
}

/// The limits against which the entries of a table are verified.
#[derive(Clone, Copy)]
pub(crate) struct TableBounds<'a> {
    pub file: &'a str,
    pub header: &'a Header,
    pub file_bytes: u64,
}

impl TableBounds<'_> {
    /// Verifies and decodes the table of `region`. Entries past the end of the disk are ignored.
    pub(crate) fn decode(&self, region: u32, bytes: &[u8]) -> Result<Table> {
        let entries = decode_words(bytes).take(self.header.grains_in(region));
        let places = entries.enumerate().map(|(entry, value)| self.place(region, entry, value));
        let table = Table::collect(places)?;
        self.check_double(region, &table)?;
        Ok(table)
    }

    fn place(&self, region: u32, entry: usize, value: u64) -> Result<Place> {
        match Entry::decode(value) {
            Entry::Absent => Ok(Place::Parent),
            Entry::Unmapped(_) | Entry::Zero(_) => Ok(Place::Zero),
            Entry::Data(grain) => self.check_grain(region, entry, grain).map(|()| Place::Data(grain)),
            Entry::Corrupt => {
                let expected = "0, or a type from 1 to 3 in its top four bits";
                Err(wrong(self.file, &entry_name(region, entry), format!("{value:#018x}"), expected))
            }
        }
    }

    fn check_grain(&self, region: u32, entry: usize, grain: u64) -> Result<()> {
        let limit = self.header.grain_slots();
        if grain >= limit {
            let expected = format!("below {limit}, the room for grains");
            return Err(wrong(self.file, &entry_name(region, entry), format!("grain {grain}"), &expected));
        }
        let end = self.header.grain_offset_bytes(grain) + GRAIN_BYTES;
        if end > self.file_bytes {
            let expected = format!("a grain that ends at {} or before: the file was cut", self.file_bytes);
            let found = format!("grain {grain}, which ends at {end}");
            return Err(wrong(self.file, &entry_name(region, entry), found, &expected));
        }
        Ok(())
    }

    /// Refuses two entries of one table that name the same grain.
    fn check_double(&self, region: u32, table: &Table) -> Result<()> {
        let Some((same, entry, grain)) = table.doubled() else { return Ok(()) };
        let expected = format!("another than that of entry {same}");
        Err(wrong(self.file, &entry_name(region, entry), format!("grain {grain}"), &expected))
    }
}

pub(super) fn entry_name(region: u32, entry: usize) -> String {
    assert!(entry < GRAINS_PER_TABLE);
    format!("entry {entry} of grain table {region}")
}
