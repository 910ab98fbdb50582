//! A streamOptimized disk as a volume: reads, the status of ranges, and the refusal of everything else.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, STATUS_PIECES_MAX, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, Local, Result, Slice};

use super::disk::Stream;
use crate::grain_table::{Place, TableRun};

/// Work of one status call: a region without a table is one step, and one with a table, which is read from the file, is
/// `TABLE_STEPS`. 256 tables of VMware's are 8 GiB of a disk and 512 KiB of its file.
const STATUS_STEPS_MAX: u64 = 1 << 16;
const TABLE_STEPS: u64 = 256;

/// Collects the pieces of a status, and merges neighbouring ones.
#[derive(Default)]
struct Pieces(Vec<BlockStatus>);

impl Pieces {
    fn push(&mut self, len: u64, is_data: bool) {
        let (hole, zero) = (!is_data, !is_data);
        match self.0.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => self.0.push(BlockStatus { len, hole, zero }),
        }
    }
}

impl Stream {
    async fn status_of(&self, range: Range<u64>) -> Result<Vec<BlockStatus>> {
        if range.start >= range.end || range.end > self.size_bytes() {
            let size = self.size_bytes();
            let cause =
                format!("the range {} to {} is not of the disk's {size} bytes", range.start, range.end);
            return Err(Error::invalid(self.name(), cause));
        }
        let region_bytes = self.region_bytes();
        let (mut pieces, mut at, mut steps) = (Pieces::default(), range.start, 0);
        while at < range.end && pieces.0.len() < STATUS_PIECES_MAX && steps < STATUS_STEPS_MAX {
            // Below 2^22 regions.
            let region = (at / region_bytes) as u32;
            let base = u64::from(region) * region_bytes;
            let part = at..range.end.min(base + region_bytes);
            at = part.end;
            steps += if self.has_table(region) { TABLE_STEPS } else { 1 };
            self.push_region(region, base, part, &mut pieces).await?;
        }
        Ok(pieces.0)
    }

    /// Adds the pieces of `part`, which is inside of the region that begins at `base`.
    async fn push_region(&self, region: u32, base: u64, part: Range<u64>, pieces: &mut Pieces) -> Result<()> {
        let Some(table) = self.table(region).await? else {
            pieces.push(part.end - part.start, false);
            return Ok(());
        };
        let grain = self.grain_bytes();
        let entries = ((part.start - base) / grain) as usize..(part.end - base).div_ceil(grain) as usize;
        for TableRun { entry, entries, place } in table.runs(entries) {
            let start = part.start.max(base + entry as u64 * grain);
            let end = part.end.min(base + (entry + entries) as u64 * grain);
            pieces.push(end - start, matches!(place, Place::Data(_)));
        }
        Ok(())
    }

    fn refusal(&self, doing: &str) -> Error {
        let cause = format!("{doing} is refused: a streamOptimized disk is read only");
        let remedy = "copy it into a new VM (`unstun vm create NAME --from DISK.vmdk`), which can be written";
        Error::refused(self.name(), format!("{cause}; {remedy}"))
    }
}

fn ready<T: 'static>(result: Result<T>) -> Local<'static, Result<T>> {
    Box::pin(std::future::ready(result))
}

impl Volume for Stream {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.size_bytes(),
            read_only: true,
            // At most 1 MiB.
            preferred_bytes: self.grain_bytes() as u32,
            fast_zero: false,
        }
    }

    fn read(self: Rc<Self>, offset: u64, mut buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            let result = self.read_range(offset, &mut buf).await;
            (buf, result)
        })
    }

    fn write(self: Rc<Self>, _offset: u64, _data: Slice) -> Local<'static, Result<()>> {
        ready(Err(self.refusal("writing")))
    }

    /// Does nothing, because nothing was written.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        ready(Ok(()))
    }

    fn discard(self: Rc<Self>, _range: Range<u64>) -> Local<'static, Result<()>> {
        ready(Err(self.refusal("discarding")))
    }

    fn write_zeroes(self: Rc<Self>, _range: Range<u64>, _mode: ZeroMode) -> Local<'static, Result<()>> {
        ready(Err(self.refusal("writing zeroes")))
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move { self.status_of(range).await })
    }
}
