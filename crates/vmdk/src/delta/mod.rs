//! An open delta that is written, VMFSsparse or SEsparse, as a layer: lookup, first writes, release, and the order in
//! which its tables become durable.
//!
//! `table` has the tables and their states: the values of new entries are set there. `space` has the free sectors,
//! `growth` prepares more of them, `open` creates and recovers, and `check` verifies everything. `format` is what the
//! formats differ in; the encodings are in `cowd` and `sesparse`.
//!
//! The header is marked "unclean" from creation, or from the first write after a seal, until the next seal. Meanwhile
//! its free pointer has no meaning, and the next opening computes it from the tables.

mod budget;
mod check;
mod entry;
mod format;
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
use blk::{Env, Error, File, Local, Result, SECTOR};

use crate::check::Finding;
use crate::cowd::{self, Directory, table_runs};
use crate::read::read_tables;
use crate::runs::Runs;
use crate::sesparse::WritableHeader;

pub use budget::{TABLES_CACHED_MAX, keep_tables};
pub use entry::Entry;
pub use format::{Bounds, Format, LogName, Reservation, TABLE_ENTRIES};
pub use open::DeltaParams;
pub use space::Growth;

use log::Log;
use space::{Space, SpaceNeed};
use table::Tables;

/// An open delta that may be written.
pub struct Delta<F: Format>(Rc<Core<F>>);

/// An open VMFSsparse delta.
pub type VmfsSparse = Delta<cowd::Header>;

/// An open SEsparse delta that is written.
pub type SeSparse = Delta<WritableHeader>;

/// Returns the length of a table.
const fn table_bytes<F: Format>() -> usize {
    TABLE_ENTRIES * F::ENTRY_BYTES
}

struct Core<F: Format> {
    /// File name of the descriptor.
    name: String,
    env: Env,
    files: [File; 1],
    shape: Shape,
    growth: Growth,
    /// End of the space that positions can name.
    limit_sector: u64,
    log: Log,
    /// The previous process was killed, and acknowledged writes may be lost.
    lost: Cell<bool>,
    state: RefCell<State<F>>,
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

struct State<F: Format> {
    header: F,
    directory: Directory,
    tables: Tables<F>,
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
struct Pins<'a, F: Format> {
    core: &'a Core<F>,
    regions: Range<u32>,
}

impl<F: Format> Drop for Pins<'_, F> {
    fn drop(&mut self) {
        let mut state = self.core.state.borrow_mut();
        self.regions.clone().for_each(|region| state.unpin(region));
    }
}

impl<F: Format> State<F> {
    /// Ends a placement's use of a table.
    fn unpin(&mut self, region: u32) {
        if let Some(position) = self.tables.unpin(region) {
            self.header.give_table(position);
        }
    }

    /// Captures everything published so far. The records of other programs are durable before the tables.
    fn stages(&mut self) -> Stages {
        let mut stages = self.tables.stages(&self.header, &self.directory);
        let records = self.header.records_to_write();
        #[cfg(test)]
        if RECORDS_ARE_LATE.get() {
            stages.late.push(records);
            return stages;
        }
        stages.early.extend(records);
        stages
    }

    /// Settles a flush. Returns false if it was not the last to capture.
    fn settle(&mut self, ticket: u64) -> bool {
        let settled = self.tables.settle(ticket);
        if settled {
            self.header.settle_records();
        }
        settled
    }
}

impl<F: Format> Core<F> {
    fn file(&self) -> &File {
        &self.files[0]
    }

    /// Returns the handle for the header, the directory and the tables.
    fn tables(&self) -> File {
        self.files[0].tables()
    }

    fn regions(&self, range: &Range<u64>) -> Range<u32> {
        let region = self.shape.region_bytes;
        // Below 2^22: a table covers at least 2 MiB of VMFSsparse's 2,032 GiB, and 16 MiB of SEsparse's 64 TiB.
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
            let (position, offset) = {
                let mut state = self.state.borrow_mut();
                if state.tables.get(region).is_some() {
                    return Ok(true);
                }
                let Some(position) = state.directory.get(region) else { return Ok(false) };
                (position, state.header.table_offset(position))
            };
            let _turn = self.loading.lock(u64::from(region)..u64::from(region) + 1).await;
            if self.state.borrow().tables.contains(region) {
                continue;
            }
            let buf = read_tables(self.file(), offset, table_bytes::<F>()).await?;
            let mut state = self.state.borrow_mut();
            // The region may have been released, or written again, while the read was under way.
            if state.directory.get(region) != Some(position) || state.tables.contains(region) {
                continue;
            }
            let entries = state.header.decode(self.file().name(), region, &buf)?;
            let grains = state.header.check(&self.bounds(&state), region, &entries)?;
            state.held.set(region, grains);
            state.tables.insert_loaded(region, position, entries);
            return Ok(true);
        }
    }

    fn bounds<'a>(&'a self, state: &'a State<F>) -> Bounds<'a> {
        Bounds {
            file: self.file().name(),
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
        let State { tables, header, .. } = &mut *state;
        let table = tables.get(region).expect("loaded before the last wait");
        for run in table_runs(&table.entries, entries, header.step()) {
            let start = base + run.entry as u64 * grain;
            let end = (start + run.entries as u64 * grain).min(part.end);
            // The first grain may begin before the range.
            let skip = part.start.saturating_sub(start);
            let place = match run.position {
                0 => Where::Parent,
                position => Where::Data { file: 0, offset: header.sector_of(position) * SECTOR + skip },
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
            if end > self.limit_sector {
                return Err(self.state.borrow().header.limit_error(self.file().name()));
            }
            self.make_ready(end).await?;
            self.reserve_records(end).await?;
            self.mark_unclean().await?;
            // While this write waited, others may have taken the space, or a seal may have removed the mark.
            let needed = self.space_needed(&whole);
            let state = self.state.borrow();
            let is_ready = state.space.ready_end() >= needed && state.header.to_reserve(needed).is_none();
            // Ready space may go beyond the limit.
            if self.marked_unclean.get() && is_ready && needed <= self.limit_sector {
                break;
            }
        }
        let placement = self.take_space(&range, whole);
        std::mem::forget(pins);
        self.grow_ahead();
        Ok(placement)
    }

    /// Loads or creates the tables of a range, and keeps them in memory.
    async fn pin(&self, whole: &Range<u64>) -> Result<Pins<'_, F>> {
        let regions = self.regions(whole);
        let mut pins = Pins { core: self, regions: regions.start..regions.start };
        for region in regions {
            let loaded = self.load(region).await?;
            let mut state = self.state.borrow_mut();
            if !loaded {
                let position = state.header.take_table(self.file().name(), region)?;
                state.tables.insert_unpublished(region, position.unwrap_or(0));
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
            table.position == 0
        });
        let tables = spaceless.count() as u64;
        state.space.end_for(SpaceNeed { tables, data_sectors: (whole.end - whole.start) / SECTOR })
    }

    /// Allocates the space. Never waits, so that the earlier checks are still valid.
    fn take_space(&self, range: &Range<u64>, whole: Range<u64>) -> Placement {
        let mut state = self.state.borrow_mut();
        let State { tables, space, header, .. } = &mut *state;
        for region in self.regions(&whole) {
            let part = self.part(region, &whole);
            let table = tables.get(region).expect("pinned");
            if table.position == 0 {
                table.position = header.position_of(space.take_table());
            }
            let entries = self.entries_of(region, &part);
            assert!(
                table.entries[entries].iter().all(|entry| *entry == 0),
                "{}: {part:?} is held already",
                self.name
            );
        }
        let sector = space.take_data((whole.end - whole.start) / SECTOR);
        for region in self.regions(&whole) {
            let part = self.part(region, &whole);
            let start = header.position_of(sector + (part.start - whole.start) / SECTOR);
            let table = tables.get(region).expect("pinned").position;
            header.note_grains(&self.entry(region, table, &part, start));
        }
        // The end of the disk may cut its last grain.
        let end = whole.end.min(self.shape.size_bytes);
        let place = Where::Data { file: 0, offset: sector * SECTOR };
        let run = Run { start: whole.start, len: end - whole.start, place };
        let fills = [whole.start..range.start, range.end..end];
        Placement { runs: vec![run], fills: fills.into_iter().filter(|fill| fill.start < fill.end).collect() }
    }

    /// Returns the change of a table that a part of a placement makes.
    fn entry(&self, region: u32, table: u32, part: &Range<u64>, start: u32) -> Entry {
        let entries = self.entries_of(region, part);
        Entry::Published { region, table, first: entries.start as u32, count: entries.len() as u32, start }
    }

    fn entries_of(&self, region: u32, part: &Range<u64>) -> Range<usize> {
        let base = u64::from(region) * self.shape.region_bytes;
        let grain = self.shape.grain_bytes;
        ((part.start - base) / grain) as usize..(part.end - base).div_ceil(grain) as usize
    }

    fn publish(&self, placement: &Placement) {
        let mut state = self.state.borrow_mut();
        let State { tables, directory, held, header, .. } = &mut *state;
        for run in &placement.runs {
            let Where::Data { offset, .. } = run.place else { continue };
            let range = run.start..run.end();
            for region in self.regions(&range) {
                let part = self.part(region, &range);
                let entries = self.entries_of(region, &part);
                let start = header.position_of((offset + (part.start - run.start)) / SECTOR);
                held.add(region, entries.len());
                tables.publish(directory, region, entries.start, entries.len(), start, header.step());
                tables.unpin(region);
                let table = directory.get(region).expect("published just now");
                self.log.append(self.entry(region, table, &part, start));
            }
        }
    }

    fn abandon(&self, placement: &Placement) {
        let mut state = self.state.borrow_mut();
        for run in &placement.runs {
            self.regions(&(run.start..run.end())).for_each(|region| state.unpin(region));
        }
        state.header.note_leak();
    }

    fn release(&self, region: u64) {
        let mut state = self.state.borrow_mut();
        let State { tables, directory, held, header, .. } = &mut *state;
        let region = u32::try_from(region).ok().filter(|region| *region < directory.regions());
        let region = region.expect("a region of this disk");
        if let Some(position) = directory.get(region) {
            header.release_table(position);
        }
        tables.release(directory, region);
        held.clear(region);
        self.log.append(Entry::Released { region });
    }

    fn usage(&self) -> Usage {
        let state = self.state.borrow();
        let held_bytes = (state.held.total() * self.shape.grain_bytes).min(self.shape.size_bytes);
        Usage { held_bytes, file_bytes: state.header.used_bytes(&state.directory, state.space.free_sector()) }
    }
}

impl<F: Format> Delta<F> {
    /// Returns the findings of `Layer::check` one by one.
    pub async fn cross_check(&self) -> Result<Vec<Finding>> {
        self.0.check().await
    }

    /// Returns whether the header shows that the file was not closed.
    pub fn is_unclean(&self) -> bool {
        self.0.state.borrow().header.is_unclean()
    }
}

impl<F: Format> Layer for Delta<F> {
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
        let state = self.0.state.borrow();
        let tables = state.tables.unwritten() * table_bytes::<F>();
        tables as u64 + state.header.unwritten_bytes() + self.0.log.bytes()
    }

    fn stages(&self) -> Stages {
        let mut state = self.0.state.borrow_mut();
        self.0.log.switch();
        state.stages()
    }

    fn settle(&self, ticket: u64) {
        if self.0.state.borrow_mut().settle(ticket) {
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
thread_local! {
    /// A planted defect: the records of other programs are written after the tables.
    static RECORDS_ARE_LATE: Cell<bool> = const { Cell::new(false) };
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod sesparse_tests;
#[cfg(test)]
mod tests;
