//! Events and sockets among the descriptors that peers have passed.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::error::Errno;
use crate::passed::Descriptor;

/// Creates an event for a peer.
pub fn new_event() -> Result<Descriptor, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into())
}

/// Clears the counter without blocking, whatever flags the peer has set. Another process may have cleared it before.
pub(super) fn clear(fd: impl AsFd) {
    let mut count = [0; 8];
    let mut vectors = [std::io::IoSliceMut::new(&mut count)];
    // The offset -1 stands for a file without positions.
    let _ = rustix::io::preadv2(fd, &mut vectors, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT);
}

/// Returns the descriptor of a passed Unix stream socket. Sockets of other families are refused: the close of one that
/// lingers waits for its peer.
pub(super) fn stream(descriptor: Descriptor) -> Result<OwnedFd, Errno> {
    let is_stream = sockopt::socket_type(&descriptor)? == SocketType::STREAM;
    match is_stream && sockopt::socket_domain(&descriptor)? == AddressFamily::UNIX {
        true => Ok(descriptor.into_fd()?),
        false => Err(Errno::EINVAL),
    }
}
