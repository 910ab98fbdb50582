//! A source: a read-only image below the store, and its item in the catalogue.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::{Admission, TaskMutex};
use blk::volume::Volume;
use blk::{Error, ErrorKind, Result};

use super::bytes::{Reader, Writer};
use super::key::{Key, USER_KINDS};
use super::layout::{BLOCK, DEVICE_MAX};
use super::superblock::Superblock;
use super::tree::span;

/// Greatest source: a pointer of level 5 maps all of it, and its blocks have numbers below 2^48.
pub(super) const SOURCE_BLOCKS_MAX: u64 = span(5);

/// Most reads of an image that are noted for its landing, 8 bytes each.
const WANTED_MAX: usize = 1024;

/// A source of an open store.
pub struct Source {
    /// Number of the source in entries, 1 to 254.
    pub device: u8,
    /// Where the image is, as its user has written it.
    pub name: String,
    /// Length of the image.
    pub bytes: u64,
    /// Node of the landing map.
    pub(super) landing: u64,
    /// Blocks below this one have landed: the landing map has those of them that are not zeros.
    pub(super) landed: Cell<u64>,
    pub(super) image: RefCell<Option<Rc<dyn Volume>>>,
    /// No disk was made over it since it was added: it stays until the next opening.
    pub(super) waits: Cell<bool>,
    pub(super) landing_turn: TaskMutex,
    /// Its landing waits for space.
    held: Cell<bool>,
    /// Blocks that guests have read from the image, the latest last: they land next.
    wanted: RefCell<VecDeque<u64>>,
    /// Reads that may use the image.
    pub(super) uses: Rc<Admission>,
}

impl Source {
    pub(super) fn new(device: u8, item: SourceItem) -> Source {
        let SourceItem { landing, bytes, landed, name } = item;
        Source {
            device,
            name,
            bytes,
            landing,
            landed: Cell::new(landed),
            image: RefCell::default(),
            waits: Cell::default(),
            landing_turn: TaskMutex::default(),
            held: Cell::default(),
            wanted: RefCell::default(),
            uses: Rc::default(),
        }
    }

    pub(super) fn item(&self) -> SourceItem {
        let (landing, bytes, landed) = (self.landing, self.bytes, self.landed.get());
        SourceItem { landing, bytes, landed, name: self.name.clone() }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK)
    }

    /// Returns whether all of the image has landed. The image is not needed any more when that is durable, as it is
    /// after `land`.
    pub fn has_landed(&self) -> bool {
        self.landed.get() == self.blocks()
    }

    /// Returns the number of bytes, from the start of the image, that have landed.
    pub fn landed_bytes(&self) -> u64 {
        self.bytes.min(self.landed.get() * BLOCK)
    }

    /// Returns whether the image is attached.
    pub fn is_attached(&self) -> bool {
        self.image.borrow().is_some()
    }

    /// Makes the landing wait for space, or go on: guests need what is left.
    pub fn hold_landing(&self, held: bool) {
        self.held.set(held);
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Notes that a guest has read blocks from the image. Of many, the first ones are forgotten: they land in order.
    pub(super) fn want(&self, blocks: &Range<u64>) {
        let mut wanted = self.wanted.borrow_mut();
        if wanted.len() == WANTED_MAX {
            wanted.pop_front();
        }
        wanted.push_back(blocks.start);
    }

    /// Returns the blocks of the next reads that were noted, at most `most` of them.
    pub(super) fn take_wanted(&self, most: usize) -> Vec<u64> {
        let mut wanted = self.wanted.borrow_mut();
        let count = most.min(wanted.len());
        wanted.drain(..count).collect()
    }

    pub(super) fn detach(&self) {
        self.image.take();
    }
}

/// Returns the error of a part of a source that has not landed, and whose image is not there.
pub(super) fn not_attached(source: &Source, blocks: &Range<u64>) -> Error {
    let cause = format!(
        "its image is not attached, and blocks {}..{} have not been copied from it yet; make the image available again",
        blocks.start, blocks.end
    );
    Error::new(ErrorKind::Refused, format!("source {}", source.name), cause)
}

/// Kind of the items of sources.
pub(super) const SOURCE: u8 = USER_KINDS + 6;

/// Longest name of a source: a path, or the address of an export.
const NAME_BYTES_MAX: usize = 4096;

/// The catalogue's item for a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceItem {
    pub landing: u64,
    pub bytes: u64,
    pub landed: u64,
    pub name: String,
}

pub(super) fn source_key(device: u8) -> Key {
    Key { kind: SOURCE, major: 0, minor: device.into() }
}

/// Returns the number of the source that a key is for.
pub(super) fn device_of_key(key: Key, place: &str) -> Result<u8> {
    match u8::try_from(key.minor) {
        Ok(device @ 1..=DEVICE_MAX) if key.major == 0 => Ok(device),
        _ => {
            let cause = format!("number of a source is {}, expected 1 to {DEVICE_MAX}", key.minor);
            Err(Error::damaged(place, cause))
        }
    }
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    match name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => {
            Err(format!("the name of a source has {} bytes, expected at most {NAME_BYTES_MAX}", name.len()))
        }
    }
}

impl SourceItem {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.landing).u64(self.bytes).u64(self.landed).bytes(self.name.as_bytes());
        out.done()
    }

    pub(super) fn decode(bytes: &[u8], place: &str) -> Result<SourceItem> {
        let mut input = Reader::new(bytes, place);
        let landing = input.u64("node of what landed of a source")?;
        let bytes = input.u64_up_to("size of a source", SOURCE_BLOCKS_MAX * BLOCK)?;
        let landed = input.u64_up_to("landed blocks of a source", bytes.div_ceil(BLOCK))?;
        let name = input.text_up_to("name of a source", NAME_BYTES_MAX)?;
        Ok(SourceItem { landing, bytes, landed, name })
    }
}

/// Returns the sources among the items of a catalogue.
pub(super) fn read_sources(
    items: &BTreeMap<Key, Vec<u8>>,
    superblock: &Superblock,
    place: &str,
) -> Result<BTreeMap<u8, Rc<Source>>> {
    let mut sources = BTreeMap::new();
    let all =
        Key { kind: SOURCE, major: 0, minor: 0 }..=Key { kind: SOURCE, major: u128::MAX, minor: u64::MAX };
    for (key, value) in items.range(all) {
        if !superblock.has_sources() {
            let cause = "a source, expected none in a store without the feature bit for them";
            return Err(Error::damaged(place, cause));
        }
        let device = device_of_key(*key, place)?;
        sources.insert(device, Rc::new(Source::new(device, SourceItem::decode(value, place)?)));
    }
    Ok(sources)
}
