//! Detection of images that another program has open. QEMU shows this with locks on single bytes of the file: 100 to
//! 103 for its own use of the file, 200 to 203 for what it denies to others (QEMU's `block/file-posix.c`:
//! RAW_LOCK_PERM_BASE, RAW_LOCK_SHARED_BASE).

use std::fs::{DirEntry, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Error, ErrorKind, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const FIRST_BYTE: i64 = 100;
const LAST_BYTE: i64 = 203;
/// Suffix of an image's name. Other files of a VM's folder are not images.
const SUFFIX: &str = ".vmdk";
/// Age below which a lock counts as held: several times the interval in which a lock on shared storage is renewed.
const RENEWED_WITHIN: Duration = Duration::from_secs(120);
/// Maximum number of processes examined to name the holder of a lock.
const PROCESSES_MAX: usize = 100_000;

/// Returns `Locked` if another process holds one of QEMU's locks on an image in one of `folders`.
pub(crate) fn refuse_locked(folders: &[PathBuf]) -> Result<()> {
    for folder in folders {
        let failed = |e: std::io::Error| Error::failed(format!("{}: {e}", folder.display()));
        for entry in folder.read_dir().map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let image = path.as_os_str().to_string_lossy().to_ascii_lowercase().ends_with(SUFFIX);
            if image && path.is_file() {
                check(&path)?;
            }
        }
    }
    Ok(())
}

/// Returns `Locked` if one of the `locks` in `folder`, a file or a folder of files, was written recently. VMware's
/// programs renew their locks on shared storage every few seconds.
pub(crate) fn refuse_renewed<'a>(folder: &Path, locks: impl Iterator<Item = &'a str>) -> Result<()> {
    for name in locks {
        let lock = folder.join(name);
        let inside = lock.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        for path in inside.chain([lock.clone()]) {
            let failed = |e: std::io::Error| Error::failed(format!("{}: {e}", path.display()));
            let modified = path.symlink_metadata().and_then(|found| found.modified()).map_err(failed)?;
            // If the file's time is ahead of this host's clock, the age of the lock is unknown and counts as 0.
            let age = modified.elapsed().unwrap_or_default();
            if age < RENEWED_WITHIN {
                let cause =
                    format!("this lock was written {} s ago, so a program may still hold it", age.as_secs());
                let remedy = format!(
                    "wait until the lock is {} s old and no program renews it",
                    RENEWED_WITHIN.as_secs()
                );
                return Err(Error::new(ErrorKind::Locked, format!("{}: {cause}; {remedy}", path.display())));
            }
        }
    }
    Ok(())
}

fn check(path: &Path) -> Result<()> {
    // The name may lead to a pipe by now, and opening must not wait for the pipe's other end.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
    let Some(process) =
        holder(&file).map_err(|e| Error::failed(format!("{}: asking for locks: {e}", path.display())))?
    else {
        return Ok(());
    };
    let shown = path.display();
    let message = match process.or_else(|| opener(&file)) {
        None if has_open(std::process::id(), &file) => {
            let cause = "this file is below a disk of this daemon, which holds QEMU's locks on it";
            format!(
                "{shown}: {cause}; `unstun source list` shows the disk: copy the image, or remove the disk"
            )
        }
        process => {
            let who = process.map_or("another process".to_owned(), |id| format!("process {id}"));
            let locks = format!("holds QEMU's locks on it (bytes {FIRST_BYTE} to {LAST_BYTE})");
            format!("{shown}: {who} has this file open and {locks}; stop that process first")
        }
    };
    Err(Error::new(ErrorKind::Locked, message))
}

/// Returns the holder of a lock; None if there is no lock. The process is unknown for locks of an open file
/// description, which are the kind that QEMU takes.
fn holder(file: &File) -> nix::Result<Option<Option<u32>>> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: FIRST_BYTE,
        l_len: LAST_BYTE - FIRST_BYTE + 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    let free = i32::from(lock.l_type) == libc::F_UNLCK;
    Ok((!free).then(|| u32::try_from(lock.l_pid).ok().filter(|&id| id > 0)))
}

/// Returns another process that has the file open, as far as /proc is readable.
fn opener(file: &File) -> Option<u32> {
    let processes = Path::new("/proc").read_dir().ok()?.flatten().take(PROCESSES_MAX);
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|&id| id != std::process::id() && has_open(id, file))
}

/// Returns whether a process has the file open, beside this opening of it.
fn has_open(id: u32, file: &File) -> bool {
    let Ok(wanted) = file.metadata().map(|m| (m.dev(), m.ino())) else { return false };
    let Ok(files) = Path::new(&format!("/proc/{id}/fd")).read_dir() else { return false };
    let own = (id == std::process::id()).then(|| file.as_raw_fd().to_string());
    let is_other = |entry: &DirEntry| own.as_ref().is_none_or(|own| entry.file_name() != own.as_str());
    let is_it = |entry: &DirEntry| entry.path().metadata().is_ok_and(|m| (m.dev(), m.ino()) == wanted);
    files.flatten().any(|entry| is_other(&entry) && is_it(&entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(file: &File, kind: libc::c_int, byte: i64) {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: byte,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    }

    #[test]
    fn an_image_with_qemus_locks_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web-flat.VMDK");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        let folders = [folder.path().to_path_buf()];
        refuse_locked(&folders).unwrap();
        for (kind, byte, locked) in [
            (libc::F_RDLCK, 100, true),
            (libc::F_WRLCK, 203, true),
            (libc::F_RDLCK, 99, false),
            (libc::F_RDLCK, 204, false),
        ] {
            lock(&file, kind, byte);
            let found = refuse_locked(&folders);
            lock(&file, libc::F_UNLCK, byte);
            assert_eq!(found.is_err(), locked, "byte {byte}");
            if let Err(error) = found {
                assert_eq!(error.kind, ErrorKind::Locked);
                assert!(error.message.contains("web-flat.VMDK"), "{error}");
            }
        }
    }

    #[test]
    fn a_lock_that_was_written_lately_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("web.lck/M1.lck");
        std::fs::create_dir(folder.path().join("web.lck")).unwrap();
        std::fs::write(&inside, "").unwrap();
        let now = std::time::SystemTime::now();
        let age = |age: Duration| {
            for path in [&inside, &folder.path().join("web.lck")] {
                File::open(path).unwrap().set_modified(now - age).unwrap();
            }
            refuse_renewed(folder.path(), ["web.lck/"].into_iter())
        };
        let error = age(Duration::from_secs(5)).unwrap_err();
        assert!(error.kind == ErrorKind::Locked && error.message.contains("M1.lck"), "{error}");
        age(RENEWED_WITHIN * 2).unwrap();
    }

    #[test]
    fn other_files_may_be_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.log");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        lock(&file, libc::F_WRLCK, 100);
        refuse_locked(&[folder.path().to_path_buf()]).unwrap();
    }
}
