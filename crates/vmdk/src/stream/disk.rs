//! An open streamOptimized disk: its parts, and the look-up and inflation of its grains.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::{Buf, Error, File, Result, SECTOR, Slice};

use super::directory::Directory;
use super::grain::{GrainPlace, MARKER_BYTES, compressed_max};
use super::header::{Head, TAIL_BYTES, decode_footer, decode_header, tail_offset};
use super::table::TableBounds;
use crate::descriptor::Descriptor;
use crate::file_range::FileRange;
use crate::grain_table::{Place, Table, TableCache};
use crate::kdmv::{HEADER_BYTES, Header};
use crate::lru::Lru;
use crate::read::parse;
use crate::text::{TEXT_BYTES_MAX, shown, wrong};

/// Bytes of the directory that one read returns.
const DIRECTORY_PIECE_BYTES: u64 = 1 << 20;
/// Bytes of inflated grains that are kept for each disk, and the least number of them: 32 grains of VMware's 64 KiB.
const GRAINS_CACHED_BYTES: u64 = 2 << 20;
const GRAINS_CACHED_MIN: u64 = 2;
/// Largest grain that is inflated on the core: 0.3 ms. A grain of 1 MiB takes 5 ms.
const INFLATED_IN_PLACE_BYTES_MAX: u64 = 128 << 10;

/// An open disk.
pub struct Stream {
    source: FileRange,
    header: Header,
    directory: Directory,
    redundant: Option<Directory>,
    size_bytes: u64,
    tables: RefCell<TableCache<u32>>,
    grains: RefCell<Lru<u64, Slice>>,
    /// Numbers of the grains that are being inflated: two readers of a grain inflate it once.
    inflating: RangeLock,
}

/// Opens the disk that is in the part `at` of a file: 0 to its length if the file is the disk.
///
/// # Errors
/// `Damaged` for what the format does not allow; `Unsupported` for another format, and for a disk that has a parent.
pub async fn open(file: File, at: Range<u64>) -> Result<Rc<Stream>> {
    Stream::open(FileRange::new(file, at, None).await?).await.map(Rc::new)
}

/// Opens the disk `member` of an archive, which is in the part `at` of its file. The name is for messages.
///
/// # Errors
/// Those of [`open`].
pub async fn open_member(file: File, at: Range<u64>, member: &str) -> Result<Rc<Stream>> {
    Stream::open(FileRange::new(file, at, Some(member)).await?).await.map(Rc::new)
}

impl Stream {
    async fn open(source: FileRange) -> Result<Stream> {
        let header = read_header(&source).await?;
        let size_sectors = read_capacity(&source, &header).await?;
        let directory = read_directory(&source, &header, header.directory).await?;
        let redundant = match header.redundant {
            Some(start) => Some(read_directory(&source, &header, start).await?),
            None => None,
        };
        if let Some(copy) = &redundant {
            directory.check_copy(source.name(), copy)?;
        }
        let kept = (GRAINS_CACHED_BYTES / (header.grain_sectors * SECTOR)).max(GRAINS_CACHED_MIN);
        Ok(Stream {
            source,
            header,
            directory,
            redundant,
            size_bytes: size_sectors * SECTOR,
            tables: RefCell::default(),
            grains: RefCell::new(Lru::new(kept as usize)),
            inflating: RangeLock::default(),
        })
    }

    /// Returns the name of the disk in messages.
    pub fn name(&self) -> &str {
        self.source.name()
    }

    /// Returns the size of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the size of a grain: the unit that is inflated.
    pub fn grain_bytes(&self) -> u64 {
        self.header.grain_sectors * SECTOR
    }

    #[cfg(test)]
    pub(crate) fn file_reads(&self) -> u64 {
        self.source.file().counters().reads
    }

    /// Returns the bytes of the disk that one table covers.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.header.region_sectors() * SECTOR
    }

    /// Returns whether a region has a table. Without one it reads as zeros.
    pub(crate) fn has_table(&self, region: u32) -> bool {
        self.directory.table_at(region).is_some()
    }

    fn bounds(&self) -> TableBounds<'_> {
        TableBounds {
            file: self.source.name(),
            header: &self.header,
            directory: &self.directory,
            redundant: self.redundant.as_ref(),
            file_bytes: self.source.bytes(),
        }
    }

    /// Returns the table of a region, if it has one. Two tasks at the same time may both read it, because it does not change.
    pub(crate) async fn table(&self, region: u32) -> Result<Option<Rc<Table>>> {
        if let Some(table) = self.tables.borrow_mut().get(region) {
            return Ok(Some(table));
        }
        let Some(at) = self.directory.table_at(region) else { return Ok(None) };
        let len = self.header.table_bytes();
        let bytes = self.source.read_table(at, len).await?;
        let copy = self.redundant.as_ref().and_then(|copy| copy.table_at(region));
        if let Some(copy) = copy.filter(|copy| *copy != at) {
            let copy = self.source.read_table(copy, len).await?;
            self.bounds().check_copy(region, &bytes, &copy)?;
        }
        let table = Rc::new(self.bounds().decode(region, &bytes)?);
        self.tables.borrow_mut().insert(region, table.clone());
        Ok(Some(table))
    }

    /// Fills `buf` from `offset`.
    pub(crate) async fn read_range(&self, offset: u64, buf: &mut Buf) -> Result<()> {
        let len = buf.len();
        if offset.checked_add(len as u64).is_none_or(|end| end > self.size_bytes) {
            let cause = format!("{len} bytes at {offset} reach past the disk's {} bytes", self.size_bytes);
            return Err(Error::invalid(self.name(), cause));
        }
        let (grain_bytes, mut done) = (self.grain_bytes(), 0);
        while done < len {
            let at = offset + done as u64;
            let skip = (at % grain_bytes) as usize;
            let part = (grain_bytes as usize - skip).min(len - done);
            let out = &mut buf[done..done + part];
            match self.grain(at / grain_bytes).await? {
                Some(content) => out.copy_from_slice(&content[skip..skip + part]),
                None => out.fill(0),
            }
            done += part;
        }
        Ok(())
    }

    /// Returns the content of a grain, at least the part of it that is of the disk; None if it reads as zeros.
    async fn grain(&self, grain: u64) -> Result<Option<Slice>> {
        if let Some(content) = self.grains.borrow_mut().get(grain) {
            return Ok(Some(content));
        }
        // Below 2^22 regions of at most 512 entries.
        let region = (grain / self.header.table_entries) as u32;
        let entry = (grain % self.header.table_entries) as usize;
        let Some(table) = self.table(region).await? else { return Ok(None) };
        let Some(sector) = data_at(&table, entry) else { return Ok(None) };
        let _own = self.inflating.lock(grain..grain + 1).await;
        if let Some(content) = self.grains.borrow_mut().get(grain) {
            return Ok(Some(content));
        }
        let content = self.load_grain(grain, sector, data_at(&table, entry + 1)).await?;
        self.grains.borrow_mut().insert(grain, content.clone());
        Ok(Some(content))
    }

    /// Reads and inflates a grain. `next` is the sector of the grain after it, where one is.
    async fn load_grain(&self, grain: u64, sector: u64, next: Option<u64>) -> Result<Slice> {
        let first = grain * self.header.grain_sectors;
        let needed_sectors = (self.size_bytes / SECTOR - first).min(self.header.grain_sectors);
        let grain_sectors = self.header.grain_sectors;
        let place = GrainPlace { file: self.name(), grain, sector, grain_sectors, needed_sectors };
        let (at, file_bytes) = (sector * SECTOR, self.source.bytes());
        // Most grains are in order, and the next one is the end of this one. Otherwise a grain that did not compress is
        // assumed, so that one read is enough.
        let end = next.filter(|next| *next > sector).map_or(file_bytes, |next| next * SECTOR);
        let most = MARKER_BYTES + compressed_max(place.grain_bytes());
        let raw = self.source.read(at, (end.min(file_bytes) - at).min(most)).await?;
        let data_bytes = place.data_bytes(&raw, file_bytes - at)?;
        let raw = match raw.len() as u64 >= MARKER_BYTES + data_bytes {
            true => raw,
            false => self.source.read(at, MARKER_BYTES + data_bytes).await?,
        };
        self.inflate(place, raw, data_bytes as usize).await
    }

    async fn inflate(&self, place: GrainPlace<'_>, raw: Buf, data_bytes: usize) -> Result<Slice> {
        let data = MARKER_BYTES as usize..MARKER_BYTES as usize + data_bytes;
        if place.grain_bytes() <= INFLATED_IN_PLACE_BYTES_MAX {
            return place.inflate(&raw[data]).map(Buf::freeze);
        }
        let (file, GrainPlace { grain, sector, grain_sectors, needed_sectors, .. }) =
            (place.file.to_owned(), place);
        let inflate = move || {
            let place = GrainPlace { file: &file, grain, sector, grain_sectors, needed_sectors };
            place.inflate(&raw[data])
        };
        self.source.file().env().offload(inflate).await.map(Buf::freeze)
    }
}

/// Returns the sector of a grain's marker.
fn data_at(table: &Table, entry: usize) -> Option<u64> {
    match table.runs(entry..entry + 1).next()?.place {
        Place::Data(sector) => Some(sector),
        Place::Parent | Place::Zero => None,
    }
}

/// Reads the header, or the footer where the header refers to it.
async fn read_header(source: &FileRange) -> Result<Header> {
    let (name, bytes) = (source.name(), source.bytes());
    let first = source.read_table(0, bytes.min(HEADER_BYTES as u64)).await?;
    match decode_header(name, &first, bytes)? {
        Head::Complete(header) => Ok(header),
        Head::AtEnd(header) => {
            let Some(at) = tail_offset(bytes) else {
                let expected = "at least the header and the footer: was the file cut?";
                return Err(wrong(name, "the length", format!("{bytes} bytes"), expected));
            };
            let tail = source.read_table(at, TAIL_BYTES as u64).await?;
            decode_footer(name, &header, tail.first_chunk().expect("its whole length was read"), bytes)
        }
    }
}

/// Reads the descriptor inside. Returns the sectors of the disk.
async fn read_capacity(source: &FileRange, header: &Header) -> Result<u64> {
    let name = source.name();
    let Some((start, sectors)) = header.descriptor else {
        return Err(wrong(
            name,
            "descriptorOffset",
            0,
            "the place of the descriptor, which such a disk has inside",
        ));
    };
    if sectors > TEXT_BYTES_MAX as u64 / SECTOR {
        let expected = format!("at most {}", TEXT_BYTES_MAX as u64 / SECTOR);
        return Err(wrong(name, "descriptorSize", sectors, &expected));
    }
    let text = source.read_table(start * SECTOR, sectors * SECTOR).await?;
    let env = source.file().env();
    let descriptor = parse(env, name.to_owned(), text.to_vec(), Descriptor::parse).await?;
    check_descriptor(name, header, descriptor)
}

/// Verifies the descriptor inside of a disk. Returns the sectors of the disk: some writers round the header's up to grains.
pub(crate) fn check_descriptor(file: &str, header: &Header, descriptor: Descriptor) -> Result<u64> {
    let descriptor = descriptor.embed(file)?;
    let create_type = descriptor.create_type();
    if !create_type.eq_ignore_ascii_case("streamOptimized") {
        return Err(wrong(file, "createType", shown(create_type), "\"streamOptimized\""));
    }
    if let Some(parent) = descriptor.parent_cid() {
        let cause = format!(
            "parentCID is {parent:08x}, expected ffffffff: the disk has only what differs from its parent"
        );
        let remedy = "export the VM again without snapshots, or convert the disk with its parent into one \
                      (`vmware-vdiskmanager -r LAST.vmdk -t 5 WHOLE.vmdk`)";
        return Err(Error::unsupported(file, format!("{cause}; {remedy}")));
    }
    let (found, sectors) = (header.capacity_sectors, descriptor.capacity_sectors());
    if found != sectors && found != sectors.next_multiple_of(header.grain_sectors) {
        let expected = format!("{sectors}, as the descriptor inside says");
        return Err(wrong(file, "capacity", found, &expected));
    }
    Ok(sectors)
}

/// Reads the directory at sector `start`, in pieces.
async fn read_directory(source: &FileRange, header: &Header, start: u64) -> Result<Directory> {
    let mut directory = Directory::new(header);
    let (mut at, end) = (start * SECTOR, (start + header.directory_sectors()) * SECTOR);
    while at < end {
        let piece = source.read_table(at, (end - at).min(DIRECTORY_PIECE_BYTES)).await?;
        directory.add(&piece);
        at += piece.len() as u64;
    }
    directory.finish(source.name(), header, source.bytes())
}
