//! The handle table: descriptors by index. Handles of one file that is only read share a descriptor: 70 clones of a chain of
//! 127 layers take 127 descriptors, not 9,000. Transfers name their offsets, so nothing of a descriptor's state is anybody's.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::files::Device;
use super::open::{Identity, Kind};
use super::work::Fd;
use crate::error::Errno;
use crate::fence::Deadline;
use crate::reactor::Handle;

pub(super) struct Entry {
    pub fd: Fd,
    pub kind: Kind,
    /// Whose files thread has its operations; sockets have none.
    pub device: Option<Device>,
    shared: Option<Identity>,
    /// When operations on it may not start any more.
    pub deadline: Option<Arc<Deadline>>,
}

#[derive(Default)]
pub(super) struct Handles {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Descriptors of files that are only read. An entry is of the file that is open: while it is, no other has its inode.
    shared: BTreeMap<Identity, Weak<OwnedFd>>,
}

impl Handles {
    /// `shared`: another handle of that file may be there, whose descriptor is used then, and this one closed.
    pub(super) fn insert(
        &mut self,
        fd: OwnedFd,
        kind: Kind,
        device: Option<Device>,
        shared: Option<Identity>,
    ) -> Handle {
        let there = shared.and_then(|identity| self.shared.get(&identity)?.upgrade());
        let fd = there.unwrap_or_else(|| Fd::new(fd));
        if let Some(identity) = shared {
            self.shared.insert(identity, Arc::downgrade(&fd));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 descriptors")
        });
        self.entries[index as usize] = Some(Entry { fd, kind, device, shared, deadline: None });
        Handle(index)
    }

    /// EBADF for a handle that was closed or never given out.
    pub(super) fn get(&self, handle: Handle) -> Result<&Entry, Errno> {
        let entry = self.entries.get(handle.0 as usize).and_then(Option::as_ref);
        entry.ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    /// A handle that was closed has no operations to hold back.
    pub(super) fn set_deadline(&mut self, handle: Handle, deadline: Arc<Deadline>) {
        if let Some(Some(entry)) = self.entries.get_mut(handle.0 as usize) {
            entry.deadline = Some(deadline);
        }
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Option<Entry> {
        let entry = self.entries.get_mut(handle.0 as usize)?.take()?;
        self.free.push(handle.0);
        // Operations under way may still hold it: then a file that is opened again gets a descriptor of its own.
        let is_last =
            |identity: &Identity| Arc::strong_count(&entry.fd) <= 1 && self.shared.contains_key(identity);
        if let Some(identity) = entry.shared.filter(is_last) {
            self.shared.remove(&identity);
        }
        Some(entry)
    }

    /// Everything still open.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().flatten()
    }
}
