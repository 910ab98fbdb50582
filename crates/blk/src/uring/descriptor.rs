//! Descriptors of the kernel: their owner, device, identity and size.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;

use crate::error::Errno;

/// The kernel's own bound for one transfer: 2 GiB less a page (MAX_RW_COUNT in linux/fs.h).
pub(super) const MAX_TRANSFER: u32 = 0x7fff_f000;
/// Shared between the handle table and the work under way: the descriptor closes with the last of them.
pub(super) type Fd = Arc<OwnedFd>;

/// A file system, or a block device that is a datastore: major and minor number.
pub(super) type Device = (u32, u32);

/// A file of this machine while it is open: device (major, minor), inode, and of a folder its mount, which decides what may
/// be done through it.
pub(super) type Identity = (u32, u32, u64, u64);

/// Length in bytes, of a file or a block device.
pub(super) fn size_of(fd: &OwnedFd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        // The file position is not otherwise used: every transfer names its offset.
        return Ok(rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))?);
    }
    u64::try_from(stat.st_size).map_err(|_| Errno::EIO)
}
