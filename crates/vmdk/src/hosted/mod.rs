//! Hosted sparse disks ("KDMV") of Workstation, Fusion and QEMU as a layer that is read and never written: one extent with
//! its descriptor inside of it (`monolithicSparse`), or several beside a descriptor (`twoGbMaxExtentSparse`).
//!
//! Facts: reference/vmware-formats section 2; docs/formats/hosted.md has diagrams. Header, directory and lengths are
//! compared at the opening, a table when it is loaded: with its copy too, where the file has one, because a crash of VMware may
//! leave them different. Absent on purpose: writes, and compressed grains (streamOptimized).

mod check;
mod header;
mod table;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blk::layer::{Layer, Placement, Run, Shape, Usage, Where};
use blk::{Error, File, Local, Result, SECTOR};

use crate::descriptor::{Descriptor, ExtentKind};
use crate::grain_table::{Table, TableCache};
use crate::kdmv::{ENTRY_BYTES, HEADER_BYTES, Header};
use crate::read::read_tables;
use crate::runs::Runs;
use crate::text::wrong;

pub(crate) use check::check_file;
pub(crate) use header::decode_header;
pub(crate) use table::{Directory, TableBounds};

/// Maximum number of directory entries of a disk, of 4 bytes each, twice where there are copies: 64 TiB in regions of VMware's
/// 32 MiB have 2^21. Twice that takes 32 MiB.
const REGIONS_MAX: u64 = 1 << 22;
/// Maximum number of files of one disk: `Where::Data` counts them in 16 bits.
const FILES_MAX: usize = u16::MAX as usize;

/// Returns the refusal of a disk whose grains are compressed.
pub(crate) fn stream_optimized(file: &str) -> Error {
    let remedy = "copy it into a new VM (`unstun vm create NAME --from OLD.vmdk`), or convert it first (`qemu-img convert -O vmdk \
                  -o subformat=monolithicFlat OLD.vmdk NEW.vmdk`)";
    let cause = "the content is a streamOptimized disk (\"KDMV\", compressed), expected a format that is read in place";
    Error::unsupported(file, format!("{cause}; {remedy}"))
}

/// An open disk.
pub(crate) struct Hosted {
    name: String,
    files: Vec<File>,
    /// Parts by position on the disk, without gaps.
    parts: Vec<Part>,
    size_bytes: u64,
    /// Size of the largest grain, and of the smallest region.
    grain_bytes: u64,
    region_bytes: u64,
    /// By the number of the part and the region: 32 * 4 KiB = 128 KiB for each layer.
    tables: RefCell<TableCache<(usize, u32)>>,
}

struct Part {
    start: u64,
    end: u64,
    /// None reads as zeros.
    extent: Option<Extent>,
}

struct Extent {
    /// Index into the layer's files.
    file: u16,
    header: Header,
    directory: Directory,
    redundant: Option<Directory>,
    file_bytes: u64,
}

/// Reads and verifies the header of an extent. Returns the length of the file, too.
pub(crate) async fn read_header(file: &File) -> Result<(Header, u64)> {
    let file_bytes = file.size().await?;
    let first = read_tables(file, 0, file_bytes.min(HEADER_BYTES as u64) as usize).await?;
    Ok((decode_header(file.name(), &first, file_bytes)?, file_bytes))
}

impl Extent {
    async fn open(files: &[File], index: u16) -> Result<Extent> {
        let file = &files[usize::from(index)];
        let (header, file_bytes) = read_header(file).await?;
        if header.regions() > REGIONS_MAX {
            return Err(too_many_regions(file.name(), header.regions()));
        }
        let directory = read_directory(file, &header, header.directory, file_bytes).await?;
        let redundant = match header.redundant {
            Some(start) => Some(read_directory(file, &header, start, file_bytes).await?),
            None => None,
        };
        if let Some(copy) = &redundant {
            directory.check_copy(file.name(), copy)?;
        }
        Ok(Extent { file: index, header, directory, redundant, file_bytes })
    }

    fn bounds<'a>(&'a self, file: &'a File) -> TableBounds<'a> {
        TableBounds { file: file.name(), header: &self.header, file_bytes: self.file_bytes }
    }

    /// Reads the table of a region; None if it has none. Both copies must be equal.
    async fn read_table(&self, file: &File, region: u32) -> Result<Option<Table>> {
        let Some(at) = self.directory.table_at(region) else { return Ok(None) };
        let bytes = read_tables(file, at, self.header.table_bytes() as usize).await?;
        let copy = self.redundant.as_ref().and_then(|copy| copy.table_at(region));
        if let Some(copy) = copy.filter(|copy| *copy != at) {
            let copy = read_tables(file, copy, self.header.table_bytes() as usize).await?;
            if let Some(entry) = (0..bytes.len()).find(|byte| bytes[*byte] != copy[*byte]) {
                let entry = entry / ENTRY_BYTES as usize;
                let found = "different in the table and in its copy";
                let expected =
                    "the same value: VMware ended while it wrote; open the VM in VMware once, which mends it";
                return Err(wrong(file.name(), &table::entry_name(region, entry), found, expected));
            }
        }
        self.bounds(file).decode(region, &bytes).map(Some)
    }
}

fn too_many_regions(file: &str, regions: u64) -> Error {
    let cause = format!("the disk has {regions} grain tables, expected at most {REGIONS_MAX}");
    Error::unsupported(file, format!("{cause}, which is twice 64 TiB of VMware's"))
}

async fn read_directory(file: &File, header: &Header, start: u64, file_bytes: u64) -> Result<Directory> {
    // At most 2^22 entries: see `REGIONS_MAX`.
    let bytes = read_tables(file, start * SECTOR, (header.directory_sectors() * SECTOR) as usize).await?;
    Directory::decode(file.name(), header, &bytes, file_bytes)
}

impl Hosted {
    /// Opens a disk. `files` are the files of the descriptor's extents, by name. Verifies headers and directories.
    pub(crate) async fn open(
        name: &str,
        descriptor: &Descriptor,
        files: BTreeMap<String, File>,
    ) -> Result<Self> {
        if files.len() > FILES_MAX {
            let cause = format!("{} extent files, expected at most {FILES_MAX}", files.len());
            return Err(Error::unsupported(descriptor.file(), cause));
        }
        let names: Vec<String> = files.keys().cloned().collect();
        let files: Vec<File> = files.into_values().collect();
        let (mut parts, mut start, mut regions): (Vec<Part>, _, _) = (Vec::new(), 0, 0);
        for extent in descriptor.extents() {
            let end = start + extent.sectors * SECTOR;
            // The names are those of a map, in order.
            let extent = match names.binary_search(&extent.file) {
                _ if extent.kind == ExtentKind::Zero => None,
                Ok(index) => {
                    let open = Extent::open(&files, index as u16).await?;
                    check_capacity(descriptor, &open.header, files[index].name(), extent.sectors)?;
                    Some(open)
                }
                Err(_) => {
                    let cause = format!("the extent file of \"{extent}\"");
                    return Err(Error::not_found(descriptor.file(), cause));
                }
            };
            regions += extent.as_ref().map_or(0, |extent| extent.header.regions());
            if regions > REGIONS_MAX {
                return Err(too_many_regions(descriptor.file(), regions));
            }
            parts.push(Part { start, end, extent });
            start = end;
        }
        let headers = || parts.iter().filter_map(|part| Some(&part.extent.as_ref()?.header));
        let grain = headers().map(|header| header.grain_sectors).max().unwrap_or(1);
        let region = headers().map(Header::region_sectors).min().unwrap_or(grain);
        Ok(Hosted {
            name: name.into(),
            size_bytes: start,
            grain_bytes: grain * SECTOR,
            region_bytes: region * SECTOR,
            files,
            parts,
            tables: RefCell::default(),
        })
    }

    /// Returns the table of a region of a part, if it has one. Two tasks at the same time may both read it, because it does
    /// not change.
    async fn table(&self, part: usize, extent: &Extent, region: u32) -> Result<Option<Rc<Table>>> {
        if let Some(table) = self.tables.borrow_mut().get((part, region)) {
            return Ok(Some(table));
        }
        let file = &self.files[usize::from(extent.file)];
        let Some(table) = extent.read_table(file, region).await? else { return Ok(None) };
        let table = Rc::new(table);
        self.tables.borrow_mut().insert((part, region), table.clone());
        Ok(Some(table))
    }

    /// Returns the parts that a range of the disk touches.
    fn parts_in(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.parts.partition_point(|part| part.end <= range.start);
        let last = self.parts.partition_point(|part| part.start < range.end);
        first..last.max(first)
    }

    async fn runs(&self, range: Range<u64>) -> Result<Vec<Run>> {
        let sound = range.start < range.end
            && range.end <= self.size_bytes
            && range.start.is_multiple_of(SECTOR)
            && range.end.is_multiple_of(SECTOR);
        assert!(sound, "{}: range {range:?} of a disk of {} bytes", self.name, self.size_bytes);
        let mut runs = Runs::default();
        for index in self.parts_in(&range) {
            let part = &self.parts[index];
            let within = range.start.max(part.start)..range.end.min(part.end);
            match &part.extent {
                None => runs.push(within.start, within.end - within.start, Where::Zero),
                Some(extent) => self.runs_of_extent(index, extent, within, &mut runs).await?,
            }
        }
        Ok(runs.0)
    }

    async fn runs_of_extent(
        &self,
        part: usize,
        extent: &Extent,
        within: Range<u64>,
        out: &mut Runs,
    ) -> Result<()> {
        let (start, bytes) = (self.parts[part].start, extent.header.region_sectors() * SECTOR);
        // Below 2^22 regions.
        let regions = ((within.start - start) / bytes) as u32..(within.end - start).div_ceil(bytes) as u32;
        for region in regions {
            let base = start + u64::from(region) * bytes;
            let piece = within.start.max(base)..within.end.min(base + bytes);
            match self.table(part, extent, region).await? {
                Some(table) => {
                    let grain = extent.header.grain_sectors * SECTOR;
                    out.push_table(&table, grain, base, &piece, |number| (extent.file, number * grain));
                }
                None => out.push(piece.start, piece.end - piece.start, Where::Parent),
            }
        }
        Ok(())
    }

    fn refusal(&self, doing: &str) -> Error {
        let cause = format!("{doing} into a hosted sparse disk is not supported");
        let remedy = "keep the snapshot, or move the VM into the native store, which copies it";
        Error::unsupported(self.files[0].name(), format!("{cause}; {remedy}"))
    }
}

/// Compares the size in the header with that in the descriptor. Some writers round it up to whole grains.
fn check_capacity(descriptor: &Descriptor, header: &Header, file: &str, sectors: u64) -> Result<()> {
    let found = header.capacity_sectors;
    if found == sectors || found == sectors.next_multiple_of(header.grain_sectors) {
        return Ok(());
    }
    let expected = format!("{sectors}, as the descriptor {} says", descriptor.file());
    Err(wrong(file, "capacity", found, &expected))
}

impl Layer for Hosted {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Shape {
        Shape {
            size_bytes: self.size_bytes,
            grain_bytes: self.grain_bytes,
            region_bytes: self.region_bytes,
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
        let start = region * self.region_bytes;
        let range = start..(start + self.region_bytes).min(self.size_bytes);
        self.parts_in(&range).any(|index| {
            let part = &self.parts[index];
            let Some(extent) = &part.extent else { return true };
            let bytes = extent.header.region_sectors() * SECTOR;
            let (from, to) = (range.start.max(part.start), range.end.min(part.end));
            let mut regions = ((from - part.start) / bytes) as u32..(to - part.start).div_ceil(bytes) as u32;
            regions.any(|region| extent.directory.table_at(region).is_some())
        })
    }

    fn place(&self, _range: Range<u64>) -> Local<'_, Result<Placement>> {
        let error = self.refusal("committing");
        Box::pin(std::future::ready(Err(error)))
    }

    /// Does nothing, because nothing was written.
    fn seal(&self) -> Local<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns an upper bound: a file holds no more than its length without the metadata.
    fn usage(&self) -> Usage {
        let extents = || self.parts.iter().filter_map(|part| part.extent.as_ref());
        let held =
            |extent: &Extent| extent.file_bytes.saturating_sub(extent.header.overhead_sectors * SECTOR);
        Usage {
            held_bytes: extents().map(held).sum::<u64>().min(self.size_bytes),
            file_bytes: extents().map(|extent| extent.file_bytes).sum(),
        }
    }

    fn check(&self) -> Local<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(self.cross_check().await?.iter().map(ToString::to_string).collect()) })
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
