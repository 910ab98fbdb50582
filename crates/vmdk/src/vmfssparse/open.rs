//! Creation and opening of a delta, and the search for the free space of one that was not closed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blk::layer::Shape;
use blk::memory::{HostId, clients_may_live};
use blk::sync::{RangeLock, TaskMutex};
use blk::{Buf, Env, ErrorKind, File, Result, SECTOR};
use futures_util::future::join_all;

use super::log::Log;
use super::restore::end_of;
use super::{Core, GrainCounts, Growth, Space, State, Tables, VmfsSparse};
use crate::cowd::{
    Directory, HEADER_BYTES, Header, TABLE_BYTES, TABLE_ENTRIES, TABLE_SECTORS, TableBounds, decode_entries,
    table_runs,
};
use crate::text::wrong;

/// An empty delta's length is rounded up to a multiple of this.
const EMPTY_ALIGN: u64 = 4096;

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
    free_sector: u32,
    held: Vec<(u32, usize)>,
}

impl VmfsSparse {
    /// Writes an empty delta into a new file, durably, with the first step of space ready.
    pub async fn create(env: Env, file: File, facts: DeltaParams<'_>, grain_sectors: u32) -> Result<Self> {
        let mut header = Header::create(file.name(), facts.capacity_sectors, grain_sectors)?;
        let log = Log::new(&env, file.limits());
        header.set_unclean(log.begin());
        let length = (u64::from(header.first_data_sector()) * SECTOR).next_multiple_of(EMPTY_ALIGN);
        let mut bytes = Buf::zeroed(length as usize);
        bytes[..HEADER_BYTES].copy_from_slice(header.bytes());
        file.tables().write(0, bytes).await?;
        let directory = Directory::empty(&header);
        let space = Space::new(header.free_sector());
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
        let header_bytes =
            read(&file, 0, HEADER_BYTES.min(usize::try_from(file_bytes).unwrap_or(usize::MAX))).await?;
        let header = Header::decode(file.name(), &header_bytes, file_bytes)?;
        if u64::from(header.capacity_sectors()) != facts.capacity_sectors {
            let expected = format!("{}, as the descriptor {} says", facts.capacity_sectors, facts.name);
            return Err(wrong(file.name(), "numSectors", header.capacity_sectors(), &expected));
        }
        let offset = u64::from(header.directory_sector()) * SECTOR;
        // Bounded by 2^20 entries; the header's check compared it with the file.
        let bytes = read(&file, offset, header.directory_bytes()).await?;
        let directory = Directory::decode(file.name(), &header, &bytes, file_bytes)?;
        let scan = match header.is_unclean() && facts.writable {
            true => Some(scan(&file, &header, &directory, file_bytes).await?),
            false => None,
        };
        let unclean_end = u32::try_from(file_bytes / SECTOR).unwrap_or(u32::MAX);
        let clean_end = if header.is_unclean() { unclean_end } else { header.free_sector() };
        let free_sector = scan.as_ref().map_or(clean_end, |scan| scan.free_sector);
        let left = match scan.is_some() && use_log {
            true => Log::read(&env, &header, &directory, file.limits()),
            false => None,
        };
        let lost = scan.is_some() && left.is_none();
        let left_end = left.as_deref().map_or(0, |entries| end_of(entries, header.grain_sectors()));
        // Space past the end of the file is refused below.
        let free_sector = free_sector.max(left_end).min(unclean_end.max(free_sector));
        let mut held = GrainCounts::new(&directory, in_use_grains(&header, &directory, free_sector));
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
        let then = HostId { boot: state.header.log_boot(), machine: 0 };
        let clients_live = clients_may_live(then, HostId::of(env.memory().as_deref()));
        let log = Log::new(&env, file.limits());
        let core = Core::new(env, file, &facts, log, state);
        // The header refers to a lost log until the first write, by which time clients have been notified.
        core.marked_unclean.set(marked && !lost);
        core.lost.set(lost && clients_live);
        if let Some(entries) = left {
            core.restore(&entries).await?;
        }
        Ok(Self(core))
    }
}

impl Core {
    fn new(env: Env, file: File, facts: &DeltaParams<'_>, log: Log, state: State) -> Rc<Self> {
        let shape = Shape {
            size_bytes: u64::from(state.header.capacity_sectors()) * SECTOR,
            grain_bytes: u64::from(state.header.grain_sectors()) * SECTOR,
            region_bytes: state.header.region_bytes(),
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

async fn read(file: &File, offset: u64, len: usize) -> Result<Buf> {
    let (buf, result) = file.tables().read(offset, Buf::alloc(len)).await;
    result.map(|()| buf)
}

/// Returns an upper bound of the grains in use below `free_sector`: everything except metadata and tables.
fn in_use_grains(header: &Header, directory: &Directory, free_sector: u32) -> u64 {
    let tables = directory.table_count() as u64 * u64::from(TABLE_SECTORS);
    let data = u64::from(free_sector).saturating_sub(u64::from(header.first_data_sector()) + tables);
    data / u64::from(header.grain_sectors())
}

/// Reads and verifies every table: 16 KiB for each 2 MiB that the delta covers.
async fn scan(file: &File, header: &Header, directory: &Directory, file_bytes: u64) -> Result<Scan> {
    let bounds = TableBounds { file: file.name(), header, directory, file_bytes, free_sector: None };
    let free_sector = header.first_data_sector().max(directory.end_of_tables());
    let mut scan = Scan { free_sector, held: Vec::new() };
    let tables: Vec<(u32, u32)> = directory.tables().collect();
    for batch in tables.chunks(SCAN_DEPTH) {
        let reads = batch.iter().map(|(_, sector)| read(file, u64::from(*sector) * SECTOR, TABLE_BYTES));
        for ((region, _), bytes) in batch.iter().zip(join_all(reads).await) {
            scan.add(&bounds, *region, &decode_entries(&bytes?))?;
        }
    }
    Ok(scan)
}

impl Scan {
    fn add(&mut self, bounds: &TableBounds<'_>, region: u32, entries: &[u32]) -> Result<()> {
        self.held.push((region, bounds.check(region, entries)?));
        let grain = bounds.header.grain_sectors();
        for run in table_runs(entries, 0..TABLE_ENTRIES, grain).filter(|run| run.sector != 0) {
            // Inside the file, which `check` has verified.
            let end = run.sector.saturating_add(run.entries as u32 * grain);
            self.free_sector = self.free_sector.max(end);
        }
        Ok(())
    }
}
