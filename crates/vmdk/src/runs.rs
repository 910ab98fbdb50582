//! Collection of a lookup's runs.

use std::ops::Range;

use blk::layer::{Run, Where};

use crate::grain_table::{Place, Table};

/// Collects runs, and merges neighbouring ones.
#[derive(Default)]
pub(crate) struct Runs(pub Vec<Run>);

impl Runs {
    pub(crate) fn push(&mut self, start: u64, len: u64, place: Where) {
        if let Some(last) = self.0.last_mut() {
            let next = match last.place {
                Where::Data { file, offset } => Where::Data { file, offset: offset + last.len },
                same => same,
            };
            if next == place {
                last.len += len;
                return;
            }
        }
        self.0.push(Run { start, len, place });
    }

    /// Adds the part of the disk that a table covers. `base` is the start of the table's region on the disk, and `grain_at`
    /// returns the place of a grain in the file.
    pub(crate) fn push_table(
        &mut self,
        table: &Table,
        grain_bytes: u64,
        base: u64,
        part: &Range<u64>,
        grain_at: impl Fn(u64) -> (u16, u64),
    ) {
        let entries =
            ((part.start - base) / grain_bytes) as usize..(part.end - base).div_ceil(grain_bytes) as usize;
        for run in table.runs(entries) {
            let start = base + run.entry as u64 * grain_bytes;
            let end = (start + run.entries as u64 * grain_bytes).min(part.end);
            // The first grain may begin before the range.
            let skip = part.start.saturating_sub(start);
            let place = match run.place {
                Place::Parent => Where::Parent,
                Place::Zero => Where::Zero,
                Place::Data(grain) => {
                    let (file, offset) = grain_at(grain);
                    Where::Data { file, offset: offset + skip }
                }
            };
            self.push(start + skip, end - (start + skip), place);
        }
    }
}
