//! Copies that share their blocks with the original (XFS, btrfs); the file system copies a block when it is written.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use blk::{Errno, Error, ErrorKind, Result};

use super::operations::{OperationState, Operations, SnapshotDisk};
use super::program;
use crate::subject::CommitEnd;

/// The file system copies its list of extents, which grows with fragmentation.
const COPY_LIMIT: Duration = Duration::from_secs(600);

/// A disk that is one file. Its snapshots are files beside it; a commit removes one of them.
pub(super) struct Reflinks {
    pub disk: PathBuf,
}

impl Reflinks {
    /// Checks that the file system can share blocks. Errors: `Unsupported`, with a remedy.
    pub(super) fn probe(folder: &Path) -> Result<()> {
        let original = folder.join("reflink-probe");
        let copy = folder.join("reflink-probe-copy");
        let place = folder.display().to_string();
        std::fs::write(&original, [0; 4096]).map_err(|e| Errno::from(e).at(&place, "writing a probe"))?;
        let copied = reflink(&original, &copy);
        for file in [&original, &copy] {
            // A failed copy left no file.
            let _ = std::fs::remove_file(file);
        }
        copied.map_err(|error| {
            let advice = "a file system with reflinks is needed (XFS, btrfs)";
            Error::new(ErrorKind::Unsupported, place, format!("{advice}: {}", error.cause))
        })
    }

    fn copy(&self, name: &str) -> PathBuf {
        self.disk.with_extension(name)
    }
}

fn reflink(original: &Path, copy: &Path) -> Result<()> {
    program::run(Command::new("cp").arg("--reflink=always").args([original, copy]), COPY_LIMIT).map(drop)
}

impl Operations for Reflinks {
    fn take(&mut self, name: &str, _: &OperationState) -> Result<()> {
        reflink(&self.disk, &self.copy(name))
    }

    fn commit(&mut self, name: &str, _: &OperationState) -> Result<CommitEnd> {
        let copy = self.copy(name);
        std::fs::remove_file(&copy)
            .map_err(|e| Errno::from(e).at(copy.display().to_string(), "removing the copy"))?;
        Ok(CommitEnd::Done)
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>> {
        Ok(vec![SnapshotDisk::File(self.copy(name))])
    }

    fn close(&mut self) -> Result<()> {
        match std::fs::remove_file(&self.disk) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Errno::from(e).at(self.disk.display().to_string(), "removing the disk"))
            }
            _ => Ok(()),
        }
    }
}
