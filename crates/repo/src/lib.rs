//! Backups of disks in a repository: a folder or a bucket of immutable objects.
//!
//! A backup is whole by itself: a map from each chunk of a disk to its place in a pack. Chunks are named by a keyed hash,
//! stored once for all VMs, compressed and encrypted. What happens to a repository is one sequence of numbered entries, the
//! log; an entry is created only if its number is free, so that all writers agree on the order without a clock.
//! `docs/formats/repository.md` describes the bytes and the rules.
//!
//! This crate does not open disks, contains no policy, and trusts no byte that it reads.

#![warn(missing_docs)]

mod chunk;
mod copy;
mod disk_reader;
mod disk_writer;
mod entry;
mod event;
mod gather;
mod hex;
mod key;
mod known;
mod log;
mod names;
mod objects;
mod packs;
mod page;
mod pages;
mod parallel;
mod prune;
mod remote;
mod remote_error;
mod repository;
mod seal;
mod session;
mod state;
mod verify;

pub use chunk::ChunkRef;
pub use copy::copy;
pub use disk_reader::DiskReader;
pub use disk_writer::DiskWriter;
pub use event::{Backup, DiskBackup, Event, Figures, Origin};
pub use key::{KeySummary, Secret, new_key_file};
pub use names::PackName;
pub use objects::{Listed, Objects, Pending, Put};
pub use prune::{Grace, Pruned, prune};
pub use remote::{Timeouts, connect, connect_with};
pub use repository::{Repository, RepositoryInfo};
pub use session::Session;
pub use state::{Forgotten, State};
pub use verify::{Seen, Verified, verify};
