//! Extent lines: `ACCESS SECTORS TYPE "file" [OFFSET [...]]`.

use std::fmt;

use blk::{Error, Result};

use crate::text::{decimal, shown, utf8, wrong};

/// Maximum number of sectors whose bytes fit in 63 bits, so that sums and products of one disk cannot overflow.
pub(super) const EXTENT_SECTORS_MAX: u64 = i64::MAX as u64 / blk::SECTOR;

/// Largest disk that is read: 64 TiB, as SEsparse can describe. Sums over all disks and layers of a VM then stay below
/// 2^63 bytes.
pub(crate) const DISK_SECTORS_MAX: u64 = (64 << 40) / blk::SECTOR;

/// Access of a link to an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `RW`.
    ReadWrite,
    /// `RDONLY`.
    ReadOnly,
    /// Reads as zeros.
    NoAccess,
}

/// Format of an extent's file. All formats are recognised; the code that opens extents decides which it supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Plain data at an offset, from hosted products.
    Flat,
    /// Plain data, from ESXi.
    Vmfs,
    /// "COWD" delta.
    VmfsSparse,
    /// SEsparse delta, ESXi.
    SeSparse,
    /// Hosted sparse, "KDMV".
    Sparse,
    /// No file; reads as zeros.
    Zero,
    /// Pointer to a mapped raw device, from ESXi; contains no data.
    VmfsRdm,
    /// Raw device, from earlier ESXi.
    VmfsRaw,
}

const KINDS: [(&str, ExtentKind); 8] = [
    ("FLAT", ExtentKind::Flat),
    ("VMFS", ExtentKind::Vmfs),
    ("VMFSSPARSE", ExtentKind::VmfsSparse),
    ("SESPARSE", ExtentKind::SeSparse),
    ("SPARSE", ExtentKind::Sparse),
    ("ZERO", ExtentKind::Zero),
    ("VMFSRDM", ExtentKind::VmfsRdm),
    ("VMFSRAW", ExtentKind::VmfsRaw),
];

const ACCESSES: [(&str, Access); 3] =
    [("RW", Access::ReadWrite), ("RDONLY", Access::ReadOnly), ("NOACCESS", Access::NoAccess)];

impl ExtentKind {
    /// Returns the word by which a descriptor names the kind.
    pub fn keyword(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }

    pub(crate) fn is_flat(self) -> bool {
        matches!(self, ExtentKind::Flat | ExtentKind::Vmfs)
    }
}

/// One extent of a link: a line of its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The first word of the line.
    pub access: Access,
    /// Length on the disk, in sectors; 1 to `EXTENT_SECTORS_MAX`.
    pub sectors: u64,
    /// Format of `file`.
    pub kind: ExtentKind,
    /// The name as written; untrusted. Empty for `Zero`.
    pub file: String,
    /// Start of the data in `file`, in sectors. 0 except for `Flat` and `Vmfs`.
    pub offset_sectors: u64,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = ACCESSES.iter().find(|(_, access)| *access == self.access).map_or("", |(word, _)| word);
        write!(f, "{access} {} {}", self.sectors, self.kind.keyword())?;
        if self.kind != ExtentKind::Zero {
            write!(f, " \"{}\"", self.file)?;
        }
        // Hosted readers require the offset of FLAT, and refuse one with any other type.
        if self.kind == ExtentKind::Flat || self.offset_sectors != 0 {
            write!(f, " {}", self.offset_sectors)?;
        }
        Ok(())
    }
}

/// Returns whether a line begins like an extent, so that a fault in the rest of it is reported as one.
pub(super) fn is_extent(line: &[u8]) -> bool {
    let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    ACCESSES.iter().any(|(access, _)| word.eq_ignore_ascii_case(access.as_bytes()))
}

pub(super) fn parse(file: &str, number: usize, line: &[u8]) -> Result<Extent> {
    let field = format!("the extent in line {number}");
    let line = utf8(file, &field, line)?;
    let (words, name, after) = split_name(line);
    let mut words = words.split_ascii_whitespace();
    let access = keyword(&ACCESSES, words.next());
    let sectors = words.next().unwrap_or_default();
    let sectors: u64 =
        decimal(file, &format!("{field}: the number of sectors"), sectors, "a decimal number")?;
    if sectors == 0 || sectors > EXTENT_SECTORS_MAX {
        return Err(wrong(file, &format!("{field}: the number of sectors"), sectors, "1 to 2^54 - 1"));
    }
    let word = words.next();
    let Some(kind) = keyword(&KINDS, word) else {
        let cause =
            format!("{field} has the type {}, which we cannot place", shown(word.unwrap_or_default()));
        return Err(Error::unsupported(
            file,
            format!("{cause}; known are FLAT, VMFS, VMFSSPARSE, ZERO and others"),
        ));
    };
    let Some(access) = access else { return Err(wrong(file, &field, shown(line), "RW, RDONLY or NOACCESS")) };
    // ZERO has no file, so an offset follows directly.
    let offset = if kind == ExtentKind::Zero { words.next() } else { after.split_ascii_whitespace().next() };
    let offset_sectors = match offset {
        Some(digits) => decimal(file, &format!("{field}: the offset"), digits, "a decimal number")?,
        None => 0,
    };
    // A name after ZERO has no meaning.
    let name = name.filter(|_| kind != ExtentKind::Zero).unwrap_or_default();
    let extent = Extent { access, sectors, kind, file: name.into(), offset_sectors };
    check(file, &field, &extent)?;
    Ok(extent)
}

fn check(file: &str, field: &str, extent: &Extent) -> Result<()> {
    if extent.file.is_empty() && extent.kind != ExtentKind::Zero {
        return Err(wrong(file, field, "without a file name", "one in double quotes"));
    }
    if extent.offset_sectors != 0 && !extent.kind.is_flat() {
        let found = format!("at offset {}", extent.offset_sectors);
        return Err(wrong(file, field, found, &format!("0 for {}", extent.kind.keyword())));
    }
    if extent.offset_sectors > EXTENT_SECTORS_MAX - extent.sectors {
        return Err(wrong(file, field, format!("at offset {}", extent.offset_sectors), "its end below 2^54"));
    }
    Ok(())
}

/// Splits a line into the parts before the name, the name, and after it. Quotes are not escaped, so the name ends at
/// the last quote.
fn split_name(line: &str) -> (&str, Option<&str>, &str) {
    match (line.find('"'), line.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            (&line[..first], Some(&line[first + 1..last]), &line[last + 1..])
        }
        _ => (line, None, ""),
    }
}

fn keyword<T: Copy>(table: &[(&str, T)], word: Option<&str>) -> Option<T> {
    let word = word?;
    table.iter().find(|(keyword, _)| keyword.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
}
