//! Disks as they run: chains, maps, snapshots, commits. The same code in real and in virtual time.
//!
//! Absent on purpose: format names (a `Manifest` answers for those), sockets, any clock but `Env`'s, and every cost
//! that VMware's own code has (the lab imitates that).

mod bin;
mod branch;
pub mod chain;
mod client;
pub mod commit;
pub mod difference;
pub mod disk;
mod disks;
pub mod event;
pub mod fold;
pub mod graph;
mod ground;
pub mod job;
pub mod link;
pub mod listing;
mod load;
pub mod machine;
pub mod map;
mod mirror;
pub mod native;
pub mod options;
mod pace;
mod plan;
pub mod relocate;
mod space;
pub mod stats;
pub mod take;
pub mod tree;
mod unwritten;
pub mod vm;
mod volume;
mod write;

pub use bin::find_binned;
pub use client::{Client, GenerationChange, View};
pub use commit::{CommitPreview, CommitWhat};
pub use difference::{Between, Differences};
pub use disk::Disk;
pub use event::{DiskTimes, Event, EventKind, WRITES_LOST};
pub use ground::Loss;
pub use job::{Job, JobState};
pub use listing::{DiskLayers, Use};
pub use machine::{Machine, RunningDisk};
pub use mirror::Mirror;
pub use options::{Defect, Defects, FoldOptions, Options, SpacePolicy};
pub use unwritten::unwritten_bytes;
pub use vm::Vm;
