//! Entries of a grain table in their encoded form: division into runs, and verification. `delta/table.rs` sets
//! entries.

use blk::Result;

use super::{Directory, Header, check_inside};
use crate::text::wrong;

/// A maximal range of a table whose grains are contiguous in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRun {
    /// First entry.
    pub entry: usize,
    pub entries: usize,
    /// Position of the first grain, in VMFSsparse its sector; 0 if the delta does not contain the grains.
    pub position: u32,
}

impl TableRun {
    /// Returns whether the grains are in the file.
    pub(crate) fn is_data(&self) -> bool {
        self.position != 0
    }
}

/// Splits the entries of `range` of a table into runs, in order.
pub(crate) fn table_runs(
    entries: &[u32],
    range: std::ops::Range<usize>,
    step: u32,
) -> impl Iterator<Item = TableRun> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (entry, position) = (at, entries[at]);
        let step = if position == 0 { 0 } else { u64::from(step) };
        let mut next = u64::from(position);
        while at < range.end && u64::from(entries[at]) == next {
            at += 1;
            next += step;
        }
        Some(TableRun { entry, entries: at - entry, position })
    })
}

/// The limits against which the entries of a table are verified.
pub(crate) struct TableBounds<'a> {
    pub file: &'a str,
    pub header: &'a Header,
    pub directory: &'a Directory,
    pub file_bytes: u64,
    /// If set, entries must be below it: the allocator would reuse the space beyond.
    pub free_sector: Option<u32>,
}

impl TableBounds<'_> {
    /// Verifies the table of `region`. Returns the number of its grains in the file.
    pub(crate) fn check(&self, region: u32, entries: &[u32]) -> Result<usize> {
        let grains = self.header.grains_in(region);
        if let Some(past) = entries[grains..].iter().position(|entry| *entry != 0) {
            let (entry, value) = (grains + past, entries[grains + past]);
            return Err(wrong(
                self.file,
                &self.name(region, entry),
                value,
                "0, as it is past the end of the disk",
            ));
        }
        let grain = self.header.grain_sectors();
        let mut runs: Vec<TableRun> =
            table_runs(entries, 0..grains, grain).filter(|run| run.position != 0).collect();
        for run in &runs {
            self.check_run(region, run)?;
        }
        runs.sort_unstable_by_key(|run| run.position);
        for (left, right) in runs.iter().zip(runs.iter().skip(1)) {
            if u64::from(left.position) + left.entries as u64 * u64::from(grain) > u64::from(right.position) {
                let expected = format!("another grain than that of entry {}", left.entry);
                return Err(wrong(self.file, &self.name(region, right.entry), right.position, &expected));
            }
        }
        Ok(runs.iter().map(|run| run.entries).sum())
    }

    fn check_run(&self, region: u32, run: &TableRun) -> Result<()> {
        let field = self.name(region, run.entry);
        // A run has at most 4096 entries of 2048 sectors.
        let sectors = run.entries as u32 * self.header.grain_sectors();
        check_inside(self.file, &field, self.header, run.position, sectors, self.file_bytes)?;
        let end = run.position.saturating_add(sectors);
        if let Some(other) = self.directory.table_in(run.position, end) {
            let expected = format!("outside the table of region {other}");
            return Err(wrong(self.file, &field, run.position, &expected));
        }
        if self.free_sector.is_some_and(|free| end > free) {
            let free = self.free_sector.unwrap_or_default();
            let expected =
                format!("below freeSector {free}: another program has written this file without keeping it");
            return Err(wrong(self.file, &field, run.position, &expected));
        }
        Ok(())
    }

    fn name(&self, region: u32, entry: usize) -> String {
        format!("entry {entry} of grain table {region}")
    }
}
