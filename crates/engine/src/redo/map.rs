//! The resolved map: for every sector of a disk, the topmost place that holds it, found in one look-up at any chain
//! depth.
//!
//! It caches the layers' tables per 2 MiB region: as runs while there are few, as a dense page once there are many. Any
//! region may be dropped at any time and is built again from the layers. Entries are updated when a first write
//! publishes, never before.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use blk::SECTOR;

/// Bytes covered by one region of the map: those of one grain table of a redo log at its usual grain.
pub(super) const REGION_BYTES: u64 = 2 << 20;
const REGION_SECTORS: usize = (REGION_BYTES / SECTOR) as usize;

/// Most runs of a region. Above this number a dense page (8 B x 4096 sectors = 32 KiB) is smaller than the runs
/// themselves (16 B each), or near their size, and updates in constant time.
const RUNS_MAX: usize = 1024;

/// Number of a file of a layer; 0 means "reads as zeros".
pub(super) type Slot = u16;
pub(super) const ZERO_SLOT: Slot = 0;

/// A piece of the disk at one place. All fields are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub start: u64,
    pub len: u64,
    pub slot: Slot,
    /// Byte offset in the slot's file; 0 for `ZERO_SLOT`.
    pub offset: u64,
}

/// A run: sectors `start..start + len` of a region at `sector` of the slot's file. 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MapRun {
    sector: u64,
    start: u16,
    len: u16,
    slot: Slot,
}

impl MapRun {
    fn end(&self) -> usize {
        usize::from(self.start) + usize::from(self.len)
    }

    fn sector_at(&self, at: usize) -> u64 {
        if self.slot == ZERO_SLOT { 0 } else { self.sector + (at - usize::from(self.start)) as u64 }
    }

    fn cut(&self, from: usize, to: usize) -> MapRun {
        MapRun { start: from as u16, len: (to - from) as u16, slot: self.slot, sector: self.sector_at(from) }
    }

    fn continues(&self, next: &MapRun) -> bool {
        self.slot == next.slot
            && self.end() == usize::from(next.start)
            && self.sector_at(self.end()) == next.sector
    }
}

/// One sector of a dense page: the slot in the top 16 bits, the file's sector below.
#[derive(Clone, Copy)]
struct Dense(u64);

impl Dense {
    fn new(slot: Slot, sector: u64) -> Dense {
        assert!(sector < 1 << 48);
        Dense(u64::from(slot) << 48 | sector)
    }
    fn slot(self) -> Slot {
        (self.0 >> 48) as Slot
    }
    fn sector(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

enum Region {
    /// Runs that cover the whole region, sorted and merged.
    Runs(Vec<MapRun>),
    Dense(Box<[Dense]>),
}

impl Region {
    fn bytes(&self) -> usize {
        match self {
            Region::Runs(runs) => 64 + runs.capacity() * size_of::<MapRun>(),
            Region::Dense(_) => 64 + REGION_SECTORS * size_of::<Dense>(),
        }
    }

    /// Appends the pieces of `range` (sectors of this region, whose first byte is `base`) to `out`.
    fn pieces(&self, base: u64, range: Range<usize>, out: &mut Vec<Piece>) {
        match self {
            Region::Runs(runs) => {
                let first = runs.partition_point(|r| r.end() <= range.start);
                for run in runs[first..].iter().take_while(|r| usize::from(r.start) < range.end) {
                    let cut = run.cut(range.start.max(run.start.into()), range.end.min(run.end()));
                    push_piece(out, base, cut);
                }
            }
            Region::Dense(page) => {
                for at in range {
                    let (slot, sector) = (page[at].slot(), page[at].sector());
                    push_piece(out, base, MapRun { start: at as u16, len: 1, slot, sector });
                }
            }
        }
    }

    fn update(&mut self, new: MapRun) {
        match self {
            Region::Runs(runs) => {
                replace_run(runs, new);
                if runs.len() > RUNS_MAX {
                    *self = Region::Dense(dense_of(runs));
                }
            }
            Region::Dense(page) => {
                for at in usize::from(new.start)..new.end() {
                    page[at] = Dense::new(new.slot, new.sector_at(at));
                }
            }
        }
    }
}

fn push_piece(out: &mut Vec<Piece>, base: u64, run: MapRun) {
    let piece = Piece {
        start: base + u64::from(run.start) * SECTOR,
        len: u64::from(run.len) * SECTOR,
        slot: run.slot,
        offset: run.sector * SECTOR,
    };
    if let Some(last) = out.last_mut() {
        let contiguous = last.slot == ZERO_SLOT || last.offset + last.len == piece.offset;
        if last.slot == piece.slot && last.start + last.len == piece.start && contiguous {
            last.len += piece.len;
            return;
        }
    }
    out.push(piece);
}

/// Replaces the sectors of `new` in the runs.
fn replace_run(runs: &mut Vec<MapRun>, new: MapRun) {
    let (from, to) = (usize::from(new.start), new.end());
    let first = runs.partition_point(|r| r.end() <= from);
    let last = runs.partition_point(|r| usize::from(r.start) < to);
    let mut patch: [Option<MapRun>; 3] = [None, Some(new), None];
    if let Some(head) = runs[first..last].first()
        && usize::from(head.start) < from
    {
        patch[0] = Some(head.cut(head.start.into(), from));
    }
    if let Some(tail) = runs[first..last].last()
        && tail.end() > to
    {
        patch[2] = Some(tail.cut(to, tail.end()));
    }
    let at = first + usize::from(patch[0].is_some());
    runs.splice(first..last, patch.into_iter().flatten());
    merge_at(runs, at + 1);
    merge_at(runs, at);
}

/// Merges run `at` into the one before it when they continue each other.
fn merge_at(runs: &mut Vec<MapRun>, at: usize) {
    if at == 0 || at >= runs.len() || !runs[at - 1].continues(&runs[at]) {
        return;
    }
    runs[at - 1].len += runs[at].len;
    runs.remove(at);
}

fn dense_of(runs: &[MapRun]) -> Box<[Dense]> {
    let mut page = vec![Dense(0); REGION_SECTORS].into_boxed_slice();
    for run in runs {
        for at in usize::from(run.start)..run.end() {
            page[at] = Dense::new(run.slot, run.sector_at(at));
        }
    }
    page
}

/// Hashes region numbers. They are small and dense: one multiplication spreads them, and the order is the same in every
/// run.
#[derive(Default, Clone, Copy)]
pub(super) struct RegionHasher(u64);

impl Hasher for RegionHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only region numbers are hashed")
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 29;
    }
}

type RegionTable<T> = std::collections::HashMap<u64, T, BuildHasherDefault<RegionHasher>>;

thread_local! {
    /// Bytes of all maps of this core: disks and views share its memory, and a core is a thread.
    static RESIDENT_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// A map may use this much regardless of the other maps: 2 MiB is 80 regions of the densest kind.
pub(super) const MAP_BYTES_MIN: usize = 2 << 20;

/// The map of one disk.
pub(crate) struct Map {
    state: RefCell<State>,
    /// Cap of all maps of the core together, except for each one's `MAP_BYTES_MIN`.
    cap_bytes: usize,
}

#[derive(Default)]
struct State {
    regions: RegionTable<Resident>,
    bytes: usize,
    /// Eviction order: first in, with a second chance for regions used since.
    clock: VecDeque<u64>,
    /// Regions that are being built, and whether an entry has changed meanwhile.
    loading: RegionTable<bool>,
}

struct Resident {
    region: Region,
    used: bool,
}

/// Result of a look-up.
pub(crate) enum Lookup {
    Yes,
    /// This region is not resident: the caller builds it and continues at its start.
    Missing(u64),
}

impl Map {
    /// Creates a map. `cap_bytes` bounds this map, and all maps of the core together.
    pub(crate) fn new(cap_bytes: usize) -> Map {
        Map { state: RefCell::default(), cap_bytes }
    }

    /// Appends the pieces of `range` to `out`, up to the first region that is missing.
    pub(crate) fn lookup(&self, range: Range<u64>, out: &mut Vec<Piece>) -> Lookup {
        let mut state = self.state.borrow_mut();
        let mut at = range.start;
        while at < range.end {
            let number = at / REGION_BYTES;
            let base = number * REGION_BYTES;
            let end = range.end.min(base + REGION_BYTES);
            let Some(resident) = state.regions.get_mut(&number) else {
                return Lookup::Missing(number);
            };
            resident.used = true;
            let sectors = ((at - base) / SECTOR) as usize..((end - base) / SECTOR) as usize;
            resident.region.pieces(base, sectors, out);
            at = end;
        }
        Lookup::Yes
    }

    /// Updates the map after a first write was published at its new place.
    pub(crate) fn update(&self, piece: Piece) {
        let mut state = self.state.borrow_mut();
        let mut at = piece.start;
        while at < piece.start + piece.len {
            let number = at / REGION_BYTES;
            let base = number * REGION_BYTES;
            let end = (piece.start + piece.len).min(base + REGION_BYTES);
            let sector = (piece.offset + (at - piece.start)) / SECTOR;
            let (start, len) = (((at - base) / SECTOR) as u16, ((end - at) / SECTOR) as u16);
            state.update(number, MapRun { start, len, slot: piece.slot, sector });
            at = end;
        }
    }

    /// Drops the regions that intersect `range` because their places have changed.
    pub(crate) fn invalidate(&self, range: Range<u64>) {
        let mut state = self.state.borrow_mut();
        for number in range.start / REGION_BYTES..range.end.div_ceil(REGION_BYTES) {
            state.drop_region(number);
            if let Some(stale) = state.loading.get_mut(&number) {
                *stale = true;
            }
        }
    }

    /// Begins to build a region. Returns false when another task builds it already.
    pub(crate) fn begin_load(&self, number: u64) -> bool {
        match self.state.borrow_mut().loading.entry(number) {
            // The other builder's mark must not be reset.
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(false);
                true
            }
        }
    }

    /// Ends a build. Returns false when it must be repeated, because an entry changed while the tables were read.
    pub(crate) fn end_load(&self, number: u64, pieces: Option<&[Piece]>) -> bool {
        let mut state = self.state.borrow_mut();
        let stale = state.loading.remove(&number).expect("begun before");
        let Some(pieces) = pieces else { return true };
        if stale {
            return false;
        }
        let base = number * REGION_BYTES;
        let mut runs: Vec<MapRun> = pieces
            .iter()
            .map(|p| MapRun {
                start: ((p.start - base) / SECTOR) as u16,
                len: (p.len / SECTOR) as u16,
                slot: p.slot,
                sector: p.offset / SECTOR,
            })
            .collect();
        let region = if runs.len() > RUNS_MAX {
            Region::Dense(dense_of(&runs))
        } else {
            runs.shrink_to_fit();
            Region::Runs(runs)
        };
        state.insert(number, region);
        state.evict(self.cap_bytes, number);
        true
    }

    pub(crate) fn is_loading(&self, number: u64) -> bool {
        self.state.borrow().loading.contains_key(&number)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.state.borrow().bytes
    }

    /// Returns whether a resident entry names the slot, which must then not be reused.
    pub(crate) fn names_slot(&self, slot: Slot) -> bool {
        self.state.borrow().regions.values().any(|r| match &r.region {
            Region::Runs(runs) => runs.iter().any(|run| run.slot == slot),
            Region::Dense(page) => page.iter().any(|d| d.slot() == slot),
        })
    }
}

impl State {
    fn update(&mut self, number: u64, run: MapRun) {
        if let Some(stale) = self.loading.get_mut(&number) {
            *stale = true;
        }
        if let Some(resident) = self.regions.get_mut(&number) {
            let before = resident.region.bytes();
            resident.region.update(run);
            let after = resident.region.bytes();
            self.count(before, after);
        }
    }

    fn insert(&mut self, number: u64, region: Region) {
        self.drop_region(number);
        self.count(0, region.bytes());
        self.regions.insert(number, Resident { region, used: true });
        self.clock.push_back(number);
    }

    fn drop_region(&mut self, number: u64) {
        if let Some(gone) = self.regions.remove(&number) {
            self.count(gone.region.bytes(), 0);
            self.clock.retain(|&n| n != number);
        }
    }

    /// Evicts regions over the cap, except for `keep` (just built) and, once, those used since the hand last passed
    /// them.
    fn evict(&mut self, cap_bytes: usize, keep: u64) {
        while self.is_full(cap_bytes) && self.regions.len() > 1 {
            let number = self.clock.pop_front().expect("resident regions are on the clock");
            let resident = self.regions.get_mut(&number).expect("on the clock means resident");
            if number == keep || std::mem::take(&mut resident.used) {
                self.clock.push_back(number);
                continue;
            }
            let gone = self.regions.remove(&number).expect("just seen");
            self.count(gone.region.bytes(), 0);
        }
    }

    fn is_full(&self, cap_bytes: usize) -> bool {
        let crowded = self.bytes > MAP_BYTES_MIN && RESIDENT_BYTES.get() > cap_bytes;
        self.bytes > cap_bytes || crowded
    }

    fn count(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes - before + after;
        RESIDENT_BYTES.set(RESIDENT_BYTES.get() - before + after);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        RESIDENT_BYTES.set(RESIDENT_BYTES.get() - self.bytes);
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
