//! Images of Ceph's RBD as files: the binding to its client libraries, which are loaded at the first use.
//!
//! An image is written only by the owner of its exclusive lock. The lock is acquired explicitly, so the library does not hand
//! it over when another client asks for it. Before a client breaks the lock, the cluster blocklists the former owner: the
//! owner's writes fail from then on, those that were under way too. All `unsafe` of this binding is in `rbd::library` and `rbd::image`.

mod image;
mod library;
mod name;

pub use self::image::{Image, LockOwner, check_fencing, until_closed};
pub(crate) use self::image::{Request, Transfer};
pub use self::name::{PREFIX, RbdName};
