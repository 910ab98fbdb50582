//! Cross-reference check of a delta: what single tables cannot show.

use blk::{Buf, Result, SECTOR};

use super::Core;
use crate::check::{Finding, Findings, Severity};
use crate::cowd::{TABLE_BYTES, TableBounds, TableRun, decode_entries, table_runs};

/// Sectors checked in one pass over the tables: a bitmap of 2^28 bits is 32 MiB, for 128 GiB of file.
const WINDOW_SECTORS: u64 = 1 << 28;

/// There is no second copy of a delta's tables.
const REMEDY: &str =
    "take the delta from a backup; or copy what can still be read of the disk into a new one";

impl Core {
    /// Verifies each table on its own, then checks that no two entries share a sector. Tables with faults are omitted
    /// from the second part.
    pub(super) async fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = Findings::default();
        let mut sound = Vec::new();
        let tables: Vec<(u32, u32)> = self.state.borrow().directory.tables().collect();
        for (region, sector) in tables {
            let Some(entries) = self.table_for_check(region, sector).await? else { continue };
            let state = self.state.borrow();
            let bounds = TableBounds { free_sector: self.free_to_check(&state), ..self.bounds(&state) };
            match bounds.check(region, &entries) {
                Ok(_) => sound.push((region, sector)),
                Err(error) => findings.add(Finding::of_error(&error, REMEDY)),
            }
        }
        let end = self.state.borrow().file_bytes / SECTOR;
        for window in (0..end).step_by(WINDOW_SECTORS as usize) {
            self.check_window(window, end.min(window + WINDOW_SECTORS), &sound, &mut findings).await?;
        }
        Ok(findings.into_vec())
    }

    /// Returns the free pointer if it can be checked: that of a clean header, or a writer's own.
    fn free_to_check(&self, state: &super::State) -> Option<u32> {
        match (self.shape.writable, state.header.is_unclean()) {
            (true, _) => Some(state.space.free_sector()),
            (false, false) => Some(state.header.free_sector()),
            (false, true) => None,
        }
    }

    /// Returns the present table, from memory or from the file; None if it was released meanwhile.
    async fn table_for_check(&self, region: u32, sector: u32) -> Result<Option<Vec<u32>>> {
        if let Some(table) = self.state.borrow_mut().tables.get(region) {
            return Ok(Some(table.entries.to_vec()));
        }
        let (buf, result) = self.tables().read(u64::from(sector) * SECTOR, Buf::alloc(TABLE_BYTES)).await;
        result?;
        let still_there = self.state.borrow().directory.get(region) == Some(sector);
        Ok(still_there.then(|| decode_entries(&buf)))
    }

    async fn check_window(
        &self,
        start: u64,
        end: u64,
        tables: &[(u32, u32)],
        findings: &mut Findings,
    ) -> Result<()> {
        let mut seen = vec![0u64; (end - start).div_ceil(64) as usize];
        for (region, sector) in tables {
            let Some(entries) = self.table_for_check(*region, *sector).await? else { continue };
            let grain = (self.shape.grain_bytes / SECTOR) as u32;
            for run in table_runs(&entries, 0..entries.len(), grain).filter(|run| run.sector != 0) {
                if let Some(twice) = mark(&mut seen, start, end, &run, grain) {
                    let field = format!("entry {} of grain table {region}", run.entry);
                    let found = format!("sector {twice}, as another entry is");
                    findings.add(
                        Finding::new(Severity::Damage, self.file().name().into(), field, found)
                            .expected("each sector once")
                            .remedy(REMEDY),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Marks the run's sectors between `start` and `end`. Returns the first that was marked before.
fn mark(seen: &mut [u64], start: u64, end: u64, run: &TableRun, grain: u32) -> Option<u64> {
    let first = u64::from(run.sector);
    let past = first + run.entries as u64 * u64::from(grain);
    let mut twice = None;
    for sector in first.max(start)..past.min(end) {
        let (word, bit) = (((sector - start) / 64) as usize, 1u64 << ((sector - start) % 64));
        if seen[word] & bit != 0 {
            twice = twice.or(Some(sector));
        }
        seen[word] |= bit;
    }
    twice
}
