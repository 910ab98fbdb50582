//! A lock that keeps QEMU from writing an image while it is below a disk. QEMU locks single bytes of an image: 100 and
//! following for its own use of the file, 200 and following for what it denies to others (QEMU's `block/file-posix.c`:
//! RAW_LOCK_PERM_BASE, RAW_LOCK_SHARED_BASE; the order is that of BLK_PERM_CONSISTENT_READ, WRITE, WRITE_UNCHANGED, RESIZE).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use api::error::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Bytes that are locked: for reads of a consistent content, against writers, and against changes of the size.
const HELD: [i64; 3] = [100, 201, 203];
/// Bytes that another program must not have locked: as a writer, to change the size, and against readers.
const REFUSED: [i64; 3] = [101, 103, 200];

/// Lock on an image, until it is dropped.
pub(super) struct ReadLock {
    _file: File,
}

fn byte(kind: libc::c_int, start: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    }
}

impl ReadLock {
    /// Locks the image at `path`; this may block. `Locked` if another program writes it. A file system without locks has
    /// none to find.
    pub(super) fn take(path: &Path) -> Result<ReadLock> {
        let shown = path.display();
        // The name may lead to a pipe by now, and opening must not wait for the pipe's other end.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = opened.map_err(|e| Error::at_path(&shown, &e.to_string(), &e))?;
        match lock(&file) {
            Ok(true) | Err(Errno::ENOLCK | Errno::EOPNOTSUPP) => Ok(ReadLock { _file: file }),
            Ok(false) => {
                let cause = "a program writes this image (it holds QEMU's locks for that)";
                let remedy = "stop it, or make the disk from a copy of the image";
                Err(Error::new(ErrorKind::Locked, format!("{shown}: {cause}; {remedy}")))
            }
            Err(e) => Err(Error::failed(format!("{shown}: locking: {e}"))),
        }
    }
}

/// Returns whether the lock was taken, and no program writes.
fn lock(file: &File) -> nix::Result<bool> {
    for at in HELD {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, at))) {
            // Only a program that locks otherwise than QEMU holds such a lock.
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            locked => _ = locked?,
        }
    }
    for at in REFUSED {
        let mut found = byte(libc::F_WRLCK, at);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
        if i32::from(found.l_type) != libc::F_UNLCK {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_an_image_and_writers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.raw");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        for (at, is_free) in [(100, true), (101, false), (103, false), (200, false), (201, true), (203, true)]
        {
            fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, at))).unwrap();
            match ReadLock::take(&path) {
                Ok(_) => assert!(is_free, "{at}"),
                Err(e) => assert!(
                    !is_free && e.kind == ErrorKind::Locked && e.message.contains("web.raw"),
                    "{at}: {e}"
                ),
            }
            fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(libc::F_UNLCK, at))).unwrap();
        }
        let held = (ReadLock::take(&path).unwrap(), ReadLock::take(&path).unwrap());
        // QEMU's writer looks whether another one denies writes.
        let mut denied = byte(libc::F_WRLCK, 201);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut denied)).unwrap();
        assert_ne!(i32::from(denied.l_type), libc::F_UNLCK);
        drop(held);
        let mut denied = byte(libc::F_WRLCK, 201);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut denied)).unwrap();
        assert_eq!(i32::from(denied.l_type), libc::F_UNLCK);
    }
}
