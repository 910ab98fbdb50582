//! An open VMFSsparse delta as a layer: lookup, first writes, release, and the order in which its tables become
//! durable.
//!
//! `table` has the tables and their states: the values of new entries are set there. `space` has the free sectors,
//! `growth` prepares more of them, `open` creates and recovers, and `check` verifies everything. The encoding is in
//! `cowd`.
//!
//! The header is marked "unclean" from creation, or from the first write after a seal, until the next seal. Meanwhile
//! its free pointer has no meaning, and the next opening computes it from the tables.

mod budget;
mod check;
mod growth;
mod log;
mod open;
mod restore;
mod space;
mod table;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::layer::{Layer, Placement, Run, Shape, Stages, Usage, Where};
use blk::sync::{RangeLock, TaskMutex};
use blk::{Buf, Env, Error, File, Local, Result, SECTOR};

use crate::check::Finding;
use crate::cowd::{Directory, Header, TABLE_BYTES, TableBounds, decode_entries, table_runs};
use crate::runs::Runs;

pub use budget::{TABLES_CACHED_MAX, keep_tables};
pub use open::DeltaParams;
pub use space::Growth;

use log::{Entry, Log};
use space::{Space, SpaceNeed};
use table::Tables;

/// An open delta.
pub struct VmfsSparse(Rc<Core>);

struct Core {
    /// File name of the descriptor.
    name: String,
    env: Env,
    files: [File; 1],
    shape: Shape,
    growth: Growth,
    log: Log,
    /// The previous process was killed, and acknowledged writes may be lost.
    lost: Cell<bool>,
    state: RefCell<State>,
    /// The header on disk is marked "unclean", so tables may be written.
    marked_unclean: Cell<bool>,
    /// Serialises changes of the header.
    header_turn: TaskMutex,
    /// Serialises growth, chunk by chunk.
    growth_turn: TaskMutex,
    growing_ahead: Cell<bool>,
    /// Ensures one reader for each table, by region.
    loading: RangeLock,
}

struct State {
    header: Header,
    directory: Directory,
    tables: Tables,
    space: Space,
    /// Length of the file.
    file_bytes: u64,
    held: GrainCounts,
}

/// Numbers of grains by region. A table's count is known once the table was read, so that opening needs no scan.
struct GrainCounts {
    /// `UNKNOWN` for a table that was not read yet.
    by_region: Vec<u16>,
    known: u64,
    unknown_regions: usize,
    /// Upper bound for all unknown regions together.
    unknown_estimate: u64,
}

const UNKNOWN: u16 = u16::MAX;

impl GrainCounts {
    fn new(directory: &Directory, in_use_grains: u64) -> Self {
        let mut by_region = vec![0; directory.regions() as usize];
        for (region, _) in directory.tables() {
            by_region[region as usize] = UNKNOWN;
        }
        Self {
            by_region,
            known: 0,
            unknown_regions: directory.table_count(),
            unknown_estimate: in_use_grains,
        }
    }

    fn set(&mut self, region: u32, grains: usize) {
        let slot = &mut self.by_region[region as usize];
        // A table has 4096 entries.
        let grains = grains as u16;
        if std::mem::replace(slot, grains) == UNKNOWN {
            self.unknown_regions -= 1;
            self.unknown_estimate = self.unknown_estimate.saturating_sub(u64::from(grains));
            self.known += u64::from(grains);
        }
    }

    fn add(&mut self, region: u32, grains: usize) {
        let slot = &mut self.by_region[region as usize];
        assert!(*slot != UNKNOWN, "region {region} is written before its table is read");
        *slot += grains as u16;
        self.known += grains as u64;
    }

    fn clear(&mut self, region: u32) {
        match std::mem::take(&mut self.by_region[region as usize]) {
            UNKNOWN => {
                self.unknown_estimate -= self.unknown_estimate / self.unknown_regions.max(1) as u64;
                self.unknown_regions -= 1;
            }
            grains => self.known -= u64::from(grains),
        }
    }

    fn total(&self) -> u64 {
        self.known + if self.unknown_regions == 0 { 0 } else { self.unknown_estimate }
    }
}

/// Keeps tables in memory for a placement that is not complete yet.
struct Pins<'a> {
    core: &'a Core,
    regions: Range<u32>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.borrow_mut();
        self.regions.clone().for_each(|region| state.tables.unpin(region));
    }
}

impl Core {
    fn file(&self) -> &File {
        &self.files[0]
    }

    /// Returns the handle for the header, the directory and the tables.
    fn tables(&self) -> File {
        self.files[0].tables()
    }

    fn regions(&self, range: &Range<u64>) -> Range<u32> {
        let region = self.shape.region_bytes;
        // Below 2^20: the disk has fewer than 2^32 sectors.
        (range.start / region) as u32..range.end.div_ceil(region) as u32
    }

    /// Returns the part of `range` in `region`, in bytes of the disk.
    fn part(&self, region: u32, range: &Range<u64>) -> Range<u64> {
        let start = u64::from(region) * self.shape.region_bytes;
        range.start.max(start)..range.end.min(start + self.shape.region_bytes)
    }

    fn check_range(&self, range: &Range<u64>) {
        let sound = range.start < range.end
            && range.end <= self.shape.size_bytes
            && range.start.is_multiple_of(SECTOR)
            && range.end.is_multiple_of(SECTOR);
        assert!(sound, "{}: range {range:?} of a disk of {} bytes", self.name, self.shape.size_bytes);
    }

    /// Loads the region's table, if it has one. The table stays in memory until the caller next waits.
    async fn load(&self, region: u32) -> Result<bool> {
        loop {
            let sector = {
                let mut state = self.state.borrow_mut();
                if state.tables.get(region).is_some() {
                    return Ok(true);
                }
                let Some(sector) = state.directory.get(region) else { return Ok(false) };
                sector
            };
            let _turn = self.loading.lock(u64::from(region)..u64::from(region) + 1).await;
            if self.state.borrow().tables.contains(region) {
                continue;
            }
            let (buf, result) = self.tables().read(u64::from(sector) * SECTOR, Buf::alloc(TABLE_BYTES)).await;
            result?;
            let mut state = self.state.borrow_mut();
            // The region may have been released, or written again, while the read was under way.
            if state.directory.get(region) != Some(sector) || state.tables.contains(region) {
                continue;
            }
            let entries = decode_entries(&buf);
            let grains = self.bounds(&state).check(region, &entries)?;
            state.held.set(region, grains);
            state.tables.insert_loaded(region, sector, entries);
            return Ok(true);
        }
    }

    fn bounds<'a>(&'a self, state: &'a State) -> TableBounds<'a> {
        TableBounds {
            file: self.file().name(),
            header: &state.header,
            directory: &state.directory,
            file_bytes: state.file_bytes,
            free_sector: self.shape.writable.then(|| state.space.free_sector()),
        }
    }

    async fn lookup(&self, range: Range<u64>) -> Result<Vec<Run>> {
        self.check_range(&range);
        let mut runs = Runs::default();
        for region in self.regions(&range) {
            let part = self.part(region, &range);
            if self.load(region).await? {
                self.runs_of(region, part, &mut runs);
            } else {
                runs.push(part.start, part.end - part.start, Where::Parent);
            }
        }
        Ok(runs.0)
    }

    fn runs_of(&self, region: u32, part: Range<u64>, out: &mut Runs) {
        let mut state = self.state.borrow_mut();
        let grain = self.shape.grain_bytes;
        let base = u64::from(region) * self.shape.region_bytes;
        let entries = ((part.start - base) / grain) as usize..(part.end - base).div_ceil(grain) as usize;
        let table = state.tables.get(region).expect("loaded before the last wait");
        for run in table_runs(&table.entries, entries, (grain / SECTOR) as u32) {
            let start = base + run.entry as u64 * grain;
            let end = (start + run.entries as u64 * grain).min(part.end);
            // The first grain may begin before the range.
            let skip = part.start.saturating_sub(start);
            let place = match run.sector {
                0 => Where::Parent,
                sector => Where::Data { file: 0, offset: u64::from(sector) * SECTOR + skip },
            };
            out.push(start + skip, end - (start + skip), place);
        }
    }

    async fn place(self: &Rc<Self>, range: Range<u64>) -> Result<Placement> {
        self.check_range(&range);
        if !self.shape.writable {
            return Err(Error::refused(
                self.file().name(),
                "opened for reading; a first write was asked for",
            ));
        }
        let grain = self.shape.grain_bytes;
        let whole = range.start / grain * grain..range.end.next_multiple_of(grain);
        let pins = self.pin(&whole).await?;
        loop {
            let end = self.space_needed(&whole);
            self.state.borrow().space.check_limit(self.file().name(), end)?;
            self.make_ready(end).await?;
            self.mark_unclean().await?;
            // While this write waited, others may have taken the space, or a seal may have removed the mark.
            let needed = self.space_needed(&whole);
            if self.marked_unclean.get() && self.state.borrow().space.ready_end() >= needed {
                break;
            }
        }
        let placement = self.take_space(&range, whole);
        std::mem::forget(pins);
        self.grow_ahead();
        Ok(placement)
    }

    /// Loads or creates the tables of a range, and keeps them in memory.
    async fn pin(&self, whole: &Range<u64>) -> Result<Pins<'_>> {
        let regions = self.regions(whole);
        let mut pins = Pins { core: self, regions: regions.start..regions.start };
        for region in regions {
            let loaded = self.load(region).await?;
            let mut state = self.state.borrow_mut();
            if !loaded {
                state.tables.insert_unpublished(region);
            }
            let table = state.tables.get(region).expect("loaded or inserted just now");
            table.pins += 1;
            pins.regions.end = region + 1;
        }
        Ok(pins)
    }

    fn space_needed(&self, whole: &Range<u64>) -> u64 {
        let mut state = self.state.borrow_mut();
        let spaceless = self.regions(whole).filter(|region| {
            let table = state.tables.get(*region).expect("pinned");
            table.sector == 0
        });
        let tables = spaceless.count() as u64;
        state.space.end_for(SpaceNeed { tables, data_sectors: (whole.end - whole.start) / SECTOR })
    }

    /// Allocates the space. Never waits, so that the earlier checks are still valid.
    fn take_space(&self, range: &Range<u64>, whole: Range<u64>) -> Placement {
        let mut state = self.state.borrow_mut();
        let State { tables, space, .. } = &mut *state;
        for region in self.regions(&whole) {
            let part = self.part(region, &whole);
            let table = tables.get(region).expect("pinned");
            if table.sector == 0 {
                table.sector = space.take_table();
            }
            let entries = self.entries_of(region, &part);
            assert!(
                table.entries[entries].iter().all(|entry| *entry == 0),
                "{}: {part:?} is held already",
                self.name
            );
        }
        let sector = space.take_data((whole.end - whole.start) / SECTOR);
        // The end of the disk may cut its last grain.
        let end = whole.end.min(self.shape.size_bytes);
        let place = Where::Data { file: 0, offset: u64::from(sector) * SECTOR };
        let run = Run { start: whole.start, len: end - whole.start, place };
        let fills = [whole.start..range.start, range.end..end];
        Placement { runs: vec![run], fills: fills.into_iter().filter(|fill| fill.start < fill.end).collect() }
    }

    fn entries_of(&self, region: u32, part: &Range<u64>) -> Range<usize> {
        let base = u64::from(region) * self.shape.region_bytes;
        let grain = self.shape.grain_bytes;
        ((part.start - base) / grain) as usize..(part.end - base).div_ceil(grain) as usize
    }

    fn publish(&self, placement: &Placement) {
        let mut state = self.state.borrow_mut();
        let State { tables, directory, held, .. } = &mut *state;
        let grain_sectors = (self.shape.grain_bytes / SECTOR) as u32;
        for run in &placement.runs {
            let Where::Data { offset, .. } = run.place else { continue };
            let range = run.start..run.end();
            for region in self.regions(&range) {
                let part = self.part(region, &range);
                let entries = self.entries_of(region, &part);
                let sector = (offset + (part.start - run.start)) / SECTOR;
                let sector = u32::try_from(sector).expect("placed below 2^32");
                held.add(region, entries.len());
                tables.publish(directory, region, entries.start, entries.len(), sector, grain_sectors);
                tables.unpin(region);
                self.log.append(Entry::Published {
                    region,
                    table_sector: directory.get(region).expect("published just now"),
                    first: entries.start as u32,
                    count: entries.len() as u32,
                    sector,
                });
            }
        }
    }

    fn abandon(&self, placement: &Placement) {
        let mut state = self.state.borrow_mut();
        for run in &placement.runs {
            self.regions(&(run.start..run.end())).for_each(|region| state.tables.unpin(region));
        }
    }

    fn release(&self, region: u64) {
        let mut state = self.state.borrow_mut();
        let State { tables, directory, held, .. } = &mut *state;
        let region = u32::try_from(region).ok().filter(|region| *region < directory.regions());
        let region = region.expect("a region of this disk");
        tables.release(directory, region);
        held.clear(region);
        self.log.append(Entry::Released { region });
    }

    fn usage(&self) -> Usage {
        let state = self.state.borrow();
        let held_bytes = (state.held.total() * self.shape.grain_bytes).min(self.shape.size_bytes);
        Usage { held_bytes, file_bytes: u64::from(state.space.free_sector()) * SECTOR }
    }
}

impl VmfsSparse {
    /// Returns the findings of `Layer::check` one by one.
    pub async fn cross_check(&self) -> Result<Vec<Finding>> {
        self.0.check().await
    }

    /// Returns whether the header shows that the file was not closed.
    pub fn is_unclean(&self) -> bool {
        self.0.state.borrow().header.is_unclean()
    }
}

impl Layer for VmfsSparse {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn shape(&self) -> Shape {
        self.0.shape
    }

    fn files(&self) -> &[File] {
        &self.0.files
    }

    fn lookup(&self, range: Range<u64>) -> Local<'_, Result<Vec<Run>>> {
        Box::pin(self.0.lookup(range))
    }

    fn populated(&self, region: u64) -> bool {
        u32::try_from(region).is_ok_and(|region| self.0.state.borrow().directory.get(region).is_some())
    }

    fn place(&self, range: Range<u64>) -> Local<'_, Result<Placement>> {
        Box::pin(self.0.place(range))
    }

    fn publish(&self, placement: &Placement) {
        self.0.publish(placement);
    }

    fn abandon(&self, placement: &Placement) {
        self.0.abandon(placement);
    }

    fn release(&self, region: u64) {
        self.0.release(region);
    }

    fn unwritten_bytes(&self) -> u64 {
        (self.0.state.borrow().tables.unwritten() * TABLE_BYTES) as u64 + self.0.log.bytes()
    }

    fn stages(&self) -> Stages {
        let mut state = self.0.state.borrow_mut();
        let State { tables, header, directory, .. } = &mut *state;
        self.0.log.switch();
        tables.stages(header, directory)
    }

    fn settle(&self, ticket: u64) {
        if self.0.state.borrow_mut().tables.settle(ticket) {
            self.0.log.settle();
        }
    }

    fn end_log(&self) {
        self.0.log.end();
    }

    fn has_lost_writes(&self) -> bool {
        self.0.lost.get()
    }

    fn begin_log(&self) -> Local<'_, Result<()>> {
        Box::pin(async {
            self.0.mark_unclean().await?;
            self.0.lost.set(false);
            Ok(())
        })
    }

    fn seal(&self) -> Local<'_, Result<()>> {
        Box::pin(self.0.seal())
    }

    fn give_back(&self) -> Local<'_, Result<()>> {
        Box::pin(self.0.give_back())
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }

    fn check(&self) -> Local<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(self.0.check().await?.iter().map(ToString::to_string).collect()) })
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tests;
