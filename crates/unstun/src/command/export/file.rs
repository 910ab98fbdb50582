//! The file that an export writes: under another name until it is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Suffix of the name until the file is whole.
const SUFFIX: &str = ".unstun-part";
/// Suffix of the record of an export that can be continued.
const RECORD_SUFFIX: &str = ".unstun-resume";
/// Only its owner may read a guest's disk.
pub(super) const MODE: u32 = 0o600;

pub(in crate::command) struct OutputFile {
    file: File,
    part: PathBuf,
    path: PathBuf,
    /// End of what was appended.
    at: u64,
    is_whole: bool,
    /// Whether an unfinished file stays.
    stays: bool,
}

/// Returns the name of a file with a suffix behind its own.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns the path of the record of an export that can be continued.
pub(super) fn record_path(path: &Path) -> PathBuf {
    beside(path, RECORD_SUFFIX)
}

/// Refuses a file that exists.
pub(in crate::command) fn refuse_existing(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) => {
            let message = format!("{} exists already; choose another name, or remove it", path.display());
            Err(Error::new(ErrorKind::Exists, message))
        }
        Err(_) => Ok(()),
    }
}

impl OutputFile {
    pub(in crate::command) fn create(path: &Path) -> Result<OutputFile> {
        refuse_existing(path)?;
        let part = beside(path, SUFFIX);
        // Remains of an export that was interrupted.
        for left in [&part, &record_path(path)] {
            match fs::remove_file(left) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(left, &e)),
                _ => {}
            }
        }
        let file = File::options().read(true).write(true).create_new(true).mode(MODE).open(&part);
        let file = file.map_err(|e| failed(&part, &e))?;
        Ok(OutputFile { file, part, path: path.to_path_buf(), at: 0, is_whole: false, stays: false })
    }

    /// Opens what an interrupted export has left of a file, or creates the file. It stays if this export does not finish it.
    pub(super) fn resume(path: &Path) -> Result<OutputFile> {
        let part = beside(path, SUFFIX);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(MODE);
        let file = options.open(&part).map_err(|e| failed(&part, &e))?;
        Ok(OutputFile { file, part, path: path.to_path_buf(), at: 0, is_whole: false, stays: true })
    }

    pub(super) fn content(&self) -> &File {
        &self.file
    }

    /// Removes what is behind `bytes`, and appends from there on.
    pub(super) fn cut(&mut self, bytes: u64) -> Result<()> {
        self.at = bytes;
        self.file.set_len(bytes).map_err(|e| failed(&self.part, &e))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the end of what was appended.
    pub(super) fn end(&self) -> u64 {
        self.at
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Leaves a hole after what was appended.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.at += bytes;
    }

    pub(super) fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| failed(&self.part, &e))
    }

    /// Gives the file its length and its name, durably.
    pub(in crate::command) fn finish(mut self) -> Result<()> {
        let done = (|| {
            self.file.set_len(self.at)?;
            self.file.flush()?;
            self.file.sync_all()?;
            rename_new(&self.part, &self.path)?;
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        })();
        done.map_err(|e| failed(&self.path, &e))?;
        self.is_whole = true;
        Ok(())
    }
}

/// Renames a file to a name that no other one has; another may have come during the export.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot tell, such as that of many a USB disk.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.symlink_metadata() {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(from, to),
        },
        renamed => Ok(renamed?),
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_whole && !self.stays {
            // What is left there has the suffix, and the next export removes it.
            let _ = fs::remove_file(&self.part);
        }
    }
}

pub(super) fn failed(path: &Path, e: &io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, format!("{}: {e}", path.display()))
}
