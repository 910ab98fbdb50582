//! The superblock: the root from which all other parts of a store are found. Two slots are written in turn, so that one
//! is whole whenever the power is lost. `docs/formats/native.md` has the diagrams.

use blk::{Buf, Error, ErrorKind, File, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::journal::{Begin, JOURNAL_PAGES_MIN, Position};
use super::layout::{
    ADDRESS_AT, BLOCK, CHECKSUM_AT, Geometry, HEAD_BYTES, STORE_ID_AT, get_struct, get_u64, page_checksum,
    put_head, seal_page,
};
use super::media::read_hard;
use super::space::GROUP_BLOCKS_MIN;

const MAGIC: u64 = u64::from_le_bytes(*b"unstunSB");

/// The blocks of slot A and slot B.
pub const SLOT_BLOCKS: [u64; 2] = [0, 8];

/// Version of the format. A greater major version has another layout; a greater minor one is compatible with this
/// program.
pub const VERSION: [u16; 2] = [1, 0];

/// Features that this program supports: `INCOMPAT_KNOWN` to read a store, `RO_COMPAT_KNOWN` to write one.
const INCOMPAT_KNOWN: u64 = SECTOR_MASKS | SOURCES | REBUILDABLE;
const RO_COMPAT_KNOWN: u64 = LEASED;
/// Read-only compatible: the store is written under its lease. A program that does not check the lease must not write
/// it.
pub(crate) const LEASED: u64 = 1;
/// Incompatible: blocks may have some of their sectors elsewhere, so nodes may have a second tree, and the journal records
/// of sectors.
pub(crate) const SECTOR_MASKS: u64 = 1;
/// Incompatible: blocks may be those of a source, so entries, pointers and nodes may have a device.
pub(crate) const SOURCES: u64 = 2;
/// Incompatible: the catalogue has two copies, map pages have tags, and blocks may be lost.
pub(crate) const REBUILDABLE: u64 = 4;

/// Number of ranges of `Superblock::abandoned`.
pub(crate) const ABANDONED_MAX: usize = 32;

/// A map's entries have 48 bits for an address and for a generation.
const FIELD_END: u64 = 1 << 48;
/// End of the generations that a store may be opened with. It leaves room above for births; at a thousand takes a
/// second it is reached after four thousand years.
const GENERATION_END: u64 = FIELD_END >> 1;
/// Greatest counter, which leaves room for sums: at a record each nanosecond it is reached after a century.
pub(crate) const COUNTER_END: u64 = 1 << 62;
/// Greatest ring, 64 GiB: a replay keeps all of its records in memory.
const JOURNAL_PAGES_MAX: u64 = 1 << 24;
/// Number of bits of a group's bitmap page: 4096 bytes less a header of 64.
const GROUP_BLOCKS_MAX: u64 = (4096 - 64) * 8;

/// Length of `Superblock::store_id`, which is in the page's head. The other fields follow the head.
const ID_BYTES: usize = size_of::<u64>();
/// Length of a superblock before `bitmaps_checksum`: earlier programs wrote heads of catalogues with it.
pub(crate) const SHORT_BYTES: usize = size_of::<Superblock>() - size_of::<u64>();
const FIELD_BYTES: usize = size_of::<Superblock>() - ID_BYTES;

/// Address of the catalogue's first page, and the checksum and length of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CatalogueHead {
    /// 0: the catalogue is empty.
    pub addr: u64,
    /// Length of the content in bytes.
    pub bytes: u64,
    /// Of the content, all pages together.
    pub checksum: u64,
}

/// The content of a superblock, as the page has it behind its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// Random number of the store; every page has it in its head.
    pub store_id: u64,
    /// Major and minor.
    pub version: [u16; 2],
    /// Always 0.
    pub reserved: u32,
    /// Feature bits: unknown ones have no effect.
    pub features_compat: u64,
    /// Feature bits: a store with unknown ones may be read but not written.
    pub features_ro_compat: u64,
    /// Feature bits: a store with unknown ones cannot be read.
    pub features_incompat: u64,
    /// Number of the opening that wrote the superblock.
    pub epoch: u64,
    /// Number of the checkpoint that the superblock describes.
    pub checkpoint: u64,
    /// The store's generation.
    pub generation: u64,
    /// Number of the next lineage node.
    pub next_node: u64,
    /// Length of the journal's ring in blocks.
    pub journal_pages: u64,
    /// Blocks of a group, its two bitmap pages included.
    pub group_blocks: u64,
    /// Groups that the file has grown to.
    pub groups: u64,
    /// The file was zero-written up to this block.
    pub ready_to: u64,
    /// Position at which a replay begins.
    pub journal: Position,
    /// The catalogue of this checkpoint.
    pub catalogue: CatalogueHead,
    /// Data of every record up to this one is durable.
    pub flushed_lsn: u64,
    /// 1: the journal was empty when the store was closed, so that nothing is missing beside it. Otherwise 0.
    pub clean: u64,
    /// Time at which the store was made, in microseconds since 1970 UTC.
    pub created_unix_us: i64,
    /// Epoch of the opening whose batch is at `journal`: a replay ignores batches of older ones.
    pub journal_epoch: u64,
    /// `Memory::boot` of the process that has the store open; 0 if that keeps nothing in the host's memory.
    pub boot: u64,
    /// `Memory::machine` of that process; 0 if it is unknown.
    pub machine: u64,
    /// The checkpoint that wrote the catalogue; an opening's superblock has the one of the superblock before. Only with
    /// `REBUILDABLE`, like the fields that follow.
    pub catalogue_checkpoint: u64,
    /// Address of the first page of the catalogue's second copy; 0: none.
    pub second_catalogue: u64,
    /// Pages of both copies.
    pub catalogue_pages: u64,
    /// Checkpoints that never became valid, as ranges of the first and the last number; zeros behind the last range.
    /// Pages in the file may have these numbers.
    pub abandoned: [[u64; 2]; ABANDONED_MAX],
    /// Pages of checkpoints up to this one may be of an abandoned one, because no range was left.
    pub abandoned_unknown: u64,
    /// Checksum over the bitmap pages of the last checkpoint; 0 if an earlier program wrote it.
    pub bitmaps_checksum: u64,
}

/// The superblock that counts, and the state of the other slot.
#[derive(Debug)]
pub struct Slots {
    /// The superblock with the higher number.
    pub newest: Superblock,
    /// 0 or 1.
    pub slot: usize,
    /// Why the other slot holds no superblock. It may have held a newer one: `newest` then counts only if the journal
    /// excludes that.
    pub other: Option<Error>,
}

impl Superblock {
    /// Returns the superblock of an empty store.
    pub fn first(geometry: &Geometry, created_unix_us: i64) -> Superblock {
        Superblock {
            store_id: geometry.store_id,
            version: VERSION,
            generation: 1,
            next_node: 1,
            journal_pages: geometry.journal_pages,
            group_blocks: geometry.group_blocks,
            ready_to: geometry.groups_start(),
            journal: Position { seq: 0, lsn: 1 },
            clean: 1,
            created_unix_us,
            ..Superblock::default()
        }
    }

    /// Returns the properties that are fixed when a store is made.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            store_id: self.store_id,
            journal_pages: self.journal_pages,
            group_blocks: self.group_blocks,
        }
    }

    /// Returns whether blocks may have some of their sectors elsewhere.
    pub fn has_sector_masks(&self) -> bool {
        self.features_incompat & SECTOR_MASKS != 0
    }

    /// Returns whether blocks may be those of a source.
    pub fn has_sources(&self) -> bool {
        self.features_incompat & SOURCES != 0
    }

    /// Returns whether the catalogue has two copies, map pages have tags, and blocks may be lost.
    pub fn is_rebuildable(&self) -> bool {
        self.features_incompat & REBUILDABLE != 0
    }

    /// Notes that pages of the next checkpoint may be in the file, although it never became valid.
    pub(crate) fn abandon_next(&mut self) {
        let number = self.checkpoint + 1;
        let used = self.abandoned.iter().take_while(|range| range[1] != 0).count();
        let last = used.checked_sub(1).map(|last| &mut self.abandoned[last]);
        // Between two openings without a checkpoint, no number is that of a valid one.
        if let Some(last) = last.filter(|last| self.catalogue_checkpoint < last[0]) {
            last[1] = number;
            return;
        }
        if used == ABANDONED_MAX {
            self.abandoned_unknown = self.abandoned[0][1];
            self.abandoned.rotate_left(1);
        }
        self.abandoned[used.min(ABANDONED_MAX - 1)] = [number, number];
    }

    /// Returns whether the checkpoint of this number became valid; None if that is unknown.
    pub(crate) fn became_valid(&self, checkpoint: u64) -> Option<bool> {
        let is_in = |range: &[u64; 2]| range[0] <= checkpoint && checkpoint <= range[1];
        match checkpoint {
            _ if checkpoint > self.catalogue_checkpoint => Some(false),
            _ if checkpoint == self.catalogue_checkpoint => Some(true),
            _ if checkpoint <= self.abandoned_unknown => None,
            _ => Some(!self.abandoned.iter().any(is_in)),
        }
    }

    /// Returns the slot of this superblock: 0 or 1, in turn.
    pub fn slot(&self) -> usize {
        (self.checkpoint % 2) as usize
    }

    /// Returns the head pages of the catalogue's copies.
    pub(crate) fn catalogue_heads(&self) -> [u64; 2] {
        [self.catalogue.addr, self.second_catalogue]
    }

    /// Returns where a replay begins, and what it must find.
    pub fn begin(&self) -> Begin {
        let (at, epoch, checkpoint) = (self.journal, self.journal_epoch, self.checkpoint);
        Begin { at, epoch, checkpoint, flushed_lsn: self.flushed_lsn }
    }

    /// Encodes the page for `slot`, 0 or 1.
    pub fn encode(&self, slot: usize) -> Buf {
        let mut page = Buf::zeroed(BLOCK as usize);
        put_head(&mut page, MAGIC, self.store_id, SLOT_BLOCKS[slot]);
        page[HEAD_BYTES..HEAD_BYTES + FIELD_BYTES].copy_from_slice(&self.as_bytes()[ID_BYTES..]);
        seal_page(&mut page);
        page
    }

    /// Decodes the page of `slot`; `name` is the file's.
    ///
    /// # Errors
    /// `Damaged`: magic, checksum or address is wrong, or a field is out of its range. `Unsupported`: a later version,
    /// or a feature that this program cannot read.
    pub fn decode(page: &[u8], slot: usize, name: &str) -> Result<Superblock> {
        let place = format!("{name}: superblock {} (block {})", ["A", "B"][slot], SLOT_BLOCKS[slot]);
        check_page(page, slot).map_err(|cause| Error::damaged(&*place, cause))?;
        let superblock = Superblock::get(page);
        superblock.check_readable().map_err(|cause| Error::unsupported(&*place, cause))?;
        superblock.check_fields().map_err(|cause| Error::damaged(&*place, cause))?;
        Ok(superblock)
    }

    fn get(page: &[u8]) -> Superblock {
        Superblock { store_id: get_u64(page, STORE_ID_AT), ..get_struct(&page[HEAD_BYTES - ID_BYTES..]) }
    }

    fn check_readable(&self) -> Result<(), String> {
        let [major, minor] = self.version;
        if major != VERSION[0] {
            return Err(format!(
                "the store has version {major}.{minor}, this program reads {}.x: use the one it was made with",
                VERSION[0]
            ));
        }
        match self.features_incompat & !INCOMPAT_KNOWN {
            0 => Ok(()),
            unknown => Err(format!(
                "incompatible feature bit {} is set and not known here: the store needs a later program",
                unknown.trailing_zeros()
            )),
        }
    }

    /// Returns `Unsupported`, with the bit, if the store has a feature with which this program may only read it.
    pub fn check_writable(&self, name: &str) -> Result<()> {
        match self.features_ro_compat & !RO_COMPAT_KNOWN {
            0 => Ok(()),
            unknown => Err(Error::unsupported(
                name,
                format!(
                    "read-only compatible feature bit {} is set and not known here: open the store read-only, or with \
                     a later program",
                    unknown.trailing_zeros()
                ),
            )),
        }
    }

    /// Checks a superblock that is not in its slot; the catalogue may have one copy only.
    pub(crate) fn check_limits(&self) -> Result<(), String> {
        self.check_readable()?;
        self.check_fields()
    }

    /// Checks every field that is used in arithmetic, so that none of it can overflow.
    fn check_fields(&self) -> Result<(), String> {
        let counters = 0..=COUNTER_END;
        check("journal_pages", self.journal_pages, JOURNAL_PAGES_MIN..=JOURNAL_PAGES_MAX)?;
        check("group_blocks", self.group_blocks, GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX)?;
        let groups_max = (FIELD_END - self.geometry().groups_start()) / self.group_blocks;
        check("groups", self.groups, 0..=groups_max)?;
        let end = self.geometry().group_start(self.groups);
        check("ready_to", self.ready_to, 0..=end)?;
        check("epoch", self.epoch, counters.clone())?;
        check("journal epoch", self.journal_epoch, 0..=self.epoch)?;
        check("checkpoint", self.checkpoint, counters.clone())?;
        check("generation", self.generation, 0..=GENERATION_END - 1)?;
        check("next node", self.next_node, counters.clone())?;
        check("journal page number", self.journal.seq, counters.clone())?;
        check("journal record number", self.journal.lsn, 1..=COUNTER_END)?;
        check("flushed_lsn", self.flushed_lsn, counters)?;
        self.check_catalogue(end)?;
        if self.is_rebuildable() {
            // The tags of map pages have 48 bits.
            check("checkpoint", self.checkpoint, 0..=GENERATION_END)?;
            check("checkpoint of the catalogue", self.catalogue_checkpoint, 0..=self.checkpoint)?;
        }
        check("clean flag", self.clean, 0..=1)
    }

    fn check_catalogue(&self, end: u64) -> Result<(), String> {
        let CatalogueHead { addr, bytes, .. } = self.catalogue;
        if addr == 0 {
            return check("bytes of a catalogue at address 0", bytes, 0..=0);
        }
        let groups = self.geometry().groups_start()..=end - 1;
        if self.is_rebuildable() {
            check("address of the catalogue's second copy", self.second_catalogue, groups.clone())?;
        }
        check("catalogue address", addr, groups)
    }

    /// Reads both slots and returns the newest whole superblock.
    ///
    /// # Errors
    /// `Invalid`: the file is no store. `Damaged`: it was one, and neither slot can be read, or the slots are of two
    /// stores. `Unsupported`: the newest superblock is of a later program; an older one is then no substitute.
    pub async fn read(file: &File) -> Result<Slots> {
        let mut slots = Vec::new();
        let (mut marked, end) = (false, file.size().await?);
        for (slot, block) in SLOT_BLOCKS.into_iter().enumerate() {
            if (block + 1) * BLOCK > end {
                let place = format!("{}: superblock at block {block}", file.name());
                slots.push(Err(Error::damaged(place, format!("the file ends before it, at byte {end}"))));
                continue;
            }
            let (page, result) = read_hard(&file.tables(), block * BLOCK, BLOCK).await;
            if let Err(e) = &result
                && e.kind == ErrorKind::LeaseLost
            {
                return Err(e.clone());
            }
            marked |= result.is_err() || get_u64(&page, 0) == MAGIC;
            slots.push(result.and_then(|()| Superblock::decode(&page, slot, file.name())));
        }
        if !marked {
            return Err(Error::invalid(
                file.name(),
                "not a store: neither block 0 nor block 8 is a superblock; if a store was overwritten there, `datastore rebuild` \
                 copies what can be read",
            ));
        }
        let [a, b] = <[_; 2]>::try_from(slots).expect("two slots");
        choose(file.name(), a, b)
    }

    /// Writes the superblock into its slot. It is durable after a flush. The other slot is unchanged.
    pub async fn write(&self, file: &File) -> Result<()> {
        let slot = self.slot();
        file.tables().write(SLOT_BLOCKS[slot] * BLOCK, self.encode(slot)).await
    }
}

fn choose(name: &str, a: Result<Superblock>, b: Result<Superblock>) -> Result<Slots> {
    let found = |newest, slot, other| Ok(Slots { newest, slot, other });
    match (a, b) {
        (Err(error), _) | (_, Err(error)) if error.kind == ErrorKind::Unsupported => Err(error),
        (Ok(a), Ok(b)) if a.store_id != b.store_id => {
            let (a, b) = (a.store_id, b.store_id);
            Err(Error::damaged(
                name,
                format!("superblock A is of store {a:016x}, superblock B of store {b:016x}"),
            ))
        }
        (Ok(a), Ok(b)) if a.checkpoint > b.checkpoint => found(a, 0, None),
        (a, Ok(b)) => found(b, 1, a.err()),
        (Ok(a), Err(b)) => found(a, 0, Some(b)),
        (Err(a), Err(b)) => {
            let cause =
                format!("no superblock can be read: {a}; {b}; `datastore rebuild` copies what can be read");
            Err(Error::damaged(name, cause))
        }
    }
}

/// Checks the fields that identify a page of this slot.
fn check_page(page: &[u8], slot: usize) -> Result<(), String> {
    let (magic, address, found) = (get_u64(page, 0), get_u64(page, ADDRESS_AT), get_u64(page, CHECKSUM_AT));
    if magic != MAGIC {
        return Err(format!("magic is {magic:#018x}, expected {MAGIC:#018x}"));
    }
    let expected = page_checksum(page);
    if found != expected {
        return Err(format!("checksum is {found:016x}, expected {expected:016x}"));
    }
    if address != SLOT_BLOCKS[slot] {
        return Err(format!("its own address is block {address}, expected {}", SLOT_BLOCKS[slot]));
    }
    Ok(())
}

fn check(field: &str, value: u64, allowed: std::ops::RangeInclusive<u64>) -> Result<(), String> {
    match allowed.contains(&value) {
        true => Ok(()),
        false => Err(format!("{field} is {value}, expected {} to {}", allowed.start(), allowed.end())),
    }
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
