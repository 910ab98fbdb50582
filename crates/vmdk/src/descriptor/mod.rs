//! The text descriptor of a link of a virtual disk: the extents with its data, and the parent on which it was made.
//!
//! Facts: reference/vmware-formats section 1. Keys are compared without case. Lines that are not changed, including
//! comments and unknown keys, are written back byte for byte. Parsing checks everything that can be checked without
//! opening another file, so the accessors cannot fail.

mod create;
mod extent;
mod parse;

use blk::Result;

pub use create::flat_text;
pub(crate) use create::{NewBase, NewChild, NewStream, note_for_child_of};
pub(crate) use extent::DISK_SECTORS_MAX;
pub use extent::{Access, Extent, ExtentKind};

pub use parse::NO_PARENT_CID;
use parse::{Fields, Line, LineKind, OWNER_MARK, PREPARED_MARK};

use crate::text::wrong;

/// Identity of a link's content: 128 bits, of which the low 32 are its CID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(u128);

impl ContentId {
    /// Creates an ID from 128 random bits. Avoids the two values with a special meaning (no parent, never written).
    pub fn from_random(random: u128) -> Self {
        let reserved = random as u32 >= 0xffff_fffe;
        ContentId(if reserved { random ^ 0x8000_0000 } else { random })
    }

    /// Creates an ID from random bits, with the CID that the children of a lost descriptor expect.
    pub(crate) fn with_cid(random: u128, cid: u32) -> Self {
        ContentId((random >> 32 << 32) | u128::from(cid))
    }

    /// Returns the low 32 bits, which every tool compares.
    pub fn cid(self) -> u32 {
        self.0 as u32
    }

    fn long(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// A parsed descriptor. `file` is the name used in errors; nothing is opened here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    file: String,
    lines: Vec<Line>,
    newline: &'static [u8],
    facts: Fields,
    /// The text is inside of the extent's file, and is never written.
    embedded: bool,
}

impl Descriptor {
    /// Parses a descriptor. Fails with `Damaged` if the text contradicts its format, and with `Unsupported` if it uses
    /// unsupported features.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let (lines, newline) = parse::lines(file, bytes)?;
        let facts = parse::facts(file, &lines)?;
        Ok(Self { file: file.into(), lines, newline, facts, embedded: false })
    }

    /// Makes it the descriptor inside of the file `name`, which is its extent whatever the text calls it: files are renamed
    /// without it.
    pub(crate) fn embed(mut self, name: &str) -> Result<Self> {
        match &mut self.facts.extents[..] {
            [only] if only.kind == ExtentKind::Sparse => only.file = name.to_owned(),
            extents => {
                let found =
                    format!("{} extents, the first of type {}", extents.len(), extents[0].kind.keyword());
                return Err(wrong(&self.file, "the descriptor inside", found, "one SPARSE extent"));
            }
        }
        self.embedded = true;
        Ok(self)
    }

    /// Returns whether the link is read and never written: a disk of Workstation, or an SEsparse delta that unstun did
    /// not make. `write_sesparse` admits those.
    pub(crate) fn is_read_only(&self, write_sesparse: bool) -> bool {
        let has = |kind| self.facts.extents.iter().any(|extent| extent.kind == kind);
        has(ExtentKind::Sparse) || (has(ExtentKind::SeSparse) && self.owner().is_none() && !write_sesparse)
    }

    /// Returns whether the text is inside of the extent's file, and cannot be replaced.
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded
    }

    /// Returns whether bytes are a descriptor, by QEMU's rule: `version=` after comments and blank lines.
    pub fn probe(bytes: &[u8]) -> bool {
        let first = bytes.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
        let mut meaningful = first.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        meaningful.next().is_some_and(|line| line.len() >= 8 && line[..8].eq_ignore_ascii_case(b"version="))
    }

    /// Returns the text; unchanged lines are byte for byte as read.
    ///
    /// Panics if the text is inside of the extent's file: that file would be replaced by the text.
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(!self.embedded, "{}: the descriptor is inside of the data's file", self.file);
        self.lines.iter().flat_map(|line| line.raw.iter().copied()).collect()
    }

    /// Returns the number of bytes and lines of the text.
    pub(crate) fn text_size(&self) -> (usize, usize) {
        (self.lines.iter().map(|line| line.raw.len()).sum(), self.lines.len())
    }

    /// Returns the name of this descriptor in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the version, 1 to 3; 3 means that changed blocks are tracked.
    pub fn version(&self) -> u32 {
        self.facts.version
    }

    /// Returns the `CID`, which changes with the content.
    pub fn cid(&self) -> u32 {
        self.facts.cid
    }

    /// Returns the CID that the parent had when this link was made; None for a base.
    pub fn parent_cid(&self) -> Option<u32> {
        self.facts.parent_cid
    }

    /// Returns the path of the parent as written. It is untrusted, and only a hint. `Some` exactly if `parent_cid` is.
    pub fn parent_hint(&self) -> Option<&str> {
        self.facts.parent_hint.as_deref()
    }

    /// Returns `createType` as written: `vmfs`, `vmfsSparse`.
    pub fn create_type(&self) -> &str {
        &self.facts.create_type
    }

    /// Returns the extents in the order of the disk; at least one.
    pub fn extents(&self) -> &[Extent] {
        &self.facts.extents
    }

    /// Returns the size of the disk in sectors. Its bytes fit in 64 bits too.
    pub fn capacity_sectors(&self) -> u64 {
        // The parser has checked the sum.
        self.facts.extents.iter().map(|extent| extent.sectors).sum()
    }

    /// Returns the value of `ddb.NAME`, if it is present and text.
    pub fn ddb(&self, name: &str) -> Option<&str> {
        let key = format!("ddb.{name}");
        self.lines
            .iter()
            .find_map(|line| line.value_of(&key))
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns true while no configuration names this child; see `NewChild`.
    pub fn is_prepared(&self) -> bool {
        !self.embedded && self.lines.iter().any(Line::is_prepared_mark)
    }

    /// Removes the mark of a prepared child.
    pub fn clear_prepared(&mut self) {
        self.lines.retain(|line| !line.is_prepared_mark());
    }

    /// Returns the VM that made this link, if the link contains it. Only unstun's links do.
    pub fn owner(&self) -> Option<u128> {
        self.lines.iter().find_map(Line::owner).filter(|_| !self.embedded)
    }

    /// Returns the path of the changed-block tracking as written; untrusted.
    pub fn change_track_path(&self) -> Option<&str> {
        let value = self.lines.iter().find_map(|line| line.value_of("changeTrackPath"))?;
        std::str::from_utf8(value).ok()
    }

    /// Sets a new content ID before the content changes, so that children elsewhere notice.
    pub fn set_content_id(&mut self, id: ContentId) {
        self.facts.cid = id.cid();
        self.set("CID", format!("{:08x}", id.cid()), false);
        self.set("ddb.longContentID", id.long(), true);
    }

    /// Sets `parent`, with the CID `parent_cid`, as the link below this one.
    pub fn set_parent(&mut self, parent: &str, parent_cid: u32) {
        self.facts.parent_cid = Some(parent_cid);
        self.facts.parent_hint = Some(parent.into());
        self.set("parentCID", format!("{parent_cid:08x}"), false);
        self.set("parentFileNameHint", parent.into(), true);
    }

    /// Sets the number of sectors of extent `index` after a resize. Panics if there is no such extent.
    pub fn set_extent_sectors(&mut self, index: usize, sectors: u64) {
        assert!(sectors > 0, "an extent has at least one sector");
        self.facts.extents[index].sectors = sectors;
        let extent = self.facts.extents[index].clone();
        let mut lines = self.lines.iter_mut().filter(|line| matches!(line.kind, LineKind::Extent(_)));
        if let Some(line) = lines.nth(index) {
            *line = Line::extent(extent, self.newline);
        }
    }

    /// Sets the cylinders for a new size. Heads and sectors stay, because a guest's boot loader may depend on them.
    pub fn update_geometry(&mut self) {
        let number = |name: &str| self.ddb(name).and_then(|value| value.parse::<u64>().ok());
        let (heads, sectors) = (number("geometry.heads"), number("geometry.sectors"));
        let capacity = self.capacity_sectors();
        let cylinders =
            heads.zip(sectors).and_then(|(heads, sectors)| create::cylinders(capacity, heads, sectors));
        if let Some(cylinders) = cylinders {
            self.set("ddb.geometry.cylinders", cylinders.to_string(), true);
        }
    }

    /// Removes the reference to changed-block tracking, which does not cover unstun's writes. Returns true if there was
    /// one: the next backup must then be a full one.
    pub fn drop_change_tracking(&mut self) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| line.value_of("changeTrackPath").is_none());
        if self.facts.version == 3 {
            self.facts.version = 1;
            self.set("version", "1".into(), false);
        }
        self.lines.len() != before
    }

    /// Replaces the value of `key` in its line. A new header key is inserted before the first extent, a new `ddb.` key
    /// at the end.
    fn set(&mut self, key: &str, value: String, quoted: bool) {
        let line = Line::field(key, &value, quoted, self.newline);
        if let Some(old) = self.lines.iter_mut().find(|line| line.value_of(key).is_some()) {
            if old.value_of(key) != Some(value.as_bytes()) {
                *old = line;
            }
            return;
        }
        let first_extent = self.lines.iter().position(|line| matches!(line.kind, LineKind::Extent(_)));
        match first_extent {
            Some(at) if !key.starts_with("ddb.") => self.lines.insert(at, line),
            _ => {
                if let Some(last) = self.lines.last_mut().filter(|last| !last.raw.ends_with(b"\n")) {
                    last.raw.extend_from_slice(self.newline);
                }
                self.lines.push(line);
            }
        }
    }
}

#[cfg(test)]
mod tests;
