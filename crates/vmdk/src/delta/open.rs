//! Creation and opening of a delta, and the search for the free space of one that was not closed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::layer::Shape;
use blk::memory::{HostId, clients_may_live};
use blk::sync::{RangeLock, TaskMutex};
use blk::{Buf, Env, ErrorKind, File, Result, SECTOR};
use futures_util::future::join_all;

use super::format::{Bounds, Format, TABLE_ENTRIES};
use super::log::Log;
use super::restore::end_of;
use super::{Core, Delta, GrainCounts, Growth, Space, State, Tables, table_bytes};
use crate::cowd::{Directory, TableRun, table_runs};
use crate::read::read_tables;
use crate::text::wrong;

/// Tables that a scan reads at once: 32 * 16 KiB.
const SCAN_DEPTH: usize = 32;

/// Facts about a delta from its descriptor.
#[derive(Debug, Clone)]
pub struct DeltaParams<'a> {
    /// File name of the descriptor.
    pub name: &'a str,
    /// Size of the disk, which must equal that in the header.
    pub capacity_sectors: u64,
    /// Whether the files are opened for writing.
    pub writable: bool,
    /// How far the file is extended ahead of need.
    pub growth: Growth,
}

/// Result of the scan of an unclean delta.
struct Scan {
    free_sector: u64,
    held: Vec<(u32, usize)>,
}

impl<F: Format> Delta<F> {
    /// Writes an empty delta into a new file, durably, with the first step of space ready.
    pub async fn create(env: Env, file: File, facts: DeltaParams<'_>, grain_sectors: u32) -> Result<Self> {
        let mut header = F::create(file.name(), facts.capacity_sectors, grain_sectors)?;
        let log = Log::new(&env, file.limits());
        header.set_mark(Some(log.begin()));
        let first = header.first_bytes();
        let length = header.empty_bytes();
        file.tables().write(0, Buf::copy_of(&first)).await?;
        if length > first.len() as u64 {
            file.set_len(length).await?;
        }
        let directory = Directory::empty(header.regions());
        let space = Space::new(header.first_free_sector(&directory));
        let held = GrainCounts::new(&directory, 0);
        let core = Core::new(
            env,
            file,
            &facts,
            log,
            State { header, directory, tables: Tables::default(), space, file_bytes: length, held },
        );
        core.marked_unclean.set(true);
        let first = core.state.borrow().space.ready_end();
        core.make_ready(first + core.growth.step_sectors()).await?;
        core.files[0].flush().await?;
        Ok(Self(core))
    }

    /// Opens a delta. Verifies header and directory, and compares lengths before anything else. An unclean delta that
    /// is opened for writing is scanned once for the end of its used space, and the log of its process in the host's
    /// memory is restored.
    pub async fn open(env: Env, file: File, facts: DeltaParams<'_>) -> Result<Self> {
        match Self::open_with_log(env.clone(), file.clone(), facts.clone(), true).await {
            // The log continues another state than that of the file.
            Err(e) if e.kind == ErrorKind::Damaged && facts.writable => {
                Self::open_with_log(env, file, facts, false).await
            }
            opened => opened,
        }
    }

    async fn open_with_log(env: Env, file: File, facts: DeltaParams<'_>, use_log: bool) -> Result<Self> {
        let file_bytes = file.size().await?;
        let (header, directory) = F::read(&file, file_bytes).await?;
        if header.capacity_sectors() != facts.capacity_sectors {
            let expected = format!("{}, as the descriptor {} says", facts.capacity_sectors, facts.name);
            return Err(wrong(file.name(), F::CAPACITY_FIELD, header.capacity_sectors(), &expected));
        }
        let scan = match header.is_unclean() && facts.writable {
            true => Some(scan(&file, &header, &directory, file_bytes).await?),
            false => None,
        };
        let unclean_end = file_bytes / SECTOR;
        let clean_end = if header.is_unclean() { unclean_end } else { header.free_sector() };
        let free_sector = scan.as_ref().map_or(clean_end, |scan| scan.free_sector);
        let left = match scan.is_some() && use_log {
            true => Log::read(&env, header.log(), &directory, file.limits()),
            false => None,
        };
        let lost = scan.is_some() && left.is_none();
        let left_end = left.as_deref().map_or(0, |entries| end_of(entries, &header));
        // Space past the end of the file is refused below.
        let free_sector = free_sector.max(left_end).min(unclean_end.max(free_sector));
        let mut held = GrainCounts::new(&directory, header.grains_below(&directory, free_sector));
        scan.iter().flat_map(|scan| &scan.held).for_each(|(region, grains)| held.set(*region, *grains));
        let marked = header.is_unclean();
        let state = State {
            header,
            directory,
            tables: Tables::default(),
            space: Space::new(free_sector),
            file_bytes,
            held,
        };
        // A delta does not identify its machine: only the boot shows that a folder was moved to another host.
        let then = HostId { boot: state.header.log().1, machine: 0 };
        let clients_live = clients_may_live(then, HostId::of(env.memory().as_deref()));
        let log = Log::new(&env, file.limits());
        let core = Core::new(env, file, &facts, log, state);
        // The header refers to a lost log until the first write, by which time clients have been notified.
        core.marked_unclean.set(marked && !lost);
        core.lost.set(lost && clients_live);
        if let Some(entries) = left {
            core.restore(&entries).await?;
        }
        if facts.writable {
            core.prepare_records(marked).await?;
        }
        Ok(Self(core))
    }
}

impl<F: Format> Core<F> {
    fn new(env: Env, file: File, facts: &DeltaParams<'_>, log: Log, state: State<F>) -> Rc<Self> {
        let grain_bytes = state.header.grain_sectors() * SECTOR;
        let shape = Shape {
            size_bytes: state.header.capacity_sectors() * SECTOR,
            grain_bytes,
            region_bytes: grain_bytes * TABLE_ENTRIES as u64,
            flat: false,
            writable: facts.writable,
            punches: false,
        };
        Rc::new(Self {
            name: facts.name.into(),
            env,
            files: [file],
            shape,
            growth: facts.growth,
            limit_sector: state.header.limit_sector(),
            log,
            lost: Cell::new(false),
            state: RefCell::new(state),
            marked_unclean: Cell::new(false),
            header_turn: TaskMutex::default(),
            growth_turn: TaskMutex::default(),
            growing_ahead: Cell::new(false),
            loading: RangeLock::default(),
        })
    }
}

/// Reads and verifies every table: 16 KiB for each 2 MiB that a VMFSsparse delta covers, 32 KiB for each 16 MiB of an
/// SEsparse one.
async fn scan<F: Format>(file: &File, header: &F, directory: &Directory, file_bytes: u64) -> Result<Scan> {
    let bounds = Bounds { file: file.name(), directory, file_bytes, free_sector: None };
    let mut scan = Scan { free_sector: header.first_free_sector(directory), held: Vec::new() };
    let tables: Vec<(u32, u32)> = directory.tables().collect();
    for batch in tables.chunks(SCAN_DEPTH) {
        let reads = batch
            .iter()
            .map(|(_, position)| read_tables(file, header.table_offset(*position), table_bytes::<F>()));
        for ((region, _), bytes) in batch.iter().zip(join_all(reads).await) {
            scan.add(header, &bounds, *region, &header.decode(file.name(), *region, &bytes?)?)?;
        }
    }
    Ok(scan)
}

impl Scan {
    fn add<F: Format>(
        &mut self,
        header: &F,
        bounds: &Bounds<'_>,
        region: u32,
        entries: &[u32],
    ) -> Result<()> {
        self.held.push((region, header.check(bounds, region, entries)?));
        for run in table_runs(entries, 0..TABLE_ENTRIES, header.step()).filter(TableRun::is_data) {
            // Inside the file, which `check` has verified.
            let end = header.sector_of(run.position) + run.entries as u64 * header.grain_sectors();
            self.free_sector = self.free_sector.max(end);
        }
        Ok(())
    }
}
