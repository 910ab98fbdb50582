//! Connections whose export another core serves: they go to that core during the handshake, before their first request.

use blk::Local;

use super::negotiate::Negotiation;
use super::stream::DetachedStream;

/// Where a front end sends connections whose export another core serves.
pub trait Routes {
    /// Returns the core that serves the export, if it is another one than this front end's.
    fn other_core<'a>(&'a self, export: &'a str) -> Local<'a, Option<usize>>;

    /// Sends a connection to the front end of another core, which calls [`super::resume`].
    fn hand_over(&self, core: usize, connection: HandedOver);
}

/// A connection between two cores, in the middle of its handshake. Its drop ends the connection.
pub struct HandedOver {
    pub(super) stream: DetachedStream,
    pub(super) negotiation: Negotiation,
    /// The export that the client has requested, which was not looked up yet.
    pub(super) export: String,
    pub(super) listener: String,
    /// Time that the client has left for its part of the handshake.
    pub(super) left_ns: u64,
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<HandedOver>();
};
