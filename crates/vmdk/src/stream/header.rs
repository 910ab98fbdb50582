//! Header and footer of a streamOptimized disk: what is required of them beside the fields that every "KDMV" file has.
//!
//! Facts: reference/vmware-formats 2.1, 2.2 and 2.4.

use blk::{Error, Result, SECTOR};

use crate::descriptor::DISK_SECTORS_MAX;
use crate::kdmv::{HEADER_BYTES, Header};
use crate::text::wrong;

/// Value of gdOffset in a header whose directory is named by the footer.
pub(super) const DIRECTORY_AT_END: u64 = u64::MAX;
/// The algorithm of RFC 1951, here in the frame of RFC 1950.
pub(super) const DEFLATE: u16 = 1;
/// Maximum number of tables of a disk. The directory takes 8 bytes of memory for each: 64 TiB in regions of VMware's 32 MiB
/// have 2^21 tables, and twice that take 32 MiB.
const REGIONS_MAX: u64 = 1 << 22;

/// The end of a file with a footer: the marker of the footer, the footer, and the marker of the end, a sector each.
pub(crate) const TAIL_BYTES: usize = 3 * HEADER_BYTES;
/// Types of the markers that are not of grains.
pub(super) const END_MARKER_TYPE: u32 = 0;
pub(super) const TABLE_MARKER_TYPE: u32 = 1;
pub(super) const DIRECTORY_MARKER_TYPE: u32 = 2;
pub(super) const FOOTER_MARKER_TYPE: u32 = 3;

/// Where the description of the disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Head {
    /// The header says where the directory is.
    Complete(Header),
    /// The footer says it: the writer did not know the place when it wrote this header.
    AtEnd(Header),
}

/// Decodes the header. `bytes` are the first bytes of the disk, and `file_bytes` is its length.
///
/// # Errors
/// `Unsupported` for another version, another compression, and a disk that is too large; `Damaged` for what the format does
/// not allow.
pub(crate) fn decode_header(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Head> {
    let header = decode(file, bytes, file_bytes)?;
    if header.directory == DIRECTORY_AT_END {
        return Ok(Head::AtEnd(header));
    }
    header.check_directories(file, file_bytes)?;
    Ok(Head::Complete(header))
}

/// Decodes the footer from the last `TAIL_BYTES` of the disk's whole sectors. It replaces `header`, which it must agree with.
///
/// # Errors
/// Those of [`decode_header`], and `Damaged` if the file does not end as it must.
pub(crate) fn decode_footer(
    file: &str,
    header: &Header,
    tail: &[u8; TAIL_BYTES],
    file_bytes: u64,
) -> Result<Header> {
    let sector = |index: usize| &tail[index * HEADER_BYTES..(index + 1) * HEADER_BYTES];
    check_marker(file, "the marker of the footer", sector(0), FOOTER_MARKER_TYPE)?;
    check_marker(file, "the marker of the end", sector(2), END_MARKER_TYPE)?;
    let footer = decode(file, sector(1), file_bytes).and_then(|footer| {
        if footer.directory == DIRECTORY_AT_END {
            return Err(wrong(file, "gdOffset", "2^64 - 1", "the first sector of the directory"));
        }
        footer.check_directories(file, file_bytes)?;
        check_same(file, header, &footer)?;
        Ok(footer)
    });
    footer.map_err(|error| Error { cause: format!("in the footer, {}", error.cause), ..error })
}

/// Compares the sizes in the footer with those in the header. Nothing else in the file says how long its tables are.
fn check_same(file: &str, header: &Header, footer: &Header) -> Result<()> {
    let fields = [
        ("capacity", header.capacity_sectors, footer.capacity_sectors),
        ("grainSize", header.grain_sectors, footer.grain_sectors),
        ("numGTEsPerGT", header.table_entries, footer.table_entries),
    ];
    match fields.into_iter().find(|(_, expected, found)| expected != found) {
        Some((field, expected, found)) => {
            Err(wrong(file, field, found, &format!("{expected}, as in the header")))
        }
        None => Ok(()),
    }
}

fn check_marker(file: &str, field: &str, sector: &[u8], expected: u32) -> Result<()> {
    let number = |at: usize| u32::from_le_bytes(*sector[at..].first_chunk().expect("a whole sector"));
    // The first 8 bytes are the number of sectors that follow; QEMU does not read it for these markers.
    let (size, kind) = (number(8), number(12));
    if size == 0 && kind == expected {
        return Ok(());
    }
    let found = format!("of size {size} and type {kind}");
    let expected = format!(
        "size 0 and type {expected} near the end of the file: was it cut? Copy, download or export it again"
    );
    Err(wrong(file, field, found, &expected))
}

fn decode(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Header> {
    let mut header = Header::fields(file, bytes, file_bytes)?;
    check_compression(file, &header)?;
    header.check_flags(file)?;
    if header.capacity_sectors == 0 {
        return Err(wrong(file, "capacity", 0, "1 or more sectors"));
    }
    if header.capacity_sectors > DISK_SECTORS_MAX {
        let cause = format!("capacity is {} sectors, expected at most", header.capacity_sectors);
        return Err(Error::unsupported(file, format!("{cause} {DISK_SECTORS_MAX}, which are 64 TiB")));
    }
    if header.regions() > REGIONS_MAX {
        let cause = format!("the disk has {} grain tables, expected at most {REGIONS_MAX}", header.regions());
        return Err(Error::unsupported(file, format!("{cause}, which is twice 64 TiB of VMware's")));
    }
    header.check_places(file, file_bytes)?;
    // Writers of streams may set the flag of copies without any.
    header.redundant = header.redundant.filter(|start| *start != 0 && *start != DIRECTORY_AT_END);
    Ok(header)
}

fn check_compression(file: &str, header: &Header) -> Result<()> {
    if header.is_compressed && header.has_markers && header.compression == DEFLATE {
        return Ok(());
    }
    let found = format!("flags are {:#x} and compressAlgorithm is {}", header.flags, header.compression);
    let expected = "expected 0x30000 among the flags (compressed grains and markers) and 1 (deflate)";
    Err(Error::unsupported(file, format!("{found}, {expected}: this is not a streamOptimized disk")))
}

/// Returns the offset of the tail in a disk of `file_bytes`; None if it is too short. The last sector may be incomplete.
pub(crate) fn tail_offset(file_bytes: u64) -> Option<u64> {
    (file_bytes / SECTOR * SECTOR).checked_sub(TAIL_BYTES as u64)
}
