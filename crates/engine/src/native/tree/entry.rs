//! Encoding of the map: entries of leaves, pointers to nodes, roots, and the ranges of blocks that they cover.

use std::ops::Range;

use blk::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::native::backing::Backing;
use crate::native::layout::{
    BLOCK, FLAGS_SHIFT, WORD_BITS, WORD_MASK, addr_of, advance, device_of, get_struct, get_u64, lost_word,
};

/// Length of a page's header; entries or pointers follow.
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();
pub(super) const POINTER_BYTES: usize = size_of::<Pointer>();
/// Entries of a leaf: (4096 - 64) / 16 = 252 blocks, 1008 KiB of disk.
pub(super) const LEAF_ENTRIES: usize = (BLOCK as usize - HEADER_BYTES) / ENTRY_BYTES;
/// Children of an interior node: (4096 - 64) / 32 = 126.
pub(super) const FANOUT: usize = (BLOCK as usize - HEADER_BYTES) / POINTER_BYTES;

/// Highest level: 252 * 126^7 blocks are more than 2^56, and a disk of 2^63 bytes has 2^51 of them.
pub(crate) const LEVEL_MAX: u8 = 7;

/// Blocks below a node of each level. It has one level more, which only walks use: 252 * 126^8 is still below 2^64.
const SPANS: [u64; LEVEL_MAX as usize + 2] = spans();

const fn spans() -> [u64; LEVEL_MAX as usize + 2] {
    let mut all = [LEAF_ENTRIES as u64; LEVEL_MAX as usize + 2];
    let mut level = 1;
    while level < all.len() {
        all[level] = all[level - 1] * FANOUT as u64;
        level += 1;
    }
    all
}

/// Returns the number of blocks below a node of `level`: 252 * 126^level.
pub(crate) const fn span(level: u8) -> u64 {
    SPANS[level as usize]
}

/// Checks the words that an entry and a pointer have in common: the reserved bits are zero.
fn check_words(place: u64, born: u64, flags_max: u64) -> Result<(), String> {
    let (addr, device, flags) = (addr_of(place), device_of(place), place >> FLAGS_SHIFT);
    let (birth, reserved) = (born & WORD_MASK, born >> WORD_BITS);
    if device != 0 && (birth, flags) != (0, 0) {
        return Err(format!("birth on device {device} is {birth}, its flags {flags:#x}, expected 0"));
    }
    if device != 0 && flags_max != 0 {
        return Err(format!("device of a backing block is {device}, expected 0"));
    }
    if flags > flags_max {
        return Err(format!(
            "flags are {flags:#x}, expected at most {flags_max:#x}: was it written by a newer version?"
        ));
    }
    if reserved != 0 {
        return Err(format!("reserved bits are {reserved:#x}, expected 0"));
    }
    if addr == 0 && device == 0 && (birth, flags) != (0, 0) {
        return Err(format!("birth of a hole is {birth}, its flags {flags:#x}, expected 0"));
    }
    Ok(())
}

/// The place of one block of a disk. All zero: a hole. `addr` is the whole word, with device and flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Entry {
    pub addr: u64,
    pub birth: u64,
}

impl Entry {
    pub(super) fn get(bytes: &[u8], flags_max: u64) -> Result<Entry, String> {
        let entry: Entry = get_struct(bytes);
        check_words(entry.addr, entry.birth, flags_max)?;
        Ok(entry)
    }
}

/// Greatest sector mask: a block that has all of its eight sectors has none.
pub(super) const MASK_MAX: u64 = 0xFE;

/// The place of a child and the expected properties of its page. All zero: a hole. With a device other than 0, the
/// blocks below are those of the device from the address on, and there is no page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Pointer {
    pub addr: u64,
    pub birth: u64,
    pub checksum: u64,
    /// Number of mapped blocks below it.
    pub count: u64,
}

impl Pointer {
    pub(super) const HOLE: Pointer = Pointer { addr: 0, birth: 0, checksum: 0, count: 0 };

    /// Returns the pointer for blocks of a device, the first of which has this word.
    pub(super) fn of_device(word: u64) -> Pointer {
        Pointer { addr: word, ..Pointer::HOLE }
    }

    /// Returns the pointer for lost blocks from `first` on; blocks behind the largest disk are a hole.
    pub(super) fn lost(level: u8, first: u64) -> Pointer {
        match first + span(level) > WORD_MASK + 1 {
            true => Pointer::HOLE,
            false => Pointer::of_device(lost_word(first)),
        }
    }

    pub fn is_hole(&self) -> bool {
        self.addr == 0
    }

    pub(super) fn is_page(&self) -> bool {
        !self.is_hole() && device_of(self.addr) == 0
    }

    /// Decodes a pointer; `level` is that of the node to which it points.
    pub(super) fn get(bytes: &[u8], level: u8) -> Result<Pointer, String> {
        let pointer: Pointer = get_struct(bytes);
        check_words(pointer.addr, pointer.birth, 0)?;
        if !pointer.is_page() && (pointer.checksum, pointer.count) != (0, 0) {
            return Err("without a page there is a checksum or a count, expected zeros".to_string());
        }
        if device_of(pointer.addr) != 0 && addr_of(pointer.addr) + span(level) > WORD_MASK + 1 {
            let first = addr_of(pointer.addr);
            return Err(format!(
                "{} blocks of a device from {first} on end behind 2^{WORD_BITS}",
                span(level)
            ));
        }
        if pointer.count > span(level) {
            return Err(format!("count is {}, expected at most {}", pointer.count, span(level)));
        }
        Ok(pointer)
    }
}

/// The root of a tree. It covers blocks `0..span(level)`; blocks behind are holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// At most `LEVEL_MAX`.
    pub level: u8,
    /// Never a hole: a tree without entries has no root.
    pub pointer: Pointer,
}

impl Root {
    /// Length of a root in the catalogue: level u8, 7 zeros, pointer.
    pub const BYTES: usize = 8 + POINTER_BYTES;

    /// Encodes a root into `bytes`, which are `Root::BYTES`; all zero for a tree without entries.
    pub fn put(root: Option<&Root>, bytes: &mut [u8]) {
        bytes.fill(0);
        if let Some(root) = root {
            bytes[0] = root.level;
            bytes[8..Root::BYTES].copy_from_slice(root.pointer.as_bytes());
        }
    }

    /// Decodes a root. Returns `Damaged`, at `place`, for a root that no tree can have.
    pub fn get(bytes: &[u8], place: &str) -> Result<Option<Root>> {
        let wrong = |cause: String| Error::damaged(place, format!("root of a map: {cause}"));
        let level = get_u64(bytes, 0);
        if level > u64::from(LEVEL_MAX) {
            return Err(wrong(format!("level is {level}, expected at most {LEVEL_MAX}")));
        }
        let level = level as u8;
        let pointer = Pointer::get(&bytes[8..], level).map_err(wrong)?;
        if pointer.is_hole() && level != 0 {
            return Err(wrong(format!("level of an empty one is {level}, expected 0")));
        }
        Ok((!pointer.is_hole()).then_some(Root { level, pointer }))
    }

    /// Returns the lowest root that maps at least `blocks` blocks onto those of a device; None if no block is.
    pub fn of_device(word: u64, blocks: u64) -> Option<Root> {
        let level = (0..=LEVEL_MAX).find(|level| blocks <= span(*level)).filter(|_| blocks > 0)?;
        Some(Root { level, pointer: Pointer::of_device(word) })
    }

    pub(super) fn spot(&self) -> Spot {
        Spot { level: self.level, first: 0, pointer: self.pointer }
    }
}

/// Content of a tree. Every page has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TreeKind {
    /// Places of blocks. The flags of entries are 0, and only here entries have devices.
    Places = 0,
    /// Backing blocks, with sector masks as flags.
    Backings = 1,
}

/// The two trees of a state. Their leaves cover the same blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roots {
    /// Each block's place.
    pub places: Option<Root>,
    /// For each block that has only some sectors at its place: the mask of these, and the block that has the others.
    pub backings: Option<Root>,
}

impl Roots {
    /// Returns the number of data blocks of both trees.
    pub fn blocks(&self) -> u64 {
        [self.places, self.backings].iter().flatten().map(|root| root.pointer.count).sum()
    }
}

/// The part of a page's header that says who wrote it: it takes part in no read, and a rebuild finds the trees by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageTag {
    /// The node that ran when its changes were made; 0 in a store whose pages have no tags.
    pub node: u64,
    /// The checkpoint that wrote it.
    pub checkpoint: u64,
}

/// A place in a tree and the pointer there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub level: u8,
    pub first: u64,
    pub pointer: Pointer,
}

impl Spot {
    pub(super) fn end(&self) -> u64 {
        self.first + span(self.level)
    }

    /// Returns the first word of the entry of `block`, which is within the spot, if there is no page.
    pub(super) fn word_at(&self, block: u64) -> u64 {
        advance(self.pointer.addr, block - self.first)
    }
}

/// The content of a tree at a place of itself or of a larger tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Hole,
    Page(Pointer),
    /// The blocks of a device, the first of which has this word.
    Device(u64),
    /// The place is above the root. The root is its first descendant at the root's level.
    Above(Root),
}

impl Source {
    /// Returns the pointer to what is at the place.
    pub(super) fn pointer(&self) -> Pointer {
        match *self {
            Source::Hole | Source::Above(_) => Pointer::HOLE,
            Source::Page(pointer) => pointer,
            Source::Device(word) => Pointer::of_device(word),
        }
    }

    /// Returns the entries of a place of level 0 that has no page.
    pub(super) fn entries(&self) -> [Entry; LEAF_ENTRIES] {
        let Source::Device(word) = *self else { return [Entry::default(); LEAF_ENTRIES] };
        std::array::from_fn(|index| Entry { addr: word + index as u64, birth: 0 })
    }

    /// Returns the source at block 0 of `level`, which is not below the root's level.
    pub(super) fn top(root: Option<&Root>, level: u8) -> Source {
        match root {
            None => Source::Hole,
            Some(root) if root.level == level => Source::of(root.pointer),
            Some(root) => Source::Above(*root),
        }
    }

    pub(super) fn of(pointer: Pointer) -> Source {
        match (pointer.is_hole(), pointer.is_page()) {
            (true, _) => Source::Hole,
            (_, true) => Source::Page(pointer),
            _ => Source::Device(pointer.addr),
        }
    }

    /// Returns child `index`, which is of `level`; `children` are those of the page, if it is one.
    pub(super) fn child(&self, level: u8, index: usize, children: &[Pointer]) -> Source {
        match self {
            Source::Page(_) => children.get(index).map_or(Source::Hole, |pointer| Source::of(*pointer)),
            Source::Device(word) => Source::Device(word + index as u64 * span(level)),
            Source::Above(root) if index == 0 => Source::top(Some(root), level),
            Source::Above(_) | Source::Hole => Source::Hole,
        }
    }
}

/// A maximal run of blocks of a disk that are contiguous in the file and have one birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    pub start: u64,
    pub len: u64,
    /// 0: a hole. In the tree of backing blocks the flags are the sector mask, the same for all blocks; in the other
    /// one there may be a device.
    pub addr: u64,
    /// 0 for a hole, and for blocks of a device.
    pub birth: u64,
}

impl Mapped {
    fn is_continued_by(&self, next: &Mapped) -> bool {
        let addr = advance(self.addr, self.len);
        self.start + self.len == next.start && self.birth == next.birth && addr == next.addr
    }
}

/// Appends a run, or extends the last one if that is at or behind index `mark`.
pub(super) fn push_run(out: &mut Vec<Mapped>, mark: usize, run: Mapped) {
    match out[mark..].last_mut() {
        Some(last) if last.is_continued_by(&run) => last.len += run.len,
        _ => out.push(run),
    }
}

/// Appends blocks without a page: a hole, or blocks of a device, the first of which has `word`.
pub(super) fn push_span(out: &mut Vec<Mapped>, mark: usize, blocks: Range<u64>, word: u64) {
    push_run(out, mark, Mapped { start: blocks.start, len: blocks.end - blocks.start, addr: word, birth: 0 });
}

/// A change that a merge makes at `start..start + len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    pub start: u64,
    pub len: u64,
    /// 0: unmap. In the tree of backing blocks the flags are the sector mask.
    pub addr: u64,
    pub birth: u64,
    /// The block that has the rest of the sectors, which the merge must not free; then `len` is 1.
    pub backing: Backing,
}

impl Update {
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns the update of the tree of backing blocks.
    pub(super) fn of_backing(&self) -> Update {
        let Backing { place, birth } = self.backing;
        Update { addr: place, birth, backing: Backing::NONE, ..*self }
    }

    /// Returns the new entry of `block`, one of the update's blocks.
    pub(super) fn entry(&self, block: u64) -> Entry {
        if self.addr == 0 {
            return Entry::default();
        }
        Entry { addr: advance(self.addr, block - self.start), birth: self.birth }
    }

    pub(super) fn check(&self, stamp: u64) {
        assert!(self.len > 0, "an update of no blocks: {self:?}");
        assert!(self.addr == 0 || self.birth <= stamp, "born after its node, {stamp}: {self:?}");
        let end = addr_of(self.addr) + self.len;
        assert!(device_of(self.addr) == 0 || self.birth == 0, "born on a device: {self:?}");
        assert!(self.addr == 0 || end <= WORD_MASK, "more than {WORD_BITS} bits: {self:?}");
        assert!(stamp <= WORD_MASK, "generation {stamp} has more than {WORD_BITS} bits");
    }
}
