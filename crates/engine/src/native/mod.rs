//! The native store: disks whose snapshots are metadata. Redirect on the first write after a snapshot, in place
//! afterwards. The format and its invariants: `docs/formats/native.md`.

pub mod journal;
pub mod layout;
pub mod space;
pub mod superblock;
pub mod tree;
