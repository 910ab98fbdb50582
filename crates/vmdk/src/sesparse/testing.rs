//! Writer of SEsparse files for tests. It follows reference/vmware-formats 4.8 and shares no code with the reader.

use std::collections::BTreeMap;

const SECTOR: u64 = 512;
pub(crate) const GRAIN: u64 = 4096;
pub(crate) const TABLE: u64 = 32768;
const GRAINS_PER_TABLE: u64 = 4096;

/// State of one grain of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrainContent {
    Data {
        grain: u64,
        fill: u8,
    },
    Zero,
    /// With the number of the grain that it owned.
    Unmapped(u64),
}

/// A delta to be written. Areas begin on multiples of `align` bytes. ESXi uses 1 MiB; QEMU accepts less.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    capacity_sectors: u64,
    align: u64,
    /// Slot of each region's table.
    slots: BTreeMap<u64, u64>,
    in_order_of_use: bool,
    holds: BTreeMap<u64, GrainContent>,
    next_grain: u64,
}

/// Start of each area in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub directory: u64,
    pub tables: u64,
    pub bitmap: u64,
    pub back_map: u64,
    pub grains: u64,
}

impl Image {
    pub(crate) fn new(capacity_sectors: u64, align: u64) -> Self {
        Self {
            capacity_sectors,
            align,
            slots: BTreeMap::new(),
            in_order_of_use: false,
            holds: BTreeMap::new(),
            next_grain: 0,
        }
    }

    /// Assigns slots to tables in order of use, as ESXi does; otherwise entry i has slot i.
    pub(crate) fn in_order_of_use(mut self) -> Self {
        self.in_order_of_use = true;
        self
    }

    fn grains(&self) -> u64 {
        self.capacity_sectors.div_ceil(8)
    }

    fn tables(&self) -> u64 {
        self.grains().div_ceil(GRAINS_PER_TABLE)
    }

    fn put(&mut self, at: u64, holds: GrainContent) {
        assert!(at < self.grains(), "grain {at} of {}", self.grains());
        let (region, next) = (at / GRAINS_PER_TABLE, self.slots.len() as u64);
        let slot = if self.in_order_of_use { next } else { region };
        self.slots.entry(region).or_insert(slot);
        self.holds.insert(at, holds);
    }

    /// Fills grain `at` of the disk with bytes `fill`.
    pub(crate) fn data(&mut self, at: u64, fill: u8) -> &mut Self {
        let grain = self.next_grain;
        self.next_grain += 1;
        self.put(at, GrainContent::Data { grain, fill });
        self
    }

    pub(crate) fn zero(&mut self, at: u64) -> &mut Self {
        self.put(at, GrainContent::Zero);
        self
    }

    /// Unmaps a grain. Its earlier data still exists, and waits to be reclaimed.
    pub(crate) fn unmap(&mut self, at: u64) -> &mut Self {
        let owned = match self.holds.get(&at) {
            Some(GrainContent::Data { grain, .. }) => *grain,
            _ => 0,
        };
        self.put(at, GrainContent::Unmapped(owned));
        self
    }

    pub(crate) fn layout(&self) -> Layout {
        let up = |bytes: u64| bytes.next_multiple_of(self.align);
        // Headers, journal header and a journal of 2048 sectors, or as much as the alignment leaves.
        let directory = up(4 * SECTOR) + if self.align >= 1 << 20 { 1 << 20 } else { 0 };
        let tables = up(directory + self.tables() * 8);
        let bitmap = up(tables + self.tables() * TABLE);
        let back_map = up(bitmap + self.grains().div_ceil(8));
        let grains = up(back_map + self.grains() * 8);
        Layout { directory, tables, bitmap, back_map, grains }
    }

    fn header(&self) -> Vec<u8> {
        let at = self.layout();
        let area = |start: u64, end: u64| [start / SECTOR, (end - start) / SECTOR];
        let journal = if self.align >= 1 << 20 { [2048, 2048] } else { [0, 0] };
        let words = [
            [0xCAFE_BABE, 0x2_0000_0001],
            [self.capacity_sectors, 8],
            [64, 0],
            [0, 0],
            [0, 0],
            [1, 1],
            [2, 2],
            journal,
            area(at.directory, at.tables),
            area(at.tables, at.bitmap),
            area(at.bitmap, at.back_map),
            area(at.back_map, at.grains),
            [at.grains / SECTOR, self.capacity_sectors],
        ];
        sectors(words.as_flattened(), 1)
    }

    /// Returns the pieces of the file that are not zeros, with their offsets.
    pub(crate) fn pieces(&self) -> Vec<(u64, Vec<u8>)> {
        let at = self.layout();
        let free_table = self.slots.values().max().map_or(0, |slot| slot + 1);
        let mut pieces = vec![
            (0, self.header()),
            (SECTOR, sectors(&[0xCAFE_CAFE, free_table, 0, 0], 1)),
            (2 * SECTOR, sectors(&[0xDEAF_C0DE, 0, 1], 1)),
        ];
        for (region, slot) in &self.slots {
            pieces.push((at.directory + region * 8, ((0x1 << 60) | slot).to_le_bytes().into()));
        }
        for (virtual_grain, holds) in &self.holds {
            let slot = self.slots[&(virtual_grain / GRAINS_PER_TABLE)];
            let index = virtual_grain % GRAINS_PER_TABLE;
            let entry = match holds {
                GrainContent::Data { grain, .. } => (3 << 60) | turned(*grain),
                GrainContent::Zero => 2 << 60,
                GrainContent::Unmapped(grain) => (1 << 60) | turned(*grain),
            };
            pieces.push((at.tables + slot * TABLE + index * 8, entry.to_le_bytes().into()));
            if let GrainContent::Data { grain, fill } = holds {
                let back = (0x1 << 60) | turned(slot * GRAINS_PER_TABLE + index);
                pieces.push((at.back_map + grain * 8, back.to_le_bytes().into()));
                pieces.push((at.grains + grain * GRAIN, vec![*fill; GRAIN as usize]));
            }
        }
        pieces.extend(self.bitmap().into_iter().map(|(byte, bits)| (at.bitmap + byte, vec![bits])));
        pieces
    }

    fn bitmap(&self) -> BTreeMap<u64, u8> {
        let mut bytes = BTreeMap::new();
        for holds in self.holds.values() {
            if let GrainContent::Data { grain, .. } = holds {
                *bytes.entry(grain / 8).or_default() |= 1 << (grain % 8);
            }
        }
        bytes
    }

    pub(crate) fn length(&self) -> u64 {
        self.layout().grains + self.next_grain * GRAIN
    }

    /// Returns the whole file, for small disks.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = vec![0; self.length() as usize];
        for (at, piece) in self.pieces() {
            file[at as usize..at as usize + piece.len()].copy_from_slice(&piece);
        }
        file
    }
}

/// Encodes a number: its lowest 12 bits are above the other 48.
pub(crate) fn turned(number: u64) -> u64 {
    ((number & 0xFFF) << 48) | (number >> 12)
}

fn sectors(words: &[u64], count: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize((count * SECTOR) as usize, 0);
    bytes
}
