//! The files thread: calls that may block in the kernel for milliseconds and have no ring operation, or none on the
//! kernels we support. One thread, first come first served, so their order is the order of submission.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, FileType, Gid, Mode, SeekFrom, Uid};

use super::boot_ns;
use super::open::{Opened, open_file, open_folder, open_lock, size_of};
use super::wake::EventWaker;
use super::work::Fd;
use crate::error::Errno;
use crate::fence::Deadline;
use crate::reactor::{FileExtent, OpenMode, Outcome, Space, Waker};

pub(super) enum Task {
    SetLen { fd: Fd, len: u64 },
    SetLenAtLeast { fd: Fd, len: u64 },
    Extents { fd: Fd, offset: u64, len: u64 },
    Size { fd: Fd },
    Allocated { fd: Fd },
    OpenFile { dir: Fd, name: String, mode: OpenMode },
    OpenDir { dir: Fd, name: String, create: bool },
    Rename { dir: Fd, from: String, to: String },
    Unlink { dir: Fd, name: String },
    Link { dir: Fd, from: String, to_dir: Fd, to: String },
    KeepAttributes { fd: Fd, like: Fd },
    RemoveDir { dir: Fd, name: String },
    SyncDir { dir: Fd },
    List { dir: Fd },
    Lock { dir: Fd, name: String },
    Space { dir: Fd },
}

pub(super) enum Answer {
    Outcome(Outcome),
    /// Becomes a handle on the core, whose table it goes into.
    Opened(Result<Opened, Errno>),
}

enum Job {
    /// The operation's index, what to do, and when it may not begin any more.
    Do(u32, Task, Option<Arc<Deadline>>),
    /// The last close of a file can free all its blocks, which takes as long as it takes.
    Close(Fd),
}

pub(super) struct FilesThread {
    /// Absent only while dropping.
    inbox: Option<Sender<Job>>,
    outbox: Arc<Mutex<Vec<(u32, Answer)>>>,
    thread: Option<JoinHandle<()>>,
}

impl FilesThread {
    pub(super) fn start(waker: Arc<EventWaker>) -> std::io::Result<FilesThread> {
        let (inbox, jobs) = channel();
        let outbox = Arc::<Mutex<Vec<_>>>::default();
        let answers = outbox.clone();
        let thread = std::thread::Builder::new()
            .name("unstun-files".to_string())
            .spawn(move || work_off(&jobs, &answers, &waker))?;
        Ok(FilesThread { inbox: Some(inbox), outbox, thread: Some(thread) })
    }

    fn send(&self, job: Job) {
        let inbox = self.inbox.as_ref().expect("open until dropped");
        assert!(inbox.send(job).is_ok(), "the files thread ended early");
    }

    pub(super) fn submit(&self, index: u32, task: Task, deadline: Option<Arc<Deadline>>) {
        self.send(Job::Do(index, task, deadline));
    }

    pub(super) fn close(&self, fd: Fd) {
        self.send(Job::Close(fd));
    }

    pub(super) fn take_answers(&self) -> Vec<(u32, Answer)> {
        std::mem::take(&mut *self.outbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for FilesThread {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // A panic over there has been printed; there is nothing to add while dropping.
            let _ = thread.join();
        }
    }
}

fn work_off(jobs: &Receiver<Job>, answers: &Mutex<Vec<(u32, Answer)>>, waker: &EventWaker) {
    for job in jobs {
        match job {
            Job::Close(fd) => drop(fd),
            Job::Do(index, task, deadline) => {
                let late = deadline.is_some_and(|deadline| !deadline.is_open(boot_ns()));
                let answer = if late { task.refused() } else { task.perform() };
                answers.lock().unwrap_or_else(PoisonError::into_inner).push((index, answer));
                waker.wake();
            }
        }
    }
}

impl Task {
    /// The answer of a task on a file behind a closed fence.
    fn refused(self) -> Answer {
        Answer::Outcome(match self {
            Task::Extents { .. } => Outcome::Extents(Err(Errno::FENCED)),
            Task::Size { .. } | Task::Allocated { .. } => Outcome::Count(Err(Errno::FENCED)),
            _ => Outcome::Unit(Err(Errno::FENCED)),
        })
    }

    fn perform(self) -> Answer {
        match self {
            Task::SetLen { fd, len } => unit(rustix::fs::ftruncate(&*fd, len)),
            Task::SetLenAtLeast { fd, len } => Answer::Outcome(Outcome::Unit(set_len_at_least(&fd, len))),
            Task::Extents { fd, offset, len } => Answer::Outcome(Outcome::Extents(extents(&fd, offset, len))),
            Task::Size { fd } => Answer::Outcome(Outcome::Count(size_of(&fd))),
            Task::Allocated { fd } => Answer::Outcome(Outcome::Count(allocated(&fd))),
            Task::OpenFile { dir, name, mode } => Answer::Opened(open_file(dir.as_fd(), &name, mode)),
            Task::OpenDir { dir, name, create } => Answer::Opened(open_folder(&*dir, &name, create)),
            Task::Rename { dir, from, to } => unit(rustix::fs::renameat(&*dir, from, &*dir, to)),
            Task::Unlink { dir, name } => unit(rustix::fs::unlinkat(&*dir, name, AtFlags::empty())),
            Task::Link { dir, from, to_dir, to } => {
                unit(rustix::fs::linkat(&*dir, from, &*to_dir, to, AtFlags::empty()))
            }
            Task::KeepAttributes { fd, like } => unit(keep_attributes(&fd, &like)),
            Task::RemoveDir { dir, name } => unit(rustix::fs::unlinkat(&*dir, name, AtFlags::REMOVEDIR)),
            Task::SyncDir { dir } => unit(rustix::fs::fsync(&*dir)),
            Task::List { dir } => Answer::Outcome(Outcome::Names(list(&dir))),
            Task::Lock { dir, name } => Answer::Opened(open_lock(dir.as_fd(), &name)),
            Task::Space { dir } => Answer::Outcome(Outcome::Space(space(&dir))),
        }
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

/// Only what differs is changed: an unprivileged owner may keep what is its own already.
fn keep_attributes(fd: &Fd, like: &Fd) -> rustix::io::Result<()> {
    let (own, wanted) = (rustix::fs::fstat(&**fd)?, rustix::fs::fstat(&**like)?);
    let user = (own.st_uid != wanted.st_uid).then(|| Uid::from_raw(wanted.st_uid));
    let group = (own.st_gid != wanted.st_gid).then(|| Gid::from_raw(wanted.st_gid));
    if user.is_some() || group.is_some() {
        rustix::fs::fchown(&**fd, user, group)?;
    }
    // After the owner, whose change takes bits away.
    rustix::fs::fchmod(&**fd, Mode::from_raw_mode(wanted.st_mode))
}

/// `st_blocks` counts units of 512 bytes, whatever the file system's block is (stat(2)).
fn allocated(fd: &Fd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(&**fd)?;
    Ok(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512))
}

/// Walks data and holes. Space that is reserved but never written counts as a hole: it reads as zeros.
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
                // A file system that cannot tell holds data everywhere.
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

/// Names that are not UTF-8 are left out: no operation here could name them.
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
                // Gone since it was listed.
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

/// Free space is what a process without the reserve of root may use.
fn space(dir: &Fd) -> Result<Space, Errno> {
    let stat = rustix::fs::fstatvfs(&**dir)?;
    Ok(Space {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}
