//! An NBD client: how the lab reaches whatever a stack serves, its own engine's daemon included.

mod address;
mod handshake;
mod volume;

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use blk::uring::UringReactor;
use blk::{Env, Error, ErrorKind, Result};
use handshake::Export;

pub use address::{Address, Server};
pub use volume::NbdVolume;

/// Three round trips take far less on any link that can carry a disk.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// Whether that names an export, and no file.
pub fn is_uri(target: &str) -> bool {
    target.starts_with("nbd") && target.contains("://")
}

/// A connection that has been negotiated, and that no core serves yet: it may still go to another thread.
pub struct Dialled {
    fd: OwnedFd,
    export: Export,
    place: String,
}

/// Connects and negotiates, which blocks.
pub fn dial(uri: &str) -> Result<Dialled> {
    let address = Address::parse(uri)?;
    let place = address.to_string();
    let failed = |e: std::io::Error| Error::new(ErrorKind::Io, &place, format!("connecting: {e}"));
    let limit = Some(NEGOTIATION_LIMIT);
    let (fd, export): (OwnedFd, _) = match &address.server {
        Server::Unix(path) => {
            let mut stream = UnixStream::connect(path).map_err(failed)?;
            stream.set_read_timeout(limit).map_err(failed)?;
            let export = handshake::negotiate(&mut stream, &address.export, &place)?;
            stream.set_read_timeout(None).map_err(failed)?;
            (stream.into(), export)
        }
        Server::Tcp(host) => {
            let mut stream = TcpStream::connect(host).map_err(failed)?;
            stream.set_read_timeout(limit).map_err(failed)?;
            let export = handshake::negotiate(&mut stream, &address.export, &place)?;
            stream.set_read_timeout(None).map_err(failed)?;
            (stream.into(), export)
        }
    };
    Ok(Dialled { fd, export, place })
}

impl Dialled {
    /// The volume is served by the core of `env`.
    pub fn serve(self, reactor: &UringReactor, env: &Env) -> Rc<NbdVolume> {
        let socket = reactor.adopt_stream(self.fd, env.clone(), &self.place);
        NbdVolume::start(env, socket, self.export)
    }
}
