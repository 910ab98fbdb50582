//! Listening sockets, and the addresses of this machine.

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::open::{Kind, Opened};
use crate::error::{Errno, Error, ErrorKind, Result};

/// Owner and group may connect: users that may write guests' disks are put in the group.
const SOCKET_MODE: u32 = 0o660;
/// Clients that may wait to be accepted. After a restart, a host attaches the disks of all its VMs at once.
const BACKLOG: i32 = 1024;
/// `sun_path` is 108 bytes with its final zero (unix(7)).
const UNIX_PATH_MAX: usize = 107;
/// How long the ring of a killed process may exist before its socket counts as served. On a machine whose processors are all
/// busy, the kernel removes a ring seconds after its process. A live server answers at once.
const DEATH_WAIT: Duration = Duration::from_secs(20);
/// A peer that vanished silently is detected after 60 + 4 x 15 = 120 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

fn failed(path: &str, doing: &str) -> impl Fn(rustix::io::Errno) -> Error {
    move |e| Errno::from(e).at(path, doing)
}

pub(super) fn listen_unix(path: &str) -> Result<Opened> {
    if path.len() > UNIX_PATH_MAX {
        return Err(Error::invalid(
            path,
            format!("{} bytes long, and the path of a Unix socket has at most {UNIX_PATH_MAX}", path.len()),
        ));
    }
    let address = SocketAddrUnix::new(path).map_err(failed(path, "naming the socket"))?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed(path, "making a socket"))?;
    // Set before the bind, which copies the mode to the file: the socket is never open to other users.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(SOCKET_MODE)).map_err(failed(path, "setting the mode"))?;
    match rustix::net::bind(&fd, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            remove_stale(path)?;
            rustix::net::bind(&fd, &address).map_err(failed(path, "binding"))?;
        }
        other => other.map_err(failed(path, "binding"))?,
    }
    // Set again afterwards: the bind applies the umask, which may have removed the group's access.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))
        .map_err(|e| Errno::from(e).at(path, "setting the mode"))?;
    rustix::net::listen(&fd, BACKLOG).map_err(failed(path, "listening"))?;
    Ok(Opened {
        fd,
        kind: Kind::Listener { tcp: false, path: Some(path.to_string()) },
        notice: None,
        shared: None,
        device: None,
    })
}

/// Removes a socket file on which no process answers. Any other file at that path stays.
fn remove_stale(path: &str) -> Result<()> {
    let found = std::fs::symlink_metadata(path).map_err(|e| Errno::from(e).at(path, "looking at it"))?;
    if !found.file_type().is_socket() {
        return Err(Error::new(ErrorKind::Exists, path, "exists and is not a socket; not touched"));
    }
    let deadline = Instant::now() + DEATH_WAIT;
    loop {
        match UnixStream::connect(Path::new(path)) {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                return std::fs::remove_file(path)
                    .map_err(|e| Errno::from(e).at(path, "removing the stale socket"));
            }
            Ok(peer) if Instant::now() < deadline && hangs_up(&peer) => {}
            _ => {
                return Err(Error::new(
                    ErrorKind::Locked,
                    path,
                    "another process is listening on this socket",
                ));
            }
        }
    }
}

/// Returns whether the server ends the connection. A live server greets, or waits for its client. If its process was
/// killed, the kernel ends the connection when it has removed the process's ring, which happens after the process has
/// ended.
fn hangs_up(mut peer: &UnixStream) -> bool {
    let patient = peer.set_read_timeout(Some(DEATH_WAIT)).is_ok();
    patient
        && match peer.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
}

/// Listens on `address`: "HOST:PORT", a name or a number.
pub(super) fn listen_tcp(address: &str) -> Result<Opened> {
    let listener = TcpListener::bind(address).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::Locked,
            std::io::ErrorKind::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Io,
        };
        Error::new(kind, address, format!("listening: {e}"))
    })?;
    Ok(Opened {
        fd: listener.into(),
        kind: Kind::Listener { tcp: true, path: None },
        notice: None,
        shared: None,
        device: None,
    })
}

/// Sets the options of a TCP connection. A reply is one send and must not wait for the next one; a dead peer must not
/// hold a disk without limit.
pub(super) fn tune_tcp(fd: &OwnedFd) {
    // Best effort: the peer may be gone already, which the first receive reports.
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES);
}
