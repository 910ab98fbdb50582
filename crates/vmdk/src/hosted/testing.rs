//! Writer of hosted sparse extents for tests. It follows reference/vmware-formats section 2 and shares no code with the reader.

use std::collections::BTreeMap;

const SECTOR: u64 = 512;
/// Entries of a table, and its size in sectors.
const ENTRIES: u64 = 512;
const TABLE_SECTORS: u64 = 4;
/// Sectors of the text inside.
const TEXT_SECTORS: u64 = 20;

/// An extent to be written.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub capacity_sectors: u64,
    pub grain_sectors: u64,
    /// Whether it has a second directory with tables of its own.
    pub redundant: bool,
    pub text: Option<String>,
    /// What each grain is filled with; None is a grain of zeros.
    grains: BTreeMap<u64, Option<u8>>,
}

/// First sectors of the parts of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub redundant: u64,
    pub directory: u64,
    pub tables: u64,
    pub overhead: u64,
}

impl Image {
    pub(crate) fn new(capacity_sectors: u64, grain_sectors: u64) -> Image {
        Image { capacity_sectors, grain_sectors, redundant: true, text: None, grains: BTreeMap::new() }
    }

    /// An image whose descriptor is inside of it.
    pub(crate) fn monolithic(self, parent: Option<(&str, u32)>, cid: u32) -> Image {
        let hint = parent.map_or(String::new(), |(hint, _)| format!("parentFileNameHint=\"{hint}\"\n"));
        let parent = parent.map_or(0xffff_ffff, |(_, cid)| cid);
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID={cid:08x}\nparentCID={parent:08x}\n{hint}createType=\"monolithicSparse\"\n\
             RW {} SPARSE \"an-old-name.vmdk\"\n",
            self.capacity_sectors
        );
        Image { text: Some(text), ..self }
    }

    pub(crate) fn data(&mut self, grain: u64, fill: u8) -> &mut Image {
        self.grains.insert(grain, Some(fill));
        self
    }

    pub(crate) fn zero(&mut self, grain: u64) -> &mut Image {
        self.grains.insert(grain, None);
        self
    }

    fn tables(&self) -> u64 {
        self.capacity_sectors.div_ceil(ENTRIES * self.grain_sectors)
    }

    pub(crate) fn layout(&self) -> Layout {
        let directory_sectors = (self.tables() * 4).div_ceil(SECTOR);
        let copy = directory_sectors + self.tables() * TABLE_SECTORS;
        let redundant = 1 + if self.text.is_some() { TEXT_SECTORS } else { 0 };
        let directory = redundant + if self.redundant { copy } else { 0 };
        let tables = directory + directory_sectors;
        let end = tables + self.tables() * TABLE_SECTORS;
        Layout { redundant, directory, tables, overhead: end.next_multiple_of(self.grain_sectors) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let layout = self.layout();
        let mut file = vec![0; (layout.overhead * SECTOR) as usize];
        self.put_header(&layout, &mut file);
        let mut tables = vec![0_u32; (self.tables() * ENTRIES) as usize];
        for (grain, fill) in &self.grains {
            let Some(fill) = fill else {
                tables[*grain as usize] = 1;
                continue;
            };
            tables[*grain as usize] = (file.len() as u64 / SECTOR) as u32;
            file.resize(file.len() + (self.grain_sectors * SECTOR) as usize, *fill);
        }
        let entries: Vec<u8> = tables.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let mut starts = vec![(layout.directory, layout.tables)];
        if self.redundant {
            let directory_sectors = layout.tables - layout.directory;
            starts.push((layout.redundant, layout.redundant + directory_sectors));
        }
        for (directory, first) in starts {
            let sectors = (0..self.tables()).map(|table| (first + table * TABLE_SECTORS) as u32);
            put(&mut file, directory * SECTOR, &sectors.flat_map(u32::to_le_bytes).collect::<Vec<_>>());
            put(&mut file, first * SECTOR, &entries);
        }
        file
    }

    fn put_header(&self, layout: &Layout, file: &mut [u8]) {
        let has_zeros = self.grains.values().any(Option::is_none);
        let flags = 1 | u32::from(self.redundant) << 1 | u32::from(has_zeros) << 2;
        let (text, text_sectors) = if self.text.is_some() { (1, TEXT_SECTORS) } else { (0, 0) };
        let redundant = if self.redundant { layout.redundant } else { 0 };
        put(file, 0, b"KDMV");
        put(file, 4, &(1 + u32::from(has_zeros)).to_le_bytes());
        put(file, 8, &flags.to_le_bytes());
        let fields = [(12, self.capacity_sectors), (20, self.grain_sectors), (28, text), (36, text_sectors)];
        let places = [(48, redundant), (56, layout.directory), (64, layout.overhead)];
        for (at, value) in fields.into_iter().chain(places) {
            put(file, at, &value.to_le_bytes());
        }
        put(file, 44, &(ENTRIES as u32).to_le_bytes());
        put(file, 73, b"\n \r\n");
        put(file, SECTOR, self.text.as_deref().unwrap_or_default().as_bytes());
    }
}

pub(crate) fn put(file: &mut [u8], at: u64, bytes: &[u8]) {
    file[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}
