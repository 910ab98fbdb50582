//! Disks of a store on other cores than the store's.
//!
//! The store's core owns journal, map, space and checkpoints. It *grants* another core windows of a disk: where their
//! blocks are, and which of them may be overwritten in place. With a grant that core reads and overwrites without a
//! message. Everything else goes to the store's core as a message, in batches, and the answer brings new grants.
//!
//! A grant is withdrawn in the poll that changes the map, before the change (`Store::withdraw`): its mark is one atomic
//! word with the number of I/Os under way, so either an I/O finds the grant withdrawn, or the store finds the I/O. The
//! store then counts it among the requests of its own core until it ends, so that no block is used again, and no
//! snapshot is sealed, before that (`crate::native::store::Store::reads`, `writes`). A take withdraws the permission to
//! write of a whole disk with one word.

#[cfg(test)]
mod defragment_tests;
mod disk;
mod grant;
mod grant_cache;
mod link;
mod mark;
#[cfg(test)]
mod randomized_tests;
mod relay;
mod served_vm;
mod stock;
#[cfg(test)]
mod stock_tests;
mod store_side;
#[cfg(test)]
pub(super) mod tests;
mod vm;
mod vm_requests;
mod vm_side;
#[cfg(test)]
mod vm_tests;
mod withdraw;

pub use disk::RemoteDisk;
pub use link::{DiskTicket, StoreEnd, VmEnd, connect};
pub use relay::{RelayTicket, RelayedVolume};
pub use served_vm::VmTicket;
pub(super) use stock::StoreStock;
pub use store_side::StoreSide;
pub use vm::RemoteVm;
pub use vm_side::VmSide;
pub(super) use withdraw::{GrantedDisk, NodeGrants};

/// Blocks of one grant: 128 KiB, so that one answer serves the neighbours of a request, and a redirect withdraws little.
const WINDOW_BLOCKS: u64 = 32;
/// Most windows that one answer grants: those of a request of 1 MiB that begins anywhere.
const WINDOWS_AT_ONCE: u64 = 9;
/// What the grants of one core take in tests: those of some GiB.
#[cfg(test)]
const GRANT_BYTES_MAX: usize = 32 << 20;

/// Returns the windows of a range of blocks, which is not empty.
fn windows_of(blocks: &std::ops::Range<u64>) -> std::ops::RangeInclusive<u64> {
    blocks.start / WINDOW_BLOCKS..=(blocks.end - 1) / WINDOW_BLOCKS
}
