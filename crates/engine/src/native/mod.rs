//! The native store: disks whose snapshots are metadata. Redirect on the first write after a snapshot, in place
//! afterwards. The format and its invariants: `docs/formats/native.md`.

mod blocks;
pub mod bytes;
pub mod catalogue;
pub mod change;
pub mod check;
mod checkpoint;
mod contents;
mod difference;
pub mod disk;
mod gather;
mod ground;
pub mod journal;
pub mod layout;
pub mod lease;
pub mod lineage;
mod media;
#[cfg(test)]
mod ordeal_tests;
mod preview;
mod reclaim;
mod recover;
mod redirect;
pub mod space;
pub mod store;
pub mod stored;
pub mod superblock;
mod table;
mod tend;
#[cfg(test)]
mod tests;
pub mod tree;
#[cfg(test)]
mod unreadable_tests;
mod usage;
mod view;
pub mod vm;
mod zero;

pub use disk::{DiskTerms, NativeDisk};
pub use lease::{Claimant, Lease, LeaseTerms, Owner, TakeOver};
pub use recover::NewStore;
pub use store::{Store, StoreOptions};
pub use superblock::VERSION as FORMAT_VERSION;
pub use usage::{NodeUse, StoreUse};
pub use vm::{NativeVm, NewNativeVm, VmHome, VmHomeState};
