//! The map of a disk: a copy-on-write tree from the disk's blocks to blocks of the store's file, shared between
//! snapshots.
//!
//! A node is a page that never changes once it is written: a change makes new nodes from the leaf up to a new root.
//! Births never increase on the path down: an entry or pointer was born no later than the node that contains it. So the
//! subtree of a node that was born too early to matter need not be searched.

mod cache;
mod devices;
mod entry;
mod found;
mod lookup;
mod merge;
mod node;
mod plan;
mod walk;

pub use cache::MapCache;
pub(crate) use cache::Nodes;
pub(crate) use devices::on_devices;
pub(crate) use entry::{LEVEL_MAX, Mapped, PageTag, Root, Roots, Update, span};
pub(crate) use found::FoundPage;
pub(crate) use merge::{MergePace, merge};
pub(crate) use plan::MergeSpace;
pub(crate) use walk::{WalkItem, differences, gone, gone_from_both, has_page, survey};

/// Most reads or writes under way at once by one merge or lookup: enough to keep the disks of a RAID busy, few enough
/// that a guest's request does not wait behind them.
const IOS_AT_ONCE: usize = 16;

/// Longest read or write of adjacent pages: 128 KiB, which a disk moves in 1.5 ms.
const PAGES_PER_IO: usize = 32;

#[cfg(test)]
mod tests;
