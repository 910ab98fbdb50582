//! Cross-reference check of a delta: what single tables cannot show.

use std::ops::Range;

use blk::{ErrorKind, Result, SECTOR};

use super::format::{Bounds, Format};
use super::{Core, State, table_bytes};
use crate::check::{Finding, Findings, Severity};
use crate::cowd::{TableRun, table_runs};
use crate::read::read_tables;

/// Sectors checked in one pass over the tables: a bitmap of 2^28 bits is 32 MiB, for 128 GiB of file.
const WINDOW_SECTORS: u64 = 1 << 28;

/// There is no second copy of a delta's tables.
const REMEDY: &str =
    "take the delta from a backup; or copy what can still be read of the disk into a new one";

impl<F: Format> Core<F> {
    /// Verifies each table on its own, then checks that no two entries share a sector. Tables with faults are omitted
    /// from the second part.
    pub(super) async fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = Findings::default();
        let mut sound = Vec::new();
        let tables: Vec<(u32, u32)> = self.state.borrow().directory.tables().collect();
        for (region, position) in tables {
            let entries = match self.table_for_check(region, position).await {
                Ok(Some(entries)) => entries,
                Ok(None) => continue,
                Err(error) if error.kind == ErrorKind::Damaged => {
                    findings.add(Finding::of_error(&error, REMEDY));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let state = self.state.borrow();
            let bounds = Bounds { free_sector: self.free_to_check(&state), ..self.bounds(&state) };
            match state.header.check(&bounds, region, &entries) {
                Ok(_) => sound.push((region, position)),
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
    fn free_to_check(&self, state: &State<F>) -> Option<u64> {
        match (self.shape.writable, state.header.is_unclean()) {
            (true, _) => Some(state.space.free_sector()),
            (false, false) => Some(state.header.free_sector()),
            (false, true) => None,
        }
    }

    /// Returns the present table, from memory or from the file; None if it was released meanwhile.
    async fn table_for_check(&self, region: u32, position: u32) -> Result<Option<Vec<u32>>> {
        if let Some(table) = self.state.borrow_mut().tables.get(region) {
            return Ok(Some(table.entries.to_vec()));
        }
        let offset = self.state.borrow().header.table_offset(position);
        let buf = read_tables(self.file(), offset, table_bytes::<F>()).await?;
        let state = self.state.borrow();
        if state.directory.get(region) != Some(position) {
            return Ok(None);
        }
        state.header.decode(self.file().name(), region, &buf).map(Some)
    }

    async fn check_window(
        &self,
        start: u64,
        end: u64,
        tables: &[(u32, u32)],
        findings: &mut Findings,
    ) -> Result<()> {
        let mut seen = vec![0u64; (end - start).div_ceil(64) as usize];
        for (region, position) in tables {
            let Some(entries) = self.table_for_check(*region, *position).await? else { continue };
            let state = self.state.borrow();
            let header = &state.header;
            for run in table_runs(&entries, 0..entries.len(), header.step()).filter(TableRun::is_data) {
                let first = header.sector_of(run.position);
                let sectors = run.entries as u64 * header.grain_sectors();
                if let Some(twice) = mark(&mut seen, start..end, first..first + sectors) {
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

/// Marks the sectors of `run` that are in the window. Returns the first that was marked before.
fn mark(seen: &mut [u64], window: Range<u64>, run: Range<u64>) -> Option<u64> {
    let mut twice = None;
    for sector in run.start.max(window.start)..run.end.min(window.end) {
        let (word, bit) = (((sector - window.start) / 64) as usize, 1u64 << ((sector - window.start) % 64));
        if seen[word] & bit != 0 {
            twice = twice.or(Some(sector));
        }
        seen[word] |= bit;
    }
    twice
}
