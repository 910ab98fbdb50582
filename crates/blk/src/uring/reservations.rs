//! The kernel's calls for persistent reservations (`linux/pr.h`), which SCSI disks and NVMe namespaces answer.
//!
//! In `pr_preemption` the old key is that of the caller and the new one that of the host that loses the device, for both
//! kinds of devices (`sd_pr_preempt` and `nvme_pr_preempt` pass them on in the order of their standards' fields).
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::FileType;
use rustix::ioctl::opcode;

use super::descriptor::Fd;
use crate::error::Errno;
use crate::reservation::Reservation;

/// `PR_WRITE_EXCLUSIVE_REG_ONLY`.
const REGISTRANTS_WRITE: u32 = 3;
/// `PR_FL_IGNORE_KEY`.
const WHATEVER_KEY: u32 = 1;
/// A status of SCSI: the device has something to say, for example that another host has changed the registrations.
const CHECK_CONDITION: i32 = 0x02;
/// Status of SCSI for a reservation conflict.
const CONFLICT: i32 = 0x18;
/// The same of NVMe, which kernels before 6.3 return as it is.
const CONFLICT_NVME: i32 = 0x83;
/// A condition is said once to each host; there are few kinds of them.
const ATTEMPTS: usize = 4;

#[repr(C)]
struct Registration {
    old_key: u64,
    new_key: u64,
    flags: u32,
    pad: u32,
}

#[repr(C)]
struct Reserved {
    key: u64,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Preemption {
    own_key: u64,
    other_key: u64,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Cleared {
    key: u64,
    flags: u32,
    pad: u32,
}

/// Takes a step. `EBADE` if the device declines it, `EOPNOTSUPP` if it has no reservations, or if they would bind more
/// than the device that was opened.
pub(super) fn take(fd: &Fd, step: Reservation) -> Result<(), Errno> {
    refuse_parts(fd)?;
    let mut status = CHECK_CONDITION;
    for _ in 0..ATTEMPTS {
        status = call(fd, step)?;
        if status != CHECK_CONDITION {
            break;
        }
    }
    match status {
        0 => Ok(()),
        // A device without reservations answers each attempt so.
        CHECK_CONDITION => Err(Errno::EOPNOTSUPP),
        status if matches!(status & 0xff, CONFLICT | CONFLICT_NVME) => Err(Errno::EBADE),
        _ => Err(Errno::EIO),
    }
}

/// Refuses what is part of a device, or made of several: its reservation would keep other hosts from the rest. Paths of
/// multipath devices that come back later are not registered, and would refuse the writes of their own host.
fn refuse_parts(fd: &Fd) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(&**fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Err(Errno::EOPNOTSUPP);
    }
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let device = format!("/sys/dev/block/{major}:{minor}");
    let is_part = ["partition", "dm", "md"].iter().any(|name| Path::new(&device).join(name).exists());
    if is_part { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// Returns the device's status; 0 is success.
fn call(fd: &Fd, step: Reservation) -> Result<i32, Errno> {
    match step {
        Reservation::Register { instead, key } => {
            let value = Registration { old_key: instead, new_key: key, flags: 0, pad: 0 };
            ioctl(fd, opcode::write::<Registration>(b'p', 200), &value)
        }
        Reservation::RegisterAnyway { key } => {
            let value = Registration { old_key: 0, new_key: key, flags: WHATEVER_KEY, pad: 0 };
            ioctl(fd, opcode::write::<Registration>(b'p', 200), &value)
        }
        Reservation::Reserve { key } => {
            let value = Reserved { key, kind: REGISTRANTS_WRITE, flags: 0 };
            ioctl(fd, opcode::write::<Reserved>(b'p', 201), &value)
        }
        Reservation::Preempt { key, other } => {
            let value = Preemption { own_key: key, other_key: other, kind: REGISTRANTS_WRITE, flags: 0 };
            ioctl(fd, opcode::write::<Preemption>(b'p', 204), &value)
        }
        Reservation::Clear { key } => {
            let value = Cleared { key, flags: 0, pad: 0 };
            ioctl(fd, opcode::write::<Cleared>(b'p', 205), &value)
        }
    }
}

fn ioctl<T>(fd: &Fd, request: rustix::ioctl::Opcode, value: &T) -> Result<i32, Errno> {
    // SAFETY: the request is one of the kernel's that reads a structure of the type's size and layout (the size is part
    // of the request's number) and writes nothing; `value` and the descriptor live until the call returns.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), std::ptr::from_ref(value)) };
    match status {
        0.. => Ok(status),
        _ => {
            let errno = Errno::from(std::io::Error::last_os_error());
            let is_unknown = errno.0 == libc::ENOTTY || errno == Errno::EINVAL;
            Err(if is_unknown { Errno::EOPNOTSUPP } else { errno })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Devices with reservations need a target, which the guest's tests have.
    #[test]
    fn a_file_has_no_reservations() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let step = Reservation::Register { instead: 0, key: 1 };
        assert_eq!(take(&Arc::new(file.into()), step), Err(Errno::EOPNOTSUPP));
    }
}
