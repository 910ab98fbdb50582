//! Parses whole files given as bytes, and checks the crate's guarantees for accepted ones. Fuzz targets, property tests
//! and the corpus share it. No I/O.
//!
//! A file may be refused with an error. If one is accepted and a guarantee does not hold, these functions panic.

use blk::manifest::SNAPSHOT_UID_MAX;
use blk::{Error, Result, SECTOR};

use crate::cowd::{
    Directory, HEADER_BYTES, Header, TABLE_BYTES, TABLE_SECTORS, TableBounds, TableRun, decode_entries,
    table_runs,
};
use crate::descriptor::{ContentId, Descriptor};
use crate::grain_table::Table;
use crate::hosted;
use crate::kdmv;
use crate::ova::{self, Manifest, OvaDisk};
use crate::sesparse;
use crate::stream;
use crate::vmsd::{Snapshot, Vmsd};
use crate::vmx::Vmx;

/// Name in errors.
const FILE: &str = "replayed";

/// Parses a descriptor, writes it, and parses it again after each edit.
pub fn descriptor(bytes: &[u8]) -> Result<Descriptor> {
    let descriptor = Descriptor::parse(FILE, bytes)?;
    let kept = descriptor.to_bytes();
    assert!(bytes.starts_with(&kept), "what is not changed is kept");
    assert!(bytes.get(kept.len()).is_none_or(|next| *next == 0), "up to the end of the text");
    assert!(descriptor.capacity_sectors() > 0);
    assert_eq!(descriptor.parent_cid().is_some(), descriptor.parent_hint().is_some());
    let edits: [fn(&mut Descriptor); 5] = [
        |d| d.set_content_id(ContentId::from_random(0x5eed)),
        |d| d.set_parent("parent.vmdk", 0x77),
        |d| d.set_extent_sectors(0, 1),
        Descriptor::clear_prepared,
        |d| _ = d.drop_change_tracking(),
    ];
    let mut edited = descriptor.clone();
    for edit in edits {
        edit(&mut edited);
        let again = Descriptor::parse(FILE, &edited.to_bytes()).expect("an edit leaves a descriptor");
        assert_same(&again, &edited);
    }
    assert_eq!((edited.cid(), edited.parent_cid()), (0x5eed, Some(0x77)));
    assert!(!edited.is_prepared() && !edited.drop_change_tracking());
    Ok(descriptor)
}

fn assert_same(left: &Descriptor, right: &Descriptor) {
    assert_eq!(left.cid(), right.cid());
    assert_eq!((left.parent_cid(), left.parent_hint()), (right.parent_cid(), right.parent_hint()));
    assert_eq!((left.create_type(), left.extents()), (right.create_type(), right.extents()));
    assert_eq!(left.ddb("longContentID"), right.ddb("longContentID"));
    assert_eq!(left.is_prepared(), right.is_prepared());
}

/// Sound metadata of a delta.
#[derive(Debug)]
pub struct Delta {
    /// The header in the first four sectors.
    pub header: Header,
    /// Places of the tables.
    pub directory: Directory,
    /// Runs of grains in the file, by region.
    pub held: Vec<(u32, Vec<TableRun>)>,
}

/// Parses the header, the directory and every table of the delta `file`.
pub fn vmfssparse(file: &[u8]) -> Result<Delta> {
    let file_bytes = file.len() as u64;
    let header = Header::decode(FILE, file, file_bytes)?;
    assert_eq!(header.bytes()[..], file[..HEADER_BYTES], "what is not changed is kept");
    let directory = slice(file, header.directory_sector(), header.directory_bytes());
    let directory = Directory::decode(FILE, &header, directory, file_bytes)?;
    let free_sector = (!header.is_unclean()).then(|| header.free_sector());
    let bounds = TableBounds { file: FILE, header: &header, directory: &directory, file_bytes, free_sector };
    let mut held = Vec::new();
    for (region, sector) in directory.tables() {
        let entries = decode_entries(slice(file, sector, TABLE_BYTES));
        let grains = bounds.check(region, &entries)?;
        let runs = table_runs(&entries, 0..entries.len(), header.grain_sectors());
        let runs: Vec<TableRun> = runs.filter(|run| run.position != 0).collect();
        assert_eq!(runs.iter().map(|run| run.entries).sum::<usize>(), grains);
        for run in &runs {
            assert_inside(&bounds, region, run);
        }
        held.push((region, runs));
    }
    Ok(Delta { header, directory, held })
}

/// Returns bytes of the file. Earlier checks have compared their position with the length of the file: a position out
/// of bounds is a defect of these.
fn slice(file: &[u8], sector: u32, bytes: usize) -> &[u8] {
    let at = sector as usize * SECTOR as usize;
    &file[at..at + bytes]
}

/// Asserts that a read of the run stays within the file, the disk, and the sectors for data.
fn assert_inside(bounds: &TableBounds<'_>, region: u32, run: &TableRun) {
    let end = u64::from(run.position) + run.entries as u64 * u64::from(bounds.header.grain_sectors());
    assert!(
        run.position >= bounds.header.first_data_sector() && end * SECTOR <= bounds.file_bytes,
        "{run:?}"
    );
    assert!(run.entry + run.entries <= bounds.header.grains_in(region), "{run:?}");
    for (other, table) in bounds.directory.tables() {
        let apart = end <= u64::from(table) || u64::from(table + TABLE_SECTORS) <= u64::from(run.position);
        assert!(apart, "{run:?} overlaps the table of region {other}");
    }
}

/// Parses a list of snapshots, writes it, and parses it again with one more snapshot.
pub fn vmsd(bytes: &[u8]) -> Result<Vmsd> {
    let vmsd = Vmsd::parse(FILE, bytes)?;
    assert_eq!(vmsd.to_bytes(), bytes, "what is not changed is kept");
    let mut edited = vmsd.clone();
    edited.set_list(vmsd.list().clone());
    assert_eq!(edited.to_bytes(), bytes, "an equal list changes nothing");
    let mut list = vmsd.list().clone();
    let Some(uid) = list.last_uid.checked_add(1).filter(|uid| *uid <= SNAPSHOT_UID_MAX) else {
        return Ok(vmsd);
    };
    list.last_uid = uid;
    list.snapshots.push(Snapshot {
        uid,
        parent: list.current,
        name: "new|\"\n".into(),
        ..Snapshot::default()
    });
    list.current = Some(uid);
    edited.set_list(list);
    let again = Vmsd::parse(FILE, &edited.to_bytes()).expect("an edit leaves a list");
    assert_eq!(again.list(), edited.list());
    Ok(vmsd)
}

/// Parses a configuration, writes it, and parses it again with every disk on another link.
pub fn vmx(bytes: &[u8]) -> Result<Vmx> {
    let vmx = Vmx::parse(FILE, bytes)?;
    assert_eq!(vmx.to_bytes(), bytes, "what is not changed is kept");
    let mut disks = vmx.disks()?;
    let mut edited = vmx.clone();
    for disk in &mut disks {
        disk.file_name = "other \"1\".vmdk".into();
        edited.set_disk_file(disk.slot, &disk.file_name);
    }
    let again = Vmx::parse(FILE, &edited.to_bytes()).expect("an edit leaves a configuration");
    assert_eq!(again.disks().expect("read before"), disks);
    Ok(vmx)
}

/// Sound metadata of an SEsparse delta.
#[derive(Debug)]
pub struct SeDelta {
    /// The constant header.
    pub header: sesparse::Header,
    /// Tables by region.
    pub tables: Vec<(u32, Table)>,
}

/// Parses both headers, the directory and every table of the SEsparse delta `file`.
pub fn sesparse(file: &[u8]) -> Result<SeDelta> {
    let file_bytes = file.len() as u64;
    let header = sesparse::Header::decode(FILE, file, file_bytes)?;
    let part = |offset: u64, bytes: usize| &file[offset as usize..offset as usize + bytes];
    let volatile = part(header.volatile.start_bytes(), sesparse::HEADER_BYTES);
    let volatile = sesparse::Volatile::decode(FILE, volatile.first_chunk().expect("a whole sector"))?;
    let slots = Vec::new();
    let mut reader = sesparse::DirectoryReader { file: FILE, header: &header, volatile, file_bytes, slots };
    let directory_bytes = header.regions() as usize * sesparse::ENTRY_BYTES;
    reader.add(part(header.directory.start_bytes(), directory_bytes))?;
    let directory = reader.finish()?;
    let bounds = sesparse::TableBounds { file: FILE, header: &header, file_bytes };
    let mut tables = Vec::new();
    for region in directory.regions() {
        let slot = directory.slot(region).expect("a region with a table");
        let table = bounds.decode(region, part(header.table_offset_bytes(slot), sesparse::TABLE_BYTES))?;
        assert_eq!(table.len(), header.grains_in(region));
        for (grain, run) in table.data_runs() {
            let start = header.grain_offset_bytes(grain);
            let end = start + run.entries as u64 * sesparse::GRAIN_BYTES;
            assert!(start >= header.grains.start_bytes() && end <= file_bytes, "{run:?}");
        }
        tables.push((region, table));
    }
    assert_eq!(tables.len(), directory.table_count());
    Ok(SeDelta { header, tables })
}

/// Sound metadata of a hosted sparse extent.
#[derive(Debug)]
pub struct HostedExtent {
    /// The header.
    pub header: kdmv::Header,
    /// Tables by region.
    pub tables: Vec<(u32, Table)>,
}

/// Parses the header, both directories and every table of the hosted sparse extent `file`, and the descriptor inside, if it
/// has one.
pub fn hosted(file: &[u8]) -> Result<HostedExtent> {
    let file_bytes = file.len() as u64;
    let header = hosted::decode_header(FILE, file, file_bytes)?;
    let part =
        |sector: u64, bytes: u64| &file[(sector * SECTOR) as usize..(sector * SECTOR + bytes) as usize];
    if let Some((start, sectors)) = header.descriptor {
        let text = part(start, sectors * SECTOR);
        if text.first().is_some_and(|byte| *byte != 0) {
            let link = Descriptor::parse(FILE, text)?.embed(FILE)?;
            assert!(link.is_embedded() && link.extents().len() == 1);
        }
    }
    let directory = |start| {
        let bytes = part(start, header.directory_sectors() * SECTOR);
        hosted::Directory::decode(FILE, &header, bytes, file_bytes)
    };
    let primary = directory(header.directory)?;
    if let Some(copy) = header.redundant.map(directory).transpose()? {
        primary.check_copy(FILE, &copy)?;
    }
    let bounds = hosted::TableBounds { file: FILE, header: &header, file_bytes };
    let mut tables = Vec::new();
    for region in primary.regions() {
        let at = primary.table_at(region).expect("a region with a table");
        let table = bounds.decode(region, part(at / SECTOR, header.table_bytes()))?;
        assert_eq!(table.len(), header.grains_in(region));
        for (grain, run) in table.data_runs() {
            let start = grain * header.grain_sectors;
            let past = (grain + run.entries as u64 - 1) * header.grain_sectors;
            assert!(start >= header.overhead_sectors && past * SECTOR < file_bytes, "{run:?}");
        }
        tables.push((region, table));
    }
    Ok(HostedExtent { header, tables })
}

/// Sound metadata of a streamOptimized disk.
#[derive(Debug)]
pub struct StreamDisk {
    /// The header, or the footer that replaces it.
    pub header: kdmv::Header,
    /// Size of the disk by its descriptor.
    pub sectors: u64,
    /// Tables by region.
    pub tables: Vec<(u32, Table)>,
}

/// Grains that a replay inflates, so that a small file does not take minutes.
const GRAINS_INFLATED_MAX: usize = 64;

/// Parses the header, the footer, the descriptor, both directories and every table of the streamOptimized disk `file`, and
/// inflates its first grains.
pub fn stream(file: &[u8]) -> Result<StreamDisk> {
    let file_bytes = file.len() as u64;
    let part =
        |sector: u64, bytes: u64| &file[(sector * SECTOR) as usize..(sector * SECTOR + bytes) as usize];
    let header = stream_header(file)?;
    let text = header.descriptor.map_or(&[][..], |(start, sectors)| part(start, sectors * SECTOR));
    let sectors = stream::check_descriptor(FILE, &header, Descriptor::parse(FILE, text)?)?;
    let directory = |start| {
        let mut directory = stream::Directory::new(&header);
        directory.add(part(start, header.directory_sectors() * SECTOR));
        directory.finish(FILE, &header, file_bytes)
    };
    let primary = directory(header.directory)?;
    let copy = header.redundant.map(directory).transpose()?;
    if let Some(copy) = &copy {
        primary.check_copy(FILE, copy)?;
    }
    let bounds = stream::TableBounds {
        file: FILE,
        header: &header,
        directory: &primary,
        redundant: copy.as_ref(),
        file_bytes,
    };
    let mut tables = Vec::new();
    for region in primary.regions() {
        let at = primary.table_at(region).expect("a region with a table");
        let table = bounds.decode(region, part(at / SECTOR, header.table_bytes()))?;
        assert_eq!(table.len(), header.grains_in(region));
        tables.push((region, table));
    }
    stream_grains(file, &header, sectors, &tables)?;
    Ok(StreamDisk { header, sectors, tables })
}

fn stream_header(file: &[u8]) -> Result<kdmv::Header> {
    let file_bytes = file.len() as u64;
    let header = match stream::decode_header(FILE, file, file_bytes)? {
        stream::Head::Complete(header) => return Ok(header),
        stream::Head::AtEnd(header) => header,
    };
    let Some(at) = stream::tail_offset(file_bytes) else {
        return Err(Error::damaged(FILE, "no footer"));
    };
    let tail = file[at as usize..].first_chunk().expect("the length of a tail");
    stream::decode_footer(FILE, &header, tail, file_bytes)
}

fn stream_grains(file: &[u8], header: &kdmv::Header, sectors: u64, tables: &[(u32, Table)]) -> Result<()> {
    let runs = tables.iter().flat_map(|(region, table)| {
        let first = u64::from(*region) * header.table_entries;
        let entries = table.data_runs().flat_map(|(sector, run)| {
            (0..run.entries as u64).map(move |index| (run.entry as u64 + index, sector + index))
        });
        entries.map(move |(entry, sector)| (first + entry, sector))
    });
    for (grain, sector) in runs.take(GRAINS_INFLATED_MAX) {
        let needed = sectors.saturating_sub(grain * header.grain_sectors);
        let needed_sectors = needed.min(header.grain_sectors);
        let grain_sectors = header.grain_sectors;
        let place = stream::GrainPlace { file: FILE, grain, sector, grain_sectors, needed_sectors };
        let bytes = &file[(sector * SECTOR) as usize..];
        let data = place.data_bytes(bytes, bytes.len() as u64)? as usize;
        let start = stream::MARKER_BYTES as usize;
        let content = place.inflate(&bytes[start..start + data])?;
        assert!(content.len() as u64 <= grain_sectors * SECTOR);
        assert!(content.len() as u64 >= needed_sectors * SECTOR);
    }
    Ok(())
}

/// Lists the members of an OVA, and parses its descriptor and its manifest. Returns its disks.
pub fn ova(file: &[u8]) -> Result<Vec<OvaDisk>> {
    let mut walk = ova::Walk::new(FILE, file.len() as u64);
    while let Some(part) = walk.wanted() {
        walk.feed(&file[part.start as usize..part.end as usize])?;
    }
    let members = walk.finish()?;
    let content = |member: &ova::Member| &file[member.at.start as usize..member.at.end as usize];
    let texts = ova::Texts::of(FILE, &members)?;
    let package = ova::parse_descriptor(FILE, content(&texts.descriptor))?;
    if let Some(member) = &texts.manifest {
        let manifest = Manifest::parse(FILE, content(member))?;
        assert!(manifest.hashes().all(|(name, hash)| !name.is_empty() && hash.digits.len() >= 40));
    }
    let (_, disks) = ova::assemble(FILE, package, &members)?;
    for disk in &disks {
        assert!(disk.capacity_bytes > 0 && disk.capacity_bytes.is_multiple_of(SECTOR));
        assert!(disk.file.as_ref().is_none_or(|member| members.contains(member)));
    }
    Ok(disks)
}
