//! SEsparse as a format of deltas that are written. The position of a table is its slot plus one, that of a grain its
//! number in the file plus one.
//!
//! A file that another program wrote may have grains that its guest unmapped: they read as zeros, and hide the parent's.
//! Such a file is not opened for writing, because a commit moves data alone.

use blk::layer::TableWrite;
use blk::{Buf, Error, ErrorKind, File, Local, Result, SECTOR};

use super::header::Area;
use super::mark::Mark;
use super::records::{self, Grains, Records};
use super::slots::Slots;
use super::table::{IN_USE, entry_name};
use super::{
    ENTRY_BYTES, Entry, GRAIN_BYTES, GRAIN_SECTORS, HEADER_BYTES, Header, TABLE_BYTES, Volatile,
    decode_words, read_directory, rotate,
};
use crate::cowd::{Directory, TableRun, table_runs};
use crate::delta::{self, Bounds, Format, LogName, Reservation};
use crate::read::read_tables;
use crate::text::wrong;

/// Positions have 32 bits, and 0 means none: 2^32 - 2 grains are just below 16 TiB of data in one delta.
const GRAINS_MAX: u64 = u32::MAX as u64 - 1;

/// The maps' space is reserved for so many grains at once: those of 16 MiB.
const RESERVED_GRAINS: u64 = 4096;

/// Returns the whole pages of a range, as offset and length.
fn pages(start: u64, end: u64) -> (u64, u64) {
    let start = start / GRAIN_BYTES * GRAIN_BYTES;
    (start, end.next_multiple_of(GRAIN_BYTES) - start)
}

/// The headers are in the first four sectors.
const HEAD_BYTES: usize = 4 * SECTOR as usize;

/// Type of an entry with data.
const DATA: u64 = 3 << 60;

/// The headers of a delta that is written, and what unstun keeps of it in memory.
pub struct WritableHeader {
    header: Header,
    volatile: Volatile,
    /// `freeGTNumber` as the file has it.
    free_table_written: u64,
    /// None: another program wrote the file last.
    mark: Option<Mark>,
    free_grain: u64,
    /// The maps have reserved space for the grains below this one.
    reserved_grain: u64,
    slots: Slots,
    records: Records,
}

impl WritableHeader {
    /// Returns whether unstun wrote a delta last.
    pub(crate) async fn is_ours(file: &File) -> Result<bool> {
        let file_bytes = file.size().await?;
        Ok(read_head(file, file_bytes).await?.2.is_some())
    }

    fn grain_slots(&self) -> u64 {
        self.header.grain_slots().min(GRAINS_MAX)
    }

    fn grains_up_to(&self, sector: u64) -> u64 {
        sector.saturating_sub(self.header.grains.start).div_ceil(GRAIN_SECTORS)
    }

    fn volatile_write(&self) -> TableWrite {
        let data = Buf::copy_of(&self.volatile.encode()).freeze();
        TableWrite { file: 0, offset: self.header.volatile.start_bytes(), data }
    }

    /// Refuses what this code does not write although it reads it.
    fn check_writable(header: &Header, file: &str) -> Result<()> {
        // They are no fault of what a reader needs.
        header
            .check_written_areas(file)
            .map_err(|e| Error::unsupported(file, format!("{}; it is read and not written", e.cause)))?;
        let is_at_its_place =
            header.volatile.start == 1 && header.journal_header == Area { start: 2, sectors: 2 };
        if is_at_its_place && header.grains.start.is_multiple_of(GRAIN_SECTORS) {
            return Ok(());
        }
        let cause = "its areas are not where ESXi has them, so it is read and not written";
        Err(Error::unsupported(file, cause))
    }
}

/// Reads the headers.
async fn read_head(file: &File, file_bytes: u64) -> Result<(Header, Volatile, Option<Mark>)> {
    let head = read_tables(file, 0, file_bytes.min(HEAD_BYTES as u64) as usize).await?;
    let header = Header::decode(file.name(), &head, file_bytes)?;
    WritableHeader::check_writable(&header, file.name())?;
    // The directory is behind the headers and inside of the file, so they were read whole.
    let sector = |n: usize| head[n * HEADER_BYTES..].first_chunk::<HEADER_BYTES>().expect("read whole");
    let volatile = Volatile::decode(file.name(), sector(1))?;
    let mark = Mark::decode(sector(2), volatile.next_transaction);
    Ok((header, volatile, mark))
}

impl Format for WritableHeader {
    const ENTRY_BYTES: usize = ENTRY_BYTES;
    const CAPACITY_FIELD: &'static str = "capacity";
    type Maps = Records;

    fn create(file: &str, capacity_sectors: u64, grain_sectors: u32) -> Result<Self> {
        if u64::from(grain_sectors) != GRAIN_SECTORS {
            let cause = format!("a grain size of {grain_sectors} sectors was asked for, expected 8");
            return Err(Error::invalid(file, cause));
        }
        let header = Header::create(file, capacity_sectors)?;
        let volatile = Volatile { free_table: 0, next_transaction: 0 };
        let mark = Some(Mark { unclean: Some((0, 0)), free_grain: 0 });
        // Below 2^23: see `CAPACITY_SECTORS_MAX`.
        let slots = Slots::new(header.table_slots() as u32, header.regions() as u32, 0, std::iter::empty());
        let records = Records::empty(&header);
        Ok(Self {
            header,
            volatile,
            free_table_written: 0,
            mark,
            free_grain: 0,
            reserved_grain: 0,
            slots,
            records,
        })
    }

    fn first_bytes(&self) -> Vec<u8> {
        let mark = self.mark.expect("a new delta has a mark").encode(self.volatile.next_transaction);
        let mut bytes = [self.header.encode(), self.volatile.encode(), mark].concat();
        bytes.resize(GRAIN_BYTES as usize, 0);
        bytes
    }

    fn empty_bytes(&self) -> u64 {
        self.header.grains.start_bytes()
    }

    fn read(file: &File, file_bytes: u64) -> Local<'_, Result<(Self, Directory)>> {
        Box::pin(async move {
            let (header, volatile, mark) = read_head(file, file_bytes).await?;
            let name = file.name();
            let found = read_directory(file, &header, volatile, file_bytes).await?;
            let mut directory = Directory::empty(header.regions() as u32);
            for region in found.regions() {
                let slot = found.slot(region).expect("a region with a table");
                directory.set(region, slot + 1);
            }
            // ESXi's area has a slot for each region; more than twice as many are never used.
            let count = header.table_slots().min(2 * header.regions().max(32)) as u32;
            let used = directory.tables().map(|(_, position)| position - 1);
            let used: Vec<u32> = used.collect();
            if let Some(slot) = used.iter().find(|slot| **slot >= count) {
                let cause =
                    format!("its tables are in slots up to {slot}, and only the first {count} are written");
                return Err(Error::unsupported(name, cause));
            }
            let free_table = volatile.free_table.min(count.into()) as u32;
            let slots = Slots::new(count, header.regions() as u32, free_table, used.into_iter());
            let free_grain = mark.filter(|mark| mark.unclean.is_none()).map_or(0, |mark| mark.free_grain);
            let records = Records::empty(&header);
            let free_table_written = volatile.free_table;
            let this = Self {
                header,
                volatile,
                free_table_written,
                mark,
                free_grain,
                reserved_grain: 0,
                slots,
                records,
            };
            // The grains of the file, without its tail.
            let limit = file_bytes.saturating_sub(this.header.grains.start_bytes()) / GRAIN_BYTES;
            if free_grain > limit.min(this.grain_slots()) {
                let expected = format!("at most {}: the file was cut", limit.min(this.grain_slots()));
                return Err(wrong(name, "the first free grain", free_grain, &expected));
            }
            Ok((this, directory))
        })
    }

    fn capacity_sectors(&self) -> u64 {
        self.header.capacity_sectors
    }

    fn grain_sectors(&self) -> u64 {
        GRAIN_SECTORS
    }

    fn step(&self) -> u32 {
        1
    }

    fn table_offset(&self, position: u32) -> u64 {
        self.header.table_offset_bytes(position - 1)
    }

    fn directory_offset(&self) -> u64 {
        self.header.directory.start_bytes()
    }

    fn sector_of(&self, position: u32) -> u64 {
        self.header.grains.start + u64::from(position.saturating_sub(1)) * GRAIN_SECTORS
    }

    fn position_of(&self, sector: u64) -> u32 {
        let grain = (sector - self.header.grains.start) / GRAIN_SECTORS;
        u32::try_from(grain + 1).expect("nothing is placed past `GRAINS_MAX`")
    }

    fn decode(&self, file: &str, region: u32, bytes: &[u8]) -> Result<Vec<u32>> {
        let position = |(entry, word): (usize, u64)| match Entry::decode(word) {
            Entry::Absent => Ok(0),
            Entry::Data(grain) if grain < self.grain_slots() => Ok(grain as u32 + 1),
            Entry::Data(grain) => {
                let expected = format!("below {}, the room for grains", self.grain_slots());
                Err(wrong(file, &entry_name(region, entry), format!("grain {grain}"), &expected))
            }
            Entry::Unmapped(_) | Entry::Zero(_) => {
                let cause = format!("{} was unmapped by the guest", entry_name(region, entry));
                let remedy = "unstun reads such a delta, and does not write it or commit it";
                Err(Error::unsupported(file, format!("{cause}; {remedy}")))
            }
            Entry::Corrupt => {
                let expected = "0, or a type from 1 to 3 in its top four bits";
                Err(wrong(file, &entry_name(region, entry), format!("{word:#018x}"), expected))
            }
        };
        decode_words(bytes).enumerate().map(position).collect()
    }

    fn encode(entries: &[u32], out: &mut [u8]) {
        for (bytes, entry) in out.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
            let word = entry.checked_sub(1).map_or(0, |grain| DATA | rotate(grain.into()));
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn encode_directory(positions: &[u32], out: &mut [u8]) {
        for (bytes, position) in out.chunks_exact_mut(ENTRY_BYTES).zip(positions) {
            let word = position.checked_sub(1).map_or(0, |slot| IN_USE << 32 | u64::from(slot));
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn check(&self, bounds: &Bounds<'_>, region: u32, entries: &[u32]) -> Result<usize> {
        let grains = self.header.grains_in(region);
        if let Some(past) = entries[grains..].iter().position(|entry| *entry != 0) {
            let field = entry_name(region, grains + past);
            return Err(wrong(bounds.file, &field, "a grain", "0, as it is past the end of the disk"));
        }
        let mut runs: Vec<TableRun> = table_runs(entries, 0..grains, 1).filter(TableRun::is_data).collect();
        for run in &runs {
            let end = self.sector_of(run.position) + run.entries as u64 * GRAIN_SECTORS;
            let last = u64::from(run.position - 1) + run.entries as u64 - 1;
            let limit = bounds.file_bytes / SECTOR;
            if end > bounds.free_sector.unwrap_or(limit).min(limit) {
                let expected = "a grain inside of the file and of its part in use: the file was cut, or another program has written it";
                return Err(wrong(
                    bounds.file,
                    &entry_name(region, run.entry),
                    format!("grain {last}"),
                    expected,
                ));
            }
        }
        runs.sort_unstable_by_key(|run| run.position);
        for (left, right) in runs.iter().zip(runs.iter().skip(1)) {
            if u64::from(left.position) + left.entries as u64 > u64::from(right.position) {
                let expected = format!("another grain than that of entry {}", left.entry);
                let found = format!("grain {}", right.position - 1);
                return Err(wrong(bounds.file, &entry_name(region, right.entry), found, &expected));
            }
        }
        Ok(runs.iter().map(|run| run.entries).sum())
    }

    fn first_free_sector(&self, _directory: &Directory) -> u64 {
        self.header.grains.start
    }

    fn limit_sector(&self) -> u64 {
        self.header.grains.start + self.grain_slots() * GRAIN_SECTORS
    }

    fn limit_error(&self, file: &str) -> Error {
        let cause = format!("all {} grains of the delta have been used once", self.grain_slots());
        Error::new(ErrorKind::NoSpace, file, format!("{cause}; commit the snapshot to go on"))
    }

    fn grains_below(&self, _directory: &Directory, free_sector: u64) -> u64 {
        free_sector.saturating_sub(self.header.grains.start) / GRAIN_SECTORS
    }

    fn used_bytes(&self, directory: &Directory, free_sector: u64) -> u64 {
        let grains = self.grains_below(directory, free_sector);
        let records = grains * ENTRY_BYTES as u64 + grains.div_ceil(8);
        grains * GRAIN_BYTES + records + (directory.table_count() * TABLE_BYTES) as u64
    }

    fn table_end(&self, _position: u32) -> u64 {
        0
    }

    fn take_table(&mut self, file: &str, region: u32) -> Result<Option<u32>> {
        Ok(Some(self.slots.take(file, region)? + 1))
    }

    fn to_reserve(&self, end_sector: u64) -> Option<Reservation> {
        let mut reservation = Reservation { end_sector, ..Reservation::default() };
        for (slot, region) in self.slots.unreserved() {
            let entry = self.header.directory.start_bytes() + u64::from(region) * ENTRY_BYTES as u64;
            reservation.ranges.push((self.header.table_offset_bytes(slot), TABLE_BYTES as u64));
            reservation.ranges.push(pages(entry, entry + ENTRY_BYTES as u64));
            reservation.tables.push(slot + 1);
        }
        let end = self.grains_up_to(end_sector).next_multiple_of(RESERVED_GRAINS).min(self.grain_slots());
        if end > self.reserved_grain {
            let start = self.reserved_grain;
            let bits = self.header.bitmap.start_bytes();
            let entries = self.header.back_map.start_bytes();
            reservation.ranges.push(pages(bits + start / 8, bits + end.div_ceil(8)));
            let bytes = ENTRY_BYTES as u64;
            reservation.ranges.push(pages(entries + start * bytes, entries + end * bytes));
        }
        (!reservation.ranges.is_empty()).then_some(reservation)
    }

    fn note_reserved(&mut self, reserved: &Reservation) {
        reserved.tables.iter().for_each(|position| self.slots.note_reserved(position - 1));
        let end = self.grains_up_to(reserved.end_sector).next_multiple_of(RESERVED_GRAINS);
        self.reserved_grain = self.reserved_grain.max(end.min(self.grain_slots()));
    }

    fn claim_table(&mut self, file: &str, region: u32, position: u32) -> Result<()> {
        if position.checked_sub(1).is_some_and(|slot| self.slots.claim(slot)) {
            return Ok(());
        }
        let cause =
            format!("the log in the host's memory has the table of region {region} at position {position}");
        Err(Error::damaged(file, format!("{cause}, expected a free slot")))
    }

    fn give_table(&mut self, position: u32) {
        self.slots.give(position - 1);
    }

    fn release_table(&mut self, position: u32) {
        self.slots.release(position - 1);
        self.records.leaks = true;
    }

    fn is_unclean(&self) -> bool {
        self.mark.is_none_or(|mark| mark.unclean.is_some())
    }

    fn log(&self) -> LogName {
        self.mark.and_then(|mark| mark.unclean).unwrap_or_default()
    }

    fn set_mark(&mut self, unclean: Option<LogName>) {
        self.mark = Some(Mark { unclean, free_grain: self.free_grain });
    }

    fn mark_write(&self, unclean: Option<LogName>) -> (u64, Buf) {
        let mark = Mark { unclean, free_grain: self.free_grain };
        let offset = self.header.journal_header.start_bytes();
        (offset, Buf::copy_of(&mark.encode(self.volatile.next_transaction)))
    }

    fn free_sector(&self) -> u64 {
        self.header.grains.start + self.free_grain * GRAIN_SECTORS
    }

    fn set_free_sector(&mut self, sector: u64) {
        self.free_grain = (sector - self.header.grains.start) / GRAIN_SECTORS;
    }

    fn free_write(&self) -> Option<(u64, Buf)> {
        None
    }

    fn note_grains(&mut self, entry: &delta::Entry) {
        if let Some(grains) = Grains::of(entry) {
            self.records.note(&grains);
        }
    }

    fn record(&self, file: &File, entries: &[delta::Entry]) -> Local<'static, Result<()>> {
        let grains = entries.iter().filter_map(Grains::of).collect();
        Box::pin(records::write(file.clone(), self.header.clone(), grains))
    }

    fn records_to_write(&mut self) -> Vec<TableWrite> {
        self.slots.capture();
        let mut writes = self.records.capture();
        self.volatile.free_table = self.volatile.free_table.max(self.slots.free_table().into());
        if self.volatile.free_table != self.free_table_written {
            writes.push(self.volatile_write());
        }
        writes
    }

    fn settle_records(&mut self) {
        self.slots.settle();
        self.records.settle();
        self.free_table_written = self.volatile.free_table;
    }

    fn unwritten_bytes(&self) -> u64 {
        self.records.unwritten_bytes()
    }

    fn has_leaks(&self) -> bool {
        self.records.leaks
    }

    fn note_leak(&mut self) {
        self.records.leaks = true;
    }

    fn prepare(
        &self,
        file: &File,
        directory: &Directory,
        free_sector: u64,
        rebuild: bool,
    ) -> Local<'static, Result<Records>> {
        let (file, header) = (file.clone(), self.header.clone());
        let slots: Vec<(u32, u32)> = match rebuild {
            true => directory.tables().map(|(region, position)| (region, position - 1)).collect(),
            false => Vec::new(),
        };
        let free_grain = self.grains_below(directory, free_sector);
        let grain_slots = self.grain_slots();
        Box::pin(async move {
            if rebuild {
                let in_file = file.size().await?.saturating_sub(header.grains.start_bytes()) / GRAIN_BYTES;
                records::rebuild(&file, &header, &slots, free_grain.max(in_file).min(grain_slots)).await?;
            }
            Records::open(&file, &header, free_grain).await
        })
    }

    fn set_maps(&mut self, maps: Records) {
        // What is below the first free grain has been written.
        let written = maps.free_grain / RESERVED_GRAINS * RESERVED_GRAINS;
        self.reserved_grain = self.reserved_grain.max(written);
        self.records = maps;
    }
}
