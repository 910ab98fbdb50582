//! Differences between two states of a disk, for incremental backups.
//!
//! The two states may differ where a layer that only one of them depends on holds data. All other layers are common to
//! both, and read the same.

use std::ops::Range;
use std::rc::Rc;

use blk::layer::{Layer, Where};
use blk::manifest::{DiskMode, LayerName, Opening};
use blk::{Error, Result, SECTOR};

use super::vm::Vm;
use crate::operations::{DiffRequest, Differences};

/// Most ranges in one answer, 1 MiB of them, so that neither the answer nor the time that a take waits for it grows
/// with the disk.
const RANGES_MAX: usize = 65_536;
/// Most tables read for one answer: 64 MiB of VMware's largest.
const TABLES_MAX: u64 = 4096;
/// Most directory entries examined for one answer, which takes a few milliseconds without a wait.
const LOOKS_MAX: u64 = 1 << 20;

impl Vm {
    /// Returns the differences between two states. A disk that `from` does not have differs in all that it holds.
    /// Refused while a commit moves blocks from layer to layer.
    pub async fn differences(&self, between: DiffRequest<'_>) -> Result<Differences> {
        let _turn = self.operations.lock().await;
        self.refuse_when_closed()?;
        self.refuse_open_jobs()?;
        let (from, to) = self.ends(&between)?;
        let older = match &from {
            Some(layer) => self.open_chain(layer, Opening::Serve).await?,
            None => Vec::new(),
        };
        let newer = self.open_chain(&to, Opening::Serve).await?;
        let size_bytes = newer.last().map_or(0, |top| top.shape().size_bytes);
        if between.start > size_bytes || !between.start.is_multiple_of(SECTOR) {
            let cause = format!("requested from byte {} on, of {size_bytes}", between.start);
            let expected = format!("expected a multiple of {SECTOR} within the disk");
            return Err(Error::invalid(&self.name, format!("{cause}; {expected}")));
        }
        let mut found = Differences { size_bytes, ranges: Vec::new(), end: between.start };
        collect(&apart(older, newer), between.end, &mut found).await?;
        Ok(found)
    }

    /// Returns the layers in which the two states end; None where the disk was added later.
    fn ends(&self, between: &DiffRequest<'_>) -> Result<(Option<LayerName>, LayerName)> {
        let number = between.disk;
        let frozen = |name: &str| {
            let layers = self.sealed(name)?.disks;
            Ok(layers.into_iter().find(|(n, _)| *n == number).map(|(_, layer)| layer))
        };
        let from = frozen(between.from)?;
        let to = match between.to {
            Some(name) => frozen(name)?.ok_or_else(|| {
                Error::not_found(&self.name, format!("disk{number} is not part of snapshot {name}"))
            })?,
            None => self.disk(number)?.top_name(),
        };
        let mode = self.state().disks.into_iter().find(|d| d.number == number).map(|d| d.mode);
        if from.is_none() && between.to.is_none() && mode != Some(DiskMode::Persistent) {
            let cause = format!("disk{number} is independent: no snapshot has a state of it to compare with");
            return Err(Error::refused(&self.name, cause));
        }
        Ok((from, to))
    }
}

/// Returns the layers that only one of the two chains has.
fn apart(older: Vec<Rc<dyn Layer>>, newer: Vec<Rc<dyn Layer>>) -> Vec<Rc<dyn Layer>> {
    let common = older.iter().zip(&newer).take_while(|(a, b)| a.name() == b.name()).count();
    older.into_iter().skip(common).chain(newer.into_iter().skip(common)).collect()
}

/// Collects ranges from `found.end` on, until `end`, the end of the disk or a limit.
async fn collect(layers: &[Rc<dyn Layer>], end: u64, found: &mut Differences) -> Result<()> {
    let Some(step) = layers.iter().map(|layer| layer.shape().region_bytes).max() else {
        found.end = found.size_bytes;
        return Ok(());
    };
    let (mut tables, mut looks) = (0, 0);
    while found.end < found.size_bytes.min(end) {
        if found.ranges.len() >= RANGES_MAX || tables >= TABLES_MAX || looks >= LOOKS_MAX {
            return Ok(());
        }
        let part = found.end..found.size_bytes.min((found.end / step + 1) * step);
        let mut held = Vec::new();
        for layer in layers {
            looks += 1;
            if is_populated(&**layer, &part) {
                tables += 1;
                held.extend(held_in(&**layer, &part).await?);
            }
        }
        held.sort_unstable_by_key(|range| range.start);
        held.into_iter().for_each(|range| join(&mut found.ranges, range));
        found.end = part.end;
    }
    Ok(())
}

fn is_populated(layer: &dyn Layer, part: &Range<u64>) -> bool {
    let region_bytes = layer.shape().region_bytes;
    (part.start / region_bytes..part.end.div_ceil(region_bytes)).any(|region| layer.populated(region))
}

async fn held_in(layer: &dyn Layer, part: &Range<u64>) -> Result<Vec<Range<u64>>> {
    // The layers of a disk that has grown may end before it does.
    let end = part.end.min(layer.shape().size_bytes);
    if part.start >= end {
        return Ok(Vec::new());
    }
    let runs = layer.lookup(part.start..end).await?;
    Ok(runs.iter().filter(|run| run.place != Where::Parent).map(|run| run.start..run.end()).collect())
}

/// Appends a range, or joins it to the last one; `next` begins at or after the start of the last.
fn join(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
        _ => ranges.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_and_overlapping_ranges_are_merged() {
        let mut ranges = Vec::new();
        [0..4, 4..6, 5..5, 2..3, 9..10].into_iter().for_each(|range| join(&mut ranges, range));
        assert_eq!(ranges, [0..6, 9..10]);
    }
}
