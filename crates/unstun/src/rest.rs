//! The REST API: routes under `/api/v1`, served on a Unix socket and over TCP. Each request is checked
//! (`checked.rs`).

mod alarms;
pub mod body;
mod checked;
mod config;
mod events;
mod idempotency;
pub(crate) mod listeners;
mod metrics;
mod openapi;
mod record;
mod routes;
#[cfg(test)]
mod tests;
pub(crate) mod tls;

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use api::error::{Error, ErrorBody};
use api::name::VmName;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, FromRequest, FromRequestParts, Json, Path, Query, Request};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

pub(crate) use self::config::complete_import;
use crate::access::authorize::Access;
use crate::alarms::Alarms;
use crate::console;

/// The largest body is a `VmCreate`: 60 disks, each with a folder's path of up to 4096 bytes.
pub(crate) const BODY_BYTES_MAX: usize = 256 << 10;

/// What the paths of the API begin with.
pub(crate) const API_PREFIX: &str = "/api/v1";

pub(crate) struct Failure(Error);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody::from(self.0.clone()))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self.0);
        response
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

fn malformed(cause: impl Display) -> Failure {
    Failure(Error::malformed(cause.to_string()))
}

/// A request's path parameter, query or body. Its refusal is an `ErrorBody`, as every other failure is.
struct Parameter<T>(T);
struct Parameters<T>(T);
struct Body<T>(T);

impl<S: Send + Sync, T: FromStr<Err: Display>> FromRequestParts<S> for Parameter<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> std::result::Result<Self, Failure> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|e| malformed(e.body_text()))?;
        text.parse().map(Self).map_err(|e| malformed(format!("{text:?}: {e}")))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> std::result::Result<Self, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|e| malformed(e.body_text()))
    }
}

impl<S: Send + Sync, T: body::Request> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> std::result::Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e| malformed(e.body_text()))?;
        body::parse(&bytes).map(Self).map_err(Failure)
    }
}

/// Path parameters of a part of a VM, such as `/vms/{vm}/disks/{number}`.
struct PartParameter<T>(VmName, T);

impl<S: Send + Sync, T: FromStr<Err: Display>> FromRequestParts<S> for PartParameter<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> std::result::Result<Self, Failure> {
        let Path((vm, part)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|e| malformed(e.body_text()))?;
        let vm = vm.parse().map_err(|e| malformed(format!("{vm:?}: {e}")))?;
        let part = part.parse().map_err(|e| malformed(format!("{part:?}: {e}")))?;
        Ok(Self(vm, part))
    }
}

/// Returns the routes. Each request passes the check of `access` before its route sees it.
pub(crate) fn router(access: Arc<Access>, alarms: Arc<Alarms>, shown: console::Shown) -> Router {
    let checked = from_fn_with_state(access.clone(), checked::authorize);
    let others = events::routes(shown.clone())
        .merge(record::routes(shown.recorder.clone()))
        .merge(config::routes())
        .with_state(access.clone());
    let routes = routes::all(access.clone()).merge(others).route_layer(checked.clone());
    let console = console::routes(&access, shown);
    let metrics =
        Router::new().route("/metrics", get(metrics::metrics)).with_state(access).route_layer(checked);
    Router::new()
        .nest(API_PREFIX, routes.merge(openapi::routes()))
        .merge(metrics)
        .merge(console)
        .fallback(|| async { Failure(Error::not_found("no such route; the API is under /api/v1")) })
        .method_not_allowed_fallback(no_such_method)
        .layer(Extension(alarms))
        .layer(Extension(Arc::<idempotency::Repeats>::default()))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(logged))
}

async fn no_such_method() -> Response {
    let mut response = Failure(Error::invalid("this route has no such method")).into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}

/// Answers a request and logs it: a change that failed as a warning, everything else in detail only.
async fn logged(request: Request, next: Next) -> Response {
    // The query of a login is a secret.
    let (method, uri) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    match response.extensions().get::<Error>() {
        None => debug!("{method} {uri}: {status}"),
        Some(error) if status >= 500 && method != Method::GET => warn!("{method} {uri}: {status}: {error}"),
        Some(error) => debug!("{method} {uri}: {status}: {error}"),
    }
    response
}
