//! The members of a tar: headers of ustar, GNU and pax, read block by block.
//!
//! Facts: POSIX.1-2024 `pax`, "ustar Interchange Format"; GNU tar, "Basic Tar Format". Only regular files are members. A tar
//! without its end blocks is accepted if its last member is whole.

use std::collections::BTreeSet;
use std::ops::Range;

use blk::{Error, Result, SECTOR};

use crate::text::{shown, utf8, wrong};

/// A header is one block, and data is padded to blocks.
pub(crate) const BLOCK_BYTES: u64 = SECTOR;
/// Maximum number of headers, those of long names included. An OVA has a descriptor, a manifest, a certificate, and at most some
/// hundred disks.
const HEADERS_MAX: usize = 4096;
/// Maximum length of the records of a pax header, and of a long name of GNU tar.
const RECORDS_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a member's name.
const NAME_BYTES_MAX: usize = 4096;
/// Sizes are added to offsets, and both fit in 63 bits.
const SIZE_MAX: u64 = i64::MAX as u64 / 2;

/// Greatest size in the octal digits of a header, 8 GiB.
const OCTAL_SIZE_MAX: u64 = (1 << 33) - 1;

/// Byte ranges of a header's fields, or their begins.
mod field {
    use std::ops::Range;

    pub(super) const NAME: Range<usize> = 0..100;
    pub(super) const MODE: usize = 100;
    pub(super) const OWNER: usize = 108;
    pub(super) const GROUP: usize = 116;
    pub(super) const TIME: usize = 136;
    pub(super) const SIZE: Range<usize> = 124..136;
    pub(super) const CHECKSUM: Range<usize> = 148..156;
    pub(super) const KIND: usize = 156;
    pub(super) const MAGIC: Range<usize> = 257..263;
    pub(super) const PREFIX: Range<usize> = 345..500;
}

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name without a leading `./`. It is untrusted.
    pub name: String,
    /// Bytes of its content in the archive.
    pub at: Range<u64>,
}

impl Member {
    /// Returns the length.
    pub fn bytes(&self) -> u64 {
        self.at.end - self.at.start
    }
}

/// Returns the header of a new member: ustar, with the size in base 256 where octal digits do not suffice, as GNU tar and
/// VMware's tools have it.
///
/// # Errors
/// `Invalid` for a name that would need an extension.
pub fn member_header(name: &str, bytes: u64) -> Result<[u8; BLOCK_BYTES as usize]> {
    // A NUL ends the name.
    if name.len() >= field::NAME.len() {
        let expected = format!("at most {} bytes", field::NAME.len() - 1);
        return Err(wrong(name, "the length of a member's name", name.len(), &expected));
    }
    let mut header = [0; BLOCK_BYTES as usize];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(field::NAME.start, name.as_bytes());
    put(field::MODE, b"0000644\0");
    put(field::OWNER, b"0000000\0");
    put(field::GROUP, b"0000000\0");
    match bytes <= OCTAL_SIZE_MAX {
        true => put(field::SIZE.start, format!("{bytes:011o}\0").as_bytes()),
        false => {
            put(field::SIZE.start, &[0x80, 0, 0, 0]);
            put(field::SIZE.start + 4, &bytes.to_be_bytes());
        }
    }
    put(field::TIME, b"00000000000\0");
    put(field::CHECKSUM.start, b"        ");
    put(field::KIND, b"0");
    put(field::MAGIC.start, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[field::CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

/// Part of the archive that [`Walk::feed`] needs next.
enum Wanted {
    Header,
    /// The long name of the next member, or its pax records. `bool` is true for records.
    Text {
        len: u64,
        is_records: bool,
    },
}

/// A walk over the headers of an archive, which does no I/O: the caller reads what [`Walk::wanted`] returns and feeds it.
pub(crate) struct Walk<'a> {
    file: &'a str,
    file_bytes: u64,
    at: u64,
    next: Option<Wanted>,
    headers: usize,
    /// From a header in front of the next member: its name and its size.
    name: Option<Vec<u8>>,
    size: Option<u64>,
    members: Vec<Member>,
    names: BTreeSet<String>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(file: &'a str, file_bytes: u64) -> Walk<'a> {
        let next = Some(Wanted::Header);
        let (members, names) = (Vec::new(), BTreeSet::new());
        Walk { file, file_bytes, at: 0, next, headers: 0, name: None, size: None, members, names }
    }

    /// Returns the part of the file to read; None at the end. It is inside of the file, and at most 64 KiB.
    pub(crate) fn wanted(&self) -> Option<Range<u64>> {
        let len = match self.next.as_ref()? {
            Wanted::Header => BLOCK_BYTES,
            Wanted::Text { len, .. } => *len,
        };
        (self.at + len <= self.file_bytes).then(|| self.at..self.at + len)
    }

    /// Takes the content of the part that was wanted.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        match self.next.take() {
            Some(Wanted::Header) => self.header(bytes),
            Some(Wanted::Text { len, is_records }) => {
                match is_records {
                    true => self.records(bytes)?,
                    false => self.name = Some(until_nul(bytes).to_vec()),
                }
                self.at += len.next_multiple_of(BLOCK_BYTES);
                self.next = Some(Wanted::Header);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns the members. The walk has ended.
    pub(crate) fn finish(self) -> Result<Vec<Member>> {
        if let Some(member) = self.members.last()
            && member.at.end > self.file_bytes
        {
            let place = format!("bytes {} to {}", member.at.start, member.at.end);
            let cause = format!("the member {} is {place}", shown(&member.name));
            return Err(self.cut(&cause));
        }
        if self.name.is_some() || self.size.is_some() || matches!(self.next, Some(Wanted::Text { .. })) {
            return Err(self.cut("the last header is of a member that does not follow"));
        }
        Ok(self.members)
    }

    fn cut(&self, cause: &str) -> Error {
        let expected = format!("expected an end at or before byte {}, the end of the file", self.file_bytes);
        Error::damaged(
            self.file,
            format!("{cause}, {expected}: the archive was cut; copy, download or export it again"),
        )
    }

    fn header(&mut self, block: &[u8]) -> Result<()> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        self.headers += 1;
        if self.headers > HEADERS_MAX {
            let cause = format!("the archive has more than {HEADERS_MAX} headers");
            return Err(Error::unsupported(self.file, format!("{cause}, expected the files of one VM")));
        }
        self.check_checksum(block)?;
        let size = self.size_of(&block[field::SIZE])?;
        self.at += BLOCK_BYTES;
        match block[field::KIND] {
            b'0' | 0 => self.member(block, size),
            b'L' => self.text(size, false),
            b'x' => self.text(size, true),
            // Records for all members: none that matters here is ever global.
            b'g' => {
                self.at += size.next_multiple_of(BLOCK_BYTES);
                self.next = Some(Wanted::Header);
                Ok(())
            }
            kind => {
                let name = shown(&String::from_utf8_lossy(&header_name(block)));
                let found = format!("the type '{}' of {name}", kind.escape_ascii());
                let expected = "expected regular files only: is this an OVA? Make it with `tar --format=ustar -cf VM.ova VM.ovf VM.mf DISK...`";
                Err(Error::unsupported(self.file, format!("{found}, {expected}")))
            }
        }
    }

    fn text(&mut self, len: u64, is_records: bool) -> Result<()> {
        if len == 0 || len > RECORDS_BYTES_MAX {
            let expected = format!("1 to {RECORDS_BYTES_MAX} bytes");
            return Err(self.wrong("the size of a long name or of pax records", len, &expected));
        }
        self.next = Some(Wanted::Text { len, is_records });
        Ok(())
    }

    fn member(&mut self, block: &[u8], size: u64) -> Result<()> {
        let (raw, size) = (self.name.take(), self.size.take().unwrap_or(size));
        let raw = raw.unwrap_or_else(|| header_name(block));
        let name = utf8(self.file, "the name of a member", &raw)?;
        let name = name.trim_start_matches("./");
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let expected = format!("1 to {NAME_BYTES_MAX} bytes");
            return Err(self.wrong("the length of a member's name", name.len(), &expected));
        }
        if !self.names.insert(name.to_owned()) {
            let expected = "each name once";
            return Err(self.wrong("the name of a member", format!("{} again", shown(name)), expected));
        }
        let at = self.at..self.at + size;
        self.at += size.next_multiple_of(BLOCK_BYTES);
        self.next = Some(Wanted::Header);
        self.members.push(Member { name: name.to_owned(), at });
        Ok(())
    }

    /// Compares the checksum of a header: the sum of its bytes, with blanks in the place of the sum.
    fn check_checksum(&self, block: &[u8]) -> Result<()> {
        let byte =
            |(at, byte): (usize, &u8)| u64::from(if field::CHECKSUM.contains(&at) { b' ' } else { *byte });
        let sum: u64 = block.iter().enumerate().map(byte).sum();
        let found = octal(&block[field::CHECKSUM]);
        if found == Some(sum) {
            return Ok(());
        }
        let found = found.map_or("not a number".to_owned(), |found| found.to_string());
        let expected = format!("{sum}: is this an OVA (an uncompressed tar), and was it copied whole?");
        Err(self.wrong("the checksum", found, &expected))
    }

    /// Returns the value of a size field: octal digits, or 95 bits of a number if the first bit is set.
    fn size_of(&self, bytes: &[u8]) -> Result<u64> {
        let size = match bytes[0] & 0x80 {
            0 => octal(bytes),
            _ => base_256(bytes),
        };
        size.filter(|size| *size <= SIZE_MAX).ok_or_else(|| {
            let found = format!("\"{}\"", bytes.escape_ascii());
            self.wrong("the size of a member", found, "octal digits, or a number of at most 62 bits")
        })
    }

    /// Reads the records of a pax header: `LENGTH KEY=VALUE` and a line feed, where the length counts all of it.
    fn records(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some((record, rest)) = record(bytes) else {
                let found = format!("\"{}\"", bytes[..bytes.len().min(40)].escape_ascii());
                return Err(self.wrong("a pax record", found, "a length, a key and a value"));
            };
            bytes = rest;
            match record {
                (b"path", value) => self.name = Some(value.to_vec()),
                (b"size", value) => {
                    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    let Some(size) = number.filter(|size| *size <= SIZE_MAX) else {
                        let found = shown(&String::from_utf8_lossy(value));
                        return Err(self.wrong("the pax record size", found, "a decimal number"));
                    };
                    self.size = Some(size);
                }
                (key, _) if key.starts_with(b"GNU.sparse.") => {
                    let cause =
                        "a member is stored without its holes (GNU.sparse), expected its whole content";
                    return Err(Error::unsupported(
                        self.file,
                        format!("{cause}; make the archive without --sparse"),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn wrong(&self, field: &str, found: impl std::fmt::Display, expected: &str) -> Error {
        let header = self.at / BLOCK_BYTES * BLOCK_BYTES;
        wrong(self.file, &format!("{field}, in or behind the header at byte {header},"), found, expected)
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}

/// Returns the name in a header. Only POSIX's form has a prefix: GNU's has other fields there.
fn header_name(block: &[u8]) -> Vec<u8> {
    let (name, prefix) = (until_nul(&block[field::NAME]), until_nul(&block[field::PREFIX]));
    if &block[field::MAGIC] != b"ustar\0" || prefix.is_empty() {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

fn octal(bytes: &[u8]) -> Option<u64> {
    let digits = until_nul(bytes).trim_ascii();
    let digit = |value: u64, byte: &u8| match byte {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, digit).filter(|_| !digits.is_empty())
}

/// Returns a positive number of at most 64 bits.
fn base_256(bytes: &[u8]) -> Option<u64> {
    let first = u64::from(bytes[0] & 0x7f);
    bytes[1..].iter().try_fold(first, |value, byte| Some(value.checked_mul(256)? + u64::from(*byte)))
}

/// Key and value of a pax record.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Splits the first record off. Returns it and the rest.
fn record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let text = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|byte| *byte == b'=')?;
    Some(((&text[..equals], &text[equals + 1..]), &bytes[len..]))
}
