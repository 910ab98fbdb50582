//! The two formats of deltas: sizes, and offsets within the file.
//!
//! VMFSsparse is written as documented; `vmdk`'s reader opens it. SEsparse is written in its proportions (grain size,
//! table size, tables before grains), which decide its cost; other software cannot open it.

use std::ops::Range;

use blk::{Buf, Result};
use vmdk::cowd;

use super::map::REGION_GRAINS;
use super::rules::TABLE_PAGE_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// "COWD": 512-byte grains. Tables of 16 KiB cover 2 MiB each and are allocated among the data at first use.
    VmfsSparse,
    /// 4 KiB grains. Tables of 32 KiB cover 16 MiB each and have fixed places at the start of the file.
    SeSparse,
}

/// Disk sizes are multiples of this, bytes, so that no grain extends beyond the end of the disk.
pub(super) const DISK_ALIGN: u64 = 4096;

const SE_MAGIC: u64 = 0xCAFE_BABE;
const SE_VERSION: u64 = 0x0000_0002_0000_0001;
/// Entry type of a grain that is in the file: the uppermost four bits of an SEsparse entry.
const SE_ALLOCATED: u64 = 3 << 60;
/// Alignment and granularity of SEsparse's parts, bytes; seen in a file that a host wrote.
const SE_PART_ALIGN: u64 = 1 << 20;
/// Length of SEsparse's journal, which follows the headers.
const SE_JOURNAL_BYTES: u64 = 1 << 20;
pub(super) const SE_BACKMAP_ENTRY_BYTES: u64 = 8;

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::VmfsSparse => "VMFSsparse",
            Format::SeSparse => "SEsparse",
        }
    }

    pub fn grain_bytes(self) -> u64 {
        match self {
            Format::VmfsSparse => 512,
            Format::SeSparse => 4096,
        }
    }

    pub fn entry_bytes(self) -> u64 {
        match self {
            Format::VmfsSparse => cowd::ENTRY_BYTES as u64,
            Format::SeSparse => 8,
        }
    }

    pub fn table_bytes(self) -> u64 {
        REGION_GRAINS * self.entry_bytes()
    }

    /// Returns the bytes of the disk that one table covers.
    pub fn region_bytes(self) -> u64 {
        REGION_GRAINS * self.grain_bytes()
    }

    pub fn pages_per_table(self) -> u64 {
        self.table_bytes() / TABLE_PAGE_BYTES
    }

    /// Returns the number of grains whose entries are on one table page.
    pub fn page_grains(self) -> u64 {
        TABLE_PAGE_BYTES / self.entry_bytes()
    }

    /// Writes the entry of a grain at `at` of the file into `out`, as its `index`-th entry.
    pub fn encode(self, out: &mut [u8], index: u64, at: u64) {
        let start = (index * self.entry_bytes()) as usize;
        match self {
            Format::VmfsSparse => out[start..start + 4].copy_from_slice(&(at as u32).to_le_bytes()),
            Format::SeSparse => out[start..start + 8].copy_from_slice(&(SE_ALLOCATED | at).to_le_bytes()),
        }
    }

    /// Returns the grains that a range of bytes touches, as a range of bytes.
    pub fn round_out(self, range: &Range<u64>) -> Range<u64> {
        let grain = self.grain_bytes();
        range.start / grain * grain..range.end.next_multiple_of(grain)
    }
}

/// Offsets within one delta's file, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub format: Format,
    pub regions: u64,
    pub directory_at: u64,
    /// Set for SEsparse only.
    pub parts: Option<Parts>,
    /// Length of an empty delta. Data follows from here on; VMFSsparse's tables are among it.
    pub data_at: u64,
}

/// Offsets of SEsparse's parts other than its directory, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub journal_at: u64,
    /// Offset of the first table.
    tables_at: u64,
    /// A bitmap with one bit for each grain of the file.
    pub bitmap_at: u64,
    /// For each grain of the file, the grain of the disk that it belongs to.
    pub backmap_at: u64,
}

impl Layout {
    pub(super) fn new(format: Format, disk_bytes: u64) -> Layout {
        let regions = disk_bytes.div_ceil(format.region_bytes());
        match format {
            Format::VmfsSparse => {
                let directory_at = cowd::HEADER_BYTES as u64;
                let directory_end = directory_at + regions * format.entry_bytes();
                let data_at = directory_end.next_multiple_of(DISK_ALIGN);
                Layout { format, regions, directory_at, parts: None, data_at }
            }
            Format::SeSparse => Layout::sesparse(regions),
        }
    }

    /// Lays out the parts in the order that a file written by a host has.
    fn sesparse(regions: u64) -> Layout {
        let format = Format::SeSparse;
        let behind = |at: u64, bytes: u64| (at + bytes).next_multiple_of(SE_PART_ALIGN);
        let journal_at = SE_PART_ALIGN;
        let directory_at = behind(journal_at, SE_JOURNAL_BYTES);
        let tables_at = behind(directory_at, regions * format.entry_bytes());
        let bitmap_at = behind(tables_at, regions * format.table_bytes());
        let backmap_at = behind(bitmap_at, regions * REGION_GRAINS / u64::from(u8::BITS));
        let data_at = behind(backmap_at, regions * REGION_GRAINS * SE_BACKMAP_ENTRY_BYTES);
        let parts = Parts { journal_at, tables_at, bitmap_at, backmap_at };
        Layout { format, regions, directory_at, parts: Some(parts), data_at }
    }

    /// Returns the fixed offset of a region's table; None where the table is allocated among the data.
    pub(super) fn fixed_table_at(&self, region: u64) -> Option<u64> {
        Some(self.parts?.tables_at + region * self.format.table_bytes())
    }

    /// Returns the first sectors of an empty delta.
    pub(super) fn header(&self, file: &str, disk_bytes: u64) -> Result<Buf> {
        match self.format {
            Format::VmfsSparse => {
                Ok(Buf::copy_of(cowd::Header::create(file, disk_bytes / blk::SECTOR, 1)?.bytes()))
            }
            Format::SeSparse => {
                let mut header = Buf::zeroed(DISK_ALIGN as usize);
                for (at, word) in [SE_MAGIC, SE_VERSION, disk_bytes / blk::SECTOR].into_iter().enumerate() {
                    header[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
                }
                Ok(header)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_cover_what_is_documented() {
        let (cowd, se) = (Format::VmfsSparse, Format::SeSparse);
        assert_eq!((cowd.table_bytes(), cowd.region_bytes()), (16 << 10, 2 << 20));
        assert_eq!((se.table_bytes(), se.region_bytes()), (32 << 10, 16 << 20));
        assert_eq!(cowd.pages_per_table() * cowd.page_grains(), REGION_GRAINS);
        // 200 GiB: 1 MiB each for headers, journal and directory, 400 MiB of tables, one bit for each grain, 400 MiB of
        // backmap.
        assert_eq!(Layout::new(se, 200 << 30).data_at, (3 + 400 + 7 + 400) << 20);
    }

    /// Part offsets in sectors, as found in an examined file of a 512 MiB disk.
    #[test]
    fn sesparse_has_its_parts_where_a_host_puts_them() {
        let layout = Layout::new(Format::SeSparse, 512 << 20);
        let parts = layout.parts.unwrap();
        let at = [
            parts.journal_at,
            layout.directory_at,
            parts.tables_at,
            parts.bitmap_at,
            parts.backmap_at,
            layout.data_at,
        ];
        assert_eq!(at.map(|at| at / blk::SECTOR), [2048, 4096, 6144, 8192, 10_240, 12_288]);
    }
}
