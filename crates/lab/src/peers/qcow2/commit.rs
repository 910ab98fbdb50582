//! Commits: the topmost image with a bitmap of what its guest changes, a lower one in order.

use std::ops::Range;
use std::rc::Rc;

use blk::{Buf, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::dirty::Dirty;
use super::disk::Qcow2Disk;
use super::image::{Image, len};
use crate::vmware::host::Purpose;

/// Copies under way of a commit of the topmost image. Source: QEMU `block/mirror.c`, MAX_IN_FLIGHT.
pub(super) const COPIES_MAX: usize = 16;
/// Longest copy of a commit of a lower image, which has one under way. Source: QEMU `block/commit.c`,
/// COMMIT_BUFFER_SIZE.
pub(super) const LOWER_COPY_BYTES: u64 = 512 << 10;
/// Time in which a management layer finds that the commit is ready, and completes it, microseconds: the interval of
/// this lab's own checks on real QEMU.
pub(super) const READY_CHECK_US: u64 = 50_000;

impl Qcow2Disk {
    /// Copies until everything is clean at one moment after the job was told to complete. Guest writes that end while
    /// the job runs make their parts dirty again, so a job that is slower than its guest does not end.
    pub(super) async fn commit_active(&self, level: usize) -> Result<()> {
        let images = self.images();
        let done = self.mirror(&images, level).await;
        *self.dirty.borrow_mut() = None;
        done?;
        self.vm.remove_file(&images[level].name).await
    }

    async fn mirror(&self, images: &[Rc<Image>], level: usize) -> Result<()> {
        self.begin_mirror(&images[level]).await?;
        let mut copies = FuturesUnordered::new();
        let mut completes_ns = None;
        loop {
            self.vm.check_stopping()?;
            while copies.len() < COPIES_MAX
                && let Some(range) = self.next_copy()
            {
                copies.push(self.copy(images, level, range));
            }
            if let Some(copied) = copies.next().await {
                copied?;
                continue;
            }
            match completes_ns {
                None => {
                    self.flush_images(&images[..level]).await?;
                    completes_ns = Some(self.vm.env.now_ns() + READY_CHECK_US * 1000);
                }
                Some(at_ns) if self.vm.env.now_ns() < at_ns => self.vm.env.sleep_until(at_ns).await,
                Some(_) if self.vm.stunned("commit", self.pivot(level)).await? => return Ok(()),
                Some(_) => {}
            }
        }
    }

    /// Marks everything that the image holds as dirty, reading the tables for it.
    async fn begin_mirror(&self, image: &Image) -> Result<()> {
        let own = image.lock.lock().await;
        image.look_up(&(0..self.size_bytes)).await?;
        drop(own);
        let mut dirty = Dirty::new(self.size_bytes);
        // A guest's write that ends from now on is marked as well: no other task runs in between.
        for held in image.held_ranges() {
            dirty.set(&held);
        }
        self.vm.progress.borrow_mut().total_bytes = Some(dirty.bytes());
        *self.dirty.borrow_mut() = Some(dirty);
        Ok(())
    }

    fn next_copy(&self) -> Option<Range<u64>> {
        self.dirty.borrow_mut().as_mut()?.begin_copy()
    }

    /// Copies a range of the chain into the layer below its topmost image.
    async fn copy(&self, images: &[Rc<Image>], level: usize, range: Range<u64>) -> Result<()> {
        let buf = Buf::alloc(len(&range) as usize);
        let (buf, result) = self.read_chain(images, range.start, buf, Purpose::Commit).await;
        result?;
        self.write_chain(&images[..level], range.start, buf.freeze(), Purpose::Commit).await?;
        self.vm.progress.borrow_mut().done_bytes += len(&range);
        if let Some(dirty) = self.dirty.borrow_mut().as_mut() {
            dirty.end_copy(&range);
        }
        Ok(())
    }

    /// Removes the topmost image where nothing is dirty. Guest I/O is held back. Returns whether it was removed.
    async fn pivot(&self, level: usize) -> Result<bool> {
        let is_clean = self.dirty.borrow().as_ref().is_none_or(Dirty::is_clean);
        if is_clean {
            self.flush_images(&self.images()[..level]).await?;
            self.remove_image(level);
        }
        Ok(is_clean)
    }

    /// Copies an image that is not written any more into the layer below it.
    pub(super) async fn commit_lower(&self, level: usize) -> Result<()> {
        let images = self.images();
        let image = &images[level];
        for held in image.held_ranges() {
            let end = held.end.min(self.size_bytes);
            let mut at = held.start;
            while at < end {
                self.vm.check_stopping()?;
                let piece = at..end.min(at + LOWER_COPY_BYTES);
                let buf = Buf::alloc(len(&piece) as usize);
                let (buf, result) =
                    self.read_chain(&images[..=level], piece.start, buf, Purpose::Commit).await;
                result?;
                self.write_chain(&images[..level], piece.start, buf.freeze(), Purpose::Commit).await?;
                self.vm.progress.borrow_mut().done_bytes += len(&piece);
                at = piece.end;
            }
        }
        self.flush_images(&images[..level]).await?;
        self.vm.stunned("commit", async { Ok(self.remove_image(level)) }).await?;
        self.vm.remove_file(&image.name).await
    }
}
