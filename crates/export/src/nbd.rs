//! The NBD server: fixed newstyle handshake, simple and structured replies, and the metadata context `base:allocation`.
//!
//! Two state machines without I/O, `negotiate` and `request`, turn bytes into decisions; `session` and `server`
//! transfer their bytes. Section names in comments are those of the NBD project's `doc/proto.md`. Absent on purpose:
//! oldstyle, extended headers.

mod connection;
mod connections;
mod front_end;
mod handover;
mod handshake;
mod handshake_timer;
mod negotiate;
mod options;
mod outbox;
pub mod proto;
mod receive;
pub mod replay;
mod reply;
mod request;
mod server;
mod session;
mod status;
pub(crate) mod stream;
mod tls;
pub(crate) mod wire;
mod work;

pub use crate::sessions::{ConnectionFailure, SessionInfo};
pub use connections::Limits;
pub use front_end::{FrontEnd, Observer};
pub use handover::{HandedOver, Routes};
pub use reply::Failure;
pub use server::{drain, resume, serve};
pub use tls::{Permits, TlsSource, TlsTerms};
