//! The journal's records and their encoding. Every record is a multiple of 8 bytes: a word of kind and length, then
//! words. `docs/formats/native.md` has the diagrams.

use blk::{Error, Result};

use super::super::backing::{ALL_SECTORS, Backing};
use super::super::layout::{get_u64, put_u64};

/// Longest payload of a `Change`: 32 pages, so that the record and its batch's header take 33 of a batch's 64.
pub(crate) const CHANGE_BYTES_MAX: usize = 128 << 10;

/// Addresses, block numbers and generations have 48 bits in the map's entries.
const FIELD_END: u64 = 1 << 48;

const KIND_MAP: u8 = 1;
const KIND_UNMAP: u8 = 2;
const KIND_CHANGE: u8 = 3;
const KIND_SECTORS: u8 = 4;

/// Length of the word of kind and length.
const PREFIX: usize = 8;
const MAP_BYTES: usize = PREFIX + 5 * 8;
const UNMAP_BYTES: usize = PREFIX + 4 * 8;
const SECTORS_BYTES: usize = PREFIX + 7 * 8;

/// Some sectors of one block that are at a new place from now on; the others are where they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectorsRecord {
    /// The lineage node.
    pub node: u64,
    /// The guest's block.
    pub block: u64,
    /// The new place.
    pub addr: u64,
    /// The generation in which the entry was made.
    pub birth: u64,
    /// All sectors that are at the new place, the first in the lowest bit.
    pub present: u8,
    /// Those of them that this record brings there.
    pub added: u8,
    /// The block that has the other sectors, whole and without doubt, and its birth.
    pub backing: (u64, u64),
    /// Checksum of the data of `added`, in the order of the sectors.
    pub checksum: u64,
}

impl SectorsRecord {
    /// Returns whether no earlier record brought sectors to this place.
    pub(crate) fn is_first(&self) -> bool {
        self.present == self.added
    }

    /// Returns the backing of the block if it has the sectors `present`.
    pub(crate) fn backing_of(&self, present: u8) -> Backing {
        Backing::new(present, self.backing.0, self.backing.1)
    }

    fn check(&self) -> Result<(), String> {
        check_field("address", self.addr)?;
        check_range("guest blocks", self.block, 1)?;
        check_birth(self.birth)?;
        check_field("address of the backing block", self.backing.0)?;
        check_birth(self.backing.1)?;
        if self.added == 0 || self.added & !self.present != 0 || self.added == ALL_SECTORS {
            let (added, present) = (self.added, self.present);
            return Err(format!(
                "sectors {added:#x} are added to get {present:#x}, expected some of them, not all"
            ));
        }
        check_field("node", self.node)
    }
}

/// One record. Blocks are 4 KiB; `node` is a lineage node, `birth` the generation in which the entry was made.
// Each variant says what its fields are.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Guest blocks `start..start + len` are at `addr` from now on; `checksum` is that of their data.
    Map { node: u64, start: u64, len: u32, addr: u64, birth: u64, checksum: u64 },
    /// Guest blocks `start..start + len` read as zeros and have no space.
    Unmap { node: u64, start: u64, len: u64, birth: u64 },
    /// Some sectors of one block are elsewhere from now on.
    Sectors(SectorsRecord),
    /// A change of lineage or catalogue, encoded; at most `CHANGE_BYTES_MAX`.
    Change(Vec<u8>),
}

impl Record {
    /// Returns the record's length in a batch.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Record::Map { .. } => MAP_BYTES,
            Record::Unmap { .. } => UNMAP_BYTES,
            Record::Sectors(_) => SECTORS_BYTES,
            Record::Change(payload) => PREFIX + payload.len().next_multiple_of(8),
        }
    }

    /// Encodes the record into `out`, which has `encoded_len` bytes. Panics on a field that `decode` would refuse,
    /// which is a bug of the caller.
    pub(super) fn encode(&self, out: &mut [u8]) {
        let length = match self {
            Record::Map { len, .. } => *len,
            Record::Unmap { .. } => 0,
            Record::Sectors(sectors) => u32::from(sectors.present) | u32::from(sectors.added) << 8,
            Record::Change(payload) => {
                assert!(payload.len() <= CHANGE_BYTES_MAX, "a change of {} bytes", payload.len());
                payload.len() as u32
            }
        };
        if let Err(field) = self.check() {
            panic!("appending {self:?}: {field}");
        }
        put_u64(out, 0, u64::from(self.kind()) | u64::from(length) << 32);
        match self {
            Record::Map { node, start, addr, birth, checksum, .. } => {
                put_words(out, [*node, *start, *addr, *birth, *checksum]);
            }
            Record::Unmap { node, start, len, birth } => put_words(out, [*node, *start, *len, *birth]),
            Record::Sectors(sectors) => {
                let SectorsRecord { node, block, addr, birth, backing, checksum, .. } = *sectors;
                put_words(out, [node, block, addr, birth, checksum, backing.0, backing.1]);
            }
            Record::Change(payload) => {
                out[PREFIX..PREFIX + payload.len()].copy_from_slice(payload);
                out[PREFIX + payload.len()..].fill(0);
            }
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Record::Map { .. } => KIND_MAP,
            Record::Unmap { .. } => KIND_UNMAP,
            Record::Sectors(_) => KIND_SECTORS,
            Record::Change(_) => KIND_CHANGE,
        }
    }

    /// Decodes the record at the head of `bytes`, and returns it with its length. `place` and `lsn` are for messages.
    pub(super) fn decode(bytes: &[u8], place: &str, lsn: u64) -> Result<(Record, usize)> {
        let refuse = |cause: String| Error::damaged(place, format!("journal record {lsn}: {cause}"));
        parse(bytes).map_err(refuse)
    }

    /// Checks the fields. The error is "field: found, expected".
    fn check(&self) -> Result<(), String> {
        match *self {
            Record::Map { node, start, len, addr, birth, .. } => {
                check_range("guest blocks", start, u64::from(len))?;
                check_range("address", addr, u64::from(len))?;
                check_field("address", addr)?;
                check_birth(birth)?;
                check_field("node", node)
            }
            Record::Unmap { node, start, len, birth } => {
                check_range("guest blocks", start, len)?;
                check_birth(birth)?;
                check_field("node", node)
            }
            Record::Sectors(sectors) => sectors.check(),
            Record::Change(_) => Ok(()),
        }
    }
}

fn put_words<const N: usize>(out: &mut [u8], words: [u64; N]) {
    for (n, word) in words.into_iter().enumerate() {
        put_u64(out, PREFIX + n * 8, word);
    }
}

fn check_field(name: &str, value: u64) -> Result<(), String> {
    match value {
        1..FIELD_END => Ok(()),
        _ => Err(format!("{name} is {value}, expected 1 to {}", FIELD_END - 1)),
    }
}

fn check_birth(birth: u64) -> Result<(), String> {
    if birth < FIELD_END { Ok(()) } else { Err(format!("birth is {birth}, expected less than {FIELD_END}")) }
}

fn check_range(name: &str, start: u64, len: u64) -> Result<(), String> {
    match start.checked_add(len) {
        Some(end) if len > 0 && end <= FIELD_END => Ok(()),
        _ => {
            Err(format!("{name} begin at {start} and are {len}, expected at least 1, ending by {FIELD_END}"))
        }
    }
}

fn parse(bytes: &[u8]) -> Result<(Record, usize), String> {
    if bytes.len() < PREFIX {
        return Err(format!("{} bytes are left in its batch, a record has at least {PREFIX}", bytes.len()));
    }
    let prefix = get_u64(bytes, 0);
    let (kind, length) = (prefix as u8, (prefix >> 32) as u32);
    if prefix & 0xffff_ff00 != 0 {
        return Err(format!("reserved bits of its first word {prefix:#018x} are set, expected none"));
    }
    let taken = encoded_len(kind, length)?;
    if taken > bytes.len() {
        return Err(format!("{taken} bytes long, but {} are left in its batch", bytes.len()));
    }
    let record = fields(kind, length, &bytes[PREFIX..taken]);
    record.check()?;
    Ok((record, taken))
}

fn encoded_len(kind: u8, length: u32) -> Result<usize, String> {
    match kind {
        KIND_MAP => Ok(MAP_BYTES),
        KIND_UNMAP if length == 0 => Ok(UNMAP_BYTES),
        KIND_UNMAP => Err(format!("length field of an unmap is {length}, expected 0")),
        KIND_CHANGE if length as usize <= CHANGE_BYTES_MAX => {
            Ok(PREFIX + (length as usize).next_multiple_of(8))
        }
        KIND_SECTORS if length <= u16::MAX.into() => Ok(SECTORS_BYTES),
        KIND_SECTORS => Err(format!("sectors of a block are {length:#x}, expected two masks of 8 bits")),
        KIND_CHANGE => Err(format!("a change of {length} bytes, expected at most {CHANGE_BYTES_MAX}")),
        _ => Err(format!("kind is {kind}, expected {KIND_MAP} to {KIND_SECTORS}")),
    }
}

/// Decodes the fields of a record of a known kind. `body` follows the first word, and has the length that the kind and
/// `length` require.
fn fields(kind: u8, length: u32, body: &[u8]) -> Record {
    let word = |n: usize| get_u64(body, n * 8);
    match kind {
        KIND_MAP => Record::Map {
            node: word(0),
            start: word(1),
            len: length,
            addr: word(2),
            birth: word(3),
            checksum: word(4),
        },
        KIND_UNMAP => Record::Unmap { node: word(0), start: word(1), len: word(2), birth: word(3) },
        KIND_SECTORS => Record::Sectors(SectorsRecord {
            node: word(0),
            block: word(1),
            addr: word(2),
            birth: word(3),
            present: length as u8,
            added: (length >> 8) as u8,
            backing: (word(5), word(6)),
            checksum: word(4),
        }),
        _ => Record::Change(body[..length as usize].to_vec()),
    }
}
