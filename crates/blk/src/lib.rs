//! The base crate: contracts, the executor, and its io_uring reactor. It contains no policy.
//!
//! Absent on purpose: any policy, any format, snapshots. All `unsafe` code of the data plane is in `uring`, and in `rbd`, the
//! binding to Ceph's libraries.

#![warn(missing_docs)]

pub mod budget;
pub mod buf;
mod deadline;
pub mod dir;
mod error;
pub mod event;
pub mod exec;
pub mod fence;
pub mod file;
pub mod layer;
pub mod mailbox;
pub mod manifest;
pub mod memory;
pub mod meter;
mod offload;
mod opening;
pub mod passed;
mod peer;
pub mod rbd;
pub mod reactor;
mod reservation;
pub mod socket;
pub mod sync;
mod unflushed;
pub mod uri;
pub mod uring;
pub mod volume;

pub use buf::{Buf, Slice};
pub use dir::Dir;
pub use error::{Errno, Error, ErrorKind, Result};
pub use exec::{Env, Executor, Local};
pub use fence::Fence;
pub use file::File;
pub use opening::SharedFile;

/// The unit of every on-disk field and every guest address: 512 bytes, whatever the device's block is.
pub const SECTOR: u64 = 512;
