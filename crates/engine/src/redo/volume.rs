//! A redo disk as a volume that a front end serves.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, STATUS_BYTES_MAX, STATUS_PIECES_MAX, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, ErrorKind, Local, Result, SECTOR, Slice};

use super::disk::Disk;
use super::map::{Piece, ZERO_SLOT};
use crate::options::Defect;

/// Guests write 4 KiB; smaller requests work if the layer's sectors allow it.
const PREFERRED_BYTES: u32 = 4096;

/// Bytes that a status call looks up at once: at worst every sector is a piece of its own.
const STATUS_STEP_BYTES: u64 = 8 << 20;
const STATUS_STEP_PIECES: usize = (STATUS_STEP_BYTES / SECTOR) as usize;
const _: () = assert!(
    STATUS_STEP_PIECES * size_of::<Piece>()
        + (STATUS_PIECES_MAX + STATUS_STEP_PIECES) * size_of::<BlockStatus>()
        <= STATUS_BYTES_MAX
);

impl Disk {
    fn refuse_when_read_only(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::Refused, &self.name, "a sealed snapshot cannot be written"));
        }
        Ok(())
    }

    /// Returns which parts are allocated and which read as zeros, until there are enough pieces. A hole of a flat base
    /// counts as not allocated and as zeros.
    async fn status_of(&self, range: Range<u64>) -> Result<Vec<BlockStatus>> {
        self.check_range(range.start, range.end - range.start)?;
        let _admitted = self.read_gate.enter();
        let mut out: Vec<BlockStatus> = Vec::new();
        let mut at = range.start;
        while at < range.end && out.len() < STATUS_PIECES_MAX {
            if at > range.start {
                self.env.next_turn().await;
            }
            let end = range.end.min((at / STATUS_STEP_BYTES + 1) * STATUS_STEP_BYTES);
            self.status_step(at..end, &mut out).await?;
            at = end;
        }
        Ok(out)
    }

    async fn status_step(&self, range: Range<u64>, out: &mut Vec<BlockStatus>) -> Result<()> {
        for piece in self.resolve(range).await? {
            if piece.slot == ZERO_SLOT {
                push(out, BlockStatus { len: piece.len, hole: true, zero: true });
                continue;
            }
            let link = self.slots.borrow().link(piece.slot);
            if !link.layer.shape().flat {
                push(out, BlockStatus { len: piece.len, hole: false, zero: false });
                continue;
            }
            let mut at = piece.offset;
            for extent in link.file(piece.slot).extents(piece.offset, piece.len).await? {
                push(out, BlockStatus { len: extent.offset - at, hole: true, zero: true });
                push(out, BlockStatus { len: extent.len, hole: false, zero: false });
                at = extent.offset + extent.len;
            }
            push(out, BlockStatus { len: piece.offset + piece.len - at, hole: true, zero: true });
        }
        Ok(())
    }
}

fn push(out: &mut Vec<BlockStatus>, next: BlockStatus) {
    match out.last_mut() {
        _ if next.len == 0 => {}
        Some(last) if (last.hole, last.zero) == (next.hole, next.zero) => last.len += next.len,
        _ => out.push(next),
    }
}

impl Volume for Disk {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.size_bytes(),
            read_only: self.read_only,
            preferred_bytes: PREFERRED_BYTES,
            fast_zero: !self.read_only && self.can_punch(),
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move {
            match self.check_range(offset, buf.len() as u64) {
                Ok(()) => self.read_range(offset, buf).await,
                Err(e) => (buf, Err(e)),
            }
        })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.refuse_when_read_only()?;
            self.write_range(offset, data).await
        })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            match (self.read_only, self.options.defects.has(Defect::DoubtFullDevice)) {
                (true, _) => Ok(()),
                (false, true) => self.flush_all().await,
                // The layer's tables overwrite existing blocks, which may nevertheless need space.
                (false, false) => self.retry_for_space(async || self.flush_all().await).await,
            }
        })
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.refuse_when_read_only()?;
            self.discard_range(range).await
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            self.refuse_when_read_only()?;
            self.zero_range(range, mode).await
        })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move { self.status_of(range).await })
    }
}
