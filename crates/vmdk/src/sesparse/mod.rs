//! SEsparse, the delta of ESXi on VMFS6: its encoding, and a layer that is read only. `format`, `slots`, `records` and
//! `mark` are what `delta` needs to write one.
//!
//! Facts: reference/vmware-formats section 4; docs/formats/sesparse.md has diagrams. Headers, directory and lengths are
//! compared at the opening, a table when it is loaded, and cross-references in `check`: a truncated file must never
//! appear as "not here, read the parent". Absent on purpose: records in the journal. The order of our writes needs none,
//! and the hash of ESXi's is not published.

mod bits;
mod check;
mod format;
mod header;
mod mark;
mod records;
mod slots;
mod table;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use blk::layer::{Layer, Placement, Run, Shape, Usage, Where};
use blk::{Error, File, Local, Result, SECTOR};

use crate::grain_table::{Table, TableCache};
use crate::read::read_tables;
use crate::runs::Runs;
use crate::text::wrong;

pub(crate) use format::WritableHeader;
pub(crate) use header::{Header, Volatile};
pub(crate) use table::{Directory, DirectoryReader, Entry, TableBounds, decode_words, rotate};

pub(crate) const HEADER_BYTES: usize = SECTOR as usize;
pub(crate) const ENTRY_BYTES: usize = 8;

pub(crate) const GRAIN_SECTORS: u64 = 8;
pub(crate) const GRAIN_BYTES: u64 = GRAIN_SECTORS * SECTOR;

/// Entries of a grain table, and its size: 4096 * 8 B = 32 KiB = 64 sectors.
pub(crate) const GRAINS_PER_TABLE: usize = 4096;
pub(crate) const TABLE_BYTES: usize = GRAINS_PER_TABLE * ENTRY_BYTES;
pub(crate) const TABLE_SECTORS: u64 = TABLE_BYTES as u64 / SECTOR;

/// Range of the disk that a table covers: 4096 * 4 KiB = 16 MiB.
pub(crate) const REGION_BYTES: u64 = GRAINS_PER_TABLE as u64 * GRAIN_BYTES;

/// Largest disk that is read: 64 TiB, above VMware's 62 TB. Its directory has 2^22 entries, which take 16 MiB here.
pub(crate) const CAPACITY_SECTORS_MAX: u64 = (64 << 40) / SECTOR;

/// The directory is read in pieces of this size.
const PIECE_BYTES: u64 = 1 << 20;

/// Facts about a delta from its descriptor.
#[derive(Debug, Clone)]
pub(crate) struct DeltaParams<'a> {
    /// File name of the descriptor.
    pub name: &'a str,
    pub capacity_sectors: u64,
}

/// An open delta.
pub(crate) struct SeSparse {
    name: String,
    files: [File; 1],
    header: Header,
    directory: Directory,
    file_bytes: u64,
    /// 32 * 32 KiB = 1 MiB for each layer, so that 32 layers stay below 32 MiB; they cover 512 MiB of disk.
    tables: RefCell<TableCache<u32>>,
}

impl SeSparse {
    /// Verifies both headers and the whole directory, and compares lengths before anything else.
    pub(crate) async fn open(file: File, facts: DeltaParams<'_>) -> Result<Self> {
        let file_bytes = file.size().await?;
        let first = read_tables(&file, 0, file_bytes.min(HEADER_BYTES as u64) as usize).await?;
        let header = Header::decode(file.name(), &first, file_bytes)?;
        if header.capacity_sectors != facts.capacity_sectors {
            let expected = format!("{}, as the descriptor {} says", facts.capacity_sectors, facts.name);
            return Err(wrong(file.name(), "capacity", header.capacity_sectors, &expected));
        }
        let bytes = read_tables(&file, header.volatile.start_bytes(), HEADER_BYTES).await?;
        let bytes = bytes.first_chunk().expect("read whole");
        let volatile = Volatile::decode(file.name(), bytes)?;
        let directory = read_directory(&file, &header, volatile, file_bytes).await?;
        let name = facts.name.into();
        Ok(Self { name, files: [file], header, directory, file_bytes, tables: RefCell::default() })
    }

    fn file(&self) -> &File {
        &self.files[0]
    }

    fn bounds(&self) -> TableBounds<'_> {
        TableBounds { file: self.file().name(), header: &self.header, file_bytes: self.file_bytes }
    }

    /// Returns the region's table, if it has one. Two tasks at the same time may both read it, because it does not
    /// change.
    async fn table(&self, region: u32) -> Result<Option<Rc<Table>>> {
        if let Some(table) = self.tables.borrow_mut().get(region) {
            return Ok(Some(table));
        }
        let Some(slot) = self.directory.slot(region) else { return Ok(None) };
        let bytes = read_tables(self.file(), self.header.table_offset_bytes(slot), TABLE_BYTES).await?;
        let table = Rc::new(self.bounds().decode(region, &bytes)?);
        self.tables.borrow_mut().insert(region, table.clone());
        Ok(Some(table))
    }

    async fn runs(&self, range: Range<u64>) -> Result<Vec<Run>> {
        let sound = range.start < range.end
            && range.end <= self.shape().size_bytes
            && range.start.is_multiple_of(SECTOR)
            && range.end.is_multiple_of(SECTOR);
        assert!(sound, "{}: range {range:?} of a disk of {} bytes", self.name, self.shape().size_bytes);
        let mut runs = Runs::default();
        // Below 2^22 regions.
        for region in (range.start / REGION_BYTES) as u32..range.end.div_ceil(REGION_BYTES) as u32 {
            let base = u64::from(region) * REGION_BYTES;
            let part = range.start.max(base)..range.end.min(base + REGION_BYTES);
            match self.table(region).await? {
                Some(table) => runs.push_table(&table, GRAIN_BYTES, base, &part, |grain| {
                    (0, self.header.grain_offset_bytes(grain))
                }),
                None => runs.push(part.start, part.end - part.start, Where::Parent),
            }
        }
        Ok(runs.0)
    }

    fn refusal(&self, doing: &str) -> Error {
        let cause = format!("{doing} into SEsparse is not supported until SEsparse writing exists");
        let remedy = "keep the snapshot, or copy the disk as its guest sees it into a new one";
        Error::unsupported(self.file().name(), format!("{cause}; {remedy}"))
    }
}

async fn read_directory(
    file: &File,
    header: &Header,
    volatile: Volatile,
    file_bytes: u64,
) -> Result<Directory> {
    let total = header.regions() * ENTRY_BYTES as u64;
    // At most 2^22 entries: see `CAPACITY_SECTORS_MAX`.
    let slots = Vec::with_capacity(header.regions() as usize);
    let mut reader = DirectoryReader { file: file.name(), header, volatile, file_bytes, slots };
    for at in (0..total).step_by(PIECE_BYTES as usize) {
        let len = (total - at).min(PIECE_BYTES) as usize;
        reader.add(&read_tables(file, header.directory.start_bytes() + at, len).await?)?;
    }
    reader.finish()
}

impl Layer for SeSparse {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Shape {
        Shape {
            size_bytes: self.header.capacity_sectors * SECTOR,
            grain_bytes: GRAIN_BYTES,
            region_bytes: REGION_BYTES,
            flat: false,
            writable: false,
            punches: false,
        }
    }

    fn files(&self) -> &[File] {
        &self.files
    }

    fn lookup(&self, range: Range<u64>) -> Local<'_, Result<Vec<Run>>> {
        Box::pin(self.runs(range))
    }

    fn populated(&self, region: u64) -> bool {
        u32::try_from(region).is_ok_and(|region| self.directory.slot(region).is_some())
    }

    fn place(&self, _range: Range<u64>) -> Local<'_, Result<Placement>> {
        let error = self.refusal("committing");
        Box::pin(std::future::ready(Err(error)))
    }

    /// Does nothing, because nothing was written.
    fn seal(&self) -> Local<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns an upper bound: each table in use holds at most 16 MiB, and the file no more than its slots for grains.
    fn usage(&self) -> Usage {
        let room = self.file_bytes.saturating_sub(self.header.grains.start_bytes());
        let tables = self.directory.table_count() as u64;
        let held_bytes = room.min(tables * REGION_BYTES).min(self.shape().size_bytes);
        Usage { held_bytes, file_bytes: held_bytes + tables * TABLE_BYTES as u64 }
    }

    fn check(&self) -> Local<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(self.cross_check().await?.iter().map(ToString::to_string).collect()) })
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
