//! The file or block device that is written.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use super::fault::failed;
use super::record::sync_folder;
use crate::sparse::runs;

/// Only its owner may read a guest's disk, even if others may read the folder.
const MODE: u32 = 0o600;
/// Zeros that are written at once where holes cannot be made.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An open file, locked against other pulls.
pub(super) struct Target {
    file: File,
    path: PathBuf,
    /// What has not been written reads as zeros.
    clear: bool,
}

/// Returns whether `path` is a block device. It has no record: its folder does not outlive the host.
pub(super) fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Checks, before anything is changed, that `path` may get a whole copy of `size_bytes`.
pub(super) fn check_replaceable(path: &Path, may_replace: bool, size_bytes: u64) -> Result<()> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, &error)),
    };
    let (kind, shown) = (found.file_type(), path.display());
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::invalid(format!("{shown}: neither a regular file nor a block device")));
    }
    if !may_replace {
        let message =
            format!("{shown} exists already; choose another name, or replace its content with --force");
        return Err(Error::new(ErrorKind::Exists, message));
    }
    let target = Target::open(path)?;
    let held_bytes = target.size_bytes()?;
    match kind.is_block_device() && held_bytes < size_bytes {
        true => Err(Error::refused(format!("{shown} has {held_bytes} bytes, and the export {size_bytes}"))),
        false => Ok(()),
    }
}

impl Target {
    /// Creates the file, or empties it if it may be replaced. A block device keeps its size.
    pub(super) fn create(path: &Path, may_replace: bool, size_bytes: u64) -> Result<Target> {
        if is_device(path) {
            return Target::open(path);
        }
        let target = match File::options().write(true).create_new(true).mode(MODE).open(path) {
            Ok(file) => Target::locked(file, path)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && may_replace => Target::open(path)?,
            Err(error) => return Err(failed(path, &error)),
        };
        let emptied = target.file.set_len(0).and_then(|()| target.file.set_len(size_bytes));
        emptied.and_then(|()| sync_folder(path)).map_err(|e| failed(path, &e))?;
        Ok(Target { clear: true, ..target })
    }

    /// Opens what exists.
    pub(super) fn open(path: &Path) -> Result<Target> {
        let mut options = File::options();
        options.write(true);
        if is_device(path) {
            // It fails if the device is mounted or otherwise in use.
            options.custom_flags(rustix::fs::OFlags::EXCL.bits() as i32);
        }
        Target::locked(options.open(path).map_err(|e| failed(path, &e))?, path)
    }

    fn locked(file: File, path: &Path) -> Result<Target> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| {
            let cause = format!("{}: another process holds it ({e}); wait for its end", path.display());
            Error::new(ErrorKind::Locked, cause)
        })?;
        Ok(Target { file, path: path.to_path_buf(), clear: false })
    }

    pub(super) fn size_bytes(&self) -> Result<u64> {
        (&self.file).seek(SeekFrom::End(0)).map_err(|e| failed(&self.path, &e))
    }

    /// Gives the file at least the size `size_bytes`.
    pub(super) fn grow(&self, size_bytes: u64) -> Result<()> {
        let held_bytes = self.size_bytes()?;
        if held_bytes >= size_bytes {
            return Ok(());
        }
        self.file.set_len(size_bytes).map_err(|e| failed(&self.path, &e))
    }

    /// Writes content, whose zeros become holes. Returns the bytes of data.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<u64> {
        let mut written = 0;
        for (run, has_data) in runs(bytes) {
            let at = offset + run.start as u64;
            if has_data {
                self.file.write_all_at(&bytes[run.clone()], at).map_err(|e| failed(&self.path, &e))?;
                written += run.len() as u64;
            } else {
                self.zero(at..at + run.len() as u64)?;
            }
        }
        Ok(written)
    }

    /// Makes a range read as zeros, as a hole where that is possible.
    pub(super) fn zero(&self, range: Range<u64>) -> Result<()> {
        if self.clear || range.is_empty() {
            return Ok(());
        }
        let punched = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, punched, range.start, range.end - range.start).is_ok() {
            return Ok(());
        }
        for at in range.clone().step_by(ZEROS.len()) {
            let len = (range.end - at).min(ZEROS.len() as u64) as usize;
            self.file.write_all_at(&ZEROS[..len], at).map_err(|e| failed(&self.path, &e))?;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| failed(&self.path, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_replace_data_and_an_existing_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let first = Target::create(&path, false, 16 << 10).unwrap();
        assert_eq!(first.write(4096, &[&[1; 4096][..], &[0; 4096], &[2; 100]].concat()).unwrap(), 4196);
        assert_eq!(Target::open(&path).err().unwrap().kind, ErrorKind::Locked);
        drop(first);
        assert_eq!(check_replaceable(&path, false, 0).unwrap_err().kind, ErrorKind::Exists);
        assert_eq!(Target::create(&path, false, 0).err().unwrap().kind, ErrorKind::Exists);
        let again = Target::open(&path).unwrap();
        again.grow(20 << 10).unwrap();
        again.write(4096, &[0; 4096]).unwrap();
        again.zero(12288..12300).unwrap();
        let content = fs::read(&path).unwrap();
        assert!(content.len() == 20 << 10 && content[..12300] == [0; 12300] && content[12300] == 2);
        drop(again);
        assert_eq!(Target::create(&path, true, 512).unwrap().size_bytes().unwrap(), 512);
        assert_eq!(check_replaceable(folder.path(), true, 0).unwrap_err().kind, ErrorKind::Invalid);
    }
}
