//! Descriptors that another process has passed over a socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::uring::closing::{close_elsewhere, is_event};

/// A descriptor that a peer has passed: memory, an event or a socket. It is closed with its last clone, and after the
/// operations that use it.
#[derive(Debug, Clone)]
pub struct Descriptor(pub(crate) Arc<PassedFd>);

/// The descriptor itself. The peer decides what it is: the close of a file may wait for a server, and the last close of
/// memory frees all of it. It is therefore closed on another thread. Only the close of an event is always short.
#[derive(Debug)]
pub(crate) struct PassedFd(Option<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor(Arc::new(PassedFd(Some(fd))))
    }
}

impl Descriptor {
    /// Returns a descriptor of this process's own, which is a duplicate if there are other clones.
    pub(crate) fn into_fd(self) -> std::io::Result<OwnedFd> {
        match Arc::try_unwrap(self.0) {
            Ok(mut passed) => Ok(passed.0.take().expect("present until it is dropped")),
            Err(shared) => shared.as_fd().try_clone_to_owned(),
        }
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("present until it is dropped").as_fd()
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for PassedFd {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else { return };
        match is_event(fd.as_fd()) {
            true => drop(fd),
            false => close_elsewhere(move || drop(fd)),
        }
    }
}
