//! The one error type of the data plane: a stable kind, the place, and the cause.
//!
//! The kind decides what a caller does (wait, refuse, latch), and which exit code the user sees. The place is the file,
//! disk or request. The cause is what was found, what was expected, and what to do.

use std::fmt;

/// Kinds of errors, by which a caller decides. A new cause gets one of these kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The device or the kernel failed the operation.
    Io,
    /// There is no space on the datastore. Nothing was changed, and the operation may be retried. A flush never fails
    /// with this kind.
    NoSpace,
    /// The named object does not exist.
    NotFound,
    /// The name is taken.
    Exists,
    /// The request is not valid (an error of usage).
    Invalid,
    /// Bytes on the datastore contradict themselves or their format.
    Damaged,
    /// Another process or connection has the object open.
    Locked,
    /// The request is understood and declined, for the stated reason.
    Refused,
    /// The request is understood, and this version does not support it.
    Unsupported,
    /// An earlier write or flush of this file failed. The file accepts nothing until it is reopened.
    Latched,
    /// The process or the host has no descriptor left. Nothing was opened or changed, and nothing is known about the
    /// file: it may be present and sound. The operation may be retried.
    NoDescriptors,
    /// The operation was not started: another host has the store's lease, or the last heartbeat is too old.
    LeaseLost,
    /// The operation was cancelled by the user or by shutdown.
    Cancelled,
}

/// Kind, place and cause. It can be cloned, because one failed flush answers many waiting guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Decides what a caller does.
    pub kind: ErrorKind,
    /// The file, disk, VM or request that the error is about; empty where the cause names it.
    pub place: String,
    /// For people: what was found, what was expected, and what to do.
    pub cause: String,
}

/// Result of the data plane.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error. `place` and `cause` are for people; see [`Error::place`] and [`Error::cause`].
    pub fn new(kind: ErrorKind, place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { kind, place: place.into(), cause: cause.into() }
    }

    /// Creates an error of kind `Damaged`.
    pub fn damaged(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, place, cause)
    }

    /// Creates an error of kind `Invalid`.
    pub fn invalid(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, place, cause)
    }

    /// Creates an error of kind `Refused`.
    pub fn refused(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, place, cause)
    }

    /// Creates an error of kind `NotFound`.
    pub fn not_found(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, place, cause)
    }

    /// Creates an error of kind `Unsupported`.
    pub fn unsupported(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, place, cause)
    }

    /// Creates an error of kind `Cancelled`.
    pub fn cancelled(place: impl Into<String>) -> Self {
        Self::new(ErrorKind::Cancelled, place, "cancelled")
    }

    /// Returns whether the datastore had too little space. Nothing was changed then, and the operation may be retried.
    pub fn is_no_space(&self) -> bool {
        self.kind == ErrorKind::NoSpace
    }

    /// Returns whether nothing was changed and a retry may succeed without other measures: space or descriptors were
    /// short.
    pub fn may_pass(&self) -> bool {
        matches!(self.kind, ErrorKind::NoSpace | ErrorKind::NoDescriptors)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            return f.write_str(&self.cause);
        }
        write!(f, "{}: {}", self.place, self.cause)
    }
}

impl std::error::Error for Error {}

/// An error number of the operating system, as both reactors report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

const FOREIGN_OWNER: &str = "another user owns it, and unstun decides by it which files it writes and removes; look at what is in it, and \
                         where you trust it give it to the daemon's user (chown -R), or remove it";

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Errno = Errno(1);
    /// No such file or directory.
    pub const ENOENT: Errno = Errno(2);
    /// Input/output error.
    pub const EIO: Errno = Errno(5);
    /// Resource temporarily unavailable. For a lock: another process holds it.
    pub const EAGAIN: Errno = Errno(11);
    /// Permission denied.
    pub const EACCES: Errno = Errno(13);
    /// File exists.
    pub const EEXIST: Errno = Errno(17);
    /// Of a block device: another host has reserved it, and this one is not registered.
    pub const EBADE: Errno = Errno(52);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(22);
    /// Too many open files in the host.
    pub const ENFILE: Errno = Errno(23);
    /// Too many open files in the process.
    pub const EMFILE: Errno = Errno(24);
    /// File too large for the file system or for the process's limit.
    pub const EFBIG: Errno = Errno(27);
    /// No space left on the file system or the thin pool.
    pub const ENOSPC: Errno = Errno(28);
    /// Operation not supported by the file system or the device.
    pub const EOPNOTSUPP: Errno = Errno(95);
    /// Disk quota exceeded.
    pub const EDQUOT: Errno = Errno(122);
    /// Operation cancelled.
    pub const ECANCELED: Errno = Errno(125);
    /// A fence has prevented the operation. Not a number of the kernel; those end at 4095.
    pub const FENCED: Errno = Errno(4096);
    /// A folder whose records decide what is written and removed belongs to another user. See `Dir::trust_owner`.
    pub const FOREIGN_OWNER: Errno = Errno(4097);

    /// The cluster of an image of RBD refuses this client for good. Not a number of the kernel.
    pub const BLOCKLISTED: Errno = Errno(4098);

    /// Returns the kind of error; `Io` for every number without a kind of its own.
    pub fn kind(self) -> ErrorKind {
        match self {
            Errno::ENOSPC | Errno::EDQUOT => ErrorKind::NoSpace,
            Errno::EMFILE | Errno::ENFILE => ErrorKind::NoDescriptors,
            Errno::ENOENT => ErrorKind::NotFound,
            Errno::EEXIST => ErrorKind::Exists,
            Errno::EAGAIN => ErrorKind::Locked,
            Errno::EOPNOTSUPP => ErrorKind::Unsupported,
            Errno::ECANCELED => ErrorKind::Cancelled,
            Errno::FENCED | Errno::BLOCKLISTED | Errno::EBADE => ErrorKind::LeaseLost,
            Errno::FOREIGN_OWNER => ErrorKind::Refused,
            _ => ErrorKind::Io,
        }
    }

    /// Returns the error of an operation on `place`. `doing` is a verb phrase: "reading 4096 bytes at 8192".
    pub fn at(self, place: impl Into<String>, doing: &str) -> Error {
        Error::new(self.kind(), place, format!("{doing}: {self}"))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Errno::FENCED => f.write_str("not started behind a fence"),
            Errno::EBADE => f.write_str("the device refuses it, because another host has reserved the device"),
            Errno::FOREIGN_OWNER => f.write_str(FOREIGN_OWNER),
            Errno::BLOCKLISTED => {
                f.write_str("Ceph has blocklisted this client: another host has taken the image over, and serves the store now")
            }
            _ => fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f),
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Errno(e.raw_os_error().unwrap_or(Errno::EIO.0))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Errno(e.raw_os_error())
    }
}
