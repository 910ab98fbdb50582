//! One page of the map: its layout on the medium, its verification, and its smaller form in memory.
//!
//! Header: magic, store id, own address, checksum, birth, first block, count of mapped blocks below (u64 each), level
//! (u8), zeros; then 252 entries (level 0) or 126 pointers.

use std::cell::Cell;
use std::fmt::Display;
use std::ops::Range;

use blk::{Buf, Error, Result};
use zerocopy::IntoBytes;

use super::entry::*;
use crate::native::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, FLAGS_SHIFT, STORE_ID_AT, WORD_BITS, WORD_MASK, advance, device_of,
    get_u64, has_space, lost_word, page_checksum, put_head, put_u64, seal_page,
};

const MAGIC: u64 = u64::from_le_bytes(*b"unstnMAP");
const BIRTH_AT: usize = 32;
const FIRST_BLOCK_AT: usize = 40;
const COUNT_AT: usize = 48;
/// Level in the first byte, kind of the tree in the second; the other six have the node of the page's tag.
const LEVEL_AT: usize = 56;
const NODE_SHIFT: u32 = 16;
const KIND_MASK: u64 = 1;
/// A root of places has a root of backing blocks with the same tag and birth.
const PAIRED: u64 = 2;
/// The page was written as the root of a tree. It may be an inner page of a tree that has grown since.
const ROOT: u64 = 4;
/// The words of birth, first block and count have 16 bits each of the tag's checkpoint, the lowest first.
const CHECKPOINT_AT: [usize; 3] = [BIRTH_AT, FIRST_BLOCK_AT, COUNT_AT];
const PART_BITS: u32 = 64 - WORD_BITS;

/// Most runs of a leaf that is kept as runs: 126 * 16 B are half of the 4032 B of a dense one.
const RUNS_MAX: usize = LEAF_ENTRIES / 2;

pub(super) type Entries = [Entry; LEAF_ENTRIES];
pub(super) const NO_ENTRIES: Entries = [Entry { addr: 0, birth: 0 }; LEAF_ENTRIES];

/// A run within a leaf, holes included: an entry's two words, with its first index and its length in the two bytes above
/// the birth. 16 bytes.
#[derive(Debug, Clone, Copy)]
struct Run {
    place: u64,
    born: u64,
}

const INDEX_SHIFT: u32 = WORD_BITS;
const LEN_SHIFT: u32 = WORD_BITS + 8;
const _: () = assert!(LEAF_ENTRIES <= 0xFF);

impl Run {
    fn new(start: usize, entry: Entry) -> Run {
        Run { place: entry.addr, born: entry.birth | (start as u64) << INDEX_SHIFT | 1 << LEN_SHIFT }
    }

    fn start(&self) -> u64 {
        self.born >> INDEX_SHIFT & 0xFF
    }

    fn end(&self) -> u64 {
        self.start() + (self.born >> LEN_SHIFT)
    }

    /// Returns the entry at `index`, which is inside of the run.
    fn entry(&self, index: u64) -> Entry {
        Entry { addr: advance(self.place, index - self.start()), birth: self.born & WORD_MASK }
    }

    /// Extends the run by the next entry if that continues it, and returns whether it did.
    fn extend(&mut self, entry: Entry) -> bool {
        let fits = self.entry(self.end()) == entry;
        self.born += u64::from(fits) << LEN_SHIFT;
        fits
    }
}

#[derive(Debug, Clone)]
pub(super) struct Body(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Runs(Box<[Run]>),
    Dense(Box<Entries>),
    Pointers(Box<[Pointer]>),
}

impl Body {
    pub(super) fn leaf(entries: &Entries) -> Body {
        let mut runs: Vec<Run> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            if runs.last_mut().is_none_or(|last| !last.extend(*entry)) {
                runs.push(Run::new(index, *entry));
            }
        }
        if runs.len() > RUNS_MAX {
            return Body(Kind::Dense(Box::new(*entries)));
        }
        Body(Kind::Runs(runs.into()))
    }

    pub(super) fn interior(children: &[Pointer]) -> Body {
        assert_eq!(children.len(), FANOUT, "children of a node");
        Body(Kind::Pointers(children.into()))
    }

    /// Returns the body of a page of holes, which only a root has.
    pub(super) fn holes(level: u8) -> Body {
        match level {
            0 => Body::leaf(&NO_ENTRIES),
            _ => Body::interior(&[Pointer::HOLE; FANOUT]),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match &self.0 {
            Kind::Pointers(children) => children.iter().all(Pointer::is_hole),
            Kind::Runs(runs) => runs.iter().all(|run| run.place == 0),
            Kind::Dense(entries) => entries.iter().all(|entry| entry.addr == 0),
        }
    }

    /// Returns the word of the first block if all blocks are consecutive ones of a device. `level` is the node's.
    pub(super) fn device_word(&self, level: u8) -> Option<u64> {
        let word = match &self.0 {
            Kind::Pointers(children) => {
                let (first, step) = (children[0].addr, span(level - 1));
                let follows = |(n, child): (usize, &Pointer)| child.addr == first + n as u64 * step;
                children.iter().enumerate().all(follows).then_some(first)
            }
            Kind::Runs(runs) if runs.len() == 1 => Some(runs[0].place),
            _ => None,
        };
        word.filter(|word| device_of(*word) != 0)
    }

    /// Returns the number of blocks of the store that are mapped below.
    pub(super) fn count(&self) -> u64 {
        match &self.0 {
            Kind::Pointers(children) => children.iter().map(|child| child.count).sum(),
            _ => self.entries().iter().filter(|entry| has_space(entry.addr)).count() as u64,
        }
    }

    /// Returns the entries of a leaf.
    fn entries(&self) -> Entries {
        let mut entries = NO_ENTRIES;
        match &self.0 {
            Kind::Dense(dense) => entries = **dense,
            Kind::Runs(runs) => {
                for run in runs {
                    for index in run.start()..run.end() {
                        entries[index as usize] = run.entry(index);
                    }
                }
            }
            Kind::Pointers(_) => unreachable!("entries of an interior node"),
        }
        entries
    }

    fn put(&self, bytes: &mut [u8]) {
        match &self.0 {
            Kind::Pointers(children) => bytes.copy_from_slice(children.as_bytes()),
            _ => bytes.copy_from_slice(self.entries().as_bytes()),
        }
    }

    fn heap_bytes(&self) -> usize {
        match &self.0 {
            Kind::Runs(runs) => size_of_val::<[Run]>(runs),
            Kind::Dense(_) => size_of::<Entries>(),
            Kind::Pointers(children) => size_of_val::<[Pointer]>(children),
        }
    }
}

/// A verified page, or one made by a merge.
#[derive(Debug)]
pub(super) struct Node {
    pub spot: Spot,
    body: Body,
    /// The page is damaged, and all blocks below are lost.
    pub is_lost: bool,
    /// State of the cache: whether the node was used since the hand last passed it, and its seat. A node is in one cache
    /// at most.
    pub used: Cell<bool>,
    pub seat: Cell<Seat>,
}

/// Place of a node in a cache: the store that it belongs to, and its index in the ring.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seat {
    pub owner: u32,
    pub index: u32,
}

impl Node {
    fn new(spot: Spot, body: Body) -> Node {
        Node { spot, body, is_lost: false, used: Cell::new(false), seat: Cell::default() }
    }

    /// Makes a new node of `body` and its page. `spot` has everything of the pointer but count and checksum.
    pub(super) fn seal(store_id: u64, marks: PageMarks, mut spot: Spot, body: Body) -> (Node, Buf) {
        spot.pointer.count = body.count();
        let mut page = Buf::zeroed(BLOCK as usize);
        put_head(&mut page, MAGIC, store_id, spot.pointer.addr);
        let words = [spot.pointer.birth, spot.first, spot.pointer.count];
        for (part, (at, word)) in CHECKPOINT_AT.into_iter().zip(words).enumerate() {
            let checkpoint = marks.tag.checkpoint >> (part as u32 * PART_BITS);
            put_u64(&mut page, at, word | checkpoint << WORD_BITS);
        }
        let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let kind = marks.kind as u64 | flag(marks.paired, PAIRED) | flag(marks.is_root, ROOT);
        put_u64(&mut page, LEVEL_AT, u64::from(spot.level) | kind << 8 | marks.tag.node << NODE_SHIFT);
        body.put(&mut page[HEADER_BYTES..]);
        spot.pointer.checksum = seal_page(&mut page);
        (Node::new(spot, body), page)
    }

    /// Verifies and decodes the page of store `store_id` at `spot`. Returns `Damaged` unless every field matches the
    /// pointer and the path to it.
    pub(super) fn open(name: &str, store_id: u64, spot: &Spot, page: &[u8]) -> Result<Node> {
        let reader = Reader { name, spot, page };
        reader.check_header(store_id)?;
        let body = reader.body()?;
        let (found, expected) = (body.count(), spot.pointer.count);
        if found != expected {
            return Err(reader.wrong("number of mapped blocks", found, expected));
        }
        Ok(Node::new(*spot, body))
    }

    /// Returns a node whose blocks are all lost, in the place of a page that is damaged. None for a level whose pointers
    /// cannot say so; no disk is that large.
    pub(super) fn lost(spot: &Spot) -> Option<Node> {
        let body = match spot.level {
            0 => Body::leaf(&std::array::from_fn(|index| Entry {
                addr: lost_word(spot.first + index as u64),
                birth: 0,
            })),
            level if level < LEVEL_MAX => {
                let child =
                    |index: usize| Pointer::lost(level - 1, spot.first + index as u64 * span(level - 1));
                Body::interior(&std::array::from_fn::<_, FANOUT, _>(child))
            }
            _ => return None,
        };
        Some(Node { is_lost: true, ..Node::new(*spot, body) })
    }

    /// Returns a copy of the content.
    pub(super) fn body(&self) -> Body {
        self.body.clone()
    }

    pub(super) fn bytes(&self) -> usize {
        /// Size of the cache's index entry, its seat, and the counts of the `Rc`.
        const OVERHEAD: usize = 64;
        size_of::<Node>() + OVERHEAD + self.body.heap_bytes()
    }

    /// Returns the children of an interior node; none for a leaf.
    pub(super) fn children(&self) -> &[Pointer] {
        if let Kind::Pointers(children) = &self.body.0 { children } else { &[] }
    }

    /// Returns the child over `block`, which is below this interior node.
    pub(super) fn child_at(&self, block: u64) -> Spot {
        let level = self.spot.level - 1;
        let index = (block - self.spot.first) / span(level);
        let first = self.spot.first + index * span(level);
        Spot { level, first, pointer: self.children()[index as usize] }
    }

    /// Returns the entries of a leaf.
    pub(super) fn entries(&self) -> Entries {
        self.body.entries()
    }

    /// Appends the runs of `blocks`, which are inside of this leaf.
    pub(super) fn push_runs(&self, blocks: Range<u64>, mark: usize, out: &mut Vec<Mapped>) {
        let base = self.spot.first;
        let range = blocks.start - base..blocks.end - base;
        let mut push = |start: u64, len: u64, entry: Entry| {
            push_run(out, mark, Mapped { start: base + start, len, addr: entry.addr, birth: entry.birth });
        };
        match &self.body.0 {
            Kind::Runs(runs) => {
                let first = runs.partition_point(|run| run.end() <= range.start);
                for run in runs[first..].iter().take_while(|run| run.start() < range.end) {
                    let (start, end) = (run.start().max(range.start), run.end().min(range.end));
                    push(start, end - start, run.entry(start));
                }
            }
            Kind::Dense(entries) => range.for_each(|index| push(index, 1, entries[index as usize])),
            Kind::Pointers(_) => unreachable!("runs of an interior node"),
        }
    }
}

/// What a page's header says beside its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageMarks {
    pub kind: TreeKind,
    /// The page is a root of places, and the state has a root of backing blocks with the same tag and birth.
    pub paired: bool,
    pub is_root: bool,
    pub tag: PageTag,
}

/// The header of a map page without the fields that every page has.
pub(super) struct PageFields {
    pub marks: PageMarks,
    pub spot: Spot,
}

impl PageFields {
    /// Decodes the header of a page; nothing of it is checked.
    pub(super) fn get(page: &[u8]) -> PageFields {
        let words = CHECKPOINT_AT.map(|at| get_u64(page, at));
        let part = |n: usize| words[n] >> WORD_BITS << (n as u32 * PART_BITS);
        let level = get_u64(page, LEVEL_AT);
        let kind = if level >> 8 & KIND_MASK == 0 { TreeKind::Places } else { TreeKind::Backings };
        let tag = PageTag { node: level >> NODE_SHIFT, checkpoint: part(0) | part(1) | part(2) };
        let [birth, first, count] = words.map(|word| word & WORD_MASK);
        let pointer =
            Pointer { addr: get_u64(page, ADDRESS_AT), birth, checksum: get_u64(page, CHECKSUM_AT), count };
        PageFields {
            marks: PageMarks { kind, paired: level >> 8 & PAIRED != 0, is_root: level >> 8 & ROOT != 0, tag },
            spot: Spot { level: level as u8, first, pointer },
        }
    }

    /// Returns the fields of a page that is one of the store's map pages, at its own address.
    pub(super) fn of_page(store_id: u64, addr: u64, page: &[u8]) -> Option<PageFields> {
        let is_one = get_u64(page, 0) == MAGIC
            && get_u64(page, STORE_ID_AT) == store_id
            && get_u64(page, ADDRESS_AT) == addr
            && get_u64(page, CHECKSUM_AT) == page_checksum(page);
        Some(PageFields::get(page)).filter(|fields| is_one && fields.spot.level <= LEVEL_MAX)
    }
}

/// A page, and what the path to it requires.
struct Reader<'a> {
    name: &'a str,
    spot: &'a Spot,
    page: &'a [u8],
}

impl Reader<'_> {
    fn damaged(&self, cause: String) -> Error {
        Error::damaged(self.name, format!("map page at block {}: {cause}", self.spot.pointer.addr))
    }

    fn wrong(&self, field: &str, found: impl Display, expected: impl Display) -> Error {
        self.damaged(format!("{field} is {found}, expected {expected}"))
    }

    fn check(&self, field: &str, at: usize, expected: u64) -> Result<()> {
        self.compare(field, get_u64(self.page, at), expected)
    }

    fn check_header(&self, store_id: u64) -> Result<()> {
        let Spot { level, first, pointer } = *self.spot;
        self.check("magic", 0, MAGIC)?;
        self.check("store id", STORE_ID_AT, store_id)?;
        self.check("own address", ADDRESS_AT, pointer.addr)?;
        self.check("checksum against its content", CHECKSUM_AT, page_checksum(self.page))?;
        self.check("checksum against its parent", CHECKSUM_AT, pointer.checksum)?;
        let fields = PageFields::get(self.page);
        self.compare("birth", fields.spot.pointer.birth, pointer.birth)?;
        self.compare("level", u64::from(fields.spot.level), u64::from(level))?;
        self.compare("first block", fields.spot.first, first)?;
        self.compare("count", fields.spot.pointer.count, pointer.count)
    }

    fn compare(&self, field: &str, found: u64, expected: u64) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(self.wrong(field, format_args!("{found:#x}"), format_args!("{expected:#x}")))
    }

    fn body(&self) -> Result<Body> {
        let bytes = &self.page[HEADER_BYTES..];
        if self.spot.level > 0 {
            let mut children = Vec::with_capacity(FANOUT);
            for (index, at) in bytes.chunks_exact(POINTER_BYTES).enumerate() {
                let child = Pointer::get(at, self.spot.level - 1);
                let child = child.map_err(|cause| self.damaged(format!("pointer {index}: {cause}")))?;
                self.check_birth("pointer", index, child.birth)?;
                children.push(child);
            }
            return Ok(Body::interior(&children));
        }
        let flags_max = match PageFields::get(self.page).marks.kind {
            TreeKind::Places => 0,
            TreeKind::Backings => MASK_MAX,
        };
        let mut entries = NO_ENTRIES;
        for (index, at) in bytes.chunks_exact(ENTRY_BYTES).enumerate() {
            entries[index] =
                Entry::get(at, flags_max).map_err(|cause| self.damaged(format!("entry {index}: {cause}")))?;
            self.check_birth("entry", index, entries[index].birth)?;
            if flags_max > 0 && entries[index].addr != 0 && entries[index].addr >> FLAGS_SHIFT == 0 {
                return Err(self.wrong(&format!("sector mask of entry {index}"), 0, "1 to 254"));
            }
        }
        Ok(Body::leaf(&entries))
    }

    fn check_birth(&self, what: &str, index: usize, found: u64) -> Result<()> {
        let latest = self.spot.pointer.birth;
        if found <= latest {
            return Ok(());
        }
        Err(self.wrong(&format!("birth of {what} {index}"), found, format_args!("at most {latest}")))
    }
}
