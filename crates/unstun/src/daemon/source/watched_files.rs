//! The files of an image: locked against QEMU's writers, and compared with what they were when the image was opened.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use blk::sync::TaskMutex;
use blk::{Env, File};
use futures_util::future::try_join_all;
use sha2::{Digest, Sha256};

use crate::daemon::source::read_lock::ReadLock;
use crate::hex::hex;

/// Time for which a file must not have changed before its time is recorded: file systems round times to ticks of up to
/// 10 ms, and a second change within a tick would not show.
const UNCHANGED_NS: u64 = 100_000_000;
/// Looks at a file until it must have been unchanged for `UNCHANGED_NS`.
const LOOKS_MAX: usize = 20;
/// Bytes of the hash that are recorded.
const FINGERPRINT_BYTES: usize = 16;

#[derive(Default)]
pub(super) struct WatchedFiles {
    files: Vec<Stamped>,
    _locks: Vec<ReadLock>,
    /// Number of the last look at the files that has begun, and of the last one that found no change.
    begun: Cell<u64>,
    unchanged: Cell<u64>,
    turn: TaskMutex,
}

/// A file, with what shows a change of it.
struct Stamped {
    file: File,
    size_bytes: u64,
    modified_ns: u64,
}

impl WatchedFiles {
    /// Locks files that were opened by absolute paths, and notes their sizes and times. What is read of them for the image is
    /// read after this, so that no change goes unseen.
    ///
    /// # Errors
    /// `Locked`: a program writes one of them.
    pub(super) async fn over(env: &Env, files: Vec<File>) -> Result<WatchedFiles> {
        let paths: Vec<PathBuf> = files.iter().map(|file| PathBuf::from(file.name())).collect();
        let take = move || paths.iter().map(|path| ReadLock::take(path)).collect::<Result<Vec<_>>>();
        let locks = env.blocking(take).await?;
        let files = try_join_all(files.into_iter().map(|file| Stamped::of(env, file))).await?;
        Ok(WatchedFiles { files, _locks: locks, ..WatchedFiles::default() })
    }

    /// Returns whether the file is one of these, and no other one of its name.
    pub(super) fn has(&self, file: &File) -> bool {
        let is_it = |own: &File| own.name() == file.name() && own.limits().inode == file.limits().inode;
        self.files.iter().any(|own| is_it(&own.file))
    }

    /// Returns the identity of the files: names, sizes and times. None where there are none.
    pub(super) fn fingerprint(&self) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for Stamped { file, size_bytes, modified_ns } in &self.files {
            let name = Path::new(file.name()).file_name().unwrap_or_default().to_string_lossy();
            hash.update(format!("{name} {size_bytes} {modified_ns}\n"));
        }
        Some(hex(&hash.finalize()[..FINGERPRINT_BYTES]))
    }

    /// Returns the path of a file that was removed or replaced: it can be read as long as it stays open.
    pub(super) async fn replaced(&self, env: &Env) -> Option<String> {
        let of = |stamped: &Stamped| (PathBuf::from(stamped.file.name()), stamped.file.limits().inode);
        let files: Vec<_> = self.files.iter().map(of).collect();
        env.blocking(move || replaced(&files)).await
    }

    /// Fails if a file has changed since it was noted: what a read that has ended returned may be the new content. Calls
    /// that arrive during a look share the next one.
    pub(super) async fn verify(&self) -> blk::Result<()> {
        let needed = self.begun.get() + 1;
        let _turn = self.turn.lock().await;
        if self.unchanged.get() >= needed {
            return Ok(());
        }
        let number = self.begun.get() + 1;
        self.begun.set(number);
        try_join_all(self.files.iter().map(Stamped::verify)).await?;
        self.unchanged.set(number);
        Ok(())
    }
}

/// Returns the first of the files whose path leads to another file by now, or to none.
fn replaced(files: &[(PathBuf, u64)]) -> Option<String> {
    let is_there = |path: &PathBuf, inode: u64| path.metadata().is_ok_and(|found| found.ino() == inode);
    let gone = files.iter().find(|(path, inode)| !is_there(path, *inode));
    gone.map(|(path, _)| path.display().to_string())
}

impl Stamped {
    /// Returns the file with its size and time, once it has been unchanged for a while.
    async fn of(env: &Env, file: File) -> Result<Stamped> {
        for _ in 0..LOOKS_MAX {
            let (size_bytes, modified_ns) = (file.size().await?, file.modified_ns().await?);
            let now_ns = u64::try_from(env.unix_us()).unwrap_or(0).saturating_mul(1000);
            // A time in the future is another clock's.
            if now_ns.saturating_sub(modified_ns) >= UNCHANGED_NS || modified_ns > now_ns {
                return Ok(Stamped { file, size_bytes, modified_ns });
            }
            env.sleep_us(UNCHANGED_NS / 1000).await;
        }
        let cause = "a program is writing this file; stop it, or make the disk from a copy of the file";
        Err(Error::new(ErrorKind::Locked, format!("{}: {cause}", file.name())))
    }

    async fn verify(&self) -> blk::Result<()> {
        let (found, expected) = (self.file.modified_ns().await?, self.modified_ns);
        if found == expected {
            return Ok(());
        }
        let cause = "this file was changed while it is below a disk, so its content may be another; restore it with its time, \
                     or restore the disk from a backup";
        Err(blk::Error::damaged(self.file.name(), cause))
    }
}
