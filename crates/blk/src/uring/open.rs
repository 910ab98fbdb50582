//! Opens files, folders, locks and devices, and determines the device's constraints on I/O.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};

use super::descriptor::{Device, Identity, MAX_TRANSFER};
use super::shared::is_on_shared;
use crate::error::Errno;
use crate::rbd::Image;
use crate::reactor::{Limits, OpenMode};

/// Only the owner may read a guest's disk.
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
/// `f_type` of file systems in the page cache (linux/magic.h): newer kernels accept O_DIRECT there and ignore it.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// Block size of a device that does not report one. A value that is too large costs read-modify-writes; one that is too
/// small fails every I/O.
const UNKNOWN_BLOCK: u32 = 4096;

/// Limits of directories, locks and sockets, which have no constraints.
pub(super) const NO_LIMITS: Limits = Limits {
    logical_block: 1,
    physical_block: 0,
    memory_align: 1,
    max_io: MAX_TRANSFER,
    direct: false,
    shared: false,
    inode: 0,
    modified_us: 0,
};

/// Kind of object behind a handle.
#[derive(Debug)]
pub(super) enum Kind {
    File(Limits),
    /// An image of RBD. Its descriptor stands for none.
    Image(Arc<Image>),
    /// A directory, or a file that only carries a lock.
    Plain,
    /// A file that only carries a lock, on a file server: releasing the lock can wait for the server.
    ServerLock,
    Listener {
        tcp: bool,
        /// Path of a Unix socket, which is removed when the listener closes.
        path: Option<String>,
    },
    Stream,
}

#[derive(Debug)]
pub(super) struct Opened {
    pub fd: OwnedFd,
    pub kind: Kind,
    /// Device (major, minor) and a notice for the operator, if direct I/O is not available on it.
    pub notice: Option<((u32, u32), String)>,
    /// Identity of a regular file that is only read, or of a folder: all its handles share one descriptor.
    pub shared: Option<Identity>,
    /// The file system, if it is not that of the folder in which the object was opened.
    pub device: Option<Device>,
}

impl Opened {
    pub(super) fn plain(fd: OwnedFd) -> Opened {
        Opened { fd, kind: Kind::Plain, notice: None, shared: None, device: None }
    }
}

impl Kind {
    pub(super) fn limits(&self) -> Limits {
        match self {
            Kind::File(limits) => *limits,
            Kind::Image(_) => Limits::OF_IMAGE,
            _ => NO_LIMITS,
        }
    }
}

/// Opens a regular file or a device. Never follows a symbolic link, and never blocks on a pipe.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &str, mode: OpenMode) -> Result<Opened, Errno> {
    let access = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::Write => OFlags::RDWR,
        OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
    };
    let careful = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::openat(dir, name, access | careful, FILE_MODE)?;
    let is_regular = match file_type(&fd)? {
        FileType::RegularFile => true,
        FileType::BlockDevice => false,
        FileType::Directory => return Err(rustix::io::Errno::ISDIR.into()),
        _ => return Err(Errno::EINVAL),
    };
    let stat =
        rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN)?;
    let device = (stat.stx_dev_major, stat.stx_dev_minor);
    let own = (!is_regular).then_some((stat.stx_rdev_major, stat.stx_rdev_minor));
    let shared = (is_regular && mode == OpenMode::Read).then_some((device.0, device.1, stat.stx_ino, 0));
    let modified_us = stat.stx_mtime.tv_sec * 1_000_000 + i64::from(stat.stx_mtime.tv_nsec / 1000);
    let is_shared = !is_regular || is_on_shared(&fd);
    let known = Limits { shared: is_shared, inode: stat.stx_ino, modified_us, ..NO_LIMITS };
    // O_DIRECT is set after the opening: an open that refuses it would leave a created file behind. The same call
    // clears O_NONBLOCK, with which the ring would answer EAGAIN.
    if let Some((block, memory_align)) = direct_alignment(&fd, &stat)
        && rustix::fs::fcntl_setfl(&fd, OFlags::DIRECT).is_ok()
    {
        let physical_block = physical_block(&stat).unwrap_or(0);
        let limits = Limits { logical_block: block, physical_block, memory_align, direct: true, ..known };
        return Ok(Opened { fd, kind: Kind::File(limits), notice: None, shared, device: own });
    }
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    if mode != OpenMode::CreateNew {
        drop_cached(&fd);
    }
    let notice = format!(
        "{}: this file system does no direct I/O (O_DIRECT); its disks go through the page cache",
        path_of(&fd).unwrap_or_else(|| name.to_string())
    );
    Ok(Opened { fd, kind: Kind::File(known), notice: Some((device, notice)), shared, device: own })
}

/// Drops cached content, so that reads show the medium. If an earlier flush failed, the page cache may have content
/// that is not on the medium and is not dirty any more: no later flush would write it, and a loss of power would lose
/// it.
fn drop_cached(fd: &OwnedFd) {
    // An error here belongs to unacknowledged writes: a flush that was acknowledged was acknowledged before.
    let _ = rustix::fs::fdatasync(fd);
    // This is advice: pages that are still dirty, or in use elsewhere, stay.
    let _ = rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::DontNeed);
}

/// Returns whether the content of the file system is lost when the host loses power.
pub(super) fn is_in_memory(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|found| matches!(found.f_type as u64, TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Returns the alignment of offsets and lengths, and of memory, in bytes; None if direct I/O is refused or only
/// pretended.
fn direct_alignment(fd: &OwnedFd, stat: &rustix::fs::Statx) -> Option<(u32, u32)> {
    let on_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
    // Device nodes are in a tmpfs; their devices are not.
    if !on_device && is_in_memory(fd) {
        return None;
    }
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
        let (block, memory) = (stat.stx_dio_offset_align, stat.stx_dio_mem_align);
        // Zero means that this file has no direct I/O (encrypted, compressed, journalled data).
        return (block.is_power_of_two() && memory.is_power_of_two()).then_some((block, memory));
    }
    let block = sysfs_block(stat, "logical_block_size").unwrap_or(UNKNOWN_BLOCK);
    Some((block, block))
}

/// Returns what the device under a file writes as a whole.
fn physical_block(stat: &rustix::fs::Statx) -> Option<u32> {
    sysfs_block(stat, "physical_block_size")
}

/// Returns a size that the kernel states for the device, or the device under a file. The logical block is also in the
/// answer of statx, from Linux 6.1 on. A partition has no sizes of its own; those of its disk are one level up.
fn sysfs_block(stat: &rustix::fs::Statx, name: &str) -> Option<u32> {
    let (major, minor) = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::BlockDevice => (stat.stx_rdev_major, stat.stx_rdev_minor),
        _ => (stat.stx_dev_major, stat.stx_dev_minor),
    };
    ["queue", "../queue"]
        .iter()
        .find_map(|at| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{at}/{name}")).ok())
        .and_then(|text| text.trim().parse().ok())
        .filter(|block: &u32| block.is_power_of_two())
}

fn path_of(fd: &OwnedFd) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn file_type(fd: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

pub(super) fn open_folder(dir: impl AsFd, name: &str, create: bool) -> Result<Opened, Errno> {
    if create {
        match rustix::fs::mkdirat(&dir, name, FOLDER_MODE) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    opened_folder(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Opens a path of the operator, in which symbolic links are followed.
pub(super) fn open_root(path: &str) -> Result<Opened, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    opened_folder(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Returns an opened folder. Its descriptor has no state of its own, because a listing opens the folder anew, so its
/// handles share one. Another file system than that of the parent may be mounted on it.
fn opened_folder(fd: OwnedFd) -> Result<Opened, Errno> {
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, wanted)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let identity = (device.0, device.1, found.stx_ino, found.stx_mnt_id.saturating_add(1));
    // On a kernel that does not report the mount (before Linux 5.8), none is shared.
    let shared = (found.stx_mask & wanted.bits() == wanted.bits()).then_some(identity);
    Ok(Opened { shared, device: Some(device), ..Opened::plain(fd) })
}

fn split(device: u64) -> Device {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// Opens a lock. It belongs to the open file description, so it ends when the descriptor is closed, or with the
/// process.
pub(super) fn open_lock(dir: BorrowedFd<'_>, name: &str) -> Result<Opened, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match rustix::fs::openat(dir, name, flags, FILE_MODE) {
        // A file that cannot be written, such as one on a file system that is mounted read-only, is locked as it is.
        Err(rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            rustix::fs::openat(dir, name, flags, FILE_MODE)?
        }
        opened => opened?,
    };
    rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return Ok(Opened { device: Some(split(stat.st_rdev)), ..Opened::plain(fd) });
    }
    let kind = if is_on_shared(&fd) { Kind::ServerLock } else { Kind::Plain };
    Ok(Opened { kind, ..Opened::plain(fd) })
}
