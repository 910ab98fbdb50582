//! Parser of a descriptor's lines and values.

use blk::{Error, Result};

use super::extent::{self, DISK_SECTORS_MAX, Extent};
use crate::text::{check_text, shown, utf8, wrong};

/// `parentCID` of a link without parent.
pub const NO_PARENT_CID: u32 = 0xffff_ffff;

/// Written into a child that no configuration names yet, and taken out when one does. A descriptor with this line that nothing
/// refers to holds no data of a guest: it is what an interrupted take left behind.
pub(super) const PREPARED_MARK: &str = "# unstun: prepared, and not in use before this line is removed";

/// Before the id of the VM a link was made for. Folders are shared, and only that VM may remove or commit the link.
pub(super) const OWNER_MARK: &str = "# unstun: of VM ";

/// What a descriptor says, apart from its lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Fields {
    pub version: u32,
    pub cid: u32,
    /// `None` when absent or `ffffffff`.
    pub parent_cid: Option<u32>,
    pub parent_hint: Option<String>,
    pub create_type: String,
    pub extents: Vec<Extent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The whole line with its terminator, if it has one.
    pub raw: Vec<u8>,
    pub kind: LineKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LineKind {
    /// A blank line or a comment.
    Other,
    Field {
        key: String,
        /// The value without quotes, in the encoding of the file.
        value: Vec<u8>,
    },
    Extent(Extent),
}

impl Line {
    pub(super) fn field(key: &str, value: &str, quoted: bool, newline: &[u8]) -> Self {
        // Header keys are written without blanks, and those of the disk data base with blanks; QEMU searches for these
        // forms.
        let raw = match (key.starts_with("ddb."), quoted) {
            (true, _) => format!("{key} = \"{value}\""),
            (false, true) => format!("{key}=\"{value}\""),
            (false, false) => format!("{key}={value}"),
        };
        Self { raw: with(raw, newline), kind: LineKind::Field { key: key.into(), value: value.into() } }
    }

    pub(super) fn extent(extent: Extent, newline: &[u8]) -> Self {
        Self { raw: with(extent.to_string(), newline), kind: LineKind::Extent(extent) }
    }

    pub(super) fn value_of(&self, key: &str) -> Option<&[u8]> {
        match &self.kind {
            LineKind::Field { key: own, value } if own.eq_ignore_ascii_case(key) => Some(value),
            _ => None,
        }
    }

    pub(super) fn is_prepared_mark(&self) -> bool {
        self.raw.trim_ascii() == PREPARED_MARK.as_bytes()
    }

    pub(super) fn owner(&self) -> Option<u128> {
        owner_of(&self.raw)
    }
}

fn owner_of(line: &[u8]) -> Option<u128> {
    let digits = std::str::from_utf8(line.trim_ascii().strip_prefix(OWNER_MARK.as_bytes())?).ok()?;
    let plain = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

fn with(text: String, newline: &[u8]) -> Vec<u8> {
    let mut raw = text.into_bytes();
    raw.extend_from_slice(newline);
    raw
}

/// Splits the text into lines and classifies them. Also returns the line end that the file uses. Bytes after the text's
/// end are dropped.
pub(super) fn lines(file: &str, bytes: &[u8]) -> Result<(Vec<Line>, &'static [u8])> {
    check_text(file, bytes)?;
    let mut lines = Vec::new();
    for (index, raw) in text_of(file, bytes)?.split_inclusive(|b| *b == b'\n').enumerate() {
        lines.push(Line { raw: raw.to_vec(), kind: classify(file, index + 1, raw)? });
    }
    let crlf = lines.first().is_some_and(|line| line.raw.ends_with(b"\r\n"));
    Ok((lines, if crlf { b"\r\n" } else { b"\n" }))
}

/// Returns the text without the NULs after it: files cut out of an embedded descriptor end with NULs.
///
/// QEMU writes a CID without leading zeros over a longer one, moves the rest of the text forward, and ends it with a
/// NUL. The last bytes of the earlier text then remain after that NUL (`vmdk_write_cid` in its `block/vmdk.c`).
/// Anything else after a NUL is damage.
fn text_of<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (text, behind) = bytes.split_at(end);
    let from = behind.iter().position(|b| *b != 0).unwrap_or(behind.len());
    let to = behind.iter().rposition(|b| *b != 0).map_or(from, |at| at + 1);
    let left = &behind[from..to];
    if !text.ends_with(left) {
        let found = shown(&String::from_utf8_lossy(left));
        return Err(wrong(file, &format!("what follows the NUL at byte {end}"), found, "nothing but NULs"));
    }
    Ok(text)
}

fn classify(file: &str, number: usize, raw: &[u8]) -> Result<LineKind> {
    let line = raw.trim_ascii();
    if line.is_empty() || line[0] == b'#' {
        return Ok(LineKind::Other);
    }
    if extent::is_extent(line) {
        return Ok(LineKind::Extent(extent::parse(file, number, line)?));
    }
    let not_understood = || {
        let text = shown(&String::from_utf8_lossy(line));
        wrong(file, &format!("line {number}"), text, "key=value, an extent or a # comment")
    };
    let equals = line.iter().position(|b| *b == b'=').ok_or_else(not_understood)?;
    let key = std::str::from_utf8(line[..equals].trim_ascii()).map_err(|_| not_understood())?;
    if key.is_empty() || key.contains(|c: char| c.is_ascii_whitespace() || c.is_control()) {
        return Err(not_understood());
    }
    let value = line[equals + 1..].trim_ascii();
    let value = match value.strip_prefix(b"\"") {
        None => value,
        Some(quoted) => {
            let end = quoted.iter().rposition(|b| *b == b'"').ok_or_else(not_understood)?;
            &quoted[..end]
        }
    };
    Ok(LineKind::Field { key: key.into(), value: value.into() })
}

/// Reads and checks the values of the lines.
pub(super) fn facts(file: &str, lines: &[Line]) -> Result<Fields> {
    check_probe(file, lines)?;
    let version = match required(file, lines, "version")? {
        "1" => 1,
        "2" => 2,
        "3" => 3,
        other => {
            let cause = format!("version is {}, expected 1, 2 or 3", shown(other));
            return Err(Error::unsupported(file, cause));
        }
    };
    let parent_cid = match header(file, lines, "parentCID")? {
        Some(value) => Some(cid(file, "parentCID", value)?).filter(|cid| *cid != NO_PARENT_CID),
        None => None,
    };
    let facts = Fields {
        version,
        cid: cid(file, "CID", required(file, lines, "CID")?)?,
        parent_cid,
        parent_hint: header(file, lines, "parentFileNameHint")?.map(Into::into),
        create_type: required(file, lines, "createType")?.into(),
        extents: extents(file, lines)?,
    };
    check_parent(file, &facts)?;
    Ok(facts)
}

/// Checks that the first line with content is the version; otherwise this is some other text.
fn check_probe(file: &str, lines: &[Line]) -> Result<()> {
    let first = lines.iter().find(|line| line.kind != LineKind::Other);
    if first.is_some_and(|line| line.value_of("version").is_some()) {
        return Ok(());
    }
    let found =
        first.map_or_else(|| "nothing".into(), |line| shown(&String::from_utf8_lossy(line.raw.trim_ascii())));
    Err(wrong(file, "the first line that is no comment", found, "version=1: is this a disk descriptor?"))
}

/// Returns the value of a header key. A key must not be given twice, because readers disagree on which one counts.
fn header<'a>(file: &str, lines: &'a [Line], key: &str) -> Result<Option<&'a str>> {
    let mut values = lines.iter().filter_map(|line| line.value_of(key));
    let Some(first) = values.next() else { return Ok(None) };
    let first = utf8(file, key, first)?;
    if let Some(second) = values.next() {
        let second = shown(&String::from_utf8_lossy(second));
        let cause =
            format!("{key} is given twice, as {} and as {second}; remove one of the lines", shown(first));
        return Err(Error::damaged(file, cause));
    }
    Ok(Some(first))
}

fn required<'a>(file: &str, lines: &'a [Line], key: &str) -> Result<&'a str> {
    header(file, lines, key)?.ok_or_else(|| wrong(file, key, "absent", "a line with it"))
}

fn cid(file: &str, key: &str, value: &str) -> Result<u32> {
    let plain = (1..=8).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_hexdigit());
    let number = plain.then(|| u32::from_str_radix(value, 16).ok()).flatten();
    number.ok_or_else(|| wrong(file, key, shown(value), "1 to 8 hexadecimal digits"))
}

fn check_parent(file: &str, facts: &Fields) -> Result<()> {
    match (&facts.parent_hint, facts.parent_cid) {
        (Some(hint), None) => {
            let expected = format!("the CID of the parent, as parentFileNameHint is {}", shown(hint));
            Err(wrong(file, "parentCID", "ffffffff or absent", &expected))
        }
        (None, Some(cid)) => {
            let expected = format!("the name of the parent, as parentCID is {cid:08x}");
            Err(wrong(file, "parentFileNameHint", "absent", &expected))
        }
        (Some(hint), Some(_)) if hint.is_empty() => {
            Err(wrong(file, "parentFileNameHint", "empty", "the name of the parent"))
        }
        _ => Ok(()),
    }
}

fn extents(file: &str, lines: &[Line]) -> Result<Vec<Extent>> {
    let found = lines.iter().filter_map(|line| match &line.kind {
        LineKind::Extent(extent) => Some(extent.clone()),
        _ => None,
    });
    let extents: Vec<Extent> = found.collect();
    if extents.is_empty() {
        return Err(wrong(
            file,
            "the list of extents",
            "empty",
            "at least one line such as RW 2048 VMFS \"x-flat.vmdk\"",
        ));
    }
    // A file of `TEXT_BYTES_MAX` has fewer than 2^21 extents of less than 2^54 sectors. A sum beyond 64 bits is too
    // large in any case.
    let total = extents.iter().fold(0, |sum: u64, extent| sum.saturating_add(extent.sectors));
    if total > DISK_SECTORS_MAX {
        let expected = format!("at most {DISK_SECTORS_MAX} (64 TiB): VMware's largest disk has 62 TB");
        return Err(wrong(file, "the sum of all extents", format!("{total} sectors"), &expected));
    }
    Ok(extents)
}
