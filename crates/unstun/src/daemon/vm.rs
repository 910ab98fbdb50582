//! VMs: their records, homes, operations and events.

pub(super) mod branches;
pub(super) mod difference;
pub(super) mod disks;
pub(super) mod events;
pub(super) mod formats;
pub(super) mod home_folder;
pub(super) mod home_locks;
pub(super) mod home_records;
pub(super) mod home_removal;
pub(super) mod home_terms;
pub(super) mod identity;
pub(super) mod inuse;
pub(super) mod journal;
pub(super) mod lifecycle;
pub(super) mod limits;
pub(super) mod mark;
pub(super) mod native_homes;
pub(super) mod paths;
pub(super) mod registry;
pub(super) mod remove;
pub(super) mod settings;
pub(super) mod tree;
pub(super) mod unfinished;
pub(super) mod vm_record;
