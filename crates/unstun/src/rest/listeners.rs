//! The addresses at which the API is served: a Unix socket for the users of this host; TCP, and Unix sockets of proxies.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path as FsPath;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Error, Result};
use api::listen;
use axum::Router;
use axum::extract::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::tls::Tls;
use crate::access::callers::Origin;
use crate::access::users;

/// Time limit from the connection, or from the previous answer, to the last byte of a request's header. A TLS handshake has
/// as long.
pub(crate) const HEADER_TIME_MAX: Duration = Duration::from_secs(30);
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of clients that wait to be accepted; the standard library uses the same number.
const BACKLOG: i32 = 128;
/// Maximum number of connections of an address for clients with tokens; more wait to be accepted.
const WEB_CONNECTIONS_MAX: usize = 256;
/// Mode 0666.
const OPEN_TO_ALL: Mode =
    Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);
const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// An address of the API for clients with a token.
pub(crate) enum Web {
    /// Without TLS on loopback.
    Tcp { listener: TcpListener, tls: Option<Tls> },
    /// The socket of a proxy.
    Unix { listener: UnixListener, path: Arc<FsPath> },
}

/// Where the API is served.
pub(crate) struct Listeners {
    pub unix: UnixListener,
    pub web: Vec<Web>,
}

impl Web {
    pub(crate) async fn bind(address: SocketAddr, tls: Option<Tls>) -> std::io::Result<Web> {
        Ok(Web::Tcp { listener: TcpListener::bind(address).await?, tls })
    }

    /// Binds the socket of a proxy, and replaces one on which no process listens. It is open to all users of the host, as a
    /// loopback address is: who opens it has no rights without a token.
    pub(crate) fn bind_unix(path: &FsPath) -> std::io::Result<Web> {
        remove_stale(path)?;
        let listener = bind_at(path)?;
        rustix::fs::chmod(path, OPEN_TO_ALL)?;
        Ok(Web::Unix { listener, path: path.into() })
    }

    /// Returns the URL for browsers, with the port that the kernel has chosen if it was 0, and with the host's name where
    /// every address of the host is meant; for the socket of a proxy, which has the URL, `unix:PATH`.
    pub(crate) fn url(&self) -> String {
        let (listener, tls) = match self {
            Web::Tcp { listener, tls } => (listener, tls),
            Web::Unix { path, .. } => return format!("unix:{}", path.display()),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let host = rustix::system::uname();
        match listener.local_addr() {
            Ok(address) if address.ip().is_unspecified() => {
                format!("{scheme}://{}:{}", host.nodename().to_string_lossy(), address.port())
            }
            Ok(address) => format!("{scheme}://{address}"),
            Err(_) => scheme.to_owned(),
        }
    }

    /// Returns the address for the log.
    pub(crate) fn shown(&self) -> String {
        match self {
            Web::Tcp { tls: Some(tls), .. } => {
                format!("{}, certificate SHA-256 {}", self.url(), tls.fingerprint)
            }
            _ => self.url(),
        }
    }

    /// Removes the socket's file, while the socket still belongs to this process.
    fn remove_file(&self) {
        if let Web::Unix { path, .. } = self {
            // A file that stays is harmless: the next daemon replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds the socket, and replaces one that a dead daemon left. The caller holds the datastore's lock, so no living
/// daemon listens there.
pub(crate) fn bind_unix(socket: &FsPath) -> Result<UnixListener> {
    let failed = |e: std::io::Error| Error::failed(format!("API socket {}: {e}", socket.display()));
    listen::check_socket_path(socket).map_err(Error::invalid)?;
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let listener = bind_at(socket).map_err(failed)?;
    open_to_users(socket);
    Ok(listener)
}

/// Binds a socket that only this user can open.
fn bind_at(socket: &FsPath) -> std::io::Result<UnixListener> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET_FLAGS, None)?;
    // The mode is set before the bind, which copies it to the file. The socket is thus never open to other users.
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(socket)?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    UnixListener::from_std(fd.into())
}

/// Removes a socket on which no process listens. Any other file stays, and is an error.
fn remove_stale(socket: &FsPath) -> std::io::Result<()> {
    let found = match std::fs::symlink_metadata(socket) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(std::io::Error::other("the path exists and is not a socket"));
    }
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET_FLAGS, None)?;
    match rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(socket),
        Err(e) if e != Errno::AGAIN => Err(e.into()),
        _ => Err(std::io::Error::other("another process listens on this socket")),
    }
}

/// Opens the socket to those who may have a role: the group of the administrators, and all users if the file of users
/// exists. Each request is checked. Its folder can be passed through then, and not be listed.
fn open_to_users(socket: &FsPath) {
    let group = users::admins_group().map(|group| rustix::fs::Gid::from_raw(group.as_raw()));
    open_to(socket, group, users::has_users_file());
}

fn open_to(socket: &FsPath, group: Option<rustix::fs::Gid>, to_all: bool) {
    let folder = socket.parent().unwrap_or(socket);
    let give = |path: &FsPath, of_group: Mode, of_others: Mode| {
        let is_given = group.is_some_and(|group| rustix::fs::chown(path, None, Some(group)).is_ok());
        let mode = Mode::from_raw_mode(rustix::fs::stat(path)?.st_mode);
        let of_group = if is_given || to_all { of_group } else { Mode::empty() };
        let of_others = if to_all { of_others } else { Mode::empty() };
        rustix::fs::chmod(path, mode | of_group | of_others)
    };
    let given = give(socket, Mode::RGRP | Mode::WGRP, Mode::ROTH | Mode::WOTH);
    if let Err(e) = given.and_then(|()| give(folder, Mode::XGRP, Mode::XOTH)) {
        warn!("API socket {}: {e}; only the daemon's own user and root can open it", socket.display());
    }
}

/// Serves until `stop` resolves, then completes the requests in flight. `header_time` limits a request's header.
pub(crate) async fn serve(
    listeners: Listeners,
    router: Router,
    header_time: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let connections = GracefulShutdown::new();
    let service = Service { router, header_time };
    let (unix, web) = (listeners.unix, listeners.web);
    let serving = async {
        let on_unix = serve_unix(&unix, &service, &connections);
        let on_web =
            futures_util::future::join_all(web.iter().map(|web| serve_web(web, &service, &connections)));
        tokio::join!(on_unix, on_web);
    };
    tokio::select! {
        () = pin!(stop) => {}
        () = serving => {}
    }
    web.iter().for_each(Web::remove_file);
    drop((unix, web));
    connections.shutdown().await;
    Ok(())
}

/// What each connection is served with.
#[derive(Clone)]
struct Service {
    router: Router,
    header_time: Duration,
}

impl Service {
    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        origin: Origin,
        watcher: Watcher,
    ) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.header_time);
        let routes = TowerToHyperService::new(self.router.layer(Extension(origin)));
        // A client that disconnects or is too slow does not affect the others.
        drop(watcher.watch(http.serve_connection(TokioIo::new(stream), routes)).await);
    }
}

async fn serve_unix(listener: &UnixListener, service: &Service, connections: &GracefulShutdown) {
    loop {
        let Some((stream, _)) = accepted(listener.accept().await).await else { continue };
        // A process that has ended has no user any more, and reads no answer.
        let Ok(peer) = stream.peer_cred() else { continue };
        let origin = Origin::Unix { uid: peer.uid(), gid: peer.gid() };
        tokio::spawn(service.clone().serve(stream, origin, connections.watcher()));
    }
}

async fn serve_web(web: &Web, service: &Service, connections: &GracefulShutdown) {
    let free = Arc::new(Semaphore::new(WEB_CONNECTIONS_MAX));
    loop {
        let permit = free.clone().acquire_owned().await;
        let (service, watcher) = (service.clone(), connections.watcher());
        match web {
            Web::Tcp { listener, tls } => {
                let Some((stream, from)) = accepted(listener.accept().await).await else { continue };
                let acceptor = tls.as_ref().map(|tls| tls.acceptor.clone());
                tokio::spawn(async move {
                    serve_tcp(stream, from, acceptor, service, watcher).await;
                    drop(permit);
                });
            }
            Web::Unix { listener, path } => {
                let Some((stream, _)) = accepted(listener.accept().await).await else { continue };
                let origin = Origin::Proxy(path.clone());
                tokio::spawn(async move {
                    service.serve(stream, origin, watcher).await;
                    drop(permit);
                });
            }
        }
    }
}

async fn serve_tcp(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Option<tokio_rustls::TlsAcceptor>,
    service: Service,
    watcher: Watcher,
) {
    let origin = Origin::Tcp(from.ip());
    // An answer is written at once.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return service.serve(stream, origin, watcher).await };
    match tokio::time::timeout(service.header_time, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => service.serve(stream, origin, watcher).await,
        Ok(Err(e)) => debug!("TLS with {from}: {e}"),
        Err(_) => debug!("TLS with {from}: no handshake within {:?}", service.header_time),
    }
}

/// Returns what was accepted. A failure is logged, and passes after a while: no descriptor is free until other users of
/// descriptors close theirs.
async fn accepted<T>(accepted: std::io::Result<T>) -> Option<T> {
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(e) => {
            warn!("accepting a client of the API: {e}");
            tokio::time::sleep(ACCEPT_AGAIN).await;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    /// Returns the modes of the folder and of the socket in it.
    fn modes(group: Option<u32>, to_all: bool) -> (u32, u32) {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(".unstun");
        std::fs::create_dir(&own).unwrap();
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).unwrap();
        let socket = own.join("api.sock");
        std::fs::write(&socket, "").unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
        open_to(&socket, group.map(rustix::fs::Gid::from_raw), to_all);
        let mode = |path: &FsPath| std::fs::metadata(path).unwrap().mode() & 0o777;
        (mode(&own), mode(&socket))
    }

    #[test]
    fn the_socket_is_open_to_those_who_may_have_a_role_and_its_folder_is_never_listed() {
        let own_group = rustix::process::getegid().as_raw();
        assert_eq!(modes(None, false), (0o700, 0o600));
        assert_eq!(modes(Some(own_group), false), (0o710, 0o660));
        assert_eq!(modes(None, true), (0o711, 0o666));
        assert_eq!(modes(Some(own_group), true), (0o711, 0o666));
    }
}
