//! The REST API: routes under `/api/v1`, served on a Unix socket that only its owner can open.

pub mod body;
mod routes;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::future::Future;
use std::path::Path as FsPath;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Error, ErrorBody, Result};
use api::listen;
use api::name::VmName;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Json, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tracing::{debug, warn};

use crate::daemon::CoreHandle;

/// The largest body is a `VmCreate`: 60 disks, each with a folder's path of up to 4096 bytes.
const BODY_BYTES_MAX: usize = 256 << 10;

/// Time limit from the connection, or from the previous answer, to the last byte of a request's header.
pub(crate) const HEADER_TIME_MAX: Duration = Duration::from_secs(30);
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of clients that wait to be accepted; the standard library uses the same number.
const BACKLOG: i32 = 128;
const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

struct Failure(Error);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody::from(self.0.clone()))).into_response();
        response.extensions_mut().insert(self.0);
        response
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

fn invalid(cause: impl Display) -> Failure {
    Failure(Error::invalid(cause.to_string()))
}

/// A request's path parameter, query or body. Its refusal is an `ErrorBody`, as every other failure is.
struct Parameter<T>(T);
struct Parameters<T>(T);
struct Body<T>(T);

impl<S: Send + Sync, T: FromStr<Err: Display>> FromRequestParts<S> for Parameter<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> std::result::Result<Self, Failure> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|e| invalid(e.body_text()))?;
        text.parse().map(Self).map_err(|e| invalid(format!("{text:?}: {e}")))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> std::result::Result<Self, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|e| invalid(e.body_text()))
    }
}

impl<S: Send + Sync, T: body::Request> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> std::result::Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e| invalid(e.body_text()))?;
        body::parse(&bytes).map(Self).map_err(Failure)
    }
}

/// Path parameters of `/vms/{vm}/disks/{number}`.
struct DiskParameter(VmName, u32);

impl<S: Send + Sync> FromRequestParts<S> for DiskParameter {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> std::result::Result<Self, Failure> {
        let Path((vm, number)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|e| invalid(e.body_text()))?;
        let vm = vm.parse().map_err(|e| invalid(format!("{vm:?}: {e}")))?;
        let number = number.parse().map_err(|e| invalid(format!("disk {number:?}: {e}")))?;
        Ok(Self(vm, number))
    }
}

fn router(core: Arc<CoreHandle>) -> Router {
    Router::new()
        .nest("/api/v1", routes::all().with_state(core))
        .fallback(|| async { Failure(Error::not_found("no such route; the API is under /api/v1")) })
        .method_not_allowed_fallback(|| async { Failure(Error::invalid("this route has no such method")) })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(logged))
}

/// Answers a request and logs it: a change that failed as a warning, everything else in detail only.
async fn logged(request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    match response.extensions().get::<Error>() {
        None => debug!("{method} {uri}: {status}"),
        Some(error) if status >= 500 && method != Method::GET => warn!("{method} {uri}: {status}: {error}"),
        Some(error) => debug!("{method} {uri}: {status}: {error}"),
    }
    response
}

/// Binds the socket, and replaces one that a dead daemon left. The caller holds the datastore's lock, so no living
/// daemon listens there.
pub(crate) fn bind(socket: &FsPath) -> Result<UnixListener> {
    let failed = |e: std::io::Error| Error::failed(format!("API socket {}: {e}", socket.display()));
    listen::check_socket_path(socket).map_err(Error::invalid)?;
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    // The mode is set before the bind, which copies it to the file. The socket is thus never open to other users.
    let made = || {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET_FLAGS, None)?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(socket)?)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok::<_, rustix::io::Errno>(fd)
    };
    let listener = made().map_err(|e| failed(e.into()))?;
    UnixListener::from_std(listener.into()).map_err(failed)
}

/// Serves until `stop` resolves, then completes the requests in flight. `header_time` limits a request's header.
pub(crate) async fn serve(
    listener: UnixListener,
    core: Arc<CoreHandle>,
    header_time: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let service = TowerToHyperService::new(router(core));
    let connections = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                warn!("accepting a client of the API: {e}");
                // No descriptor is free until other users of descriptors close theirs.
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(header_time);
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service.clone()));
        // A client that disconnects or is too slow does not affect the others.
        tokio::spawn(async move { drop(connection.await) });
    }
    drop(listener);
    connections.shutdown().await;
    Ok(())
}
