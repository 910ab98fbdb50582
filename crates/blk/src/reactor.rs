//! The interface between the executor and the world: I/O and time.
//!
//! There are two implementations: `uring::UringReactor` (real files, sockets and time) and the one in `sim` (virtual
//! time, faults, power cuts). Both accept the same [`Op`]s, so the engine cannot distinguish them. An operation owns
//! its buffers from `submit` until its outcome is taken. The buffers of a forgotten operation stay with the reactor
//! until the device is done.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::buf::{Buf, Slice};
use crate::deadline::Deadline;
use crate::error::Errno;
use crate::memory::Memory;
use crate::passed::Descriptor;
use crate::peer::Peer;
use crate::rbd::Image;
pub use crate::reservation::Reservation;

/// A piece of work for [`Reactor::run_offloaded`].
pub type OffloadedWork = Box<dyn FnOnce() + Send>;

/// An open file, directory or socket of one reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// Identifies an operation under way to its reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u32);

/// A device's constraints on I/O to one file. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Offsets and lengths must be multiples of this (512 or 4096 on disks; 1 when buffered).
    pub logical_block: u32,
    /// What the device writes as a whole: if the power goes during a smaller write, the rest of it may be damaged. 0:
    /// unknown.
    pub physical_block: u32,
    /// Memory addresses must be multiples of this.
    pub memory_align: u32,
    /// Largest single transfer.
    pub max_io: u32,
    /// False if O_DIRECT was refused and transfers use the page cache.
    pub direct: bool,
    /// Other hosts may reach the file: a block device, or a file on a file system that several hosts can mount.
    pub shared: bool,
    /// The file's number in its file system when it was opened.
    pub inode: u64,
    /// Time of the last change of its content when it was opened, in microseconds since 1970 UTC.
    pub modified_us: i64,
}

impl Limits {
    /// Those of images of RBD. The cluster writes the bytes of a request within an object as a whole, and blocks of 4 KiB
    /// without reading them first. One request is at most as long as the largest of NBD.
    pub(crate) const OF_IMAGE: Limits = Limits {
        logical_block: 512,
        physical_block: 4096,
        memory_align: 1,
        max_io: 32 << 20,
        direct: true,
        shared: true,
        inode: 0,
        modified_us: 0,
    };
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Opens for reading only.
    Read,
    /// Opens an existing file for reading and writing.
    Write,
    /// Creates the file. Fails with EEXIST if the name is taken.
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

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Size of the file system.
    pub total_bytes: u64,
    /// Bytes that this process may still allocate.
    pub free_bytes: u64,
    /// Bytes of large files whose names were removed and whose blocks are not free yet.
    pub freeing_bytes: u64,
}

/// A call that a file system or a device has not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Start of the call, by the reactor's clock.
    pub since_ns: u64,
    /// A verb phrase: "renaming a file".
    pub doing: &'static str,
}

/// One operation. Names are single path components, relative to the directory handle. `offset` and `len` are bytes, and
/// keep to the [`Limits`] of their file.
// The type of a field and the comment above describe it. Each variant documents only its peculiarities.
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
    /// Reserves space and extends the size to `offset + len`. Existing bytes stay. ENOSPC changes nothing.
    Allocate { file: Handle, offset: u64, len: u64 },
    /// Makes the range read as zeros. `punch` also frees its space.
    Zero { file: Handle, offset: u64, len: u64, punch: bool },
    /// Frees the range's space. `EOPNOTSUPP` if that would need writes.
    GiveBack { file: Handle, offset: u64, len: u64 },
    /// Cuts or extends the file to `len` bytes. New bytes read as zeros.
    SetLen { file: Handle, len: u64 },
    /// Outcome: `Extents` that intersect the range, clipped to it.
    Extents { file: Handle, offset: u64, len: u64 },
    /// Outcome: `Count`, the size in bytes.
    Size { file: Handle },
    /// Outcome: `Count`, the bytes that the file system has allocated, reserved ones included.
    Allocated { file: Handle },
    /// Outcome: `Count`, the time of the last change of the content in nanoseconds since 1970. The simulator keeps no
    /// times, and answers 0.
    Modified { file: Handle },
    /// A step of a device's persistent reservations. EBADE if the device declines it, EOPNOTSUPP if it has none.
    Reserve { file: Handle, step: Reservation },
    // Directories. Nothing is durable before SyncDir of the directory.
    /// Outcome: `Opened`.
    OpenFile { dir: Handle, name: String, mode: OpenMode },
    /// Outcome: `Opened`. Opens a subdirectory; with `create`, creates it if it is absent.
    OpenDir { dir: Handle, name: String, create: bool },
    /// Replaces a file named `to` atomically.
    Rename { dir: Handle, from: String, to: String },
    /// Removes the name of a file.
    Unlink { dir: Handle, name: String },
    /// Gives a file a second name in another directory. EEXIST if that name is taken.
    Link { dir: Handle, from: String, to_dir: Handle, to: String },
    /// Gives a file the owner, the group and the permissions of another one.
    KeepAttributes { file: Handle, like: Handle },
    /// Removes an empty subdirectory.
    RemoveDir { dir: Handle, name: String },
    /// Makes the completed changes of names in the directory durable.
    SyncDir { dir: Handle },
    /// Outcome: `Names`, sorted; subdirectories carry a trailing slash.
    List { dir: Handle },
    /// Takes an exclusive lock on the file `name` (created if absent), which is held until the handle is closed. EAGAIN
    /// if another process holds it. Outcome: `Opened`.
    Lock { dir: Handle, name: String },
    /// Outcome: `Space` of the directory's file system.
    Space { dir: Handle },
    // Time.
    /// Completes when the reactor's clock reaches `at_ns`.
    Timer { at_ns: u64 },
    // Sockets exist in the real world only; the simulator answers EOPNOTSUPP.
    /// Outcome: `Accepted` with the connection.
    Accept { socket: Handle },
    /// Outcome: `Read` with the number of bytes. 0 is the end of the stream.
    Recv {
        socket: Handle,
        buf: Buf,
        /// First byte of `buf` to fill.
        at: usize,
    },
    /// Completes when the other side has closed the connection or its sending half, even if bytes wait to be received.
    HungUp { socket: Handle },
    /// Sends the slices in order. Outcome: `Count`, which may be less than their sum.
    Send { socket: Handle, parts: Vec<Slice> },
    /// Receives like `Recv`, with the descriptors that the peer passes. Outcome: `Received`.
    RecvDescriptors { socket: Handle, buf: Buf, at: usize },
    /// Sends the data with a descriptor, which arrives with its first byte. Outcome: `Count`, as of `Send`.
    SendDescriptor { socket: Handle, data: Slice, descriptor: Descriptor },
    /// Completes when the event's counter is not zero, and clears it.
    WaitEvent { event: Descriptor },
    /// Increments the event's counter.
    SignalEvent { event: Descriptor },
}

impl Op {
    /// Returns the file that the operation reads or changes, for fences.
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
            | Op::Modified { file }
            | Op::Reserve { file, .. }
            | Op::Size { file } => Some(*file),
            _ => None,
        }
    }
}

/// Outcome of an operation. Each `Op` documents its variant; otherwise it is `Unit`.
#[derive(Debug)]
pub enum Outcome {
    /// Success without a value.
    Unit(Result<(), Errno>),
    /// The buffer, which is always returned, and the number of bytes that were filled.
    Read(Buf, Result<usize, Errno>),
    /// The buffer, the number of received bytes, and the passed descriptors.
    Received(Buf, Result<(usize, Vec<Descriptor>), Errno>),
    /// A number of bytes.
    Count(Result<u64, Errno>),
    /// The new handle. For a directory, `Limits` has no meaning.
    Opened(Result<(Handle, Limits), Errno>),
    /// The new connection and its peer.
    Accepted(Result<(Handle, Peer), Errno>),
    /// Ranges in the order of their offsets.
    Extents(Result<Vec<FileExtent>, Errno>),
    /// Names of a directory's entries.
    Names(Result<Vec<String>, Errno>),
    /// Space of a file system.
    Space(Result<Space, Errno>),
}

/// An open file between the reactors of two cores of one process.
#[derive(Debug)]
pub enum SharedDescriptor {
    /// A duplicate of the kernel's descriptor.
    Descriptor {
        /// The duplicate.
        fd: OwnedFd,
        /// The file's limits as found when it was opened.
        limits: Limits,
        /// The file system of the file.
        device: Option<(u32, u32)>,
    },
    /// An image of RBD.
    Image(Arc<Image>),
    /// The number of a simulated file.
    Number(u64),
}

/// Wakes a reactor that waits for the kernel, from any thread.
pub trait Waker: Send + Sync {
    /// Ends the present or the next [`Reactor::wait`]. Repeated calls before that are cheap.
    fn wake(&self);
}

/// The I/O and time of one world. Single-threaded: only the core that owns it calls its methods.
pub trait Reactor {
    /// Starts an operation, at the latest in the next [`Reactor::turn`].
    fn submit(&self, op: Op) -> Token;

    /// Returns the outcome once; the token is invalid afterwards. Otherwise registers the task's waker.
    fn poll(&self, token: Token, cx: &mut Context<'_>) -> Poll<Outcome>;

    /// Gives up the outcome of an operation. Its buffers and handles are released when the device is done.
    fn forget(&self, token: Token);

    /// Makes a handle of a stream socket that a peer has passed.
    fn adopt(&self, _descriptor: Descriptor) -> Result<Handle, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Closes a handle; operations under way on it still complete.
    fn close(&self, handle: Handle);

    /// Gives up a connected stream without ending the connection, and returns its descriptor. No operation on it may be
    /// under way. None in worlds without sockets, and if the handle is no such stream.
    fn release_stream(&self, _socket: Handle) -> Option<OwnedFd> {
        None
    }

    /// Adopts a connected stream that another reactor has released. None in worlds without sockets.
    fn adopt_stream(&self, _fd: OwnedFd) -> Option<Handle> {
        None
    }

    /// Returns a descriptor of an open file for the reactor of another core of this process.
    fn share(&self, _file: Handle) -> Result<SharedDescriptor, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Makes a handle of a descriptor that the reactor of another core has shared.
    fn adopt_shared(&self, _descriptor: SharedDescriptor) -> Result<Handle, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// A moment within a poll at which another core may have acted. Simulated worlds let other cores run here.
    fn crossing(&self) {}

    /// Sets the deadline of a file. Operations that the kernel does not have by then complete with `Errno::FENCED` and
    /// have no effect, whenever they were submitted. Parts of an operation that are submitted again are treated alike.
    fn fence(&self, file: Handle, deadline: Arc<Deadline>);

    /// Opens a directory by path, the only path that a data plane opens. It blocks, so a program with clients must not
    /// use it.
    fn open_root(&self, path: &str) -> Result<Handle, Errno>;

    /// Opens a directory by path without holding up the core. Outcome: `Opened`. None in worlds in which paths do not
    /// hang.
    fn submit_open_root(&self, _path: &str) -> Option<Token> {
        None
    }

    /// Trusts the owner of a folder; see `Dir::trust_owner`. Worlds without users trust all owners.
    fn trust_owner(&self, _dir: Handle) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns whether file systems of this world may fail to answer a call.
    fn can_hang(&self) -> bool {
        false
    }

    /// Returns the oldest unanswered call of a handle's file system. The age of a transfer begins at the first query
    /// after its submission, or when a transfer of its kind was last answered.
    fn pending(&self, _handle: Handle) -> Option<Pending> {
        None
    }

    /// Returns the number of open descriptors of files, folders and locks, without sockets; 0 if they are not counted.
    /// Handles that share a descriptor count once.
    fn open_files(&self) -> u64 {
        0
    }

    /// Returns monotonic nanoseconds.
    fn now_ns(&self) -> u64;

    /// Returns the clock for measuring polls; None if they are not measured.
    fn poll_clock_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the nanoseconds for which the calling thread has run.
    fn thread_ns(&self) -> u64 {
        0
    }

    /// Returns nanoseconds since the machine was started. The clock also runs while the machine is suspended.
    fn boot_ns(&self) -> u64;

    /// Returns microseconds since 1970 UTC, for names and records, never for ordering.
    fn unix_us(&self) -> i64;

    /// Returns 64 unpredictable bits. In the simulator they follow from the seed.
    fn random(&self) -> u64;

    /// Returns the files that outlive this process; None if it keeps none, as tools without clients do.
    fn memory(&self) -> Option<Rc<dyn Memory>> {
        None
    }

    /// Submits queued operations and collects completed ones, without waiting.
    fn turn(&self);

    /// Waits until at least one task may be ready. Returns false if nothing is under way, so that no task can become
    /// ready.
    fn wait(&self) -> bool;

    /// Returns the handle with which other threads wake this reactor.
    fn waker(&self) -> Arc<dyn Waker>;

    /// Runs work without I/O, now or on another thread. The work wakes its task itself.
    fn run_offloaded(&self, work: OffloadedWork) {
        work();
    }

    /// Runs a call on a path, now or on another thread. The call may never return; it wakes its task itself.
    fn run_blocking(&self, call: OffloadedWork) {
        call();
    }
}
