//! Running disks of VMs: layer chains, block maps, snapshots and commits. The same code runs in real and in virtual
//! time.
//!
//! Absent on purpose: the names of file formats (behind the `Manifest` trait), sockets, any clock but that of `Env`,
//! and every cost that VMware's own code has (the lab imitates those).

#![warn(missing_docs)]

mod activity;
mod bin;
mod client;
mod event;
mod freed_space;
pub mod job;
mod job_control;
mod join;
pub mod latencies;
pub mod machine;
mod mirror;
pub mod native;
mod operations;
pub mod options;
pub mod redo;
pub mod relocate;
pub mod stats;
pub mod tree;

pub use bin::find_binned;
pub use client::{Client, GenerationChange, View};
pub use event::{DiskTimes, Event, EventKind, WRITES_LOST};
pub use freed_space::with_freed_space;
pub use job::{Job, JobState};
pub use job_control::{JobControl, JobFigure};
pub use machine::{Machine, RunningDisk};
pub use mirror::Mirror;
pub use operations::{
    CommitPreview, CommitWhat, DefragmentOutcome, DefragmentRequest, DiffRequest, Differences, DiskLayers,
    Loss, Rename, SpaceUsage,
};
pub use options::{Defect, Defects, FoldOptions, Options, SpacePolicy};
pub use redo::{Disk, Vm, unwritten_bytes};
