//! Grain tables in memory: which are loaded, which entries are set, which parts are dirty, and which a flush has
//! captured. `publish` sets the entries of a first write.
//!
//! States of a table: `Unpublished` (space allocated, no entry yet); `New` (entries, but nothing on disk points to it,
//! so it may be written before its data is durable); `Linking` (captured with the pointer to it); `Linked`. If a flush
//! fails after it captured a `Linking` table, it is unknown whether the pointer is on disk. The table is then
//! `Doubtful`: it is written only after its data, and the pointer only after the table.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use blk::layer::{Stages, TableWrite};
use blk::{Buf, SECTOR};

use super::budget::{self, Counted};
use super::format::{Format, TABLE_ENTRIES};
use crate::cowd::Directory;

/// Maximum number of tables of a layer that is only read, or of any layer when the core's share is used up: 64 * 16 KiB
/// = 1 MiB. Reads use the resolved map.
pub(super) const TABLES_READ_MAX: usize = 64;

/// A table is written in pieces of 4 KiB.
const PIECE_BYTES: usize = 4096;

/// Returns the entries of a piece.
const fn piece_entries<F: Format>() -> usize {
    PIECE_BYTES / F::ENTRY_BYTES
}

/// Returns the pieces of a table: at most 8, one bit each.
const fn pieces<F: Format>() -> usize {
    TABLE_ENTRIES / piece_entries::<F>()
}

const fn entries_per_sector<F: Format>() -> usize {
    SECTOR as usize / F::ENTRY_BYTES
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Unpublished,
    New,
    Linking,
    Doubtful,
    Linked,
}

#[derive(Debug)]
pub(super) struct Table {
    pub entries: Box<[u32]>,
    /// 0 for an `Unpublished` table without space.
    pub position: u32,
    /// Number of placements under way that will set entries here. The table must stay in memory.
    pub pins: usize,
    link: Link,
    /// Pieces as bits: changed since they were last captured; captured and not settled.
    dirty: u8,
    captured: u8,
    used: u64,
    _counted: Counted,
}

/// The tables of one layer.
#[derive(Debug)]
pub(super) struct Tables<F> {
    loaded: BTreeMap<u32, Table>,
    dirty: BTreeSet<u32>,
    captured: Vec<u32>,
    /// Changed sectors of the directory, counted from its first.
    directory_dirty: BTreeSet<usize>,
    directory_captured: BTreeSet<usize>,
    ticket: u64,
    clock: u64,
    /// There were first writes since the layer was opened or sealed.
    written: bool,
    format: PhantomData<F>,
}

impl<F> Default for Tables<F> {
    fn default() -> Self {
        Tables {
            loaded: BTreeMap::new(),
            dirty: BTreeSet::new(),
            captured: Vec::new(),
            directory_dirty: BTreeSet::new(),
            directory_captured: BTreeSet::new(),
            ticket: 0,
            clock: 0,
            written: false,
            format: PhantomData,
        }
    }
}

impl<F: Format> Tables<F> {
    pub(super) fn get(&mut self, region: u32) -> Option<&mut Table> {
        self.clock += 1;
        let table = self.loaded.get_mut(&region)?;
        table.used = self.clock;
        Some(table)
    }

    pub(super) fn contains(&self, region: u32) -> bool {
        self.loaded.contains_key(&region)
    }

    /// Adds a verified table from the file.
    pub(super) fn insert_loaded(&mut self, region: u32, position: u32, entries: Vec<u32>) {
        self.make_room();
        self.insert(region, position, entries, Link::Linked);
    }

    /// Adds an empty table for a region without one. `position`: 0 if it has no space yet.
    pub(super) fn insert_unpublished(&mut self, region: u32, position: u32) {
        self.written = true;
        self.make_room();
        self.insert(region, position, vec![0; TABLE_ENTRIES], Link::Unpublished);
    }

    fn insert(&mut self, region: u32, position: u32, entries: Vec<u32>, link: Link) {
        assert_eq!(entries.len(), TABLE_ENTRIES, "entries of a table");
        self.clock += 1;
        let table = Table {
            entries: entries.into(),
            position,
            pins: 0,
            link,
            dirty: 0,
            captured: 0,
            used: self.clock,
            _counted: Counted::new(),
        };
        self.loaded.insert(region, table);
    }

    /// Drops an eighth of a full cache, oldest first. Tables that are in use or not durable stay.
    fn make_room(&mut self) {
        let own = self.loaded.len();
        let full = own >= TABLES_READ_MAX && (!self.written || budget::is_full());
        if !full {
            return;
        }
        let idle = self.loaded.iter().filter(|(_, table)| table.is_idle());
        let mut old: Vec<(u64, u32)> = idle.map(|(region, table)| (table.used, *region)).collect();
        old.sort_unstable();
        for (_, region) in old.into_iter().take(own / 8) {
            self.loaded.remove(&region);
        }
    }

    /// Drops all tables that are neither in use nor waiting to be written. They are read again when needed.
    pub(super) fn drop_idle(&mut self) {
        self.loaded.retain(|_, table| !table.is_idle());
        self.written = !self.loaded.is_empty();
    }

    /// Returns whether a placement is under way.
    pub(super) fn is_pinned(&self) -> bool {
        self.loaded.values().any(|table| table.pins > 0)
    }

    /// Ends a placement's use of a table. A table without entries is dropped, and its position is returned.
    pub(super) fn unpin(&mut self, region: u32) -> Option<u32> {
        let table = self.loaded.get_mut(&region)?;
        assert!(table.pins > 0, "region {region} is not pinned");
        table.pins -= 1;
        if table.pins == 0 && table.link == Link::Unpublished {
            return self.loaded.remove(&region).map(|table| table.position).filter(|position| *position != 0);
        }
        None
    }

    /// Sets entries `first..first + count` of the region to grains from position `start` on, `step` apart.
    pub(super) fn publish(
        &mut self,
        directory: &mut Directory,
        region: u32,
        first: usize,
        count: usize,
        start: u32,
        step: u32,
    ) {
        self.written = true;
        let table = self.loaded.get_mut(&region);
        let table =
            table.unwrap_or_else(|| panic!("region {region} was released with a placement under way"));
        assert!(table.pins > 0, "region {region} is published without a placement");
        for (index, entry) in table.entries[first..first + count].iter_mut().enumerate() {
            *entry = start + index as u32 * step;
        }
        let pieces = first / piece_entries::<F>()..=(first + count - 1) / piece_entries::<F>();
        table.dirty |= pieces.map(|piece| 1u8 << piece).sum::<u8>();
        self.dirty.insert(region);
        if table.link == Link::Unpublished {
            table.link = Link::New;
            directory.set(region, table.position);
        }
    }

    /// Drops a region whose content is elsewhere now. A placement that was dropped may still pin the table. A placement
    /// that is still to be published is a fault of the caller, which `publish` detects.
    pub(super) fn release(&mut self, directory: &mut Directory, region: u32) {
        self.loaded.remove(&region);
        self.dirty.remove(&region);
        if directory.get(region).is_some() {
            directory.clear(region);
            self.directory_dirty.insert(region as usize / entries_per_sector::<F>());
        }
    }

    /// Returns how many tables wait to be written, and how many of them a flush has captured.
    pub(super) fn unwritten(&self) -> usize {
        self.dirty.len() + self.captured.len()
    }

    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.captured.is_empty()
            && self.directory_dirty.is_empty()
            && self.directory_captured.is_empty()
    }

    /// Captures everything published so far.
    pub(super) fn stages(&mut self, header: &F, directory: &Directory) -> Stages {
        self.take_back_unsettled();
        self.ticket += 1;
        let mut stages = Stages { ticket: self.ticket, ..Stages::default() };
        let mut tables = Vec::new();
        let mut doubtful = false;
        for region in std::mem::take(&mut self.dirty) {
            let Some(table) = self.loaded.get_mut(&region) else { continue };
            table.captured = std::mem::take(&mut table.dirty);
            match table.link {
                Link::Linked => table.write_pieces(header, &mut tables),
                Link::Doubtful => {
                    doubtful = true;
                    table.write_whole(header, &mut tables);
                }
                Link::Unpublished | Link::New | Link::Linking => {
                    table.link = Link::Linking;
                    table.write_whole(header, &mut stages.early);
                }
            }
            if table.link != Link::Linked {
                self.directory_dirty.insert(region as usize / entries_per_sector::<F>());
            }
            self.captured.push(region);
        }
        self.directory_captured = std::mem::take(&mut self.directory_dirty);
        let pointers = directory_writes(header, directory, &self.directory_captured);
        if doubtful {
            stages.late = vec![tables, pointers];
        } else {
            tables.extend(pointers);
            stages.late = vec![tables];
        }
        stages
    }

    /// Marks pieces as dirty again that an earlier flush captured and did not settle: they may or may not be on disk.
    fn take_back_unsettled(&mut self) {
        for region in std::mem::take(&mut self.captured) {
            let Some(table) = self.loaded.get_mut(&region).filter(|table| table.captured != 0) else {
                continue;
            };
            table.dirty |= std::mem::take(&mut table.captured);
            if table.link == Link::Linking {
                table.link = Link::Doubtful;
                table.dirty = ((1_u16 << pieces::<F>()) - 1) as u8;
            }
            self.dirty.insert(region);
        }
        self.directory_dirty.append(&mut self.directory_captured);
    }

    /// Settles a flush. Returns false if it was not the last to capture.
    pub(super) fn settle(&mut self, ticket: u64) -> bool {
        if ticket != self.ticket {
            return false;
        }
        for region in std::mem::take(&mut self.captured) {
            let Some(table) = self.loaded.get_mut(&region).filter(|table| table.captured != 0) else {
                continue;
            };
            table.captured = 0;
            if matches!(table.link, Link::Linking | Link::Doubtful) {
                table.link = Link::Linked;
            }
        }
        self.directory_captured.clear();
        true
    }
}

impl Table {
    fn is_idle(&self) -> bool {
        self.pins == 0 && self.dirty == 0 && self.captured == 0
    }

    fn write_whole<F: Format>(&self, header: &F, out: &mut Vec<TableWrite>) {
        self.write(header, 0..pieces::<F>(), out);
    }

    fn write_pieces<F: Format>(&self, header: &F, out: &mut Vec<TableWrite>) {
        let (mut piece, last) = (0, pieces::<F>());
        while piece < last {
            let end = (piece..last).find(|p| self.captured & (1 << p) == 0).unwrap_or(last);
            if end > piece {
                self.write(header, piece..end, out);
            }
            piece = end + 1;
        }
    }

    fn write<F: Format>(&self, header: &F, pieces: std::ops::Range<usize>, out: &mut Vec<TableWrite>) {
        let mut data = Buf::alloc(pieces.len() * PIECE_BYTES);
        let entries = pieces.start * piece_entries::<F>()..pieces.end * piece_entries::<F>();
        F::encode(&self.entries[entries], &mut data);
        let offset = header.table_offset(self.position) + (pieces.start * PIECE_BYTES) as u64;
        out.push(TableWrite { file: 0, offset, data: data.freeze() });
    }
}

/// Returns writes of whole sectors of the directory; neighbouring ones are merged.
fn directory_writes<F: Format>(
    header: &F,
    directory: &Directory,
    sectors: &BTreeSet<usize>,
) -> Vec<TableWrite> {
    let mut writes = Vec::new();
    let mut rest = sectors.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut end = first + 1;
        while rest.next_if_eq(&end).is_some() {
            end += 1;
        }
        let entries = first * entries_per_sector::<F>()..end * entries_per_sector::<F>();
        let values: Vec<u32> = entries.map(|region| directory.get(region as u32).unwrap_or(0)).collect();
        let mut data = Buf::alloc(values.len() * F::ENTRY_BYTES);
        F::encode_directory(&values, &mut data);
        let offset = header.directory_offset() + first as u64 * SECTOR;
        writes.push(TableWrite { file: 0, offset, data: data.freeze() });
    }
    writes
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
