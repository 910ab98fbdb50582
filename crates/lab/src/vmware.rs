//! VMware as it was: disks with snapshots, and commits, at the cost that the articles measured.
//!
//! What is published is modelled: formats, growth, both ways of committing, the effects of a stun. What is not
//! published is a named hypothesis ([`rules::Hypothesis`]): how many I/Os the layer of deltas keeps under way, and when
//! it reads its tables. The bytes are real, so the same code runs on real files and is verified there. Only its cost is
//! VMware's.
//!
//! The model finds a grain in memory and issues the I/Os that VMware would need to find it, for their cost alone. It
//! cannot recover from a power cut: tables are written for their cost and for other readers.

mod cache;
mod chain;
mod commit;
mod constants;
mod delta;
mod disk;
mod extent;
pub(crate) mod fifo_lock;
mod fills;
mod format;
mod frozen;
pub(crate) mod gate;
pub(crate) mod host;
mod map;
mod mover;
mod path;
mod records;
pub mod rules;
pub mod spec;
mod stun;
mod vm;

pub use extent::Zeroing;
pub use format::Format;
pub use vm::Esx;

/// What the model leaves out, one sentence each, for the record of a run.
pub const LEFT_OUT: [&str; 6] = [
    "SEsparse's coalescing of first writes' data: each is an I/O of its own",
    "one budget of table memory for all deltas of a host: each delta has its own",
    "snapshots of memory, quiescing, changed-block tracking",
    "other VMs and hosts on the datastore, and the locks between them",
    "descriptors: they count where files are opened and made, and are not written",
    "a host that loses power: tables are written and never read back",
];
