//! Tasks of the file systems' threads: calls that may block in the kernel and have no ring operation on the supported
//! kernels.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Gid, Mode, SeekFrom, Uid};

use super::descriptor::{Fd, size_of};
use super::freeing::{self, Freeing};
use super::open::{Opened, open_file, open_folder, open_lock};
use super::owners::Owners;
use super::reservations;
use crate::error::Errno;
use crate::reactor::{FileExtent, OpenMode, Outcome, Reservation, Space};

pub(super) enum Task {
    SetLen {
        fd: Fd,
        len: u64,
    },
    SetLenAtLeast {
        fd: Fd,
        len: u64,
    },
    Extents {
        fd: Fd,
        offset: u64,
        len: u64,
    },
    Size {
        fd: Fd,
    },
    Allocated {
        fd: Fd,
    },
    Modified {
        fd: Fd,
    },
    Reserve {
        fd: Fd,
        step: Reservation,
    },
    OpenFile {
        dir: Fd,
        name: String,
        mode: OpenMode,
    },
    OpenDir {
        dir: Fd,
        name: String,
        create: bool,
        owners: Owners,
    },
    Rename {
        dir: Fd,
        from: String,
        to: String,
    },
    Unlink {
        dir: Fd,
        name: String,
    },
    Link {
        dir: Fd,
        from: String,
        to_dir: Fd,
        to: String,
    },
    KeepAttributes {
        fd: Fd,
        like: Fd,
    },
    RemoveDir {
        dir: Fd,
        name: String,
    },
    SyncDir {
        dir: Fd,
    },
    List {
        dir: Fd,
    },
    Lock {
        dir: Fd,
        name: String,
    },
    Space {
        dir: Fd,
    },
    /// Zeros up to the end of the file; past it the kernel would reserve further blocks. `by_writing` if the file
    /// system has no operation for zeros.
    Zero {
        fd: Fd,
        offset: u64,
        len: u64,
        by_writing: bool,
    },
}

pub(super) enum Answer {
    Outcome(Outcome),
    /// Result of a request to an image of RBD.
    Image(i64),
    /// Becomes a handle in the core's table.
    Opened(Result<Opened, Errno>),
    /// The ring writes zeros up to `end`.
    Zero {
        fd: Fd,
        offset: u64,
        end: u64,
        by_writing: bool,
    },
}

impl Task {
    /// Returns a verb phrase for messages about a file system that does not answer.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Task::SetLen { .. } | Task::SetLenAtLeast { .. } => "setting the length of a file",
            Task::Extents { .. } => "finding the data of a file",
            Task::Size { .. } | Task::Allocated { .. } | Task::Zero { .. } => "asking for the size of a file",
            Task::Modified { .. } => "asking when a file was changed",
            Task::Reserve { step, .. } => step.doing(),
            Task::OpenFile { mode: OpenMode::CreateNew, .. } => "creating a file",
            Task::OpenFile { .. } => "opening a file",
            Task::OpenDir { create: true, .. } => "creating a folder",
            Task::OpenDir { .. } => "opening a folder",
            Task::Rename { .. } => "renaming a file",
            Task::Unlink { .. } => "removing a file",
            Task::Link { .. } => "linking a file",
            Task::KeepAttributes { .. } => "setting the owner of a file",
            Task::RemoveDir { .. } => "removing a folder",
            Task::SyncDir { .. } => "syncing a folder",
            Task::List { .. } => "listing a folder",
            Task::Lock { .. } => "locking a file",
            Task::Space { .. } => "asking for free space",
        }
    }

    /// Returns the answer of a task on a file behind a closed fence.
    pub(super) fn refused(self) -> Answer {
        Answer::Outcome(self.failed(Errno::FENCED))
    }

    /// Returns the answer of a task that was not begun.
    pub(super) fn failed(self, e: Errno) -> Outcome {
        match self {
            Task::Extents { .. } => Outcome::Extents(Err(e)),
            Task::Size { .. } | Task::Allocated { .. } | Task::Modified { .. } => Outcome::Count(Err(e)),
            Task::OpenFile { .. } | Task::OpenDir { .. } | Task::Lock { .. } => Outcome::Opened(Err(e)),
            Task::List { .. } => Outcome::Names(Err(e)),
            Task::Space { .. } => Outcome::Space(Err(e)),
            _ => Outcome::Unit(Err(e)),
        }
    }

    pub(super) fn perform(self, freeing: &mut Freeing) -> Answer {
        match self {
            Task::SetLen { fd, len } => unit(rustix::fs::ftruncate(&*fd, len)),
            Task::SetLenAtLeast { fd, len } => Answer::Outcome(Outcome::Unit(set_len_at_least(&fd, len))),
            Task::Extents { fd, offset, len } => Answer::Outcome(Outcome::Extents(extents(&fd, offset, len))),
            Task::Size { fd } => Answer::Outcome(Outcome::Count(size_of(&fd))),
            Task::Allocated { fd } => Answer::Outcome(Outcome::Count(allocated(&fd))),
            Task::Modified { fd } => Answer::Outcome(Outcome::Count(modified_ns(&fd))),
            Task::Reserve { fd, step } => Answer::Outcome(Outcome::Unit(reservations::take(&fd, step))),
            Task::OpenFile { dir, name, mode } => Answer::Opened(open_file(dir.as_fd(), &name, mode)),
            Task::OpenDir { dir, name, create, owners } => Answer::Opened(
                open_folder(&*dir, &name, create).and_then(|opened| owners.check(opened, &name)),
            ),
            Task::Rename { dir, from, to } => unit(rustix::fs::renameat(&*dir, from, &*dir, to)),
            Task::Unlink { dir, name } => unit(freeing.unlink(&dir, &name)),
            Task::Link { dir, from, to_dir, to } => {
                unit(rustix::fs::linkat(&*dir, from, &*to_dir, to, AtFlags::empty()))
            }
            Task::KeepAttributes { fd, like } => unit(keep_attributes(&fd, &like)),
            Task::RemoveDir { dir, name } => unit(rustix::fs::unlinkat(&*dir, name, AtFlags::REMOVEDIR)),
            Task::SyncDir { dir } => unit(rustix::fs::fsync(&*dir)),
            Task::List { dir } => Answer::Outcome(Outcome::Names(list(&dir))),
            Task::Lock { dir, name } => Answer::Opened(open_lock(dir.as_fd(), &name)),
            Task::Space { dir } => Answer::Outcome(Outcome::Space(space(&dir, freeing))),
            Task::Zero { fd, offset, len, by_writing } => zero(fd, offset, len, by_writing),
        }
    }
}

/// Plans zeros. The query for the size can wait for a file server, so it is made on this thread.
fn zero(fd: Fd, offset: u64, len: u64, by_writing: bool) -> Answer {
    match size_of(&fd) {
        Ok(size) if size > offset => Answer::Zero { fd, offset, end: (offset + len).min(size), by_writing },
        size => Answer::Outcome(Outcome::Unit(size.map(drop))),
    }
}

fn unit(result: rustix::io::Result<()>) -> Answer {
    Answer::Outcome(Outcome::Unit(result.map_err(Errno::from)))
}

fn set_len_at_least(fd: &Fd, len: u64) -> Result<(), Errno> {
    if size_of(fd)? < len {
        rustix::fs::ftruncate(&**fd, len)?;
    }
    Ok(())
}

/// Changes only attributes that differ: an unprivileged owner may set what it has already.
fn keep_attributes(fd: &Fd, like: &Fd) -> rustix::io::Result<()> {
    let (own, wanted) = (rustix::fs::fstat(&**fd)?, rustix::fs::fstat(&**like)?);
    let user = (own.st_uid != wanted.st_uid).then(|| Uid::from_raw(wanted.st_uid));
    let group = (own.st_gid != wanted.st_gid).then(|| Gid::from_raw(wanted.st_gid));
    if user.is_some() || group.is_some() {
        rustix::fs::fchown(&**fd, user, group)?;
    }
    // Set after the owner, because a change of the owner clears bits of the mode.
    rustix::fs::fchmod(&**fd, Mode::from_raw_mode(wanted.st_mode))
}

fn allocated(fd: &Fd) -> Result<u64, Errno> {
    Ok(freeing::allocated(&rustix::fs::fstat(&**fd)?))
}

fn modified_ns(fd: &Fd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(&**fd)?;
    // Times before 1970 count as 1970.
    Ok(u64::try_from(stat.st_mtime)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(stat.st_mtime_nsec))
}

/// Lists ranges of data. Space that is reserved but never written counts as a hole, because it reads as zeros.
fn extents(fd: &Fd, offset: u64, len: u64) -> Result<Vec<FileExtent>, Errno> {
    let end = offset.saturating_add(len).min(size_of(fd)?);
    let mut found = Vec::new();
    let mut at = offset;
    while at < end {
        let start = match rustix::fs::seek(&**fd, SeekFrom::Data(at)) {
            Ok(start) if start < end => start,
            // ENXIO: no data up to the end of the file.
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
                // A file system that does not report holes has data everywhere.
                found.push(FileExtent { offset: at, len: end - at });
                break;
            }
            Err(e) => return Err(e.into()),
        };
        let stop = rustix::fs::seek(&**fd, SeekFrom::Hole(start))?.min(end);
        if stop <= start {
            break;
        }
        found.push(FileExtent { offset: start, len: stop - start });
        at = stop;
    }
    Ok(found)
}

/// Lists names. Names that are not UTF-8 are omitted, because no operation here could name them.
fn list(dir: &Fd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&**dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match rustix::fs::statat(&**dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                // Removed since it was listed.
                Err(rustix::io::Errno::NOENT) => continue,
                Err(e) => return Err(e.into()),
            },
            kind => kind,
        };
        let slash = if kind == FileType::Directory { "/" } else { "" };
        names.push(format!("{name}{slash}"));
    }
    names.sort();
    Ok(names)
}

/// Returns the space. Free is what a process may use that has no access to root's reserve.
fn space(dir: &Fd, freeing: &Freeing) -> Result<Space, Errno> {
    // Read first: a file that is freed in between is counted as free, or not at all.
    let freeing_bytes = freeing.bytes();
    let stat = rustix::fs::fstatvfs(&**dir)?;
    Ok(Space {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        freeing_bytes,
    })
}
