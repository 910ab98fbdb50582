//! The simulated world under the same executor and engine code: virtual time, a seeded device, power cuts.
//!
//! [`SimWorld`] is the durable medium and its file system; it outlives power cuts. [`SimReactor`] is one boot of it.
//! Everything that happens is a function of the seed and the options.
//!
//! Guarantees of the medium, and nothing more:
//! * A write survives a power cut if it completed before a completed flush of its file was submitted. Otherwise any
//!   subset of its 512-byte sectors may survive, whatever other writes did.
//! * The file's size and allocation become durable with the same flush. Of the unflushed changes a prefix survives.
//! * A name survives if its change completed before a completed `SyncDir` was submitted. Of the others a prefix
//!   survives, or with [`Options::directory_subsets`] any subset that keeps the order of changes to one name.
//! * Operations under way at the cut have happened, or not. Locks and handles are gone.
//! * With [`Options::unreadable_sectors`], sectors whose write was under way may be unreadable until they are written
//!   again.
//! * A failed flush reports its error once. Data that it should have made durable stays dirty or is forgotten: later
//!   flushes succeed without it, and with [`Options::page_cache`] reads show it for a while.
//!
//! Not modelled: loss of flushed data (see [`SimWorld::flip_bit`] for decay), misdirected writes, torn 512-byte
//! sectors, file systems that order data and names more strictly than this (relying on that would be a bug).
//!
//! Absent on purpose: real time, threads, real files, and randomness that is not drawn from the seed.

mod bridge;
mod bytes;
mod content;
mod cores;
mod device;
mod dir;
mod fault;
mod file;
mod fs;
mod hosts;
mod inspect;
mod interval;
mod kind;
mod machine;
mod memory;
mod options;
pub mod oracle;
mod perform;
mod power;
mod reactor;
mod reservations;
mod rng;
mod survival;
mod trace;
mod unreadable;
mod volatile_content;
mod world;

pub use bridge::Bridge;
pub use device::{
    Buffers, By, Cached, Calls, Cost, Device, Disk, Flash, Group, Level, Limit, Load, Model, Place, Rate,
    Remote, Seek, Storage, Tags, Tiered, Unit,
};
pub use fault::{Action, Cut, Fault, Phase};
pub use hosts::{Host, Pause};
pub use kind::OpKind;
pub use options::{ContentMode, Options};
pub use reactor::SimReactor;
pub use rng::{Ratio, Rng};
pub use survival::View;
pub use trace::{KindCount, TraceEvent};
pub use world::SimWorld;
