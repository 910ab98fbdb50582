//! The REST API: routes under `/api/v1` over a `Control`, served on a Unix socket that only its owner can open.

use std::fmt::Display;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FsPath;
use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Json, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use crate::api::{CommitTarget, JobLimit, SnapshotTake, VmCreate};
use crate::control::Control;
use crate::error::{Error, ErrorBody, Result};
use crate::name::{self, VmName};
use crate::{listen, units};

/// The largest body is a `VmCreate`: 4096 disks of about 40 bytes each would fit.
const BODY_BYTES_MAX: usize = 256 << 10;
/// Of one VM: four SCSI controllers with 15 disks each, as VMware's own limit.
const DISKS_MAX: usize = 60;

type Shared = State<Arc<dyn Control>>;
/// Success is JSON with status 200; failure is an `ErrorBody` with the kind's status.
type Answer<T> = std::result::Result<Json<T>, Failure>;

struct Failure(Error);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody::from(self.0))).into_response()
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

/// A request's path parameter, query or body, whose refusal is an `ErrorBody` as every other failure is.
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

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> std::result::Result<Self, Failure> {
        let body = Json::from_request(request, state).await;
        body.map(|Json(value)| Self(value)).map_err(|e| invalid(e.body_text()))
    }
}

pub fn router(control: Arc<dyn Control>) -> Router {
    let v1 = Router::new()
        .route("/status", get(status))
        .route("/vms", get(vm_list).post(vm_create))
        .route("/vms/{vm}", get(vm_show))
        .route("/vms/{vm}", delete(vm_remove))
        .route("/vms/{vm}/snapshots", get(snapshot_tree).post(snapshot_take))
        .route("/vms/{vm}/commit", post(snapshot_commit))
        .route("/vms/{vm}/commit/preview", post(commit_preview))
        .route("/vms/{vm}/events", get(events))
        .route("/jobs", get(job_list))
        .route("/jobs/{id}", get(job_show))
        .route("/jobs/{id}/pause", post(job_pause))
        .route("/jobs/{id}/resume", post(job_resume))
        .route("/jobs/{id}/cancel", post(job_cancel))
        .route("/jobs/{id}/limit", put(job_limit))
        .with_state(control);
    Router::new()
        .nest("/api/v1", v1)
        .fallback(|| async { Failure(Error::not_found("no such route; the API is under /api/v1")) })
        .method_not_allowed_fallback(|| async { Failure(Error::invalid("this route has no such method")) })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Replaces a socket left by a dead daemon. The caller holds the datastore's lock, so no living one listens there.
pub fn bind(socket: &FsPath) -> Result<UnixListener> {
    let failed = |e: std::io::Error| Error::failed(format!("API socket {}: {e}", socket.display()));
    listen::check_socket_path(socket).map_err(Error::invalid)?;
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves until `stop` resolves, then completes the requests in flight.
pub async fn serve(
    listener: UnixListener,
    control: Arc<dyn Control>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    axum::serve(listener, router(control))
        .with_graceful_shutdown(stop)
        .await
        .map_err(|e| Error::failed(format!("API server: {e}")))
}

fn answer<T: Serialize>(result: Result<T>) -> Answer<T> {
    result.map(Json).map_err(Failure)
}

async fn status(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.status().await)
}

async fn vm_list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.vm_list().await)
}

async fn vm_create(State(control): Shared, Body(request): Body<VmCreate>) -> Answer<impl Serialize> {
    if request.disks.is_empty() || request.disks.len() > DISKS_MAX {
        let count = request.disks.len();
        return Err(invalid(format!("VM with {count} disks: expected 1 to {DISKS_MAX}")));
    }
    for disk in &request.disks {
        units::check_disk_size(disk.size_bytes).map_err(invalid)?;
    }
    answer(control.vm_create(request).await)
}

async fn vm_show(State(control): Shared, Parameter(vm): Parameter<VmName>) -> Answer<impl Serialize> {
    answer(control.vm_show(vm).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    #[serde(default)]
    delete_disks: bool,
}

async fn vm_remove(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Parameters(remove): Parameters<Remove>,
) -> Answer<impl Serialize> {
    answer(control.vm_remove(vm, remove.delete_disks).await)
}

async fn snapshot_tree(State(control): Shared, Parameter(vm): Parameter<VmName>) -> Answer<impl Serialize> {
    answer(control.snapshot_tree(vm).await)
}

async fn snapshot_take(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(request): Body<SnapshotTake>,
) -> Answer<impl Serialize> {
    name::check_message(&request.message).map_err(invalid)?;
    answer(control.snapshot_take(vm, request).await)
}

async fn commit_preview(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(target): Body<CommitTarget>,
) -> Answer<impl Serialize> {
    answer(control.commit_preview(vm, target).await)
}

async fn snapshot_commit(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Body(target): Body<CommitTarget>,
) -> Answer<impl Serialize> {
    answer(control.snapshot_commit(vm, target).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn events(
    State(control): Shared,
    Parameter(vm): Parameter<VmName>,
    Parameters(query): Parameters<After>,
) -> Answer<impl Serialize> {
    answer(control.events(vm, query.after).await)
}

async fn job_list(State(control): Shared) -> Answer<impl Serialize> {
    answer(control.job_list().await)
}

async fn job_show(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_show(id).await)
}

async fn job_pause(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_pause(id).await)
}

async fn job_resume(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_resume(id).await)
}

async fn job_cancel(State(control): Shared, Parameter(id): Parameter<u64>) -> Answer<impl Serialize> {
    answer(control.job_cancel(id).await)
}

async fn job_limit(
    State(control): Shared,
    Parameter(id): Parameter<u64>,
    Body(limit): Body<JobLimit>,
) -> Answer<impl Serialize> {
    if limit.limit_bytes_s == Some(0) {
        return Err(invalid("limit of 0 bytes per second: expected more, or null for none"));
    }
    answer(control.job_limit(id, limit.limit_bytes_s).await)
}
