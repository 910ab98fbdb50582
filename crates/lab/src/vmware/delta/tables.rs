//! A delta's tables as I/Os: look-ups of pages that are not in memory, and writes of changed entries.

use std::collections::BTreeSet;
use std::ops::Range;

use blk::{Buf, Result, SECTOR};

use super::Delta;
use super::journal::{Sector, sectors};
use crate::vmware::format::SE_BACKMAP_ENTRY_BYTES;
use crate::vmware::host::Purpose;
use crate::vmware::map::REGION_GRAINS;
use crate::vmware::rules::{TABLE_PAGE_BYTES, TableCache, TableWrites};

impl Delta {
    /// Returns the table pages that have the entries of `range`, numbered across all tables.
    fn pages(&self, range: &Range<u64>) -> Range<u64> {
        let page_bytes = self.layout.format.page_grains() * self.grain();
        range.start / page_bytes..range.end.div_ceil(page_bytes)
    }

    /// Returns the offset of the page in the file; None where its table does not exist.
    fn page_at(&self, page: u64) -> Option<u64> {
        let per_table = self.layout.format.pages_per_table();
        let table = self.state.borrow().map.table_at(page / per_table)?;
        Some(table * self.grain() + page % per_table * TABLE_PAGE_BYTES)
    }

    /// Looks a range up for a read. With a read filter it skips a delta that holds nothing of the range; the filter is
    /// never wrong.
    pub(crate) async fn look_up_read(&self, range: &Range<u64>) -> Result<()> {
        if self.kind.rules.read_filter && !self.holds_any(range) {
            return Ok(());
        }
        self.look_up(range).await
    }

    /// Reads the table pages of `range` that exist and are not in memory.
    pub(crate) async fn look_up(&self, range: &Range<u64>) -> Result<()> {
        for page in self.pages(range) {
            let Some(at) = self.page_at(page) else { continue };
            if self.state.borrow_mut().cache.hit(page) {
                continue;
            }
            let buf = Buf::alloc(TABLE_PAGE_BYTES as usize);
            self.host.read(&self.extent.file, at, buf, Purpose::Table).await.1?;
            self.state.borrow_mut().cache.insert(page);
        }
        Ok(())
    }

    /// Reads the whole table that covers `offset`, as a committer does before it moves the grains that the table names.
    pub(crate) async fn read_table(&self, offset: u64) -> Result<()> {
        let format = self.layout.format;
        let first = offset / format.region_bytes() * format.pages_per_table();
        let Some(at) = self.page_at(first) else { return Ok(()) };
        if self.kind.rules.table_cache == TableCache::Everything {
            return Ok(());
        }
        let buf = Buf::alloc(format.table_bytes() as usize);
        self.host.read(&self.extent.file, at, buf, Purpose::Table).await.1
    }

    /// Writes the changed entries of `range` to the file, now or at the next flush.
    pub(crate) async fn write_tables(&self, range: &Range<u64>) -> Result<()> {
        if self.kind.rules.table_writes == TableWrites::AtFlush {
            let pages = self.pages(range);
            self.state.borrow_mut().dirty.extend(pages);
            return Ok(());
        }
        let Some(journal) = &self.journal else { return self.write_pages(self.pages(range)).await };
        journal.log(self.changed_sectors(range)).await?;
        let mut state = self.state.borrow_mut();
        self.pages(range).for_each(|page| state.cache.insert(page));
        Ok(())
    }

    /// Flushes the data, then the tables that point to it.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.host.flush(&self.extent.file).await?;
        let dirty = std::mem::take(&mut self.state.borrow_mut().dirty);
        if dirty.is_empty() {
            return Ok(());
        }
        for page in dirty {
            self.write_pages(page..page + 1).await?;
        }
        self.host.flush(&self.extent.file).await
    }

    async fn write_pages(&self, pages: Range<u64>) -> Result<()> {
        let per_table = self.layout.format.pages_per_table();
        let mut page = pages.start;
        while page < pages.end {
            let region = page / per_table;
            let is_new = self.state.borrow_mut().map.is_table_new(region);
            let (first, count) = if is_new { (region * per_table, per_table) } else { (page, 1) };
            self.write_table_part(first, count).await?;
            if is_new {
                self.write_directory(region).await?;
            }
            page = first + count;
        }
        Ok(())
    }

    async fn write_table_part(&self, first: u64, count: u64) -> Result<()> {
        let _guard = self.pages_written.lock(first..first + count).await;
        let at = self.page_at(first).expect("a table that is written has a place");
        let data = self.encode_pages(first, count).freeze();
        self.extent.write(&self.host, at, data, Purpose::Table).await?;
        let mut state = self.state.borrow_mut();
        (first..first + count).for_each(|page| state.cache.insert(page));
        Ok(())
    }

    fn encode_pages(&self, first: u64, count: u64) -> Buf {
        let format = self.layout.format;
        let mut out = Buf::zeroed((count * TABLE_PAGE_BYTES) as usize);
        let from = first * format.page_grains();
        // The pages are of one table, so the grains are of one region.
        for (grain, stretch) in self.state.borrow().map.stretches(from, count * format.page_grains()) {
            for (n, at) in stretch.at.into_iter().flat_map(|at| (0..stretch.count).map(move |n| (n, at + n)))
            {
                format.encode(&mut out, grain + n - from, at);
            }
        }
        out
    }

    /// Writes the directory sector that has the region's entry.
    async fn write_directory(&self, region: u64) -> Result<()> {
        let format = self.layout.format;
        let entry_bytes = format.table_bytes() / REGION_GRAINS;
        let per_sector = SECTOR / entry_bytes;
        let first = region / per_sector * per_sector;
        // Directory sectors share the lock of table pages; their numbers follow those of the pages.
        let page = self.layout.regions * format.pages_per_table() + region / per_sector;
        let _guard = self.pages_written.lock(page..page + 1).await;
        let mut out = Buf::zeroed(SECTOR as usize);
        for (index, region) in (first..self.layout.regions.min(first + per_sector)).enumerate() {
            if let Some(at) = self.state.borrow().map.table_at(region) {
                format.encode(&mut out, index as u64, at);
            }
        }
        let at = self.layout.directory_at + first * entry_bytes;
        self.extent.write(&self.host, at, out.freeze(), Purpose::Table).await
    }

    /// Returns the sectors that changed because the grains of `range` were placed.
    fn changed_sectors(&self, range: &Range<u64>) -> BTreeSet<Sector> {
        let mut changed = BTreeSet::new();
        for region in self.regions_of(range) {
            let first = (range.start / self.grain()).max(region * REGION_GRAINS);
            let end = range.end.div_ceil(self.grain()).min((region + 1) * REGION_GRAINS);
            self.change_table(region, &(first..end), &mut changed);
            for (_, stretch) in self.state.borrow().map.stretches(first, end - first) {
                stretch.at.into_iter().for_each(|at| self.change_space(at, stretch.count, &mut changed));
            }
        }
        changed
    }

    /// Adds the sectors of the region's table that have entries of `grains`, and the directory's sector if the table is
    /// new.
    fn change_table(&self, region: u64, grains: &Range<u64>, changed: &mut BTreeSet<Sector>) {
        let entry_bytes = self.layout.format.entry_bytes();
        let mut state = self.state.borrow_mut();
        let table = state.map.table_at(region).expect("a region with grains has a table") * self.grain();
        let inside = |grain: u64| (grain - region * REGION_GRAINS) * entry_bytes;
        changed.extend(sectors(table + inside(grains.start)..table + inside(grains.end)));
        if state.map.is_table_new(region) {
            let entry = self.layout.directory_at + region * entry_bytes;
            changed.extend(sectors(entry..entry + entry_bytes));
        }
    }

    /// Adds the sectors of bitmap and backmap for `count` grains from `at` of the file.
    fn change_space(&self, at: u64, count: u64, changed: &mut BTreeSet<Sector>) {
        let Some(parts) = self.layout.parts else { return };
        let first = at - self.layout.data_at / self.grain();
        let end = first + count;
        let bits = u64::from(u8::BITS);
        changed.extend(sectors(parts.bitmap_at + first / bits..parts.bitmap_at + end.div_ceil(bits)));
        let owner = |grain: u64| parts.backmap_at + grain * SE_BACKMAP_ENTRY_BYTES;
        changed.extend(sectors(owner(first)..owner(end)));
    }
}
