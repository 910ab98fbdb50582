//! Front ends: protocols by which clients reach a volume.
//!
//! A front end speaks a protocol on one side and [`blk::volume`] on the other. Absent on purpose: snapshots, the origin
//! of a volume, files. Nothing that a client sends is trusted: lengths, flags and names are checked before they are
//! used, and every accepted request is answered exactly once.

#![warn(missing_docs)]

pub mod nbd;
