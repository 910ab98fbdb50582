//! The folder of reports: lists its files, and opens one of them and nothing else.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Error, ErrorKind, Result};
use axum::body::Bytes;
use futures_util::{Stream, stream};
use jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of entries of the folder that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// Maximum number of reports that are listed.
pub(super) const LISTED_MAX: usize = 200;
/// Maximum number of threads that read the folder. A file system that hangs keeps no more of them.
const READERS_MAX: usize = 4;
/// Time after which a request is answered without the folder.
const WAIT_MAX: Duration = Duration::from_secs(10);
const PART_BYTES: u64 = 256 << 10;

/// Kinds of reports, by the end of the file's name. Nothing else is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Page,
    Workbook,
}

/// A report in the folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub name: String,
    pub size_bytes: u64,
    pub changed: Timestamp,
}

pub(super) struct Listed {
    /// The newest first.
    pub reports: Vec<Report>,
    /// Number of reports that the list leaves out; entries beyond the maximum are not counted.
    pub more: usize,
}

/// A report that is open.
pub(super) struct Opened {
    pub kind: Kind,
    pub size_bytes: u64,
    file: File,
}

/// The folder whose reports the console shows.
#[derive(Clone)]
pub(crate) struct ReportFolder {
    path: PathBuf,
    readers: Arc<Semaphore>,
}

impl Kind {
    /// Returns the kind of a file; None for a name that is no report's. A name is one of the folder itself: it has no slash.
    pub(super) fn of(name: &str) -> Option<Kind> {
        let (stem, end) = name.rsplit_once('.')?;
        match end {
            _ if stem.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) => None,
            "html" => Some(Kind::Page),
            "xlsx" => Some(Kind::Workbook),
            _ => None,
        }
    }
}

impl ReportFolder {
    pub(crate) fn new(path: &Path) -> ReportFolder {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        ReportFolder { path, readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn list(&self) -> Result<Listed> {
        let path = self.path.clone();
        self.read(move || list(&path)).await
    }

    pub(super) async fn open(&self, name: &str) -> Result<Opened> {
        let (path, name) = (self.path.clone(), name.to_owned());
        self.read(move || open(&path, &name)).await
    }

    /// Returns the content of a report, as many bytes as it had when it was opened.
    pub(super) fn content(&self, report: Opened) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
        let first = (self.clone(), report.file, report.size_bytes);
        stream::try_unfold(first, async |(folder, file, left)| {
            if left == 0 {
                return Ok(None);
            }
            let (file, part) = folder.read(move || next_part(file, left)).await?;
            let left = left - part.len() as u64;
            Ok(Some((part, (folder, file, left))))
        })
    }

    /// Reads on a thread that may block.
    async fn read<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let done = async {
            let turn = self.readers.clone().acquire_owned().await;
            let reading = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                work()
            });
            reading.await.map_err(|e| Error::failed(format!("reading {}: {e}", self.path.display())))?
        };
        timeout(WAIT_MAX, done).await.unwrap_or_else(|_| {
            let message = format!("{}: the folder has not answered for 10 s", self.path.display());
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let missing =
        "there is no such folder on the daemon's host; create it, and let `unstun lab report` write into it";
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|e| Error::at_path(path.display(), missing, &e.into()))
}

/// Returns a file's size and time of change; None for anything but a regular file.
fn regular(about: &Stat) -> Option<(u64, Timestamp)> {
    let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
    let changed = Timestamp::from_second(about.st_mtime).unwrap_or(Timestamp::UNIX_EPOCH);
    is_file.then_some((about.st_size.cast_unsigned(), changed))
}

fn list(path: &Path) -> Result<Listed> {
    let failed = |e: rustix::io::Errno| Error::failed(format!("{}: {e}", path.display()));
    let folder = open_folder(path)?;
    let mut reports = Vec::new();
    for entry in Dir::read_from(&folder).map_err(failed)?.take(ENTRIES_MAX) {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if Kind::of(name).is_none() {
            continue;
        }
        // A file that is gone meanwhile is left out.
        let about = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let Some((size_bytes, changed)) = about.as_ref().and_then(regular) else { continue };
        reports.push(Report { name: name.to_owned(), size_bytes, changed });
    }
    reports.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
    let more = reports.len().saturating_sub(LISTED_MAX);
    reports.truncate(LISTED_MAX);
    Ok(Listed { reports, more })
}

/// Opens a regular file of the folder itself. A symbolic link is not followed, and a pipe or a device is not opened.
fn open(path: &Path, name: &str) -> Result<Opened> {
    let none = || Error::not_found(format!("there is no report {name:?} in {}", path.display()));
    let kind = Kind::of(name).ok_or_else(none)?;
    let folder = open_folder(path)?;
    let about = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| none())?;
    regular(&about).ok_or_else(none)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&folder, name, flags, Mode::empty())
        .map_err(|e| Error::at_path(path.join(name).display(), "the report is gone", &e.into()))?;
    // Another file may have got the name meanwhile.
    let about = fstat(&file).map_err(|_| none())?;
    let (size_bytes, _) = regular(&about).ok_or_else(none)?;
    Ok(Opened { kind, size_bytes, file: file.into() })
}

fn next_part(mut file: File, left: u64) -> Result<(File, Bytes)> {
    let mut part = Vec::new();
    let read = file.by_ref().take(left.min(PART_BYTES)).read_to_end(&mut part);
    match read {
        Ok(0) => Err(Error::failed("the report became shorter while it was read")),
        Ok(_) => Ok((file, part.into())),
        Err(e) => Err(Error::failed(format!("reading the report: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_names_of_reports_in_the_folder_itself_are_served() {
        for name in ["web.html", "a b<c>'\".html", "1.xlsx", "..html.html"] {
            assert_eq!(Kind::of(name).is_some(), !name.starts_with('.'), "{name}");
        }
        for name in [
            "",
            "html",
            ".html",
            "../web.html",
            "a/web.html",
            "/etc/x.html",
            "web.htm",
            "web.html\0",
            "run.json",
            "web.HTML/",
        ] {
            assert_eq!(Kind::of(name), None, "{name}");
        }
    }

    #[test]
    fn plain_files_are_listed_newest_first_and_links_pipes_and_folders_are_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports");
        std::fs::create_dir(&path).unwrap();
        let secret = folder.path().join("secret.html");
        std::fs::write(&secret, "secret").unwrap();
        for (age, name) in
            [(3, "old.html"), (1, "new.xlsx"), (2, "a <b>.html"), (0, "run.json"), (0, ".html")]
        {
            let file = File::create(path.join(name)).unwrap();
            let time = std::time::SystemTime::now() - Duration::from_secs(age * 3600);
            file.set_modified(time).unwrap();
        }
        symlink(&secret, path.join("link.html")).unwrap();
        symlink("old.html", path.join("inside.html")).unwrap();
        std::fs::create_dir(path.join("folder.html")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path.join("pipe.html"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::write(path.join(std::ffi::OsStr::from_bytes(b"\xff.html")), "").unwrap();
        let listed = list(&path).unwrap();
        let names: Vec<_> = listed.reports.iter().map(|report| report.name.as_str()).collect();
        assert_eq!((names, listed.more), (vec!["new.xlsx", "a <b>.html", "old.html"], 0));
        assert_eq!(open(&path, "old.html").unwrap().kind, Kind::Page);
        for name in [
            "link.html",
            "inside.html",
            "folder.html",
            "pipe.html",
            "run.json",
            "../secret.html",
            "none.html",
        ] {
            let error = open(&path, name).err().expect(name);
            assert_eq!(error.kind, ErrorKind::NotFound, "{name}: {error}");
        }
        for n in 0..LISTED_MAX {
            File::create(path.join(format!("{n}.html"))).unwrap();
        }
        let listed = list(&path).unwrap();
        assert_eq!((listed.reports.len(), listed.more), (LISTED_MAX, 3));
        let error = list(&folder.path().join("none")).err().unwrap();
        assert!(error.message.contains("no such folder"), "{error}");
    }

    #[test]
    fn a_file_that_shrinks_meanwhile_is_an_error_and_not_a_short_report() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("web.html"), "12345").unwrap();
        let opened = open(folder.path(), "web.html").unwrap();
        let (file, part) = next_part(opened.file, 3).unwrap();
        assert_eq!(&part[..], b"123");
        std::fs::write(folder.path().join("web.html"), "").unwrap();
        assert!(next_part(file, 2).is_err());
    }
}
