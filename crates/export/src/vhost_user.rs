//! The vhost-user front end: a guest's virtio-blk device whose rings this process reads in the guest's own memory.
//!
//! A client (QEMU, cloud-hypervisor) passes the guest's memory, and for each ring two events, over a Unix socket. From
//! then on the socket carries no data: the guest puts requests into its rings, and this process answers them there. The
//! terms are those of the vhost-user specification and of virtio 1.2, except that the process with the guest is always
//! called the client.
//!
//! `message` and `ring` decode what the client and the guest write, without I/O. `device` carries out messages, `queue`
//! has the position in one ring, `tasks` takes requests from it, and `request` executes them. Absent on purpose: packed rings, a guest-writable cache mode
//! (a daemon that restarts would not know the mode that the guest believes in), post-copy migration, big-endian guests.

mod address_space;
mod blk_request;
mod config;
mod connection;
mod device;
mod front_end;
mod inflight;
mod message;
mod observer;
pub mod protocol;
mod queue;
pub mod replay;
mod request;
mod ring;
mod serve;
mod session;
mod tasks;

pub use front_end::{ConnectionElsewhere, FrontEnd};
pub use observer::Observer;
pub use serve::{Serving, serve};
