//! streamOptimized disks ("KDMV", compressed grains) as volumes that are read: a file, or a member of an OVA; and the
//! writer of new ones, from begin to end.
//!
//! Facts: reference/vmware-formats section 2; docs/formats/stream.md has diagrams. Header, footer, descriptor, directory and
//! lengths are compared at the opening, a table when it is loaded, and a grain when it is inflated. Absent on purpose: changes of
//! a disk, and disks that have a parent.

mod directory;
mod disk;
mod grain;
mod header;
mod table;
mod volume;
mod writer;

pub use disk::{Stream, open, open_member};
pub use writer::{GRAIN_BYTES, StreamWriter, compress};

pub(crate) use directory::Directory;
pub(crate) use disk::check_descriptor;
pub(crate) use grain::{GrainPlace, MARKER_BYTES};
pub(crate) use header::{Head, decode_footer, decode_header, tail_offset};
pub(crate) use table::TableBounds;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
