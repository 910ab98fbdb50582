//! Restores the log of an ended process: writes its entries from the host's memory into the tables, durably.

use std::collections::BTreeMap;

use blk::layer::TableWrite;
use blk::{Error, Result};

use super::Core;
use super::log::Entry;
use crate::cowd::TABLE_SECTORS;

/// Entries of the log for one region.
#[derive(Default)]
struct Region {
    /// The region was released: its table in the file is no longer valid.
    released: bool,
    /// Entries after the release.
    published: Vec<Entry>,
}

/// Returns the first sector after everything that the entries name.
pub(super) fn end_of(entries: &[Entry], grain_sectors: u32) -> u32 {
    let ends = entries.iter().map(|entry| match *entry {
        Entry::Published { table_sector, count, sector, .. } => {
            let data = sector.saturating_add(count.saturating_mul(grain_sectors));
            data.max(table_sector.saturating_add(TABLE_SECTORS))
        }
        Entry::Released { .. } => 0,
    });
    ends.max().unwrap_or(0)
}

impl Core {
    /// Applies `entries` to the tables, durably, and begins a new log. `Damaged` if they contradict the file; nothing
    /// was written then.
    pub(super) async fn restore(&self, entries: &[Entry]) -> Result<()> {
        let before = self.state.borrow().header.log_id();
        let mut regions: BTreeMap<u32, Region> = BTreeMap::new();
        for entry in entries {
            let region = regions.entry(entry.region()).or_default();
            match entry {
                Entry::Released { .. } => *region = Region { released: true, published: Vec::new() },
                Entry::Published { .. } => region.published.push(*entry),
            }
        }
        for (region, found) in regions {
            self.restore_region(region, found).await?;
        }
        if !entries.is_empty() {
            self.make_durable().await?;
        }
        self.write_unclean_mark(true).await?;
        self.marked_unclean.set(true);
        self.log.forget(before);
        Ok(())
    }

    async fn restore_region(&self, region: u32, found: Region) -> Result<()> {
        if found.released {
            self.release(region.into());
        }
        for entry in found.published {
            let Entry::Published { table_sector, first, count, sector, .. } = entry else { continue };
            let loaded = self.load(region).await?;
            let mut state = self.state.borrow_mut();
            if !loaded {
                state.tables.insert_unpublished(region);
            }
            let state = &mut *state;
            let table = state.tables.get(region).expect("loaded or inserted just now");
            if table.sector == 0 {
                table.sector = table_sector;
            }
            let step = state.header.grain_sectors();
            let (first, count) = (first as usize, count as usize);
            let wanted = (0..count as u32).map(|n| sector.saturating_add(n.saturating_mul(step)));
            let present = &table.entries[first..first + count];
            let free = present.iter().filter(|present| **present == 0).count();
            if table.sector != table_sector
                || present.iter().zip(wanted).any(|(present, wanted)| *present != 0 && *present != wanted)
            {
                let cause = format!("region {region} is not what the log in the host's memory continues");
                return Err(Error::damaged(self.file().name(), cause));
            }
            table.pins += 1;
            state.held.add(region, free);
            state.tables.publish(&mut state.directory, region, first, count, sector, step);
            state.tables.unpin(region);
            let entries = state.tables.get(region).expect("published just now").entries.to_vec();
            self.bounds(state).check(region, &entries)?;
        }
        Ok(())
    }

    /// Flushes as the engine does (`blk::layer`), because the engine does not have the layer yet.
    async fn make_durable(&self) -> Result<()> {
        let stages = {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            state.tables.stages(&state.header, &state.directory)
        };
        self.write_all(&stages.early).await?;
        self.file().flush().await?;
        for batch in stages.late.iter().filter(|batch| !batch.is_empty()) {
            self.write_all(batch).await?;
            self.file().flush().await?;
        }
        self.state.borrow_mut().tables.settle(stages.ticket);
        Ok(())
    }

    async fn write_all(&self, writes: &[TableWrite]) -> Result<()> {
        for write in writes {
            self.tables().write(write.offset, write.data.clone()).await?;
        }
        Ok(())
    }
}
