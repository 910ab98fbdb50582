//! A running disk during a move: writes go to both sides, reads come from the source.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blk::sync::RangeLock;
use blk::volume::{BlockStatus, Volume, VolumeInfo, ZeroMode};
use blk::{Buf, Error, Local, Result, Slice};
use futures_util::future::join;

use crate::job::Job;

const COPY_BYTES: u64 = 1 << 20;

/// A disk under relocation: reads come from the source and writes go to both sides, until the end of the move leaves
/// the target alone.
pub struct Mirror {
    pub(crate) source: Rc<dyn Volume>,
    pub(crate) target: Rc<dyn Volume>,
    moved: Cell<bool>,
    /// Held by each write and each piece of the copy: overlapping ones run one after the other, in the same order on
    /// both sides.
    pub(crate) ranges: RangeLock,
    /// Error of the first write that the target did not take; from then on the target's content is invalid.
    failed: RefCell<Option<Error>>,
    pub(crate) writes: Cell<u64>,
}

impl Mirror {
    pub(crate) fn new(source: Rc<dyn Volume>, target: Rc<dyn Volume>) -> Rc<Mirror> {
        Rc::new(Mirror {
            source,
            target,
            moved: Cell::new(false),
            ranges: RangeLock::default(),
            failed: RefCell::default(),
            writes: Cell::new(0),
        })
    }

    fn current(&self) -> Rc<dyn Volume> {
        if self.moved.get() { self.target.clone() } else { self.source.clone() }
    }

    /// Records a failure of the target, which ends the move. The guest's result is the source's alone.
    fn note(&self, result: Result<()>) {
        if let Err(e) = result {
            self.failed.borrow_mut().get_or_insert(e);
        }
    }

    /// Makes the target alone the disk.
    pub(crate) fn has_moved(&self) {
        self.moved.set(true);
    }

    pub(crate) fn refuse_when_failed(&self) -> Result<()> {
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Runs the same change on both sides or, once moved, on the target alone.
    async fn change(
        &self,
        range: Range<u64>,
        on: impl Fn(Rc<dyn Volume>) -> Local<'static, Result<()>>,
    ) -> Result<()> {
        let _held = self.ranges.lock(range.clone()).await;
        self.writes.update(|n| n + 1);
        if self.moved.get() || self.failed.borrow().is_some() {
            return on(self.current()).await;
        }
        let (source, target) = join(on(self.source.clone()), on(self.target.clone())).await;
        self.note(target);
        if source.is_err() {
            // The target has to show whatever the source shows now; otherwise the failed write would appear with the
            // move.
            self.note(self.copy_again(range).await);
        }
        source
    }

    /// Writes zeros if the source can do so fast. If it cannot, neither side has changed.
    async fn zero_fast(&self, range: Range<u64>, mode: ZeroMode) -> Result<()> {
        let _held = self.ranges.lock(range.clone()).await;
        self.writes.update(|n| n + 1);
        self.current().write_zeroes(range.clone(), mode).await?;
        if !self.moved.get() && self.failed.borrow().is_none() {
            let slow = ZeroMode { fast_only: false, ..mode };
            self.note(self.target.clone().write_zeroes(range, slow).await);
        }
        Ok(())
    }

    async fn copy_again(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + COPY_BYTES);
            copy(&self.source, &self.target, at..end).await?;
            at = end;
        }
        Ok(())
    }

    pub(crate) async fn copy_piece(&self, range: Range<u64>, job: &Job) -> Result<()> {
        let _held = job.or_cancelled(self.ranges.lock(range.clone())).await?;
        self.refuse_when_failed()?;
        copy(&self.source, &self.target, range).await
    }
}

impl Volume for Mirror {
    fn info(&self) -> VolumeInfo {
        self.current().info()
    }

    fn read(self: Rc<Self>, offset: u64, buf: Buf) -> Local<'static, (Buf, Result<()>)> {
        self.current().read(offset, buf)
    }

    fn write(self: Rc<Self>, offset: u64, data: Slice) -> Local<'static, Result<()>> {
        let range = offset..offset + data.len() as u64;
        Box::pin(async move { self.change(range, |side| side.write(offset, data.clone())).await })
    }

    /// Flushes the source, which is the VM; the target is flushed before it takes over.
    fn flush(self: Rc<Self>) -> Local<'static, Result<()>> {
        self.current().flush()
    }

    fn discard(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<()>> {
        // After a discard each side may show different content, but the two must not differ: zeros are written instead.
        let mode = ZeroMode::default();
        Box::pin(async move {
            match self.moved.get() {
                true => self.target.clone().discard(range).await,
                false => self.change(range.clone(), |side| side.write_zeroes(range.clone(), mode)).await,
            }
        })
    }

    fn write_zeroes(self: Rc<Self>, range: Range<u64>, mode: ZeroMode) -> Local<'static, Result<()>> {
        Box::pin(async move {
            match mode.fast_only {
                true => self.zero_fast(range, mode).await,
                false => self.change(range.clone(), |side| side.write_zeroes(range.clone(), mode)).await,
            }
        })
    }

    fn status(self: Rc<Self>, range: Range<u64>) -> Local<'static, Result<Vec<BlockStatus>>> {
        self.current().status(range)
    }
}

/// Copies the range, including zeros.
pub(crate) async fn copy(source: &Rc<dyn Volume>, target: &Rc<dyn Volume>, range: Range<u64>) -> Result<()> {
    let len = (range.end - range.start) as usize;
    let (buf, read) = source.clone().read(range.start, Buf::alloc(len)).await;
    read?;
    // Zeros are written too: the target may be built on a state that holds other data there.
    if buf.iter().all(|byte| *byte == 0) {
        return target.clone().write_zeroes(range, ZeroMode::default()).await;
    }
    target.clone().write(range.start, buf.freeze()).await
}
