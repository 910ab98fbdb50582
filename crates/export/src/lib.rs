//! Front ends: protocols by which clients reach a volume; and the client of one of them, NBD, which reaches the volumes
//! of other servers.
//!
//! A front end speaks a protocol on one side and [`blk::volume`] on the other. Absent on purpose: snapshots, the origin
//! of a volume, files. Nothing that a peer sends is trusted: lengths, flags and names are checked before they are
//! used, and every accepted request is answered exactly once.

#![warn(missing_docs)]

mod bucket;
mod fair;
mod limiter;
mod limits;
pub mod memory;
pub mod nbd;
pub mod nbd_client;
mod resources;
mod sessions;
mod under_way;
pub mod vhost_user;

pub use limiter::Limiter;
pub use limits::{Burst, IoLimits, RateLimit, WEIGHT_DEFAULT, WEIGHT_MAX};
pub use resources::Resources;
pub use sessions::{ConnectionFailure, SessionInfo};
pub use under_way::Activity;
