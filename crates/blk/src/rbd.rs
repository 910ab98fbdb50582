//! Images of Ceph's RBD as files: the binding to its client libraries, which are loaded at the first use.
//!
//! An image is written only by the owner of its exclusive lock, which is acquired explicitly: the library then hands it over
//! to nobody. Whoever breaks the lock has the former owner blocklisted by the cluster first: its writes fail from then on,
//! those that were under way too. All `unsafe` of this binding is in `rbd::library` and `rbd::image`.

mod image;
mod library;
mod name;

pub use self::image::{Image, until_closed};
pub(crate) use self::image::{Request, Transfer};
pub use self::name::{PREFIX, RbdName};
