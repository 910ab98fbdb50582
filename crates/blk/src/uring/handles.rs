//! The handle table: descriptors by index.

use std::os::fd::OwnedFd;

use super::open::Kind;
use super::work::Fd;
use crate::error::Errno;
use crate::reactor::Handle;

pub(super) struct Entry {
    pub fd: Fd,
    pub kind: Kind,
}

#[derive(Default)]
pub(super) struct Handles {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Handles {
    pub(super) fn insert(&mut self, fd: OwnedFd, kind: Kind) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 descriptors")
        });
        self.entries[index as usize] = Some(Entry { fd: Fd::new(fd), kind });
        Handle(index)
    }

    /// EBADF for a handle that was closed or never given out.
    pub(super) fn get(&self, handle: Handle) -> Result<&Entry, Errno> {
        let entry = self.entries.get(handle.0 as usize).and_then(Option::as_ref);
        entry.ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Option<Entry> {
        let entry = self.entries.get_mut(handle.0 as usize)?.take()?;
        self.free.push(handle.0);
        Some(entry)
    }

    /// Everything still open.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry> {
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().flatten()
    }
}
