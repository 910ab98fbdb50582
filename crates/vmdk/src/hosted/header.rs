//! The header of a hosted sparse extent: what is required of it beside the fields that every "KDMV" file has.
//!
//! Facts: reference/vmware-formats 2.1 and 2.2.

use blk::Result;

use super::stream_optimized;
use crate::kdmv::Header;
use crate::text::wrong;

/// A pointer has 32 bits, and a file that has more sectors cannot be made.
const FILE_SECTORS_MAX: u64 = 1 << 32;

/// Decodes the header. `bytes` are the first bytes of the file, and `file_bytes` is its length.
///
/// # Errors
/// `Unsupported` for another version and for compressed grains, `Damaged` for what the format does not allow.
pub(crate) fn decode_header(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Header> {
    let header = Header::fields(file, bytes, file_bytes)?;
    if header.is_compressed || header.has_markers || header.compression != 0 {
        return Err(stream_optimized(file));
    }
    header.check_flags(file)?;
    // A file that is full has a sector for each of the disk.
    if header.capacity_sectors == 0 || header.capacity_sectors >= FILE_SECTORS_MAX {
        let expected = format!("1 to {}, as pointers have 32 bits", FILE_SECTORS_MAX - 1);
        return Err(wrong(file, "capacity", header.capacity_sectors, &expected));
    }
    header.check_places(file, file_bytes)?;
    header.check_directories(file, file_bytes)?;
    Ok(header)
}
