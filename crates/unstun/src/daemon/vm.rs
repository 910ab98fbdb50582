//! VMs: their records, homes, operations and events.

pub mod branches;
pub mod descriptors;
pub mod difference;
pub mod disks;
pub mod events;
pub mod formats;
pub mod home_locks;
pub mod home_records;
pub mod homes;
pub mod identity;
pub mod inuse;
pub mod journal;
pub mod lifecycle;
pub mod registry;
pub mod remove;
pub mod slow;
pub mod tree;
pub mod unfinished;
pub mod vm_record;
