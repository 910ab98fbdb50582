//! The handle table: descriptors by index. Handles of one file that is only read, or of one folder, share a descriptor:
//! 70 clones of a chain of 127 layers take 127 descriptors instead of 9,000. Transfers name their offsets, so a shared
//! descriptor has no state of one user.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::descriptor::{Device, Fd, Identity};
use super::open::Kind;
use super::owners::Owners;
use crate::error::Errno;
use crate::fence::Deadline;
use crate::rbd::Image;
use crate::reactor::Handle;

pub(super) struct Entry {
    pub fd: Fd,
    pub kind: Kind,
    /// The file system whose files thread executes its operations; None for sockets.
    pub device: Option<Device>,
    shared: Option<Identity>,
    /// Deadline for the start of its operations.
    pub deadline: Option<Arc<Deadline>>,
}

impl Entry {
    /// Returns whether this is a file, a folder or a lock.
    fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File(_) | Kind::Image(_) | Kind::Plain | Kind::ServerLock)
    }
}

/// A descriptor of a file that is only read.
struct Shared {
    fd: Weak<OwnedFd>,
    /// Number of handles that use it. Operations under way may use it for longer.
    handles: u32,
}

#[derive(Default)]
pub(super) struct Handles {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Descriptors of files that are only read. While a file is open, no other file has its inode.
    shared: BTreeMap<Identity, Shared>,
    /// Number of descriptors of files, folders and locks. Several cores of a process may share the count.
    open_files: Arc<AtomicU64>,
    pub(super) owners: Owners,
}

impl Handles {
    /// Adds a handle. With `shared`, the descriptor of an existing handle of that file is used, and this one is closed.
    pub(super) fn insert(
        &mut self,
        fd: OwnedFd,
        kind: Kind,
        device: Option<Device>,
        shared: Option<Identity>,
    ) -> Handle {
        let (fd, is_first) = self.share(fd, shared);
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 descriptors")
        });
        let entry = Entry { fd, kind, device, shared, deadline: None };
        self.open_files.fetch_add(u64::from(is_first && entry.is_file()), Ordering::Relaxed);
        self.entries[index as usize] = Some(entry);
        Handle(index)
    }

    /// Returns the descriptor for one more handle, and whether no other handle uses it.
    fn share(&mut self, fd: OwnedFd, identity: Option<Identity>) -> (Fd, bool) {
        let Some(identity) = identity else { return (Fd::new(fd), true) };
        let known = self.shared.get(&identity).and_then(|known| Some((known.fd.upgrade()?, known.handles)));
        let (fd, handles) = known.unwrap_or_else(|| (Fd::new(fd), 0));
        self.shared.insert(identity, Shared { fd: Arc::downgrade(&fd), handles: handles + 1 });
        (fd, handles == 0)
    }

    pub(super) fn trust_owner(&mut self, folder: Handle) -> Result<(), Errno> {
        let fd = self.get(folder)?.fd.clone();
        self.owners.trust_owner_of(&*fd)
    }

    pub(super) fn open_files(&self) -> u64 {
        self.open_files.load(Ordering::Relaxed)
    }

    /// Counts in `open_files` from now on.
    pub(super) fn count_files_in(&mut self, open_files: Arc<AtomicU64>) {
        open_files.fetch_add(self.open_files.load(Ordering::Relaxed), Ordering::Relaxed);
        self.open_files = open_files;
    }

    /// Returns the entry of a handle; EBADF if it was closed or never existed.
    pub(super) fn get(&self, handle: Handle) -> Result<&Entry, Errno> {
        let entry = self.entries.get(handle.0 as usize).and_then(Option::as_ref);
        entry.ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    /// Returns the image of a handle that is one of RBD.
    pub(super) fn image(&self, handle: Handle) -> Option<Arc<Image>> {
        match &self.get(handle).ok()?.kind {
            Kind::Image(image) => Some(image.clone()),
            _ => None,
        }
    }

    /// Sets the deadline of a handle. A closed handle has no operations to prevent.
    pub(super) fn set_deadline(&mut self, handle: Handle, deadline: Arc<Deadline>) {
        if let Some(Some(entry)) = self.entries.get_mut(handle.0 as usize) {
            entry.deadline = Some(deadline);
        }
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Option<Entry> {
        let entry = self.entries.get_mut(handle.0 as usize)?.take()?;
        self.free.push(handle.0);
        let is_last = entry.shared.is_none_or(|identity| self.unshare(identity, &entry.fd));
        self.open_files.fetch_sub(u64::from(is_last && entry.is_file()), Ordering::Relaxed);
        Some(entry)
    }

    /// Removes a handle of a shared descriptor. Returns whether it was the last one.
    fn unshare(&mut self, identity: Identity, fd: &Fd) -> bool {
        let Some(known) = self.shared.get_mut(&identity) else { return true };
        known.handles -= 1;
        let is_last = known.handles == 0;
        // Operations under way may still use it: a file that is opened again meanwhile gets the same descriptor.
        if is_last && Arc::strong_count(fd) <= 1 {
            self.shared.remove(&identity);
        }
        is_last
    }

    /// Removes and returns all open entries.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.free.clear();
        // A count that other cores share is not used any more once one of them ends.
        std::mem::take(&mut self.entries).into_iter().flatten()
    }
}
