//! The front end: how clients outside reach a volume.
//!
//! A front end speaks a protocol on one side and [`blk::volume`] on the other. Absent on purpose: what a snapshot is, where
//! a volume comes from, any file. Nothing a client sends is trusted: lengths, flags and names are checked before they
//! are used, and every request that was taken in is answered exactly once.

#![warn(missing_docs)]

pub mod nbd;
