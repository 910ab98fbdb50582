//! A file of the data plane: transfers of whole ranges at any 512-byte alignment, and one latch for errors.
//!
//! Transfers that do not fit the device's block are read, modified and written here, one at a time for each block.
//! Formats therefore need not distinguish sectors of 512 and 4096 bytes. The first failed write or flush latches the
//! file: the content of the device is then unknown, and the file must be reopened, which reads it again. A write that
//! found no space does not latch: nothing was lost, and it may be retried.
//!
//! A flush that fails latches the file whatever the error is, also if there is no space. Kernels report an error once,
//! and may forget the data that could not be written: a later flush would succeed without it. The ranges that no flush
//! has covered by then may contain old data, now or later, so reading them is an error.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::buf::{Buf, Slice};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::exec::Env;
use crate::fence::{Deadline, Fence};
pub use crate::opening::FileCounters;
use crate::opening::{Condition, Opened, Opening, SharedFile};
use crate::rbd::Image;
use crate::reactor::{FileExtent, Handle, Limits, Op, Outcome, Pending, Reservation, SharedDescriptor};
use crate::sync::{RangeLock, TaskMutex};
use crate::unflushed::Unflushed;

/// A cheap, shareable handle. The file is closed with its last handle.
#[derive(Clone)]
pub struct File {
    inner: Rc<Inner>,
    /// Transfers through this handle are counted as tables too.
    tables: bool,
}

struct Inner {
    env: Env,
    handle: Handle,
    /// The path as the user knows it, for messages.
    name: String,
    limits: Limits,
    opening: Arc<Opening>,
    condition: Arc<Condition>,
    /// Device blocks under read-modify-write. If blocks are larger than sectors: all blocks that are being changed.
    partial: RangeLock,
    /// Allows one flush at a time. If two flushes of one descriptor overlap, the kernel reports an error to only one of
    /// them.
    flushes: TaskMutex,
    /// The device cannot free space without writing. The first attempt detects this.
    keeps_space: Cell<bool>,
    /// The fence that every operation passes before it starts, if other machines share the file.
    fence: OnceCell<Rc<Fence>>,
    /// The deadline of the fence of the core that has shared this file.
    deadline: Option<Arc<Deadline>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.env.close(self.handle);
    }
}

impl SharedFile {
    /// Opens the file on the core of `env`. An operation behind the fence of the file's own core does not wait there: it
    /// fails with `LeaseLost`, and may be given to that core.
    ///
    /// # Errors
    /// Those of the reactor: a descriptor of another kind of world.
    pub fn open(self, env: &Env) -> Result<File> {
        let handle =
            env.adopt_shared(self.descriptor).map_err(|e| e.at(&self.name, "opening a shared file"))?;
        if let Some(deadline) = &self.deadline {
            env.fence(handle, deadline.clone());
        }
        Ok(File::of(Opened {
            env: env.clone(),
            handle,
            name: self.name,
            limits: self.limits,
            condition: self.condition,
            deadline: self.deadline,
        }))
    }
}

impl File {
    pub(crate) fn handle(&self) -> Handle {
        self.inner.handle
    }

    pub(crate) fn new(env: Env, handle: Handle, name: String, limits: Limits) -> File {
        let condition = Arc::<Condition>::default();
        File::of(Opened { env, handle, name, limits, condition, deadline: None })
    }

    /// Opens an image of RBD as a file of the core of `env`. [`File::share`] has more handles of it.
    ///
    /// # Errors
    /// Those of the reactor: there are no images in simulated worlds.
    pub fn of_image(env: &Env, image: Arc<Image>) -> Result<File> {
        let name = image.place().to_owned();
        let handle = env.adopt_shared(SharedDescriptor::Image(image));
        let handle = handle.map_err(|e| e.at(&name, "opening the image"))?;
        Ok(File::new(env.clone(), handle, name, Limits::OF_IMAGE))
    }

    pub(crate) fn of(opened: Opened) -> File {
        let Opened { env, handle, name, limits, condition, deadline } = opened;
        assert!(limits.logical_block.is_power_of_two() && limits.memory_align.is_power_of_two());
        let inner = Inner {
            env,
            handle,
            name,
            limits,
            opening: condition.add_opening(),
            condition,
            deadline,
            partial: RangeLock::default(),
            flushes: TaskMutex::default(),
            keeps_space: Cell::new(false),
            fence: OnceCell::new(),
        };
        File { inner: Rc::new(inner), tables: false }
    }

    /// Returns a handle of the same file for metadata of a format: headers, tables, maps, journals. It has the same
    /// latch and counters, and its reads and writes are counted separately as well.
    pub fn tables(&self) -> File {
        File { inner: self.inner.clone(), tables: true }
    }

    /// Puts every later operation of this file permanently behind `fence`.
    ///
    /// Panics if the file has a fence already.
    pub fn set_fence(&self, fence: Rc<Fence>) {
        self.inner.env.fence(self.inner.handle, fence.deadline());
        assert!(self.inner.fence.set(fence).is_ok(), "{}: has a fence already", self.name());
    }

    /// Returns the fence that [`File::set_fence`] set.
    pub fn fence(&self) -> Option<Rc<Fence>> {
        self.inner.fence.get().cloned()
    }

    /// Resolves when an operation may start. For answers that need no operation: they must not be given either once the
    /// fence has closed.
    ///
    /// # Errors
    /// `LeaseLost` if the fence is closed permanently.
    pub async fn pass_fence(&self) -> Result<()> {
        match self.inner.fence.get() {
            None => Ok(()),
            Some(fence) => fence.pass().await.map_err(|e| self.failed(e, "answering")),
        }
    }

    /// Returns whether an operation that a fence refused is to be repeated, as soon as it may start.
    async fn may_retry(&self, errno: Errno) -> bool {
        match self.inner.fence.get() {
            // Nothing else of this file gets through either.
            Some(fence) if matches!(errno, Errno::BLOCKLISTED | Errno::EBADE) => {
                fence.lose(errno.at(self.name(), "using the device"));
                false
            }
            Some(fence) if errno == Errno::FENCED => fence.pass().await.is_ok(),
            _ => false,
        }
    }

    fn failed(&self, errno: Errno, doing: &str) -> Error {
        match self.inner.fence.get() {
            Some(fence) if errno == Errno::FENCED => fence.refusal(self.name(), doing),
            _ => errno.at(self.name(), doing),
        }
    }

    /// Returns the path as the user wrote it; for messages only.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the core that the file was opened on.
    pub fn env(&self) -> &Env {
        &self.inner.env
    }

    /// Returns the oldest call that the file system or the device of the file has not answered, where it may hang.
    pub fn pending(&self) -> Option<Pending> {
        self.inner.env.pending(self.inner.handle)
    }

    /// Returns the device's constraints on transfers, as found when the file was opened. Callers need not align: `read`
    /// and `write` do.
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// Returns the file for another core of this process. What is opened there has the same latch, and the flushes of this
    /// file cover its writes.
    ///
    /// # Errors
    /// `NoDescriptors` if the process has none left.
    pub fn share(&self) -> Result<SharedFile> {
        let descriptor = self.inner.env.share(self.inner.handle);
        Ok(SharedFile {
            descriptor: descriptor.map_err(|e| e.at(self.name(), "sharing it with another core"))?,
            name: self.inner.name.clone(),
            limits: self.inner.limits,
            condition: self.inner.condition.clone(),
            deadline: self.inner.fence.get().map(|fence| fence.deadline()),
        })
    }

    /// Returns whether an answer that needs no operation may be given now. Unlike [`File::pass_fence`] it does not wait;
    /// it is for a file that another core has shared.
    pub fn may_answer(&self) -> bool {
        self.inner.deadline.as_ref().is_none_or(|deadline| deadline.is_open(self.inner.env.boot_ns()))
    }

    /// Returns the counts of all handles of this file since it was opened, on all cores.
    pub fn counters(&self) -> FileCounters {
        self.inner.condition.counters()
    }

    fn count(&self, change: impl FnOnce(&mut FileCounters)) {
        self.inner.opening.count(change);
    }

    /// Returns the error that latched this file, if one has.
    pub fn latched(&self) -> Option<Error> {
        self.inner.condition.latched()
    }

    fn check_latch(&self) -> Result<()> {
        match &self.inner.condition.latched() {
            None => Ok(()),
            Some(first) => Err(Error::new(
                ErrorKind::Latched,
                self.name(),
                format!("not written: an earlier operation failed ({}); reopen the disk", first.cause),
            )),
        }
    }

    /// Converts an errno into an error. Latches the file, unless the operation found no space or was not started.
    fn fail(&self, errno: Errno, doing: &str) -> Error {
        let error = self.failed(errno, doing);
        let is_known = matches!(
            error.kind,
            ErrorKind::NoSpace | ErrorKind::Unsupported | ErrorKind::LeaseLost | ErrorKind::NoDescriptors
        );
        if !is_known {
            self.inner.condition.latch(&error);
        }
        error
    }

    fn fits(&self, offset: u64, bytes: &[u8]) -> bool {
        let block = u64::from(self.inner.limits.logical_block);
        let address = bytes.as_ptr() as usize;
        offset.is_multiple_of(block)
            && (bytes.len() as u64).is_multiple_of(block)
            && address.is_multiple_of(self.inner.limits.memory_align as usize)
    }

    /// Fills the whole buffer from `offset`, or fails. A read past the end of the file is an error and never returns
    /// zeros.
    pub async fn read(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        if buf.is_empty() {
            return (buf, Ok(()));
        }
        if self.fits(offset, &buf) {
            return self.read_fitting(offset, buf).await;
        }
        self.read_around(offset, buf).await
    }

    async fn read_fitting(&self, offset: u64, buf: Buf) -> (Buf, Result<()>) {
        let wanted = buf.len();
        let (buf, filled) = self.read_some(offset, buf).await;
        let result = self.whole(offset, wanted, filled);
        (buf, result)
    }

    async fn read_some(&self, offset: u64, buf: Buf) -> (Buf, Result<usize, Errno>) {
        let wanted = buf.len() as u64;
        self.count(|c| {
            c.reads += 1;
            c.bytes_read += wanted;
            c.table_reads += u64::from(self.tables);
        });
        self.read_op(offset, buf).await
    }

    async fn read_op(&self, offset: u64, mut buf: Buf) -> (Buf, Result<usize, Errno>) {
        loop {
            let outcome = self.inner.env.op(Op::Read { file: self.inner.handle, offset, buf }).await;
            let Outcome::Read(back, result) = outcome else { unreachable!("a read answers with a read") };
            match result {
                Err(errno) if self.may_retry(errno).await => buf = back,
                result => return (back, result),
            }
        }
    }

    /// Carries out an operation that returns a count. `op` creates it again if a fence has refused it.
    async fn count_op(&self, op: impl Fn(Handle) -> Op) -> Result<u64, Errno> {
        loop {
            let outcome = self.inner.env.op(op(self.inner.handle)).await;
            let Outcome::Count(result) = outcome else { unreachable!("answers with a count") };
            match result {
                Err(errno) if self.may_retry(errno).await => {}
                result => return result,
            }
        }
    }

    /// Fails if a flush has failed during the read and the range is in doubt.
    fn vouch(&self, offset: u64, len: usize) -> Result<()> {
        let range = offset..offset.saturating_add(len as u64);
        if !self.inner.condition.is_in_doubt(&range) {
            return Ok(());
        }
        let cause = format!(
            "reading {len} bytes at {offset}: a flush failed after they were written, and what is there may be old; reopen \
             the disk"
        );
        Err(Error::new(ErrorKind::Io, self.name(), cause))
    }

    fn whole(&self, offset: u64, wanted: usize, filled: Result<usize, Errno>) -> Result<()> {
        match filled {
            Ok(n) if n >= wanted => self.vouch(offset, wanted),
            Ok(n) => Err(Error::damaged(
                self.name(),
                format!(
                    "reading {wanted} bytes at {offset}: the file ends after {n} of them; is it truncated?"
                ),
            )),
            Err(errno) => Err(self.failed(errno, &format!("reading {wanted} bytes at {offset}"))),
        }
    }

    /// Reads the enclosing device blocks and copies the requested part. The file may end inside the last block.
    async fn read_around(&self, offset: u64, mut buf: Buf) -> (Buf, Result<()>) {
        let (start, end) = self.enclosing(offset, buf.len() as u64);
        let (around, filled) = self.read_some(start, Buf::alloc((end - start) as usize)).await;
        let skip = (offset - start) as usize;
        let len = buf.len();
        let result = self.whole(offset, len, filled.map(|n| n.saturating_sub(skip)));
        if result.is_ok() {
            buf.copy_from_slice(&around[skip..skip + len]);
        }
        (buf, result)
    }

    fn enclosing(&self, offset: u64, len: u64) -> (u64, u64) {
        let block = u64::from(self.inner.limits.logical_block);
        (offset / block * block, offset.saturating_add(len).div_ceil(block).saturating_mul(block))
    }

    /// Writes the whole slice at `offset`, or fails. A completed write is not durable before a `flush`.
    pub async fn write(&self, offset: u64, data: impl Into<Slice>) -> Result<()> {
        let data = data.into();
        if data.is_empty() {
            return Ok(());
        }
        let fits = self.fits(offset, &data);
        // If blocks are larger than sectors, a read-modify-write that begins now would write old neighbouring sectors
        // over this write. Every change therefore locks its blocks, aligned or not.
        if self.inner.limits.logical_block > 512 || !fits {
            let (start, end) = self.enclosing(offset, data.len() as u64);
            let _held = self.inner.partial.lock(start..end).await;
            return if fits {
                self.write_fitting(offset, data).await
            } else {
                self.write_around(offset, data).await
            };
        }
        self.write_fitting(offset, data).await
    }

    async fn write_fitting(&self, offset: u64, data: Slice) -> Result<()> {
        self.check_latch()?;
        let len = data.len();
        self.count(|c| {
            c.writes += 1;
            c.bytes_written += len as u64;
            c.table_writes += u64::from(self.tables);
        });
        let _written = Written { file: &self.inner, range: offset..offset + len as u64 };
        let write = |file| Op::Write { file, offset, data: data.clone() };
        match self.count_op(write).await {
            Ok(n) if n == len as u64 => Ok(()),
            Ok(n) => {
                Err(self.fail(Errno::EIO, &format!("writing {len} bytes at {offset}: only {n} were written")))
            }
            Err(errno) => Err(self.fail(errno, &format!("writing {len} bytes at {offset}"))),
        }
    }

    /// Writes a range that does not fit the device's blocks. The caller has locked the enclosing blocks.
    async fn write_around(&self, offset: u64, data: Slice) -> Result<()> {
        let (start, end) = self.enclosing(offset, data.len() as u64);
        let aligned = start == offset && end == offset + data.len() as u64;
        if aligned {
            // Only the memory is misaligned, so a copy is enough.
            return self.write_fitting(offset, Buf::copy_of(&data).freeze()).await;
        }
        let mut around = self.read_block_padded(start, end).await?;
        let skip = (offset - start) as usize;
        around[skip..skip + data.len()].copy_from_slice(&data);
        self.write_fitting(start, around.freeze()).await
    }

    /// Reads device blocks for a read-modify-write. Bytes past the end of the file count as zeros.
    async fn read_block_padded(&self, start: u64, end: u64) -> Result<Buf> {
        let (mut buf, result) = self.read_some(start, Buf::zeroed((end - start) as usize)).await;
        let filled = result.map_err(|e| self.failed(e, "reading a block to modify it"))?;
        buf[filled..].fill(0);
        Ok(buf)
    }

    /// Makes durable every write that completed before this call. A failure latches the file, whatever the error is.
    /// The error is never `NoSpace`, which would mean that nothing is lost.
    pub async fn flush(&self) -> Result<()> {
        let _turn = self.inner.flushes.lock().await;
        self.check_latch()?;
        self.count(|c| c.flushes += 1);
        let covered = self.inner.condition.take_unflushed();
        let mut flush = Flush { file: self, covered, failure: Some("given up before its end".to_string()) };
        match self.unit_op(|file| Op::Flush { file }).await {
            Ok(()) => {
                flush.failure = None;
                Ok(())
            }
            Err(Errno::FENCED) => {
                flush.take_back();
                Err(self.failed(Errno::FENCED, "flushing"))
            }
            Err(errno) => {
                flush.failure = Some(errno.to_string());
                drop(flush);
                Err(self.latched().expect("a failed flush latches"))
            }
        }
    }

    /// Reserves `len` bytes at `offset`, and extends the file if necessary. `NoSpace` changes nothing.
    pub async fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.check_latch()?;
        self.unit(|file| Op::Allocate { file, offset, len }, "allocating space").await
    }

    /// Makes the range read as zeros. `punch` also frees its space. Durable after `flush`.
    pub async fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<()> {
        self.check_latch()?;
        let zero = |file| Op::Zero { file, offset, len, punch };
        let range = offset..offset.saturating_add(len);
        if self.inner.limits.logical_block > 512 {
            let (start, end) = self.enclosing(offset, len);
            let _held = self.inner.partial.lock(start..end).await;
            return self.change(zero, range, "zeroing a range").await;
        }
        self.change(zero, range, "zeroing a range").await
    }

    /// Frees the space of the range. Its content is unspecified until it is written. Fails with `Unsupported`, and
    /// changes nothing, if the device could free space only by writing.
    pub async fn give_back(&self, offset: u64, len: u64) -> Result<()> {
        self.check_latch()?;
        if self.inner.keeps_space.get() {
            return Err(Errno::EOPNOTSUPP.at(self.name(), "giving space back"));
        }
        let give_back = |file| Op::GiveBack { file, offset, len };
        let given = self.change(give_back, offset..offset.saturating_add(len), "giving space back").await;
        if given.as_ref().is_err_and(|e| e.kind == ErrorKind::Unsupported) {
            self.inner.keeps_space.set(true);
        }
        given
    }

    /// Sets the length to `len` bytes: cuts the file, or extends it by bytes that read as zeros. Durable
    /// after `flush`.
    pub async fn set_len(&self, len: u64) -> Result<()> {
        self.check_latch()?;
        self.unit(|file| Op::SetLen { file, len }, "setting the length").await
    }

    /// Changes a range other than by a write. A flush covers this too.
    async fn change(&self, op: impl Fn(Handle) -> Op, range: Range<u64>, doing: &str) -> Result<()> {
        let _written = Written { file: &self.inner, range };
        self.unit(op, doing).await
    }

    async fn unit(&self, op: impl Fn(Handle) -> Op, doing: &str) -> Result<()> {
        self.unit_op(op).await.map_err(|errno| self.fail(errno, doing))
    }

    async fn unit_op(&self, op: impl Fn(Handle) -> Op) -> Result<(), Errno> {
        loop {
            let outcome = self.inner.env.op(op(self.inner.handle)).await;
            let Outcome::Unit(result) = outcome else { unreachable!("answers with a unit") };
            match result {
                Err(errno) if self.may_retry(errno).await => {}
                result => return result,
            }
        }
    }

    /// Returns the ranges that contain data, in order, clipped to `offset..offset + len`. The rest reads as zeros.
    pub async fn extents(&self, offset: u64, len: u64) -> Result<Vec<FileExtent>> {
        loop {
            let outcome = self.inner.env.op(Op::Extents { file: self.inner.handle, offset, len }).await;
            let Outcome::Extents(result) = outcome else { unreachable!("answers with extents") };
            match result {
                Err(errno) if self.may_retry(errno).await => {}
                result => return result.map_err(|e| self.failed(e, "listing extents")),
            }
        }
    }

    /// Returns the bytes that the file system has allocated to the file, reserved ones included.
    pub async fn allocated_bytes(&self) -> Result<u64> {
        let bytes = self.count_op(|file| Op::Allocated { file }).await;
        bytes.map_err(|e| self.failed(e, "asking for the allocated space"))
    }

    /// Returns the length in bytes.
    pub async fn size(&self) -> Result<u64> {
        let size = self.count_op(|file| Op::Size { file }).await;
        size.map_err(|e| self.failed(e, "asking for the length"))
    }

    /// Returns the time of the last change of the content, in nanoseconds since 1970.
    pub async fn modified_ns(&self) -> Result<u64> {
        let time = self.count_op(|file| Op::Modified { file }).await;
        time.map_err(|e| self.failed(e, "asking when it was changed"))
    }

    /// Takes a step of the device's persistent reservations. Returns whether the device has granted it.
    ///
    /// # Errors
    /// `Unsupported`: the device has no reservations.
    pub async fn reserve(&self, step: Reservation) -> Result<bool> {
        let outcome = self.inner.env.op(Op::Reserve { file: self.inner.handle, step }).await;
        let Outcome::Unit(result) = outcome else { unreachable!("answers with a unit") };
        match result {
            Ok(()) => Ok(true),
            Err(Errno::EBADE) => Ok(false),
            Err(e) => Err(self.failed(e, step.doing())),
        }
    }

    /// Returns the whole content of a file of at most `limit` bytes, for texts and headers.
    pub async fn read_all(&self, limit: u64) -> Result<Vec<u8>> {
        let size = self.size().await?;
        if size > limit {
            return Err(Error::damaged(
                self.name(),
                format!("{size} bytes, expected at most {limit} for a file of this kind"),
            ));
        }
        let (buf, result) = self.read_to_end(size as usize).await;
        result?;
        Ok(buf[..size as usize].to_vec())
    }

    /// Reads to the end of the file. Direct I/O reads whole blocks, and the last block of a text is short; that is not
    /// a truncation.
    async fn read_to_end(&self, size: usize) -> (Buf, Result<()>) {
        let block = self.inner.limits.logical_block.max(512) as usize;
        let buf = Buf::alloc(size.next_multiple_of(block).max(block));
        let (buf, result) = self.read_op(0, buf).await;
        match result {
            Ok(n) if n >= size => (buf, Ok(())),
            Ok(n) => (buf, Err(Error::damaged(self.name(), format!("{n} bytes read of {size}")))),
            Err(e) => (buf, Err(self.failed(e, "reading"))),
        }
    }
}

/// A write under way. Its range counts as unflushed when it ends, also if it is dropped.
struct Written<'a> {
    file: &'a Inner,
    range: Range<u64>,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.file.opening.unflushed().insert(self.range.clone());
    }
}

/// A flush under way. If it is dropped it counts as failed, because its error would be reported to no caller.
struct Flush<'a> {
    file: &'a File,
    covered: Unflushed,
    failure: Option<String>,
}

impl Flush<'_> {
    /// Withdraws a flush that was not started. It has not failed: a later flush covers the same writes.
    fn take_back(&mut self) {
        self.failure = None;
        self.file.inner.opening.unflushed().append(std::mem::take(&mut self.covered));
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        let Some(cause) = self.failure.take() else { return };
        let inner = &self.file.inner;
        inner.opening.unflushed().append(std::mem::take(&mut self.covered));
        let bytes = inner.condition.flush_failed();
        let cause = format!(
            "flushing: {cause}; {bytes} bytes written since the last flush that succeeded may be lost"
        );
        inner.condition.latch(&Error::new(ErrorKind::Io, self.file.name(), cause));
    }
}

/// A lock on a file. It ends when it is dropped, or with the process.
pub struct Lock {
    env: Env,
    handle: Handle,
}

impl Lock {
    pub(crate) fn new(env: Env, handle: Handle) -> Lock {
        Lock { env, handle }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.env.close(self.handle);
    }
}
