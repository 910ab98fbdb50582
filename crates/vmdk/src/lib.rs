//! VMware's files: descriptors, extents, configurations, and the home of a VM that consists of them.
//!
//! All bytes read here are untrusted: parsers never panic, never allocate by an unchecked length, and name file, field,
//! found and expected value in every error. No path is opened here. Names inside files are passed to the caller's gate.

#![warn(missing_docs)]

pub mod check;
pub mod cowd;
pub mod delta;
pub mod descriptor;
mod file_range;
mod flat;
mod grain_table;
pub mod home;
mod hosted;
mod kdmv;
mod keyvalue;
mod lru;
mod names;
pub mod ova;
mod probe;
mod read;
pub mod repair;
pub mod replay;
mod runs;
mod sesparse;
mod steps;
pub mod stream;
#[cfg(test)]
mod testing;
mod text;
mod vmsd;
pub mod vmx;
