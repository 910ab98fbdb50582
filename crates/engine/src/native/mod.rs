//! The native store: disks whose snapshots are metadata. The first write to a block after a snapshot is redirected to a
//! new place; later writes overwrite it in place. `docs/formats/native.md` has the format and its invariants.

mod backing;
mod blocks;
pub mod bytes;
mod catalogue;
pub mod change;
mod changed_blocks;
pub mod check;
mod checkpoint;
mod contents;
mod defragment;
mod diff_base;
mod difference;
mod disk;
#[cfg(test)]
mod fixture_tests;
pub mod journal;
mod key;
pub mod layout;
mod lease;
mod lineage;
mod maintenance;
mod media;
mod opening;
mod pacing;
#[cfg(test)]
mod pacing_tests;
mod preview;
mod progress;
#[cfg(test)]
mod randomized_tests;
mod rebuild;
mod reclaim;
mod recover;
mod redirect;
mod remote;
mod replayed_records;
mod sector_masks;
#[cfg(test)]
mod sector_masks_tests;
mod source;
mod sources;
pub mod space;
mod status;
mod store;
pub mod stored;
mod streams;
pub mod superblock;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod unmerged;
#[cfg(test)]
mod unmerged_tests;
#[cfg(test)]
mod unreadable_tests;
mod usage;
mod view;
mod vm;
mod write_coalescer;
mod zero;

pub use defragment::{DefragmentJob, DefragmentScope, Fragmentation};
pub use disk::{DiskOptions, NativeDisk};
pub use lease::{Claimant, Lease, LeaseTimes, Owner, TakeOver};
pub use rebuild::{RebuildReport, RebuiltNode, rebuild};
pub use recover::NewStore;
pub use remote::{
    DiskTicket, RelayTicket, RelayedVolume, RemoteDisk, RemoteVm, StoreEnd, StoreSide, VmEnd, VmSide,
    VmTicket, connect,
};
pub use source::Source;
pub use sources::Turn;
pub use store::{PENDING_RUN_BYTES, Store, StoreOptions};
pub use superblock::VERSION as FORMAT_VERSION;
pub use tree::MapCache;
pub use usage::StoreUsage;
pub use vm::{NativeVm, NewNativeVm, VmHome, VmHomeState};
