//! The io_uring reactor against the real kernel.

mod conformance;
mod sectors;
mod sockets;
mod support;
mod uring;
