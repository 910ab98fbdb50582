//! How long the medium takes: the place for device models, and the only one.
//!
//! [`Device`] is without memory and what crash tests use. [`Storage`] is what the lab measures on: units (LUNs) of
//! [`Model`]s with positions, queues and caches, and rules for the placement of files. Models nest: a disk array
//! is a [`Cached`] over a [`Group`] of [`Disk`]s. All parameters are plain numbers; where they come from is the
//! caller's to say.
//!
//! A model at work is a [`Server`]. It gets a request when that is submitted, says when it wants to be called
//! next, and names what is done then; in between it may reorder as it likes. It has no content: `machine` changes
//! the bytes at the completion.

mod cached;
mod disk;
mod flash;
mod group;
mod lru;
mod model;
mod place;
mod plain;
mod queue;
mod remote;
mod seek;
mod server;
mod tiered;
#[cfg(test)]
mod trial;
mod units;

pub use cached::Cached;
pub use disk::{Buffers, Disk, Tags};
pub use flash::Flash;
pub use group::{Group, Level};
pub use model::Model;
pub use place::Place;
pub use plain::{Cost, Device};
pub use remote::Remote;
pub use seek::Seek;
pub use tiered::Tiered;
pub use units::{Calls, Storage, Unit};

pub(crate) use place::{Layout, Piece, Placement, ZoneId};
pub(crate) use server::{Access, NEVER_NS};
pub(crate) use units::{Admitted, Media};
