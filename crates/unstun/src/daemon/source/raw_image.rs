//! A raw file as a volume that is only read.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, File, Local, Result, Slice};

/// Size in which requests are best made.
const PREFERRED_BYTES: u32 = 4096;

pub(super) struct RawImage {
    pub file: File,
    pub size_bytes: u64,
}

fn refuse(file: &File) -> Local<'static, Result<()>> {
    let error = Error::refused(file.name(), "the image below a disk is never written");
    Box::pin(async { Err(error) })
}

impl Volume for RawImage {
    fn info(&self) -> VolumeInfo {
        let size_bytes = self.size_bytes;
        VolumeInfo { size_bytes, read_only: true, preferred_bytes: PREFERRED_BYTES, fast_zero: false }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.file.read(offset, buf).await })
    }

    fn write(self: Rc<Self>, _offset: u64, _data: Slice) -> Local<'static, Result<()>> {
        refuse(&self.file)
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(self: Rc<Self>, _range: Range<u64>, _mode: ZeroMode) -> Local<'static, Result<()>> {
        refuse(&self.file)
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        Box::pin(async move {
            let (mut found, mut at) = (Vec::new(), range.start);
            for extent in self.file.extents(range.start, range.end - range.start).await? {
                let end = extent.offset + extent.len;
                found.extend(piece(extent.offset - at, true));
                found.extend(piece(end - extent.offset, false));
                at = end;
            }
            found.extend(piece(range.end - at, true));
            Ok(found)
        })
    }
}

fn piece(len: u64, zero: bool) -> Option<BlockStatus> {
    (len > 0).then_some(BlockStatus { len, hole: zero, zero })
}
