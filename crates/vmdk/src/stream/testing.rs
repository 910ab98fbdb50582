//! A writer of streamOptimized disks, for tests alone: in the form of ovftool's (metadata at the end), of vmware-vdiskmanager's
//! and of QEMU's (metadata in front).

use std::collections::BTreeMap;
use std::io::Write;

use blk::SECTOR;
use flate2::Compression;
use flate2::write::ZlibEncoder;

/// Where the tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Behind the grains, with markers and a footer.
    AtEnd,
    /// In front of the grains.
    InFront,
    /// In front of the grains, twice.
    Copied,
}

pub(crate) const FORMS: [Form; 3] = [Form::AtEnd, Form::InFront, Form::Copied];

#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub capacity_sectors: u64,
    pub grain_sectors: u64,
    pub table_entries: u64,
    pub form: Form,
    pub text: String,
    pub text_sectors: u64,
    /// Compressed data by grain; None is a grain of zeros.
    pub grains: BTreeMap<u64, Option<Vec<u8>>>,
    /// Sectors before which grains do not begin.
    pub overhead_min: u64,
}

/// A file, and the sectors of its parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Built {
    pub bytes: Vec<u8>,
    pub directory: u64,
    pub redundant: u64,
    /// Of the tables that the directory names.
    pub tables: Vec<u64>,
    pub overhead: u64,
    pub grains: BTreeMap<u64, u64>,
    pub footer: u64,
}

pub(crate) fn descriptor(capacity_sectors: u64) -> String {
    format!(
        "# Disk DescriptorFile\nversion=1\nCID=00001234\nparentCID=ffffffff\ncreateType=\"streamOptimized\"\n\
         RDONLY {capacity_sectors} SPARSE \"an-old-name.vmdk\"\n"
    )
}

pub(crate) fn compress(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

impl Image {
    pub(crate) fn new(capacity_sectors: u64, grain_sectors: u64, form: Form) -> Image {
        let text = descriptor(capacity_sectors);
        let grains = BTreeMap::new();
        let (table_entries, text_sectors, overhead_min) = (512, 1, 0);
        Image {
            capacity_sectors,
            grain_sectors,
            table_entries,
            form,
            text,
            text_sectors,
            grains,
            overhead_min,
        }
    }

    /// Sets the content of a grain, which may be shorter.
    pub(crate) fn data(&mut self, grain: u64, content: &[u8]) -> &mut Image {
        self.grains.insert(grain, Some(compress(content)));
        self
    }

    pub(crate) fn fill(&mut self, grain: u64, fill: u8) -> &mut Image {
        self.data(grain, &vec![fill; (self.grain_sectors * SECTOR) as usize])
    }

    pub(crate) fn zero(&mut self, grain: u64) -> &mut Image {
        self.grains.insert(grain, None);
        self
    }

    fn regions(&self) -> u64 {
        self.capacity_sectors.div_ceil(self.table_entries * self.grain_sectors)
    }

    fn table_sectors(&self) -> u64 {
        (self.table_entries * 4).div_ceil(SECTOR)
    }

    pub(crate) fn build(&self) -> Built {
        let directory_sectors = (self.regions() * 4).div_ceil(SECTOR);
        let copy_sectors = directory_sectors + self.regions() * self.table_sectors();
        let mut built = Built::default();
        let first = 1 + self.text_sectors;
        let front = match self.form {
            Form::AtEnd => first,
            Form::InFront => first + copy_sectors,
            Form::Copied => first + 2 * copy_sectors,
        };
        built.overhead = front.max(self.overhead_min).next_multiple_of(self.grain_sectors);
        built.bytes.resize((built.overhead * SECTOR) as usize, 0);
        put(&mut built.bytes, SECTOR, self.text.as_bytes());
        let tables = self.put_grains(&mut built);
        match self.form {
            Form::AtEnd => self.put_end(&mut built, &tables),
            Form::InFront => self.put_copy(&mut built, first, &tables),
            Form::Copied => {
                self.put_copy(&mut built, first, &tables);
                built.redundant = built.directory;
                self.put_copy(&mut built, first + copy_sectors, &tables);
            }
        }
        let at_end = self.form == Form::AtEnd;
        let directory = if at_end { u64::MAX } else { built.directory };
        let header = self.header(&built, directory);
        put(&mut built.bytes, 0, &header);
        built
    }

    /// Appends the grains. Returns the tables by region.
    fn put_grains(&self, built: &mut Built) -> BTreeMap<u64, Vec<u32>> {
        let mut tables: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (grain, data) in &self.grains {
            let (region, entry) = (grain / self.table_entries, grain % self.table_entries);
            let table = tables.entry(region).or_insert_with(|| vec![0; self.table_entries as usize]);
            let Some(data) = data else {
                table[entry as usize] = 1;
                continue;
            };
            let sector = built.bytes.len() as u64 / SECTOR;
            table[entry as usize] = sector as u32;
            built.grains.insert(*grain, sector);
            built.bytes.extend((grain * self.grain_sectors).to_le_bytes());
            built.bytes.extend((data.len() as u32).to_le_bytes());
            built.bytes.extend(data);
            pad(&mut built.bytes);
        }
        tables
    }

    /// Writes a directory with a table for each region.
    fn put_copy(&self, built: &mut Built, first: u64, tables: &BTreeMap<u64, Vec<u32>>) {
        built.directory = first;
        let start = first + (self.regions() * 4).div_ceil(SECTOR);
        built.tables.clear();
        for region in 0..self.regions() {
            let sector = start + region * self.table_sectors();
            built.tables.push(sector);
            put(&mut built.bytes, first * SECTOR + region * 4, &(sector as u32).to_le_bytes());
            if let Some(table) = tables.get(&region) {
                put(&mut built.bytes, sector * SECTOR, &entries(table));
            }
        }
    }

    /// Appends the tables that are in use, the directory, and the footer, each behind its marker.
    fn put_end(&self, built: &mut Built, tables: &BTreeMap<u64, Vec<u32>>) {
        let mut directory = vec![0_u32; self.regions() as usize];
        for (region, table) in tables {
            let sector = put_marker(&mut built.bytes, self.table_sectors(), 1);
            directory[*region as usize] = sector as u32;
            built.tables.push(sector);
            built.bytes.extend(entries(table));
            pad(&mut built.bytes);
        }
        let sectors = (self.regions() * 4).div_ceil(SECTOR);
        built.directory = put_marker(&mut built.bytes, sectors, 2);
        built.bytes.extend(entries(&directory));
        pad(&mut built.bytes);
        built.footer = put_marker(&mut built.bytes, 1, 3);
        let footer = self.header(built, built.directory);
        built.bytes.extend(footer);
        put_marker(&mut built.bytes, 0, 0);
    }

    fn header(&self, built: &Built, directory: u64) -> Vec<u8> {
        let has_zeros = self.grains.values().any(Option::is_none);
        let copied = self.form == Form::Copied;
        let flags = 0x30001 | u32::from(copied) << 1 | u32::from(has_zeros) << 2;
        let mut header = vec![0; SECTOR as usize];
        put(&mut header, 0, b"KDMV");
        put(&mut header, 4, &3_u32.to_le_bytes());
        put(&mut header, 8, &flags.to_le_bytes());
        let sizes = [(12, self.capacity_sectors), (20, self.grain_sectors), (28, 1), (36, self.text_sectors)];
        let places = [(48, built.redundant), (56, directory), (64, built.overhead)];
        for (at, value) in sizes.into_iter().chain(places) {
            put(&mut header, at, &value.to_le_bytes());
        }
        put(&mut header, 44, &(self.table_entries as u32).to_le_bytes());
        put(&mut header, 73, b"\n \r\n\x01");
        header
    }
}

fn entries(table: &[u32]) -> Vec<u8> {
    table.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

/// Appends a marker of metadata. Returns the sector behind it.
fn put_marker(file: &mut Vec<u8>, sectors: u64, kind: u32) -> u64 {
    file.extend(sectors.to_le_bytes());
    file.extend(0_u32.to_le_bytes());
    file.extend(kind.to_le_bytes());
    pad(file);
    file.len() as u64 / SECTOR
}

fn pad(file: &mut Vec<u8>) {
    file.resize(file.len().next_multiple_of(SECTOR as usize), 0);
}

pub(crate) fn put(file: &mut [u8], at: u64, bytes: &[u8]) {
    file[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}
