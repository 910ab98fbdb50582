//! An NBD client, with which the lab reaches the disks of any stack, including those of our own daemon.

mod address;
mod handshake;
mod volume;

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use blk::uring::UringReactor;
use blk::{Env, Error, ErrorKind, Result};
use handshake::Export;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

pub(super) use address::{Address, Server};
pub(super) use volume::NbdVolume;

/// Limit for the negotiation: its three round trips take far less on any link that can carry a disk.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// Returns whether `target` is a URI of an export rather than a file.
pub(super) fn is_uri(target: &str) -> bool {
    target.starts_with("nbd") && target.contains("://")
}

/// A negotiated connection that is not attached to a core yet, and so may still move to another thread.
pub(super) struct Negotiated {
    fd: OwnedFd,
    export: Export,
    place: String,
}

/// Connects and negotiates; this blocks.
pub(super) fn connect(uri: &str) -> Result<Negotiated> {
    let address = Address::parse(uri)?;
    let place = address.to_string();
    let failed = |e: std::io::Error| Error::new(ErrorKind::Io, &place, format!("connecting: {e}"));
    let fd: OwnedFd = match &address.server {
        Server::Unix(path) => UnixStream::connect(path).map_err(failed)?.into(),
        Server::Tcp(host) => TcpStream::connect(host).map_err(failed)?.into(),
    };
    let limit = |limit| set_socket_timeout(&fd, Timeout::Recv, limit).map_err(|e| failed(e.into()));
    limit(Some(NEGOTIATION_LIMIT))?;
    let mut stream = File::from(fd.try_clone().map_err(failed)?);
    let export = handshake::negotiate(&mut stream, &address.export, &place)?;
    limit(None)?;
    Ok(Negotiated { fd, export, place })
}

impl Negotiated {
    /// Turns the connection into a volume that the core of `env` serves.
    pub(super) fn serve(self, reactor: &UringReactor, env: &Env) -> Rc<NbdVolume> {
        let socket = reactor.adopt_stream(self.fd, env.clone(), &self.place);
        NbdVolume::start(env, socket, self.export)
    }
}
