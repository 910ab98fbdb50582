//! The NBD server: fixed newstyle handshake, simple and structured replies, `base:allocation`.
//!
//! Bytes become decisions in two machines without I/O, [`negotiate`] and [`request`]; [`session`] and [`server`] carry
//! their bytes. Section names in comments are those of the NBD project's `doc/proto.md`. Absent on purpose: TLS,
//! oldstyle, extended headers.

pub mod doors;
mod handshake;
mod line;
pub mod negotiate;
mod options;
mod outbox;
pub mod proto;
pub mod replay;
mod reply;
pub mod request;
pub mod server;
mod session;
mod status;
mod wire;

pub use doors::{Doors, SessionInfo};
pub use server::serve;
