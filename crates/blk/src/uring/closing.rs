//! Ends of what a peer has passed: on another thread, because they may take as long as the peer decides.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;

use super::blocking::Blocking;

/// Target of the link of an eventfd in `/proc/self/fd`.
const EVENT_LINK: &str = "anon_inode:[eventfd]";

/// Calls that close descriptors and remove mappings, of all cores.
static CLOSING: LazyLock<Blocking> = LazyLock::new(Blocking::default);

/// Runs a call that closes a descriptor or removes a mapping. Without a thread it waits for the next such call.
pub(crate) fn close_elsewhere(close: impl FnOnce() + Send + 'static) {
    CLOSING.start(Box::new(close));
}

/// Returns whether a descriptor is an eventfd.
pub(crate) fn is_event(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|target| target.as_os_str() == EVENT_LINK)
}
