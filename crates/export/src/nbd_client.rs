//! The NBD client: an export of any server as a [`Volume`](blk::volume::Volume).
//!
//! Connecting and negotiating block the thread, within time limits. Afterwards a core serves the connection, with many
//! requests under way. Section names in comments are those of the NBD project's `doc/proto.md`. Nothing that a server
//! sends is trusted: every reply is checked against its request, and every length has a limit. A server that breaks the
//! protocol, or hangs up, fails the requests under way and all later ones; the owner connects again. Absent on purpose:
//! TLS, oldstyle, extended headers, reconnects of its own.

mod address;
mod connection;
mod coverage;
mod extents;
mod handshake;
mod receive;
pub mod replay;
mod requests;
mod volume;

use std::os::fd::OwnedFd;
use std::rc::Rc;

use blk::socket::Socket;
use blk::uring::ClientStream;
use blk::{Env, Error, ErrorKind, Result};

pub use address::{Address, Server, is_uri};
pub use extents::Extent;
pub use handshake::Export;
pub use volume::NbdVolume;

/// Time limit of a connect: 10 s, several retransmissions of a lost packet.
const CONNECT_LIMIT_US: u64 = 10_000_000;
/// Time limit of the whole negotiation: 30 s. Its round trips take far less on any link that can carry a disk; the rest is
/// for a server that opens its disk meanwhile.
const NEGOTIATION_LIMIT_US: u64 = 30_000_000;

/// A negotiated connection that is not attached to a core yet, and so may still move to another thread.
#[derive(Debug)]
pub struct Negotiated {
    fd: OwnedFd,
    export: Export,
    place: String,
}

/// Connects and negotiates, with `base:allocation` where the server has it. This blocks the thread, at most 40 s for each
/// address of the host.
///
/// # Errors
/// `Invalid` for a URI that is none; `Unsupported` for one with TLS, or a server that this client does not understand;
/// `NotFound` if the server has no such export; `Refused` if it denies it; otherwise `Io`.
pub fn connect(uri: &str) -> Result<Negotiated> {
    connect_to(&Address::parse(uri)?, None)
}

/// Connects like [`connect`], and selects the metadata context `context` as well. [`Export::has_context`] says whether
/// the server has it.
pub fn connect_to(address: &Address, context: Option<&str>) -> Result<Negotiated> {
    let place = address.to_string();
    let failed = |e: std::io::Error| Error::new(ErrorKind::Io, &place, format!("connecting: {e}"));
    let stream = match &address.server {
        Server::Unix(path) => ClientStream::connect_unix(path, CONNECT_LIMIT_US),
        Server::Tcp(host) => ClientStream::connect_tcp(host, CONNECT_LIMIT_US),
    };
    let mut stream = stream.map_err(failed)?;
    stream.limit(NEGOTIATION_LIMIT_US);
    let export = handshake::negotiate(&mut stream, &address.export, context, &place)?;
    Ok(Negotiated { fd: stream.into_fd().map_err(failed)?, export, place })
}

impl Negotiated {
    /// Returns the properties of the export.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Returns the address, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Turns the connection into a volume that the core of `env` serves.
    ///
    /// # Errors
    /// `Unsupported` on a core without sockets.
    pub fn serve(self, env: &Env) -> Result<Rc<NbdVolume>> {
        let socket = Socket::connected(env, self.fd, &self.place);
        let socket = socket.ok_or_else(|| Error::unsupported(&self.place, "this core has no sockets"))?;
        Ok(NbdVolume::start(env, socket, self.export, self.place))
    }
}
