//! A change of the tables, and its form in the log.

use crate::cowd::{Directory, TABLE_ENTRIES};

pub(super) const ENTRY_BYTES: usize = 24;
const PUBLISHED: u32 = 1;
const RELEASED: u32 = 2;

/// One change of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Grains `first..first + count` of the region are contiguous in the file from position `start` on.
    Published {
        /// Number of the table's range of the disk.
        region: u32,
        /// Position that the region's table has, or will have.
        table: u32,
        /// First entry of the table.
        first: u32,
        /// Number of entries.
        count: u32,
        /// Position of the first grain.
        start: u32,
    },
    /// The table was dropped: its content is elsewhere.
    Released {
        /// Number of the table's range of the disk.
        region: u32,
    },
}

impl Entry {
    pub(super) fn region(self) -> u32 {
        match self {
            Entry::Published { region, .. } | Entry::Released { region } => region,
        }
    }

    pub(super) fn encode(self) -> [u8; ENTRY_BYTES] {
        let words = match self {
            Entry::Published { region, table, first, count, start } => {
                [PUBLISHED, region, table, first, count, start]
            }
            Entry::Released { region } => [RELEASED, region, 0, 0, 0, 0],
        };
        let mut bytes = [0; ENTRY_BYTES];
        for (out, word) in bytes.chunks_exact_mut(4).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes an entry. None if it cannot belong to a delta with this directory.
    pub(super) fn decode(bytes: &[u8], directory: &Directory) -> Option<Entry> {
        let word = |n: usize| u32::from_le_bytes(bytes[n * 4..n * 4 + 4].try_into().expect("four bytes"));
        let region = Some(word(1)).filter(|region| *region < directory.regions())?;
        let (table, first, count, start) = (word(2), word(3), word(4), word(5));
        match word(0) {
            PUBLISHED if count > 0 && first.checked_add(count)? <= TABLE_ENTRIES as u32 => {
                Some(Entry::Published { region, table, first, count, start })
            }
            RELEASED => Some(Entry::Released { region }),
            _ => None,
        }
    }
}
