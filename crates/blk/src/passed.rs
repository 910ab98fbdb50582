//! Descriptors that another process has passed over a socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A descriptor that a peer has passed: memory, an event or a socket. It is closed with its last clone, and after the
/// operations that use it.
#[derive(Debug, Clone)]
pub struct Descriptor(pub(crate) Arc<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor(Arc::new(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
