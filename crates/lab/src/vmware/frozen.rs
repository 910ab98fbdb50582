//! A disk as a snapshot has it, for a backup: the deltas below the snapshot's own, and the base.

use std::ops::Range;
use std::rc::Rc;

use blk::volume::{Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, Local, Result, Slice};

use super::chain::Chain;
use super::disk::Disk;

pub(super) struct Frozen {
    disk: Rc<Disk>,
    chain: Rc<Chain>,
    levels: usize,
}

impl Frozen {
    /// Opens the oldest `levels` deltas for reading. No commit changes them while this value is in use.
    pub(super) fn new(disk: Rc<Disk>, levels: usize) -> Frozen {
        let chain = disk.chain();
        Frozen { disk, chain, levels }
    }

    async fn read_levels(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let range = offset..offset + buf.len() as u64;
        if let Err(error) = self.chain.look_up(self.levels, range).await {
            return (buf, Err(error));
        }
        self.chain.read(&self.disk.host, self.levels, offset, buf).await
    }

    fn refusal<T: 'static>(&self) -> Local<'static, Result<T>> {
        let place = format!("disk {}", self.disk.index);
        Box::pin(async move { Err(Error::refused(place, "a snapshot cannot be changed")) })
    }
}

impl Volume for Frozen {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { read_only: true, ..self.disk.clone().info() }
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        Box::pin(async move { self.read_levels(offset, buf).await })
    }

    fn write(self: Rc<Self>, _: u64, _: Slice) -> Local<'static, Result<()>> {
        self.refusal()
    }

    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn discard(self: Rc<Self>, _: Range<u64>) -> Local<'static, Result<()>> {
        self.refusal()
    }

    fn write_zeroes(self: Rc<Self>, _: Range<u64>, _: ZeroMode) -> Local<'static, Result<()>> {
        self.refusal()
    }
}
