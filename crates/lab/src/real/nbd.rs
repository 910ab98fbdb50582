//! An NBD client: how the lab reaches whatever a stack serves, its own engine's daemon included.

mod address;
mod handshake;
mod volume;

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use blk::{Error, ErrorKind, Result};

pub use address::{Address, Server};
pub use volume::NbdVolume;

use super::core::World;

/// Three round trips take far less on any link that can carry a disk.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// Connects and negotiates, which blocks; the volume is served by the world's core.
pub fn connect(world: &World, uri: &str) -> Result<Rc<NbdVolume>> {
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
    let socket = world.reactor.adopt_stream(fd, world.env(), &place);
    Ok(NbdVolume::start(&world.env(), socket, export))
}
