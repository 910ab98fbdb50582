//! Events and sockets among the descriptors that peers have passed.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{SocketType, sockopt};

use super::descriptor::Fd;
use crate::error::Errno;
use crate::passed::Descriptor;

/// Target of the link of an eventfd in `/proc/self/fd`.
const EVENT_LINK: &str = "anon_inode:[eventfd]";

/// Returns whether a descriptor is an eventfd.
pub(crate) fn is_event(descriptor: &Descriptor) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.0.as_raw_fd()));
    link.is_ok_and(|target| target.as_os_str() == EVENT_LINK)
}

/// Creates an event for a peer.
pub fn new_event() -> Result<Descriptor, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(Descriptor(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into()))
}

/// Clears the counter without blocking, whatever flags the peer has set. Another process may have cleared it before.
pub(super) fn clear(fd: &Fd) {
    let mut count = [0; 8];
    let mut vectors = [std::io::IoSliceMut::new(&mut count)];
    // The offset -1 stands for a file without positions.
    let _ = rustix::io::preadv2(fd, &mut vectors, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT);
}

/// Returns the descriptor of a passed stream socket.
pub(super) fn stream(descriptor: Descriptor) -> Result<OwnedFd, Errno> {
    match sockopt::socket_type(&*descriptor.0)? {
        SocketType::STREAM => {}
        _ => return Err(Errno::EINVAL),
    }
    std::sync::Arc::try_unwrap(descriptor.0).or_else(|shared| Ok(shared.try_clone()?))
}
