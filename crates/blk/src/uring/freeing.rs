//! Frees the blocks of large files on a thread beside the file system's own. Freeing can take long, and a take must not
//! wait for the removal of another VM's disk.
//!
//! The name is removed at once. The blocks are freed with the last reference to the file, which the freeing thread
//! drops. The file is not truncated in steps: another program may still read the removed file, and file systems free in
//! steps of their own.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use super::descriptor::Fd;

/// Smaller files are freed where they are removed, so that their space is available when the removal is acknowledged.
/// That takes some milliseconds on any local file system.
const APART_BYTES_MIN: u64 = 64 << 20;

enum Last {
    /// A reference to a file without a name.
    Named(OwnedFd),
    Open(Fd),
}

/// The thread that frees blocks. It is started for the first large file.
#[derive(Default)]
pub(super) struct Freeing {
    inbox: Option<Sender<(Last, u64)>>,
    bytes: Arc<AtomicU64>,
}

impl Freeing {
    /// Returns the bytes of the files that are being freed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Removes a name. The space of a large file is freed later.
    pub(super) fn unlink(&mut self, dir: &Fd, name: &str) -> rustix::io::Result<()> {
        let held = hold_large(dir, name);
        rustix::fs::unlinkat(&**dir, name, AtFlags::empty())?;
        if let Some((file, bytes)) = held {
            self.drop_apart(Last::Named(file), bytes);
        }
        Ok(())
    }

    /// Closes a descriptor that may be the last reference to a large file without a name.
    pub(super) fn close(&mut self, fd: Fd) {
        match rustix::fs::fstat(&*fd) {
            Ok(stat) if stat.st_nlink == 0 && is_large(&stat) => {
                let bytes = allocated(&stat);
                self.drop_apart(Last::Open(fd), bytes);
            }
            _ => drop(fd),
        }
    }

    fn drop_apart(&mut self, last: Last, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let inbox = self.inbox.take().or_else(|| start(self.bytes.clone()));
        // Without a thread the file is closed, and so freed, here.
        if let Some(inbox) = inbox
            && inbox.send((last, bytes)).is_ok()
        {
            self.inbox = Some(inbox);
            return;
        }
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// Starts the thread. It is never joined: the kernel does the rest of its work when the process ends.
fn start(bytes: Arc<AtomicU64>) -> Option<Sender<(Last, u64)>> {
    let (inbox, files) = channel::<(Last, u64)>();
    let work = move || {
        for (last, freed) in files {
            match last {
                Last::Named(fd) => drop(fd),
                Last::Open(fd) => drop(fd),
            }
            bytes.fetch_sub(freed, Ordering::SeqCst);
        }
    };
    std::thread::Builder::new().name("unstun-freeing".to_string()).spawn(work).ok()?;
    Some(inbox)
}

/// Opens a reference to a large file whose last name is about to be removed.
fn hold_large(dir: &Fd, name: &str) -> Option<(OwnedFd, u64)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&**dir, name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (stat.st_nlink == 1 && is_large(&stat)).then(|| (file, allocated(&stat)))
}

fn is_large(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && allocated(stat) >= APART_BYTES_MIN
}

/// Returns the allocated bytes. `st_blocks` counts units of 512 bytes, whatever the file system's block is (stat(2)).
pub(super) fn allocated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_loses_its_name_at_once_and_its_blocks_later() {
        let folder = std::env::temp_dir().join(format!("unstun-freeing-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let dir: Fd = Arc::new(std::fs::File::open(&folder).unwrap().into());
        let mut freeing = Freeing::default();
        for (name, bytes) in [("small", 4096), ("large", APART_BYTES_MIN)] {
            let file = std::fs::File::create(folder.join(name)).unwrap();
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
        }
        freeing.unlink(&dir, "small").unwrap();
        assert!(freeing.inbox.is_none());
        assert!(hold_large(&dir, "large").is_some());
        freeing.unlink(&dir, "large").unwrap();
        assert!(freeing.inbox.is_some());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(freeing.unlink(&dir, "large"), Err(rustix::io::Errno::NOENT));
        while freeing.bytes() > 0 {
            std::thread::yield_now();
        }
        std::fs::remove_dir(&folder).unwrap();
    }
}
