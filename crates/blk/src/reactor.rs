//! What stands under the executor: one world's I/O and clock.
//!
//! Two implementations exist: `uring::UringReactor` (real files, sockets and time) and `sim`'s (virtual time, faults,
//! power cuts). Both consume the same [`Op`]s, so the engine above cannot tell them apart. An operation owns its
//! buffers from `submit` until its outcome is taken; forgetting one leaves them with the reactor until the device is
//! done.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::buf::{Buf, Slice};
use crate::deadline::Deadline;
use crate::error::Errno;
use crate::memory::Memory;
use crate::peer::Peer;

/// A piece of work for [`Reactor::run_offloaded`].
pub type OffloadedWork = Box<dyn FnOnce() + Send>;

/// An open file, directory or socket of one reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// An operation under way; only its reactor reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u32);

/// Limits of the I/O on one file, set by its device. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Offsets and lengths must be multiples of this (512 or 4096 on disks; 1 when buffered).
    pub logical_block: u32,
    /// Memory addresses must be multiples of this.
    pub memory_align: u32,
    /// Largest single transfer.
    pub max_io: u32,
    /// False when O_DIRECT was refused and the page cache is in between.
    pub direct: bool,
    /// Other hosts may reach it: a block device, or a file on a file system that several hosts can mount.
    pub shared: bool,
    /// The file's number in its file system, and when its content changed last, as of the opening; microseconds since 1970.
    pub inode: u64,
    /// See `inode`.
    pub modified_us: i64,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reads alone.
    Read,
    /// For reads and writes of a file that exists.
    Write,
    /// Fails with EEXIST when the name is taken.
    CreateNew,
}

/// A range of a file that holds data; between such ranges the file reads as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Bytes a file system has, and has left for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Size of the file system.
    pub total_bytes: u64,
    /// Bytes that this process may still allocate.
    pub free_bytes: u64,
    /// Of large files that have lost their names, and whose blocks are not free yet.
    pub freeing_bytes: u64,
}

/// What a file system or a device has not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// By the reactor's clock.
    pub since_ns: u64,
    /// A verb phrase: "renaming a file".
    pub doing: &'static str,
}

/// One operation. Names are single path components, relative to the directory handle. `offset` and `len` are bytes, and
/// keep to the [`Limits`] of their file.
// What a field is follows from its type and this; each variant says what is particular to it.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum Op {
    // Files.
    /// Outcome: `Read`. Fills the buffer from `offset`; fewer bytes than its length are filled at the end of
    /// the file alone.
    Read { file: Handle, offset: u64, buf: Buf },
    /// Outcome: `Count`. Writes the data at `offset` and extends the file if need be. Not durable before a
    /// flush.
    Write { file: Handle, offset: u64, data: Slice },
    /// Makes durable every write of this file that completed before the submission, and the file's size.
    Flush { file: Handle },
    /// Reserves space and extends the size to `offset + len`; existing bytes stay. ENOSPC changes nothing.
    Allocate { file: Handle, offset: u64, len: u64 },
    /// The range reads as zeros afterwards. `punch` also gives its space back.
    Zero { file: Handle, offset: u64, len: u64, punch: bool },
    /// The range's space goes back; `EOPNOTSUPP` where that would mean writing.
    GiveBack { file: Handle, offset: u64, len: u64 },
    /// Cuts or extends the file to `len` bytes; what is new reads as zeros.
    SetLen { file: Handle, len: u64 },
    /// Outcome: `Extents` that intersect the range, clipped to it.
    Extents { file: Handle, offset: u64, len: u64 },
    /// Outcome: `Count`, the size in bytes.
    Size { file: Handle },
    /// Outcome: `Count`, the bytes that the file system has allocated, reserved ones included.
    Allocated { file: Handle },
    // Directories. Nothing is durable before SyncDir of the directory.
    /// Outcome: `Opened`.
    OpenFile { dir: Handle, name: String, mode: OpenMode },
    /// Outcome: `Opened`. Opens (and with `create` first makes) a subdirectory.
    OpenDir { dir: Handle, name: String, create: bool },
    /// Replaces a file named `to` atomically.
    Rename { dir: Handle, from: String, to: String },
    /// Removes the name of a file.
    Unlink { dir: Handle, name: String },
    /// Gives a file a second name, in another directory. EEXIST when that is taken.
    Link { dir: Handle, from: String, to_dir: Handle, to: String },
    /// Gives a file the owner, the group and the permissions of another one.
    KeepAttributes { file: Handle, like: Handle },
    /// Removes an empty subdirectory.
    RemoveDir { dir: Handle, name: String },
    /// Makes the completed changes of names in the directory durable.
    SyncDir { dir: Handle },
    /// Outcome: `Names`, sorted; subdirectories carry a trailing slash.
    List { dir: Handle },
    /// Takes an exclusive lock on the file `name` (created when absent), held until the handle is closed.
    /// EAGAIN when another process holds it. Outcome: `Opened`.
    Lock { dir: Handle, name: String },
    /// Outcome: `Space` of the file system the directory is on.
    Space { dir: Handle },
    // Time.
    /// Completes when the reactor's clock reaches `at_ns`.
    Timer { at_ns: u64 },
    // Sockets: real world only; the simulator answers EOPNOTSUPP.
    /// Outcome: `Accepted` with the connection.
    Accept { socket: Handle },
    /// Outcome: `Read`, with the number of bytes; 0 is the end of the stream.
    Recv {
        socket: Handle,
        buf: Buf,
        /// First byte of `buf` to fill.
        at: usize,
    },
    /// Completes when the other side has closed the connection, or its half of it, also while bytes wait to be received.
    HungUp { socket: Handle },
    /// Sends the slices in order. Outcome: `Count`, which may be less than their sum.
    Send { socket: Handle, parts: Vec<Slice> },
}

impl Op {
    /// Returns the file that the operation reads or changes: what a fence is about.
    pub fn file(&self) -> Option<Handle> {
        match self {
            Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Flush { file }
            | Op::Allocate { file, .. }
            | Op::Zero { file, .. }
            | Op::GiveBack { file, .. }
            | Op::SetLen { file, .. }
            | Op::KeepAttributes { file, .. }
            | Op::Extents { file, .. }
            | Op::Allocated { file }
            | Op::Size { file } => Some(*file),
            _ => None,
        }
    }
}

/// What an operation came to. Each `Op` says which of these it answers with; `Unit` where nothing is said.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing but success.
    Unit(Result<(), Errno>),
    /// The buffer is returned in any case, with the number of bytes that were filled.
    Read(Buf, Result<usize, Errno>),
    /// A number of bytes.
    Count(Result<u64, Errno>),
    /// The new handle; of a directory, `Limits` has no meaning.
    Opened(Result<(Handle, Limits), Errno>),
    /// The new connection and its other end.
    Accepted(Result<(Handle, Peer), Errno>),
    /// In the order of their offsets.
    Extents(Result<Vec<FileExtent>, Errno>),
    /// Of a directory's entries.
    Names(Result<Vec<String>, Errno>),
    /// Of a file system.
    Space(Result<Space, Errno>),
}

/// Wakes a reactor that waits for the kernel, from any thread.
pub trait Waker: Send + Sync {
    /// Ends the present or the next [`Reactor::wait`]. Cheap when it is called again before that.
    fn wake(&self);
}

/// One world. Single-threaded; every method is called from the core that owns it.
pub trait Reactor {
    /// Starts an operation, at the latest with the next [`Reactor::turn`].
    fn submit(&self, op: Op) -> Token;

    /// Ready once; the token is dead afterwards. Registers the task's waker otherwise.
    fn poll(&self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome>;

    /// The caller no longer wants the outcome. Buffers and handles inside are released when the device is done.
    fn forget(&self, token: Token);

    /// Closes a handle; operations under way on it still complete.
    fn close(&self, handle: Handle);

    /// Operations on the file that are not with the kernel by the deadline complete with `Errno::FENCED` and do nothing,
    /// however long ago they were submitted. Parts of an operation that are submitted again count like others.
    fn fence(&self, file: Handle, deadline: Arc<Deadline>);

    /// Opens a directory by path; the only path a data plane ever opens. Synchronous, so not for a program with clients.
    fn open_root(&self, path: &str) -> Result<Handle, Errno>;

    /// Opens a directory by path without holding the core up; outcome: `Opened`. None where no path holds anything up.
    fn submit_open_root(&self, _path: &str) -> Option<Token> {
        None
    }

    /// See `Dir::trust_owner`. Reactors without users trust every owner.
    fn trust_owner(&self, _dir: Handle) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether file systems of this world may leave a question without an answer.
    fn can_hang(&self) -> bool {
        false
    }

    /// What the file system of a handle does not answer for longest. Of transfers the age counts from the first question after
    /// their submission, and from the last one of their kind that was answered.
    fn pending(&self, _handle: Handle) -> Option<Pending> {
        None
    }

    /// Descriptors of files, folders and locks that are open, sockets apart; 0 where they are not counted. Handles that share a
    /// descriptor count once.
    fn open_files(&self) -> u64 {
        0
    }

    /// Monotonic nanoseconds.
    fn now_ns(&self) -> u64;

    /// The clock that polls are measured by; None where they are not.
    fn poll_clock_ns(&self) -> Option<u64> {
        None
    }

    /// Nanoseconds that the calling thread has run.
    fn thread_ns(&self) -> u64 {
        0
    }

    /// Nanoseconds since the machine was started, of a clock that runs on while the machine is suspended.
    fn boot_ns(&self) -> u64;

    /// Microseconds since 1970 UTC, for names and records; never for ordering.
    fn unix_us(&self) -> i64;

    /// 64 unpredictable bits (in the simulator they follow from the seed).
    fn random(&self) -> u64;

    /// Files that outlive this process; None where the process keeps none, as tools that serve no clients do.
    fn memory(&self) -> Option<Rc<dyn Memory>> {
        None
    }

    /// Hands over what has been submitted, and takes in what has completed, without waiting.
    fn turn(&self);

    /// Waits until at least one task may be ready. False when nothing is under way, so nothing can ever wake one.
    fn wait(&self) -> bool;

    /// Returns the handle by which other threads wake this reactor.
    fn waker(&self) -> Arc<dyn Waker>;

    /// Runs work that needs no I/O, now or on another thread; it wakes its task itself.
    fn run_offloaded(&self, work: OffloadedWork) {
        work();
    }

    /// Runs a call on a path, which may never return, now or on another thread; it wakes its task itself.
    fn run_blocking(&self, call: OffloadedWork) {
        call();
    }
}
