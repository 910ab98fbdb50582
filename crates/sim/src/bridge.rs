//! A volume of one simulated core, as tasks of another core use it.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Env, Local, Result, Slice};

/// Runs the requests to a volume as tasks of the core that serves it: what a guest of that core does, for a test whose
/// tasks are on another one.
pub struct Bridge {
    env: Env,
    volume: Rc<dyn Volume>,
}

impl Bridge {
    /// `env` is the core of the volume.
    pub fn new(env: &Env, volume: Rc<dyn Volume>) -> Rc<Bridge> {
        Rc::new(Bridge { env: env.clone(), volume })
    }

    fn run<T: 'static>(&self, request: Local<'static, T>) -> Local<'static, T> {
        Box::pin(self.env.spawn(request).join())
    }
}

impl Volume for Bridge {
    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        self.run(self.volume.clone().read(offset, buf))
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        self.run(self.volume.clone().write(offset, data))
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        self.run(self.volume.clone().flush())
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        self.run(self.volume.clone().discard(range))
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        self.run(self.volume.clone().write_zeroes(range, mode))
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        self.run(self.volume.clone().status(range))
    }
}
