use std::any::Any;
use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Local, Result, Slice};

/// A volume together with the guard that counts its user; both are released together.
pub(super) struct Held {
    pub volume: Rc<dyn Volume>,
    pub _hold: Rc<dyn Any>,
}

impl Volume for Held {
    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        self.volume.clone().read(offset, buf)
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        self.volume.clone().write(offset, data)
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        self.volume.clone().flush()
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        self.volume.clone().discard(range)
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        self.volume.clone().write_zeroes(range, mode)
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        self.volume.clone().status(range)
    }
}
