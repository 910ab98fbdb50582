//! Restores the log of an ended process: writes its entries from the host's memory into the tables, durably.

use std::collections::BTreeMap;

use blk::layer::TableWrite;
use blk::{Error, Result};

use super::Core;
use super::entry::Entry;
use super::format::Format;

/// Entries of the log for one region.
#[derive(Default)]
struct Region {
    /// The region was released: its table in the file is no longer valid.
    released: bool,
    /// Entries after the release.
    published: Vec<Entry>,
}

/// Returns the first sector after everything that the entries name.
pub(super) fn end_of<F: Format>(entries: &[Entry], header: &F) -> u64 {
    let ends = entries.iter().map(|entry| match *entry {
        Entry::Published { table, count, start, .. } => {
            // Below 2^32 positions of 2^12 grains of 2^11 sectors.
            let data = header.sector_of(start) + u64::from(count) * header.grain_sectors();
            data.max(header.table_end(table))
        }
        Entry::Released { .. } => 0,
    });
    ends.max().unwrap_or(0)
}

impl<F: Format> Core<F> {
    /// Applies `entries` to the tables, durably, and begins a new log. `Damaged` if they contradict the file; nothing
    /// was written then.
    pub(super) async fn restore(&self, entries: &[Entry]) -> Result<()> {
        let before = self.state.borrow().header.log().0;
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
            let recording = self.state.borrow().header.record(self.file(), entries);
            recording.await?;
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
            let Entry::Published { table: position, first, count, start, .. } = entry else { continue };
            let loaded = self.load(region).await?;
            let mut state = self.state.borrow_mut();
            if !loaded {
                state.tables.insert_unpublished(region, 0);
            }
            let state = &mut *state;
            let table = state.tables.get(region).expect("loaded or inserted just now");
            if table.position == 0 {
                state.header.claim_table(self.file().name(), region, position)?;
                table.position = position;
            }
            let step = state.header.step();
            let (first, count) = (first as usize, count as usize);
            let wanted = (0..count as u32).map(|n| start.saturating_add(n.saturating_mul(step)));
            let present = &table.entries[first..first + count];
            let free = present.iter().filter(|present| **present == 0).count();
            if table.position != position
                || present.iter().zip(wanted).any(|(present, wanted)| *present != 0 && *present != wanted)
            {
                let cause = format!("region {region} is not what the log in the host's memory continues");
                return Err(Error::damaged(self.file().name(), cause));
            }
            table.pins += 1;
            state.held.add(region, free);
            state.tables.publish(&mut state.directory, region, first, count, start, step);
            state.tables.unpin(region);
            let entries = state.tables.get(region).expect("published just now").entries.to_vec();
            state.header.check(&self.bounds(state), region, &entries)?;
        }
        Ok(())
    }

    /// Flushes as the engine does (`blk::layer`), because the engine does not have the layer yet.
    async fn make_durable(&self) -> Result<()> {
        let stages = self.state.borrow_mut().stages();
        self.write_all(&stages.early).await?;
        self.file().flush().await?;
        for batch in stages.late.iter().filter(|batch| !batch.is_empty()) {
            self.write_all(batch).await?;
            self.file().flush().await?;
        }
        self.state.borrow_mut().settle(stages.ticket);
        Ok(())
    }

    async fn write_all(&self, writes: &[TableWrite]) -> Result<()> {
        for write in writes {
            self.tables().write(write.offset, write.data.clone()).await?;
        }
        Ok(())
    }
}
