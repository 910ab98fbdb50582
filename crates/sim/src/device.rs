//! Device models: the time that I/O takes on the medium. No other module models time.
//!
//! [`Device`] has no memory and is used by crash tests. [`Storage`] is used by the lab: units (LUNs) of [`Model`]s with
//! positions, queues and caches, and a rule for the placement of files. Models nest: a disk array is a [`Cached`] over
//! a [`Group`] of [`Disk`]s. All parameters are plain numbers; the caller documents their sources.
//!
//! A [`Server`] is a model in operation. It gets each request at its submission, reports when it must be called next,
//! and then names the requests that are done. In between it may reorder them. It has no access to content: `machine`
//! applies the effect of a request on the bytes at its completion.

mod bound;
mod cached;
mod disk;
mod flash;
mod group;
mod load;
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

pub use bound::{By, Limit};
pub use cached::Cached;
pub use disk::{Buffers, Disk, Tags};
pub use flash::Flash;
pub use group::{Group, Level};
pub use load::{Load, Rate};
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
