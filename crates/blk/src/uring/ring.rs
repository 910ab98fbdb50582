//! The ring. It owns every piece of work from the moment it is queued until the kernel has completed it.
//!
//! The soundness of the whole reactor depends on that ownership. Work leaves only through `reap`, after its completion.
//! Dropping the ring cancels what can be cancelled, and waits for the rest before memory is freed.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, types};

use super::clock::{DROP_WAIT, boot_ns};
use super::work::{Class, Work};
use crate::error::Errno;
use crate::fence::Deadline;

/// Transfers that may wait for one system call: it is the larger part of a submission's cost, and four share it
/// while the device still starts early.
pub const SUBMIT_BATCH: u32 = 4;
/// Submission entries: a wave of 256 requests and their replies; a full queue is merely submitted early.
const SUBMISSION_ENTRIES: u32 = 512;
/// Completions that can wait unread. The kernel keeps more (IORING_FEAT_NODROP) at some cost.
const COMPLETION_ENTRIES: u32 = 4096;
/// User data of a cancel, whose completion is ignored. Work uses its index in the table.
const CANCEL: u64 = u64::MAX;
/// Longest single sleep. The kernel adds a timeout to its clock without a check, and one that overflows ends at once.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// A completed piece of work: its index, the work itself, and the kernel's result.
pub(super) type Completion = (u32, Work, i32);

/// What the ring has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Entries handed to the kernel.
    pub submits: u64,
    /// System calls made for the ring, waits included.
    pub enters: u64,
    /// Enters that were ready to sleep.
    pub waits: u64,
    /// Watches of the ring before a sleep, and those that saw a completion.
    pub spins: u64,
    /// See `spins`.
    pub spin_hits: u64,
}

pub(super) struct Ring {
    io: IoUring,
    /// Work that the kernel may be using, by index.
    works: Vec<Option<Work>>,
    /// Work behind a fence, by index. It is kept out of the queue until the system call that submits the queue, because
    /// entries cannot be removed from the queue.
    staged: Vec<(u32, Arc<Deadline>)>,
    /// Deadlines of the entries in the queue.
    deadlines: Vec<Arc<Deadline>>,
    /// Completions read from the ring and not yet reaped, as (index, result).
    arrived: Vec<(u64, i32)>,
    /// Entries in the submission queue that the kernel has not taken.
    queued: u32,
    /// Transfers among them.
    transfers_queued: u32,
    /// Transfers queued or in the kernel.
    transfers: u32,
    transfers_done: u64,
    pub(super) counters: Counters,
}

impl Ring {
    /// Creates a ring with the best of three sets of flags that the kernel supports. Only the calling thread may use
    /// it.
    pub(super) fn new() -> io::Result<Ring> {
        let io = Self::build(|b| b.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun())
            .or_else(|e| or_older(e, || Self::build(|b| b.setup_coop_taskrun())))
            .or_else(|e| {
                or_older(e, || IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES))
            })?;
        if !io.params().is_feature_ext_arg() || !io.params().is_feature_nodrop() {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        Ok(Ring {
            io,
            works: Vec::new(),
            staged: Vec::new(),
            deadlines: Vec::new(),
            arrived: Vec::new(),
            queued: 0,
            transfers_queued: 0,
            transfers: 0,
            transfers_done: 0,
            counters: Counters::default(),
        })
    }

    fn build(flags: impl FnOnce(&mut io_uring::Builder) -> &mut io_uring::Builder) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // With the task-run flag, user space can see that completions are due, so spinning costs no system call.
        flags(&mut builder).setup_taskrun_flag().setup_submit_all().setup_cqsize(COMPLETION_ENTRIES);
        builder.build(SUBMISSION_ENTRIES)
    }

    /// Returns the description of an operation under way.
    pub(super) fn doing(&self, index: u32) -> Option<&'static str> {
        Some(self.works.get(index as usize)?.as_ref()?.doing())
    }

    /// Returns the number of reads and writes that the device has or will get.
    pub(super) fn transfers(&self) -> u32 {
        self.transfers
    }

    /// Returns the number of reads and writes completed since the ring was created.
    pub(super) fn transfers_done(&self) -> u64 {
        self.transfers_done
    }

    /// Queues `work` under a free index. Submits at once where waiting would let the device idle: while the kernel has
    /// fewer transfers than a batch, and whenever a batch is full. A single transfer is submitted with the next wait,
    /// in the same system call: no other could overtake it in that short time.
    pub(super) fn start(&mut self, index: u32, mut work: Work, deadline: Option<Arc<Deadline>>) {
        let at = index as usize;
        if self.works.len() <= at {
            self.works.resize_with(at + 1, || None);
        }
        assert!(self.works[at].is_none(), "work {index} is still with the kernel");
        let transfer = work.class() == Class::Transfer;
        let entry = deadline.is_none().then(|| work.entry().user_data(u64::from(index)));
        self.works[at] = Some(work);
        self.staged.extend(deadline.map(|deadline| (index, deadline)));
        if let Some(entry) = entry {
            self.push(&entry);
        }
        if !transfer {
            return;
        }
        self.transfers += 1;
        self.transfers_queued += 1;
        let with_kernel = self.transfers - self.transfers_queued.min(self.transfers);
        let starving = self.transfers > 1 && with_kernel < SUBMIT_BATCH;
        if starving || self.transfers_queued >= SUBMIT_BATCH {
            self.submit();
        }
    }

    /// Requests the cancellation of `index`. Its completion still arrives. An entry queued later under the same index
    /// is not affected: the kernel takes entries in order and cancels while it takes this one.
    pub(super) fn cancel(&mut self, index: u32) {
        let entry = opcode::AsyncCancel::new(u64::from(index)).build().user_data(CANCEL);
        self.push(&entry);
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        loop {
            // SAFETY: the entry's pointers lead into a `Work` in `self.works` under the entry's user data; its heap
            // memory does not move, and only `reap` removes it, after the completion. For a cancel there are no
            // pointers. Dropping the ring waits for the completions, or leaks the works.
            let pushed = unsafe { self.io.submission().push(entry) };
            if pushed.is_ok() {
                self.queued += 1;
                return;
            }
            self.submit();
            self.harvest();
        }
    }

    /// Queues the work that may still start, and refuses the rest.
    fn admit(&mut self) {
        for (index, deadline) in std::mem::take(&mut self.staged) {
            if !deadline.is_open(boot_ns()) {
                self.arrived.push((u64::from(index), -Errno::FENCED.0));
                continue;
            }
            let work = self.works[index as usize].as_mut().expect("staged work is kept");
            let entry = work.entry().user_data(u64::from(index));
            self.push(&entry);
            self.deadlines.push(deadline);
        }
    }

    /// Ends a process that was stopped between `admit` and here, instead of writing late: entries that the kernel has
    /// not taken from the queue are not started.
    fn refuse_late(&self) {
        let late = self.deadlines.iter().any(|deadline| !deadline.is_open(boot_ns()));
        assert!(!late, "the lease ran out while I/O was being handed over; ending before it is written");
    }

    /// Submits every queued entry to the kernel, and lets it post completions that are due. No system call if there is
    /// neither.
    pub(super) fn submit(&mut self) {
        self.admit();
        while self.queued > 0 || self.is_work_due() {
            let flags = if self.is_work_due() { EnterFlags::GETEVENTS } else { EnterFlags::empty() };
            match self.enter(0, flags, None) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Submits, then waits for a completion or the timeout.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        self.admit();
        if !self.arrived.is_empty() {
            return self.submit();
        }
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // A core that waits for its clients is idle and does not wait for a disk, and should be shown so.
        if self.transfers == 0 && self.io.params().is_feature_no_iowait() {
            flags |= EnterFlags::NO_IOWAIT;
        }
        self.counters.waits += 1;
        let _ = self.enter(1, flags, timeout);
    }

    /// Enters the kernel. Errors that mean "later" are returned; any other is a defect of this code, because no outside
    /// input reaches it.
    fn enter(&mut self, want: u32, flags: EnterFlags, timeout: Option<Duration>) -> io::Result<u32> {
        let time = types::Timespec::from(timeout.unwrap_or(SLEEP_MAX).min(SLEEP_MAX));
        let args = types::SubmitArgs::new().timespec(&time);
        let args = flags.contains(EnterFlags::EXT_ARG).then_some(&args);
        self.counters.enters += 1;
        self.refuse_late();
        // SAFETY: `queued` entries are in the queue, and `args` is what EXT_ARG announces; both outlive the call.
        let taken = unsafe { self.io.submitter().enter(self.queued, want, flags.bits(), args) };
        match taken {
            Ok(n) => {
                let n = u32::try_from(n).expect("at most what was queued").min(self.queued);
                self.queued -= n;
                self.counters.submits += u64::from(n);
                if self.queued == 0 {
                    self.deadlines.clear();
                    self.transfers_queued = 0;
                }
                Ok(n)
            }
            Err(e) if is_later(&e) => Err(e),
            Err(e) => panic!("io_uring_enter: {e}"),
        }
    }

    /// Returns whether completions wait that need a system call (deferred work, or an overflown queue).
    fn is_work_due(&mut self) -> bool {
        let queue = self.io.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Returns whether anything has completed, without a system call.
    pub(super) fn has_news(&mut self) -> bool {
        !self.arrived.is_empty() || !self.io.completion().is_empty() || self.is_work_due()
    }

    fn harvest(&mut self) {
        let arrived = &mut self.arrived;
        arrived.extend(self.io.completion().map(|c| (c.user_data(), c.result())));
    }

    /// Moves all completed work into `out`.
    pub(super) fn reap(&mut self, out: &mut Vec<Completion>) {
        self.harvest();
        for (index, result) in self.arrived.drain(..) {
            if index == CANCEL {
                continue;
            }
            let work = self.works.get_mut(index as usize).and_then(Option::take);
            let work = work.expect("the kernel answers what it was given, once");
            if work.class() == Class::Transfer {
                self.transfers -= 1;
                self.transfers_done += 1;
            }
            out.push((index as u32, work, result));
        }
    }
}

fn or_older<T>(error: io::Error, next: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // EINVAL is the answer to an unknown flag. Any other error would occur with fewer flags too.
    if error.raw_os_error() == Some(libc::EINVAL) { next() } else { Err(error) }
}

fn is_later(e: &io::Error) -> bool {
    // EBUSY: completions must be read first. EAGAIN: no memory for a request now.
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

impl Drop for Ring {
    fn drop(&mut self) {
        let waiting: Vec<u32> = (0u32..)
            .zip(&self.works)
            .filter(|(_, w)| w.as_ref().is_some_and(|w| w.class() == Class::Waiting))
            .map(|(index, _)| index)
            .collect();
        waiting.into_iter().for_each(|index| self.cancel(index));
        for (index, _) in self.staged.drain(..) {
            self.works[index as usize] = None;
        }
        let deadline = std::time::Instant::now() + DROP_WAIT;
        let mut finished = Vec::new();
        while self.works.iter().any(Option::is_some) {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                std::mem::forget(std::mem::take(&mut self.works));
                return;
            }
            self.wait(Some(left));
            self.reap(&mut finished);
            // An accept that completed before its cancel carries a descriptor, which is closed here.
            finished.drain(..).for_each(|(_, work, result)| drop(work.completed(result)));
        }
    }
}
