//! A compressed grain: its marker, and the inflation of its data.
//!
//! Facts: reference/vmware-formats 2.4. The specification says RFC 1951; every writer frames the data by RFC 1950 (zlib).

use std::ops::RangeInclusive;

use blk::{Buf, Error, Result, SECTOR};
use flate2::{Decompress, FlushDecompress, Status};

use crate::text::wrong;

/// Bytes in front of the data: 64 bits of the first sector on the disk, 32 of the data's length.
pub(crate) const MARKER_BYTES: u64 = 12;

/// Largest length of the data of a grain: zlib's bound for a grain that does not compress with the smallest window and memory,
/// which is an eighth and a 64th above the grain.
pub(crate) fn compressed_max(grain_bytes: u64) -> u64 {
    grain_bytes + grain_bytes.div_ceil(8) + grain_bytes.div_ceil(64) + 11
}

/// A grain of the disk, and where the table says that it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrainPlace<'a> {
    /// Name of the file, for messages.
    pub file: &'a str,
    /// Number of the grain on the disk.
    pub grain: u64,
    /// Sector of its marker.
    pub sector: u64,
    pub grain_sectors: u64,
    /// Sectors of the grain that are of the disk: all but for the last grain.
    pub needed_sectors: u64,
}

impl GrainPlace<'_> {
    fn wrong(&self, field: &str, found: impl std::fmt::Display, expected: &str) -> Error {
        let field = format!("{field} of grain {} in sector {}", self.grain, self.sector);
        wrong(self.file, &field, found, expected)
    }

    pub(crate) fn grain_bytes(&self) -> u64 {
        self.grain_sectors * SECTOR
    }

    /// Verifies the marker. `bytes` are the first of the sector, and `left_bytes` are those from the sector to the end of the
    /// file. Returns the length of the data behind the marker.
    pub(crate) fn data_bytes(&self, bytes: &[u8], left_bytes: u64) -> Result<u64> {
        let lba = u64::from_le_bytes(*bytes.first_chunk().expect("a marker"));
        let size = u64::from(u32::from_le_bytes(*bytes[8..].first_chunk().expect("a marker")));
        let own = self.grain * self.grain_sectors;
        if lba != own {
            let expected = format!(
                "{own}, as the grain table says: the file is damaged; copy, download or export it again"
            );
            return Err(self.wrong("the LBA in the marker", lba, &expected));
        }
        let max = compressed_max(self.grain_bytes());
        if size == 0 || size > max {
            return Err(self.wrong("the size in the marker", size, &format!("1 to {max} bytes")));
        }
        if MARKER_BYTES + size > left_bytes {
            let expected = format!(
                "at most {}, up to the end of the file: was it cut? Copy, download or export it again",
                left_bytes.saturating_sub(MARKER_BYTES)
            );
            return Err(self.wrong("the size in the marker", size, &expected));
        }
        Ok(size)
    }

    /// Returns the lengths that a grain may inflate to: the last one of the disk may end with the disk.
    fn lengths(&self) -> RangeInclusive<u64> {
        self.needed_sectors * SECTOR..=self.grain_bytes()
    }

    /// Inflates the data of the grain. The result has at least the bytes that are of the disk.
    pub(crate) fn inflate(&self, data: &[u8]) -> Result<Buf> {
        let mut content = Buf::alloc(self.grain_bytes() as usize);
        let mut inflater = Decompress::new(true);
        let status = inflater.decompress(data, &mut content, FlushDecompress::Finish);
        let (found, lengths) = (inflater.total_out(), self.lengths());
        let expected = || match lengths.start() == lengths.end() {
            true => format!("{} bytes", lengths.end()),
            false => format!("{} to {} bytes", lengths.start(), lengths.end()),
        };
        match status {
            Ok(Status::StreamEnd) if lengths.contains(&found) => {
                content.truncate(found as usize);
                Ok(content)
            }
            Ok(Status::StreamEnd) => {
                Err(self.wrong("the inflated length", format!("{found} bytes"), &expected()))
            }
            // The space for a grain is full, and the data does not end.
            Ok(Status::Ok | Status::BufError) if found >= self.grain_bytes() => {
                Err(self.wrong("the inflated length", format!("more than {found} bytes"), &expected()))
            }
            Ok(Status::Ok | Status::BufError) => {
                let found = format!("cut after {} bytes", data.len());
                Err(self.wrong("the compressed data", found, "a whole zlib stream"))
            }
            Err(_) => {
                let expected = "a zlib stream whose checksum is right: the file is damaged; copy, download or export it again";
                Err(self.wrong("the compressed data", "invalid", expected))
            }
        }
    }
}
