//! OVA files: a tar with the OVF descriptor of a VM, its disks, and a manifest of their hashes. They are read in place; the texts
//! and headers of new ones are made here, and written by the caller.
//!
//! Facts: DMTF DSP0243. Only regular files are members, and their number and the lengths of all texts are limited. Names in the
//! archive are never used as paths.

mod archive;
mod descriptor_writer;
mod hardware;
mod manifest;
mod ovf;
mod tar;
mod xml;

pub use archive::{Ova, OvaDisk};
pub use descriptor_writer::{NewDisk, NewVm};
pub use hardware::{Attachment, slots};
pub use manifest::{Algorithm, Hash, Manifest};
pub use tar::{Member, member_header};

pub(crate) use archive::{Texts, assemble};
pub(crate) use ovf::parse as parse_descriptor;
pub(crate) use tar::Walk;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
