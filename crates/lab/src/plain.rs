//! A flat file as a disk: the disk of a guest without snapshots, and the baseline of every comparison.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, File, Local, Result, Slice};

/// Request size that clients are advised to use, bytes.
const PREFERRED_BYTES: u32 = 4096;

pub struct Plain {
    file: File,
    size_bytes: u64,
}

impl Plain {
    /// Wraps a file of `size_bytes`.
    pub fn new(file: File, size_bytes: u64) -> Plain {
        Plain { file, size_bytes }
    }
}

impl Volume for Plain {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.size_bytes,
            read_only: false,
            preferred_bytes: PREFERRED_BYTES,
            fast_zero: false,
        }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.file.read(offset, buf).await })
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.write(offset, data).await })
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async move { self.file.flush().await })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            if mode.fast_only {
                return Err(Error::unsupported(self.file.name(), "zeros may have to be written"));
            }
            self.file.zero(range.start, range.end - range.start, false).await
        })
    }
}
