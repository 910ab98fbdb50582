//! The free bitmap and the back map of a delta that is written. Only ESXi reads them.
//!
//! Facts: reference/vmware-formats 4.5. Order: the bit of a grain and its entry in the back map are durable before the
//! entry of a table that names it. After a crash, ESXi never takes a grain that is in use; grains that nothing uses may be
//! marked, and the next opening corrects that.

use std::collections::{BTreeMap, BTreeSet};

use blk::layer::TableWrite;
use blk::{Buf, File, Result};
use futures_util::future::join_all;

use super::bits::Bits;
use super::{ENTRY_BYTES, Entry, GRAINS_PER_TABLE, Header, TABLE_BYTES, decode_words, rotate};
use crate::delta;
use crate::read::read_tables;

/// The maps are written in pieces of this size.
const PIECE_BYTES: u64 = 4096;

/// Grains that are compared in one pass over the tables: a map of 2^27 bits is 16 MiB, for 512 GiB of file.
const WINDOW_GRAINS: u64 = 1 << 27;

/// The bitmap is compared in parts of 64 KiB.
const PART_GRAINS: u64 = 8 * (64 << 10);

/// Tables that are read at once: 32 * 32 KiB.
const SCAN_DEPTH: usize = 32;

/// Upper bits of a used entry of the back map.
pub(super) const BACK_IN_USE: u64 = 1 << 60;

/// One of the two maps, of which the pieces that change are in memory.
#[derive(Default)]
struct Map {
    start_bytes: u64,
    pieces: BTreeMap<u64, Box<[u8]>>,
    dirty: BTreeSet<u64>,
    captured: BTreeSet<u64>,
}

impl Map {
    /// Reads the piece of which grains below `free_grain` use a part. The pieces after it are not in use.
    async fn open(file: &File, start_bytes: u64, free_grain: u64, piece_grains: u64) -> Result<Map> {
        let mut map = Map { start_bytes, ..Map::default() };
        if !free_grain.is_multiple_of(piece_grains) {
            let piece = free_grain / piece_grains;
            let bytes = read_tables(file, start_bytes + piece * PIECE_BYTES, PIECE_BYTES as usize).await?;
            map.pieces.insert(piece, bytes.to_vec().into());
        }
        Ok(map)
    }

    /// Changes bytes at `at` of the map. A piece that is not in memory has never been used: grains are taken in order.
    fn change(&mut self, at: u64, change: impl FnOnce(&mut [u8])) {
        let piece = at / PIECE_BYTES;
        let empty = || vec![0; PIECE_BYTES as usize].into();
        change(&mut self.pieces.entry(piece).or_insert_with(empty)[(at % PIECE_BYTES) as usize..]);
        self.dirty.insert(piece);
    }

    fn capture(&mut self, out: &mut Vec<TableWrite>) {
        self.dirty.append(&mut self.captured);
        self.captured = std::mem::take(&mut self.dirty);
        out.extend(self.captured.iter().map(|piece| {
            let offset = self.start_bytes + piece * PIECE_BYTES;
            TableWrite { file: 0, offset, data: Buf::copy_of(&self.pieces[piece]).freeze() }
        }));
    }

    /// Drops the pieces that are durable and full.
    fn settle(&mut self) {
        self.captured.clear();
        let last = self.pieces.keys().next_back().copied();
        self.pieces.retain(|piece, _| Some(*piece) == last || self.dirty.contains(piece));
    }

    fn unwritten_bytes(&self) -> u64 {
        (self.dirty.len() + self.captured.len()) as u64 * PIECE_BYTES
    }
}

/// Both maps.
#[derive(Default)]
pub struct Records {
    bitmap: Map,
    back_map: Map,
    /// Grains may be marked that nothing uses.
    pub(super) leaks: bool,
    /// First grain that was never used, when the maps were read.
    pub(super) free_grain: u64,
}

impl Records {
    /// Returns those of an empty delta.
    pub(super) fn empty(header: &Header) -> Records {
        let map = |start_bytes| Map { start_bytes, ..Map::default() };
        let (bitmap, back_map) = (map(header.bitmap.start_bytes()), map(header.back_map.start_bytes()));
        Records { bitmap, back_map, leaks: false, free_grain: 0 }
    }

    /// Reads what a delta with the first free grain `free_grain` needs to go on.
    pub(super) async fn open(file: &File, header: &Header, free_grain: u64) -> Result<Records> {
        let (bits, entries) = (PIECE_BYTES * 8, PIECE_BYTES / ENTRY_BYTES as u64);
        let bitmap = Map::open(file, header.bitmap.start_bytes(), free_grain, bits).await?;
        let back_map = Map::open(file, header.back_map.start_bytes(), free_grain, entries).await?;
        Ok(Records { bitmap, back_map, leaks: false, free_grain })
    }

    /// Marks grains as in use.
    pub(super) fn note(&mut self, grains: &Grains) {
        for (grain, back) in grains.iter() {
            self.bitmap.change(grain / 8, |bytes| bytes[0] |= 1 << (grain % 8));
            let at = grain * ENTRY_BYTES as u64;
            self.back_map.change(at, |bytes| bytes[..ENTRY_BYTES].copy_from_slice(&back.to_le_bytes()));
        }
    }

    pub(super) fn capture(&mut self) -> Vec<TableWrite> {
        let mut writes = Vec::new();
        self.bitmap.capture(&mut writes);
        self.back_map.capture(&mut writes);
        writes
    }

    pub(super) fn settle(&mut self) {
        self.bitmap.settle();
        self.back_map.settle();
    }

    pub(super) fn unwritten_bytes(&self) -> u64 {
        self.bitmap.unwritten_bytes() + self.back_map.unwritten_bytes()
    }
}

/// Contiguous grains of the file that contiguous entries of a table name.
pub(super) struct Grains {
    pub first: u64,
    pub count: u64,
    pub slot: u32,
    /// The table's entry that names the first one.
    pub entry: u32,
}

impl Grains {
    /// Returns the grains of a first write; None for a release.
    pub(super) fn of(entry: &delta::Entry) -> Option<Grains> {
        let delta::Entry::Published { table, first, count, start, .. } = *entry else { return None };
        let (slot, grain) = (table.checked_sub(1)?, start.checked_sub(1)?);
        Some(Grains { first: grain.into(), count: count.into(), slot, entry: first })
    }

    /// Returns each grain with its entry in the back map.
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let entry = u64::from(self.slot) * GRAINS_PER_TABLE as u64 + u64::from(self.entry);
        (0..self.count).map(move |n| (self.first + n, BACK_IN_USE | rotate(entry + n)))
    }
}

/// Marks grains as in use, in the file and durably.
pub(super) async fn write(file: File, header: Header, grains: Vec<Grains>) -> Result<()> {
    for grains in grains {
        let bytes = grains.first / 8..(grains.first + grains.count).div_ceil(8);
        let mut bits = read_tables(&file, header.bitmap.start_bytes() + bytes.start, length(&bytes)).await?;
        let mut entries = Buf::alloc(grains.count as usize * ENTRY_BYTES);
        for ((grain, back), out) in grains.iter().zip(entries.chunks_exact_mut(ENTRY_BYTES)) {
            bits[(grain / 8 - bytes.start) as usize] |= 1 << (grain % 8);
            out.copy_from_slice(&back.to_le_bytes());
        }
        file.tables().write(header.bitmap.start_bytes() + bytes.start, bits).await?;
        let at = header.back_map.start_bytes() + grains.first * ENTRY_BYTES as u64;
        file.tables().write(at, entries).await?;
    }
    file.flush().await
}

fn length(range: &std::ops::Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Compares the bitmap with the tables in `slots` for all grains below `end`, and corrects it, durably. The tables in the
/// file are complete.
pub(super) async fn rebuild(file: &File, header: &Header, slots: &[(u32, u32)], end: u64) -> Result<()> {
    let mut changed = false;
    for start in (0..end).step_by(WINDOW_GRAINS as usize) {
        let window = start..end.min(start + WINDOW_GRAINS);
        let mut owned = Bits::new(&window);
        for batch in slots.chunks(SCAN_DEPTH) {
            let reads = batch
                .iter()
                .map(|(_, slot)| read_tables(file, header.table_offset_bytes(*slot), TABLE_BYTES));
            for ((region, _), bytes) in batch.iter().zip(join_all(reads).await) {
                for word in decode_words(&bytes?).take(header.grains_in(*region)) {
                    if let Entry::Data(grain) = Entry::decode(word) {
                        owned.set(grain);
                    }
                }
            }
        }
        for part in window.clone().step_by(PART_GRAINS as usize) {
            changed |= correct(file, header, &owned, part..window.end.min(part + PART_GRAINS)).await?;
        }
    }
    if changed { file.flush().await } else { Ok(()) }
}

/// Writes the bits of a part that differ, and clears the back map of the grains that become free. Returns whether it
/// wrote. The last byte may include grains past the end: they are free.
async fn correct(file: &File, header: &Header, owned: &Bits, part: std::ops::Range<u64>) -> Result<bool> {
    let offset = header.bitmap.start_bytes() + part.start / 8;
    let mut found = read_tables(file, offset, (part.end - part.start).div_ceil(8) as usize).await?;
    let mut freed = Vec::new();
    let mut changed = false;
    for (index, byte) in found.iter_mut().enumerate() {
        let grain = part.start + index as u64 * 8;
        let must = owned.byte(grain);
        freed.extend((0..8).filter(|bit| *byte & !must & (1 << bit) != 0).map(|bit| grain + bit));
        changed |= *byte != must;
        *byte = must;
    }
    if changed {
        file.tables().write(offset, found).await?;
        clear_back_map(file, header, &freed).await?;
    }
    Ok(changed)
}

async fn clear_back_map(file: &File, header: &Header, freed: &[u64]) -> Result<()> {
    for run in freed.chunk_by(|left, right| *right == left + 1) {
        let at = header.back_map.start_bytes() + run[0] * ENTRY_BYTES as u64;
        file.tables().write(at, Buf::zeroed(run.len() * ENTRY_BYTES)).await?;
    }
    Ok(())
}
