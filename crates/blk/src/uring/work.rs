//! One operation in the form in which the kernel executes it: its memory, its ring entry, and the meaning of its
//! result.
//!
//! Everything to which an entry points is heap memory owned by the `Work` (slabs, boxes), so moving a `Work` moves no
//! byte that the kernel may use.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::fs::FallocateFlags;

use super::descriptor::{Fd, MAX_TRANSFER, size_of};
use super::events;
use super::message::Message;
use super::task::Task;
use crate::buf::{Buf, Slice};
use crate::error::Errno;
use crate::passed::Descriptor;
use crate::reactor::Outcome;

/// Length of one write of zeros if the file system has no operation for zeros: 1 MiB, like its own largest requests.
const ZERO_CHUNK: usize = 1 << 20;

pub(super) enum Work {
    Read {
        fd: Fd,
        offset: u64,
        buf: Buf,
        done: usize,
        /// Block of the device: a read that ends inside one has reached the end of the file.
        block: u32,
    },
    Write {
        fd: Fd,
        offset: u64,
        data: Slice,
        done: usize,
        block: u32,
    },
    Flush {
        fd: Fd,
    },
    /// Reserves blocks first and extends the size second, so that the size does not change if there is no space.
    Reserve {
        fd: Fd,
        offset: u64,
        len: u64,
    },
    Extend {
        fd: Fd,
        offset: u64,
        len: u64,
    },
    /// Never extends the file: both modes keep the size.
    Zero {
        fd: Fd,
        offset: u64,
        len: u64,
        punch: bool,
    },
    GiveBack {
        fd: Fd,
        offset: u64,
        len: u64,
    },
    /// Zeros written as data, one chunk at a time.
    ZeroWrite {
        fd: Fd,
        at: u64,
        end: u64,
        zeros: Slice,
    },
    Accept {
        fd: Fd,
        tcp: bool,
    },
    Recv {
        fd: Fd,
        buf: Buf,
        at: usize,
    },
    HungUp {
        fd: Fd,
    },
    Send {
        fd: Fd,
        parts: Vec<Slice>,
        message: Option<Box<Message>>,
    },
    RecvDescriptors {
        fd: Fd,
        buf: Buf,
        at: usize,
        message: Option<Box<Message>>,
    },
    SendDescriptor {
        fd: Fd,
        parts: Vec<Slice>,
        descriptor: Descriptor,
        message: Option<Box<Message>>,
    },
    WaitEvent {
        event: Descriptor,
    },
    SignalEvent {
        event: Descriptor,
        count: Box<u64>,
    },
    /// The eventfd that other threads write to.
    Wake {
        fd: Fd,
        count: Box<u64>,
    },
}

/// The next step after a completion.
pub(super) enum Step {
    Done(Outcome),
    Again(Work),
    Accepted {
        fd: OwnedFd,
        tcp: bool,
    },
    Woken(Work),
    /// The file system has no fallocate: a files thread continues.
    Files(Task),
}

/// How the reactor schedules a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// A read or write of a device: submitted early, and worth a spin.
    Transfer,
    /// Flushes and changes of space, which take milliseconds in the kernel's workers.
    Control,
    /// May stay under way without limit, so it is cancelled when its outcome is not wanted any more.
    Waiting,
}

impl Work {
    /// Creates a write of zeros from `at` to `end`, which must be larger.
    pub(super) fn zero(fd: Fd, at: u64, end: u64, by_writing: bool) -> Work {
        if !by_writing {
            return Work::Zero { fd, offset: at, len: end - at, punch: false };
        }
        let chunk = (end - at).min(ZERO_CHUNK as u64) as usize;
        Work::ZeroWrite { fd, at, end, zeros: Buf::zeroed(chunk).freeze() }
    }

    /// Returns a verb phrase for messages about a device that does not answer.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Work::Read { .. } => "reading",
            Work::Write { .. } | Work::ZeroWrite { .. } => "writing",
            Work::Flush { .. } => "flushing a file",
            Work::Reserve { .. } | Work::Extend { .. } => "reserving space",
            Work::Zero { punch: false, .. } => "zeroing",
            Work::Zero { .. } | Work::GiveBack { .. } => "freeing space",
            _ => "waiting",
        }
    }

    pub(super) fn class(&self) -> Class {
        match self {
            Work::Read { .. } | Work::Write { .. } | Work::ZeroWrite { .. } => Class::Transfer,
            Work::Flush { .. }
            | Work::Reserve { .. }
            | Work::Extend { .. }
            | Work::Zero { .. }
            | Work::GiveBack { .. } => Class::Control,
            Work::Accept { .. }
            | Work::Recv { .. }
            | Work::HungUp { .. }
            | Work::Send { .. }
            | Work::RecvDescriptors { .. }
            | Work::SendDescriptor { .. }
            | Work::WaitEvent { .. }
            | Work::SignalEvent { .. }
            | Work::Wake { .. } => Class::Waiting,
        }
    }

    /// Returns the ring entry for the rest of the operation. Its pointers are valid as long as this `Work` exists.
    pub(super) fn entry(&mut self) -> squeue::Entry {
        match self {
            Work::Read { fd, offset, buf, done, .. } => {
                let rest = &mut buf[*done..];
                let len = clamp_len(rest.len());
                opcode::Read::new(raw(fd), rest.as_mut_ptr(), len).offset(*offset + *done as u64).build()
            }
            Work::Write { fd, offset, data, done, .. } => {
                let rest = &data[*done..];
                let len = clamp_len(rest.len());
                opcode::Write::new(raw(fd), rest.as_ptr(), len).offset(*offset + *done as u64).build()
            }
            Work::ZeroWrite { fd, at, end, zeros } => {
                let len = (*end - *at).min(zeros.len() as u64) as u32;
                opcode::Write::new(raw(fd), zeros.as_ptr(), len).offset(*at).build()
            }
            Work::Flush { fd } => opcode::Fsync::new(raw(fd)).flags(types::FsyncFlags::DATASYNC).build(),
            Work::Reserve { fd, offset, len } => fallocate(fd, *offset, *len, FallocateFlags::KEEP_SIZE),
            Work::Extend { fd, offset, len } => fallocate(fd, *offset, *len, FallocateFlags::empty()),
            Work::Zero { fd, offset, len, punch } => {
                let mode = if *punch { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
                fallocate(fd, *offset, *len, mode | FallocateFlags::KEEP_SIZE)
            }
            Work::GiveBack { fd, offset, len } => {
                fallocate(fd, *offset, *len, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
            }
            Work::Accept { fd, .. } => {
                opcode::Accept::new(raw(fd), std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Work::Recv { fd, buf, at } => {
                let rest = &mut buf[*at..];
                opcode::Recv::new(raw(fd), rest.as_mut_ptr(), clamp_len(rest.len())).build()
            }
            Work::HungUp { fd } => {
                let events = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
                opcode::PollAdd::new(raw(fd), events as u32).build()
            }
            Work::Send { fd, parts, message } => send(fd, parts, message),
            Work::RecvDescriptors { fd, buf, at, message } => {
                let message = message.insert(Message::receiving(&mut buf[*at..]));
                opcode::RecvMsg::new(raw(fd), message.header()).flags(libc::MSG_CMSG_CLOEXEC as u32).build()
            }
            Work::SendDescriptor { fd, parts, descriptor, message } => {
                let message = message.insert(Message::with_descriptor(parts, descriptor));
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                opcode::SendMsg::new(raw(fd), message.header()).flags(flags as u32).build()
            }
            Work::WaitEvent { event } => opcode::PollAdd::new(raw(event), libc::POLLIN as u32).build(),
            Work::SignalEvent { event, count } => {
                opcode::Write::new(raw(event), (&raw const **count).cast(), size_of_val(&**count) as u32)
                    .build()
            }
            Work::Wake { fd, count } => {
                opcode::Read::new(raw(fd), (&raw mut **count).cast(), size_of_val(&**count) as u32).build()
            }
        }
    }

    /// Evaluates a completion: a count, or a negated error number.
    pub(super) fn completed(self, result: i32) -> Step {
        let result = if result < 0 { Err(Errno(-result)) } else { Ok(result as usize) };
        match self {
            Work::Read { fd, offset, buf, done, block } => read_step(fd, offset, buf, done, block, result),
            Work::Write { fd, offset, data, done, block } => {
                write_step(fd, offset, data, done, block, result)
            }
            Work::Flush { .. } | Work::Extend { .. } | Work::HungUp { .. } => {
                Step::Done(Outcome::Unit(result.map(drop)))
            }
            Work::GiveBack { .. } => {
                let refused = |e| if cannot(e) { Errno::EOPNOTSUPP } else { e };
                Step::Done(Outcome::Unit(result.map(drop).map_err(refused)))
            }
            Work::Reserve { fd, offset, len } => reserve_step(fd, offset, len, result),
            Work::Zero { fd, offset, len, .. } => zero_step(fd, offset, len, result),
            Work::ZeroWrite { fd, at, end, zeros } => match result {
                Ok(0) => Step::Done(Outcome::Unit(Err(Errno::EIO))),
                Ok(n) if at + (n as u64) < end => {
                    Step::Again(Work::ZeroWrite { fd, at: at + n as u64, end, zeros })
                }
                Ok(_) => Step::Done(Outcome::Unit(Ok(()))),
                Err(e) => Step::Done(Outcome::Unit(Err(e))),
            },
            Work::Accept { tcp, .. } => match result {
                Ok(fd) => Step::Accepted { fd: own(fd), tcp },
                Err(e) => Step::Done(Outcome::Accepted(Err(e))),
            },
            Work::Recv { buf, .. } => Step::Done(Outcome::Read(buf, result)),
            Work::Send { .. } | Work::SendDescriptor { .. } => {
                Step::Done(Outcome::Count(result.map(|n| n as u64)))
            }
            Work::RecvDescriptors { buf, message, .. } => {
                let taken = |n| (n, message.map_or_else(Vec::new, |mut message| message.take_descriptors()));
                Step::Done(Outcome::Received(buf, result.map(taken)))
            }
            Work::WaitEvent { event } => {
                // A wait that was cancelled must not take the event from the next one.
                Step::Done(Outcome::Unit(result.map(|_| events::clear(&event))))
            }
            Work::SignalEvent { .. } => Step::Done(Outcome::Unit(result.map(drop))),
            Work::Wake { fd, count } => Step::Woken(Work::Wake { fd, count }),
        }
    }
}

/// Wraps the descriptor that an accept returned.
fn own(fd: usize) -> OwnedFd {
    // SAFETY: the kernel created this descriptor for this process when it completed the accept, and reports its number
    // once, in the one completion that `completed` consumes.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn raw(fd: &impl AsRawFd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn clamp_len(len: usize) -> u32 {
    len.min(MAX_TRANSFER as usize) as u32
}

fn fallocate(fd: &Fd, offset: u64, len: u64, mode: FallocateFlags) -> squeue::Entry {
    opcode::Fallocate::new(raw(fd), len).offset(offset).mode(mode.bits() as i32).build()
}

fn read_step(fd: Fd, offset: u64, buf: Buf, done: usize, block: u32, result: Result<usize, Errno>) -> Step {
    let n = match result {
        Ok(n) => n,
        Err(e) => return Step::Done(Outcome::Read(buf, Err(e))),
    };
    let done = done + n;
    if n == 0 || done == buf.len() || !n.is_multiple_of(block as usize) {
        return Step::Done(Outcome::Read(buf, Ok(done)));
    }
    Step::Again(Work::Read { fd, offset, buf, done, block })
}

fn write_step(
    fd: Fd,
    offset: u64,
    data: Slice,
    done: usize,
    block: u32,
    result: Result<usize, Errno>,
) -> Step {
    let n = match result {
        Ok(n) => n,
        Err(e) => return Step::Done(Outcome::Count(Err(e))),
    };
    let done = done + n;
    if n == 0 || done == data.len() || !n.is_multiple_of(block as usize) {
        return Step::Done(Outcome::Count(Ok(done as u64)));
    }
    Step::Again(Work::Write { fd, offset, data, done, block })
}

fn cannot(e: Errno) -> bool {
    e == Errno::EOPNOTSUPP || e == rustix::io::Errno::NOSYS.into()
}

fn reserve_step(fd: Fd, offset: u64, len: u64, result: Result<usize, Errno>) -> Step {
    match result {
        Ok(_) => Step::Again(Work::Extend { fd, offset, len }),
        Err(e) if cannot(e) => Step::Files(Task::SetLenAtLeast { fd, len: offset + len }),
        Err(e) => {
            if matches!(e, Errno::ENOSPC | Errno::EDQUOT) {
                give_back_reserved(&fd);
            }
            Step::Done(Outcome::Unit(Err(e)))
        }
    }
}

/// Frees the blocks that a failed reservation has kept past the end of the file, by truncating the file to its length.
/// Only if nothing else here uses the file (the table's reference and the caller's are two): a write under way might be
/// extending it.
fn give_back_reserved(fd: &Fd) {
    if Arc::strong_count(fd) == 2
        && let Ok(size) = size_of(fd)
    {
        // After a failure the blocks stay reserved for this file; nothing else changes.
        let _ = rustix::fs::ftruncate(fd, size);
    }
}

fn zero_step(fd: Fd, offset: u64, len: u64, result: Result<usize, Errno>) -> Step {
    match result {
        Err(e) if cannot(e) => Step::Files(Task::Zero { fd, offset, len, by_writing: true }),
        other => Step::Done(Outcome::Unit(other.map(drop))),
    }
}

/// Creates the entry of a send. With WAITALL the kernel completes a send that met a full socket buffer, without a turn
/// of the reactor for each piece.
fn send(fd: &Fd, parts: &[Slice], message: &mut Option<Box<Message>>) -> squeue::Entry {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    if let [only] = parts {
        return opcode::Send::new(raw(fd), only.as_ptr(), clamp_len(only.len())).flags(flags).build();
    }
    let message = message.get_or_insert_with(|| Message::of_parts(parts));
    opcode::SendMsg::new(raw(fd), message.header()).flags(flags as u32).build()
}
